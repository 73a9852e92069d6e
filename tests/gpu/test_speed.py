"""Figures of speed and memory on a GPU: use of a GPU of a large step, peak memory, compilation, a step of the GAN."""

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_memory import assert_peak_is_that_of_the_form
from transformers import ModernBertConfig, ModernBertForMaskedLM

from nbtools.config import TrainConfig
from nbtools.launcher.checks.sizes import memory_of, num_trainable_parameters
from nbtools.project import Project
from nbtools.recipes import RECIPES, MaskedDiffusionConfig
from nbtools.recipes.built_models import modernbert_settings
from nbtools.training.engine import optimizer as optimizer_module
from nbtools.training.engine.optimizer import Optimizer, autocast, compile_forward
from nbtools.training.engine.precision import matmul_rate
from nbtools.training.masked_diffusion.model import Denoiser

from trainings import TINY, rows, train_here, write_inputs

pytestmark = [pytest.mark.slow, pytest.mark.gpu(on_cpu=True), pytest.mark.filterwarnings("default")]
pytestmark += [pytest.mark.usefixtures("fresh_memory")]

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
Record = Callable[[str, object], None]


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


# --- a large step ---------------------------------------------------------------------------------


def large(num_layers: int) -> MaskedDiffusionConfig:
    """Of 26 layers, a model of 1.0 billion weights."""
    size = {"num_layers": num_layers, "num_heads": 16, "hidden_size": 2048} if ON_GPU else {"num_layers": 1}
    batch, length = (8, 1024) if ON_GPU else (2, 64)
    size |= {"batch_size": batch, "sequence_length": length, "vocab_size": 32_000 if ON_GPU else 100}
    return MaskedDiffusionConfig(**size, precision="bf16" if ON_GPU else "fp32")


def fastest_step(config: MaskedDiffusionConfig, num_steps: int) -> tuple[float, float, float]:
    """Train with half of the tokens masked; return the last loss, the fastest step in seconds, and its FLOP/s."""
    batch, length, vocab_size = config.batch_size, config.sequence_length, config.vocab_size
    torch.manual_seed(0)
    with DEVICE:
        settings = modernbert_settings(config, vocab_size)
        settings |= dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id", "sep_token_id", "eos_token_id"))
        denoiser = Denoiser(ModernBertForMaskedLM(ModernBertConfig(**settings)), vocab_size - 1)
        inputs_BT = torch.randint(vocab_size - 1, (batch, length))
        positions_K = torch.arange(0, batch * length, 2)
        labels_K = inputs_BT.flatten()[positions_K]
        batch_parts = inputs_BT, positions_K, labels_K, torch.ones(len(positions_K)), torch.empty(0, dtype=torch.long)
    optimizer, flops = Optimizer(denoiser, config, 100, DEVICE), batch * denoiser.flops(length, length)
    if config.compile:
        compile_forward(denoiser)
    times_s = []
    for step in range(1, 1 + num_steps):
        synchronize()
        began = time.perf_counter()
        with autocast(DEVICE, config.precision):
            loss = denoiser(*batch_parts)
        optimizer.backward(loss / batch)
        optimizer.step(step)
        synchronize()
        times_s.append(time.perf_counter() - began)
    assert optimizer.num_skipped == 0
    return float(loss.detach()), min(times_s[2:]), flops / min(times_s[2:])


def test_a_step_of_masked_diffusion_uses_two_fifths_of_what_a_matrix_product_reaches(record_property: Record) -> None:
    """1.0 billion weights, 8 x 1024 tokens, half of them masked, bf16 with fp32 weights and moments."""
    config = large(26)
    loss, fastest_s, rate = fastest_step(config, 8 if ON_GPU else 3)
    matmul = matmul_rate(DEVICE, config.precision)
    record_property("weights", f"{num_trainable_parameters(config):,}")
    record_property("step", f"{fastest_s:.3f} s, {rate / 1e12:.3g} of {matmul / 1e12:.3g} TFLOP/s: {rate / matmul:.0%}")
    assert math.isfinite(loss)
    if ON_GPU:
        peak = torch.cuda.max_memory_allocated()
        memory = memory_of(config, 1, config.precision)
        assert memory is not None
        record_property("peak / form", f"{peak / 1e9:.1f} / {memory.total / 1e9:.1f} GB: {peak / memory.total:.2f}")
        assert peak == pytest.approx(memory.total, rel=0.1)
        if torch.cuda.get_device_capability() >= (9, 0):
            assert rate / matmul >= 0.4


