"""GPUs of this machine with the processes on them (by NVML, without a CUDA context), and usable CPU cores."""

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
"""Environment variable with gloo's network interface."""


@dataclass(frozen=True)
class Holder:
    """A process that has memory on a GPU."""

    pid: int
    name: str
    """Name of the program; `?` for a process of another container."""
    owner: str
    memory_bytes: int | None
    run: str | None = None
    """Id of its run; None if it has none or its environment cannot be read."""

    @property
    def is_caller(self) -> bool:
        """Whether the holder is the calling process."""
        return self.pid == os.getpid()

    def __str__(self) -> str:
        size = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**30:.1f} GiB"
        who = self.name if self.run is None else f"another run of nbtools: {self.run}"
        if self.is_caller:
            kernel = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
            who = "this notebook's kernel" if kernel and kernel.initialized() else "this process"
        return f"{who} (pid {self.pid}, {self.owner}{size})"


@dataclass(frozen=True)
class Device:
    """One GPU that this process may use."""

    index: int
    """Index that `nvidia-smi` shows, independent of CUDA_VISIBLE_DEVICES."""
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int
    holders: tuple[Holder, ...]
    selector: str
    """Entry for CUDA_VISIBLE_DEVICES: the index, or the UUID that the variable already holds."""
    compute_capability: tuple[int, int] | None = None
    """(major, minor); None if the driver does not report it."""

    def __str__(self) -> str:
        used, total = self.memory_used_bytes / 2**30, self.memory_total_bytes / 2**30
        held = f"held by {', '.join(map(str, self.holders))}" if self.holders else "free"
        return f"{self.name}, {used:.1f} of {total:.0f} GiB used; {held}"


def devices() -> list[Device]:
    """Return the GPUs that this process may use, in order; none without an NVIDIA driver.

    CUDA_VISIBLE_DEVICES, if set, filters and orders the list as CUDA does; it may name UUIDs and MIG instances.
    """
    if (nvml := _nvml()) is None:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    selectors = map(str, range(nvml.nvmlDeviceGetCount())) if visible is None else visible.split(",")
    found = []
    for position, selector in enumerate(selectors):
        try:
            found.append(_device(nvml, selector.strip(), position))
        except nvml.NVMLError:
            break  # CUDA also ignores the first unknown device and all behind it
    return found


def driver_version() -> str | None:
    """Return the version of the NVIDIA driver; None without one."""
    version: str | None = _of_driver("nvmlSystemGetDriverVersion")
    return version


def cuda_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, as (major, minor); None if it is unknown."""
    number = _of_driver("nvmlSystemGetCudaDriverVersion_v2")  # 12020 is 12.2
    return None if number is None else (number // 1000, number % 1000 // 10)


def _of_driver(query: str) -> Any:
    """Return the driver's answer to a query of NVML; None without a driver or an answer."""
    if (nvml := _nvml()) is not None:
        with contextlib.suppress(nvml.NVMLError):
            return getattr(nvml, query)()
    return None


def num_cores() -> int:
    """Return the CPU cores that this process may use, by affinity and by its container's quota."""
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
    """Return the name of the loopback network interface; None if there is none."""
    names = {name for _, name in socket.if_nameindex()}
    return next((name for name in ("lo", "lo0") if name in names), None)


def gpu_use() -> list[dict[str, float]]:
    """Return `index`, `use_percent`, `memory_bytes`, `power_w` of each visible GPU, if NVML reports them."""
    nvml = _nvml()
    readings: dict[str, Callable[[Any], float]] = {
        "use_percent": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory_bytes": lambda handle: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "power_w": lambda handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    }
    rows = []
    for handle, index in _handles():
        row = {"index": float(index)}
        for key, read in readings.items():
            with contextlib.suppress(nvml.NVMLError):  # a MIG instance reports less
                row[key] = float(read(handle))
        rows.append(row)
    return rows


@functools.cache
def _nvml() -> Any:
    """Return the initialised NVML module, or None; imports it (megabytes) only where the driver's library exists."""
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
    index, capability = position, None
    with contextlib.suppress(nvml.NVMLError):  # a MIG instance has none
        index = int(nvml.nvmlDeviceGetIndex(handle))
    with contextlib.suppress(nvml.NVMLError):
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = (int(major), int(minor))
    uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Device(index, uuid, name, int(memory.total), int(memory.used), _holders(nvml, handle), selector, capability)


def _holders(nvml: Any, handle: Any) -> tuple[Holder, ...]:
    found, running = [], []
    with contextlib.suppress(nvml.NVMLError):
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    for item in running:
        name, owner, run = "?", "?", None
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(item.pid)
            name, owner = process.name(), process.username()
            run = process.environ().get(RUN_ID_VARIABLE)  # fails for processes of other users
        used = item.usedGpuMemory
        found.append(Holder(int(item.pid), name, owner, None if used is None else int(used), run))
    return tuple(found)
