"""The automatic restarts of a run: one record per attempt that failed, or that Slurm ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nbtools.failures.evidence import last_rows
from nbtools.failures.failure import Failure
from nbtools.rundir.json_files import LARGEST_JSON_BYTES, finite, kept, whole
from nbtools.rundir.rundir import RunDir

_MAX_WITHOUT_PROGRESS = 3


@dataclass(frozen=True)
class Restart:
    """An ended attempt that is followed by another one."""

    attempt: int
    """Number of the ended attempt; 1 is the first."""
    time: float
    """Unix time of the attempt's end."""
    failure: Failure | None
    """Failure of the attempt; None if Slurm ended it."""
    checkpoint: str | None
    """Name of the checkpoint from which the next attempt continued; None if there was none."""
    why: str | None = None
    """Why Slurm ended it: `preempted`, `time limit`, `node failed` or `requeued`."""
    step: int | None = None
    """Last step of the attempt, if Slurm ended it."""
    resumed_from: str | None = None
    """Name of the checkpoint from which the attempt itself continued, if Slurm ended it."""
    checkpoint_step: int | None = None
    """Step of the checkpoint, if that is known."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self | None:
        """Return the restart in a line of attempts.jsonl; None if it is not one."""
        attempt, ended = whole(content.get("attempt")), finite(content.get("time"))
        if attempt is None or ended is None:
            return None
        texts = (content.get(name) for name in ("checkpoint", "why", "resumed_from"))
        name, why, start = (text if isinstance(text, str) else None for text in texts)
        failure, step = Failure.from_json(content.get("failure")), whole(content.get("step"))
        return cls(attempt, ended, failure, name, why, step, start, whole(content.get("checkpoint_step")))


def read_restarts(run: RunDir) -> list[Restart]:
    """Return the automatic restarts, oldest first; damaged lines are skipped."""
    return list(kept(_restarts_in, run.attempts) or ())


def _restarts_in(path: Path) -> list[Restart]:
    found = map(Restart.from_json, last_rows(path, LARGEST_JSON_BYTES))
    return [restart for restart in found if restart is not None]


def without_progress(ended: Sequence[Restart], checkpoint: str | None) -> Failure | None:
    """Return the failure of a run that Slurm ended too often without a new checkpoint; None if it may continue.

    Args:
        ended: the attempts so far, oldest first.
        checkpoint: name of the checkpoint from which the next attempt would continue.
    """
    last = ended[-_MAX_WITHOUT_PROGRESS:]
    if len(last) < _MAX_WITHOUT_PROGRESS or any(one.failure or one.resumed_from != checkpoint for one in last):
        return None
    why = ", ".join(one.why or "unknown" for one in last)
    start = f"at {checkpoint}" if checkpoint else "at the start"
    message = f"{len(last)} attempts in a row ended without a new checkpoint ({why}); each began {start}"
    step = max((one.step or 0 for one in last), default=0)
    reached = f"Their greatest step was {step:,}" if step else "They completed no step"
    advice = (
        f"{reached}: give a longer time_limit or lower checkpoint_every, see the end of ranks/slurm.log and rank0.log "
        "for a slow start or a checkpoint that was not saved in time, then nbtools resume."
    )
    return Failure(None, None, None, None, message, advice=advice, step=step)


def restarted(restart: Restart) -> str:
    """Return a sentence: from which step the next attempt continued, and why the failed one ended."""
    step = restart.checkpoint_step
    at = "" if restart.step is None else f" at step {restart.step:,}"
    why = restart.failure.headline if restart.failure else f"{restart.why}{at}" if restart.why else "it failed"
    where = f"from {restart.checkpoint}" if restart.checkpoint else "from the start"
    return f"restarted {f'at step {step:,}' if step else where}: {why[:300]}"
