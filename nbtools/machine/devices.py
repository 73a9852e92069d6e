"""What this machine has and who holds it: GPUs by NVML (never a CUDA context), CPU cores by what we may use."""

import contextlib
import ctypes
import functools
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from nbtools.rundir.rundir import RUN_ID_VARIABLE

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment variable that tells gloo its network interface."""


@dataclass(frozen=True)
class Holder:
    """A process that has memory on a GPU."""

    pid: int
    name: str
    """Its program, or `?` for one that cannot be seen from here (another container's)."""
    owner: str
    memory_bytes: int | None
    run: str | None = None
    """Id of the run that it belongs to, as far as its environment can be read."""

    @property
    def is_caller(self) -> bool:
        """Whether it is this very process."""
        return self.pid == os.getpid()

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**30:.1f} GiB"
        who = self.name if self.run is None else f"another run of nbtools: {self.run}"
        if self.is_caller:
            kernel = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
            who = "this notebook's kernel" if kernel and kernel.initialized() else "this very process"
        return f"{who} (pid {self.pid}, {self.owner}{size})"


@dataclass(frozen=True)
class Device:
    """One GPU that this process may use."""

    index: int
    """As `nvidia-smi` counts, whatever CUDA_VISIBLE_DEVICES says."""
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    holders: tuple[Holder, ...]
    selector: str
    """What selects it in CUDA_VISIBLE_DEVICES: its index, or the UUID by which that variable already names it."""


def devices() -> list[Device]:
    """GPUs that this process may use, in order; none where there is no NVIDIA driver.

    CUDA_VISIBLE_DEVICES, if set, filters and orders the list, as it does for CUDA itself; UUIDs and MIG instances in it
    are understood.
    """
    nvml = _nvml()
    if nvml is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        selectors = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    else:
        selectors = [selector.strip() for selector in visible.split(",")]
    found = []
    for position, selector in enumerate(selectors):
        try:
            found.append(_device(nvml, selector, position))
        except nvml.NVMLError:
            break  # CUDA, too, ignores everything from the first unknown device on
    return found


def driver_version() -> str | None:
    """Version of the NVIDIA driver; None where there is none."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return _text(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return None


def cuda_version() -> tuple[int, int] | None:
    """Newest CUDA version that the driver supports, as (major, minor); None where there is none or it does not tell."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        number = int(nvml.nvmlSystemGetCudaDriverVersion_v2())  # 12020 is 12.2
    except nvml.NVMLError:
        return None
    return number // 1000, number % 1000 // 10


def num_cores() -> int:
    """CPU cores that this process may use: by affinity, and by the quota of its container."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or quota "max"
        return cores


def loopback() -> str | None:
    """Name of the network interface that only this machine can reach; None if it has none."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), None)


def gpu_use() -> list[dict[str, float]]:
    """Use of every visible GPU right now: `index`, `use_percent`, `memory_bytes`, `power_w` as far as it tells."""
    nvml = _nvml()
    if nvml is None:
        return []
    readings: dict[str, Callable[[Any], float]] = {
        "use_percent": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_bytes": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "power_w": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    }
    rows = []
    for handle, index in _handles():
        row = {"index": float(index)}
        for key, read in readings.items():
            with contextlib.suppress(nvml.NVMLError):  # a MIG instance tells less
                row[key] = float(read(handle))
        rows.append(row)
    return rows


@functools.cache
def _nvml() -> Any:
    """The initialised NVML module, or None. Its import costs megabytes, so the driver's library is looked for first."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
        import pynvml
    except (OSError, ImportError):
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@functools.cache
def _handles() -> list[tuple[Any, int]]:
    nvml = _nvml()
    return [(_handle(nvml, device.selector), device.index) for device in devices()]


def _handle(nvml: Any, selector: str) -> Any:
    if selector.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(selector))
    return nvml.nvmlDeviceGetHandleByUUID(selector)


def _device(nvml: Any, selector: str, position: int) -> Device:
    handle = _handle(nvml, selector)
    try:
        index = int(nvml.nvmlDeviceGetIndex(handle))
    except nvml.NVMLError:  # a MIG instance has none
        index = position
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Device(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_total_bytes=int(memory.total),
        memory_used_bytes=int(memory.used),
        holders=_holders(nvml, handle),
        selector=selector,
    )


def _holders(nvml: Any, handle: Any) -> tuple[Holder, ...]:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return ()
    found = []
    for item in running:
        name, owner, run = "?", "?", None
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(item.pid)
            name, owner = process.name(), process.username()
            run = process.environ().get(RUN_ID_VARIABLE)  # others' environments are theirs alone
        used = item.usedGpuMemory
        found.append(Holder(int(item.pid), name, owner, None if used is None else int(used), run))
    return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
