"""The clocks of steps: what is aside counts for nothing; waiting for data and for ranks is a share of the rest."""

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

from trainings import CLOCKED, TINY, by_hand, rows, train_here, write_inputs

CPU = torch.device("cpu")
LLADA = Path(__file__).parents[1] / "masked_diffusion" / "llada_tiny"


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves on."""
    time_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: time_s[0])
    return time_s


def test_a_row_has_throughput_and_the_share_of_waiting_without_what_was_aside(now: list[float]) -> None:
    clock = StepClock(CPU, 0)
    clock.start(1000)
    with clock.waiting():
        now[0] += 2
    with clock.aside():
        now[0] += 50
    now[0] += 6
    assert clock.lap(1080) == (10, 0.25, 8, [])
    now[0] += 4
    assert clock.lap(1084) == (1, 0, 4, [])


def test_arrivals_are_timed_from_one_all_reduce_to_the_next_without_what_is_aside(now: list[float]) -> None:
    clock = StepClock(CPU, 2)

    def enter(phase: str, then_s: float) -> None:
        clock.enter(phase)
        now[0] += then_s

    clock.start(0)
    for _ in range(2):  # steps of two passes; the all-reduce is in the second one
        for phase, seconds in (("data", 1), ("forward", 2), ("backward", 4)):
            enter(phase, seconds)
        for phase, seconds in (("data", 1), ("forward", 2), ("backward", 100)):
            enter(phase, seconds)
    with clock.aside():
        enter("evaluation", 50)
    for phase, seconds in (("data", 3), ("forward", 5), ("backward", 7), ("forward", 9), ("backward", 11)):
        enter(phase, seconds)
    assert clock.lap(0)[3] == [10, 10, 24]
    assert clock.lap(0)[3] == [], "each is told once"


def test_arrivals_on_a_gpu_are_those_of_its_stream_and_no_step_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    queued_ms, waited = [0.0], [0]

    class Event:  # no GPU: the interface of torch's, on a stream whose work the test queues
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_ms = queued_ms[0]

        def synchronize(self) -> None:
            waited[0] += 1

        def elapsed_time(self, other: "Event") -> float:
            return other.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = StepClock(torch.device("cuda"), 1)
    clock.start(0)
    for forward_ms in (20, 30, 40):
        clock.enter("forward")
        queued_ms[0] += forward_ms
        clock.enter("backward")
        queued_ms[0] += 100
    assert waited == [0]
    assert clock.lap(0)[3] == [0.02, 0.03, 0.04] and waited == [1]


DELAYS = """
import os, time
from nbtools.training.engine.worker import Worker

rank, delay_s, forwards = int(os.environ["RANK"]), 0.06, []
wrap, batches = Worker.wrap, Worker.batches

def delay(module, args):
    if module.training:
        forwards.append(1)
        time.sleep(delay_s * (rank == 1 and 6 < len(forwards) <= 9))

def wrap_and_delay(worker, module, **options):
    module.register_forward_pre_hook(delay)
    return wrap(worker, module, **options)

def delayed(worker, *args):
    for number, batch in enumerate(batches(worker, *args), start=1):
        time.sleep(delay_s * (rank == 0 and number > 9))
        yield batch

Worker.wrap, Worker.batches = wrap_and_delay, delayed
"""


def test_rows_say_how_long_a_rank_waits_for_a_slower_one(cpu_project: Project) -> None:
    write_inputs("mlm_pretraining", cpu_project)
    changes = {"max_steps": 12, "log_every": 3, "eval_every": 12, "checkpoint_every": 12}
    config = RECIPES["mlm_pretraining"].config_class(**{**TINY["mlm_pretraining"], **changes})
    with by_hand(cpu_project) as start:
        parsed = rows(start.forked(config, more=DELAYS).files, without=())
    tokens = 3 * 2 * config.batch_size * 16
    waits_s = [row["train/peer_wait"] * tokens / row["train/tokens_per_s"] for row in parsed]
    _, equal, slow_forward, slow_data = waits_s  # the first one warms up
    # One of two ranks waits 0.06 s in each of three steps.
    assert equal < 0.06 < min(slow_forward, slow_data) and max(slow_forward, slow_data) < 0.15, waits_s


def test_rows_of_training_alone_say_how_long_they_waited(tiny_training: Callable[..., RunDir]) -> None:
    files = tiny_training(max_steps=4, log_every=2, eval_every=3)
    parsed = {row["step"]: row for row in rows(files, without=())}
    assert [step for step, row in parsed.items() if "train/data_wait" in row] == [2, 4]
    assert all(0 <= parsed[step]["train/data_wait"] <= 1 for step in (2, 4))
    # A CPU has neither a peak nor a rate to compare with.
    assert not {"train/mfu", "system/peak_memory_gb"} & {name for row in parsed.values() for name in row}
    assert not any("train/peer_wait" in row for row in parsed.values()), "there are no other ranks"
    assert {"train/data_wait", "train/peer_wait"} <= {*CLOCKED}


def test_on_a_gpu_a_row_compares_the_rate_with_that_of_a_matrix_product_and_has_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[float]] = []
    ranks = SimpleNamespace(max=lambda values: asked.append(values) or [0.2, 14.0, 0.0])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 12.5e9)
    worker = SimpleNamespace(_clock=StepClock(CPU, 0), ranks=ranks, rank=0, world_size=1, device=torch.device("cuda"))
    worker._peak_samples_per_s = 60.0
    row = Worker._compare_steps(cast(Worker, worker), 30.0, 0.1, 2.0, [])
    assert row == {"train/data_wait": 0.2, "train/mfu": 0.5, "system/peak_memory_gb": 14.0}
    assert asked == [[0.1, 12.5, 0.0]], "the largest of all ranks"


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
