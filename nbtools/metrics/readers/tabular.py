"""Rows from CSV and JSONL files with a column that counts steps, and from transformers' `trainer_state.json`."""

import codecs
import contextlib
import csv
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nbtools.metrics.history import History
from nbtools.metrics.readers.counted_rows import CountedRows, table_columns
from nbtools.metrics.readers.points import Points
from nbtools.metrics.readers.reader import Reader
from nbtools.rundir.json_files import whole
from nbtools.rundir.tail import Tail, open_regular

_NO_COUNTER: Final = "no column counts its rows"
_MAX_STATE_BYTES: Final = 256 << 20
_MAX_COLUMNS: Final = 1000
_MAX_LINES_OF_ROW: Final = 100
_HEAD_BYTES: Final = 16 << 10
_BLOCK_BYTES: Final = 256 << 10

OlderFile = tuple[int, int, str]
"""A file that a rotation has left, such as metrics.csv.1: time of its change in ns, inode, path."""


class TableFile(Reader):
    """A CSV or JSONL file, and before it the files that its rotation has left.

    Each of them is a generation, and so is a file that is written again.

    Args:
        path: The file.
        older: The files that its rotation has left.
        chosen: The column that the user chose as the counter; "" for the order of the rows.
        starts_at: Returns the offset in a file at which the rows of this run begin.
    """

    def __init__(
        self,
        path: str | Path,
        older: Sequence[OlderFile] = (),
        chosen: str | None = None,
        starts_at: Callable[[str], int] = lambda path: 0,
    ) -> None:
        super().__init__(path)
        self.rows: CountedRows = CountedRows(chosen)
        self.older, self._starts_at = tuple(older), starts_at
        self._begin_first()

    def _begin_first(self) -> None:
        """Expect the first row of the oldest file."""
        self.history, self._generation = History(), 0
        self._is_csv: bool | None = {".csv": True, ".jsonl": False}.get(self.path.suffix)
        paths = [*(path for _, _, path in self.older), str(self.path)]
        self._tails = [Tail(path, block_bytes=_BLOCK_BYTES) for path in paths]
        self._part = len(self._tails), 0
        self._headers: dict[int, list[str]] = {}
        self._delimiter, self._is_foreign = ",", False
        self._begin(is_rotated=False)
        with contextlib.suppress(OSError):  # what stood there before the run is left out, but for its header
            if start := self._starts_at(str(self._tails[0].path)):
                with open_regular(self._tails[0].path) as file:
                    if (head := file.readline(1 << 20))[:1] != b"{":
                        self._read_lines(head.rstrip())
                self._tails[0].skip_to(start)

    def _begin(self, *, is_rotated: bool) -> None:
        """Expect a header, or a row of the header before: a program may write that once."""
        if not is_rotated:
            self.note = ""
            self.rows.rewind()
        self._headers = {} if self._is_foreign else self._headers
        self._is_foreign, self._is_first = False, True
        self._begun: list[str] = []
        """Lines of a row of which a cell in quotes continues in the next line."""

    def read(self, points: Points, deadline: float) -> None:
        """Read new rows until a thread's CPU time; if that is infinite, also a last line without a newline."""
        is_complete = deadline == math.inf
        while block := self._block(is_complete=is_complete):
            part = len(self._tails), self._tails[0].generation
            if part != self._part:
                self._take()
                self._generation += 1
                self._begin(is_rotated=part[0] != self._part[0])
                self._part = part
            if self._is_foreign:  # a block for each look: it may be written again
                break
            self._read_lines(block[:-1])
            self._is_foreign |= not self.rows.has_counter and len(block) > _HEAD_BYTES
            if self.rows.begins_again:
                self._begin_first()
            if time.thread_time() > deadline:
                break
        if is_complete:
            self._csv_line(None)
        self._take()
        if not self._is_foreign and (block or self.history.num_unread_bytes):
            self.leave(self._tails[0].path.stat().st_size - self._tails[0].position)

    def _block(self, *, is_complete: bool) -> bytes:
        """Return the next lines; of a file to which nothing is added, the last one may have no newline."""
        while not (block := self._tails[0].read()):
            tail = self._tails[0]
            if tail.partial and (is_complete or len(self._tails) > 1):
                block, tail.partial = tail.partial + b"\n", b""
                return block
            if len(self._tails) == 1:
                break
            self._csv_line(None)
            del self._tails[0]
        return block

    def _take(self) -> None:
        """Move the points into the history."""
        self.extend(self.rows.points, self._generation, self.rows.unit)
        self.rows.points = {}

    def _read_lines(self, block: bytes) -> None:
        for line in block.split(b"\n"):
            text = line.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
            text = text.lstrip("\0")  # a hole, which a writer leaves that keeps its place when the file is cut
            if self._is_csv is None and text.strip():
                self._is_csv = text.lstrip()[0] != "{"
            if self._is_foreign or self.rows.begins_again:
                return
            if self._is_csv:
                self._csv_line(text)
            elif text.strip():
                row = _parsed(text)
                self._add(row if isinstance(row, dict) else {})

    def _add(self, row: Mapping[str, Any]) -> bool:
        is_placed = self.rows.add(row)
        if self.rows.has_counter == self.note.startswith(_NO_COUNTER):
            self.note = "" if self.rows.has_counter else f"{_NO_COUNTER} ({', '.join(row)[:100]})"
        return is_placed

    def _csv_line(self, line: str | None) -> None:
        """Read a line, with those before it of which a quote is still open; None for the end of the file."""
        self._begun += [] if line is None or not (line.strip() or self._begun) else [line]
        is_open = sum(each.count('"') for each in self._begun) % 2 == 1
        if is_open and line is not None and len(self._begun) < _MAX_LINES_OF_ROW:
            return
        texts, self._begun = (self._begun if is_open else ["\n".join(self._begun)]), []
        for text in filter(None, texts):
            self._csv_row(text)

    def _csv_row(self, text: str) -> None:
        if not self._headers:
            self._delimiter = max(",;\t", key=text.count)
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            self.note = f"a row: {error}"
            return
        names, header = [cell.strip() for cell in cells], self._headers.get(len(cells))
        is_first, self._is_first = self._is_first, False
        if not self._headers or (is_first and self._is_header(names)):
            self._headers = {len(names): names}
            self._is_foreign = len(names) > _MAX_COLUMNS or not self._is_header(names)
            self.note = f"{_NO_COUNTER} ({', '.join(names)[:100]})" if self._is_foreign else ""
            return
        if self._delimiter == ";":  # written where the comma is the decimal mark
            cells = [cell.replace(",", ".") for cell in cells]
        if header is not None and self._add(dict(zip(header, cells, strict=True))):
            return
        if table_columns(tuple(names)).counters:  # the header of another program, or of a restart
            self._is_foreign = header is not None and header != names
            if self._is_foreign:
                self.note = f"the rows below a second header of {len(names)} columns: write them into another file"
            self._headers[len(names)] = names
        elif header is None:
            self.note = f"a row of {len(cells)} cells below a header of {len(next(iter(self._headers.values())))}"

    def _is_header(self, names: Sequence[str]) -> bool:
        columns = table_columns(tuple(names))
        return bool(columns.counters) or columns.is_measured or self.rows.chosen in ("", *names)


