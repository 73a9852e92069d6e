"""What happened to a run while nobody looked at its panel.

All of it follows from the times that the run's own files hold. The one thing stored is when a panel last showed the
run and how long its log was then (seen.json).
"""

import functools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from numpy.typing import NDArray

from nbtools.errors import FormatError
from nbtools.failures.restarts import read_restarts, restarted
from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.notebook.plots.decimation import duration
from nbtools.notebook.plots.layout import grouped, kind_of, label_of
from nbtools.run.lineage import resumed_step
from nbtools.run.records import local_time
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import clean

WRITE_EVERY_S = 10.0
AWAY_S = 60.0
"""A shorter absence from a panel of this kernel is not told."""
NEW_KERNEL_AWAY_S = 2 * WRITE_EVERY_S
"""Nor is a shorter one from a panel of another kernel, which may be watched at this moment."""
ATTENTION_S = 600.0
"""Nobody tells the kernel who looks at its panels: whoever did something in it is taken to watch for so long."""

_LEAST_STALL_S = 30.0
_TIMES_USUAL = 10.0
_MAX_LOG_BYTES = 16 << 20
_MAX_LINES = 5
_WARNING = re.compile(rb"^warning:[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Seen:
    """The last look that a panel took at a run."""

    time: float
    """Unix time."""
    log_bytes: int
    """Size of rank 0's log then."""

    @classmethod
    def now(cls, run: RunDir, now: float) -> Self:
        """A look at this moment."""
        try:
            return cls(now, run.log.stat().st_size)
        except OSError:
            return cls(now, 0)

    @classmethod
    def read(cls, run: RunDir) -> Self | None:
        """The look that was recorded last; None if there is none that can be read."""
        try:
            content = read_json(run.seen) or {}
            return cls(float(content["time"]), int(content["log_bytes"]))
        except (FormatError, KeyError, TypeError, ValueError, OverflowError):
            return None

    def write(self, run: RunDir) -> None:
        """Record it; somebody who may only read this run records nothing."""
        with suppress(OSError):
            write_json(run.seen, {"time": self.time, "log_bytes": self.log_bytes})


@dataclass(frozen=True)
class News:
    """One thing that happened."""

    short: str
    details: tuple[str, ...]
    is_trouble: bool = False


@dataclass(frozen=True)
class Away:
    """An absence, and what happened in it."""

    since: float
    until: float
    news: tuple[News, ...]


class Visit:
    """The looks that all panels of this kernel take at one run.

    They share one memory: what one of them showed, no other one tells as news.
    """

    def __init__(self, run: RunDir) -> None:
        self._lock = threading.Lock()
        self._last = Seen.read(run)
        self._recorded_at = self._last.time if self._last else 0.0
        self._patience_s = NEW_KERNEL_AWAY_S
        self._away: Away | None = None

    def look(self, run: Run, now: float, used_at: float) -> Away | None:
        """Take note of a look at the run.

        Args:
            run: the run, to be read if somebody comes back to it.
            now: Unix time.
            used_at: when somebody last used this kernel.

        Returns:
            What happened meanwhile, for somebody who came back within the last minute.
        """
        with self._lock:
            if now - used_at > ATTENTION_S:
                return None
            before, self._last = self._last, Seen.now(run.files, now)
            if before is not None and now - before.time > self._patience_s:
                self._away = since(run, before, now)
            self._patience_s = AWAY_S
            if not 0 <= now - self._recorded_at < WRITE_EVERY_S:
                self._record(run.files)
            return self._away if self._away and now - self._away.until < AWAY_S else None

    def leave(self, run: RunDir) -> None:
        """Record the last look now: the panel will not look again."""
        with self._lock:
            if self._last is not None and self._last.time > self._recorded_at:
                self._record(run)

    def _record(self, run: RunDir) -> None:
        if self._last is not None:
            self._last.write(run)
            self._recorded_at = self._last.time


_visits: dict[Path, Visit] = {}


def visit_of(run: Run) -> Visit:
    """The one visit of this kernel to a run."""
    path = run.dir.resolve()
    return _visits.get(path) or _visits.setdefault(path, Visit(run.files))


class Use:
    """When somebody last used this kernel: ran a cell, pressed a button, loaded the page anew."""

    def __init__(self) -> None:
        self._at = time.time()
        self._is_told = InteractiveShell.initialized()
        if self._is_told:
            # The messages of widgets come with this event, too: those of a page that is loaded among them.
            InteractiveShell.instance().events.register("pre_execute", self._note)

    @property
    def at(self) -> float:
        """Unix time; now, where no shell tells."""
        return self._at if self._is_told else time.time()

    def _note(self) -> None:
        self._at = time.time()


@functools.cache
def use() -> Use:
    """The one watch over this kernel's use."""
    return Use()


# --- what happened ------------------------------------------------------------------------------


def since(run: Run, seen: Seen, now: float) -> Away | None:
    """Tell what happened to a run since a look at it; None if nothing did."""
    news = [
        *_end(run, seen),
        *_restarts(run, seen),
        *_stalls(run, seen),
        *_steps(run.own_history, seen, resumed_step(run.info)),
        *_losses(run.history, seen),
        *_checkpoints(run, seen),
        *_warnings(run, seen),
    ]
    return Away(seen.time, now, tuple(news)) if news else None


def _end(run: Run, seen: Seen) -> Iterator[News]:
    state = run.state
    ended_at = run.records.ended_at or _last_time(run.own_history)
    if not state.is_final or ended_at is None or ended_at <= seen.time:
        return
    failure = run.failure
    why = f": {failure.headline}" if failure else ""
    details = f"{local_time(ended_at)}: {state.lower()} at step {run.step:,}{why}"
    yield News(f"{state.lower()} at step {run.step:,}", (details,), state in (RunState.FAILED, RunState.LOST))


def _restarts(run: Run, seen: Seen) -> Iterator[News]:
    new = [restart for restart in read_restarts(run.files) if restart.time > seen.time]
    if new:
        details = [f"{local_time(restart.time)}: {restarted(restart)}" for restart in new]
        yield News(_counted(len(new), "restart"), _few(details), is_trouble=True)


def _steps(own: History, seen: Seen, resumed_step: int) -> Iterator[News]:
    series = [own[name] for name in own.keys()]  # noqa: SIM118 - not a dict
    then = max((int(s.steps[s.times <= seen.time].max(initial=resumed_step)) for s in series), default=resumed_step)
    new = max((int(s.steps[s.times > seen.time].max(initial=0)) for s in series), default=0)
    if new > then:
        yield News(f"step {then:,} → {new:,}", (f"{new - then:,} steps: from {then:,} to {new:,}",))


def _losses(history: History, seen: Seen) -> Iterator[News]:
    """The best evaluation loss then and now; without an evaluation the last training loss."""
    names = next((names for group, names in grouped(history) if group == "loss"), [])
    evaluations = [name for name in names if kind_of(name) == "eval"]
    if evaluations:
        yield from _best(history[evaluations[0]], label_of(evaluations[0], "loss"), seen)
    elif names and kind_of(names[0]) == "train":
        old, new = _split(history[names[0]], seen)
        if len(old) and len(new):
            change = f"train loss {old.values[-1]:.4g} → {new.values[-1]:.4g}"
            yield News(change, (f"{change} (steps {old.steps[-1]:,} and {new.steps[-1]:,})",))


def _best(series: Series, split: str, seen: Seen) -> Iterator[News]:
    old, new = _split(series, seen)
    if not len(new):
        return
    now, last = int(np.argmin(new.values)), f"{new.values[-1]:.4g} at step {new.steps[-1]:,}"
    value, step = f"{new.values[now]:.4g}", f"{new.steps[now]:,}"
    if not len(old):
        yield News(f"best {split} loss {value}", (f"best {split} loss {value} (step {step}), the first; last {last}",))
        return
    then = int(np.argmin(old.values))
    before, at = f"{old.values[then]:.4g}", f"{old.steps[then]:,}"
    if new.values[now] < old.values[then]:
        details = f"best {split} loss {before} (step {at}) → {value} (step {step}); last {last}"
        yield News(f"best {split} loss {before} → {value}", (details,))
    else:
        details = f"best {split} loss still {before} (step {at}); last {last}"
        yield News(f"best {split} loss still {before}", (details,))


def _checkpoints(run: Run, seen: Seen) -> Iterator[News]:
    new = [checkpoint for checkpoint in run.checkpoints if checkpoint.time > seen.time]
    if new:
        count = _counted(len(new), "checkpoint")
        yield News(count, (f"{count} saved{', the newest' if len(new) > 1 else ''}: {new[-1].name}",))


def _stalls(run: Run, seen: Seen) -> Iterator[News]:
    """Pauses between metric rows far beyond the usual one, and not because of a restart."""
    own = run.own_history
    rows = max((own[name] for name in own.keys()), key=len, default=None)  # noqa: SIM118 - not a dict
    if rows is None or len(rows) < 3 or not np.isfinite(rows.times).all():
        return
    pauses = np.diff(rows.times)
    # Rows wait for an evaluation and for a checkpoint, regularly so: such pauses are compared with their like.
    evaluations = [own[name].times for name in own.keys() if kind_of(name) == "eval"]  # noqa: SIM118
    works = np.concatenate([*evaluations, [checkpoint.time for checkpoint in run.checkpoints]])
    is_work = _hold(rows.times, works)
    told = _hold(rows.times, np.array([restart.time for restart in read_restarts(run.files)]))
    usual = np.zeros(len(pauses))
    for kind in (is_work, ~is_work):
        if kind.any():
            usual[kind] = np.median(pauses[kind])
    is_new = rows.times[1:] > seen.time
    found = np.flatnonzero(is_new & ~told & (pauses > np.maximum(_TIMES_USUAL * usual, _LEAST_STALL_S)))
    if len(found):
        details = [
            f"{local_time(rows.times[i])}: no progress for {duration(pauses[i])} after step {rows.steps[i]:,} "
            f"(usual are {usual[i]:.2g} s)"
            for i in found
        ]
        short = f"stalled for {duration(pauses[found].sum())}"
        yield News(short, _few(details), is_trouble=True)


def _warnings(run: Run, seen: Seen) -> Iterator[News]:
    """Lines of the log that begin with `warning:`; of a flood of output only the end is searched."""
    try:
        with run.files.log.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            start = seen.log_bytes if seen.log_bytes <= size else 0  # it was rotated or truncated
            log.seek(max(start, size - _MAX_LOG_BYTES, 0))
            found = Counter(clean(line, 300) for line in _WARNING.findall(log.read(_MAX_LOG_BYTES)))
    except OSError:
        return
    if found:
        details = [f"warning: {line}" + (f" ({count:,} times)" if count > 1 else "") for line, count in found.items()]
        yield News(_counted(found.total(), "warning"), _few(details), is_trouble=True)


# --- parts --------------------------------------------------------------------------------------


def _split(series: Series, seen: Seen) -> tuple[Series, Series]:
    """The finite values before and after a look."""
    old = np.isfinite(series.values) & (series.times <= seen.time)
    new = np.isfinite(series.values) & (series.times > seen.time)
    before, after = (
        Series(series.steps[part], series.values[part], series.times[part], series.samples[part]) for part in (old, new)
    )
    return before, after


def _hold(times: NDArray[np.float64], moments: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the spans between two successive times hold one of these moments."""
    num_before = np.searchsorted(np.sort(moments), times, "right")
    held: NDArray[np.bool_] = np.diff(num_before) > 0
    return held


def _last_time(own: History) -> float | None:
    times = [float(own[name].times[-1]) for name in own.keys()]  # noqa: SIM118 - not a dict
    return max((t for t in times if np.isfinite(t)), default=None)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _few(details: list[str]) -> tuple[str, ...]:
    """The last few of them."""
    left_out = len(details) - _MAX_LINES
    return (f"{left_out:,} earlier ones, then", *details[left_out:]) if left_out > 0 else tuple(details)
