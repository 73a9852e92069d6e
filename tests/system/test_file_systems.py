"""File systems that are slow, forgetful, read-only or not there: retried, or a clear error before anything starts."""

import contextlib
import errno
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixture_types import Inject, Lock, MonkeyPatch, Start
from launched import TRAINER
from permissions import nbtools
from run_folder import held

from nbtools.errors import CheckpointError
from nbtools.project import Project
from nbtools.run.checkpoints import Checkpoint, checkpoints_in, newest_verified
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.atomic import retried
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.training.engine import checkpoint
from nbtools.training.engine.checkpoint import Progress

Failing = Callable[..., list[str]]
PASSING = [errno.ESTALE, errno.EIO, errno.ETIMEDOUT]
LISTING = "listdir scandir"
"""What `Path.iterdir` calls: the first before Python 3.13, the second from there on."""


@pytest.fixture
def failing(monkeypatch: MonkeyPatch) -> Failing:
    """Let functions of `os` fail so often, before or after they have done their work, for paths that hold a word."""

    def let(names: str, word: str, number: int, times: int = 1, *, done: bool = False) -> list[str]:
        failed: list[str] = []

        def act(really: Callable[..., Any], *args: Any, **options: Any) -> Any:
            if len(failed) < times and isinstance(args[0], str | Path) and word in str(args[0]):
                failed.append(str(args[0]))
                if done:
                    really(*args, **options)
                raise OSError(number, os.strerror(number), str(args[0]))
            return really(*args, **options)

        for name in names.split():
            monkeypatch.setattr(os, name, functools.partial(act, getattr(os, name)))
        return failed

    return let


# --- JSON files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "times", "done", "tries"),
    [
        *((number, 1, done, 1) for number in PASSING for done in (False, True)),
        *((number, 100, False, 4) for number in PASSING),
        *((number, 100, False, 1) for number in (errno.ENOSPC, errno.EROFS)),
    ],
)
def test_a_rename_that_fails_once_is_tried_again_and_leaves_one_whole_file(
    tmp_path: Path, failing: Failing, number: int, times: int, done: bool, tries: int
) -> None:
    """A rename may have been done although it failed; one that fails again and again leaves the old file."""
    write_json(tmp_path / "exit.json", {"returncode": 1})
    failed = failing("replace", "exit.json", number, times, done=done)
    with contextlib.nullcontext() if times == 1 else pytest.raises(OSError, match=os.strerror(number)):
        write_json(tmp_path / "exit.json", {"returncode": 0})
    assert len(failed) == tries
    assert read_json(tmp_path / "exit.json") == {"format": 1, "returncode": int(times > 1)}
    assert [path.name for path in tmp_path.iterdir()] == ["exit.json"]


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize(
    ("names", "word", "state"),
    [("open", "exit.json", "SUCCEEDED"), ("open", "_toy/lock", "RUNNING"), (LISTING, "runs", "LOST")],
    ids=["record", "lock", "listing"],
)
def test_what_is_stale_for_a_moment_changes_no_state_and_hides_no_run(
    project: Project, failing: Failing, number: int, names: str, word: str, state: str
) -> None:
    run = RunDir.create(project.runs, "toy")
    run.lock.touch()
    write_json(run.launch, {"name": "toy"})
    run.log.touch()
    if state == "SUCCEEDED":
        write_json(run.exit, {"returncode": 0, "stopped": False})
    with held(run) if state == "RUNNING" else contextlib.nullcontext():
        failed = failing(names, word, number)
        assert names != LISTING or run_folders(project.runs) == [run.path]
        assert Run(run.path).state == state
    assert len(failed) == 1


