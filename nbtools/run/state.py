"""The state of a run: derived from its records and its lock, never stored."""

from enum import StrEnum
from pathlib import Path

from nbtools.machine import gpu_queue
from nbtools.run.records import Records
from nbtools.rundir.lock import is_locked
from nbtools.rundir.rundir import RunDir, goes_on, lives_without_lock, name_of
from nbtools.rundir.tail import one_line


class RunState(StrEnum):
    """What a run is doing."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended; of the final states, only LOST can still change."""
        return self not in (RunState.QUEUED, RunState.RUNNING)


_BY_RANK_0 = {"completed": RunState.SUCCEEDED, "stopped": RunState.STOPPED, "failed": RunState.FAILED}


def state_of(records: Records) -> RunState:
    """Derive the state: exit.json decides; else a held lock means RUNNING or QUEUED; else finished.json; else LOST."""
    if (recorded := _by_supervisor(records)) is not None:
        return recorded
    if _is_held(records):
        return RunState.RUNNING if records.files.log.exists() else RunState.QUEUED
    # The run may have ended between the two checks: the records are final only once the lock is free.
    return _by_supervisor(records) or _BY_RANK_0.get(str(records.finished.get("why")), RunState.LOST)


def _by_supervisor(records: Records) -> RunState | None:
    ended = records.exit
    if ended is None:
        return None
    # torchrun exits 1 on a stop as on a failure, so its return code is checked last.
    if ended.get("stopped"):
        return RunState.STOPPED
    if ended.get("returncode") == 0:
        return RunState.STOPPED if records.finished.get("why") == "stopped" else RunState.SUCCEEDED
    return RunState.FAILED


def _is_held(records: Records) -> bool:
    if records.launch.get("flock", True):
        return is_locked(records.files.lock)
    return lives_without_lock(records.launch, records.process)  # as found at the launch


def waiting_for(records: Records) -> str:
    """Return what a QUEUED run waits for: `behind ID on GPU 0,1`, or `after ID`; empty in every other state."""
    if state_of(records) is not RunState.QUEUED:
        return ""
    ticket, after = records.launch.get("ticket"), records.launch.get("after")
    before = gpu_queue.ahead(Path(ticket)) if isinstance(ticket, str) else []
    if before:
        return f"behind {before[-1]}" + (f" and {len(before) - 1} more" if len(before) > 1 else "")
    return (
        f"after {one_line(name_of(Path(after).name), 200)}" if isinstance(after, str) and goes_on(RunDir(after)) else ""
    )
