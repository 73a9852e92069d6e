"""Programs and runs that tests have started: their output, their processes by role, and waiting for their steps."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import indent
from typing import Any

import psutil
from waiting import eventually

from nbtools.machine.processes import members
from nbtools.run.run import Run
from nbtools.rundir.heartbeat import read_heartbeats

PROGRAMS = Path(__file__).parent / "programs"
TRAINER = PROGRAMS / "fake_trainer.py"


def agent(*script_and_args: str | Path, nproc: int = 2, shutdown_timeout_s: float = 5) -> list[str | Path]:
    """Return the command of a stand-in for torchrun that starts a script on each rank."""
    options = (f"--nproc-per-node={nproc}", f"--shutdown-timeout={shutdown_timeout_s}")
    return [sys.executable, PROGRAMS / "fake_agent.py", *options, *script_and_args]


def at_step(run: Run, step: int, num_ranks: int = 2) -> None:
    """Wait until all ranks have reached a step."""
    eventually(lambda: [beat.step >= step for beat in read_heartbeats(run.files)] == [True] * num_ranks)


def processes_of(run: Run) -> dict[str, psutil.Process]:
    """Return the living processes of a run by role: supervisor, agent, and the ranks by number."""
    found = {}
    for process in members(run.files):
        try:
            rank, command = process.environ().get("RANK"), " ".join(process.cmdline())
        except psutil.Error:  # it has ended meanwhile
            continue
        found[rank or ("supervisor" if "nbtools.launcher.supervisor" in command else "agent")] = process
    return found


def supervisor_of(run: Run) -> psutil.Process:
    """Return the supervisor that a run records."""
    assert run.records.process is not None
    return psutil.Process(run.records.process.pid)


def ranks_of(run: Run) -> list[psutil.Process]:
    """Return the living ranks of a run."""
    return [process for role, process in processes_of(run).items() if role.isdigit()]


def record_launch(run_dir: Path, cwd: Path | str, *args: str, age_s: float = 100, **more: Any) -> None:
    """Write the launch.json of a program that was started some seconds ago in a working directory."""
    content = {"time": time.time() - age_s, "cwd": str(cwd), "args": args, **more}
    (run_dir / "launch.json").write_text(json.dumps(content))


def python(*words: str | Path, cwd: Path | None = None, code: int = 0, **variables: str) -> str:
    """Run Python with further environment variables to its end, and return what it printed."""
    command, environment = [sys.executable, *map(str, words)], {**os.environ, **variables}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def write_torch_free(folder: Path, torchrun: str) -> None:
    """Write a package that stands in for torch, whose torchrun does what this program does."""
    (folder / "torch" / "distributed").mkdir(parents=True)
    main = f"def main():\n{indent(torchrun, '    ')}"
    texts = {"__init__": "", "version": "cuda = None\n", "distributed/__init__": "", "distributed/run": main}
    for name, text in texts.items():
        (folder / "torch" / f"{name}.py").write_text(text)
