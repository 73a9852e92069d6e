"""The table of a project's runs: complete, and cheap to look at however many there are."""

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtools.cli.commands import main
from nbtools.project import Project
from nbtools.run import listing
from nbtools.run.run import Run, newest_metrics
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
def files(project: Project) -> RunDir:
    return RunDir.create(project.runs, "tiny")


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


def test_a_run_that_is_removed_while_runs_are_listed_is_passed_over(
    project: Project, files: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json(files.launch, {"name": "tiny", "time": time.time()})
    (script := project.script("tiny")).write_text("")
    gone = project.runs / "2026-01-01_000000_gone"
    monkeypatch.setattr(listing, "found_runs", lambda runs: [gone, files.path])
    monkeypatch.setattr(listing, "newest_first", lambda runs: iter([gone, files.path]))
    gone.symlink_to(project.root / "nowhere")
    assert listing.active_run(script, project) is None
    assert [run.id for run in listing.newest(project)] == [files.id]


# In a process of its own, as above: the files of runs that a function opens.
COUNT = """
import contextlib, io, json, sys
from pathlib import Path
from nbtools.cli.commands import main
from nbtools.project import find_project
from nbtools.run.listing import active_run
from nbtools.rundir.rundir import find_run

opened = []
def note(event, arguments):
    if event == "open" and "/runs/" in str(arguments[0]):
        opened.append(str(arguments[0]))
sys.addaudithook(note)
def count(act):
    opened.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        act()
    return [len(opened), len({path.split("/runs/")[1].split("/")[0] for path in opened})]
project = find_project()
Path("scripts/none.py").touch()
print(json.dumps({
    "runs": count(lambda: main(["runs"])),
    "n": count(lambda: main(["runs", "-n", "3"])),
    "all": count(lambda: main(["runs", "--all"])),
    "find": count(lambda: (find_run(project.runs, "latest"), find_run(project.runs, "2025-01-09"))),
    "active": count(lambda: active_run(Path("scripts/none.py"), project)),
}))
"""


@pytest.fixture
def spread(project: Project) -> list[RunDir]:
    """A hundred ended runs, one every four days."""
    made = []
    for index in range(NUM_RUNS):
        started = datetime.datetime(2025, 1, 1, 12) + datetime.timedelta(days=4 * index)
        run = RunDir(project.runs / f"{started:%Y-%m-%d_%H%M%S}_run{index}")
        run.ranks.mkdir(parents=True)
        run.lock.touch()
        write_json(run.launch, {"name": f"run{index}", "recipe": "mlm_pretraining", "time": started.timestamp()})
        write_json(run.config, {"config": {}, "derived": {"total_steps": 400}})
        run.metrics.write_text('{"step": 3, "train/loss": 0.5}\n')
        end(run, index)
        made.append(run)
    return made


@pytest.mark.promise("safety-many-runs")
def test_a_list_opens_files_in_proportion_to_the_runs_that_it_shows(project: Project, spread: list[RunDir]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNT], cwd=project.root, capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(done.stdout)
    assert found["all"][1] == NUM_RUNS
    assert found["all"][0] <= 2 * 6 * NUM_RUNS  # six files of a run; `open` with an opener is two events
    assert found["runs"][1] <= 20 + 2
    assert found["runs"][0] <= 2 * 6 * 20 + 4
    assert found["n"][1] <= 3 + 2
    assert found["find"][1] <= 2, "the time of a launch is in its launch.json, and a neighbour's clock may differ"
    assert found["active"] == [0, 0]


def test_the_list_takes_a_number_a_state_or_all(
    project: Project, hundred: list[RunDir], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.root)

    def listed(*words: str) -> list[str]:
        assert main(["runs", *words]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]

    newest = [run.id for run in reversed(hundred)]
    assert listed() == newest[:20]
    assert listed("-n", "3") == newest[:3]
    assert listed("--all") == newest
    assert listed("--state", "RUNNING", "--all") == newest[-NUM_LIVE:]
    assert listed("--state", "succeeded", "-n", "2") == [run.id for run in hundred if number(run) % 4 == 1][:-3:-1]
    assert main(["runs", "--json", "-n", "2"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["step"], first["metrics"]) == (199, {"train/loss": 1 / 199})


def number(run: RunDir) -> int:
    return int(run.id.rpartition("run")[2])


def test_the_step_of_a_killed_run_is_read_from_the_end_of_its_rows(files: RunDir) -> None:
    rows = ({"step": step, "time": 1e9 + step, "train/loss": 1 / step} for step in range(1, 20_001))
    files.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_json(files.launch, {"name": "killed", "recipe": "mlm_pretraining"})
    write_json(files.exit, {"returncode": 1, "stopped": False})
    run = Run(files.path)
    assert (run.step, newest_metrics(run)) == (20_000, {"train/loss": 1 / 20_000})
    assert run._own.num_rows == 0, "the whole file was read"
