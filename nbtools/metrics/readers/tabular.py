"""Rows from CSV and JSONL files with a column that counts steps, and from transformers' `trainer_state.json`."""

import codecs
import contextlib
import csv
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from nbtools.metrics.readers.column_roles import RowPoints, table_columns
from nbtools.metrics.readers.points import Points
from nbtools.rundir.tail import Tail, open_regular

_MAX_STATE_BYTES: Final = 256 << 20
_NO_COUNTER: Final = "no row has a counter, such as `step`, and a metric"
_MAX_COLUMNS: Final = 1000
_MAX_LINES_OF_ROW: Final = 100
_HEAD_BYTES: Final = 16 << 10
_MAX_ROWS_WITHOUT_STEPS: Final = 1_000
_FIRST_LOOK_S: Final = 5.0
"""CPU time for the rows that a file has at the first look."""
_SHARE: Final = 0.04
"""Share of a core for the rows of later looks; beyond it, only the end of each block is read."""
_SAMPLE_BYTES: Final = 16 << 10
_FEW: Final = 3
"""Rows with an earlier step that need no remark: those of restarts."""


OlderFile = tuple[int, int, str]
"""A file that a rotation has left, such as metrics.csv.1: time of its change in ns, inode, path."""


class TableFile:
    """A CSV or JSONL file, and before it the files that its rotation has left.

    Each of them is a generation, and so is a file that is written again; the points of `poll` are of one.
    """

    def __init__(self, path: str | Path, older: Sequence[OlderFile] = (), generation: int = 0) -> None:
        self.path = Path(path)
        self.note = ""
        self.older, self.generation = tuple(older), generation
        self._is_csv: bool | None = {".csv": True, ".jsonl": False}.get(self.path.suffix)
        self._tails = [*(Tail(path) for *_, path in self.older), Tail(path)]
        self._part = len(self._tails), 0
        self.held = b""
        """The beginning of the next generation, for the next `poll`."""
        self._credit_s, self._looked = 0.0, float("-inf")
        self._headers: dict[int, list[str]] = {}
        """Number of cells -> names of the columns."""
        self._delimiter = ","
        self._is_foreign = False
        self._begin(is_rotated=False)

    def _begin(self, *, is_rotated: bool) -> None:
        """Expect a header, or a row of the header before: a program may write that once."""
        if not is_rotated:
            self.note, self._rows = "", RowPoints()
            self._num_rows = self._num_headers = self._num_unread = 0
        self._headers = {} if self._is_foreign else self._headers
        self._is_foreign, self._is_first = False, True
        self._begun: list[str] = []
        """Lines of a row of which a cell in quotes continues in the next line."""
        self._is_quoted = False

    @property
    def seen(self) -> str:
        """Remark on unusual rows; "" if there are none."""
        rows, found = self._rows, [", ".join(Path(path).name for *_, path in self.older) + ": read before it"]
        if rows.num_back >= _FEW or (self._num_headers and rows.num_same >= _FEW):
            found.append(
                f"{rows.num_back + rows.num_same:,} rows have the step of the row before, or an earlier one: the last "
                "row of each step is drawn; where several programs write it at once, give each a file of its own"
            )
        return "; ".join(found if self.older else found[1:])

    def poll(self) -> Points:
        """Return the points of new lines."""
        points: Points = {}
        now = time.monotonic()
        self._credit_s = min(self._credit_s, 0) + min(_FIRST_LOOK_S, _SHARE * (now - self._looked))
        self._looked = now
        with contextlib.suppress(OSError):  # the next look reads the rest
            while block := self.held or self._block(points):
                part = len(self._tails), self._tails[0].generation
                self.held = block if points and part != self._part else b""
                if self.held:
                    break
                if part != self._part:
                    self.generation += 1
                    self._begin(is_rotated=part[0] != self._part[0])
                    self._part = part
                if not self._is_foreign:
                    block = block if self._credit_s > 0 else self._sampled(block)
                    began = time.thread_time()
                    self._read(block[:-1], points)
                    self._credit_s -= time.thread_time() - began
                if self._num_unread:
                    self.note = f"{self._num_unread / 1e6:,.0f} MB of its rows: they are written too fast, or too many"
                if self._is_foreign:  # a block for each look: it may be written again
                    break
        return points

    def _block(self, points: Points) -> bytes:
        while not (block := self._tails[0].read()) and len(self._tails) > 1:
            self.rest(points)
            del self._tails[0]
        return block

    def _sampled(self, block: bytes) -> bytes:
        if start := block.rfind(b"\n", 0, -_SAMPLE_BYTES) + 1:
            self._num_unread, self._begun, self._is_quoted = self._num_unread + start, [], False
        return block[start:]

    def rest(self, points: Points | None = None) -> Points:
        """Return the points of a last line without a newline, once nothing more is written; after others, if given."""
        points, tail = {} if points is None else points, self._tails[0]
        if tail.partial and not self._is_foreign:
            line, tail.partial = tail.partial, b""
            self._read(line, points)
        self._end_begun(points)
        return points

    def _read(self, block: bytes, points: Points) -> None:
        for line in block.split(b"\n"):
            text = line.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
            text = text.lstrip("\0")  # a hole, which a writer leaves that keeps its place when the file is cut
            if self._is_csv is None and text.strip():
                self._is_csv = text.lstrip()[0] != "{"
            if self._is_foreign:
                return
            if self._is_csv and (text.strip() or self._begun):
                self._csv_line(text, points)
            elif text.strip():
                row = _parsed(text)
                self._add(row if isinstance(row, dict) else {}, points)

    def _add(self, row: dict[str, Any], points: Points) -> bool:
        has_points = self._rows.add(row, points)
        self._num_rows += 1
        if not self._rows.has_steps:
            self.note = _NO_COUNTER
            self._is_foreign = self._num_rows >= _MAX_ROWS_WITHOUT_STEPS
        elif self.note is _NO_COUNTER:
            self.note = ""
        return has_points

    def _csv_line(self, line: str, points: Points) -> None:
        self._begun.append(line)
        self._is_quoted ^= line.count('"') % 2 == 1
        if not self._is_quoted:
            text, self._begun = "\n".join(self._begun), []
            self._csv_row(text, points)
        elif len(self._begun) == _MAX_LINES_OF_ROW:
            self._end_begun(points)

    def _end_begun(self, points: Points) -> None:
        """Read each line on its own after a quote that nothing closes."""
        lines, self._begun, self._is_quoted = self._begun, [], False
        for line in lines:
            self._csv_row(line, points)

    def _csv_row(self, text: str, points: Points) -> None:
        if not self._headers:
            self._delimiter = max(",;\t", key=text.count)
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            self.note = f"a row: {error}"
            return
        if not cells:
            return
        names, header = [cell.strip() for cell in cells], self._headers.get(len(cells))
        is_first, self._is_first = self._is_first, False
        if not self._headers or (is_first and table_columns(tuple(names)).are_metrics):
            self._headers = {len(names): names}
            columns = table_columns(tuple(names))
            self._is_foreign = not columns.are_metrics or len(cells) > _MAX_COLUMNS
            if self._is_foreign:
                self.note = "no column has the name of a metric" if columns.counters else "no column counts steps"
            return
        if header is not None:
            if self._delimiter == ";":  # written where the comma is the decimal mark
                cells = [cell.replace(",", ".") for cell in cells]
            if self._add(dict(zip(header, cells, strict=True)), points):
                return
        if table_columns(tuple(names)).are_metrics:  # the header of another program, or of a restart
            self._num_headers += 1
            self._is_foreign = header is not None and header != names
            if self._is_foreign:
                self.note = f"the rows below a second header of {len(names)} columns: write them into another file"
            self._headers[len(names)] = names
        elif header is None:
            self.note = f"a row of {len(cells)} cells below a header of {len(next(iter(self._headers.values())))}"


