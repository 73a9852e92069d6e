"""Faults from end to end: the real torchrun, recipe and worker, real signals, full disks and floods.

A fault that belongs to one module is tested beside it; the README's table names the test of each promise.
"""

import json
import re
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
from fixture_types import Start
from launched import at_step, processes_of, python, ranks_of, supervisor_of
from tiny_mlm import tiny_mlm
from waiting import eventually

import nbtools as nt
from nbtools.machine.processes import living, members
from nbtools.project import Project
from nbtools.run.lineage import resumed_step
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import read_heartbeats

# --- real training --------------------------------------------------------------------------------


@pytest.fixture
def tiny(texts: Project) -> Path:
    """A recipe's script that trains on two CPU ranks until it is stopped."""
    endless = dict.fromkeys(("max_steps", "epochs", "eval_every", "checkpoint_every"), 100_000)
    config = tiny_mlm(checkpoint_epochs=False, **endless)
    return nt.write_script(config, "tiny", nt.Launch(nproc_per_node=2, gpus=()), project=texts)


def preempted(run: Run, whom: str) -> int:
    """Let a run do ten steps more, send SIGTERM as a scheduler would, and return the step that it ended at."""
    began = resumed_step(run.info)
    eventually(lambda: run.step >= began + 5)
    processes_of(run)[whom].terminate()
    assert run.wait(timeout_s=300) is RunState.STOPPED
    (saved,) = run.checkpoints  # one, and it is whole
    saved.verify()
    assert [(beat.step, beat.phase) for beat in read_heartbeats(run.files)] == [(saved.step, "done")] * 2
    assert saved.step == run.step == run.own_history.last_step
    assert not ranks_of(run)
    return saved.step


@pytest.mark.promise("fault-4", "fault-7")
@pytest.mark.filterwarnings("ignore:the learning rate was")
@pytest.mark.slow
def test_a_preempted_training_loses_no_step_nor_without_supervisor(tiny: Path) -> None:
    first = nt.launch(tiny)
    preempted(first, "supervisor")
    second = nt.resume(first)
    assert resumed_step(second.info) == first.step
    last = preempted(second, "agent") + 10
    third = nt.resume(second, args=["--max-steps", str(last)])
    eventually(lambda: len(ranks_of(third)) == 2)
    supervisor_of(third).kill()
    assert third.state is RunState.RUNNING
    assert third.wait(timeout_s=300) is RunState.SUCCEEDED  # nobody but rank 0 was left to tell
    assert not third.files.exit.exists()
    assert (third.step, third.returncode) == (last, None)
    assert third.history["train/loss"].steps.tolist() == list(range(1, last + 1))
    assert [checkpoint.step for checkpoint in third.checkpoints] == [last]
    eventually(lambda: not members(third.files))


@pytest.mark.promise("fault-3")
@pytest.mark.slow
def test_ranks_in_the_middle_of_training_end_with_their_agent(tiny: Path) -> None:
    run = nt.launch(tiny)
    at_step(run, 4)
    ranks, supervisor = ranks_of(run), supervisor_of(run)
    assert len(ranks) == 2
    processes_of(run)["agent"].kill()
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert living(ranks) == []
    assert (run.failure.rank, run.failure.signal) == (None, "SIGKILL")
    eventually(lambda: not supervisor.is_running())


# --- saving ---------------------------------------------------------------------------------------

SAVES_SLOWLY = """
import time
import torch
from nbtools.recipes import MLMPretrainingConfig
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.worker import run

def train(worker, config):
    def write_model(folder):
        with (folder / "weights").open("wb", buffering=0) as file:
            file.write(bytes(100_000))
            while worker.progress.step > 1 and not (worker.files.path / "finish").exists():
                file.write(bytes(1000))
                time.sleep(0.05)

    for step in range(1, 1_000_000):
        worker.progress.step = step
        worker.phase("forward")
        time.sleep(0.02)
        stop = worker.stop_agreed()
        if step == 1 or stop:
            worker.save({}, {"optimizer": {0: torch.ones(3)}}, {}, write_more=write_model)
        if stop:
            break

run(train, Flags(MLMPretrainingConfig()))
"""


