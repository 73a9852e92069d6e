"""Changes in a run since the last look, which is recorded in the user's cache: the run may be another user's."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nbtools.errors import plural
from nbtools.failures.restarts import read_restarts, restarted
from nbtools.metrics.history import History
from nbtools.notebook.plots.metric_names import grouped, kind_of, label_of
from nbtools.project import user_cache
from nbtools.run.lineage import resumed_step
from nbtools.run.records import local_time
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import finite, read_json, whole, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import open_regular, terminal_text

RECORD_EVERY_S = 10.0
MIN_ABSENCE_S = 2 * RECORD_EVERY_S
"""A panel that opens sooner shows no changes: another one may be open at the same time."""
_MAX_LOG_BYTES = 16 << 20
_MAX_DETAILS = 5
_WARNING = re.compile(rb"^warning:[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Look:
    """Unix time of a look at a run, and the size of rank 0's log at that time."""

    time: float
    log_bytes: int


@dataclass(frozen=True)
class Change:
    """One thing that changed, in a few words, and the lines that explain it."""

    short: str
    details: Sequence[str] = ()
    is_trouble: bool = False


def cache_file(run: RunDir, *, make: bool = False) -> Path:
    """Return the file of the last look at a run; OSError without a cache folder, which is made with `make`."""
    return user_cache("looks", run.path, make=make)


def read_look(run: RunDir) -> Look | None:
    """Return the last recorded look at a run; None if there is no readable record."""
    try:
        content = read_json(cache_file(run)) or {}
    except OSError:
        return None
    time, log_bytes = finite(content.get("time")), whole(content.get("log_bytes"))
    return None if time is None or log_bytes is None else Look(time, log_bytes)


def record_look(run: RunDir, now: float) -> None:
    """Record a look at this moment; a cache folder that cannot be written is ignored."""
    with suppress(OSError):
        log_bytes = run.log.stat().st_size if run.log.exists() else 0
        write_json(cache_file(run, make=True), {"time": now, "log_bytes": log_bytes}, mode=0o600)


class Absence:
    """The changes since the last look at a run before this one, found once its rows are read; records each look."""

    def __init__(self, run: RunDir) -> None:
        self._earlier, self._recorded_at = read_look(run), 0.0
        self.changes: tuple[list[Change], float] = ([], 0.0)
        """The changes, and the seconds since that look."""

    def look(self, run: Run, now: float, *, is_read: bool, is_final: bool) -> None:
        """Find the changes, if the rows are read and it is the first time; record a look now and then."""
        if is_read and (earlier := self._earlier) is not None:
            self._earlier = None
            if now - earlier.time >= MIN_ABSENCE_S:
                self.changes = changes_since(run, earlier), now - earlier.time
        if is_final or not 0 <= now - self._recorded_at < RECORD_EVERY_S:
            self._recorded_at = now
            record_look(run.files, now)


def changes_since(run: Run, look: Look) -> list[Change]:
    """Return what changed in a run since a look at it, the most important first."""
    restarts = [f"{local_time(r.time)}: {restarted(r)}" for r in read_restarts(run.files) if r.time > look.time]
    saved = [checkpoint.name for checkpoint in run.checkpoints if checkpoint.time > look.time]
    return [
        *_end(run, look),
        *_several("restart", restarts, is_trouble=True),
        *_steps(run.history, look, resumed_step(run.info)),
        *_loss(run.history, look),
        *_several("checkpoint", saved),
        *_several("warning", _warnings(run.files.log, look), is_trouble=True),
    ]


def _end(run: Run, look: Look) -> Iterator[Change]:
    state, ended_at = run.state, run.records.ended_at or run.own_history.pace()[1] or 0.0
    if state.is_final and ended_at > look.time:
        short, why = f"{state.lower()} at step {run.step:,}", f": {run.failure.headline}" if run.failure else ""
        yield Change(short, (f"{local_time(ended_at)}: {short}{why}",), state in (RunState.FAILED, RunState.LOST))


def _steps(history: History, look: Look, first_step: int) -> Iterator[Change]:
    every = [history[name] for name in history]
    before = max((int(s.steps[s.times <= look.time].max(initial=first_step)) for s in every), default=first_step)
    now = max((int(s.steps[s.times > look.time].max(initial=0)) for s in every), default=0)
    if now > before:
        yield Change(f"step {before:,} → {now:,}")


def _loss(history: History, look: Look) -> Iterator[Change]:
    """The best evaluation loss before and after the look; without an evaluation the last training loss."""
    names = next((names for group, names in grouped(history) if group == "loss"), [])
    named = [name for kind in ("eval", "train") for name in names if kind_of(name) == kind]
    if not named:
        return
    name, is_eval, series = named[0], kind_of(named[0]) == "eval", history[named[0]]
    title = f"best {label_of(name, 'loss')} loss" if is_eval else "train loss"
    whens = series.times <= look.time, series.times > look.time
    parts = [np.flatnonzero(np.isfinite(series.values) & when) for when in whens]
    chosen = [int(part[np.argmin(series.values[part])] if is_eval else part[-1]) for part in parts if len(part)]
    if not len(parts[1]):
        return
    if is_eval and len(chosen) > 1 and series.values[chosen[1]] >= series.values[chosen[0]]:
        title, chosen = f"{title} still", chosen[:1]
    values = [f"{series.values[i]:.4g}" for i in chosen]
    steps = [f"{value} (step {series.steps[i]:,})" for value, i in zip(values, chosen, strict=True)]
    yield Change(f"{title} {' → '.join(values)}", (f"{title} {' → '.join(steps)}",))


def _warnings(log: Path, look: Look) -> list[str]:
    """Lines of the log's last 16 MiB that begin with `warning:`, and how often each came."""
    with suppress(OSError), open_regular(log) as file:
        size = file.seek(0, os.SEEK_END)
        start = look.log_bytes if look.log_bytes <= size else 0  # the log was rotated or truncated
        file.seek(max(start, size - _MAX_LOG_BYTES))
        found = Counter(terminal_text(line, 300) for line in _WARNING.findall(file.read(_MAX_LOG_BYTES)))
        return [f"warning: {line}" + f" ({n:,} times)" * (n > 1) for line, n in found.items()]
    return []


def _several(noun: str, lines: Sequence[str], is_trouble: bool = False) -> list[Change]:
    """The number of lines as the short form, and the last few of them."""
    earlier, short = len(lines) - _MAX_DETAILS, plural(len(lines), noun)
    details = [*([f"{earlier:,} earlier ones"] * (earlier > 0)), *lines[-_MAX_DETAILS:]]
    return [Change(short, details, is_trouble)] if lines else []
