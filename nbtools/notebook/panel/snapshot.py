"""The data that a panel shows of a run, read from its directory after a file has changed."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nbtools.errors import plural
from nbtools.failures.failure import Failure
from nbtools.failures.restarts import Restart, read_restarts, restarted
from nbtools.metrics.history import History
from nbtools.notebook.plots.decimation import find_break
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.lineage import origin_in_words
from nbtools.run.records import mapping_at
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import RankHeartbeat, read_heartbeats

_NUM_LOG_LINES = 12
_NUM_BREAKS = 4
_NUM_STOP_LINES = 400
"""Lines to search after a stop for torchrun's traceback and its one line per process."""

# torchrun's output on SIGTERM: warnings, and the traceback of its own exception.
_OF_TORCHRUN = re.compile(
    r"""
      ^[EWI]\d{4}\ \d\d:\d\d:\d\d.*torch/distributed/elastic.*\n
    | (?:^\n?During\ handling\ of\ the\ above\ exception.*\n\n)?
      ^Traceback\ \(most\ recent\ call\ last\):\n(?:[\ \t].*\n)*+.*\bSignalException:.*\n
    """,
    re.MULTILINE | re.VERBOSE,
)


@dataclass
class Snapshot:
    """What a panel shows of a run directory; kept until a file changes."""

    step: int = 0
    total_steps: int | None = None
    seconds_per_step: float | None = None
    last_row: float | None = None
    """Unix time of the newest metric row."""
    ranks: list[RankHeartbeat] = field(default_factory=list)
    failure: Failure | None = None
    checkpoints: list[Checkpoint] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Sentences on non-finite values and on metrics that are missing from the curves."""
    version: object = None
    """Differs from the earlier one if the picture has to be drawn again."""

    def remaining_s(self, now: float) -> float | None:
        """Return the estimated seconds to the last step; None if unknown."""
        if not (self.seconds_per_step and self.total_steps and self.last_row):
            return None
        # Count down within the step after the last row, but not beyond it.
        since = min(max(0.0, now - self.last_row), self.seconds_per_step)
        return max(0.0, (self.total_steps - self.step) * self.seconds_per_step - since)


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return modification time, size and inode of a file; None if it cannot be read."""
    with suppress(OSError):
        status = path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino
    return None


def stamp_of(run: Run) -> tuple[object, ...]:
    """Return stamps of the files that a panel shows; nothing is read while they are equal."""
    files = run.files
    written_once = files.launch, files.config, files.finished, files.exit
    shown = (*written_once, files.metrics, files.log, files.checkpoints, files.attempts)
    stamps: list[object] = [file_stamp(path) for path in shown]
    with suppress(OSError):
        stamps += [(path.name, file_stamp(path)) for path in sorted(files.ranks.glob("*.heartbeat.json"))]
    return tuple(stamps)


def take_snapshot(run: Run, state: RunState) -> Snapshot:
    """Read the run directory."""
    history, own, checkpoints, restarts = run.history, run.own_history, run.checkpoints, read_restarts(run.files)
    seconds_per_step, last_row = own.pace()  # without the pause between the parent and the resume
    saved = [checkpoint.step for checkpoint in checkpoints]
    return Snapshot(
        step=run.step,
        total_steps=run.total_steps,
        seconds_per_step=seconds_per_step,
        last_row=last_row,
        ranks=read_heartbeats(run.files),
        failure=run.failure if state.is_final else None,
        checkpoints=checkpoints,
        log=log_of(run, state),
        restarts=restarts,
        warnings=_breaks_of(history) + _gaps_of(own),
        version=(run.id, id(history), history.version, history.last_step, saved, len(restarts)),
    )


def _breaks_of(history: History) -> list[str]:
    """Return a sentence for each of the first four metrics with non-finite values."""
    said = []
    for name in history:
        series = history[name]
        found = find_break(series.values)
        if found is None:
            continue
        step, values = f"{series.steps[found.index]:,}", plural(found.count, "value")
        some = f"{name}: {values} not finite, first at step {step}"
        said.append(f"{name} is not finite since step {step}" if found.is_end else some)
    hidden = len(said) - _NUM_BREAKS
    return [*said[:_NUM_BREAKS], f"and {hidden:,} more metrics"] if hidden > 0 else said


def _gaps_of(own: History) -> list[str]:
    """Return a sentence for each kind of metric rows that are missing."""
    said = []
    if own.num_dropped:
        said.append(f"{own.num_dropped:,} metric rows could not be written (disk full?)")
    if own.num_skipped:
        said.append(f"{own.num_skipped:,} damaged lines of metrics.jsonl are skipped")
    if own.num_unread_bytes:
        unread = f"{own.num_unread_bytes / 1e6:,.1f} MB of output"
        said.append(f"{unread} was skipped in the search for metrics: it came too fast")
    return said


def notes_of(run: Run, restarts: list[Restart]) -> list[str]:
    """Return the origin of a run, its attempt, its last restart, and how many steps it skipped."""
    origin = origin_in_words(run.info.get("resumed_from"))
    notes = [origin] if origin else []
    if restarts:
        allowed = mapping_at(run.info, "launch").get("max_restarts")
        total = f" of {allowed + 1}" if isinstance(allowed, int) else ""
        notes += [f"attempt {restarts[-1].attempt + 1}{total}", restarted(restarts[-1])]
    if skipped := run.own_history.last("train/skipped_steps"):
        notes.append(f"{plural(int(skipped), 'step')} skipped: the gradient norm was not finite")
    return notes


def log_of(run: Run, state: RunState) -> list[str]:
    """Return the end of rank 0's log; after a stop without torchrun's own lines, which look like a failure."""
    if state is not RunState.STOPPED:
        return run.log(_NUM_LOG_LINES).splitlines()
    kept = _OF_TORCHRUN.sub("", run.log(_NUM_STOP_LINES) + "\n")
    return kept.splitlines()[-_NUM_LOG_LINES:]
