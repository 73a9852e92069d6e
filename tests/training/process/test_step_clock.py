"""The clock of steps: what is aside counts for nothing, waiting for data is a share of the rest."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.engine.worker import Worker
from nbtools.training.process.step_clock import StepClock, training_flops

from trainings import CLOCKED, TINY, rows, train_here, write_inputs

LLADA = Path(__file__).parents[1] / "masked_diffusion" / "llada_tiny"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves on."""
    time_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: time_s[0])
    return time_s


def test_a_row_has_throughput_and_the_share_of_waiting_without_what_was_aside(now: list[float]) -> None:
    clock = StepClock(torch.device("cpu"))
    clock.start(1000)
    assert clock.take() is None, "no row yet"
    with clock.waiting():
        now[0] += 2
    with clock.aside():
        now[0] += 50
    now[0] += 6
    assert clock.samples_per_s(1080) == 10
    assert clock.take() == (0.25, 10, 0)
    assert clock.take() is None, "each is told once"
    now[0] += 4
    assert clock.samples_per_s(1084) == 1
    assert clock.take() == (0, 1, 0)


def test_rows_of_training_alone_say_how_long_they_waited(tiny_training: Callable[..., RunDir]) -> None:
    files = tiny_training(max_steps=4, log_every=2, eval_every=3)
    parsed = {row["step"]: row for row in rows(files, without=())}
    assert [step for step, row in parsed.items() if "train/data_wait" in row] == [2, 4]
    assert all(0 <= parsed[step]["train/data_wait"] <= 1 for step in (2, 4))
    # A CPU has neither a peak nor a rate to compare with.
    assert not {"train/mfu", "system/peak_memory_gb"} & {name for row in parsed.values() for name in row}
    assert "train/data_wait" in CLOCKED


def test_on_a_gpu_a_row_compares_the_rate_with_that_of_a_matrix_product_and_has_the_peak() -> None:
    clock = SimpleNamespace(take=lambda: (0.1, 30.0, 12.5))
    asked: list[list[float]] = []
    ranks = SimpleNamespace(max=lambda values: asked.append(values) or [0.2, 14.0])
    worker = SimpleNamespace(_clock=clock, ranks=ranks, world_size=1, _peak_samples_per_s=60.0)
    row = Worker._step_metrics(cast(Worker, worker))
    assert row == {"train/data_wait": 0.2, "train/mfu": 0.5, "system/peak_memory_gb": 14.0}
    assert asked == [[0.1, 12.5]], "the largest of all ranks"


# --- FLOPs ----------------------------------------------------------------------------------------


def bert(project: Project) -> str:
    """A BERT of another program, whose head is its table of tokens and a layer before it."""
    folder, special = project.root / "bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*special, *(f"w{number}" for number in range(40))]))
    BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    BertForMaskedLM(BertConfig(vocab_size=45, **size)).save_pretrained(folder)
    return "bert"


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("mlm_pretraining", {}),
        ("mlm_pretraining", {"model_name": bert}),
        ("masked_diffusion", {"random_length_share": 0.0}),
        ("masked_diffusion", {"random_length_share": 0.0, "model_name": str(LLADA)}),
        ("algorithm_distillation", {}),
        ("algorithm_distillation", {"sequence_length": 11, "compress_interval": 4}),
    ],
)
def test_the_flops_of_a_recipe_are_those_that_torch_counts_in_its_steps(
    recipe: str, changes: dict[str, Any], cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(recipe, cpu_project)
    monkeypatch.chdir(cpu_project.root)
    counted: list[int] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if not torch.is_grad_enabled():  # an evaluation
                return function(*args)
            # The fused attention of CPUs is not counted.
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                result = function(*args)
            counted.append(counter.get_total_flops())
            return result

        return wrapped

    def wrap(worker: Worker, module: torch.nn.Module, **options: bool) -> torch.nn.Module:
        module.forward = counting(module.forward)  # type: ignore[method-assign]
        return module

    monkeypatch.setattr(Worker, "wrap", wrap)
    monkeypatch.setattr(Optimizer, "backward", counting(Optimizer.backward))
    values = {name: value(cpu_project) if callable(value) else value for name, value in changes.items()}
    config = RECIPES[recipe].config_class(**{**TINY[recipe], "batch_size": 64, "epochs": 50, **values})
    files = train_here(cpu_project, config, monkeypatch=monkeypatch)
    derived = (read_json(files.config) or {})["derived"]
    assert derived["flops_per_sample"] * 64 * 6 == pytest.approx(sum(counted), rel=0.04)
    assert len(counted) == 12, "forward and backward of each step"


def test_flops_count_tables_only_where_they_are_multiplied() -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    few, many = (BertForMaskedLM(BertConfig(vocab_size=words, **size)) for words in (100, 10_100))
    assert training_flops(few, 8, 0) == training_flops(many, 8, 0)
    assert training_flops(many, 8, 2) - training_flops(few, 8, 2) == 6 * 2 * 10_000 * 16
