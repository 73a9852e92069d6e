"""Tables: CSV, JSON lines, JSON and Parquet files, and datasets of the hub. Errors name file, line and column.

Files other than Parquet may be compressed with gzip.
"""

import codecs
import csv
import gzip
import io
import json
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, cast

from nbtools.data.hub import HubDataset, hub_rows, with_options
from nbtools.errors import DataError, needs_package, shown

_JSON = (".jsonl", ".ndjson", ".json")
SUFFIXES = (".parquet", *_JSON, ".csv", ".tsv")
"""Suffixes of tables; any other file is text."""
NOT_READ = {
    ".zst": "compressed with Zstandard",
    ".xz": "compressed with xz",
    ".bz2": "compressed with bzip2",
    ".zip": "a ZIP archive",
    **dict.fromkeys((".tar", ".tgz"), "a tar archive"),
    **dict.fromkeys((".xlsx", ".xls"), "an Excel workbook"),
    **dict.fromkeys((".arrow", ".feather"), "an Arrow file"),
}
"""Suffixes of files that are neither text nor a table that is read."""
Source = Path | HubDataset
Row = tuple[str, Mapping[str, Any]]
"""Position of a row, such as "data.jsonl, line 3", and its values by column."""
UNREADABLE = (OSError, EOFError, zlib.error)
"""Errors of an unreadable file; the last two are those of a truncated gzip file."""
_TEXT = "text"
_LONGEST_LINE = 16 * 2**20
_LARGEST_LIST = 512 * 2**20
_ENCODINGS = {  # the marks of UTF-32 first: one begins with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_MEASURED = 4096
_SURROGATE = re.compile("[\ud800-\udfff]")
_ROWS_BEFORE_COLUMN = 1000
"""Rows without the named column, from the first on, after which no other is read."""
_DELIMITERS = ",;\t"
_SEP = re.compile(r'"?sep=(.)"?\r?\n?', re.IGNORECASE)
"""First line of a CSV file in which Excel names the delimiter."""
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_SAMPLED_LINES = 50
_LIMIT_LOCK = threading.Lock()
_OPEN = (b"{", b"[")
"""First lines of JSON that is written over several."""


def suffix_of(path: Path) -> str:
    """Return the suffix of a file in lower case, without that of gzip."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read, through gzip if its name ends in .gz; text with a mark of UTF-16 or UTF-32 becomes UTF-8.

    Raises:
        DataError: the file is UTF-16 without a mark, or not as its mark says, or too large to be decoded.
    """
    is_packed = path.name.lower().endswith(".gz")
    file = cast("io.BufferedReader", gzip.GzipFile(path) if is_packed else path.open("rb"))
    try:
        start = file.peek(_MEASURED)[:_MEASURED]
        num_nuls = [start[place::2].count(0) for place in range(2)]
        encoding = next((name for mark, name in _ENCODINGS.items() if start.startswith(mark)), "")
        if encoding and len(content := file.read(_LARGEST_LIST + 1)) <= _LARGEST_LIST:
            file.close()
            return io.BytesIO(content.decode(encoding).encode())
        if encoding or (sum(num_nuls) > len(start) // 4 and 0 in num_nuls):
            why = f"and larger than {_LARGEST_LIST:,} bytes" if encoding else "without a byte order mark"
            encoding = encoding or ("utf-16be", "utf-16le")[num_nuls.index(0) ^ 1]  # NULs of Western letters
            raise DataError(
                f"{path}: is in {encoding.upper()}, {why}; convert the file: iconv -f {encoding} -t utf-8 {path.name} "
                "> NEW"
            )
        return file
    except UnicodeError as error:
        raise DataError(f"{path}: is marked as {encoding.upper()} but damaged ({error}); write it again") from None
    except BaseException:
        file.close()
        raise


def lines_of(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of an open file; DataError if one is too long, before it is read as a whole."""
    for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), start=1):
        if len(line) > _LONGEST_LINE:
            raise DataError(f"{path}, line {number}: longer than {_LONGEST_LINE:,} bytes; split it")
        yield line


# --- rows of any table ----------------------------------------------------------------------------


def rows_of_tables(
    sources: Iterable[Source], wanted: str = "", *, streaming: bool = True, only: str | None = None
) -> Iterator[Row]:
    """Yield the rows of tables one after the other.

    Args:
        sources: files, or datasets of the hub.
        wanted: what to write instead of a malformed line, for the message.
        streaming: see `hub_rows`.
        only: the column to read of Parquet files that have it; None for all.

    Raises:
        DataError: a file is missing or malformed, or a download fails; also while rows are read.
    """
    for source in sources:
        if isinstance(source, HubDataset):
            for number, row in enumerate(hub_rows(source, streaming=streaming), start=1):
                yield f"{source}, row {number}", row
        elif suffix_of(source) == ".parquet":
            yield from _parquet_rows(source, only)
        elif suffix_of(source) in (".csv", ".tsv"):
            with opened(source) as (header, rows):
                for where, cells in rows:
                    yield where, dict(zip(header, cells, strict=True))
        else:
            yield from _json_rows(source, f"; {wanted}" if wanted else "; write one JSON object per line")


def _parquet_rows(path: Path, only: str | None) -> Iterator[Row]:
    try:
        import pyarrow  # comes with `datasets`; 50 megabytes: loaded only when needed
        from pyarrow import parquet
    except ImportError:
        raise DataError(needs_package(f"{path}: reading Parquet", "pyarrow")) from None
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            _check_names(path, names := file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=256, columns=[only] if only in names else None):
                try:
                    found = batch.to_pylist()
                except (ValueError, OverflowError) as error:  # bytes that are not UTF-8, a date beyond Python's
                    raise DataError(
                        f"{path}, rows {number + 1} to {number + len(batch)}: a value cannot be read "
                        f"({str(error)[:200]}); correct it, or name a column of text: ,column=NAME"
                    ) from None
                for row in found:
                    number += 1
                    yield f"{path}, row {number}", row
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {str(error)[:200]}") from None


def _json_rows(path: Path, wanted: str) -> Iterator[Row]:
    """Yield the objects of a file: one per line, or those of one list."""
    try:
        with open_bytes(path) as file:
            if suffix_of(path) == ".json" and file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
                file.seek(0)
                if len(text := file.read(_LARGEST_LIST + 1)) > _LARGEST_LIST:
                    raise DataError(
                        f"{path}: a list of more than {_LARGEST_LIST:,} bytes, which is read as a whole; write one "
                        "JSON object per line"
                    )
                for number, content in enumerate(_json(str(path), text, wanted), start=1):
                    yield _object(f"{path}, row {number}", content, wanted)
                return
            file.seek(0)
            for number, line in enumerate(lines_of(path, file), start=1):
                where = f"{path}, line {number}"
                if line.strip():
                    yield _object(where, _json(where, line, wanted), wanted)
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def _json(where: str, text: bytes, wanted: str) -> Any:
    try:
        return json.loads(text.removeprefix(b"\xef\xbb\xbf").decode())
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from None
    except (ValueError, RecursionError) as error:
        several = " in one line (a list over several lines is read from a .json file)" if text.strip() in _OPEN else ""
        raise DataError(f"{where}: not JSON{several} ({str(error)[:80]}){wanted}") from None


def _object(where: str, content: Any, wanted: str) -> Row:
    if not isinstance(content, dict):
        raise DataError(f"{where}: not an object{wanted}")
    return where, content


def texts_of(files: Iterable[Iterator[Row]], column: str | None) -> Iterator[str | None]:
    """Yield the texts of a column: the one named, else `text`, else the only column of text; None if one is missing.

    Args:
        files: the rows of each file.
        column: the column that the user names, of all files.

    Raises:
        DataError: there is no such column, in one of the files, or several, or it holds something else.
    """
    first: Row | None = None
    for rows in files:
        if (start := next(rows, None)) is None:
            continue
        first, is_later = first or start, first is not None
        name, is_found = column or text_column(*first), False
        is_guess = column is None and name != _TEXT
        for number, (where, row) in enumerate(chain([start], rows), start=1):
            is_found |= name in row
            if not is_found and number == _ROWS_BEFORE_COLUMN:
                break
            if is_guess and (more := [new for new in row.keys() - first[1].keys() if isinstance(row[new], str)]):
                raise DataError(f"{where}: column {more[0]!r} holds text and is not in the first row; {_how(first[1])}")
            text = row.get(name)
            if text is not None and not isinstance(text, str):
                raise DataError(f"{where}: column {name!r} holds {type(text).__name__} beside text; name another one")
            check_characters(f"{where}: column {name!r}", text or "")
            yield text
        if not is_found:
            rest = f", nor have the rows up to the {number:,}th" if number > 1 else ""
            only = ", ".join(map(shown, start[1]))
            how = f"all files of a folder need it, as {first[0]} has it" if is_later else _how(start[1])
            raise DataError(f"{start[0]}: the first row has no column {name!r}, only {only}{rest}; {how}")


def _hint(value: object) -> str:
    if isinstance(value, bytes):
        return " (decode it and write strings)"
    if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        return " (write the objects alone, one per line, or as one list in a .json file)"
    return ""


def text_column(where: str, row: Mapping[str, Any]) -> str:
    """Return the column of text: `text`, else the only one that holds text or nothing; else a DataError.

    The column without a name, which pandas writes for its index, is not one.
    """
    names = [name for name, value in row.items() if name.strip() and isinstance(value, str | None)]
    if _TEXT in names:
        return _TEXT
    if len(names) == 1:
        return names[0]
    if names:
        raise DataError(f"{where}: several columns of text ({', '.join(names)}) and none called {_TEXT!r}; {_how(row)}")
    kinds = ", ".join(f"{shown(name)}: {type(value).__name__}{_hint(value)}" for name, value in row.items())
    raise DataError(f"{where}: has no column of text, only {kinds}; give a table with text")


def _how(row: Mapping[str, Any]) -> str:
    lengths = {name: len(value) for name, value in row.items() if name.strip() and isinstance(value, str)}
    name = max(lengths, key=lambda name: lengths[name]) if lengths else "NAME"
    return f"name the column behind the dataset: {with_options('', {'column': name})}"


# --- tables of cells ------------------------------------------------------------------------------


def _check_names(path: Path, header: list[str]) -> None:
    """Refuse a file with two columns of one name; columns without a name are not read."""
    twice = [name for name in header if name and header.count(name) > 1]
    if twice:
        _check_is_table(path, header)
        raise DataError(f"{path}, line 1, column {twice[0]!r}: appears {header.count(twice[0])} times; rename one")


def column_index(path: Source, name: str, header: list[str], option: str) -> int:
    """Return the position of a column, counted from 0.

    Raises:
        DataError: it is missing; the message lists the columns and names the option that chooses another.
    """
    if name in header:
        return header.index(name)
    _check_is_table(path, header)
    raise DataError(
        f"{path}, line 1, column {name!r}: is missing; the file has {', '.join(map(shown, header[:20]))}: "
        f"choose with {option}"
    )


def _check_is_table(path: Source, header: Sequence[str]) -> None:
    """Refuse a text file that was read as a CSV file because of its place; `header` is its first line."""
    if isinstance(path, Path) and suffix_of(path) in (".txt", ".text"):
        raise DataError(
            f"{path}: a {suffix_of(path)} file is no table, and its first line, {shown(', '.join(header))}, names no "
            "column that is read; this recipe reads tables with a column of texts: put the name of the column, such as "
            "text, on a first line, and save it as .csv with quoted texts, or as .jsonl"
        )


@contextmanager
def opened(
    *paths: Source, is_ragged_kept: bool = False
) -> Iterator[tuple[list[str], Iterator[tuple[str, Sequence[str]]]]]:
    """Open a table, or its files one after the other: its column names, and its rows with the place of each.

    The columns of JSON files are those of all rows, which are read twice; numbers become text, missing values "". A
    cell that is no text is an error only if it is read.

    Args:
        is_ragged_kept: yield the rows of a CSV file that have too few or too many cells, too.

    Raises:
        DataError: a file is missing, not UTF-8 or malformed, has two columns of one name or other columns than the
            first, or a row is ragged; also while its rows are read.
    """
    with _opened(paths[0], is_ragged_kept) as (header, rows):
        yield header, chain(rows, _rows_of_shards(paths, header))


def _rows_of_shards(paths: Sequence[Source], header: list[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the rows of all files but the first, with the cells in the order of its columns."""
    for path in paths[1:]:
        with _opened(path) as (names, rows):
            if other := set(names) ^ set(header):
                raise DataError(
                    f"{path}: has the columns {', '.join(map(shown, names[:20]))} and {paths[0]} has "
                    f"{', '.join(map(shown, header[:20]))}; the files of a folder need the same ones: rename "
                    f"{shown(min(other))}, or move one of the files away"
                )
            for where, cells in rows:
                yield where, cells if names == header else Cells(where, dict(zip(names, cells, strict=True)), header)


class Cells(Sequence[str]):
    """The cells of a row as text, as in a CSV file; each is checked when it is read."""

    def __init__(self, where: str, row: Mapping[str, Any], header: list[str]) -> None:
        self._where = where
        self._row = row
        self._header = header

    def __len__(self) -> int:
        return len(self._header)

    def __getitem__(self, at: int) -> str:  # type: ignore[override]
        """Return a cell as text; DataError unless it is a text, number or bool without half of a surrogate pair.

        No caller takes a slice.
        """
        value = self._row.get(name := self._header[at])
        if value is None or value != value:  # NaN: missing, in a nullable column
            return ""
        if not isinstance(value, str | int | float):
            raise DataError(f"{self._where}, column {name!r}: holds {type(value).__name__}, not text")
        check_characters(f"{self._where}, column {name!r}", text := str(value))
        return text

    def items(self, at: int) -> list[str] | None:
        """Return the items of a list, which are checked in the same way; None if the cell is no list."""
        items = self._row.get(name := self._header[at])
        if not isinstance(items, list):
            return None
        return [Cells(f"{self._where}, list", {name: item}, [name])[0] for item in items]


def check_characters(where: str, text: str) -> None:
    """Raise a DataError if a text holds half of a surrogate pair, which no encoding of Unicode has."""
    if not text.isascii() and _SURROGATE.search(text):
        raise DataError(f"{where} holds half of a surrogate pair, which is not a character; correct it")


@contextmanager
def _opened(
    path: Source, is_ragged_kept: bool = False
) -> Iterator[tuple[list[str], Iterator[tuple[str, Sequence[str]]]]]:
    if isinstance(path, HubDataset) or suffix_of(path) in (".parquet", *_JSON):
        is_part, most = (path.is_part, path.max_samples) if isinstance(path, HubDataset) else (False, None)
        found = islice(rows_of_tables([path], streaming=is_part), most)
        is_fixed = isinstance(path, HubDataset) or suffix_of(path) == ".parquet"  # a row of JSON may add a column
        start = list(islice(found, 1 if is_fixed else 0))
        header = list(dict.fromkeys(name for _, row in (start if is_fixed else rows_of_tables([path])) for name in row))
        yield header, ((where, Cells(where, row, header)) for where, row in chain(start, found))
        return
    try:
        with open_bytes(path) as file:
            lines = _text_lines(path, file)
            sample = list(islice(lines, _SAMPLED_LINES))
            num_before, delimiter = _delimiter(path, sample)
            reader = csv.reader(islice(chain(sample, lines), num_before, None), delimiter=delimiter, strict=True)
            try:
                found_rows = _parsed(reader)
                header = [name.strip() for name in next(found_rows, [])]
                if not any(header):
                    raise DataError(f"{path}, line {num_before + 1}: is empty; the first line names the columns")
                _check_names(path, header)
                rows = ((f"{path}, line {num_before + reader.line_num}", cells) for cells in found_rows if cells)
                yield header, rows if is_ragged_kept else _full_rows(rows, header)
            except csv.Error as error:
                if reader.line_num <= 1:
                    _check_is_table(path, sample[:1])
                raise DataError(
                    f"{path}, line {num_before + max(reader.line_num, 1)}: {error}; check the quotation marks of this "
                    "row, or split it"
                ) from None
    except UNREADABLE as error:
        raise unreadable(path, error, "; give the path of a CSV file") from error


def _parsed(reader: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the rows of a `csv.reader` with long cells; the limit of the process is as before whenever one is read."""
    while True:
        with _LIMIT_LOCK:
            before = csv.field_size_limit(_LONGEST_LINE)
            try:
                cells = next(reader, None)
            finally:
                csv.field_size_limit(before)
        if cells is None:
            return
        yield cells


def _delimiter(path: Path, lines: Sequence[str]) -> tuple[int, str]:
    """Return the number of lines before the header, and the delimiter, by the first lines of a file.

    Of several that the header has outside of quotation marks, the one that gives most rows as many cells as the header,
    then the most frequent.
    """
    if lines and (named := _SEP.fullmatch(lines[0])):
        return 1, named[1]
    if suffix_of(path) == ".tsv":
        return 0, "\t"
    size = next((n for n in range(1, len(lines)) if not "".join(lines[:n]).count('"') % 2), 1)
    header = _QUOTED.sub("", "".join(lines[:size]))

    def fits(delimiter: str) -> tuple[int, int]:
        with suppress(csv.Error):  # which is raised again where the row is read
            rows = list(_parsed(csv.reader(lines, delimiter=delimiter)))
            return sum(len(cells) == len(rows[0]) for cells in rows), header.count(delimiter)
        return 0, 0

    found = [delimiter for delimiter in _DELIMITERS if delimiter in header]
    return 0, max(found, key=fits) if len(found) > 1 else "".join(found) or ","


def _text_lines(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a CSV file, which may also end with a carriage return alone, without a byte order mark.

    Raises:
        DataError: a line is too long, not UTF-8, or holds a NUL.
    """
    number, start = 0, 0
    for content in lines_of(path, file):
        try:
            text = content.decode().removeprefix("\ufeff" * (not start))
        except UnicodeDecodeError as error:
            raise not_utf8(f"{path}, line {number + 1}", error, start, path.name) from None
        start += len(content)
        for line in io.StringIO(text, newline="") if "\r" in text else (text,):
            number += 1
            if "\0" in line:
                raise DataError(
                    f"{path}, line {number}: holds a NUL byte, as damaged files and those in UTF-16 do; write the file "
                    "again, as UTF-8"
                )
            yield line


def delimiter_of(path: Path) -> str:
    """Return what separates the cells of a CSV file."""
    with open_bytes(path) as file:
        return _delimiter(path, list(islice(_text_lines(path, file), _SAMPLED_LINES)))[1]


def _full_rows(rows: Iterable[tuple[str, list[str]]], header: list[str]) -> Iterator[tuple[str, list[str]]]:
    for place, cells in rows:
        if len(cells) != len(header):
            raise DataError(f"{place}, {ragged(cells, header)}")
        yield place, cells


def ragged(cells: Sequence[str], header: Sequence[str]) -> str:
    """Return what is wrong with a row that has more or fewer cells than the header."""
    if len(cells) < len(header):
        why = f"column {header[len(cells)]!r}: is missing in this row"
    else:
        why = f"column {len(header) + 1}: {shown(cells[len(header)])} is beyond the last one, {header[-1]!r}"
    return f"{why}: it has {len(cells)} cells, the header {len(header)}; quote texts that hold the delimiter"


def not_utf8(where: str, error: UnicodeDecodeError, start: int = 0, name: str = "FILE") -> DataError:
    """Return the error that names the byte which is not UTF-8; `start` is the position of the decoded bytes."""
    byte = f"byte {start + error.start} (0x{error.object[error.start]:02x})"
    how = f"for instance with: iconv -f latin1 -t utf-8 {name}"
    return DataError(f"{where}: {byte} is not UTF-8; convert the file, {how}")


def unreadable(path: Path, error: Exception, step: str = "") -> DataError:
    """Return the error for one of `UNREADABLE`, with the next `step`."""
    return DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}{step}")
