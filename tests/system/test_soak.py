"""Faults at random, for minutes: nothing is left behind, and training ends where it would have ended without them.

    python -m pytest -m soak

The seeds are fixed, so that the same victims are chosen each time; when exactly they are hit is up to the machine.
"""

import contextlib
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import psutil
import pytest
import torch
from launched import processes_of
from safetensors.torch import load_file
from tiny_mlm import tiny_mlm
from waiting import eventually

import nbtools as nt
from nbtools.machine.processes import members
from nbtools.project import Project
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.training.engine.checkpoint import load_state

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


NUM_FAULTS = 20
CONFIG = tiny_mlm(
    batch_size=16,
    max_steps=800,
    epochs=10_000,
    num_layers=2,
    num_heads=4,
    hidden_size=64,
    sequence_length=64,
    log_every=5,
    eval_every=1000,
    checkpoint_every=5,
    keep_last=5,
    checkpoint_epochs=False,
)
KERNEL = """
import sys, time
import nbtools as nt
run = nt.launch(sys.argv[1]) if len(sys.argv) > 1 else nt.Run.latest()
panel = nt.LivePlot(run, refresh_s=0.5)
print(run.id, flush=True)
while True:
    time.sleep(1)
"""


@pytest.fixture
def texts(cpu_project: Project) -> Project:
    """A project with 60 small documents, on the CPU."""
    words = [f"w{number}" for number in range(40)]
    (cpu_project.root / "texts").mkdir()
    for number in range(60):
        text = " ".join(words[(number + step * step) % 40] for step in range(200))
        (cpu_project.root / "texts" / f"{number:02}.txt").write_text(text)
    return cpu_project


@pytest.fixture
def kernel(project: Project) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Start a process that does what a notebook's kernel does: launch or re-attach, and draw."""
    started: list[subprocess.Popen[str]] = []

    def begin(*script: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", KERNEL, *script], cwd=project.root, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def last_state(run: Run) -> dict[str, torch.Tensor]:
    """Every tensor of weights and optimizer after the last step."""
    checkpoint = Checkpoint.read(run.files.checkpoint(CONFIG.max_steps or 0))
    checkpoint.verify()
    found = load_file(checkpoint.path / "model" / "model.safetensors")
    moments = load_state(checkpoint.path)["optimizer"]
    assert len(moments) > 5
    return found | {f"{weight}/{name}": value for weight, state in moments.items() for name, value in state.items()}


def choose(run: Run, kernel: psutil.Process, chance: random.Random) -> tuple[str, psutil.Process] | None:
    """A living victim of a role that chance chose; None if that role is not filled right now."""
    roles = {"kernel": kernel, **processes_of(run)}
    role = chance.choice(["0", "1", "agent", "supervisor", "kernel"])
    return (role, roles[role]) if role in roles else None


def test_faults_change_no_weight(texts: Project, kernel: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    script = nt.write_script(
        CONFIG, "soak", nt.Launch(nproc_per_node=2, gpus=(), max_restarts=100, shutdown_timeout_s=20)
    )
    undisturbed = nt.launch(script, max_restarts=0)
    assert undisturbed.wait(timeout_s=900) is RunState.SUCCEEDED
    expected = last_state(undisturbed)

    chance = random.Random(0)
    watcher, run_id = kernel(str(script))
    run, all_runs, faults = Run(run_id), [run_id], []
    while not (run.state is RunState.SUCCEEDED and run.step == CONFIG.max_steps):
        if run.state.is_final:  # nobody was left to start it again, so a person does
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what was passed over
                run = nt.resume(run)
            all_runs.append(run.id)
        saved = max((checkpoint.step for checkpoint in run.checkpoints), default=0)
        eventually(lambda: run.state.is_final or any(c.step > saved for c in run.checkpoints), 300)  # noqa: B023
        if len(faults) == NUM_FAULTS:
            eventually(lambda: run.state.is_final, 900)  # noqa: B023
            continue
        time.sleep(chance.uniform(0, 1))
        victim = choose(run, psutil.Process(watcher.pid), chance)
        if victim is None or run.state.is_final:
            continue
        role, process = victim
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            faults.append(f"{role} at step {run.step}")
        if role == "kernel":
            watcher.wait()
            watcher, run_id = kernel()
            assert run_id == run.id  # re-attached, whatever it did meanwhile
    print(f"\n{len(faults)} faults, {len(all_runs)} runs: {'; '.join(faults)}")
    assert len(faults) == NUM_FAULTS, "training ended too early for all of them"
    reached = last_state(run)
    assert reached.keys() == expected.keys()
    assert [name for name in reached if not torch.equal(reached[name], expected[name])] == []
    assert run.history["train/loss"].steps.tolist() == undisturbed.history["train/loss"].steps.tolist()
    assert run.history["train/loss"].values.tolist() == undisturbed.history["train/loss"].values.tolist()
    for name in all_runs:
        eventually(lambda: not members(Run(name).files))  # noqa: B023
