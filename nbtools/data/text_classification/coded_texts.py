"""Texts with their languages and codes: read from CSV files in one pass, kept compact, split. No pandas, no torch.

The form, the schedule and the training count rows with these functions, so the numbers agree.

Memory: the texts are one string of bytes, everything else is arrays: a million rows of 20 characters are 60 MB.
Shapes: N rows of a selection, R rows of a table.
"""

import contextlib
import functools
import json
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nbtools.data import split, tables
from nbtools.data.corpus import Clean
from nbtools.data.text_classification.codes import MISSING
from nbtools.errors import DataError, plural, shown

UNKNOWN_LANG = "unk"
"""Language of a row without one."""
_REMEMBERED_CELLS = 100_000
_FEW_TEXTS = 100
_FEW_PLACES = 3
_USUAL_SEPARATORS = "&;|,/"

Rows = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a table."""

    text: str
    lang: str | None
    """None takes the column `lang` where there is one."""
    targets: tuple[str, ...] | None
    """None takes code1, code2, … or else one column called codes, code or hisco."""
    clean: Clean = "none"
    """Whether texts stay as they are, or are changed by `clean_text`, and languages to lower case."""
    separator: str = ""
    """Text between the codes of one cell; a cell is one code without. Items of lists are not divided."""
    missing: tuple[str, ...] = ()
    """Spellings of a cell or item without a code, besides the empty one."""
    skips_unlabelled: bool = False
    """Whether rows without a code are left out; otherwise they are an error."""


@dataclass
class Omissions:
    """Rows of a dataset that lack a code, or a text: their number, the first places, and how the cells are written."""

    what: str
    places: list[str] = field(default_factory=list)
    spellings: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return self.spellings.total()

    def add(self, place: str, cell: str) -> None:
        self.spellings[cell] += 1
        if len(self.places) < _FEW_PLACES:
            self.places.append(f"{place}: {shown(cell)}")

    def told(self, num_rows: int) -> str:
        """Return a sentence on the rows, without its end."""
        spellings = ", ".join(f"{shown(cell)} ({count:,})" for cell, count in self.spellings.most_common(_FEW_PLACES))
        more = f", …; as {spellings}" if len(self) > len(self.places) else ""
        return f"{len(self):,} of {plural(num_rows, 'row')} have no {self.what} ({'; '.join(self.places)}{more})"


@dataclass
class CodedTexts:
    """Rows of a text, its language and its codes, by the number of each code in the order of its first appearance."""

    numbers: dict[str, int] = field(default_factory=dict)
    """Number of each code; in the table of an evaluation those of the training come first."""
    num_known: int | None = None
    """Number of codes that the training has, in the table of an evaluation."""
    langs: list[str] = field(default_factory=list)
    texts: bytearray = field(default_factory=bytearray)
    text_ends: "array[int]" = field(default_factory=lambda: array("q", [0]))
    text_lengths: "array[int]" = field(default_factory=lambda: array("i"))
    code_numbers: "array[int]" = field(default_factory=lambda: array("i"))
    code_ends: "array[int]" = field(default_factory=lambda: array("q", [0]))
    lang_numbers: "array[int]" = field(default_factory=lambda: array("H"))
    num_cleaned: int = 0
    """Number of rows whose text `clean` changed."""
    unlabelled: Omissions = field(default_factory=lambda: Omissions("code"))
    """Rows that were left out."""

    def __len__(self) -> int:
        return len(self.lang_numbers)

    def append(self, text: str, lang: str, numbers: Iterable[int]) -> None:
        if lang not in self.langs:
            self.langs.append(lang)
        self.lang_numbers.append(self.langs.index(lang))
        self.texts += text.encode("utf-8", "surrogatepass")
        self.text_ends.append(len(self.texts))
        self.text_lengths.append(len(text))
        self.code_numbers.extend(numbers)
        self.code_ends.append(len(self.code_numbers))

    def text(self, row: int) -> str:
        return self.texts[self.text_ends[row] : self.text_ends[row + 1]].decode("utf-8", "surrogatepass")

    def lang(self, row: int) -> str:
        return self.langs[self.lang_numbers[row]]

    def codes(self, row: int) -> Sequence[int]:
        """The numbers of a row's codes."""
        return self.code_numbers[self.code_ends[row] : self.code_ends[row + 1]]

    @property
    def unseen(self) -> dict[str, int]:
        """Codes that the training lacks, with the number of their rows."""
        if self.num_known is None:
            return {}
        counts = np.bincount(np.frombuffer(self.code_numbers, dtype=np.int32), minlength=len(self.numbers))
        return dict(zip(list(self.numbers)[self.num_known :], counts[self.num_known :].tolist(), strict=True))

    def renumber(self, numbers: Sequence[int]) -> None:
        """Replace every number of a code by the entry of `numbers` at its place."""
        view = np.frombuffer(self.code_numbers, dtype=np.int32)
        view[:] = np.asarray(numbers, dtype=np.int32)[view]

    def lengths(self) -> Lengths:
        """Characters of every row's text. Shape (R,)."""
        return np.array(self.text_lengths, dtype=np.int32)

    def pieces(self) -> list[bytes | memoryview]:
        """All content, for a digest."""
        names = json.dumps([self.langs, list(self.numbers)[: self.num_known], list(self.unseen)]).encode()
        arrays = self.text_ends, self.code_numbers, self.code_ends, self.lang_numbers
        return [names, memoryview(self.texts), *(memoryview(each) for each in arrays)]

    def keys(self) -> split.Keys:
        """Return the hash of each row's text, which texts share that `clean_text` makes equal. Shape (R,)."""
        return split.keys_of(clean_text(self.text(row)) for row in range(len(self)))

    def lang_lengths(self) -> Lengths:
        """Characters of every row's language. Shape (R,)."""
        lengths: Lengths = np.array([len(lang) for lang in self.langs], dtype=np.int32)[np.asarray(self.lang_numbers)]
        return lengths