class TrainerState:
    """The newest `trainer_state.json` of transformers' checkpoints, which has all rows up to it."""

    generation = 0

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.note = ""
        self._seen: tuple[int, int, int] | None = None

    def poll(self) -> Points:
        """Return all points if the file has changed."""
        points: Points = {}
        with contextlib.suppress(OSError), open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            seen = status.st_mtime_ns, status.st_size, status.st_ino
            if seen == self._seen:
                return points
            if status.st_size > _MAX_STATE_BYTES:
                self.note = f"it has more than {_MAX_STATE_BYTES >> 20} MB"
                return points
            text = file.read().decode(errors="replace")
            self._seen, self.note = seen, "it is not JSON, or not written to its end"
            if (state := _parsed(text)) is not None:
                rows, self.note = RowPoints(), ""
                for row in state.get("log_history", []) if isinstance(state, dict) else []:
                    if isinstance(row, dict) and "train_runtime" not in row:  # the last row has means over the run
                        rows.add(row, points)
        return points


def holds_rows(path: str | Path) -> bool | None:
    """Whether a file begins with rows that have a counter, or with their header; None while it is too short to tell."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    *lines, rest = head.removeprefix(codecs.BOM_UTF8).decode(errors="replace").split("\n")
    lines = [line for line in lines if line.strip()]
    undecided = None if len(head) < _HEAD_BYTES else False
    if (lines or [rest.lstrip()])[0][:1] == "{":
        if None in (rows := [_parsed(line) for line in lines]):
            return False
        is_row = any(isinstance(row, dict) and table_columns(tuple(row)).are_metrics for row in rows)
        return True if is_row else undecided
    if not lines:
        return undecided
    names = _cells(lines[0])
    if len(names) < 2 or len(names) > _MAX_COLUMNS or not table_columns(tuple(names)).are_metrics:
        return False
    return len(_cells(lines[1])) == len(names) if lines[1:] else undecided


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(max(",;\t", key=line.count))]


def _parsed(text: str) -> Any:
    """Return the value of a JSON text, also of one with NaN, which Python's json writes; None if it is none."""
    try:
        return orjson.loads(text)
    except ValueError:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
        return None
