"""A rank's heartbeat: the file format, and how to read it."""

from dataclasses import dataclass
from typing import Any, Self

from nbtools.rundir.identity import ProcessIdentity
from nbtools.rundir.json_files import finite, read_json, whole
from nbtools.rundir.rundir import RunDir

_PHASES = (
    *("start", "evaluation", "checkpoint", "profile", "data", "forward", "backward", "collective", "outputs", "done"),
)
"""In the order in which a rank that is at step k goes through them on its way to step k + 1."""


@dataclass(frozen=True)
class RankHeartbeat:
    """A rank's last sign of life."""

    rank: int
    pid: int
    host: str
    step: int
    """Optimizer steps it has completed."""
    phase: str
    """What it does since: start, data, forward, backward, collective, evaluation, checkpoint or done."""
    time: float
    """Unix time at which that began."""
    nth: int = 0
    """Which phase since its last step this is: all ranks go through the same ones, so it orders ranks at one step."""
    stacks_signal: int | None = None
    """Signal on which it writes its stacks; None if it announced none: the signal would end it."""
    identity: ProcessIdentity | None = None

    @classmethod
    def from_json(cls, content: dict[str, Any] | None) -> Self | None:
        """Read a heartbeat file's content; None if it is nothing of the kind."""
        values = content or {}
        rank, pid, step = (whole(values.get(name)) for name in ("rank", "pid", "step"))
        host, phase, since = values.get("host"), values.get("phase"), finite(values.get("time"))
        if rank is None or pid is None or step is None or since is None:
            return None
        if not isinstance(host, str) or not isinstance(phase, str):
            return None
        nth, stacks_signal = whole(values.get("nth")) or 0, whole(values.get("stacks_signal"))
        return cls(rank, pid, host, step, phase, since, nth, stacks_signal, ProcessIdentity.from_json(values))

    def to_json(self) -> dict[str, Any]:
        """What it tells about the training, as plain values."""
        return {name: getattr(self, name) for name in ("rank", "pid", "host", "step", "phase", "time")}

    @property
    def place(self) -> tuple[int, int, int]:
        """How far it is; smaller is further behind."""
        known = self.phase if self.phase in _PHASES else "forward"
        return self.step, self.nth, _PHASES.index(known)

    @property
    def may_take_long(self) -> bool:
        """Whether nothing is wrong with a rank that does this for minutes: reading data is one before step 1."""
        long = ("start", "evaluation", "checkpoint", "profile", "outputs")
        return self.phase in long or (self.phase == "data" and self.step == 0)


def read_heartbeats(run: RunDir) -> list[RankHeartbeat]:
    """Last signs of life of all ranks, in order of rank."""
    beats = [RankHeartbeat.from_json(read_json(path)) for path in run.ranks.glob("*.heartbeat.json")]
    return sorted((beat for beat in beats if beat is not None), key=lambda beat: beat.rank)
