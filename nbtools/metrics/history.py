"""The metrics of a run as columns, read from the rows that `MetricWriter` appends.

A row is one line of strict JSON: `{"step": 20, "time": 1769871234.5, "train/loss": 2.31}`. Non-finite values
are the strings "NaN", "Infinity" and "-Infinity", so that a diverged loss stays visible.
"""

import contextlib
import csv
import os
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nbtools.errors import ConfigError, html_table
from nbtools.metrics.block_reductions import Blocks
from nbtools.metrics.columns import (
    EPOCH_SHIFT,
    GENERATION_SHIFT,
    UNITS,
    Attempts,
    Batch,
    Column,
    MetricTable,
    Series,
    Unit,
    parse_rows,
)
from nbtools.rundir.json_files import MAX_STEP
from nbtools.rundir.tail import Tail, open_regular

_PIECE_BYTES: Final = 512 << 10
_NEWEST_BYTES: Final = 64 << 10
_MAX_GENERATION: Final = 2**10 - 1
_MAX_TABLES: Final = 200
_MAX_NAMES: Final = 10_000


class History(Mapping[str, Series]):
    """The metrics of a run as NumPy columns; extending it costs time in proportion to the new bytes.

    Of two rows of a step the later one counts. A later attempt (an automatic restart), a resumed run and a file that
    starts over replace earlier rows from their first step on, so steps of a curve only increase. Damaged lines are
    skipped and counted; values that are not numbers are ignored. A curve has one unit, that of its newest rows.

    Any number of threads may read while one extends it; with `follow`, several may extend it too.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        """Number of rows read, including replaced ones."""
        self.num_skipped = 0
        """Number of damaged lines."""
        self.num_dropped = 0
        """Number of rows that the writer reports as dropped."""
        self.num_unread_bytes = 0
        """Bytes of printed text that were not searched for metrics, since the output grew too fast."""
        self.version = 0
        """Counter that changes with every addition."""
        self._lock = threading.RLock()
        self._partial = b""
        self._num_lines = 0
        self._base_generation = 0
        self._generation = 0
        self._attempts: defaultdict[Unit, Attempts] = defaultdict(Attempts)
        self._tables: dict[tuple[Unit, tuple[str, ...]], MetricTable] = {}
        self._homes: dict[str, list[MetricTable]] = {}
        self._merged: dict[str, tuple[list[tuple[int, int]], MetricTable]] = {}
        self._series: dict[str, tuple[MetricTable, int, int, Series]] = {}

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        names = ", ".join(self) or "no metrics"
        names = names if len(names) < 200 else f"{len(self)}"
        return f"<History: {self.num_rows:,} rows up to step {self.last_step}, {names}>"

    def _repr_html_(self) -> str:
        rows = [("metric", "points", "last step", "last value")]
        rows += [(name, f"{len(s):,}", f"{s.steps[-1]:,}", f"{s.values[-1]:.5g}") for name, s in self.items()]
        return html_table(rows)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the metrics, in the order of their first appearance."""
        with self._lock:
            return iter([name for name in self._homes if name in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        with self._lock:
            return any(table.num_rows for table in self._homes.get(name, ()))  # type: ignore[call-overload]

    def __getitem__(self, name: str) -> Series:
        """Return the series of a metric; the same object until rows are added to it."""
        with self._lock:
            homes = self._homes.get(name, [])
            if not any(table.num_rows for table in homes):
                raise KeyError(f"no metric {name!r}; there are: {', '.join(self) or 'none yet'}")
            table = homes[0] if len(homes) == 1 else self._merge(name, homes)
            cached = self._series.get(name)
            if cached and cached[0] is table and cached[1:3] == (table.num_rows, table.num_rewrites):
                return cached[3]
            columns = table.rows()
            is_longer = cached and cached[0] is table and cached[2] == table.num_rewrites
            blocks = cached[3].blocks if cached and is_longer else Blocks()
            values = columns[4 + table.names.index(name)]
            series = Series(columns[0], values, columns[2], columns[3], blocks, table.unit)
            self._series[name] = (table, table.num_rows, table.num_rewrites, series)
            return series

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return all metrics as columns of one length: `step`, then one per metric, with NaN where it has no value.

        Where metrics count in different units, the column `unit` names that of each row.
        """
        found, places = self._table()
        for name, (rows, values) in places.items():
            found[name] = np.full(len(found["step"]), np.nan)
            found[name][rows] = values
        return found

    def _table(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, tuple[npt.NDArray[np.int64], Column]]]:
        """Return the columns that all metrics share, and the rows and values of each metric."""
        with self._lock:
            every = dict(self.items())
        steps, units, places = [np.empty(0, np.int64)], list[str](), dict[str, tuple[npt.NDArray[np.int64], Column]]()
        for unit in UNITS:
            members = {name: series for name, series in every.items() if series.unit == unit}
            own = np.unique(np.concatenate([steps[0][:0], *(series.steps for series in members.values())]))
            for name, series in members.items():
                places[name] = len(units) + np.searchsorted(own, series.steps), series.values
            steps.append(own)
            units += [unit] * len(own)
        head: dict[str, npt.NDArray[Any]] = {"step": np.concatenate(steps)}
        more = {"unit": np.array(units)} if len(set(units)) > 1 else {}
        return head | more, {name: places[name] for name in every}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per step and a column per metric.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            pandas = import_module("pandas")  # public; unused by nbtools itself
        except ModuleNotFoundError:
            raise ConfigError("to_pandas() needs pandas: pip install pandas; to_csv(path) needs nothing") from None
        return pandas.DataFrame(self.columns()).set_index("step")

    def to_csv(self, path: str | Path) -> None:
        """Write a row per step and a column per metric; a metric without a value at a step has an empty cell."""
        head, places = self._table()
        cells = [[""] * len(places) for _ in head["step"]]
        for column, (rows, values) in enumerate(places.values()):
            for row, value in zip(rows.tolist(), values.tolist(), strict=True):
                cells[row][column] = value
        with Path(path).expanduser().open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*head, *places])
            shared = zip(*(column.tolist() for column in head.values()), strict=True)
            writer.writerows([*first, *others] for first, others in zip(shared, cells, strict=True))

    def last(self, name: str) -> float | None:
        """Return the value of a metric at its last step; None if it has none."""
        with self._lock:
            homes = [table for table in self._homes.get(name, ()) if table.num_rows]
            last_rows = (table.newest(4 + table.names.index(name)) for table in homes)
            return max(last_rows, key=lambda row: row[:2], default=(0, 0, None))[2]

    @property
    def unit(self) -> Unit:
        """The unit of `last_step`: steps if any curve counts them, else samples, else epochs."""
        with self._lock:
            units = {homes[0].unit for name, homes in self._homes.items() if name in self}
        return next((unit for unit in UNITS if unit in units), "step")

    @property
    def has_steps(self) -> bool:
        """False if rows have only an order, since nothing counts them."""
        return self.unit != "row"

    @property
    def last_step(self) -> int | None:
        """Greatest step of all current rows of the history's `unit`; None without rows."""
        with self._lock:
            unit = self.unit
            tables = [homes for homes in self._homes.values() if homes[0].unit == unit]
            return max((home.newest(0)[0] for homes in tables for home in homes if home.num_rows), default=None)

    def pace(self) -> tuple[float | None, float | None]:
        """Return the recent seconds per step and the Unix time of the last row; None where unknown.

        Both are of the longest series. The pace is that of its last 50 rows, with a limit on the weight of a pause (a
        restart).
        """
        with self._lock:
            unit, every = self.unit, self._homes.items()
            most = {name: sum(table.num_rows for table in homes) for name, homes in every if homes[0].unit == unit}
            series: Series | None = None
            for name in sorted(most, key=lambda name: -most[name]):  # a step in two tables counts once in the series
                if most[name] <= (0 if series is None else len(series)):
                    break
                series = max(series or self[name], self[name], key=len)
        if series is None or not np.isfinite(series.times[-1]):
            return None, None
        steps, times = series.steps[-50:], series.times[-50:]
        taken = np.maximum(np.diff(times), 0.0)
        if not len(taken) or not np.isfinite(taken).all():
            return None, float(times[-1])
        seconds = np.minimum(taken, 20 * np.median(taken)).sum() / (steps[-1] - steps[0])
        return float(seconds) or None, float(times[-1])

    def follow(self, tail: Tail) -> bool:
        """Read the new rows of a file; returns whether any were added. May be called from any thread."""
        version = self.version
        while True:
            with self._lock:
                if not (block := tail.read()):
                    return self.version != version
                self.extend(block, tail.generation)

    def extend(self, block: bytes, generation: int = 0, unit: Unit = "step") -> None:
        """Add lines; an incomplete last one is kept until its newline follows.

        `generation` tells how often the file has started over; `unit`, what the steps of these lines count.
        """
        with self._lock:
            generation = min(self._base_generation + generation, _MAX_GENERATION)
            if generation != self._generation:
                self._generation, self._partial = generation, b""
            block = self._partial + block if self._partial else block
            start, end = 0, block.rfind(b"\n") + 1
            while start < end:
                stop = block.rfind(b"\n", start, min(start + _PIECE_BYTES, end)) + 1 or block.index(b"\n", start) + 1
                self._extend(block[start : stop - 1], unit)
                start = stop
            self._partial = block[end:]

    def add(
        self,
        name: str,
        steps: npt.ArrayLike,
        values: npt.ArrayLike,
        times: npt.ArrayLike,
        generation: int = 0,
        *,
        unit: Unit = "step",
        attempt: int = 1,
    ) -> None:
        """Add points of one metric, which replace earlier ones of the same steps; see `extend` for `generation`."""
        with self._lock:
            ordered = np.asarray(steps, np.int64)
            epoch = (min(generation, _MAX_GENERATION) << GENERATION_SHIFT) + attempt
            priorities = (epoch << EPOCH_SHIFT) + np.arange(self._num_lines, self._num_lines + len(ordered))
            unknown = np.full(len(ordered), np.nan)
            columns = [ordered, priorities, np.asarray(times, float), unknown, np.asarray(values, float)]
            self.version += 1
            self._num_lines += len(ordered)
            self._commit([((name,), columns, 0)] if len(ordered) else [], unit)

    def forget(self, name: str) -> None:
        """Remove the points of a metric that `add` has added."""
        with self._lock:
            for home in self._homes.get(name, ()):
                if home.names == (name,):
                    home.keep(np.zeros(home.num_rows, bool))
            self.version += 1

    @classmethod
    def chained(cls, parts: Sequence[tuple["History", int]]) -> "History":
        """Return one new history of several, oldest first, each with the step at which the next one resumed.

        A part, up to its step, replaces the earlier ones from its first step on. The result is independent of the
        parts and can be extended: if the last part is empty, following the file of the resumed run reads its rows.
        """
        result, step, base = cls(), MAX_STEP, 0
        staged: list[tuple[Batch, Unit]] = []
        last_steps = [step := min(step, own) for _, own in reversed(parts)][::-1]
        for (part, _), last_step in zip(parts, last_steps, strict=True):
            result._base_generation = base
            with part._lock:
                staged += part._rows_until(last_step, base)
                result._generation = base + part._generation
                result.num_skipped += part.num_skipped
                result.num_dropped += part.num_dropped
                result.version += part.version + 1
                result._num_lines = max(result._num_lines, part._num_lines)
            base = min(result._generation, _MAX_GENERATION - 1) + 1
        for unit in dict.fromkeys(unit for _, unit in staged):
            result._commit([batch for batch, other in staged if other == unit], unit)
        return result

    def _rows_until(self, step: int, base_generation: int) -> Iterator[tuple[Batch, Unit]]:
        """Yield the rows up to `step` as a later generation."""
        for (unit, names), table in self._tables.items():
            rows = table.rows()
            chosen = rows[0] <= step
            if chosen.any():
                rows = rows if chosen.all() else [column[chosen] for column in rows]
                rows[1] = rows[1] + (base_generation << GENERATION_SHIFT << EPOCH_SHIFT)
                yield (names, rows, 0), unit

    def _extend(self, piece: bytes, unit: Unit) -> None:
        batches, num_lines, num_skipped = parse_rows(piece, self._num_lines, self._generation << GENERATION_SHIFT)
        self.version += 1
        self._num_lines += num_lines
        self.num_skipped += num_skipped
        self._commit(batches, unit)

    def _commit(self, batches: list[Batch], unit: Unit) -> None:
        attempts = self._attempts[unit]
        replaced = [attempts.add(rows) for _, rows, _ in batches]
        if any(replaced):
            for table in self._tables.values():
                if table.unit == unit:
                    table.keep(attempts.current(table.rows()))
        for names, rows, num_dropped in batches:
            self.num_rows += len(rows[0])
            self.num_dropped += num_dropped
            current = attempts.current(rows)
            self._add(names, rows if current.all() else [column[current] for column in rows], unit)

    def _add(self, names: tuple[str, ...], rows: list[Column], unit: Unit) -> None:
        table = self._tables.get((unit, names))
        if table is None:
            if len(names) > 1 and (len(self._tables) >= _MAX_TABLES or len(names) > _MAX_TABLES):
                for i, name in enumerate(names, 4):  # many sets of keys: one table per metric bounds the memory
                    self._add((name,), [*rows[:4], rows[i]], unit)
                return
            if len(names) == 1 and len(self._homes) >= _MAX_NAMES and names[0] not in self._homes:
                return
            table = self._tables[unit, names] = MetricTable(names, unit)
            for name in names:
                self._homes.setdefault(name, []).append(table)
        for name in names:  # the tables of a metric have one unit
            if self._homes[name][0].unit != unit:
                self._homes[name] = [home for home in self._tables.values() if home.unit == unit and name in home.names]
                self._merged.pop(name, None)
        if len(rows[0]):
            table.add(rows)

    def _merge(self, name: str, homes: list[MetricTable]) -> MetricTable:
        """Return one table with the rows of a metric from several tables; it grows with them."""
        seen, merged = self._merged.get(name, ([], MetricTable((name,), homes[0].unit)))
        if [rewrites for _, rewrites in seen] != [table.num_rewrites for table in homes[: len(seen)]]:
            seen, merged = [], MetricTable((name,), homes[0].unit)
        starts = [num_rows for num_rows, _ in seen] + [0] * (len(homes) - len(seen))
        pieces = []
        for table, start in zip(homes, starts, strict=True):
            if table.num_rows > start:
                columns = table.rows(start)
                pieces.append([*columns[:4], columns[4 + table.names.index(name)]])
        if pieces:
            merged.add([np.concatenate(columns) for columns in zip(*pieces, strict=True)])
        self._merged[name] = [(table.num_rows, table.num_rewrites) for table in homes], merged
        return merged


def newest_rows(path: Path) -> History:
    """Return the history of the last rows of a metrics file: those in its last 64 KiB."""
    found = History()
    with contextlib.suppress(OSError), open_regular(path) as file:
        start = max(os.fstat(file.fileno()).st_size - _NEWEST_BYTES, 0)
        block = os.pread(file.fileno(), 2 * _NEWEST_BYTES, start)
        found.extend(block[block.find(b"\n") + 1 :] if start else block)
    return found