def clean_text(text: str) -> str:
    """Return a text in lower case, with single spaces and without control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text.lower()).split())


def read_texts(
    paths: Sequence[tables.Source],
    columns: Columns,
    code: Callable[[str], str],
    max_codes: int,
    *,
    known: dict[str, int] | None = None,
) -> CodedTexts:
    """Read tables into one.

    `code` brings one code into its form, or raises ValueError with the reason. With `known`, the codes of the training
    data by number, any other code is `unseen`.

    Raises:
        DataError: a file is missing, not UTF-8 or malformed; a column is missing; a row is ragged, or has no text, no
            code or too many codes. The message names file, line and column; that of rows without text or code counts
            them.
    """
    table, blank = CodedTexts({**(known or {})}, None if known is None else len(known)), Omissions("text")

    @functools.lru_cache(_REMEMBERED_CELLS)  # cells repeat
    def numbers_in(cell: str, separator: str) -> tuple[int, ...]:
        parts = split_cell(cell, separator, columns.missing)
        return tuple(table.numbers.setdefault(code(part), len(table.numbers)) for part in parts)

    def wrong(where: str, column: str, what: str) -> DataError:
        return DataError(f"{where}, column {column!r}: {what}")

    for where, header, cells, text_at, lang_at, target_ats in _rows_of(paths, columns):
        text = clean_text(cells[text_at]) if columns.clean == "light" else cells[text_at]
        numbers: dict[int, None] = {}
        for at in target_ats:
            items = cells.items(at) if isinstance(cells, tables.Cells) else None
            try:
                if items is None:
                    numbers.update(dict.fromkeys(numbers_in(cells[at], columns.separator)))
                for item in items or ():
                    numbers.update(dict.fromkeys(numbers_in(item, "")))
            except ValueError as error:
                raise wrong(where, header[at], str(error)) from None
        if not numbers:
            spelt = "" if items is not None else next(filter(None, (cells[at].strip() for at in target_ats)), "")
            table.unlabelled.add(f"{where}, column {header[target_ats[0]]!r}", spelt)
            continue
        if not text.strip():
            blank.add(f"{where}, column {header[text_at]!r}", cells[text_at])
            continue
        table.num_cleaned += text != cells[text_at]
        if len(numbers) > max_codes:
            what = f"{len(numbers)} codes; a row may have {max_codes}: raise max_codes"
            raise wrong(where, header[target_ats[0]], what)
        lang = cells[lang_at].strip() if lang_at is not None else ""
        lang = lang.lower()[:8] if columns.clean == "light" else lang
        table.append(text, lang or UNKNOWN_LANG, numbers)
        if len(table.langs) > 1000:
            raise wrong(where, header[lang_at or 0], "more than 1000 languages; choose the column with lang_col")
    num_rows = len(table) + len(table.unlabelled) + len(blank)
    if not num_rows:
        raise DataError(f"{', '.join(map(str, paths))}: no row below the column names; give a file with data")
    problems = []
    if table.unlabelled and not (columns.skips_unlabelled and len(table)):
        step = "train without them (skip_unlabelled=True, --skip-unlabelled), or fill them in"
        if columns.skips_unlabelled:
            step = "name the columns of codes with target_cols"
        step += f"; empty cells and missing_labels={columns.missing} mean no code"
        problems.append(f"{table.unlabelled.told(num_rows)}: {step}")
    if blank:
        problems.append(f"{blank.told(num_rows)}: fill them in, or remove these rows")
    if problems:
        raise DataError("\n".join(problems))
    return table


def _rows_of(
    paths: Sequence[tables.Source], columns: Columns
) -> Iterator[tuple[str, list[str], Sequence[str], int, int | None, list[int]]]:
    """Yield the place of each row, the header and the cells, and where in them the text, the language and codes are."""
    for path in paths:
        with tables.opened(path) as (header, rows):
            places = _places(path, header, columns)
            for where, cells in rows:
                yield where, header, cells, *places


def _places(path: tables.Source, header: list[str], columns: Columns) -> tuple[int, int | None, list[int]]:
    """Return where the text, the language and the codes are."""
    targets = usual_targets(header) or ("code1",) if columns.targets is None else columns.targets
    text_at = tables.column_index(path, columns.text, header, "text_col")
    lang = columns.lang if columns.lang is not None else "lang" if "lang" in header else None
    lang_at = None if lang is None else tables.column_index(path, lang, header, "lang_col")
    return text_at, lang_at, [tables.column_index(path, name, header, "target_cols") for name in targets]


def usual_targets(header: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of codes that are read if none is named."""
    targets = tuple(sorted(name for name in header if name[:4] == "code" and name[4:].isdecimal()))
    return targets or tuple(name for name in ("codes", "code", "hisco") if name in header)[:1]


