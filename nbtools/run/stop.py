"""Stops a run and describes the result: the checkpoint, the processes that ended, the memory that GPUs released."""

import time
from collections.abc import Sequence
from typing import Protocol

from nbtools.machine import processes
from nbtools.machine.devices import Device, devices
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.records import Records, mapping_at
from nbtools.run.state import RunState
from nbtools.rundir.json_files import finite
from nbtools.rundir.rundir import RunDir

_GPU_WAIT_S = 2.0
_POLL_S = 0.1


class Stoppable(Protocol):
    """What `stop_run` reads of a run: a `Run`, whose module imports this one."""

    id: str
    files: RunDir
    records: Records

    @property
    def state(self) -> RunState: ...

    @property
    def step(self) -> int: ...

    @property
    def checkpoints(self) -> list[Checkpoint]: ...


def stop_run(run: Stoppable, timeout_s: float | None = None) -> str:
    """Stop a run and return one sentence on the result. Arguments and errors are those of `Run.stop`."""
    settings = mapping_at(run.records.launch, "launch")
    if timeout_s is None:
        granted = finite(settings.get("shutdown_timeout_s"))
        timeout_s = (60 if granted is None else granted) + processes.STOP_GRACE_S + 5
    before, known = run.state, {checkpoint.step for checkpoint in run.checkpoints}
    if before.is_final and before is not RunState.LOST and not _left_behind(run):
        return f"{run.id} had already ended: {before} at step {run.step}"
    used = _chosen(settings.get("gpus"))
    ending = processes.stop_processes(run.files, lambda: run.state.is_final, timeout_s)
    state, saved = run.state, run.checkpoints
    if state is RunState.STOPPED and not run.files.log.exists() and not ending.left:
        return "cancelled while queued; it had not started"
    how = f"killed after {timeout_s:.0f} s" if ending.was_killed else str(state).lower()
    parts = [f"{how} at step {run.step}" if state.is_final else f"still {state} at step {run.step}, although killed"]
    if not saved:
        parts.append("no checkpoint was saved")
    else:
        is_old = saved[-1].step in known
        parts.append(f"newest checkpoint {saved[-1].name}" if is_old else f"checkpoint {saved[-1].name} saved")
    return "; ".join([*parts, str(ending), *released(used)])


def _left_behind(run: Stoppable) -> bool:
    """Whether a process of an ended run still lives, other than its supervisor, which is about to exit."""
    supervisor = run.records.process
    return any(supervisor is None or process.pid != supervisor.pid for process in processes.members(run.files))


def released(before: Sequence[Device], wait_s: float = _GPU_WAIT_S) -> list[str]:
    """Describe the memory of GPUs whose processes have ended, once the driver has freed it.

    Args:
        before: The GPUs before the stop.
        wait_s: How long to wait for the memory to become free.
    """
    deadline = time.monotonic() + wait_s
    while before:
        now = {device.uuid: device for device in devices()}
        pairs = [(device, now[device.uuid]) for device in before if device.uuid in now]
        if all(_is_free(*pair) for pair in pairs) or time.monotonic() > deadline:
            return [_memory(*pair) for pair in pairs]
        time.sleep(_POLL_S)
    return []


def _chosen(gpus: object) -> list[Device]:
    """The GPUs that a run was launched on, with their present use; none without NVML."""
    return [device for device in devices() if device.index in gpus] if isinstance(gpus, list) and gpus else []


def _is_free(before: Device, after: Device) -> bool:
    return not after.holders and (after.memory_used_bytes < before.memory_used_bytes or not before.holders)


def _memory(before: Device, after: Device) -> str:
    """`GPU 0 back to 0.4 GB`, with the processes that hold the rest."""
    verb = "back to" if after.memory_used_bytes < before.memory_used_bytes else "at"
    holders = f", held by {', '.join(map(str, after.holders))}" if after.holders else ""
    return f"GPU {after.index} {verb} {after.memory_used_bytes / 1e9:.1f} GB{holders}"
