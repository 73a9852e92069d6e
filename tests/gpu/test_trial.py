"""A trial on a GPU: its memory against the device, and a search that meets real lacks of memory."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from nbtools.config import Launch
from nbtools.errors import LaunchError
from nbtools.launcher.trial.trial import start_trial
from nbtools.machine.devices import devices
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir
from nbtools.training.trial import measure

from trainings import TINY, write_inputs

pytestmark = [pytest.mark.slow, pytest.mark.gpu, pytest.mark.filterwarnings("default")]

GIB = 2**30
Record = Callable[[str, object], None]


def large(**changes: Any) -> dict[str, Any]:
    """A model of some 60 million weights on the text that ships with Python."""
    values: dict[str, Any] = {"batch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_size": 768, "epochs": 1}
    return {**values, "sequence_length": 128, "vocab_size": 2000, **changes}


@pytest.fixture
def files(project: Project, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    made = RunDir.create(project.root / "elsewhere", "trial")
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(made.path))
    return made


def test_a_trial_in_its_own_process_measures_the_gpu(project: Project, record_property: Record) -> None:
    if any(device.holders for device in devices()[:1]):
        pytest.skip("another test of this process holds the GPU: run this file alone")
    config = RECIPES["mlm_pretraining"].config_class(**large())
    trial = start_trial(config, Launch(), root=project.root)
    result = trial.wait(300)
    assert not result.error, trial.log()
    device, found = devices()[0], result.measured
    assert f"GPU {device.index} ({device.name})" in result.findings[0].text
    peak, reserved = found["peak_bytes"], found["reserved_bytes"]
    assert 16 * found["num_parameters"] < peak <= reserved < device.memory_total_bytes
    assert found["largest_batch"] >= 16
    first_s, *later_s = found["step_s"]
    assert max(later_s) < first_s
    record_property("step", f"{later_s[0] * 1000:.1f} ms")
    record_property("largest batch", f"{found['largest_batch']} ({found['largest_note']})")
    assert not device.holders, "the memory is free again"


@pytest.mark.parametrize("key", RECIPES)
def test_each_recipe_is_measured_on_a_gpu(key: str, project: Project, files: RunDir, record_property: Record) -> None:
    write_inputs(key, project)
    config = RECIPES[key].config_class(**TINY[key])
    answer = measure.measure({"recipe": key, "config": config.model_dump(mode="json"), "world_size": 1})
    assert answer["device"] == "cuda:0"
    assert len(answer["step_s"]) >= 2
    assert 4 * answer["num_parameters"] < answer["peak_bytes"] <= answer["reserved_bytes"]
    assert answer["largest_batch"] >= TINY[key]["batch_size"]
    record_property("largest batch", f"{answer['largest_batch']} ({answer['largest_note']})")


def test_the_search_meets_real_lacks_of_memory_and_frees_what_they_held(
    project: Project, files: RunDir, record_property: Record
) -> None:
    """torch may take 4 GiB only, a quarter of which weights, gradients and moments take."""
    total = torch.cuda.get_device_properties(0).total_memory
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction(4 * GIB / total)
    try:
        config = RECIPES["mlm_pretraining"].config_class(**large(batch_size=256))
        answer = measure.measure(
            {"recipe": "mlm_pretraining", "config": config.model_dump(mode="json"), "world_size": 1}
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert 1 <= answer["largest_batch"] == answer["batch_size"] < 256
    assert "does not fit" in answer["largest_note"]
    assert answer["reserved_bytes"] <= 4 * GIB
    assert torch.cuda.memory_allocated() - before < 2**26
    record_property("largest batch in 4 GiB", f"{answer['largest_batch']} ({answer['largest_note']})")


def test_a_trial_refuses_a_gpu_that_this_process_holds(project: Project) -> None:
    held = torch.zeros(2**20, device="cuda")
    config = RECIPES["mlm_pretraining"].config_class(**large())
    index = torch.cuda.current_device()
    with pytest.raises(LaunchError, match=f"a trial takes no GPU in use: GPU {devices()[index].index} by "):
        start_trial(config, Launch(gpus=(devices()[index].index,)), root=project.root)
    del held
