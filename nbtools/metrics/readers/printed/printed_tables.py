"""Rows of printed tables: columns under a heading, and boxes of names and values."""

import re
from typing import Final

from nbtools.metrics.readers.printed.line_content import Reading
from nbtools.metrics.readers.printed.metric_words import SPLITS, is_counter, is_measured, parts_of

_RULE: Final = re.compile(r"[\s\-+=|:─━┄┈═│┃┏┓┗┛┡┩┢┪┣┫├┤┌┐└┘╭╮╰╯┬┴┼┳┻╇╈┠┨]{6,}")
_PREFIX: Final = re.compile(
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.\d]*+\]?[\s:|-]*+(?:\[?\s*+(?:INFO|DEBUG|WARNING)\s*+\]?)?+ ?[:|-]?"
)
_LINES: Final = str.maketrans("│┃║", "|||")
_COMMENT: Final = re.compile(r"^\s*+[#%;]\s(?=\s*\w)")
_BAR: Final = re.compile(r":?\s*\d{1,3}%(?:\|| [━─]).*")
_CELL: Final = re.compile(
    r"([-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf)(?:/(\d+))?([A-Za-z%]{0,3})[:*]?"
)
_WORDS: Final = re.compile(r"[^\W\d|][\w/@.()\[\]%'\- ]*+:?|\|\w++\||#")
_SHORT: Final = {"#": "step", "E": "epoch"}  # headings of one character
_CELLS: Final = re.compile(r"\S++(?: \S++)*+")
_GAP: Final = re.compile(r"[^,\s]\s{2}")
_VALUE: Final = re.compile(r"\s[-+]?\.?\d")
_ENDS_IN_NUMBER: Final = re.compile(r"\s[-+]?(?:\d+(?:/\d+|\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?%?$")
_PAIR: Final = re.compile(r"[\w)]\s?[:=]\s*[-+.\d]")
_NAMES: Final = re.compile(r"(?:[A-Za-z][\w/@.-]*+(?: |$)){3,}+")
_MAX_COLUMNS: Final = 60
_MAX_LABELS: Final = 40
_OF_ALL: Final = frozenset(("all", "mean", "average", "avg", "overall", "total"))


