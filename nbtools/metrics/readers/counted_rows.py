"""Rows of a file as points: one column counts them, the others with numbers are curves."""

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final, NamedTuple

from nbtools.metrics.columns import Unit
from nbtools.metrics.curve_names import COUNTERS, EPOCH, SPLITS, curve_of, parts_of, split_of
from nbtools.metrics.readers.points import Points, add_point
from nbtools.rundir.json_files import MAX_STEP

_BY_ORDER, _UNCOUNTED = EPOCH + 1, EPOCH + 2
_TOTALS: Final = ("total_steps", "max_steps")
_NO_CURVES: Final = frozenset({*_TOTALS, "total_epochs", "max_epochs", "num_epochs", "percentage"})
_TIMES: Final = ("time", "timestamp", "ts", "wall_time", "_timestamp")
_MEASURED: Final = frozenset({"loss", "accuracy", "acc", "perplexity", "reward", "return", "error"})
"""Rows without a counter have an order if a column has one of these words, and all are numbers."""
_MOST_COLUMNS: Final = 1000
_FEW: Final = 3
"""Rows with the step of the row before, or epochs within which it does not rise, from which a counter is none."""


class TableColumns(NamedTuple):
    """The meaning of the columns of a table, or of the keys of a row."""

    counters: tuple[tuple[int, str], ...]
    """Rank and name, the best first."""
    values: tuple[str, ...]
    """All others, but for times and totals."""
    times: tuple[str, ...]
    totals: tuple[str, ...]
    is_measured: bool


@functools.lru_cache(1024)
def table_columns(names: tuple[str, ...]) -> TableColumns:
    """Return what columns of these names are."""
    plain = {name: name.lower().strip().replace(" ", "_").removeprefix("_") for name in names}
    ranks = ((COUNTERS.get(words.rpartition("/")[2]), name) for name, words in plain.items())
    counters = sorted(((rank, name) for rank, name in ranks if rank is not None), key=lambda counter: counter[0])
    times = tuple(name for name in _TIMES if name in names)
    left_out = {*times, *(name for _, name in counters)} | {name for name in names if plain[name] in _NO_CURVES}
    values = tuple(name for name in names if name not in left_out and 0 < len(name) <= 200)
    is_measured = any(not _MEASURED.isdisjoint(parts_of(name)) for name in values)
    return TableColumns(tuple(counters), values, times, tuple(n for n in names if plain[n] in _TOTALS), is_measured)


class CountedRows:
    """Places the rows of one file, in their order.

    The best counter of the file counts them. When a better one appears, or one turns out to be none, the rows must be
    added once more (`begins_again`). A row with an epoch alone belongs to the last step of that epoch.

    Args:
        chosen: The column that the user chose as the counter; "" for the order of the rows.
    """

    def __init__(self, chosen: str | None = None) -> None:
        self.chosen, self.restarts = chosen, 0
        self.counter: str | None = None
        """The column that counts; "" for the order of the rows, None while no row could be placed."""
        self.unit: Unit = "row"
        self.total: int | None = None
        self.columns: dict[str, bool] = {}
        """Column -> whether it may count: it has whole numbers."""
        self._rank, self._excluded = _UNCOUNTED, set[str]()
        self._names = dict[str | None, dict[str, str]]()
        """The curves of the columns, by the split that a cell names, as in `{"mode": "val", "loss": 0.5}`."""
        self.rewind()

    @property
    def counters(self) -> list[str]:
        """The columns that may count."""
        return [name for name, may_count in self.columns.items() if may_count]

    def rewind(self) -> None:
        """Expect the first row again."""
        self.begins_again, self.points, self._steps = False, Points(), RowSteps()

    def add(self, row: Mapping[str, Any]) -> bool:
        """Add the numbers of a row; whether it could be placed."""
        row = {key: cell for name, value in row.items() for key, cell in _flat(name, value)}
        columns = table_columns(tuple(row))
        numbers = {name: number for name, cell in row.items() if (number := _number(cell)) is not None}
        if len(self.columns) <= _MOST_COLUMNS:
            self.columns |= {name: self.columns.get(name, True) and _is_count(numbers.get(name)) for name in row}
        named = (name for name in columns.values if name in numbers and name != self.chosen)
        told = split_of([cell for cell in row.values() if isinstance(cell, str) and cell in SPLITS], None)
        names = self._names.setdefault(told, {})
        values = {curve_of(name, names, told): numbers[name] for name in named}
        rank, counter = self._counter_of(columns, numbers, is_plain=len(numbers) == len(row))
        if not values or self._rank == rank == _UNCOUNTED:
            return False
        if rank < self._rank:
            self.begins_again, self._rank, self.counter = self.counter is not None, rank, counter
            units: dict[int, Unit] = {EPOCH: "epoch", _BY_ORDER: "row"}
            self.unit = "sample" if counter.endswith("samples") else units.get(rank, "step")
        if rank == self._rank:
            last = columns.counters[-1][1] if columns.counters else ""
            outer = numbers.get(last, -1.0) if last != counter else -1.0
            step = self._steps.place(int(numbers[counter]) if counter else None, outer, values.keys())
            if self.chosen is None and self._steps.contradict(self.restarts):
                self._exclude(counter)  # it counts in epochs that the file does not name, or something else
        elif rank == EPOCH:
            step = self._steps.end_of(int(numbers[counter]), values.keys())
        else:
            return False
        if self.unit == "step" and (total := next((numbers.get(name) for name in columns.totals), None)):
            self.total = int(total) if _is_count(total) else self.total
        time = next((numbers[name] for name in columns.times if numbers.get(name, 0) > 1e9), math.nan)
        for curve, value in values.items():
            add_point(self.points, curve, step, value, time)
        return True

    def _exclude(self, counter: str) -> None:
        """Take a column for none that counts; rows that were placed are added once more."""
        self._excluded.add(counter)
        self.begins_again |= self.counter is not None
        self._rank, self.counter = _UNCOUNTED, None

    def _counter_of(self, columns: TableColumns, numbers: Mapping[str, float], *, is_plain: bool) -> tuple[int, str]:
        """Return rank and name of a row's best counter."""
        if self.chosen:
            may_count = _is_count(numbers.get(self.chosen))
            return (COUNTERS.get(self.chosen.lower(), 0) if may_count else _UNCOUNTED), self.chosen
        for rank, name in columns.counters if self.chosen is None else ():
            if name not in self._excluded and _is_count(numbers.get(name)):
                return rank, name
            if numbers.get(name, 0.0) % 1 > 0:  # epochs as 0.25: those that are whole would be a part of the rows
                self._exclude(name)
        is_ordered = self.chosen == "" or self._excluded or (is_plain and columns.is_measured and not columns.counters)
        return (_BY_ORDER if is_ordered else _UNCOUNTED), ""


