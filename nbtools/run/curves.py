"""The curves of a run in few columns, kept in the user's cache, so that many long runs are drawn without their rows.

`python -m nbtools.run.curves DIR ...` reads runs in a process of its own and prints the id of each that is ready.
"""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import orjson

from nbtools.errors import NbtoolsError
from nbtools.metrics.block_reductions import Cuts, Reduction, join_columns
from nbtools.metrics.columns import Series, Unit
from nbtools.metrics.direction import direction_of
from nbtools.metrics.history import History, newest_rows
from nbtools.metrics.printed.run_patterns import curve_patterns
from nbtools.project import user_cache
from nbtools.run.lineage import ancestors
from nbtools.run.run import Run
from nbtools.rundir.atomic import write_file
from nbtools.rundir.json_files import file_stamp
from nbtools.rundir.rundir import RunDir, launch_of
from nbtools.rundir.tail import open_regular
from nbtools.user_config import config_folder

Floats = npt.NDArray[np.float64]
NUM_COLUMNS: Final = 8192
SMALL_BYTES: Final = 1 << 20
"""Size of a file that is read in about 15 ms; smaller files are not cached."""
_MOST_CACHED_BYTES: Final = 256 << 20
"""Size of the cache of all runs; when a file is added, the ones written longest ago are removed."""
_FORMAT: Final = 4
_HEAD_BYTES: Final = 64 << 10
_NUM_FIELDS: Final = 7
_VALUES: Final = slice(3, 6)
"""The fields low, high and mean."""


def _field(number: int) -> cached_property[Floats]:
    return cached_property(lambda sketch: sketch.columns[number])


@dataclass(frozen=True)
class Ends:
    """The last value of a metric, and its best where smaller or greater values are known to be better."""

    last: float
    last_step: int
    best: float | None = None
    best_step: int | None = None


def ends_of(name: str, series: Series) -> Ends:
    """Return the last value of a metric, and its best."""
    last, last_step, direction = float(series.values[-1]), int(series.steps[-1]), direction_of(name)
    finite = np.isfinite(series.values)
    if direction is None or not finite.any():
        return Ends(last, last_step)
    worst = np.inf if direction == "lower" else -np.inf
    values = np.where(finite, series.values, worst)
    at = int(values.argmin() if direction == "lower" else values.argmax())
    return Ends(last, last_step, float(series.values[at]), int(series.steps[at]))