class Tables:
    """Finds tables in successive lines: a line of words names the columns of the lines of numbers below it."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._ends: list[tuple[int, int]] = []
        """Where each heading begins and ends in its line."""
        self._delimiter = ""
        self._num_labels = 0
        self._box: list[tuple[str, str]] = []
        self._group = ""

    def read(self, text: str) -> tuple[Reading | None, bool]:
        """Return the row that a line completes, and whether the line is part of a table."""
        text = _PREFIX.sub("", text).translate(_LINES)
        if _RULE.fullmatch(text):
            return self._close_box(), True
        delimiter = _delimiter_of(text)
        cells = _cells(_without_frame(text), delimiter)
        if delimiter == "|" and len(cells) == 1 and len(pair := _cells(cells[0], " ")) == 2:
            cells = pair  # | loss   0.5 |
        if delimiter == "|" and len(cells) == 2 and cells[0] and not _PAIR.search(cells[0]):  # | Loss: 0.5 | Acc: 0.9 |
            name, value = cells
            if not value:
                self._group = name if name.endswith("/") else ""
            else:
                self._box.append((self._group + name, value))
            return None, True
        if len(cells) == 1 and _NAMES.fullmatch(text) and is_counter(text.split()[0]):
            cells = text.split()  # epoch train_loss val_loss
        if self._is_header(cells, delimiter):
            self._columns = [_SHORT.get(cell, cell.rstrip(":")) for cell in cells]
            self._delimiter, self._num_labels = delimiter, 0
            self._ends = [found.span() for found in _CELLS.finditer(text)]
            return None, True
        if self._columns:
            reading = self._row(text)
            if reading is not None:
                return reading, True
        return None, False

    def _close_box(self) -> Reading | None:
        box, self._box, self._group = self._box, [], ""
        reading = Reading()
        for name, value in box:
            _add(reading, name, value)
        return reading.finish() if reading._named or reading.counters else None

    def _is_header(self, cells: list[str], delimiter: str) -> bool:
        if not 2 <= len(cells) <= _MAX_COLUMNS or not all(_WORDS.fullmatch(cell) for cell in cells):
            return False
        if max(map(len, cells)) > 40 or (delimiter == "," and any(" " in cell.strip() for cell in cells)):
            return False
        if sum(_ENDS_IN_NUMBER.search(cell) is not None for cell in cells) > len(cells) / 2:
            return False  # epoch 100/400  train_elbo 433.35
        names = [cell.rstrip(":") for cell in cells]
        return (
            any(map(is_measured, names))
            and len(set(names)) == len(names)
            and (len(names) > 2 or any(map(is_counter, names)))
        )

    def _row(self, text: str) -> Reading | None:
        num = len(self._columns)
        if self._delimiter in ("|", ",", "\t"):
            cells = _cells(text, self._delimiter)
            if len(cells) != num:
                return None
        else:
            cells = _cells(text, " ")
            cells = cells if len(cells) == num else text.split()
            rest = "" if cells[num - 1 :][:1] and cells[num - 1].endswith(":") else "".join(cells[num:])
            if len(cells) < num:
                cells = self._below_headings(text)
            if len(cells) < num or any(map(str.isdigit, rest)):  # a mark behind the row is none of its cells
                return None
            cells = cells[:num]
        is_value = [all(map(_CELL.fullmatch, _parts(cell))) for cell in cells]
        num -= cells.count("")
        if sum(is_value) < (2 if self._delimiter == "|" else num - 1):
            return None
        reading = Reading(is_bar=_BAR.search(text) is not None)
        for name, cell in zip(self._columns, cells, strict=True):
            parts = _parts(cell)
            if name is self._columns[0] and cell.isdigit() and not (is_counter(name) or is_measured(name)):
                reading.index = f"{name.lower()}_{cell}"  # a fold, or a horizon
                continue
            for i, part in enumerate(parts, 1):
                _add(reading, f"{name}_{i}" if len(parts) > 1 else name, part)
        if not is_value[0] and not reading.counters and reading.epoch is None:
            tokens = parts_of(cells[0])
            reading.split = next((SPLITS[token] for token in tokens if token in SPLITS), None)
            reading.is_of_table = True
            self._num_labels += 1
            if self._num_labels > _MAX_LABELS:
                return None
            kind = "".join(f"{token}_" for token in tokens if token not in SPLITS and token not in _OF_ALL)
            reading._named = [(kind + n, kind + f, reading.split, v, w) for n, f, _, v, w in reading._named]
        return reading.finish()

    def _below_headings(self, text: str) -> list[str]:
        """Return the cells of a row that has nothing below one or two headings; none if they are not so placed."""
        cells = ["" for _ in self._columns]
        for found in re.finditer(r"\S++", text):
            below = [i for i, (start, end) in enumerate(self._ends) if start < found.end() and found.start() < end]
            if len(below) != 1 or len(self._ends) != len(cells) or cells[below[0]]:
                return []
            cells[below[0]] = found[0]
        return cells if cells[0] and cells.count("") <= min(2, len(cells) - 3) else []


def _without_frame(text: str) -> str:
    """Return a line without the sign of a comment before it and the bar behind it."""
    if "%" in text:
        text = _BAR.sub("", text)
    return _COMMENT.sub(" ", text) if text.lstrip()[:1] in ("#", "%", ";") else text


def _delimiter_of(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith("|") and stripped.endswith("|") and len(stripped) > 2:
        return "|"
    if stripped.count("|") > 2:
        cells = [cell.strip() for cell in stripped.split("|")]
        if (all(map(_WORDS.fullmatch, cells)) and not any(map(_VALUE.search, cells))) or all(
            map(_CELL.fullmatch, cells)
        ):
            return "|"
    if "\t" in stripped:
        return "\t"
    return "," if "," in stripped and not _GAP.search(stripped) else " "


def _cells(text: str, delimiter: str) -> list[str]:
    text = text.strip()
    if delimiter == " ":
        return re.split(r"\s{2,}", text) if text else []
    return [cell.strip() for cell in text.strip("|" if delimiter == "|" else "").split(delimiter)]


def _parts(cell: str) -> list[str]:
    """Return the numbers of a cell: several if it is a list, `[0.5, 0.25]`."""
    return cell[1:-1].replace(",", " ").split() if cell[:1] == "[" and cell[-1:] == "]" else [cell]


def _add(reading: Reading, name: str, cell: str) -> None:
    match = _CELL.fullmatch(cell)
    if match is None:
        return
    value, total = float(match[1].replace(",", "")), match[2]
    name = name.strip("() ").replace("(", "_").replace(" ", "_")
    short = name.rsplit("/", 1)[-1]
    if reading.count(short, value, int(total) if total else None):
        return
    is_time = "time" in parts_of(name) or match[3] in ("s", "ms")
    if not is_time:
        is_whole = not match[3] and value == value and "." not in match[1] and "e" not in match[1].lower()
        reading.add(name, value, None, is_whole=is_whole)