class RowSteps:
    """The steps of rows by what counts them, in their order.

    A counter that falls as the epoch rises starts over in each epoch; one that falls to its beginning otherwise tells
    of a restart.
    """

    def __init__(self) -> None:
        self._count, self._first, self._base, self._step = -1, MAX_STEP, 0, -1
        self._curves: Set[str] = frozenset()
        self._epoch, self._num_falls, self._num_same = -1, 0, 0
        self._has_risen = False
        """Whether the count has grown within the epoch."""
        self._epochs: dict[int, tuple[int, int]] = {}
        """Epoch -> the steps before it, and its last step."""

    def place(self, count: int | None, epoch: float, curves: Set[str]) -> int:
        """Return the step of a row with these curves.

        Args:
            count: The value of the counter; None for the order of the rows.
            epoch: What counts around it; a negative one is none.
            curves: The names of the row's curves.
        """
        count = self._step + 1 if count is None else count
        outer = int(epoch) if 0 <= epoch <= MAX_STEP else self._epoch
        is_same = count == self._count and not self._curves.isdisjoint(curves)
        if outer != self._epoch and outer in self._epochs:
            self._base = self._epochs[outer][0]  # a restart repeats the epoch
        elif outer > self._epoch >= 0 and (is_same or count < self._count):
            self._base = self._step + (count == 0)
            self._num_same += 1 if not self._has_risen else -1  # it counts nothing within the epoch
        else:
            self._num_falls += count < self._count and count <= self._first
            self._num_same += 1 if is_same else -(count != self._count and outer == self._epoch)
        self._has_risen = outer == self._epoch and (self._has_risen or count > self._count)
        self._first, self._count, self._epoch = min(self._first, count), count, outer
        self._step, self._curves = min(self._base + count, MAX_STEP), curves
        self._epochs[outer] = self._base, self._step
        return self._step

    def end_of(self, epoch: int, curves: Set[str]) -> int:
        """Return the step of a row that only an epoch counts."""
        self._step, self._curves = self._epochs.get(epoch, (0, max(self._step, 0)))[1], curves
        return self._step

    def contradict(self, restarts: int) -> bool:
        """Whether the counter falls more often than the program was restarted, or stands still."""
        return self._num_falls > restarts or self._num_same > _FEW


def _flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield a cell of a row, or those of a dict in it: `{"loss": {"total": 0.5}}` has `loss/total`."""
    yield from ((f"{name}/{key}", cell) for key, cell in value.items()) if isinstance(value, dict) else ((name, value),)


def _is_count(number: float | None) -> bool:
    return number is not None and 0 <= number <= MAX_STEP and number == int(number)


def _number(cell: object) -> float | None:
    if type(cell) in (int, float) or (isinstance(cell, str) and 0 < len(cell) <= 40):
        with contextlib.suppress(ValueError, OverflowError):
            return float(cell)  # type: ignore[arg-type]
    return None
