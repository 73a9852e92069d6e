"""What a stop leaves: processes of an ended run, and the memory that GPUs have released."""

import time
from collections.abc import Sequence

from nbtools.machine.devices import Device, devices
from nbtools.machine.processes import members
from nbtools.run.records import Records

_GPU_WAIT_S = 2.0
_POLL_S = 0.1


def left_behind(records: Records) -> bool:
    """Whether a process of an ended run still lives, other than its supervisor, which is about to exit."""
    supervisor = records.process
    return any(supervisor is None or process.pid != supervisor.pid for process in members(records.files))


def released(before: Sequence[Device], wait_s: float = _GPU_WAIT_S) -> list[str]:
    """Describe the memory of GPUs, given as before a stop, once the driver has freed it or after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while before:
        now = {device.uuid: device for device in devices()}
        pairs = [(device, now[device.uuid]) for device in before if device.uuid in now]
        if all(_is_free(*pair) for pair in pairs) or time.monotonic() > deadline:
            return [_memory(*pair) for pair in pairs]
        time.sleep(_POLL_S)
    return []


def chosen_gpus(gpus: object) -> list[Device]:
    """Return the GPUs that a run was launched on, with their present use; none without NVML."""
    return [device for device in devices() if device.index in gpus] if isinstance(gpus, list) and gpus else []


def _is_free(before: Device, after: Device) -> bool:
    return not after.holders and (after.memory_used_bytes < before.memory_used_bytes or not before.holders)


def _memory(before: Device, after: Device) -> str:
    """`GPU 0 back to 0.4 GB`, with the processes that hold the rest."""
    verb = "back to" if after.memory_used_bytes < before.memory_used_bytes else "at"
    holders = f", held by {', '.join(map(str, after.holders))}" if after.holders else ""
    return f"GPU {after.index} {verb} {after.memory_used_bytes / 1e9:.1f} GB{holders}"
