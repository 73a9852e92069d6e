"""Finds the ranks that hang, or that the other ranks wait for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from nbtools.rundir.heartbeat import RankHeartbeat

_PATIENCE_S = 3.0
"""Seconds added to twice the usual step time; with the delays of heartbeats and reads, about five in all."""
_UNKNOWN_STEP_S = 6.0


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for, or that hangs together with them."""

    beat: RankHeartbeat
    silent_s: float
    """Time since the rank entered its phase."""
    is_behind: bool
    """Whether another rank is ahead of this one."""
    condition: str
    """`gone` or `stopped (state T)` if the rank is on this machine and in that state; else empty."""
    node: str = ""
    """Host of the rank, in a run on several; else empty."""

    def __str__(self) -> str:
        beat, what = self.beat, "is behind" if self.is_behind else "is stuck"
        condition = f", {self.condition}" if self.condition else ""
        on = f" on {self.node}" if self.node else ""
        return f"rank {beat.rank}{on} {what}: {beat.phase} at step {beat.step} for {self.silent_s:.0f} s{condition}"


def process_condition(beat: RankHeartbeat) -> str:
    """Return `gone` or `stopped (state T)` if the rank is on this machine and in that state; else empty."""
    if beat.is_elsewhere:
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


def stragglers(
    beats: Sequence[RankHeartbeat],
    now: float,
    usual_step_s: float | None,
    condition: Callable[[RankHeartbeat], str] = process_condition,
) -> list[Straggler]:
    """Return the stragglers among the ranks of a RUNNING run, from their last heartbeats.

    All ranks wait for the one that is furthest behind: in a collective, or in a backward pass, which averages
    gradients. A stopped or dead rank is the cause, however far it is; if all ranks are equally far and none is stopped
    or dead, all of them hang.

    `now` is Unix time; `condition` checks the process of a rank that has been silent for too long.
    """
    patience_s = _PATIENCE_S + 2 * (usual_step_s or _UNKNOWN_STEP_S)
    active = [beat for beat in beats if beat.phase != "done"]
    if not active:
        return []
    last, first = min(beat.place for beat in active), max(beat.place for beat in active)
    has_nodes = len({beat.host for beat in beats}) > 1
    found = [
        Straggler(beat, now - beat.time, beat.place < first, condition(beat), beat.host if has_nodes else "")
        for beat in active
        if now - beat.time > patience_s
    ]
    held = [straggler for straggler in found if straggler.condition]
    return held or [one for one in found if one.beat.place == last and not one.beat.may_take_long]
