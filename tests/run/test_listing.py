"""The table of a project's runs: complete, and cheap to look at however many there are."""

import datetime
import json
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch, Printed
from launched import python
from run_folder import RunFolder

from nbtools.cli.commands import main
from nbtools.cli.output import print_run, status_lines
from nbtools.errors import ConfigError
from nbtools.machine import slurm
from nbtools.notebook.board.runs import runs
from nbtools.project import Project, user_cache
from nbtools.run import listing
from nbtools.run.listing import NUM_STORED, Rows, RunList, RunRow
from nbtools.run.run import Run
from nbtools.run.state import waiting_for
from nbtools.rundir.json_files import write_json
from nbtools.rundir.names import label
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir

from slurm_cluster import SlurmCluster

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


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def files(project: Project) -> RunDir:
    return RunDir.create(project.runs, "tiny")


@pytest.fixture
def hundred(project: Project) -> Iterator[list[RunDir]]:
    """A hundred runs, the last ten of them live, the others ended in one of four ways."""
    made = []
    for index in range(NUM_RUNS):
        files = RunDir(project.runs / f"2026-01-31_14{index // 60:02d}{index % 60:02d}_run{index}")
        run = RunFolder(files, time.time(), total_steps=400, name=f"run{index}")
        run.start()
        run.beat(0, 100 + index)
        run.write([{"step": step, "time": 1e9 + step, "train/loss": 1 / step} for step in range(1, 101 + index)])
        if index < NUM_RUNS - NUM_LIVE:
            end(run, index)
        made.append(run)
    yield [run.files for run in made]
    for run in made:
        run.release()


def end(run: RunFolder, index: int) -> None:
    why = (None, "completed", "stopped", "failed")[index % 4]  # None: killed, so that no rank left a word
    if why is not None:
        write_json(run.files.finished, {"why": why, "step": 100 + index, "metrics": {}, "time": time.time()})
    run.end(0 if why == "completed" else 1, stopped=why == "stopped")


@pytest.mark.promise("fault-30")
def test_a_second_look_at_a_hundred_runs_opens_no_ended_one(project: Project, hundred: list[RunDir]) -> None:
    seen = json.loads(python("-c", LOOK, cwd=project.root))
    assert seen["again"] == seen["first"]
    assert f">and {NUM_RUNS - NUM_STORED} earlier runs<" in seen["first"]
    for index, run in [*enumerate(hundred)][-NUM_STORED:]:
        state = "RUNNING" if index >= NUM_RUNS - NUM_LIVE else ("FAILED", "SUCCEEDED", "STOPPED", "FAILED")[index % 4]
        assert f">{run.id}</td><td style='text-align:left'>{state}</td>" in seen["first"]
        assert f">{100 + index}/400<" in seen["first"]
    idle = {str(run.path) for run in hundred[:-NUM_LIVE]}
    touched = [path for path in map(Path, seen["touched"]) if path.is_relative_to(project.runs)]
    assert touched, "the live runs are looked at"
    assert [path for path in touched if any(str(parent) in idle for parent in path.parents)] == []


def test_a_run_removed_meanwhile_is_passed_over(project: Project, files: RunDir, monkeypatch: MonkeyPatch) -> None:
    write_json(files.launch, {"name": "tiny", "time": time.time()})
    (script := project.script("tiny")).write_text("")
    gone = project.runs / "2026-01-01_000000_gone"
    monkeypatch.setattr(listing, "found_runs", lambda runs: [gone, files.path])
    monkeypatch.setattr(listing, "newest_first", lambda runs: iter([gone, files.path]))
    gone.symlink_to(project.root / "nowhere")
    assert listing.active_run(script, project) is None
    assert [row.id for row in listing.Rows(project.runs).newest()] == [files.id]


