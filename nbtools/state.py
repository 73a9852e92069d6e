"""What a run and its ranks can be doing."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from nbtools.rundir import RunDir, read_json


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
        try:
            values = content or {}
            rank, pid, step = int(values["rank"]), int(values["pid"]), int(values["step"])
            return cls(rank, pid, str(values["host"]), step, str(values["phase"]), float(values["time"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


def read_beats(run: RunDir) -> list[RankBeat]:
    """Last signs of life of all ranks, in order of rank."""
    beats = [RankBeat.from_json(read_json(path)) for path in run.ranks.glob("*.heartbeat.json")]
    return sorted((beat for beat in beats if beat is not None), key=lambda beat: beat.rank)
