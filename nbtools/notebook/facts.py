"""What a panel knows of a run: read from its directory, and again only after a file changed."""

import re
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from nbtools.metrics import History
from nbtools.run import Checkpoint, Failure, RankBeat, Run, RunState

_NUM_LOG_LINES = 12
_NUM_STOP_LINES = 400
"""Lines to look through behind a stop: torchrun's traceback, and one line for each of its processes."""

# What torchrun says when it is told to stop: warnings, and the traceback of its own exception.
_OF_TORCHRUN = re.compile(
    r"""
      ^[EWI]\d{4}\ \d\d:\d\d:\d\d.*torch/distributed/elastic.*\n
    | (?:^\n?During\ handling\ of\ the\ above\ exception.*\n\n)?
      ^Traceback\ \(most\ recent\ call\ last\):\n(?:[\ \t].*\n)*+.*\bSignalException:.*\n
    """,
    re.MULTILINE | re.VERBOSE,
)


@dataclass
class Facts:
    """What was last read from the run directory; kept until a file changes."""

    step: int = 0
    total_steps: int | None = None
    seconds_per_step: float | None = None
    last_row: float | None = None
    """Unix time of the newest metric row."""
    ranks: list[RankBeat] = field(default_factory=list)
    failure: Failure | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    num_dropped: int = 0
    num_skipped: int = 0
    version: object = None
    """Changes when the picture has to."""

    def remaining_s(self, now: float) -> float | None:
        """Estimated seconds to the last step; None where nothing tells."""
        if not (self.seconds_per_step and self.total_steps and self.last_row):
            return None
        # A step is under way since the last row: count down, but not beyond that one step.
        since = min(max(0.0, now - self.last_row), self.seconds_per_step)
        return max(0.0, (self.total_steps - self.step) * self.seconds_per_step - since)

    @property
    def warnings(self) -> list[str]:
        """What the curves do not show."""
        said = []
        if self.num_dropped:
            said.append(f"{self.num_dropped:,} metric rows could not be written (is the disk full?)")
        if self.num_skipped:
            said.append(f"{self.num_skipped:,} damaged lines of metrics are left out")
        return said


def stamp_of(run: Run) -> tuple[object, ...]:
    """What `stat` says of every file the panel shows: as long as this stays the same, nothing is read."""
    files = run.files
    stamps: list[object] = []
    for path in (files.launch, files.config, files.metrics, files.log, files.checkpoints, files.finished, files.exit):
        try:
            found = path.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
    with suppress(OSError):  # a heartbeat was replaced between the listing and the look: the next look sees it
        stamps += sorted((path.name, path.stat().st_mtime_ns) for path in files.ranks.glob("*.heartbeat.json"))
    return tuple(stamps)


def facts_of(run: Run, state: RunState) -> Facts:
    """Read everything anew."""
    history, own, checkpoints = run.history, run.own_history, run.checkpoints
    seconds_per_step, last_row = pace(own)
    return Facts(
        step=run.step,
        total_steps=run.total_steps,
        seconds_per_step=seconds_per_step,
        last_row=last_row,
        ranks=run.ranks,
        failure=run.failure if state.is_final else None,
        checkpoints=checkpoints,
        log=log_of(run, state),
        num_dropped=own.num_dropped,
        num_skipped=own.num_skipped,
        version=(
            run.id,
            id(history),
            history.version,
            history.last_step,
            [checkpoint.step for checkpoint in checkpoints],
        ),
    )


def log_of(run: Run, state: RunState) -> list[str]:
    """The end of rank 0's log; after a clean stop without torchrun's own lines, which look like a failure."""
    if state is not RunState.STOPPED:
        return run.log(_NUM_LOG_LINES).splitlines()
    kept = _OF_TORCHRUN.sub("", run.log(_NUM_STOP_LINES) + "\n")
    return kept.splitlines()[-_NUM_LOG_LINES:]


def pace(history: History) -> tuple[float | None, float | None]:
    """Recent seconds per step, and the time of the newest row, from this run's own rows.

    A parent's rows would count the pause before a resume; a pause within (a restart) counts for little.
    """
    every = [history[name] for name in history.keys()]  # noqa: SIM118 - not a dict
    series = max(every, key=len, default=None)
    if series is None or not len(series) or not np.isfinite(series.times[-1]):
        return None, None
    steps, times = series.steps[-50:], series.times[-50:]
    taken = np.maximum(np.diff(times), 0.0)
    if not len(taken) or not np.isfinite(taken).all():
        return None, float(times[-1])
    pace = float(np.minimum(taken, 20 * np.median(taken)).sum() / (steps[-1] - steps[0]))
    return pace or None, float(times[-1])