def test_what_is_not_there_is_not_waited_for(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    assert read_json(tmp_path / "exit.json") is None
    with pytest.raises(FileNotFoundError):
        retried((tmp_path / "none").read_bytes)


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "checkpoints"
    path.mkdir(parents=True)
    return path


def save(folder: Path, step: int, value: float = 0.0) -> Path:
    def write_model(path: Path) -> None:
        (path / "weights").write_bytes(b"abc" * step)

    return checkpoint.save(
        folder,
        Progress(step=step),
        write_model=write_model,
        state={"value": value},
        rank_states=[{"random": torch.arange(3)}],
        metrics={},
        attempt=1,
        keep_last=10,
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("done", [False, True], ids=["not done", "done all the same"])
@pytest.mark.parametrize("again", [False, True], ids=["new", "in place of another"])
def test_a_checkpoint_is_put_in_place_although_a_rename_fails_once(
    folder: Path, failing: Failing, number: int, done: bool, again: bool
) -> None:
    save(folder, 1)
    if again:
        save(folder, 2, value=1.0)
    failed = failing("rename", "step-000002", number, done=done)
    path = save(folder, 2, value=2.0)
    assert len(failed) == 1
    assert names(folder) == ["step-000001", "step-000002"]
    Checkpoint.read(path).verify()
    assert checkpoint.load_state(path)["value"] == 2.0


@pytest.mark.promise("fault-31")
@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize(
    ("names", "word"),
    [("open", "step-000002/state.pt"), ("open", "step-000002/manifest.json"), (LISTING, "checkpoints")],
)
def test_a_checkpoint_that_is_stale_for_a_moment_is_not_passed_over(
    folder: Path, failing: Failing, number: int, names: str, word: str
) -> None:
    for step in (1, 2):
        save(folder, step)
    failed = failing(names, word, number)
    newest, reasons = newest_verified(folder)
    assert (newest and newest.step, reasons, len(failed)) == (2, [], 1)


@pytest.mark.promise("fault-31")
def test_the_manifest_decides_whatever_a_listing_says(folder: Path, monkeypatch: MonkeyPatch) -> None:
    """A client of a network file system may see a folder before its files, after its removal, or not yet."""
    whole = save(folder, 1)
    (folder / "step-000002").mkdir()  # seen before its files
    (folder / "step-000002" / "state.pt").write_bytes(b"abc")
    newer = save(folder, 4)
    listdir, scandir = os.listdir, os.scandir

    def stale(path: Any = ".") -> list[str]:
        found = listdir(path)
        if Path(os.fspath(path)) == folder:
            return [name for name in found if name != "step-000004"] + ["step-000003"]  # one too few, one too many
        return found

    def stale_entries(path: Any = ".") -> Any:
        if Path(os.fspath(path)) == folder:
            return contextlib.nullcontext([SimpleNamespace(name=name, path=str(folder / name)) for name in stale(path)])
        return scandir(path)

    monkeypatch.setattr(os, "listdir", stale)
    monkeypatch.setattr(os, "scandir", stale_entries)
    assert [found.step for found in checkpoints_in(folder)] == [1]
    newest, reasons = newest_verified(folder)
    assert newest is not None and newest.path == whole
    assert [reason[:11] for reason in reasons] == ["step-000003", "step-000002"]
    assert checkpoint.open_verified(newer).step == 4  # named by its path, it needs no listing
    with pytest.raises(CheckpointError, match="missing"):
        checkpoint.open_verified(folder / "step-000002")


SLOW_DISK = """
import errno, os, time
really, seen = {name: getattr(os, name) for name in ("replace", "rename")}, {}
def odd(name):
    def act(source, target, **options):
        time.sleep(0.05)
        if not seen.get(str(target)):
            seen[str(target)] = True
            raise OSError((errno.ESTALE, errno.EIO)[len(seen) % 2], "odd", str(target))
        return really[name](source, target, **options)
    return act
for name in really:
    setattr(os, name, odd(name))
"""


@pytest.mark.promise("fault-31")
def test_a_run_on_a_forgetful_file_system_ends_well(supervised: Start, injected: Inject) -> None:
    """In every process of it the first rename onto every name fails, and each takes its time."""
    injected(SLOW_DISK)
    run = supervised(sys.executable, TRAINER, "--steps", "10", "--step-s", "0.01", "--checkpoint-every", "100")
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert run.step == 10
    assert run.records.process is not None
    assert read_json(run.files.finished) is not None
    assert run.files.supervisor_log.read_text() == ""
    assert not list(run.dir.glob("**/.*.tmp"))


# --- folders that cannot be written ----------------------------------------------------------------


@pytest.fixture
def bare(project: Project) -> dict[str, str]:
    """The environment of `env -i`, but for the project."""
    (project.scripts / "toy.py").write_text("print('step 1 loss=1.5')\n")
    return {"NBTOOLS_ROOT": str(project.root)}


@pytest.mark.promise("fault-33")
@pytest.mark.parametrize("which", ["runs", "root without runs"])
@pytest.mark.slow
def test_unwritable_runs_are_an_error(project: Project, bare: dict[str, str], read_only: Lock, which: str) -> None:
    if which == "runs":
        read_only(project.runs)
    else:
        project.runs.rmdir()
        read_only(project.root)
    said = nbtools("launch", project.scripts / "toy.py", env=bare, code=2).stderr
    assert f"{project.runs}: cannot be written" in said
    assert "change its permissions, or set NBTOOLS_ROOT" in said
    assert len(said.splitlines()) == 1
    assert not project.runs.exists() or list(project.runs.iterdir()) == []
    if which != "runs":
        return
    listed = nbtools("preflight", project.scripts / "toy.py", env=bare, code=2)
    assert f"{project.runs}: cannot be written" in listed.stdout
    assert listed.stderr.splitlines() == ["nbtools: toy.py: cannot be launched, 1 problem"]
    findings = json.loads(nbtools("doctor", "--json", env=bare, code=1).stdout)
    assert any(finding["level"] == "problem" and "runs" in finding["subject"] for finding in findings)


def test_scripts_that_cannot_be_written_are_an_error(project: Project, bare: dict[str, str], read_only: Lock) -> None:
    read_only(project.scripts)
    said = nbtools("new", "mlm_pretraining", "tiny", env=bare, code=2).stderr
    assert "cannot be written: Permission denied" in said
    assert [path.name for path in project.scripts.iterdir()] == ["toy.py"]


@pytest.mark.promise("fault-33")
@pytest.mark.slow
@pytest.mark.parametrize("home", ["no HOME", "HOME cannot be", "HOME is read-only"])
def test_a_run_needs_no_home_and_no_environment(
    project: Project, bare: dict[str, str], tmp_path: Path, read_only: Lock, home: str
) -> None:
    """`env -i`: no PATH, no HOME, no USER, no LANG."""
    (tmp_path / "file").touch()
    if home == "HOME cannot be":
        bare["HOME"] = str(tmp_path / "file" / "home")
    if home == "HOME is read-only":
        bare["HOME"] = str(tmp_path / "home")
        (tmp_path / "home").mkdir()
        read_only(tmp_path / "home")
    run_id = nbtools("launch", project.scripts / "toy.py", "--gpus", "none", env=bare, code=0).stdout.strip()
    assert nbtools("wait", run_id, env=bare, code=0).stdout == f"{run_id} SUCCEEDED\n"
    assert Run(run_id).metrics == {"train/loss": 1.5}
    nbtools("plot", run_id, "-o", project.root / "curves.png", env=bare, code=0)
    if home == "HOME is read-only":
        nbtools("new", "mlm_pretraining", "tiny", env=bare, code=0)
        nbtools("doctor", env=bare, code=0)
        assert list((tmp_path / "home").iterdir()) == []
