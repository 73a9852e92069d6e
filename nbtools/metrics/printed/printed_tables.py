"""Tables that are printed row by row: a header and rows of numbers, and boxes with a name and a number in each line."""

import re
from typing import Final

from nbtools.metrics.curve_names import split_of
from nbtools.metrics.printed.grammars import Reading, Slot, is_metric, rank_of
from nbtools.metrics.printed.shapes import NUMBER

_EDGES: Final = re.compile(r"[|│┃║]")
_EDGE: Final = re.compile(r"^[|│┃║]|\s[|│┃║]\s|^[^\s|]+\|\S*$")
"""An edge of a table; within `||grad||` it is part of a name."""
_CELL: Final = re.compile(r"[^\s|│┃║,;]+")
_VALUE: Final = re.compile(rf"({NUMBER})(?:/(\d+))?(?:%|[kKMGT]i?B?|s|:)?")
_CLOCK: Final = re.compile(r"\d+:\d\d(?::\d\d)?")
_NAME: Final = re.compile(r"[^\W\d][\w/.@%+#()-]*")
_BOX: Final = re.compile(rf"[|│┃║] *([^\W\d][\w/.@%+ -]{{0,60}}?) *[|│┃║] *({NUMBER}) *[|│┃║]")
BORDER: Final = re.compile(r"[-=+_:|│┃║╭╮╰╯┌┐└┘├┤┼┬┴─━┏┓┗┛┡┩╇╈┳┻\s]{4,}")
"""A rule of a table, as a folded line."""
_MARK: Final = re.compile(r"[*+★☆✓✔←<!]+")
"""A mark behind the best value of a column."""
_BAR: Final = re.compile(r":? +\d{1,3}%\|.*|: \d+% .*")
_SHORT: Final = {"E": "epoch", "#": "step"}  # of spaCy
_LABELS: Final = ("class", "category", "name")
_MOST_OF_LABELLED: Final = 6
"""Columns of a framed table whose first one may have names, whatever it is called; a wider one may list settings."""
Header = tuple[str, ...]


def header_of(line: str, raw: str) -> Header | None:
    """Return the names of the columns, if a line is the header of a table, none for one whose rows are not read.

    `raw` has the white space of before.
    """
    line, raw = _BAR.sub("", line), _BAR.sub("", raw)
    if re.search(r"(?<![\w.@-])[-+]?\.?\d", line):
        return None
    if _EDGE.search(line):
        cells = [cell.strip() for cell in _EDGES.split(line) if cell.strip()]
    elif separator := next((each for each in ",;" if line.count(each) > 1 and f"{each} " not in line), ""):
        cells = line.strip("#").split(separator)
    else:
        wide = [cell for cell in re.split(r"\s{2,}|\t", raw.strip()) if cell]
        cells = wide if len(wide) > 2 else line.split()
    names = [re.sub(r"[^\w/.@%+-]+", "_", cell.strip("# ")).strip("_:") for cell in cells]
    names = [_SHORT.get(cell.strip(), name) for cell, name in zip(cells, names, strict=True)]
    if not 3 <= len(names) <= 60 or not all(_NAME.match(name) for name in names) or len({*names}) < len(names):
        return None
    is_counted = any(rank_of(name) is not None for name in names[:3])
    is_wide, is_framed = len(re.split(r"\s{2,}|\t", raw.strip())) >= len(names), _EDGE.search(line) is not None
    is_labelled = is_wide and (names[0].lower() in _LABELS or (is_framed and len(names) <= _MOST_OF_LABELLED))
    return tuple(names) if is_counted or is_labelled else () if is_framed else None


def row_of(line: str, header: Header) -> Reading | None:
    """Return what a folded line says, if it is a row of the table with this header."""
    is_bar = _BAR.search(line) is not None
    line = _BAR.sub("", line)
    cells = [cell for cell in _CELL.finditer(line) if not _MARK.fullmatch(cell[0])]
    found = [_VALUE.fullmatch(cell[0]) or _CLOCK.fullmatch(cell[0]) for cell in cells]
    label = ""
    if found and found[0] is None and len(found) >= len(header) > 2:
        num_words = len(found) - len(header) + 1
        label = "_".join(cell[0] for cell in cells[:num_words])
        found = [None, *found[num_words:]]
        cells = [cells[0], *cells[num_words:]]
    if len(found) != len(header) or any(value is None for value in found[1:]) or (found[0] is None) != bool(label):
        return None
    values: list[Slot] = []
    counters: list[Slot] = []
    for name, cell, value in zip(header, cells, found, strict=True):
        if value is None or value.re is _CLOCK:
            continue
        start, rank = cell.start(), rank_of(name)
        end = start + len(value[1])
        if rank is not None and not label:
            total = Slot("", start + value.start(2), start + value.end(2)) if value[2] else None
            counters.append(Slot(name.lower().strip("#"), start, end, rank=rank, total=total))
        elif cell[0][-1:] not in "GMKTs":
            values.append(Slot(f"{label}_{name}".strip("_"), start, end, "eval" if label else None))
    return Reading(tuple(values), tuple(counters), "grammar", f"row {label}", is_bar=is_bar)


def box_line_of(line: str) -> Reading | None:
    """Return what a line `| name | 3 |` says."""
    found = _BOX.fullmatch(line)
    if found is None or not is_metric(found[1].split(), None, is_whole=True, is_explicit=True):
        return None
    rank = rank_of(found[1])
    if rank is not None:
        return Reading((), (Slot(found[1].lower(), *found.span(2), rank=rank),), "grammar", "box", is_cell=True)
    slot = Slot(found[1], *found.span(2), split_of(found[1].split("/")[:1], None))
    return Reading((slot,), (), "grammar", "box", is_cell=True)
