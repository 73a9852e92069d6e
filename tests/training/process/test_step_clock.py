"""The clocks of steps: what is aside counts for nothing; waiting for data and for ranks is a share of the rest."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fixture_types import Train
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForMaskedLM

from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.checkpoints import Progress
from nbtools.rundir.json_files import read_json
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.engine.worker import Worker
from nbtools.training.process.heartbeat_writer import HeartbeatWriter
from nbtools.training.process.phase_writer import PhaseWriter
from nbtools.training.process.ranks import Ranks
from nbtools.training.process.step_clock import StepClock, training_flops

from trainings import CLOCKED, TINY, rows, train_here, write_base, write_inputs


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test moves on."""
    time_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: time_s[0])
    return time_s


def clock_of(
    progress: Progress,
    num_passes: int = 0,
    device: str = "cpu",
    world_size: int = 1,
    largest: Any = list,
    path: Path = Path("/dev/null"),
) -> StepClock:
    """The clock of rank 0; `largest` returns the largest values of all ranks, `path` takes the phases."""
    ranks = SimpleNamespace(rank=0, world_size=world_size, device=torch.device(device), max=largest)
    heartbeat = SimpleNamespace(enter=lambda phase, step: None)
    phases = PhaseWriter(path, 1, on_gpu=device == "cuda", is_sharded=False)
    return StepClock(cast(HeartbeatWriter, heartbeat), phases, cast(Ranks, ranks), progress, num_passes)


def test_a_row_has_throughput_and_the_share_of_waiting_without_what_was_aside(now: list[float]) -> None:
    progress = Progress(samples=1000)
    clock = clock_of(progress)
    clock.start()
    with clock.data():
        now[0] += 2
    with clock.aside("evaluation"):
        now[0] += 50
    now[0] += 6
    progress.samples = 1080
    assert clock.lap() == (10, {"train/data_wait": 0.25})
    now[0] += 4
    progress.samples = 1084
    assert clock.lap() == (1, {"train/data_wait": 0})


def test_arrivals_are_timed_from_one_all_reduce_to_the_next_without_what_is_aside(now: list[float]) -> None:
    asked: list[list[float]] = []

    def largest(values: list[float]) -> list[float]:
        asked.append(values)
        return [0.5, 0.0, 44.0, 60.0, 20.0, 20.0, 24.0] if len(asked) == 1 else [0.0] * 4

    clock = clock_of(Progress(), 2, world_size=2, largest=largest)

    def enter(phase: str, then_s: float) -> None:
        clock.enter(phase)
        now[0] += then_s

    clock.start()
    for _ in range(2):  # steps of two passes; the all-reduce is in the second one
        for phase, seconds in (("data", 1), ("forward", 2), ("backward", 4)):
            enter(phase, seconds)
        for phase, seconds in (("data", 1), ("forward", 2), ("backward", 100)):
            enter(phase, seconds)
    with clock.aside("evaluation"):
        now[0] += 50
    for phase, seconds in (("data", 3), ("forward", 5), ("backward", 7), ("forward", 9), ("backward", 5)):
        enter(phase, seconds)
    _, row = clock.lap()
    # The last of both ranks arrives after 64 s in all, and they compute for 52 s in the mean: a wait of 12 of 249 s.
    assert row == {"train/data_wait": 0.5, "train/peer_wait": pytest.approx(12 / 249)}
    clock.lap()
    assert asked == [[0, 0, 44, 0, 10, 10, 24], [0, 0, 0, 0]], "each is told once"


def seconds_in(path: Path) -> list[dict[str, float]]:
    return [json.loads(line)["seconds"] for line in path.read_text().splitlines()]


def test_each_second_counts_in_one_phase_and_waiting_in_backward_passes_as_such(
    now: list[float], tmp_path: Path
) -> None:
    progress, path = Progress(), tmp_path / "phases-0.jsonl"

    def largest(values: list[float]) -> list[float]:
        now[0] += 1
        return [*values[:2], 6.0, 9.0, *(value + 3 for value in values[4:])]  # the other rank arrives 3 s later

    def step(**seconds: float) -> None:
        for phase, spent in seconds.items():
            clock.enter(phase)
            now[0] += spent
        progress.step += 1

    clock = clock_of(progress, 1, world_size=2, largest=largest, path=path)
    clock.start()
    step(data=50, forward=60, backward=2, optimizer=3)
    step(data=1, forward=2, backward=8, optimizer=4)
    with suppress(OSError), clock.aside("evaluation"):
        now[0] += 16
        with clock.collective():
            now[0] += 32
        now[0] += 64
        raise OSError
    now[0] += 0.5  # of the optimizer's phase again
    clock.lap()
    now[0] += 128
    with clock.aside("checkpoint"):
        now[0] += 256
    clock.phases.write(2)
    first, last = seconds_in(path)
    told = {"data": 1, "forward": 2, "backward": 5, "optimizer": 4.5, "evaluation": 80}
    assert first == {**told, "waiting": 3 + 32 + 1, "other": 115}, "the first step starts the loader and compiles"
    assert last == {"checkpoint": 256, "other": 128}
    assert sum(first.values()) + sum(last.values()) == now[0] - 100