class TrainerState(Reader):
    """The newest `trainer_state.json` of transformers' checkpoints, which has all rows up to it."""

    _seen: tuple[int, int, int] | None = None

    def read(self, points: Points, deadline: float) -> None:
        """Read all rows if the file has changed."""
        with open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            seen = status.st_mtime_ns, status.st_size, status.st_ino
            if seen == self._seen:
                return
            if status.st_size > _MAX_STATE_BYTES:
                self.note = f"it has more than {_MAX_STATE_BYTES >> 20} MB"
                return
            state = _parsed(file.read().decode(errors="replace"))
            self._seen, self.note = seen, "it is not JSON, or not written to its end"
            if isinstance(state, dict):
                rows, self.note = CountedRows(), ""
                for row in state.get("log_history", []):
                    if isinstance(row, dict) and "train_runtime" not in row:  # the last row has means over the run
                        rows.add(row)
                rows.total = whole(state.get("max_steps"))
                points |= rows.points
                self.rows = rows


def holds_rows(path: str | Path) -> bool | None:
    """Whether a file begins with rows that have a counter; None while it is too short to tell."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    reader = TableFile(path)
    reader._read_lines(head[: head.rfind(b"\n") + 1])
    if reader.rows.counter or reader._is_foreign:
        return not reader._is_foreign
    return None if len(head) < _HEAD_BYTES else False


def _parsed(text: str) -> Any:
    """Return the value of a JSON text, also of one with NaN, which Python's json writes; None if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None
