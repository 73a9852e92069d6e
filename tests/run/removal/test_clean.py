"""Making room: only what has ended goes, whole or not at all, and only after it was listed and allowed."""

import hashlib
import io
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Cli, MonkeyPatch, Start
from run_folder import RunFolder, held
from waiting import eventually

import nbtools as nt
from nbtools.errors import RunNotFoundError
from nbtools.machine.processes import members
from nbtools.project import Project
from nbtools.run import lineage
from nbtools.run.removal import clean
from nbtools.run.removal.clean import CACHE, RemovalPlan, in_use, plan_removal, remove
from nbtools.run.removal.disk_usage import num_bytes_in, survey
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir, run_folders

from capabilities import ANOTHER_UID

DAY_S = 86_400.0
ENDS = {"SUCCEEDED": 0, "FAILED": 1}
"""The exit code of a run's processes by the state in which it ended."""


def made(
    project: Project,
    name: str,
    state: str = "SUCCEEDED",
    *,
    days_ago: float = 10,
    parent: RunDir | None = None,
    started_from: str = "step-000010",
    size: int = 1000,
) -> RunDir:
    """A run that has ended, as its processes would have left it."""
    files = RunDir(project.runs.resolve() / f"2026-01-01_000000_{name}")
    ended = time.time() - days_ago * DAY_S
    origin = None if parent is None else {"run": parent.id, "checkpoint": started_from, "step": 10}
    run = RunFolder(files, ended - 10, name=name, resumed_from=origin)
    files.lock.touch()
    run.say("x" * size)
    if state in ENDS:
        run.end(ENDS[state], at=ended)
    return files


def saved(files: RunDir, step: int, loss: float = math.nan, content: bytes = b"state", damaged: bool = False) -> Path:
    """A checkpoint of a run."""
    path = files.checkpoint(step)
    path.mkdir()
    (path / "state.pt").write_bytes(content[:-1] if damaged else content)
    claim = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    metrics = {"eval/loss": loss} if math.isfinite(loss) else {}
    write_json(path / "manifest.json", {"step": step, "time": 1.0, "metrics": metrics, "files": {"state.pt": claim}})
    return path


def names(what: RemovalPlan) -> set[str]:
    return {item.path.name.removeprefix("2026-01-01_000000_") for item in what.items}


def left(project: Project) -> set[str]:
    return {path.name.removeprefix("2026-01-01_000000_") for path in run_folders(project.runs)}


def everything(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


# --- choosing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, set()),
        ({"older_than_s": 30 * DAY_S}, {"old"}),
        ({"older_than_s": 0.0}, {"old", "good", "bad"}),
        ({"states": [RunState.FAILED]}, {"old", "bad"}),
        ({"states": [RunState.FAILED], "older_than_s": 30 * DAY_S}, {"old"}),
        ({"states": [RunState.FAILED, RunState.SUCCEEDED]}, {"old", "good", "bad"}),
        ({"refs": ["2026-01-01_000000_g"]}, {"good"}),
        ({"refs": ["2026-01-01_000000_good"], "older_than_s": 30 * DAY_S}, set()),
    ],
)
def test_runs_are_chosen_by_name_age_and_state(project: Project, options: dict[str, Any], chosen: set[str]) -> None:
    made(project, "old", "FAILED", days_ago=40)
    made(project, "good", days_ago=10)
    made(project, "bad", "FAILED", days_ago=10)
    before = everything(project.root)
    assert names(plan_removal(project.runs, **options)) == chosen
    assert everything(project.root) == before


def test_a_plan_says_what_goes_and_how_much(project: Project) -> None:
    run = made(project, "a", size=5000)
    saved(run, 10)
    (item,) = plan_removal(project.runs, [run.id]).items
    assert (item.path, item.num_bytes) == (run.path, num_bytes_in(run.path))
    assert item.num_bytes > 5000
    assert item.what.startswith("run, SUCCEEDED 20")
    (stored,) = survey(project.runs)
    assert stored.checkpoint_bytes == num_bytes_in(run.checkpoints) > 5