def test_phases_of_a_long_interval_and_a_full_disk_cost_neither_memory_nor_the_training(now: list[float]) -> None:
    progress = Progress()
    clock = clock_of(progress, 1, world_size=2, path=Path("/dev/full"))
    clock.start()
    for progress.step in range(1, 5001):
        for phase in ("data", "forward", "backward", "optimizer"):
            clock.enter(phase)
            now[0] += 0.25
    assert len(clock._arrivals) <= 1000 and len(clock.phases._borders) <= 1024
    assert clock.phases._seconds["forward"] + len(clock.phases._borders) / 16 == pytest.approx(1250, abs=1)
    assert 0 <= clock.lap()[1]["train/peer_wait"] < 1
    assert not clock.phases._seconds


def test_a_sharded_model_computes_in_one_phase(now: list[float], tmp_path: Path) -> None:
    phases = PhaseWriter(path := tmp_path / "phases-0.jsonl", 2, on_gpu=False, is_sharded=True)
    for phase in ("data", "forward", "backward", "optimizer", "profile"):
        phases.enter(phase)
        now[0] += 1
    phases.write(7)
    row = json.loads(path.read_text())
    assert (row["step"], row["attempt"], row["seconds"]) == (7, 2, {"data": 1, "compute": 3, "other": 1})


def test_arrivals_on_a_gpu_are_those_of_its_stream_and_no_step_waits_for_it(
    now: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queued_ms, waited, asked = [0.0], [0], []

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
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 12.5e9)
    progress, path = Progress(), tmp_path / "phases-0.jsonl"
    clock = clock_of(progress, 1, "cuda", largest=lambda values: asked.append(values) or values, path=path)
    clock.peak_samples_per_s = 60.0
    clock.start()
    for progress.step, forward_ms in enumerate((20, 30, 40)):
        clock.enter("forward")
        queued_ms[0] += forward_ms
        clock.enter("backward")
        queued_ms[0] += 100
    assert waited == [0]
    now[0] += 2
    progress.samples = 60
    row = {"train/data_wait": 0, "train/peer_wait": 0, "train/mfu": 0.5, "system/peak_memory_gb": 12.5}
    assert clock.lap() == (30, row)
    assert asked == [[0, 12.5, 0.09, 0.02, 0.03, 0.04]]
    assert waited == [2], "the lap, for the arrivals and for the phases"
    assert seconds_in(path) == [{"other": 0.12, "forward": 0.07, "backward": 0.2}]


def test_rows_of_training_alone_say_how_long_they_waited(tiny_training: Train) -> None:
    files = tiny_training(max_steps=4, log_every=2, eval_every=3)
    parsed = {row["step"]: row for row in rows(files, without=())}
    assert [step for step, row in parsed.items() if "train/data_wait" in row] == [2, 4]
    assert all(0 <= parsed[step]["train/data_wait"] <= 1 for step in (2, 4))
    # A CPU has neither a peak nor a rate to compare with.
    assert not {"train/mfu", "system/peak_memory_gb"} & {name for row in parsed.values() for name in row}
    assert not any("train/peer_wait" in row for row in parsed.values()), "there are no other ranks"
    assert {"train/data_wait", "train/peer_wait"} <= {*CLOCKED}


# --- FLOPs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("mlm_pretraining", {}),
        ("mlm_pretraining", {"model_name": "base"}),
        ("masked_diffusion", {"random_length_share": 0.0}),
        ("masked_diffusion", {"random_length_share": 0.0, "model_name": "base"}),
        ("algorithm_distillation", {}),
        ("algorithm_distillation", {"sequence_length": 11, "compress_interval": 4}),
    ],
)
def test_the_flops_of_a_recipe_are_those_that_torch_counts_in_its_steps(
    recipe: str, changes: dict[str, Any], cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(recipe, cpu_project)
    monkeypatch.chdir(cpu_project.root)
    if "model_name" in changes:  # a BERT, whose head is its table of tokens and a layer before it, or a LLaDA
        write_base(recipe, cpu_project)
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
    config = RECIPES[recipe].config_class(**{**TINY[recipe], "batch_size": 64, "epochs": 50, **changes})
    files = train_here(cpu_project, config, monkeypatch=monkeypatch)
    derived = (read_json(files.config) or {})["derived"]
    assert derived["flops_per_sample"] * 64 * 6 == pytest.approx(sum(counted), rel=0.04)
    assert len(counted) == 12, "forward and backward of each step"


def test_flops_count_tables_only_where_they_are_multiplied() -> None:
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    few, many = (BertForMaskedLM(BertConfig(vocab_size=words, **size)) for words in (100, 10_100))
    assert training_flops(few, 8, 0) == training_flops(many, 8, 0)
    assert training_flops(many, 8, 2) - training_flops(few, 8, 2) == 6 * 2 * 10_000 * 16