def read_key(path: Path) -> dict[str, str]:
    """Read a key from numbers to codes: a CSV file with the columns `code` (the number) and `hisco` (the code).

    Raises:
        DataError: it cannot be read, or has no such columns.
    """
    key: dict[str, str] = {}
    with tables.opened(path) as (header, rows):
        option = "key, a file with the columns code and hisco"
        number_at, code_at = (tables.column_index(path, name, header, option) for name in ("code", "hisco"))
        for _, cells in rows:
            if cells[code_at].strip():
                key[cells[number_at].strip()] = cells[code_at].strip()
    return key


def read_descriptions(path: Path, form: Callable[[str], str]) -> dict[str, str]:
    """Read what codes mean: a CSV file with the columns `hisco` or `code`, and `en_hisco_text` or `description`.

    `form` brings a code into its form; rows without a code are passed over.

    Raises:
        DataError: it cannot be read, or has no such columns.
    """
    found: dict[str, str] = {}
    with tables.opened(path) as (header, rows):
        option = "descriptions, a file with the columns hisco or code, and en_hisco_text or description"
        pairs = ("hisco", "code"), ("en_hisco_text", "description")
        names = (next((name for name in pair if name in header), pair[1]) for pair in pairs)
        code_at, text_at = (tables.column_index(path, name, header, option) for name in names)
        for _, cells in rows:
            with contextlib.suppress(ValueError):
                found[form(cells[code_at])] = cells[text_at].strip()
    return found


def split_texts(table: CodedTexts, keys: split.Keys, share: float, test_fraction: float) -> tuple[Rows, Rows, Rows]:
    """Divide the rows of a table, with its `keys()`, for training, evaluation and test: no text is in two of them.

    Whole texts are held out, as in `split.choose`; those that `clean_text` makes equal are in one part, cleaned or not.
    A text whose codes the training would not see otherwise is trained on; where too few texts are left to hold out any,
    one is.

    Returns:
        Row numbers in ascending order, for training, evaluation and test.
    """
    lengths = table.lengths()
    held_out = _covered(table, keys, split.choose(keys, lengths, share, fewest=2))
    if not held_out.any():
        for least in np.unique(keys)[:_FEW_TEXTS]:
            held_out = _covered(table, keys, keys == least)
            if held_out.any():
                break
    parts = split.with_test(held_out, keys, lengths, test_fraction)
    train, evaluation, test = (np.flatnonzero(parts == part) for part in range(3))
    return train, evaluation, test


def _covered(table: CodedTexts, hashes: split.Keys, held_out: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which texts can be held out so that all their codes are among those trained on."""
    numbers = np.frombuffer(table.code_numbers, dtype=np.int32)
    ends = np.frombuffer(table.code_ends, dtype=np.int64)
    num_each = ends[1:] - ends[:-1]
    is_seen = np.zeros(len(table.numbers), dtype=bool)
    is_seen[numbers[np.repeat(~held_out, num_each)]] = True
    for row in map(int, np.flatnonzero(held_out)):
        if held_out[row] and not all(is_seen[number] for number in table.codes(row)):
            held_out = held_out & (hashes != hashes[row])
            is_seen[list(table.codes(row))] = True
    return held_out


def split_cell(cell: str, separator: str, missing: Collection[str]) -> list[str]:
    """Return the codes written in a cell; none for an empty cell or a missing value."""
    is_one = not separator or cell.strip() in missing
    parts = [part.strip() for part in ([cell] if is_one else cell.split(separator))]
    return [part for part in parts if part and part not in missing]


def code_notes(codes: Collection[str], columns: Columns) -> list[str]:
    """Return sentences on codes that may be none, by their spelling, and on codes that may be several."""
    notes = []
    if odd := ", ".join(shown(spelling) for spelling in MISSING if spelling in codes):
        notes.append(f"codes may mean that there is none: {odd}; missing_labels lists spellings of none")
    for separator in _USUAL_SEPARATORS if not columns.separator else "":
        divided = [code for code in codes if separator in code and set(split_cell(code, separator, ())) <= set(codes)]
        if divided:
            notes.append(
                f"{len(divided):,} of {plural(len(codes), 'code')}, such as {shown(divided[0])}, are other codes "
                f"with {separator!r} between; each is one code here: label_separator={separator!r} divides them"
            )
    return notes