def test_active_runs_never_go(project: Project, supervised: Start) -> None:
    run = supervised("sleep", "600")
    queued = made(project, "queued", "none")
    queued.log.unlink()
    with held(queued):
        eventually(lambda: run.state is RunState.RUNNING)
        chosen = plan_removal(project.runs, [run.id, queued.id])
        assert chosen.items == ()
        assert dict(chosen.kept) == {run.id: "is RUNNING", queued.id: "is QUEUED"}
        assert plan_removal(project.runs, older_than_s=0).items == ()
        run.stop()
    assert names(plan_removal(project.runs, [run.id])) == {run.id}


def test_a_lost_run_may_go_unless_it_was_started_a_moment_ago(project: Project) -> None:
    assert names(plan_removal(project.runs, [made(project, "lost", "none").id])) == {"lost"}
    starting = made(project, "starting", "none", days_ago=0)
    assert plan_removal(project.runs, [starting.id]).kept == ((starting.id, "was started less than a minute ago"),)


def test_a_parent_stays_as_long_as_a_child_does(project: Project) -> None:
    parent = made(project, "parent", days_ago=90)
    child = made(project, "child", days_ago=60, parent=parent)
    grandchild = made(project, "grandchild", days_ago=1, parent=child)
    made(project, "leaf", days_ago=60, parent=parent)
    chosen = plan_removal(project.runs, older_than_s=30 * DAY_S)
    assert names(chosen) == {"leaf"}
    assert [name for name, _ in chosen.kept] == [child.id, parent.id]
    assert f"{grandchild.id} resumed it" in chosen.kept[0][1]
    remove(chosen)
    whole = plan_removal(project.runs, [parent.id, child.id, grandchild.id])
    assert names(whole) == {"parent", "child", "grandchild"}
    assert len(remove(whole)[0]) == 3
    assert left(project) == set()


