"""What a run and its ranks can be doing."""

import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import psutil

from nbtools.failures.failure import Failure
from nbtools.rundir.rundir import ProcessIdentity, RunDir, finite, read_json, read_small, whole

_PHASES = (
    *("start", "evaluation", "checkpoint", "profile", "data", "forward", "backward", "collective", "outputs", "done"),
)
"""In the order in which a rank that is at step k goes through them on its way to step k + 1."""
_PATIENCE_S = 3.0
"""Beside twice the usual step; a heartbeat is written, and read, once a second: that makes five in all."""
_UNKNOWN_STEP_S = 6.0


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


@dataclass(frozen=True)
class Laggard:
    """A rank that the others wait for, or that hangs together with them."""

    beat: RankBeat
    silent_s: float
    """For how long it has been in its phase."""
    is_behind: bool
    """Whether another rank is further."""
    condition: str
    """`gone` or `stopped (state T)`, where that can be seen from here; else empty."""

    def __str__(self) -> str:
        beat, what = self.beat, "is behind" if self.is_behind else "is stuck"
        condition = f", {self.condition}" if self.condition else ""
        return f"rank {beat.rank} {what}: {beat.phase} at step {beat.step} for {self.silent_s:.0f} s{condition}"


def process_condition(beat: RankBeat) -> str:
    """`gone` or `stopped (state T)`, if this machine runs the rank and that is so; else empty."""
    if beat.host != socket.gethostname():
        return ""
    try:
        status = psutil.Process(beat.pid).status()
    except psutil.NoSuchProcess:
        return "gone"
    except psutil.Error:
        return ""
    if status == psutil.STATUS_ZOMBIE or (beat.identity is not None and not beat.identity.is_alive()):
        return "gone"
    return "stopped (state T)" if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP) else ""


def laggards(
    beats: Sequence[RankBeat],
    now: float,
    usual_step_s: float | None,
    condition: Callable[[RankBeat], str] = process_condition,
) -> list[Laggard]:
    """Judge who is stuck, from the last signs of life of a RUNNING run's ranks.

    All ranks wait for the one that is furthest behind, wherever they wait: in a collective, or in a backward pass,
    which averages gradients. One that is stopped or gone is the cause, however far it is; where all are equally far and
    none is, all of them hang.

    Args:
        beats: one per rank.
        now: Unix time.
        usual_step_s: seconds per step until now; None if there is no telling yet.
        condition: looks at the process of a rank that has been silent for too long.
    """
    patience_s = _PATIENCE_S + 2 * (usual_step_s or _UNKNOWN_STEP_S)
    active = [beat for beat in beats if beat.phase != "done"]
    if not active:
        return []
    last, first = min(beat.place for beat in active), max(beat.place for beat in active)
    late = [beat for beat in active if now - beat.time > patience_s]
    found = [Laggard(beat, now - beat.time, beat.place < first, condition(beat)) for beat in late]
    held = [laggard for laggard in found if laggard.condition]
    return held or [one for one in found if one.beat.place == last and not one.beat.may_take_long]


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
