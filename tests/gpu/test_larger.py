"""Trainings for models that are larger than a GPU: FSDP2 on one rank, and LoRA on a model of LLaDA-8B's shape."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_memory import assert_peak_is_that_of_the_form
from safetensors.torch import save_file

from nbtools.launcher.checks.sizes import num_trainable_parameters
from nbtools.project import Project
from nbtools.recipes import RECIPES, MaskedDiffusionConfig
from nbtools.rundir.json_files import read_json
from nbtools.training.masked_diffusion.llada import LLaDAConfig, LLaDAModelLM

from trainings import TINY, rows, train_here, write_inputs

pytestmark = [pytest.mark.slow, pytest.mark.gpu(on_cpu=True), pytest.mark.filterwarnings("default")]
pytestmark += [pytest.mark.usefixtures("fresh_memory")]

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
LEAST_BYTES = 40 * 10**9
"""Memory of a GPU that holds 8 billion frozen weights of 16 bits and what a step needs."""
LLADA_TINY = Path(__file__).parents[1] / "training" / "masked_diffusion" / "llada_tiny"
LLADA_8B = {"d_model": 4096, "n_heads": 32, "n_kv_heads": 32, "n_layers": 32, "mlp_hidden_size": 12_288}
LLADA_8B |= {"embedding_size": 126_464, "vocab_size": 126_464, "max_sequence_length": 4096}
Record = Callable[[str, object], None]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_sharded_rank_trains_and_resumes_as_ddp_does(
    precision: str,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Record,
    fresh_memory: Callable[[], None],
) -> None:
    write_inputs("mlm_pretraining", project)
    monkeypatch.chdir(project.root)
    size = {"num_layers": 12, "hidden_size": 1024, "num_heads": 16} if ON_GPU else {}
    values = {**TINY["mlm_pretraining"], **size, "precision": precision, "learning_rate": 1e-4, "log_every": 1}
    config = RECIPES["mlm_pretraining"].config_class(**values)
    whole = rows(train_here(project, config, monkeypatch=monkeypatch))
    fresh_memory()
    sharded = config.replace(strategy="fsdp")
    files = train_here(project, sharded, monkeypatch=monkeypatch)
    tolerance = 1e-4 if precision == "fp32" else 0.03
    for row, expected in zip(rows(files), whole, strict=True):
        assert row["train/loss"] == pytest.approx(expected["train/loss"], rel=tolerance)
    resumed = rows(train_here(project, sharded, files.checkpoint(3), monkeypatch=monkeypatch))
    later = [row["train/loss"] for row in rows(files) if row["step"] > 3]
    assert [row["train/loss"] for row in resumed] == pytest.approx(later, rel=1e-3)
    assert_peak_is_that_of_the_form(files, sharded, record_property)


def write_random_llada(folder: Path, changes: dict[str, Any]) -> None:
    """Write a LLaDA of random weights in bf16, one file for each block, and one for the rest."""
    folder.mkdir()
    for path in LLADA_TINY.glob("tokenizer*"):
        shutil.copy(path, folder)
    settings = json.loads((LLADA_TINY / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(settings))
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in LLaDAModelLM(LLaDAConfig(**settings)).named_parameters()}
    places = {name: f"model-{name.split('.')[3] if '.blocks.' in name else 'rest'}.safetensors" for name in shapes}
    for file in sorted({*places.values()}):
        weights = {name: torch.randn(shapes[name], device=DEVICE) for name, place in places.items() if place == file}
        weights = {name: 0.02 * weight if weight.ndim > 1 else weight.fill_(1) for name, weight in weights.items()}
        save_file({name: weight.bfloat16().cpu() for name, weight in weights.items()}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_lora_on_a_llada_of_8_billion_random_weights_takes_the_memory_of_the_form(
    strategy: str, project: Project, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    if ON_GPU and torch.cuda.get_device_properties(0).total_memory < LEAST_BYTES:
        pytest.skip("needs a GPU of 40 GB")
    write_random_llada(project.root / "llada", LLADA_8B if ON_GPU else {"n_layers": 3})
    monkeypatch.chdir(project.root)
    values = {**TINY["masked_diffusion"], "model_name": "llada", "adapter": "lora", "precision": "bf16"}
    values |= {"batch_size": 4, "sequence_length": 512 if ON_GPU else 16, "max_steps": 3, "log_every": 1}
    values |= {"eval_every": 3, "checkpoint_every": 3, "eval_draws": 4, "sample_texts": 0, "epochs": 1, "dataset": None}
    config = MaskedDiffusionConfig(**values, strategy=strategy)
    files = train_here(project, config, monkeypatch=monkeypatch)
    assert all(math.isfinite(row["train/loss"]) for row in rows(files))
    assert (read_json(files.config) or {})["derived"]["num_trained_parameters"] == num_trainable_parameters(config)
    assert sum(path.stat().st_size for path in files.checkpoint(3).rglob("*.safetensors")) < 2e9, "the adapter alone"
    assert_peak_is_that_of_the_form(files, config, record_property)
