"""Non-finite gradients and weights: a step is skipped on all ranks alike, counted, and no checkpoint loses its use."""

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixture_types import Train
from safetensors.torch import load_file

from nbtools.config import TrainConfig
from nbtools.errors import DivergedError
from nbtools.notebook.panel.snapshot import notes_of
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.checkpoints import checkpoints_in, newest_verified
from nbtools.run.run import Run
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.outputs.tally import Tally

from trainings import TINY, ByHand, rows, write_inputs


@pytest.fixture(params=RECIPES)
def key(request: pytest.FixtureRequest, cpu_project: Project) -> str:
    """Each recipe, with its data in the project."""
    write_inputs(request.param, cpu_project)
    return str(request.param)


def tiny(key: str, **changes: Any) -> TrainConfig:
    return RECIPES[key].config_class(**{**TINY[key], **changes})


def break_gradients(patch: pytest.MonkeyPatch, is_broken: Callable[[int], bool], value: float = math.nan) -> list[bool]:
    """Put a non-finite number into a gradient of the chosen optimizer steps (from 1).

    Returns whether weights and moments stayed equal to the bit, per broken step.
    """
    real, kept = Optimizer.step, []
    count = 0

    def step(optimizer: Optimizer, step: int, rate: float | None = None) -> None:
        nonlocal count
        count += 1
        if not is_broken(count):
            real(optimizer, step, rate)
            return
        weight = random.Random(count).choice([one for one in optimizer.weights if one.grad is not None])
        assert weight.grad is not None
        weight.grad.view(-1)[-1] = value
        before = [one.detach().clone() for one in optimizer.weights]
        moments = [each.clone() for state in optimizer.adamw.state.values() for each in state.values()]
        real(optimizer, step, rate)
        after = [each for state in optimizer.adamw.state.values() for each in state.values()]
        is_same = all(torch.equal(*pair) for pair in zip(before, optimizer.weights, strict=True))
        # The first step makes the moments.
        is_same &= all(torch.equal(*pair) for pair in zip(moments, after, strict=False))
        kept.append(is_same and all(bool(torch.isfinite(each).all()) for each in after))

    patch.setattr(Optimizer, "step", step)
    return kept


def assert_finite(files: RunDir) -> None:
    """Every kept checkpoint verifies and has finite weights."""
    saved = checkpoints_in(files.checkpoints)
    assert saved
    for found in saved:
        found.verify()
        weights = [load_file(path) for path in found.path.rglob("*.safetensors")]
        assert weights
        assert all(bool(torch.isfinite(value).all()) for one in weights for value in one.values())


