"""What the machine has: cores for real, GPUs for real where there are any, else through a stand-in for NVML."""

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fixture_types import MonkeyPatch

from nbtools.machine import devices as module
from nbtools.machine.devices import Holder, cuda_version, devices, driver_version, gpu_use, num_cores


class NVML:
    """As much of the `pynvml` module as is used, for a machine with two GPUs."""

    class NVMLError(Exception):
        pass

    UUIDS = ("GPU-aaaa", "GPU-bbbb")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index not in (0, 1):
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in self.UUIDS:
            raise self.NVMLError
        return self.UUIDS.index(uuid)

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.UUIDS[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Stand-in 9000"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 * 2**30, used=handle * 2**30)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> list[int]:
        if handle:
            raise self.NVMLError
        return [9, 0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)] if handle else []

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise self.NVMLError

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 12_080


@pytest.fixture
def two_gpus(monkeypatch: MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "_nvml", NVML)
    module._handles.cache_clear()
    yield
    module._handles.cache_clear()


def test_gpus_are_listed_with_memory_and_holders(two_gpus: None) -> None:
    first, second = devices()
    assert (first.index, first.name, first.memory_total_bytes) == (0, "Stand-in 9000", 80 * 2**30)
    assert (first.holders, second.memory_used_bytes) == ((), 2**30)
    me = psutil.Process()
    assert second.holders == (Holder(os.getpid(), me.name(), me.username(), None),)
    assert (first.compute_capability, second.compute_capability) == ((9, 0), None)
    assert driver_version() == "580.1"


def test_the_newest_cuda_version_is_the_drivers(two_gpus: None, monkeypatch: MonkeyPatch) -> None:
    assert cuda_version() == (12, 8)

    def unknown(self: NVML) -> int:
        raise NVML.NVMLError

    monkeypatch.setattr(NVML, "nvmlSystemGetCudaDriverVersion_v2", unknown)
    assert cuda_version() is None


def test_a_holder_is_named_by_its_run_and_the_caller_as_itself(two_gpus: None, monkeypatch: MonkeyPatch) -> None:
    environment = {**os.environ, "NBTOOLS_RUN_ID": "2026-01-31_142233_tiny"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as other:
        other.stdout.readline()  # Popen returns inside exec, before /proc/PID/environ is set

        def running(self: NVML, handle: int) -> list[Any]:
            return [SimpleNamespace(pid=pid, usedGpuMemory=3 * 2**29) for pid in (other.pid, os.getpid())]

        monkeypatch.setattr(NVML, "nvmlDeviceGetComputeRunningProcesses", running)
        theirs, own = devices()[0].holders
        other.communicate(b"\n")
    owner = psutil.Process().username()
    assert str(theirs) == f"another run of nbtools: 2026-01-31_142233_tiny (pid {other.pid}, {owner}, 1.5 GiB)"
    assert (theirs.is_caller, own.is_caller) == (False, True)
    assert str(own) == f"this process (pid {os.getpid()}, {owner}, 1.5 GiB)"
    kernel = SimpleNamespace(IPKernelApp=SimpleNamespace(initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", kernel)
    assert str(own).startswith("this notebook's kernel (pid")


@pytest.mark.promise("guide-A3")
@pytest.mark.parametrize(
    ("visible", "indices"),
    [("1", [1]), ("1,0", [1, 0]), ("GPU-bbbb", [1]), ("", []), ("-1", []), ("0,7,1", [0]), ("MIG-unknown", [])],
)
def test_cuda_visible_devices_filters_and_orders_as_it_does_for_cuda(
    two_gpus: None, monkeypatch: MonkeyPatch, visible: str, indices: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.index for device in devices()] == indices
    assert visible != "GPU-bbbb" or devices()[0].selector == visible


@pytest.mark.promise("guide-A17", "guide-M9", "guide-G10")
def test_use_has_what_the_device_tells_and_no_more(two_gpus: None) -> None:
    assert gpu_use() == [
        {"index": 0.0, "use_percent": 50.0, "memory_bytes": 0.0},
        {"index": 1.0, "use_percent": 50.0, "memory_bytes": float(2**30)},
    ]


def test_without_a_driver_there_are_no_gpus_and_no_error(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_nvml", lambda: None)
    assert (devices(), driver_version(), cuda_version(), gpu_use()) == ([], None, None, [])


def test_asking_for_gpus_for_real_never_raises_and_imports_no_torch() -> None:
    program = (
        "import sys; from nbtools.machine.devices import *; devices(); driver_version(); print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "False"


def test_cores_are_those_of_the_affinity_mask() -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from nbtools.machine.devices import num_cores; print(num_cores())"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "1"
    assert 1 <= num_cores() <= (os.cpu_count() or 1)