@dataclass(frozen=True, eq=False)
class Sketch:
    """A metric in at most `NUM_COLUMNS` columns of successive rows; a column of one row is that row."""

    columns: Floats
    """All fields of each column: an array of (fields, columns)."""
    ends: Ends
    diverged_at: int | None = None
    """The step from which on no value is finite."""
    is_complete: bool = True
    """False if rows in the middle have not been read."""
    unit: Unit = "step"
    """The count in `steps`."""
    num_runs: int = 1
    """Number of runs of which this is the mean; the extremes are then those of the runs."""

    steps = _field(0)
    """Step of the row in the middle of a column, and so are times and samples."""
    times = _field(1)
    samples = _field(2)
    low = _field(3)
    """Extremes and mean of the finite values in a column; NaN where there are none."""
    high = _field(4)
    mean = _field(5)
    counts = _field(6)
    """Number of rows in each column."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float:
        """Value of the last row."""
        return self.ends.last

    def reduced(self, cuts: Cuts) -> Reduction:
        """Reduce the columns between successive ascending `cuts`, which are indices."""
        return join_columns(Reduction(self.low, self.high, self.mean, self.counts), cuts)

    @classmethod
    def of(cls, series: Series, ends: Ends) -> Self:
        """Reduce a series with at least one value."""
        finite, n = np.isfinite(series.values), len(series)
        after = n - int(np.argmax(finite[::-1])) if finite.any() else 0
        diverged_at = None if finite[-1] else int(series.steps[after])
        cuts = np.linspace(0, n, min(n, NUM_COLUMNS) + 1).astype(np.int64)
        middle = (cuts[:-1] + cuts[1:] - 1) // 2
        rows = series.steps[middle], series.times[middle], series.samples[middle]
        return cls(np.array([*rows, *series.reduced(cuts)], float), ends, diverged_at, unit=series.unit)


Curves = Mapping[str, Sketch]
"""The curves of a run, by metric."""


def curves_of(history: History) -> dict[str, Sketch]:
    """Return all curves of a history."""
    return {name: Sketch.of(series, ends_of(name, series)) for name, series in history.items()}


def read_curves(run: Run) -> Curves:
    """Return the curves of a run and of those it resumed: from the cache, else from all rows, which fills the cache."""
    if (found := cached(run)) is not None:
        return found
    stamp = curve_files(run)
    found = curves_of(run.history)
    stamp += [_stamp_of(source.name) for source in run.rows.sources]
    if sum(size for _, _, size, _ in stamp) > SMALL_BYTES and not run.history.num_unread_bytes:
        with contextlib.suppress(OSError):  # no home, or a full disk
            path = _cache_file(run, make=True)
            write_file(path, _encoded(found, stamp), mode=0o600)
            _forget_oldest(path.parent)
    return found


def _forget_oldest(folder: Path) -> None:
    found, kept = [(path.stat(), path) for path in folder.glob("*.bin")], 0
    for status, path in sorted(found, key=lambda each: -each[0].st_mtime_ns):
        kept += status.st_size
        if kept > _MOST_CACHED_BYTES:
            path.unlink(missing_ok=True)


def cached(run: Run, *, may_lag: bool = False) -> Curves | None:
    """Return the cached curves; None without any, or if the run has changed since.

    With `may_lag`, the last rows may be missing.
    """
    try:
        data = _cache_file(run).read_bytes()
        header = orjson.loads(data[: data.index(b"\n")])
        known, now = header["stamp"], curve_files(run)
        now += [_stamp_of(name) for name, *_ in known[len(now) :]]
        if may_lag:
            known, now = ([[name, inode] for name, *_, inode in files] for files in (known, now))
        return _decoded(header, data) if header["format"] == _FORMAT and known == now else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def first_curves(run: Run) -> tuple[Curves, str] | None:
    """Return what `quick_curves` does of a long run; None if its rows are few, or have been read."""
    return None if run.rows.is_read or num_bytes(run) <= SMALL_BYTES else quick_curves(run)


def quick_curves(run: Run) -> tuple[Curves, str]:
    """Return the curves of a run that are read in milliseconds, and a sentence on missing rows (empty: none)."""
    if num_bytes(run) <= SMALL_BYTES:
        return curves_of(run.history), ""
    if (found := cached(run)) is not None:
        return found, ""
    if (found := cached(run, may_lag=True)) is not None:
        return found, "the newest rows are being read"
    found = glimpse(run)
    return found, "the curves show the first and the last rows; all are being read" if found else "rows are being read"


def read_rows(run: Run) -> int:
    """Read all rows of a run, and return their number; the curves of a long one are kept for the next look at it."""
    was_read = run.rows.is_read
    num_rows = max(run.history.num_rows, run.own_history.num_rows)
    if not was_read and num_bytes(run) > SMALL_BYTES:
        read_curves(run)
    return num_rows


def glimpse(run: Run) -> Curves:
    """Return the curves of the first and the last rows of a long run, with a gap between them; the bests are unknown.

    It costs milliseconds. A run whose metrics are only printed has none.
    """
    head, tail = History(), newest_rows(run.files.metrics)
    with contextlib.suppress(OSError), open_regular(run.files.metrics) as file:
        head.extend(os.read(file.fileno(), _HEAD_BYTES))
    found = {}
    for name in dict.fromkeys([*head, *tail]):
        parts = [Sketch.of(part[name], Ends(0, 0)) for part in (head, tail) if name in part]
        last = (tail if name in tail else head)[name]
        columns = [part.columns for part in parts]
        if len(parts) == 2:
            gap = columns[0][:, -1:].copy()
            gap[_VALUES] = np.nan
            columns.insert(1, gap)
        ends = Ends(float(last.values[-1]), int(last.steps[-1]))
        found[name] = Sketch(np.hstack(columns), ends, parts[-1].diverged_at, is_complete=False)
    return found


def num_bytes(run: Run) -> int:
    """Return the bytes to read for the curves of a run, with those of the runs it resumed."""
    return sum(size for _, _, size, _ in curve_files(run))


def curve_files(run: Run) -> list[list[Any]]:
    """Return what changes with the rows: name and patterns, time, size and inode of each file that they are in."""
    found: list[list[Any]] = []
    for folder, step in [(run.dir, 0), *ancestors(run.dir, run.info)]:
        files, launch = RunDir(folder), launch_of(folder)
        decided = "\n".join([f"{folder.name} {step}", *curve_patterns(launch)])
        for path in [files.metrics, *([] if launch.get("recipe") else [files.log])]:
            _, *status = _stamp_of(str(path))
            found += [[decided, *status]] if any(status) else []
    choices = [] if launch_of(run.dir).get("recipe") else [config_folder() / "counters.json"]
    return [*found, *(_stamp_of(str(path)) for path in choices)]


def _stamp_of(path: str) -> list[Any]:
    return [path, *(file_stamp(path) or (0, 0, 0))]


def _cache_file(run: Run, *, make: bool = False) -> Path:
    return user_cache("curves", run.dir, make=make).with_suffix(".bin")


def _encoded(curves: Curves, stamp: Sequence[Any]) -> bytes:
    told = [
        {"name": name, "n": len(one), "diverged_at": one.diverged_at, "ends": asdict(one.ends), "unit": one.unit}
        for name, one in curves.items()
    ]
    # orjson writes null for a value that is not finite.
    header = orjson.dumps({"format": _FORMAT, "stamp": stamp, "curves": told})
    columns = [one.columns.tobytes() for one in curves.values()]
    return b"".join((header, b" " * (-len(header) - 1 & 7), b"\n", *columns))  # at multiples of eight bytes


def _decoded(header: Mapping[str, Any], data: bytes) -> dict[str, Sketch]:
    at, found = data.index(b"\n") + 1, {}
    for told in header["curves"]:
        n = told["n"]
        columns = np.frombuffer(data, np.float64, n * _NUM_FIELDS, at).reshape(_NUM_FIELDS, n)
        at += columns.nbytes
        ends = {**told["ends"], "last": np.nan if told["ends"]["last"] is None else told["ends"]["last"]}
        found[told["name"]] = Sketch(columns, Ends(**ends), told["diverged_at"], unit=told["unit"])
    return found


def main(folders: Sequence[str]) -> None:
    """Fill the cache with the curves of runs, and print the id of each."""
    os.nice(5)  # trainings on this machine come first
    for folder in folders:
        with contextlib.suppress(NbtoolsError, OSError):
            read_curves(run := Run(RunDir(folder)))
            print(run.id, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
