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
_HEAD_BYTES: Final = 16 << 10
_BLOCK_BYTES: Final = 256 << 10


class TableFile(Reader):
    """A CSV or JSONL file; one that is written again is a further generation.

    Args:
        path: The file.
        chosen: The column that the user chose as the counter; "" for the order of the rows.
        starts_at: Returns the offset in the file at which the rows of this run begin.
    """

    def __init__(
        self, path: str | Path, chosen: str | None = None, starts_at: Callable[[str], int] = lambda path: 0
    ) -> None:
        super().__init__(path)
        self.rows: CountedRows = CountedRows(chosen)
        self._starts_at = starts_at
        self._begin_first()

    def _begin_first(self) -> None:
        """Expect the first row of the file."""
        self.history, self._generation = History(), 0
        self._is_csv: bool | None = {".csv": True, ".jsonl": False}.get(self.path.suffix)
        self._tail = Tail(self.path, block_bytes=_BLOCK_BYTES)
        self._header: list[str] = []
        self._delimiter, self._is_foreign = ",", False
        self._begin()
        with contextlib.suppress(OSError):  # what stood there before the run is left out, but for its header
            if start := self._starts_at(str(self.path)):
                with open_regular(self.path) as file:
                    if (head := file.readline(1 << 20))[:1] != b"{":
                        self._read_lines(head.rstrip())
                self._tail.skip_to(start)

    def _begin(self) -> None:
        """Expect a header, or a row of the header before: a program may write that once."""
        self.note = ""
        self.rows.rewind()
        self._header = [] if self._is_foreign else self._header
        self._is_foreign = False

    def read(self, points: Points, deadline: float) -> None:
        """Read new rows until a thread's CPU time; if that is infinite, also a last line without a newline."""
        is_complete = deadline == math.inf
        while block := self._block(is_complete=is_complete):
            if self._tail.generation != self._generation:
                self._take()
                self._generation = self._tail.generation
                self._begin()
            if self._is_foreign:  # a block for each look: it may be written again
                break
            self._read_lines(block[:-1])
            self._is_foreign |= self.rows.counter is None and len(block) > _HEAD_BYTES
            if self.rows.begins_again:
                self._begin_first()
            if time.thread_time() > deadline:
                break
        self._take()
        if not self._is_foreign and (block or self.history.num_unread_bytes):
            self.leave(self.path.stat().st_size - self._tail.position)

    def _block(self, *, is_complete: bool) -> bytes:
        """Return the next lines; of a file to which nothing is added, the last one may have no newline."""
        block, tail = self._tail.read(), self._tail
        if is_complete and not block and tail.partial:
            block, tail.partial = tail.partial + b"\n", b""
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
            if self._is_csv and text.strip():
                self._csv_row(text)
            elif text.strip():
                row = _parsed(text)
                self._add(row if isinstance(row, dict) else {})

    def _add(self, row: Mapping[str, Any]) -> bool:
        is_placed = self.rows.add(row)
        if (is_counted := self.rows.counter is not None) == self.note.startswith(_NO_COUNTER):
            self.note = "" if is_counted else _no_counter([*row])
        return is_placed

    def _csv_row(self, text: str) -> None:
        """Read a row, or a header: the first one, and that of a restart, which counts from there on."""
        if not self._header:
            self._delimiter = max(",;\t", key=text.count)
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            self.note = f"a row: {error}"
            return
        if self._delimiter == ";":  # written where the comma is the decimal mark
            cells = [cell.replace(",", ".") for cell in cells]
        fits = len(cells) == len(self._header)
        if fits and self._add(dict(zip(self._header, cells, strict=True))):
            return
        names = [cell.strip() for cell in cells]
        columns = table_columns(tuple(names))
        if columns.counters and fits and names != self._header:  # two programs: whose a row is cannot be told
            self._is_foreign = True
            self.note = f"the rows below a second header of {len(names)} columns: write them into another file"
        elif columns.counters or not self._header:
            is_known = columns.counters or columns.is_measured or self.rows.chosen in ("", *names)
            self._header, self._is_foreign = names, not is_known or len(names) > _MAX_COLUMNS
            self.note = _no_counter(names) if self._is_foreign else ""
        elif not fits:
            self.note = f"a row of {len(cells)} cells below a header of {len(self._header)}"


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
                self.extend(rows.points, unit=rows.unit)
                self.rows = rows


def holds_rows(path: str | Path) -> bool | None:
    """Whether a file begins with rows that have a counter; None while it is too short to tell."""
    head = b""
    with contextlib.suppress(OSError), open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
    reader = TableFile(path)
    reader._read_lines(head[: head.rfind(b"\n") + 1])
    if reader.rows.counter or reader.rows.begins_again or reader._is_foreign:
        return not reader._is_foreign
    return None if len(head) < _HEAD_BYTES else False


def _no_counter(names: Sequence[str]) -> str:
    return f"{_NO_COUNTER} ({', '.join(names)[:100]})"


def _parsed(text: str) -> Any:
    """Return the value of a JSON text, also of one with NaN, which Python's json writes; None if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None