@pytest.fixture
def saving(project: Project) -> Run:
    """A run under torchrun that has one checkpoint, was asked to stop, and is in the middle of saving the next."""
    script = project.scripts / "saves_slowly.py"
    script.write_text(SAVES_SLOWLY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is no plain script
        run = nt.launch(script, gpus=())
    eventually(lambda: run.checkpoints)
    supervisor_of(run).terminate()
    half_made = run.files.checkpoints.glob
    eventually(lambda: any(path.stat().st_size > 101_000 for path in half_made(".step-*.tmp/model/weights")))
    return run


def steps_seen_until_the_end(run: Run) -> list[int]:
    """Look at the checkpoints again and again until the run has ended; each that is ever listed is whole."""
    while not (ended := run.state.is_final) or members(run.files):
        for checkpoint in run.checkpoints:
            checkpoint.verify()
        time.sleep(0 if ended else 0.02)
    for checkpoint in run.checkpoints:
        checkpoint.verify()
    return [checkpoint.step for checkpoint in run.checkpoints]


@pytest.mark.promise("fault-8")
@pytest.mark.slow
def test_further_signals_while_saving_change_nothing(saving: Run) -> None:
    (rank,) = ranks_of(saving)
    for process in (supervisor_of(saving), processes_of(saving)["agent"], rank, rank):
        process.terminate()
    for process in (supervisor_of(saving), rank):
        process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert [checkpoint.step for checkpoint in saving.checkpoints] == [1]
    (saving.dir / "finish").touch()
    steps = steps_seen_until_the_end(saving)
    assert saving.state is RunState.STOPPED
    assert steps == [1, saving.step]
    assert saving.step > 1


@pytest.mark.promise("fault-8")
@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "torchrun"])
def test_a_save_that_is_killed_leaves_the_older_checkpoint_whole(saving: Run, victim: str) -> None:
    (ranks_of(saving)[0] if victim == "rank" else processes_of(saving)["agent"]).kill()
    assert steps_seen_until_the_end(saving) == [1]
    assert saving.state is RunState.STOPPED  # as it was asked to


# --- output ---------------------------------------------------------------------------------------

FLOOD = """
import os, sys, time
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
for block in range(300):
    lines = (f"DEBUG loss of precision in sample {block * 10_000 + number}: " for number in range(10_000))
    os.write(1, "".join(f"{line:<98}x\\n" for line in lines).encode())
    os.write(1, b"step %d loss %.4f\\n" % (block, 300 - block))
print(time.process_time(), file=open(sys.argv[1], "w"))
"""
WATCHER = """
import json, re, sys, time
from pathlib import Path
from nbtools.notebook.panel.panel import LivePlot
from nbtools.run.run import Run

def peak_mb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1000

def read_mb():
    return int(re.search(r"rchar: (\\d+)", Path("/proc/self/io").read_text())[1]) / 1e6

run = Run(sys.argv[1])
panel = LivePlot(run, refresh_s=0.5)
panel.refresh()
before = time.process_time(), peak_mb(), read_mb()
Path(sys.argv[2]).touch()
run.wait()
while panel._thread is not None:  # its last look: a call of refresh would read again what that released
    time.sleep(0.05)
after = time.process_time(), peak_mb(), read_mb()
words = " ".join(part.value for part in panel._widgets.words.above) + panel._widgets.tabs.log.text.value
print(json.dumps([b - a for a, b in zip(before, after)]))
print(json.dumps([run.log(), words, panel._widgets.words.losses.value, run.metrics]))
"""


@pytest.mark.promise("fault-28")
@pytest.mark.slow
def test_a_flood_of_output_costs_the_notebook_little_and_its_end_is_shown(supervised: Start, project: Project) -> None:
    go = project.root / "go"
    run = supervised(sys.executable, "-c", FLOOD, go)
    eventually(run.files.log.exists)
    said = python("-c", WATCHER, run.dir, go)
    (cpu_s, grown_mb, read_mb), (log, words, notes, metrics) = map(json.loads, said.splitlines())
    size_mb = run.files.log.stat().st_size / 1e6
    run.files.log.unlink()  # pytest keeps the folder
    assert size_mb > 300
    lines = log.splitlines()
    assert len(lines) == 200
    assert lines[-1] == "step 299 loss 1.0000"
    assert [line.split()[6] for line in lines[:-1]] == [f"{number}:" for number in range(3_000_000 - 199, 3_000_000)]
    assert "step 299 loss 1.0000" in re.sub(r"<[^>]+>", "", words)
    assert metrics == {"train/loss": 1.0}
    assert notes == "", "nothing was skipped"
    assert cpu_s < 20 * float(go.read_text()), "7 times as much as the program; 110 where every line is parsed"
    assert grown_mb < 100
    assert read_mb < 1.1 * size_mb  # each byte at most once, and now and then the end
