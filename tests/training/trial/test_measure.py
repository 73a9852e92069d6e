"""Measured steps of the recipes' own trainings, in this process, and the search for the largest batch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nbtools.errors import DataError
from nbtools.machine.devices import Device, Holder
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.trial import measure, trial_process
from nbtools.training.trial.measure import largest_batch, note_on

from trainings import TINY, rows, write_inputs


@pytest.fixture
def files(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    made = RunDir.create(cpu_project.root / "elsewhere", "trial")
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(made.path))
    torch.set_num_threads(1)
    return made


@pytest.fixture
def texts(files: RunDir, cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """The run directory, with data in the project; two steps are enough."""
    write_inputs("mlm_pretraining", cpu_project)
    monkeypatch.setattr(measure, "_MEASURED_S", 0.0)
    return files


def request(key: str, **changes: Any) -> dict[str, Any]:
    config = RECIPES[key].config_class(**{**TINY[key], **changes})
    return {"recipe": key, "config": config.model_dump(mode="json"), "world_size": 1}


@pytest.mark.parametrize("key", RECIPES)
def test_a_trial_takes_real_steps_and_neither_evaluates_nor_saves(
    key: str, files: RunDir, cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_inputs(key, cpu_project)
    changes: list[float] = []
    real = Optimizer.step

    def spy(optimizer: Optimizer, step: int, *rate: float) -> None:
        before = [weight.detach().clone() for weight in optimizer.weights]
        real(optimizer, step, *rate)
        pairs = zip(before, optimizer.weights, strict=True)
        changes.append(sum(float((old - new.detach()).abs().sum()) for old, new in pairs))

    monkeypatch.setattr(Optimizer, "step", spy)
    monkeypatch.setattr(measure, "_MEASURED_S", 0.0)
    answer = measure.measure(request(key, save_dir="outputs", report_to="tensorboard", max_steps=1))
    assert len(answer["step_s"]) == 2
    assert all(0 < seconds < 60 for seconds in answer["step_s"])
    assert len(changes) >= 2
    assert all(changed > 0 for changed in changes)
    assert answer["batch_size"] == TINY[key]["batch_size"]
    assert (answer["device"], answer["precision"], answer["threads"]) == ("cpu", "fp32", 1)
    assert (answer["largest_batch"], answer["reserved_bytes"]) == (None, None)
    assert answer["num_parameters"] > 1000
    derived = (read_json(files.config) or {})["derived"]
    assert answer["num_parameters"] == derived["num_parameters"]
    assert [row["step"] for row in rows(files)] == [1], "the trial ends in its second step"
    assert "eval/loss" not in rows(files)[0]
    assert not any(files.checkpoints.iterdir())
    assert not (cpu_project.root / "outputs").exists()
    assert not files.tensorboard.exists()


def test_a_stage_of_a_training_that_costs_less_is_left_out() -> None:
    config = RECIPES["llm_gan"].config_class(**TINY["llm_gan"])
    costliest = RECIPES["llm_gan"].costliest(config)
    assert (costliest.generator_warmup_steps, costliest.judge_warmup_steps) == (0, 0)
    assert costliest.replace(generator_warmup_steps=2, judge_warmup_steps=2) == config
    others = [RECIPES[key].config_class() for key in RECIPES if key != "llm_gan"]
    assert all(RECIPES[key].costliest(other) == other for key, other in zip(RECIPES, others, strict=False))


def test_steps_are_measured_for_a_second_or_twenty_of_them(texts: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_MEASURED_S", 1e9)
    assert len(measure.measure(request("mlm_pretraining"))["step_s"]) == 20
    large = request("mlm_pretraining", hidden_size=256, num_layers=4, num_heads=4)
    monkeypatch.setattr(measure, "_MOST_STEPS", 10_000)
    monkeypatch.setattr(measure, "_MEASURED_S", 0.3)
    seconds = measure.measure(large)["step_s"]
    assert sum(seconds[1:]) >= 0.3 > sum(seconds[1:-1])


def test_peak_memory_holds_weights_gradients_and_moments(texts: RunDir) -> None:
    """In a process of its own as a trial is: this one still holds memory that earlier tests freed."""
    asked = request("mlm_pretraining", hidden_size=512, num_layers=6, num_heads=8)
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", "nbtools.training.trial.trial_process", str(writing)]
    said = json.dumps({**asked, "ticket": None, "parent": os.getpid()})
    subprocess.run(command, input=said, text=True, pass_fds=[writing], start_new_session=True, check=True, timeout=300)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        answer = json.load(pipe)
    assert answer["num_parameters"] > 10e6
    assert 16 * answer["num_parameters"] * 0.9 < answer["peak_bytes"] < 16 * answer["num_parameters"] + 2**30


def test_too_little_data_is_the_training_s_own_error(texts: RunDir) -> None:
    with pytest.raises(DataError, match="too few for one step") as caught:
        measure.measure(request("mlm_pretraining", batch_size=100_000))
    assert trial_process.error_sentence(caught.value) == str(caught.value)
    assert (read_json(texts.finished) or {})["why"] == "failed"


def test_an_error_is_one_sentence_with_the_advice_for_a_known_one() -> None:
    said = trial_process.error_sentence(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore\nlines"))
    assert said.startswith("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB. Lower batch_size")
    assert trial_process.error_sentence(ValueError("bad\nmore")) == "ValueError: bad"


# --- a GPU, without one ---------------------------------------------------------------------------


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Let trainings on the CPU fail as on a GPU that has room for so many samples, and return the tried sizes."""

    def room(capacity: int) -> list[int]:
        tried: list[int] = []
        real = measure.run_steps

        def run_steps(config: Any, measured_s: float) -> dict[str, Any]:
            tried.append(config.batch_size)
            if config.batch_size > capacity:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            return real(config, measured_s)

        monkeypatch.setattr(measure, "run_steps", run_steps)
        monkeypatch.setattr(measure, "torch", SimpleNamespace(cuda=_Cuda))
        return tried

    return room


