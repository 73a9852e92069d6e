"""The heartbeat file of a rank: its format, and its reader."""

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from nbtools.rundir.json_files import content_of, finite, whole
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir

_BEFORE_STEP = "start", "evaluation", "checkpoint", "paused", "profile"
_PHASES = *_BEFORE_STEP, "data", "forward", "backward", "optimizer", "collective", "outputs", "done"
"""Phases in the order in which a rank passes through them between two optimizer steps."""


@dataclass(frozen=True)
class RankHeartbeat:
    """The last recorded state of a rank."""

    rank: int
    pid: int
    host: str
    step: int
    """Completed optimizer steps."""
    phase: str
    """Current phase, one of `_PHASES`."""
    time: float
    """Unix time at which the phase began."""
    nth: int = 0
    """Number of the phase since the last step; the same for all ranks, so it orders ranks at one step."""
    stacks_signal: int | None = None
    """Signal on which the rank writes its stacks; None if it has no handler, so that the signal would end it."""
    identity: ProcessIdentity | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self | None:
        """Return the heartbeat in a file's content; None if it is not one."""
        rank, pid, step = (whole(values.get(name)) for name in ("rank", "pid", "step"))
        host, phase, since = values.get("host"), values.get("phase"), finite(values.get("time"))
        if rank is None or pid is None or step is None or since is None:
            return None
        if not isinstance(host, str) or not isinstance(phase, str):
            return None
        nth, stacks_signal = whole(values.get("nth")) or 0, whole(values.get("stacks_signal"))
        return cls(rank, pid, host, step, phase, since, nth, stacks_signal, ProcessIdentity.from_json(values))

    def to_json(self) -> dict[str, Any]:
        """Return rank, process, host, step, phase and time as plain values."""
        return {name: getattr(self, name) for name in ("rank", "pid", "host", "step", "phase", "time")}

    @property
    def is_elsewhere(self) -> bool:
        """Whether the rank runs on another machine."""
        return self.host != socket.gethostname() if self.identity is None else self.identity.is_elsewhere

    @property
    def place(self) -> tuple[int, int, int]:
        """Sort key of progress; a smaller one is further behind."""
        return self.step, self.nth, _PHASES.index(self.phase if self.phase in _PHASES else "forward")

    @property
    def may_take_long(self) -> bool:
        """Whether the phase may take minutes in a healthy run; reading data may, before the first step."""
        return self.phase in (*_BEFORE_STEP, "outputs") or (self.phase == "data" and self.step == 0)


def nodes_of(beats: Iterable[RankHeartbeat], nproc_per_node: int | None) -> dict[int, list[RankHeartbeat]]:
    """Group heartbeats, in order of rank, by the number of their node; without `nproc_per_node`, by host."""
    found: dict[int, list[RankHeartbeat]] = {}
    numbers: dict[str, int] = {}
    for beat in beats:
        node = beat.rank // nproc_per_node if nproc_per_node else numbers.setdefault(beat.host, len(numbers))
        found.setdefault(node, []).append(beat)
    return found


def read_heartbeats(run: RunDir) -> list[RankHeartbeat]:
    """Return the heartbeats of all ranks, in order of rank, without those that cannot be read."""
    beats = (RankHeartbeat.from_json(content_of(path)) for path in run.ranks.glob("*.heartbeat.json"))
    return sorted((beat for beat in beats if beat is not None), key=lambda beat: beat.rank)
