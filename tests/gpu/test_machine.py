"""What nbtools says of a GPU, against what torch says: NVML's readings, lack of memory, the speed of each precision."""

import os
import re
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import nbtools as nt
from nbtools.machine.devices import cuda_version, devices, driver_version, gpu_use
from nbtools.machine.processes import members
from nbtools.notebook.panel import html
from nbtools.project import Project
from nbtools.run.state import RunState
from nbtools.training.engine.precision import set_tf32, slowdown, warning

# A launch warns that this process holds memory on the GPU.
pytestmark = [pytest.mark.slow, pytest.mark.gpu, pytest.mark.filterwarnings("default")]

GIB = 2**30
Record = Callable[[str, object], None]


# --- NVML -------------------------------------------------------------------------------------------


def test_nvml_and_torch_see_the_same_gpus(record_property: Record) -> None:
    of_torch = {}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        of_torch[f"GPU-{properties.uuid}"] = properties
    found = {device.uuid: device for device in devices()}
    assert found.keys() == of_torch.keys()
    for uuid, device in found.items():
        assert device.name == of_torch[uuid].name
        # torch leaves out what the driver keeps for itself.
        assert device.memory_total_bytes == pytest.approx(of_torch[uuid].total_memory, rel=0.05)
        assert 0 <= device.memory_used_bytes < device.memory_total_bytes
        record_property(device.name, f"{device.memory_total_bytes / GIB:.1f} GiB")


def test_the_driver_is_new_enough_for_this_torch() -> None:
    newest = cuda_version()
    assert driver_version() is not None and newest is not None
    assert newest[0] >= int((torch.version.cuda or "0").split(".")[0])


@pytest.fixture
def held() -> Iterator[int]:
    """Hold two GiB on the first GPU; returns what NVML had said before of the GPU's memory in use."""
    torch.cuda.init()
    torch.cuda.empty_cache()
    before = devices()[0].memory_used_bytes
    block = torch.ones(2 * GIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    yield before
    del block
    torch.cuda.empty_cache()


def test_memory_and_its_owners_are_those_that_torch_names(held: int, record_property: Record) -> None:
    device = devices()[0]
    assert device.memory_used_bytes - held >= 2 * GIB * 0.99
    free, total = torch.cuda.mem_get_info(0)
    assert device.memory_used_bytes == pytest.approx(total - free, abs=2 * GIB)
    said = torch.cuda.list_gpu_processes(0)
    owners = {int(pid) for pid in re.findall(r"process +(\d+) uses", said)}
    assert {holder.pid for holder in device.holders} == owners, said
    own = [holder for holder in device.holders if holder.is_caller]
    # In a container, the driver may name processes by numbers that mean nothing there.
    assert len(own) == (os.getpid() in owners)
    assert all(holder.memory_bytes is None or holder.memory_bytes >= 2 * GIB for holder in own)
    record_property("owners", ", ".join(map(str, device.holders)) or "none told")


def test_use_is_read(held: int, record_property: Record) -> None:
    row = gpu_use()[0]
    assert row["index"] == devices()[0].index
    assert row["memory_bytes"] >= 2 * GIB
    assert 0 <= row["use_percent"] <= 100
    assert 0 < row["power_w"] < 5000
    record_property("power", f"{row['power_w']:.0f} W")


# --- lack of memory ---------------------------------------------------------------------------------

ALLOCATES = """\
import torch

def train():
    kept = []
    while True:
        kept.append(torch.ones(2**30, dtype=torch.uint8, device="cuda"))

train()
"""


def test_a_gpu_that_runs_out_of_memory_is_told_in_words_with_the_setting_to_change(
    project: Project, record_property: Record
) -> None:
    script = project.scripts / "allocates.py"
    script.write_text(ALLOCATES)
    before = devices()[0].memory_used_bytes
    run = nt.launch(script, nproc_per_node=1, gpus=(devices()[0].index,))
    assert run.wait(timeout_s=120, check=False) is RunState.FAILED
    found = run.failure
    assert found is not None
    assert found.message.startswith("the GPU ran out of memory ("), found.message
    assert re.match(r"scripts/allocates.py:\d+ in train: kept.append\(", found.where or "")
    assert "CUDA out of memory" in (found.traceback or "")
    assert "batch_size" in (found.advice or "")
    card = html.failure(found, str(run.files.log))
    assert "the GPU ran out of memory" in card and "Lower batch_size" in card
    assert members(run.files) == []
    deadline = time.monotonic() + 20
    while devices()[0].memory_used_bytes > before + GIB:
        assert time.monotonic() < deadline, "the run has ended, and its memory is not free"
        time.sleep(0.1)
    record_property("card", found.headline)


# --- precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_gpu_made_for_16_bits_is_not_told_to_use_fp32(name: str, record_property: Record) -> None:
    device = torch.device("cuda", 0)
    record_property("time against fp32", f"{slowdown(device, name):.2f}")
    if torch.cuda.get_device_capability() >= (8, 0):
        assert warning(device, name) == ""


def test_tf32_is_on_in_all_but_fp32(record_property: Record) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU is older than TF32")
    device = torch.device("cuda", 0)
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 512, 512, generator=generator)
    exact = one.double() @ other.double()

    def error(precision: str) -> float:
        set_tf32(device, precision)
        product = (one.to(device) @ other.to(device)).cpu().double()
        return float((product - exact).norm() / exact.norm())

    try:
        errors = {precision: error(precision) for precision in ("fp32", "tf32", "bf16")}
    finally:
        set_tf32(device, "fp32")
    assert errors["fp32"] < 1e-5 < errors["tf32"] == errors["bf16"] < 1e-2, "products outside autocast are in TF32"
    record_property("relative error", ", ".join(f"{name} {value:.1e}" for name, value in errors.items()))