# In a process of its own, as above: the files of runs that a function opens.
COUNT = """
import contextlib, io, json, os, sys
from pathlib import Path
from nbtools.cli.commands import main
from nbtools.cli.output import print_run, status_lines
from nbtools.machine import slurm
from nbtools.project import find_project
from nbtools.run.listing import active_run
from nbtools.rundir.names import find_run

opened = []
def note(event, arguments):
    if event == "open" and "/runs/" in str(arguments[0]) and "/nbtools/runs/" not in str(arguments[0]):
        opened.append(str(arguments[0]))
sys.addaudithook(note)
def count(act, cache="other"):
    os.environ["XDG_CACHE_HOME"] = str(Path(cache).absolute())
    opened.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        act()
    return [len(opened), len({path.split("/runs/")[1].split("/")[0] for path in opened})]
project = find_project()
Path("scripts/none.py").touch()
print(json.dumps({
    "runs": count(lambda: main(["runs"]), "first"),
    "n": count(lambda: main(["runs", "-n", "3"]), "second"),
    "all": count(lambda: main(["runs", "--all"])),
    "again": count(lambda: main(["runs", "--all"])),
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
        files = RunDir(project.runs / f"{started:%Y-%m-%d_%H%M%S}_run{index}")
        run = RunFolder(files, started.timestamp(), total_steps=400, name=f"run{index}")
        files.lock.touch()
        run.row(3, 1e9, train_loss=0.5)
        end(run, index)
        made.append(files)
    return made


@pytest.mark.promise("safety-many-runs")
def test_a_list_opens_files_in_proportion_to_the_runs_that_it_shows(project: Project, spread: list[RunDir]) -> None:
    found = json.loads(python("-c", COUNT, cwd=project.root))
    assert found["all"][1] == NUM_RUNS
    assert found["again"] == [0, 0], "an ended run is read once"
    assert found["all"][0] <= 2 * 6 * NUM_RUNS  # six files of a run; `open` with an opener is two events
    assert found["runs"][1] <= 20 + 2
    assert found["runs"][0] <= 2 * 6 * 20 + 4
    assert found["n"][1] <= 3 + 2
    assert found["find"][1] <= 2, "the time of a launch is in its launch.json, and a neighbour's clock may differ"
    assert found["active"] == [0, 0]


def test_the_list_takes_a_state(
    project: Project, hundred: list[RunDir], monkeypatch: MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(project.root)

    def listed(*words: str) -> list[str]:
        assert main(["runs", *words]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]

    newest = [run.id for run in reversed(hundred)]
    assert listed() == newest[:20]
    assert listed("-n", "3") == newest[:3]
    assert listed("--all") == newest
    assert listed("--state", "RUNNING", "--all") == newest[:NUM_LIVE]
    assert listed("--state", "succeeded", "-n", "2") == [hundred[index].id for index in (89, 85)]
    assert main(["runs", "--json", "-n", "2"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert (first["step"], first["metrics"]) == (199, {"train/loss": 1 / 199})


def test_a_run_that_ends_while_its_row_is_read_is_not_lost(files: RunDir, monkeypatch: MonkeyPatch) -> None:
    write_json(files.launch, {"name": "tiny", "time": time.time()})
    files.lock.touch()

    def ends_now(lock: Path) -> bool:
        write_json(files.exit, {"returncode": 0, "time": time.time()})
        return False

    monkeypatch.setattr("nbtools.rundir.rundir.is_locked", ends_now)
    rows = Rows(files.path.parent)
    assert rows.row(files.id).state == "SUCCEEDED"
    files.exit.unlink()
    assert rows.run(files.id).summary(brief=True)["state"] == "SUCCEEDED"


def test_the_step_of_a_killed_run_is_read_from_the_end_of_its_rows(files: RunDir) -> None:
    rows = ({"step": step, "time": 1e9 + step, "train/loss": 1 / step} for step in range(1, 20_001))
    files.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    write_json(files.launch, {"name": "killed", "recipe": "mlm_pretraining"})
    write_json(files.exit, {"returncode": 1, "stopped": False})
    run = Run(files.path)
    assert (run.step, run.rows.newest_metrics) == (20_000, {"train/loss": 1 / 20_000})
    assert run.rows._written.num_rows == 0, "the whole file was read"


@pytest.mark.needs("slurm")
def test_a_job_shows_its_nodes_reason_and_end(files: RunDir, slurm_cluster: SlurmCluster, capsys: Printed) -> None:
    number = slurm_cluster.submit("sleep 300", f"--job-name={files.id}", "--time=5", "--hold")
    write_json(files.launch, {"name": "tiny", "recipe": "mlm_pretraining", "time": 1.0, "launch": {"cluster": {}}})
    write_json(files.slurm, {"job_id": number, "time": time.time()})
    write_json(files.config, {"config": {}, "derived": {"total_steps": 1_000}})
    slurm.forget()
    run = Run(files)

    def row() -> RunRow:
        rows = Rows(files.path.parent)
        return rows.completed(rows.row(files.id))

    now = row()
    assert (now.state, now.step, now.total_steps, now.started_at) == ("QUEUED", 0, 1000, 1.0)
    assert now.problem == waiting_for(run.records) != ""

    slurm_cluster.call("scontrol", "release", str(number))
    slurm_cluster.wait_until(number, "RUNNING")
    slurm.forget()
    write_json(files.process, ProcessIdentity.of(os.getpid()).to_json())
    files.log.touch()
    rows = (f'{{"step": {step}, "time": {100 + step}.0, "loss": 1}}\n' for step in range(1, 20))
    files.metrics.write_text("".join(rows))
    assert re.fullmatch(rf"job {number} on n[12] ends in 0:0[45]:\d\d, before the training", row().problem)
    job = run.summary()["job"]
    assert (job["id"], job["state"]) == (number, "RUNNING")
    assert 0 < job["time_left_s"] <= 300 < run.summary()["eta_s"]
    print_run(run.summary())
    assert re.search(rf"^job +{number} RUNNING n[12], ends in .*, before the training$", capsys.readouterr().out, re.M)
    assert f"job {number} on n" in status_lines(run)[1]

    write_json(files.exit, {"returncode": 0, "stopped": False, "time": time.time()})
    assert (row().problem, run.summary()["job"]["id"], run.summary()["job"]["state"]) == ("", number, None)


def test_a_row_that_was_kept_is_read_again_when_labels_or_the_end_change(files: RunDir) -> None:
    write_json(files.launch, {"name": "tiny", "recipe": "mlm_pretraining", "time": 1.0, "script": "/p/tiny.py"})
    write_json(files.finished, {"why": "failed", "step": 7, "metrics": {"train/loss": "NaN", "eval/loss": 2.0}})
    write_json(files.exit, {"returncode": 1, "stopped": False, "time": 11.0})
    (read := Rows(files.path.parent)).every()
    read.save()
    assert [row.name for row in Rows(files.path.parent).every()] == ["tiny"]
    (row,) = Rows(files.path.parent).every()
    assert (row.state, row.step, row.duration_s, row.script) == ("FAILED", 7, 10.0, "tiny.py")
    assert row.loss is not None and math.isnan(row.loss)
    label(files, name="good", tags=["a", "b"], note="kept")
    write_json(files.exit, {"returncode": 0, "stopped": False, "time": 12.0})
    (row,) = Rows(files.path.parent).every()
    assert (row.state, row.name, row.tags, row.note) == ("SUCCEEDED", "good", ("a", "b"), "kept")


@pytest.mark.parametrize("how", ["no json", "a pipe", "a number", "wrong types", "a state", "too short", "newer"])
def test_a_damaged_or_forged_cache_of_rows_counts_as_none(files: RunDir, how: str) -> None:
    write_json(files.launch, {"name": "tiny", "time": 1.0})
    write_json(files.exit, {"returncode": 0, "stopped": False, "time": 11.0})
    (rows := Rows(files.path.parent)).every()
    rows.save()
    path = user_cache("runs", files.path.parent)
    content = json.loads(path.read_text())
    _, values = content["runs"][files.id]
    if how == "a pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        if how == "wrong types":
            values[0] = ["<script>"]
        elif how == "a state":
            values[3] = "<b>"
        elif how == "too short":
            del values[3:]
        elif how == "newer":
            content["format"] = 99
        text = {"no json": "{", "a number": '{"runs": {"x": 3}}'}.get(how) or json.dumps(content)
        path.write_text(text)
    (row,) = Rows(files.path.parent).every()
    assert (row.name, row.state) == ("tiny", "SUCCEEDED")


def test_runs_are_a_sequence_that_keeps_its_table_when_cut(project: Project, hundred: list[RunDir]) -> None:
    found = runs(project)
    assert (len(found), found[0].id, found[-1].id) == (NUM_RUNS, hundred[-1].id, hundred[0].id)
    assert found[0] is found[0]
    assert isinstance(found[:2], RunList) and hundred[-2].id in found[:2]._repr_html_()
    assert hundred[-3].id not in found[:2]._repr_html_()
    assert [run.id for run in runs(project, state="running")] == [run.id for run in reversed(hundred[90:])]
    assert runs(project, name="run1?", recipe="mlm_pretraining")[0].id == hundred[19].id
    assert not runs(project, recipe="llm_gan")
    with pytest.raises(ConfigError, match="must be one of QUEUED"):
        runs(project, state="DONE")
    assert repr(runs(project, name="run3")).startswith("<1 run: ")