def test_compiled_steps_are_faster_and_take_no_more_memory(
    record_property: Record, monkeypatch: pytest.MonkeyPatch, fresh_memory: Callable[[], None]
) -> None:
    """Six of the layers of the large step; the recipes' losses are compared below."""
    if not ON_GPU:
        monkeypatch.setattr(optimizer_module, "COMPILER", "aot_eager")
    config, num_steps = large(6), 8 if ON_GPU else 3
    loss, plain_s, _ = fastest_step(config, num_steps)
    plain_peak = torch.cuda.max_memory_allocated() if ON_GPU else 0
    fresh_memory()
    began = time.perf_counter()
    compiled_loss, compiled_s, rate = fastest_step(config.replace(compile=True), num_steps)
    record_property("step", f"{compiled_s:.4f} s, {plain_s:.4f} s without: {plain_s / compiled_s:.2f} times as fast")
    record_property("seconds with compilation", f"{time.perf_counter() - began:.0f}")
    assert compiled_loss == pytest.approx(loss, rel=0.05)
    if ON_GPU:
        peak = torch.cuda.max_memory_allocated()
        share = rate / matmul_rate(DEVICE, config.precision)
        record_property("peak", f"{peak / 1e9:.2f} GB, {plain_peak / 1e9:.2f} GB without")
        record_property("of a matrix product", f"{share:.0%}")
        assert plain_s / compiled_s >= 1.2
        assert peak <= 1.05 * plain_peak


# --- memory ---------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlm small": ("mlm_pretraining", {"num_layers": 4, "hidden_size": 512, "num_heads": 8}),
    "mlm large": ("mlm_pretraining", {"num_layers": 24, "hidden_size": 1024, "num_heads": 16}),
    "masked_diffusion": ("masked_diffusion", {"num_layers": 12, "hidden_size": 1024, "num_heads": 16}),
    "text_classification": (
        "text_classification",
        {"dataset": None, "num_layers": 12, "hidden_size": 768, "num_heads": 12, "num_hash_buckets": 16_384},
    ),
    "algorithm_distillation": ("algorithm_distillation", {"num_layers": 12, "hidden_size": 1024, "num_heads": 16}),
    "llm_gan": ("llm_gan", {"num_layers": 8, "hidden_size": 512, "num_heads": 8, "kl_to_start": False}),
}


def tiny(recipe: str, project: Project, **changes: Any) -> TrainConfig:
    """The values of a training of a second, with a row for each of a few steps."""
    write_inputs(recipe, project)
    values = {**TINY[recipe], "max_steps": 4, "log_every": 1, "checkpoint_every": 1000, "checkpoint_epochs": False}
    return RECIPES[recipe].config_class(**{**values, **changes})


@pytest.mark.parametrize("name", CONFIGS)
def test_peak_memory_is_that_of_the_form(
    name: str, project: Project, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    recipe, large = CONFIGS[name]
    monkeypatch.chdir(project.root)
    few = {name: value for name, value in large.items() if name == "dataset"}  # generated: the codes are known
    config = tiny(recipe, project, **(large if ON_GPU else few))
    files = train_here(project, config, monkeypatch=monkeypatch)
    assert_peak_is_that_of_the_form(files, config, record_property)


# --- compilation and the GAN ----------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["mlm_pretraining", "llm_gan"])
def test_a_compiled_recipe_has_the_losses_of_one_that_is_not(
    recipe: str, project: Project, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    if not ON_GPU:
        monkeypatch.setattr(optimizer_module, "COMPILER", "aot_eager")
    monkeypatch.chdir(project.root)
    config = tiny(recipe, project, precision="fp32")
    plain = rows(train_here(project, config, monkeypatch=monkeypatch))
    began = time.perf_counter()
    compiled = rows(train_here(project, config.replace(compile=True), monkeypatch=monkeypatch))
    record_property("seconds with compilation", f"{time.perf_counter() - began:.0f}")
    for one, other in zip(plain, compiled, strict=True):
        assert one.keys() == other.keys()
        assert all(other[name] == pytest.approx(one[name], rel=1e-2) for name in one if name == "train/loss")


def test_the_time_of_an_adversarial_step_of_the_gan(
    project: Project, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    size = {"num_layers": 8, "hidden_size": 512, "num_heads": 8, "sequence_length": 128} if ON_GPU else {}
    changes = {"generator_warmup_steps": 1, "judge_warmup_steps": 1, "judge_accuracy": 0.0, "eval_every": 1000}
    config = tiny("llm_gan", project, **size, **changes, max_steps=12 if ON_GPU else 5)
    seen = rows(train_here(project, config, monkeypatch=monkeypatch), without=())
    assert "train/reward" in seen[-1], "the models play"
    times_s = sorted(after["time"] - before["time"] for before, after in itertools.pairwise(seen[2:-1]))
    record_property("step", f"{times_s[len(times_s) // 2]:.3f} s, {config.batch_size} texts")