@pytest.mark.promise("safety-non-finite")
@pytest.mark.slow
def test_one_non_finite_gradient_costs_its_step_only(key: str, trained: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN and an infinity, each at another step."""
    last = TINY[key]["max_steps"]
    for trial, (precision, value) in enumerate([("fp32", math.nan), ("bf16", -math.inf)]):
        place = 1 + (trial * 5) % last
        config = tiny(key, precision=precision, seed=trial, eval_every=last, checkpoint_every=last)
        with monkeypatch.context() as patch:
            kept = break_gradients(patch, lambda count, place=place: count == place, value)  # type: ignore[misc]
            files = trained(config)
        assert kept == [True]
        made = rows(files)
        assert made[-1]["step"] == last
        assert made[-1]["train/skipped_steps"] == 1
        assert_finite(files)


@pytest.mark.promise("safety-non-finite")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_run_fails_after_max_skipped_steps_and_resumes_from_finite_weights(
    precision: str, texts: Project, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("mlm_pretraining", precision=precision, checkpoint_every=1, keep_last=1, max_skipped_steps=3)
    with monkeypatch.context() as patch:
        break_gradients(patch, lambda count: count > 2)
        with pytest.raises(SystemExit, match=r"DivergedError: step 5: the gradient norm is nan.* in 3 consecutive"):
            trained(config)
    run = Run(run_folders(texts.runs)[0])
    assert run.failure is not None
    assert "max_skipped_steps=3" in run.failure.headline
    assert run.metrics["train/skipped_steps"] == 2
    assert "2 steps skipped: the gradient norm was not finite" in notes_of(run, [])
    assert_finite(run.files)
    newest, reasons = newest_verified(run.files.checkpoints)
    assert newest is not None
    assert not reasons
    resumed = trained(config, newest.path)
    assert rows(resumed)[-1]["step"] == 6
    assert rows(resumed)[-1]["train/skipped_steps"] >= 2
    assert_finite(resumed)


def test_healthy_steps_between_skipped_ones_start_the_count_again(
    texts: Project, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_gradients(monkeypatch, lambda count: count % 3 != 0)
    files = trained(tiny("mlm_pretraining", max_skipped_steps=3))
    assert rows(files)[-1]["train/skipped_steps"] == 4


def test_search_for_a_loss_scale_is_no_divergence() -> None:
    weight = torch.nn.Parameter(torch.ones(1, 1))
    model = torch.nn.Module()
    model.weight = weight
    config = TrainConfig(precision="fp16", max_skipped_steps=4)
    optimizer = Optimizer(model, config, 100, torch.device("cpu"))
    steps = 0
    while optimizer.metrics().get("train/loss_scale", 0.0) > 2.0**-3:  # every step overflows
        optimizer.backward(weight.sum() * math.inf)
        optimizer.step(steps := steps + 1)
    assert steps == 19
    optimizer.backward(weight.sum() * math.inf)
    with pytest.raises(DivergedError, match="20 consecutive"):
        optimizer.step(steps + 1)


@pytest.mark.promise("safety-non-finite")
@pytest.mark.parametrize(("strategy", "precision"), [("ddp", "fp32"), ("fsdp", "fp32"), ("fsdp", "fp16")])
def test_all_ranks_skip_a_step_that_is_broken_on_one(
    strategy: str, precision: str, texts: Project, start: ByHand
) -> None:
    """NaN on rank 1 alone; sharded ranks hold different rows, and fp16 lowers its loss scale on both."""
    more = (
        "import math, os, torch\nfrom nbtools.training.engine.optimizer import Optimizer\n"
        "from nbtools.training.sharding.fsdp import own_part\n"
        "backward, step, count = Optimizer.backward, Optimizer.step, [0]\n"
        "def broken(self, loss):\n    count[0] += 1\n"
        "    backward(self, loss * math.nan if os.environ['RANK'] == '1' and count[0] == 3 else loss)\n"
        "def saved(self, *args):\n    step(self, *args)\n"
        "    kept = [own_part(one.detach()) for one in self.weights], self.metrics().get('train/loss_scale')\n"
        "    torch.save(kept, f\"weights-{os.environ['RANK']}-{args[0]}.pt\")\n"
        "Optimizer.backward, Optimizer.step = broken, saved\n"
    )
    run = start.forked(tiny("mlm_pretraining", batch_size=4, strategy=strategy, precision=precision), more=more)
    assert run.metrics["train/skipped_steps"] == 1

    def kept(rank: int, step: int) -> tuple[list[torch.Tensor], float | None]:
        saved: tuple[list[torch.Tensor], float | None]
        saved = torch.load(texts.root / f"weights-{rank}-{step}.pt", weights_only=True)
        return saved

    def are_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(torch.equal(*pair) for pair in zip(one, other, strict=True))

    for step in range(1, 7):
        assert strategy == "fsdp" or are_equal(kept(0, step)[0], kept(1, step)[0])
        assert kept(0, step)[1] == kept(1, step)[1]
    for rank in range(2):
        assert are_equal(kept(rank, 2)[0], kept(rank, 3)[0])
        assert not are_equal(kept(rank, 3)[0], kept(rank, 4)[0])
        before, after = (kept(rank, step)[1] for step in (2, 3))
        assert after == (before and before / 2)
    assert_finite(run.files)


@pytest.mark.promise("safety-non-finite")
def test_checkpoint_with_non_finite_weights_is_not_written(
    texts: Project, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("mlm_pretraining", checkpoint_every=2, keep_last=1)
    real = Optimizer.step

    def step(optimizer: Optimizer, step: int, rate: float | None = None) -> None:
        real(optimizer, step, rate)
        if step == 4:
            optimizer.weights[0].data.view(-1)[0] = math.inf

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", step)
        with pytest.raises(SystemExit, match="some weights are not finite after step 4: no checkpoint"):
            trained(config)
    run = Run(run_folders(texts.runs)[0])
    assert [found.step for found in run.checkpoints] == [2]
    assert_finite(run.files)
    # Weights that an older program saved are refused by name.
    weights = load_file(next(run.checkpoints[0].path.rglob("*.safetensors")))
    next(iter(weights.values())).view(-1)[0] = math.nan
    torch.save(weights, texts.root / "weights.pt")
    with pytest.raises(SystemExit, match=r"weights are not finite \(.*resume from an earlier checkpoint"):
        trained(config, texts.root / "weights.pt")


def test_infinite_loss_with_finite_gradients_is_a_step_like_any_other(
    texts: Project, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target of probability 0 has an infinite loss and a finite gradient; the curve shows it, the step is done."""
    straight = trained(tiny("mlm_pretraining"))
    real = Tally.add
    patched = functools.partialmethod(lambda self, **values: real(self, **{**values, "loss": math.inf}))
    monkeypatch.setattr(Tally, "add", patched)
    files = trained(tiny("mlm_pretraining"))
    assert {row["train/loss"] for row in rows(files)} == {"Infinity"}
    assert "train/skipped_steps" not in rows(files)[-1]
    one, other = (checkpoints_in(each.checkpoints)[-1].manifest["files"] for each in (straight, files))
    assert one["model/model.safetensors"] == other["model/model.safetensors"]