def test_only_runs_of_this_project_can_be_named(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = made(Project(tmp_path_factory.mktemp("other")), "elsewhere")
    (project.runs / "no_run").mkdir()
    for ref in (elsewhere.path, project.root, project.runs / "no_run", str(project.runs / ".." / "scripts"), "no_run"):
        with pytest.raises(RunNotFoundError):
            plan_removal(project.runs, [ref])
    assert elsewhere.launch.exists()


def test_links_are_not_followed_and_no_runs(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = made(Project(tmp_path_factory.mktemp("other")), "outside")
    saved(outside, 10)
    saved(outside, 20)
    (project.runs / "2026-01-01_000000_linked").symlink_to(outside.path)
    inside = made(project, "inside")
    (inside.ranks / "link").symlink_to(outside.path)
    far = made(project, "far")
    far.checkpoints.rmdir()
    far.checkpoints.symlink_to(outside.checkpoints)
    before = everything(outside.path)
    assert plan_removal(project.runs, checkpoints=True).items == ()
    chosen = plan_removal(project.runs, ["2026-01-01_000000_linked", inside.id, far.id])
    assert names(chosen) == {"inside", "far"}
    assert "is a link" in dict(chosen.kept)["2026-01-01_000000_linked"]
    remove(chosen)
    assert everything(outside.path) == before
    assert left(project) == {"linked"}


# --- checkpoints and cache ------------------------------------------------------------------------


def test_the_newest_best_and_resumed_checkpoints_stay(project: Project) -> None:
    run = made(project, "a")
    for step, loss in ((10, 5.0), (20, 1.0), (30, 3.0), (40, 2.0)):
        saved(run, step, loss)
    saved(run, 50, 0.5, damaged=True)  # neither the newest nor the best: nobody could use it
    child = made(project, "child", parent=run, started_from="step-000010")
    made(project, "grandchild", parent=child, started_from="step-000030")  # the child had come to no checkpoint
    (run.checkpoints / ".step-000060.tmp").mkdir()
    saved(run, 5, 9.0)
    saved(run, 15)
    gone, kept = remove(plan_removal(project.runs, checkpoints=True))
    removed = {".step-000060.tmp", "step-000005", "step-000015", "step-000050"}
    assert {item.path.name for item in gone} == removed
    assert kept == []
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [f"step-0000{step}" for step in (10, 20, 30, 40)]
    assert left(project) == {"a", "child", "grandchild"}


def test_where_no_checkpoint_verifies_none_is_removed(project: Project) -> None:
    run = made(project, "a")
    for step in (10, 20):
        saved(run, step, damaged=True)
    chosen = plan_removal(project.runs, checkpoints=True)
    assert chosen.items == ()
    assert "none of its checkpoints verifies" in dict(chosen.kept)[run.id]


def test_the_cache_goes_when_nobody_can_be_reading_it(project: Project) -> None:
    cache = project.runs / CACHE / "0123"
    cache.mkdir(parents=True)
    (cache / "tokens.npy").write_bytes(b"x" * 500)
    run = made(project, "a", "none")
    with held(run):
        assert plan_removal(project.runs, cache=True).kept == ((CACHE, f"{run.id} may be reading it"),)
    chosen = plan_removal(project.runs, cache=True)
    assert (names(chosen), chosen.num_bytes) == ({CACHE}, 500)
    with held(run):
        assert remove(chosen)[1] == [(CACHE, f"{run.id} may be reading it")]
    remove(chosen)
    assert not (project.runs / CACHE).exists()
    assert left(project) == {"a"}


# --- doing ----------------------------------------------------------------------------------------


def test_what_becomes_active_after_the_plan_stays(project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "_PATIENCE_S", 0.2)
    run = made(project, "a")
    saved(run, 10)
    saved(run, 20)
    whole, parts = plan_removal(project.runs, [run.id]), plan_removal(project.runs, [run.id], checkpoints=True)
    before = everything(run.path)
    with held(run):
        assert remove(whole) == ([], [(run.id, "is in use")])
        assert remove(parts) == ([], [("step-000010", "is in use")])
    assert everything(run.path) == before


def test_a_look_at_the_state_does_not_stand_in_the_way(project: Project) -> None:
    run = made(project, "a")
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            clean.is_locked(run.lock)

    with ThreadPoolExecutor(2) as lookers:
        for _ in range(2):
            lookers.submit(look)
        try:
            assert remove(plan_removal(project.runs, [run.id]))[1] == []
        finally:
            done.set()


def test_a_run_from_which_another_went_on_after_the_plan_stays(project: Project) -> None:
    run = made(project, "a")
    for step in (10, 20, 30):
        saved(run, step)
    whole, parts = plan_removal(project.runs, [run.id]), plan_removal(project.runs, [run.id], checkpoints=True)
    child = made(project, "child", "none", parent=run, started_from="step-000020")
    (kept,) = remove(whole)[1]
    assert kept[0] == run.id
    assert child.id in kept[1]
    gone, stays = remove(parts)
    assert [item.path.name for item in gone] == ["step-000010"]
    assert stays == [("step-000020", f"{child.id} resumed from it")]


def test_a_run_that_is_being_resumed_is_in_use(project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "_PATIENCE_S", 0.2)
    run = made(project, "a", "none")
    chosen = plan_removal(project.runs, [run.id])
    with in_use(run), in_use(run):
        assert Run(run.path).state is RunState.LOST
        assert remove(chosen)[1] == [(run.id, "is in use")]
    assert remove(chosen)[1] == []
    with pytest.raises(RunNotFoundError, match="no longer in"), in_use(run):
        pass


def test_a_run_whose_lock_stays_held_cannot_be_resumed(project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "_PATIENCE_TO_SHARE_S", 0.1)
    run = made(project, "a")
    with held(run), pytest.raises(RunNotFoundError, match="lock is still held"), in_use(run):
        pass
    with in_use(run):
        assert run.path.exists()


def test_a_lost_run_whose_processes_live_stays(project: Project) -> None:
    run = made(project, "a", "none")
    environment = {**os.environ, "NBTOOLS_RUN_ID": run.id, "NBTOOLS_RUN_DIR": str(run.path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as process:
        eventually(lambda: members(run))  # the kernel shows an empty environment until exec is complete
        assert remove(plan_removal(project.runs, [run.id]))[1] == [
            (run.id, "some of its processes are alive: nbtools stop ends them")
        ]
        process.communicate(b"\n")
    assert remove(plan_removal(project.runs, [run.id]))[1] == []


@pytest.mark.promise("safety-lock")
def test_a_run_whose_recorded_process_lives_stays_although_its_lock_is_free(project: Project) -> None:
    run = made(project, "a", "none")
    write_json(run.process, {"role": "worker", **ProcessIdentity.of(os.getpid()).to_json()})
    reasons = [why for _, why in remove(plan_removal(project.runs, [run.id]))[1]]
    assert reasons == ["some of its processes are alive: nbtools stop ends them"]
    elsewhere = replace(ProcessIdentity.of(os.getpid()), host="node7", boot_id="that of node7")
    write_json(run.process, {"role": "supervisor", **elsewhere.to_json()})
    write_json(run.launch, {**(read_json(run.launch) or {}), "flock": False})
    assert "may run on node7" in str([remove(plan := plan_removal(project.runs, [run.id]))[1], plan.kept])
    assert run.path.is_dir()


def test_a_killed_removal_leaves_no_half_run_and_the_next_one_finishes_it(project: Project) -> None:
    run = made(project, "a")
    saved(run, 10)
    program = (
        "import time; from pathlib import Path; from nbtools.run.removal import clean\n"
        "clean._delete = lambda *_: (print('renamed', flush=True), time.sleep(600))\n"
        f"clean.remove(clean.plan_removal(Path({str(project.runs)!r}), [{run.id!r}]))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"renamed\n"
        process.kill()
    assert left(project) == set()
    assert nt.runs(project) == []
    (item,) = plan_removal(project.runs).items
    assert item.what == "left over by an interrupted clean"
    assert item.num_bytes > 1000
    assert remove(plan_removal(project.runs)) == ([item], [])
    assert [path.name for path in project.runs.iterdir()] == [".removed"]
    assert plan_removal(project.runs).items == ()


def test_two_removals_at_once_remove_everything_once(project: Project) -> None:
    for number in range(10):
        made(project, f"run{number}")
    chosen = plan_removal(project.runs, older_than_s=0)
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: remove(chosen), range(4)))
    assert sorted(item.path for gone, _ in done for item in gone) == sorted(item.path for item in chosen.items)
    assert left(project) == set()
    assert list((project.runs / ".removed").iterdir()) == []


def test_a_trap_in_place_of_the_hidden_folder_is_refused(project: Project, tmp_path_factory: Any) -> None:
    run = made(project, "a")
    target = tmp_path_factory.mktemp("target")
    (project.runs / ".removed").symlink_to(target)
    ((name, why),) = remove(plan_removal(project.runs, [run.id]))[1]
    assert name == run.id
    assert ".removed" in why
    assert left(project) == {"a"}
    assert list(target.iterdir()) == []


def swapped_for(path: Path, other: Path, how: str) -> None:
    """Put a link to another folder, or that folder, in the place of a folder, as another user can."""
    path.rename(path.with_name("moved away"))
    if how == "link":
        path.symlink_to(other)
    else:
        other.rename(path)


@pytest.mark.promise("safety-swapped")
@pytest.mark.parametrize("how", ["link", "folder"])
@pytest.mark.parametrize("when", ["after the plan", "at the last moment"])
@pytest.mark.parametrize("place", ["run", "checkpoint", "checkpoints", "leftover", ".removed", "cache"])
def test_what_takes_the_place_of_a_listed_folder_is_never_deleted(
    project: Project, tmp_path_factory: Any, monkeypatch: MonkeyPatch, place: str, when: str, how: str
) -> None:
    run = made(project, "a")
    saved(run, 10), saved(run, 20)
    home = tmp_path_factory.mktemp("home")
    for name in (run.id, "step-000010", "old"):
        (home / name).mkdir()
        (home / name / "precious").write_text("mine")
    for hidden in (".removed/old", ".cache"):
        (project.runs / hidden).mkdir(parents=True)
    takes_checkpoint = place.startswith("checkpoint")
    selected: dict[str, Any] = {"checkpoints": takes_checkpoint, "cache": place == "cache"}
    plan = plan_removal(project.runs, [run.id], **selected)
    target = {
        "run": run.path,
        "checkpoint": run.checkpoint(10),
        "checkpoints": run.checkpoints,
        "leftover": project.runs / ".removed" / "old",
        ".removed": project.runs / ".removed",
        "cache": project.runs / ".cache",
    }[place]
    other = home if place in (".removed", "checkpoints", "cache") else home / target.name
    swaps = [(target, other, how)]
    if when == "after the plan":
        swapped_for(*swaps.pop())
    else:  # between the last check by path and the move
        open_folder = clean.open_folder

        def late(folder: Path, *parts: str) -> Any:
            if swaps and (project.runs.resolve() / Path(*parts)) in (target.resolve().parent, target.resolve()):
                swapped_for(*swaps.pop())
            return open_folder(folder, *parts)

        monkeypatch.setattr(clean, "open_folder", late)
    remove(plan)
    assert not swaps
    precious = sorted([*home.rglob("precious"), *project.runs.rglob("precious")])
    assert len(precious) == 3, precious


@pytest.mark.needs("another user")
@pytest.mark.promise("safety-swapped")
def test_another_users_hidden_folder_stays_and_the_run_is_still_removed(project: Project) -> None:
    run = made(project, "a")
    (project.runs / ".removed" / "theirs").mkdir(parents=True)
    for path in (project.runs / ".removed", project.runs / ".removed" / "theirs"):
        os.chown(path, ANOTHER_UID, ANOTHER_UID)
    (project.runs / ".removed" / "mine").mkdir()
    plan = plan_removal(project.runs, [run.id])
    assert [item.path for item in plan.items] == [run.path]
    assert remove(plan)[1] == []
    assert left(project) == set()
    assert sorted(path.name for path in project.runs.glob(".removed/*")) == ["mine", "theirs"]
    assert list((project.runs / f".removed-{os.geteuid()}").iterdir()) == []


# --- command line ---------------------------------------------------------------------------------


def test_without_arguments_it_shows_what_there_is_and_explains_itself(project: Project, cli: Cli) -> None:
    saved(made(project, "a", "FAILED"), 10)
    made(project, "b", size=3 * 2**20)
    done = cli("clean")
    said = done.stdout
    assert re.search(r"_a +FAILED +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +[\d.]+ KiB", said)
    assert re.search(r"total +2 runs +3\.0 MiB", said)
    assert "--older-than 30d" in done.stderr
    assert left(project) == {"a", "b"}


def test_without_a_terminal_it_lists_and_wants_yes(project: Project, cli: Cli) -> None:
    made(project, "a", "FAILED", days_ago=40)
    made(project, "b", days_ago=40)
    done = cli("clean", "--older-than", "30d", "--state", "failed", code=2)
    assert re.search(r"2026-01-01_000000_a +run, FAILED", done.stdout)
    assert "total: 1 item" in done.stdout
    assert "--yes" in done.stderr
    assert left(project) == {"a", "b"}
    assert "removed 1 item, " in cli("clean", "--older-than", "30d", "--state", "failed", "--yes").stdout
    assert left(project) == {"b"}
    assert "nothing to remove" in cli("clean", "--state", "failed").stdout
    assert "removed 1 item, " in cli("clean", "--older-than", "0d", "--yes").stdout


class Terminal(io.StringIO):
    """Standard input of a user who types one answer and sees that nothing is removed before it."""

    def __init__(self, project: Project, answer: str) -> None:
        super().__init__(answer + "\n")
        self.project = project

    def isatty(self) -> bool:
        return True

    def readline(self, size: int | None = -1, /) -> str:
        assert left(self.project) == {"a"}
        return super().readline()


@pytest.mark.parametrize(("answer", "code", "stays"), [("yes", 0, False), ("y", 130, True), ("", 130, True)])
def test_a_terminal_asks(
    project: Project, monkeypatch: MonkeyPatch, cli: Cli, answer: str, code: int, stays: bool
) -> None:
    run = made(project, "a")
    monkeypatch.setattr(sys, "stdin", Terminal(project, answer))
    printed = cli("clean", run.id, code=code).stdout
    assert "Type yes: " in printed
    assert ("nothing was removed" in printed) is stays
    assert left(project) == ({"a"} if stays else set())


def test_what_could_not_be_removed_is_told_and_the_exit_code_says_so(project: Project, cli: Cli) -> None:
    run = made(project, "a")
    (project.runs / ".removed").write_text("a file where the folder should be")
    done = cli("clean", run.id, "--yes", code=1)
    assert f"{run.id} is kept: " in done.stdout
    assert "removed 0 items" in done.stdout


# --- directories of any age -----------------------------------------------------------------------


def test_show_marks_the_best_checkpoint(project: Project, cli: Cli) -> None:
    run = made(project, "a")
    for step, loss in ((10, 3.0), (20, 2.0), (30, math.nan)):
        saved(run, step, loss)
    assert re.search(r"checkpoints +step-000010 step-000020 \(best\) step-000030\n", cli("show", run.id).stdout)
    best = [(found["step"], found["best"]) for found in json.loads(cli("show", run.id, "--json").stdout)["checkpoints"]]
    assert best == [(10, False), (20, True), (30, False)]


FILES = ["launch.json", "config.json", "process.json", "finished.json", "exit.json"]
OTHERS = ["seen.json", "ranks/0.heartbeat.json", "checkpoints/step-000010/manifest.json"]


@pytest.mark.parametrize("name", FILES + OTHERS)
def test_what_a_newer_nbtools_wrote_is_refused_and_stays(project: Project, cli: Cli, name: str) -> None:
    run = made(project, "new")
    saved(run, 10)
    saved(run, 20)
    made(project, "other")
    path = run.path / name
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, "format": 2}))
    listed = cli("runs")
    assert "_other" in listed.stdout
    assert "_new" in listed.stdout + listed.stderr  # in the table, or as the one that is left out and why
    shows = cli("show", run.id, code=None)
    assert "SUCCEEDED" in shows.stdout or "update nbtools" in shows.stderr
    assert "_new" in cli("clean").stdout
    shown(run.path)
    before = everything(run.path)
    cli("clean", "--checkpoints", "--yes")
    if name in OTHERS[:2]:  # of no consequence
        assert before != everything(run.path)
        return
    assert everything(run.path) == before
    if name in FILES:
        assert "update nbtools" in cli("clean", run.id, "--yes").stdout
        assert everything(run.path) == before


def shown(path: Path) -> None:
    """Draw the panel of a run, whatever is in its directory; it must not raise."""
    with closing(nt.LivePlot(path)) as panel:
        eventually(lambda: panel._thread is None or panel._drawn_state or panel._widgets.trouble.value)
        assert "Traceback" not in panel._widgets.trouble.value


@pytest.mark.promise("safety-many-runs")
def test_clean_reads_each_launch_twice(project: Project, monkeypatch: MonkeyPatch) -> None:
    parent, number = made(project, "r000"), 150
    for index in range(1, number):
        parent = made(project, f"r{index:03d}", parent=parent)
    opened: Counter[str] = Counter()
    read = lineage.read_small
    monkeypatch.setattr(lineage, "read_small", lambda path: opened.update([str(path)]) or read(path))
    plan = plan_removal(project.runs, states=[RunState.SUCCEEDED])
    assert [item.path.name[-4:] for item in plan.items] == [f"r{index:03d}" for index in reversed(range(number))]
    assert set(opened.values()) == {1}
    gone, kept = remove(plan)
    assert (len(gone), kept) == (number, [])
    assert set(opened.values()) == {2}
    assert left(project) == set()
