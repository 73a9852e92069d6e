"""Every recipe on a GPU: trains, saves, stops and goes on, in TF32, bf16 and fp16."""

import json
import math
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import nbtools as nt
from nbtools.config import TrainConfig
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.checkpoints import checkpoints_in
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.optimizer import Optimizer

from trainings import rows, train_here

# Other builds of torch warn of other things, and a launch warns that this process holds memory on the GPU.
pytestmark = [pytest.mark.slow, pytest.mark.gpu(on_cpu=True), pytest.mark.filterwarnings("default")]

ON_GPU = torch.cuda.is_available()
Record = Callable[[str, object], None]

CHANGES: dict[str, dict[str, Any]] = {
    "mlm_pretraining": {},
    "masked_diffusion": {"eval_draws": 64},
    "text_classification": {},
    "algorithm_distillation": {"num_histories": 20, "num_episodes": 50, "eval_rollouts": 2, "eval_episodes": 8},
    # The generator learns alone, then the judge, and from step 36 on they play.
    "llm_gan": {
        "batch_size": 32,
        "generator_warmup_steps": 30,
        "judge_warmup_steps": 5,
        "judge_accuracy": 0.0,
        "eval_samples": 32,
    },
}
"""What differs from each recipe's preset for two CPU cores, so that 50 steps need few seconds."""


def small(recipe: str, **changes: Any) -> TrainConfig:
    """The recipe's preset for two CPU cores, with 50 steps, a row for each, and a checkpoint in the middle."""
    values = {**RECIPES[recipe].presets["cpu_demo"].values, **CHANGES[recipe], "epochs": 1000, "max_steps": 50}
    values |= {"log_every": 1, "eval_every": 1000, "checkpoint_every": 25, "keep_last": 5, "dropout": 0.1}
    return RECIPES[recipe].config_class(**{**values, **changes})


def losses(found: list[dict[str, Any]]) -> list[float]:
    """The loss of every step that has one; in steps of the game alone `llm_gan` has none."""
    return [float(row["train/loss"]) for row in found if "train/loss" in row]


def assert_falling(values: list[float]) -> str:
    """All values are finite, and the last five are lower than the first five; returns both means."""
    assert len(values) >= 10
    assert all(map(math.isfinite, values))
    first, last = sum(values[:5]) / 5, sum(values[-5:]) / 5
    assert last < first
    return f"{first:.3f} to {last:.3f}"


@pytest.mark.parametrize(
    "precision",
    [
        "tf32",
        "bf16",
        pytest.param("fp16", marks=pytest.mark.gpu),  # on a CPU some 70 times slower
    ],
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_learns_stops_and_goes_on_with_the_same_loss(
    recipe: str, precision: str, project: Project, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    config = small(recipe, precision=precision)
    real = Optimizer.step

    def told_to_stop(optimizer: Optimizer, step: int, *rate: float) -> None:
        if step == 40:
            signal.raise_signal(signal.SIGTERM)
        real(optimizer, step, *rate)

    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", told_to_stop)
        first = train_here(project, config, monkeypatch=monkeypatch)
    finished = read_json(first.finished) or {}
    assert (finished["why"], finished["step"]) == ("stopped", 40)
    saved = {found.step: found.path for found in checkpoints_in(first.checkpoints)}
    assert set(saved) == {25, 40}

    second = train_here(project, config, saved[25], monkeypatch=monkeypatch)
    assert (read_json(second.finished) or {})["why"] == "completed"
    before, after = rows(first), rows(second)
    tested = after.pop()  # the best checkpoint on the test samples
    assert tested["step"] == 50 and any(name.startswith("test/") for name in tested)
    assert [row["step"] for row in before] == list(range(1, 41))
    assert [row["step"] for row in after] == list(range(26, 51))
    # The first forward pass has the same weights, samples and random numbers (dropout's come from the GPU itself).
    assert losses(after)[0] == pytest.approx(losses(before)[25], rel=1e-4)
    assert all(math.isfinite(value) for row in after for name, value in row.items() if name.endswith("loss"))
    if precision == "fp16":
        assert all(row["train/loss_scale"] >= 1 for row in after)
    assert_on_gpu(first)

    record_property("loss", assert_falling(losses(before[:25]) + losses(after)))
    if ON_GPU:
        record_property("peak memory", f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


def assert_on_gpu(files: RunDir) -> None:
    """The training used the GPU, where there is one, and says which."""
    environment = (read_json(files.config) or {})["environment"]
    assert environment["device"] == ("cuda:0" if ON_GPU else "cpu")
    assert environment["device_name"] == (torch.cuda.get_device_name(0) if ON_GPU else "CPU")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_launched_recipe_is_stopped_and_resumed(
    recipe: str, project: Project, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    # As many steps as it takes until it is stopped: a constant rate does not depend on their number.
    changes = {"lr_schedule": "constant", "warmup_ratio": 0.0, "checkpoint_every": 1_000_000}
    config = small(recipe, max_steps=1_000_000, epochs=1_000_000, **changes)
    if recipe == "llm_gan":
        config = config.replace(generator_warmup_steps=500_000)
    started = time.monotonic()
    first = nt.launch(nt.write_script(config, "trained", nt.Launch(nproc_per_node=1)))
    until_step(first, 25)
    record_property("step 25 after", f"{time.monotonic() - started:.1f} s")
    first.stop()
    assert first.state is RunState.STOPPED
    stopped_at = first.checkpoints[-1].step
    assert stopped_at == first.step >= 25

    second = nt.resume(first, args=["--max-steps", str(stopped_at + 25)])
    assert second.wait(timeout_s=120) is RunState.SUCCEEDED
    assert second.step == stopped_at + 25
    assert second.checkpoints[-1].step == stopped_at + 25
    steps = second.history["train/loss"].steps
    assert list(steps) == list(range(1, stopped_at + 26)), "the curves of both are one"
    record_property("loss", assert_falling([float(value) for value in second.history["train/loss"].values]))
    assert_on_gpu(first.files)
    if ON_GPU:
        used = [json.loads(line)["gpus"][0]["memory_bytes"] for line in first.files.system.read_text().splitlines()]
        assert max(used) > 2**28, "the supervisor has seen the memory that a CUDA context alone takes"


def until_step(run: Run, step: int, timeout_s: float = 120) -> None:
    """Wait until a run has logged `step`."""
    deadline = time.monotonic() + timeout_s
    while run.step < step:
        assert not run.state.is_final, run.log()
        assert time.monotonic() < deadline, run.log()
        time.sleep(0.1)
