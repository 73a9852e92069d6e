"""CSV files: column names and rows, checked cell by cell. Errors name file, line and column."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbtools.errors import DataError, shown

_LARGEST_FIELD = 1_000_000
_DELIMITERS = ",;\t"


def check_names(path: Path, header: list[str]) -> None:
    """Refuse a file with two columns of one name.

    Raises:
        DataError: it is one.
    """
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise DataError(f"{path}, line 1, column {twice[0]!r}: appears {header.count(twice[0])} times; rename one")


def column_index(path: Path, name: str, header: list[str], option: str) -> int:
    """Return the position of a column, counted from 0.

    Raises:
        DataError: it is missing; the message lists the columns and names the option that chooses another.
    """
    if name in header:
        return header.index(name)
    raise DataError(
        f"{path}, line 1, column {name!r}: is missing; the file has {', '.join(map(shown, header[:20]))}: "
        f"choose with {option}"
    )


@contextmanager
def opened(path: Path) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """Open a CSV file: its column names, and its rows with the line that each ends on.

    Raises:
        DataError: it is missing, not UTF-8 or malformed, or a row is ragged; also while its rows are read.
    """
    try:
        with path.open("rb") as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(_LARGEST_FIELD)
            try:
                first = file.readline()
                file.seek(0)
                delimiter = max(_DELIMITERS, key=first.count)
                reader = csv.reader(file, delimiter=delimiter, strict=True)
                header = [name.strip() for name in next(reader, [])]
                if not any(header):
                    raise DataError(f"{path}, line 1: is empty; the first line names the columns")
                yield header, _full_rows(path, reader, header)
            except UnicodeDecodeError:
                raise _wrong_encoding(path) from None
            except csv.Error as error:
                raise DataError(
                    f"{path}, line {max(reader.line_num, 1)}: {error}; check the quotation marks of this row"
                ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; give the path of a CSV file") from error


def _full_rows(path: Path, reader: "csv._reader", header: list[str]) -> Iterator[tuple[int, list[str]]]:  # type: ignore[name-defined]
    for cells in reader:
        if len(cells) == len(header):
            yield reader.line_num, cells
        elif cells:  # an empty line is none
            place = f"{path}, line {reader.line_num}"
            if len(cells) < len(header):
                why = f"column {header[len(cells)]!r}: is missing in this row"
            else:
                why = f"column {len(header) + 1}: {shown(cells[len(header)])} is beyond the last one, {header[-1]!r}"
            raise DataError(
                f"{place}, {why}: it has {len(cells)} cells, the header {len(header)}; quote texts that hold the "
                "delimiter"
            )


def _wrong_encoding(path: Path) -> DataError:
    """Find the first byte that is not UTF-8; the decoder only knows where it is in its buffer."""
    start, header = 0, ""
    with path.open("rb") as file:
        for line, content in enumerate(file, 1):
            try:
                text = content.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                before = content[: error.start].decode("utf-8", "replace")
                delimiter = max(_DELIMITERS, key=(header or before).count)
                at = max(len(next(csv.reader([before], delimiter=delimiter), [])) - 1, 0)
                names = next(csv.reader([header], delimiter=delimiter), [])
                column = repr(names[at].strip()) if at < len(names) else str(at + 1)
                return DataError(
                    f"{path}, line {line}, column {column}: byte {start + error.start} (0x{content[error.start]:02x}) "
                    f"is not UTF-8; convert the file, for instance with: iconv -f latin1 -t utf-8 {path.name}"
                )
            if line == 1:
                header = text
            start += len(content)
    return DataError(f"{path}: is not UTF-8; convert the file, for instance with iconv")
