"""What a run and its ranks can be doing."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from nbtools.failure import Failure
from nbtools.rundir import RunDir, finite, read_json, read_small, whole


class RunState(StrEnum):
    """What a run is doing; derived from its files and its lock, never stored."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended; only a LOST run can still be found to have ended otherwise."""
        return self not in (RunState.QUEUED, RunState.RUNNING)


@dataclass(frozen=True)
class RankBeat:
    """A rank's last sign of life."""

    rank: int
    pid: int
    host: str
    step: int
    """Optimizer steps it has completed."""
    phase: str
    """What it does since: start, data, forward, backward, collective, evaluation, checkpoint or done."""
    time: float
    """Unix time."""

    @classmethod
    def from_json(cls, content: dict[str, Any] | None) -> Self | None:
        """Read a heartbeat file's content; None if it is nothing of the kind."""
        values = content or {}
        rank, pid, step = (whole(values.get(name)) for name in ("rank", "pid", "step"))
        host, phase, since = values.get("host"), values.get("phase"), finite(values.get("time"))
        if rank is None or pid is None or step is None or since is None:
            return None
        return cls(rank, pid, host, step, phase, since) if isinstance(host, str) and isinstance(phase, str) else None


@dataclass(frozen=True)
class Restart:
    """A failed attempt that was followed by another one."""

    attempt: int
    """Number of the attempt that failed; 1 for the first start."""
    time: float
    """Unix time of its end."""
    failure: Failure | None
    checkpoint: str | None
    """Name of the checkpoint that the next attempt went on from; None if there was none."""

    @classmethod
    def from_json(cls, content: object) -> Self | None:
        """Read a line of attempts.jsonl; None if it is nothing of the kind."""
        if not isinstance(content, Mapping):
            return None
        attempt, ended = whole(content.get("attempt")), finite(content.get("time"))
        if attempt is None or ended is None:
            return None
        name = content.get("checkpoint")
        return cls(attempt, ended, Failure.from_json(content.get("failure")), name if isinstance(name, str) else None)


def read_restarts(run: RunDir) -> list[Restart]:
    """Automatic restarts so far, oldest first; damaged lines are left out."""
    found = []
    try:
        lines = read_small(run.attempts).splitlines()
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(Restart.from_json(json.loads(line)))
    return [restart for restart in found if restart is not None]


def read_beats(run: RunDir) -> list[RankBeat]:
    """Last signs of life of all ranks, in order of rank."""
    beats = [RankBeat.from_json(read_json(path)) for path in run.ranks.glob("*.heartbeat.json")]
    return sorted((beat for beat in beats if beat is not None), key=lambda beat: beat.rank)
