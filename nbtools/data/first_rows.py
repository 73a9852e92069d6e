"""The first rows of a dataset, and a guess which of its columns hold texts and which hold labels."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nbtools.data import data_files, tables

_MOST_ROWS = 200
_LABELS = ("label", "labels", "target", "class", "category", "sentiment", "topic", "intent", "tag", "y", "hisco")
_LONGEST_LABEL = 64
_MOST_CLASSES = 50


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a table, or the first lines of a text."""

    columns: tuple[str, ...]
    """Column names in the order of the file; empty for a text."""
    rows: tuple[Mapping[str, Any], ...]
    """Values by column; the lines of a text are in the column ""."""
    num_files: int = 1

    def cells(self, column: str) -> list[str]:
        """Return the values of a column that are not empty, as text."""
        return [str(row[column]) for row in self.rows if row.get(column) not in (None, "")]

    @property
    def lacks_names(self) -> bool:
        """Whether the first line is likely a row and not the names: one is a value or, as all below it, a number."""
        return any(
            name in (cells := self.cells(name)) or (_is_number(name) and len(cells) > 1 and all(map(_is_number, cells)))
            for at, name in enumerate(self.columns)
            if name.strip() and name != str(at)  # pandas numbers columns that have no name
        )

    def text_column(self, but: Collection[str] = ()) -> str | None:
        """Return the column that most likely holds texts: `text`, else that of the longest cells with several words."""
        names = [name for name in self.columns if name.strip() and name not in but]
        return "text" if "text" in names else max(names, key=self._as_text, default=None)

    def _as_text(self, column: str) -> tuple[bool, float]:
        cells = self.cells(column)
        several = sum(" " in cell.strip() for cell in cells) > 0.3 * len(cells)
        words = [cell for cell in cells if any(map(str.isalpha, cell))]
        return several, sum(map(len, words)) / max(len(self.rows), 1)

    def label_column(self, but: Collection[str] = ()) -> str | None:
        """Return the column that most likely holds labels: one named so, else that of the fewest different values.

        Labels are short, and repeat: numbers with a fraction are not labels.
        """
        names = [name for name in self.columns if name.strip() and name not in but and self._are_labels(name)]
        parts = {name: name.lower().replace("_", " ").replace("-", " ").split() for name in names}
        usual = (name for word in _LABELS for name in names if word in parts[name])
        return next(usual, None) or min(names, key=lambda name: len(set(self.cells(name))), default=None)

    def _are_labels(self, column: str) -> bool:
        cells = self.cells(column)
        if len(cells) < len(self.rows) or any(len(cell) > _LONGEST_LABEL for cell in cells):
            return False
        # 1.0 is a class with a gap in the column.
        is_fraction = any(_is_number(cell) and float(cell) % 1 for cell in cells)
        different = len(set(cells))
        return not is_fraction and 2 <= different <= min(_MOST_CLASSES, max(2, len(cells) // 2))


def _is_number(text: str) -> bool:
    return text.strip().lstrip("-").replace(".", "", 1).isdecimal()


def first_rows(dataset: str, root: Path | None = None) -> FirstRows:
    """Read the first rows of a file or folder.

    Raises:
        DataError: it is missing or malformed.
    """
    files = data_files.files_in(data_files.dataset_path(dataset, root))
    if tables.suffix_of(files[0]) in tables.SUFFIXES:
        rows = tuple(row for _, row in islice(tables.rows_of_tables([files[0]]), _MOST_ROWS))
        return FirstRows(tuple(dict.fromkeys(name for row in rows for name in row)), rows, len(files))
    with tables.open_bytes(files[0]) as file:
        start = islice(tables.lines_of(files[0], file), _MOST_ROWS)
        lines = (line.decode("utf-8-sig", "replace").rstrip() for line in start)
        return FirstRows((), tuple({"": line} for line in lines if line), len(files))
