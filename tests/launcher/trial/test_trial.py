"""A trial as a process: its figures, its end in every way, and that nothing of it is left."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import Cli, MonkeyPatch, Start
from launched import TRAINER, agent
from waiting import eventually

from nbtools.config import Launch, Slurm, TrainConfig
from nbtools.errors import LaunchError
from nbtools.launcher.checks.step_count import schedule
from nbtools.launcher.placement import Placement, place
from nbtools.launcher.trial import trial as module
from nbtools.launcher.trial.trial import Trial, free_device, start_trial
from nbtools.machine import gpu_queue
from nbtools.machine.devices import Device, Holder
from nbtools.machine.gpu_queue import Ticket
from nbtools.machine.processes import members
from nbtools.project import Project
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.run.state import RunState
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir
from nbtools.script.script import write_script

from trainings import TINY, train_here, write_inputs

ON_CPU = Launch(nproc_per_node=1, gpus=())
GPUS = [Device(index, f"GPU-{index}", "a GPU", 80 * 2**30, 0, (), str(index)) for index in (0, 1)]


@pytest.fixture
def folder(cpu_project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: MonkeyPatch) -> Path:
    """The folder of temporary files; nothing is in it before or after a trial."""
    made = tmp_path_factory.mktemp("t")  # sockets of loaders are below it, whose paths have at most 107 characters
    monkeypatch.setenv("TMPDIR", str(made))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return made


@pytest.fixture
def texts(folder: Path, cpu_project: Project) -> Iterator[Project]:
    """A project with the texts of a tiny training; afterwards no trial is left."""
    write_inputs("mlm_pretraining", cpu_project)
    yield cpu_project
    assert_nothing_left(folder)


def tiny(**changes: Any) -> TrainConfig:
    return MLMPretrainingConfig(**{**TINY["mlm_pretraining"], **changes})


def endless() -> TrainConfig:
    """A training whose two steps of thousands of passes take a minute, with a process that loads its data."""
    return tiny(dataset=None, batch_size=1, gradient_accumulation_steps=4000, num_layers=4, num_workers=1)


def is_training(trial: Trial) -> bool:
    return trial.phase in ("forward", "backward")


def processes_in(folder: Path) -> list[psutil.Process]:
    """The processes with the mark of a trial in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_DIR_VARIABLE, "").startswith(str(folder)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_nothing_left(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    assert processes_in(folder) == []


def contents(project: Project) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in project.root.rglob("*")}


@pytest.fixture
def on_gpu(monkeypatch: MonkeyPatch) -> list[Device]:
    """Let launches find a GPU that torch has not: the trial has a ticket, and trains on the CPU."""
    gpus = GPUS[:1]

    def placed(launch: Launch) -> Placement:
        return dataclasses.replace(place(launch.replace(gpus=())), gpus=tuple(gpus))

    monkeypatch.setattr(module, "place", placed)
    return gpus


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("key", RECIPES)
def test_a_trial_of_each_recipe_measures_and_leaves_nothing(key: str, folder: Path, cpu_project: Project) -> None:
    write_inputs(key, cpu_project)
    config = RECIPES[key].config_class(**{**TINY[key], "save_dir": "saved", "report_to": "tensorboard"})
    before = contents(cpu_project)
    trial = start_trial(config, ON_CPU.replace(nproc_per_node=2), root=cpu_project.root)
    assert trial.wait(0) is None
    result = trial.wait(120)
    assert not result.error, trial.log()
    measured = result.measured
    assert len(measured["step_s"]) >= 2 and min(measured["step_s"]) > 0
    assert measured["peak_bytes"] > 4 * measured["num_parameters"] > 0
    counted = schedule(config, 2, root=cpu_project.root)
    assert counted is not None and counted.total_steps == config.max_steps
    found = {finding.subject: finding.text for finding in result.findings if finding.level == "ok"}
    assert [*found] == ["trial", "step time", "peak memory", "duration"]
    assert found["trial"].startswith("one process on CPU, ")
    assert found["peak memory"].endswith("the largest batch: it is searched on GPUs only")
    assert f" for {counted.total_steps} steps; one of 2 processes" in found["duration"]
    assert "parameters" in trial.log(), "what the training printed stays"
    assert ("learning histories were generated" in trial.log()) is (key == "algorithm_distillation")
    assert trial.phase == ""
    assert contents(cpu_project) == before
    assert_nothing_left(folder)
    trial.cancel()
    assert trial.wait(0) is result


@pytest.mark.slow
def test_a_trial_reads_what_a_run_generated(folder: Path, cpu_project: Project, monkeypatch: MonkeyPatch) -> None:
    config = RECIPES["algorithm_distillation"].config_class(**TINY["algorithm_distillation"])
    train_here(cpu_project, config, monkeypatch=monkeypatch)
    before = contents(cpu_project)
    trial = start_trial(config, ON_CPU, root=cpu_project.root)
    assert not trial.wait(120).error
    assert "learning histories were generated" not in trial.log()
    assert contents(cpu_project) == before
    assert_nothing_left(folder)


# --- errors ---------------------------------------------------------------------------------------


def test_what_the_preflight_would_refuse_starts_nothing(texts: Project) -> None:
    with pytest.raises(LaunchError, match=r"none\.txt"):
        start_trial(tiny(dataset="none.txt"), ON_CPU, root=texts.root)
    with pytest.raises(LaunchError, match="not on a node; set cluster=None"):
        start_trial(tiny(), Launch(cluster=Slurm()), root=texts.root)
    with pytest.raises(LaunchError, match="there is no GPU 7"):
        start_trial(tiny(), Launch(gpus=(7,)), root=texts.root)


@pytest.mark.slow
def test_an_error_of_the_data_is_one_sentence_and_the_log_has_the_rest(texts: Project) -> None:
    trial = start_trial(tiny(batch_size=1000), ON_CPU, root=texts.root)
    result = trial.wait(120)
    assert result.error.startswith("69 training samples are too few for one step of 1000 per process")
    assert "\n" not in result.error
    assert "Traceback" in trial.log()
    assert [finding.level for finding in result.findings] == ["warn"]


@pytest.mark.slow
def test_a_trial_that_is_killed_says_so_and_leaves_nothing(texts: Project, folder: Path) -> None:
    trial = start_trial(endless(), ON_CPU, root=texts.root)
    eventually(lambda: len(processes_in(folder)) > 1)
    os.kill(trial._process.pid, signal.SIGKILL)
    assert trial.wait(20).error.startswith("the process of the trial was killed by signal 9 without a result: ")


# --- its end --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cancelled_trial_ends_with_all_its_processes(texts: Project, folder: Path) -> None:
    trial = start_trial(endless(), ON_CPU, root=texts.root)
    assert trial.wait(0.1) is None
    assert trial.phase == "start"
    eventually(lambda: len(processes_in(folder)) > 1)
    eventually(lambda: is_training(trial))
    started = time.monotonic()
    trial.cancel()
    assert time.monotonic() - started < 30
    assert_nothing_left(folder)
    assert trial.wait(0).error == "the trial was cancelled"
    trial.cancel()


_KERNEL = """
import sys, time
from nbtools.config import Launch
from nbtools.launcher.trial.trial import start_trial
from nbtools.recipes import MLMPretrainingConfig
trial = start_trial(MLMPretrainingConfig(**{values!r}), Launch(gpus=()), root={root!r})
print("started", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_trial_ends_with_the_kernel_that_started_it(is_loaded: bool, texts: Project, folder: Path) -> None:
    program = _KERNEL.format(values=endless().model_dump(), root=str(texts.root))
    kernel = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert kernel.stdout and kernel.stdout.readline() == b"started\n"
    eventually(lambda: len(processes_in(folder)) >= (2 if is_loaded else 1))
    kernel.kill()
    kernel.communicate()
    eventually(lambda: processes_in(folder) == [])
    assert_nothing_left(folder)


# --- the GPU queue --------------------------------------------------------------------------------


def held_by(index: int, *holders: Holder) -> Device:
    return dataclasses.replace(GPUS[index], holders=holders)


def test_a_trial_takes_the_first_gpu_that_nothing_holds() -> None:
    alice = Holder(7, "python", "alice", 2**30)
    waiting = Ticket(3, Path("/runs/2026-01-31_142233_tiny"), (0,), frozenset({"GPU-0"}))
    assert free_device(GPUS, []) is GPUS[0]
    assert free_device([held_by(0, alice), GPUS[1]], []) is GPUS[1]
    assert free_device(GPUS, [waiting]) is GPUS[1]
    with pytest.raises(LaunchError) as caught:
        free_device([held_by(1, alice), GPUS[0]], [waiting])
    assert str(caught.value) == (
        "a trial takes no GPU in use: GPU 1 by python (pid 7, alice, 1.0 GiB); GPU 0 by 2026-01-31_142233_tiny; wait "
        "for its end, or choose other GPUs"
    )
    with pytest.raises(LaunchError, match=r"this process .* restart this kernel to free it, or"):
        free_device([held_by(0, dataclasses.replace(alice, pid=os.getpid()))], [])


@pytest.mark.parametrize("at_the_same_moment", [False, True])
def test_a_trial_is_refused_while_a_run_claims_its_gpu(
    texts: Project, on_gpu: list[Device], monkeypatch: MonkeyPatch, folder: Path, at_the_same_moment: bool
) -> None:
    _, descriptor = gpu_queue.take(RunDir("/runs/earlier"), [0], ["GPU-0"])
    if at_the_same_moment:
        monkeypatch.setattr(module, "free_device", lambda gpus, tickets: gpus[0])
    with pytest.raises(LaunchError, match="GPU 0 by earlier"):
        start_trial(tiny(), Launch(), root=texts.root)
    assert [ticket.run.name for ticket in gpu_queue.tickets()] == ["earlier"]
    os.close(descriptor)
    assert_nothing_left(folder)


@pytest.mark.slow
def test_a_run_launched_meanwhile_ends_the_trial(texts: Project, on_gpu: list[Device], supervised: Start) -> None:
    trial = start_trial(endless(), Launch(), root=texts.root)
    eventually(lambda: is_training(trial))
    run = supervised(*agent(TRAINER, nproc=1), gpus=(0,), name="later")
    eventually(lambda: run.state is RunState.RUNNING)
    assert trial.wait(5).error == "the trial ended because later on GPU 0 was launched meanwhile"
    run.stop()
    assert run.state is RunState.STOPPED


def test_a_trial_has_a_ticket_and_marks_and_is_cancelled_while_it_starts(texts: Project, on_gpu: list[Device]) -> None:
    trial = start_trial(tiny(), Launch(), root=texts.root)
    assert len(gpu_queue.tickets()) == 1
    eventually(lambda: [process.pid for process in members(trial.run)] == [trial._process.pid])
    trial.cancel()
    assert trial.wait(0).error == "the trial was cancelled"
    assert gpu_queue.tickets() == []


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_dry_run_with_try_adds_the_figures(texts: Project, cli: Cli) -> None:
    path = write_script(tiny(dataset=str(texts.root / "texts")), "tiny", ON_CPU, project=texts)
    lines = cli("launch", "--dry-run", "--try", path).stdout.splitlines()
    assert [line.split()[1] for line in lines[-4:]] == ["trial", "step", "peak", "duration"]
    assert any("command" in line for line in lines[:-4])
    assert "--dry-run" in cli("launch", "--try", path, code=2).stderr
    (texts.root / "large.txt").write_text("one two three four five six seven eight\n" * 120_000)
    values = {"dataset": str(texts.root / "large.txt"), "batch_size": 1_000_000}  # the preflight does not count so much
    failing = write_script(tiny(**values), "failing", ON_CPU, project=texts)
    facts = json.loads(cli("launch", "--dry-run", "--try", "--json", failing, code=1).stdout)
    assert (facts[-1]["level"], facts[-1]["subject"]) == ("warn", "trial")
    assert "too few for one step" in facts[-1]["text"]
    foreign = texts.scripts / "train.py"
    foreign.write_text("pass\n")
    assert "for the scripts of recipes" in cli("launch", "--dry-run", "--try", foreign, code=2).stderr
    assert list(texts.runs.iterdir()) == []
