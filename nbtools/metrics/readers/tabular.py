"""Rows from CSV and JSONL files with a column that counts steps, and from transformers' `trainer_state.json`."""

import contextlib
import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from nbtools.metrics.readers.lines.names import COUNTERS, EPOCHS, is_measured, metric_of
from nbtools.metrics.readers.points import Points, add_point
from nbtools.rundir.json_files import MAX_STEP
from nbtools.rundir.tail import Tail, open_regular

_MAX_STATE_BYTES: Final = 256 << 20
_MAX_COLUMNS: Final = 1000
_TIMES: Final = ("time", "timestamp", "wall_time", "_timestamp")


class TableFile:
    """A CSV or JSONL file. One that is written again with other columns is read again."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.note = ""
        self._is_csv = self.path.suffix != ".jsonl"
        self._tail = Tail(path)
        self._generation = -1
        self._header: list[str] = []

    def poll(self) -> Points:
        """Return the points of new lines."""
        points: Points = {}
        while block := self._tail.read():
            if self._tail.generation != self._generation:
                self._generation, self._header, self.note = self._tail.generation, [], ""
            lines = block.decode(errors="replace").splitlines()
            if self._is_csv:
                self._csv(lines, points)
            else:
                for line in lines:
                    with contextlib.suppress(ValueError):
                        row = orjson.loads(line)
                        if isinstance(row, dict):
                            add_row(row, points)
        return points

    def _csv(self, lines: list[str], points: Points) -> None:
        for cells in csv.reader(lines):
            if not self._header:
                self._header = [cell.strip() for cell in cells]
                if not counter_of(self._header) or len(cells) > _MAX_COLUMNS:
                    self.note = "no column counts steps"
            elif not self.note and len(cells) == len(self._header):
                add_row(dict(zip(self._header, cells, strict=True)), points)


class TrainerState:
    """The newest `trainer_state.json` of transformers' checkpoints, which has all rows up to it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.note = ""
        self._seen: tuple[int, int] | None = None

    def poll(self) -> Points:
        """Return all points if the file has changed."""
        points: Points = {}
        with contextlib.suppress(FileNotFoundError), open_regular(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > _MAX_STATE_BYTES or (status.st_mtime_ns, status.st_ino) == self._seen:
                return points
            with contextlib.suppress(ValueError):  # cut, while it is written
                state = orjson.loads(file.read())
                for row in state.get("log_history", []) if isinstance(state, dict) else []:
                    if isinstance(row, dict) and "train_runtime" not in row:  # the last row has means over the run
                        add_row(row, points)
                self._seen = status.st_mtime_ns, status.st_ino
        return points


def counter_of(names: list[str]) -> str | None:
    """Return the column that counts best; None if none does or no other column is a metric's."""
    ranked = [(COUNTERS.get(name.lower(), 9 if name.lower() in EPOCHS else 99), name) for name in names]
    best = min(ranked, default=(99, ""))
    return best[1] if best[0] < 99 and any(is_measured(name) for name in names) else None


def add_row(row: Mapping[str, Any], points: Points) -> None:
    """Add the numbers of a row that has a counter; empty cells and text are passed over."""
    counter = counter_of(list(row))
    step = None if counter is None else _number(row[counter])
    if step is None or not 0 <= step <= MAX_STEP or step != int(step):
        return
    time = next((found for name in _TIMES if (found := _number(row.get(name))) is not None and found > 1e9), None)
    for name, cell in row.items():
        if name == counter or name in _TIMES or len(name) > 200:
            continue
        if (value := _number(cell)) is not None:
            metric = "train/epoch" if name.lower() in EPOCHS else metric_of(name, None)
            add_point(points, metric, int(step), value, float("nan") if time is None else time)


def _number(cell: object) -> float | None:
    if type(cell) in (int, float):
        return float(cell)  # type: ignore[arg-type]
    if isinstance(cell, str) and 0 < len(cell) <= 40:
        with contextlib.suppress(ValueError):
            return float(cell)
    return None
