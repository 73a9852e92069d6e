"""The table of a project's runs: complete, and cheap to look at however many there are."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtools.project import Project
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir

NUM_RUNS, NUM_LIVE = 100, 10

# In a process of its own, as a fresh kernel is: an audit hook cannot be taken away again.
LOOK = """
import json, sys
import nbtools as nt

touched = []
def note(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        touched.append(str(arguments[0]))
sys.addaudithook(note)
runs = nt.runs()
first = runs._repr_html_()
touched.clear()
again = runs._repr_html_()
print(json.dumps({"first": first, "again": again, "touched": touched}))
"""


@pytest.fixture
def hundred(project: Project) -> Iterator[list[RunDir]]:
    """A hundred runs, the first ten of them live, the others ended in one of four ways."""
    made, locks = [], []
    for index in range(NUM_RUNS):
        run = RunDir(project.runs / f"2026-01-31_14{index // 60:02d}{index % 60:02d}_run{index}")
        run.ranks.mkdir(parents=True)
        run.checkpoints.mkdir()
        lock = acquire_lock(run.lock)
        assert lock is not None
        write_json(run.launch, {"name": f"run{index}", "recipe": "mlm_pretraining", "time": time.time()})
        write_json(run.config, {"config": {}, "derived": {"total_steps": 400}})
        write_json(
            run.heartbeat(0),
            {"rank": 0, "pid": 1, "host": "h", "step": 100 + index, "phase": "forward", "time": time.time()},
        )
        run.log.touch()
        rows = ({"step": step, "time": 1e9 + step, "train/loss": 1 / step} for step in range(1, 101 + index))
        run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        if index < NUM_LIVE:
            locks.append(lock)
        else:
            os.close(lock)
            end(run, index)
        made.append(run)
    yield made
    for lock in locks:
        os.close(lock)


def end(run: RunDir, index: int) -> None:
    why = (None, "completed", "stopped", "failed")[index % 4]  # None: killed, so that no rank left a word
    if why is not None:
        write_json(run.finished, {"why": why, "step": 100 + index, "metrics": {}, "time": time.time()})
    code, stopped = 0 if why == "completed" else 1, why == "stopped"
    write_json(run.exit, {"returncode": code, "stopped": stopped, "failure": None, "time": time.time()})


@pytest.mark.promise("fault-30")
def test_a_second_look_at_a_hundred_runs_opens_no_file_of_those_that_have_ended(
    project: Project, hundred: list[RunDir]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, "NBTOOLS_ROOT": str(project.root)},
        cwd=project.root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["again"] == seen["first"]
    for index, run in enumerate(hundred):
        state = "RUNNING" if index < NUM_LIVE else ("FAILED", "SUCCEEDED", "STOPPED", "FAILED")[index % 4]
        assert f">{run.id}</td><td style='text-align:left'>{state}</td>" in seen["first"]
        assert f">{100 + index}/400<" in seen["first"]
    idle = {str(run.path) for run in hundred[NUM_LIVE:]}
    touched = [path for path in map(Path, seen["touched"]) if path.is_relative_to(project.runs)]
    assert touched, "the live runs are looked at"
    assert [path for path in touched if any(str(parent) in idle for parent in path.parents)] == []