class _Cuda:
    is_available = staticmethod(lambda: True)
    empty_cache = synchronize = reset_peak_memory_stats = staticmethod(lambda *_: None)


@pytest.mark.parametrize(
    ("room", "sizes", "found"),
    [(21, [8, 16, 32, 24, 20, 22], (8, 20, "22 does not fit")), (3, [32, 16, 8, 4, 2, 3], (3, 3, "4 does not fit"))],
)
def test_the_largest_batch_is_found_with_real_steps(
    texts: RunDir, small_gpu: Callable[[int], list[int]], room: int, sizes: list[int], found: Any
) -> None:
    """Where the batch of the config does not fit, the figures are those of the largest that does."""
    tried = small_gpu(room)
    answer = measure.measure(request("mlm_pretraining", batch_size=sizes[0]))
    assert tried == sizes
    assert (answer["batch_size"], answer["largest_batch"], answer["largest_note"]) == found


def test_the_data_bounds_the_largest_batch_and_no_room_is_an_error(
    texts: RunDir, small_gpu: Callable[[int], list[int]]
) -> None:
    small_gpu(10_000)
    answer = measure.measure({**request("mlm_pretraining"), "world_size": 2})
    assert answer["largest_batch"] == answer["num_train_samples"] // 2
    assert "the training data has no more" in answer["largest_note"]
    small_gpu(0)
    with pytest.raises(RuntimeError, match="CUDA out of memory: not even one sample fits"):
        measure.measure(request("mlm_pretraining"))


def test_another_error_of_a_step_is_no_lack_of_memory(
    files: RunDir, small_gpu: Callable[[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_gpu(8)

    def broken(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(measure, "run_steps", broken)
    with pytest.raises(RuntimeError, match="device-side"):
        measure.measure(request("mlm_pretraining"))


@pytest.mark.parametrize("first", [1, 7, 32, 4096])
@pytest.mark.parametrize("capacity", [0, 1, 2, 31, 100, 1000])
def test_the_search_ends_within_an_eighth_below_what_fits(first: int, capacity: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= capacity

    good, bad = largest_batch(first, fits, lambda: 10**9, lambda: True)
    assert good <= capacity < (bad or 0)
    assert bad is not None
    assert bad - good <= max(1, good // 8)
    assert len(tried) == len(set(tried)) <= 17
    assert note_on(good, bad, 10**9, 60) == ("not even one sample fits" if capacity == 0 else f"{bad} does not fit")


def test_a_search_without_time_says_so() -> None:
    left = [1, 1]

    def goes_on() -> bool:
        return bool(left) and bool(left.pop())

    assert largest_batch(8, lambda size: size < 1000, lambda: 10**6, goes_on) == (16, None)
    assert note_on(16, None, 10**6, 60) == "more may fit: the search ended after 60 s"
    assert note_on(16, 32, 10**6, 60) == "32 does not fit; the search ended after 60 s"
    assert note_on(0, 8, 0, 60) == "8 does not fit; the search ended after 60 s"


def test_a_second_process_on_the_gpu_ends_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = (Holder(pid, "python", owner, 2**30) for pid, owner in ((os.getpid(), "ann"), (1, "bob")))

    def held_by(*holders: Holder) -> str:
        device = Device(0, "GPU-0", "a GPU", 80 * 2**30, 0, holders, "0")
        monkeypatch.setattr(trial_process, "devices", lambda: [device])
        return trial_process._wanted_by(None)

    assert held_by() == held_by(own) == ""
    assert held_by(own, other) == "the trial ended because GPU 0 is now held by python (pid 1, bob, 1.0 GiB), too"


def test_the_child_s_own_module_loads_without_torch(tmp_path: Path) -> None:
    program = "import sys, nbtools.training.trial.trial_process; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "False\n", "it watches its parent from the first second"
