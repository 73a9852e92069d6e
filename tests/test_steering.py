"""Requests are small plain files of the run's owner, each taken once; a program of any kind polls them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import eventually

from nbtools import steering
from nbtools.errors import ConfigError
from nbtools.run.control.steer import Controls, controls_of
from nbtools.rundir.requests.events import held, read_events
from nbtools.rundir.requests.request_files import write_request
from nbtools.rundir.rundir import RunDir
from nbtools.steering import Inbox, decoded, encoded, parsed

NAME = "1769868153250000000-0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_requests_are_taken_once_in_the_order_of_their_times(run: RunDir) -> None:
    inbox = Inbox(run.path)
    assert inbox.num_waiting() == 0
    assert inbox.take() == [], "there is no folder yet"
    first = write_request(run, action="save")
    (run.requests / f"{NAME}.json").write_text('{"format": 1, "values": {"learning_rate": 0.1}, "by": "ana@box"}')
    assert run.requests.stat().st_mode & 0o77 == 0
    assert inbox.num_waiting() == 2
    taken = inbox.take()
    assert [request.name for request in taken] == [NAME, first]
    assert (taken[0].values, taken[0].by, taken[1].action) == ({"learning_rate": 0.1}, "ana@box", "save")
    assert "@" in taken[1].by
    assert inbox.take() == []
    assert list(run.requests.iterdir()) == []
    assert decoded(encoded(taken)) == taken


def test_a_request_that_was_answered_before_a_restart_is_not_taken_again(run: RunDir) -> None:
    name = write_request(run, action="save")
    assert Inbox(run.path, [name]).num_waiting() == 0
    assert [request.name for request in Inbox(run.path).take()] == [name]


def linked(run: RunDir) -> None:
    run.path.joinpath("elsewhere").write_text('{"format": 1, "action": "save"}')
    (run.requests / f"{NAME}.json").symlink_to(run.path / "elsewhere")


def hard_linked(run: RunDir) -> None:
    run.path.joinpath("elsewhere").write_text('{"format": 1, "action": "save"}')
    (run.requests / f"{NAME}.json").hardlink_to(run.path / "elsewhere")


def written(text: str, file: str = f"{NAME}.json") -> Callable[[RunDir], None]:
    return lambda run: (run.requests / file).write_text(text) and None


@pytest.mark.parametrize(
    ("put", "problem"),
    [
        (linked, "cannot be opened"),
        (hard_linked, "is not a plain file"),
        (lambda run: os.mkfifo(run.requests / f"{NAME}.json"), "is not a plain file"),
        (lambda run: (run.requests / f"{NAME}.json").mkdir(), "is not a plain file"),
        (written("{", "notes.txt"), "is no name of a request"),
        (written(""), "is not a JSON object"),
        (written('{"format": 1, "action": "sa'), "is not a JSON object"),
        (written("[1]"), "is not a JSON object"),
        (written("[" * 4000), "is not a JSON object"),
        (written("x" * 4097), "has 4,097 bytes"),
        (written('{"action": "save"}'), "has the format None"),
        (written('{"format": 2, "action": "save"}'), "has the format 2"),
        (written('{"format": 1, "action": "explode"}'), "asks neither for one of save, evaluate"),
        (written('{"format": 1, "action": ["save"]}'), "asks neither for one of save, evaluate"),
        (written('{"format": 1, "values": [1]}'), "asks neither for one of save, evaluate"),
        (written('{"format": 1, "action": "save", "values": {"a": 1}}'), "asks neither for one of save, evaluate"),
    ],
)
def test_what_is_no_request_is_named_once_and_not_followed(
    run: RunDir, put: Callable[[RunDir], None], problem: str
) -> None:
    run.requests.mkdir()
    put(run)
    write_request(run, action="evaluate")
    inbox = Inbox(run.path)
    problems = {request.action: request.problem for request in inbox.take()}
    assert problems.keys() == {"", "evaluate"}
    assert problem in problems[""]
    assert (inbox.take(), inbox.num_waiting()) == ([], 0)
    assert all(path.is_dir() or path.stat() for path in run.path.iterdir()), "what a link leads to stays"


def test_a_folder_that_is_a_link_holds_no_requests(run: RunDir, tmp_path: Path) -> None:
    other = RunDir(tmp_path / "other")
    other.path.mkdir()
    write_request(other, action="save")
    run.requests.symlink_to(other.requests)
    assert (Inbox(run.path).num_waiting(), Inbox(run.path).take()) == (0, [])


def test_a_file_of_another_user_is_no_request(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_request(run, action="save")
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert [request.problem for request in Inbox(run.path).take()] == ["belongs to another user"]


def test_a_flood_of_files_is_taken_in_parts(run: RunDir) -> None:
    run.requests.mkdir()
    for number in range(150):
        (run.requests / f"{number:019}-0123456789ab.json").write_text('{"format": 1, "action": "save"}')
    inbox, counts = Inbox(run.path), []
    while taken := inbox.take():
        counts.append(len(taken))
    assert counts == [64, 64, 22]


@pytest.mark.parametrize("values", [{"a": float("nan")}, {"a": {1}}, {"a": "x" * 5000}])
def test_values_that_fit_no_request_are_refused_before_anything_is_written(run: RunDir, values: object) -> None:
    with pytest.raises(ConfigError, match="a"):
        write_request(run, values=values)  # type: ignore[arg-type]
    assert not run.requests.exists()


def test_a_request_is_complete_when_it_appears(run: RunDir) -> None:
    name = write_request(run, values={"max_steps": 20})
    content = json.loads((run.requests / f"{name}.json").read_text())
    assert content["values"] == {"max_steps": 20}
    assert parsed(name, (run.requests / f"{name}.json").read_bytes()).problem == ""


# --- programs -------------------------------------------------------------------------------------


def test_a_program_polls_changes_and_says_what_it_takes(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert steering.poll(10, {"lr": 0.1}) == [], "nbtools did not launch it"
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(run.path))
    assert steering.poll(9, {"lr": 0.1}, ["save"]) == []
    assert controls_of(run) is None, "it is not its turn yet"
    assert steering.poll(10, {"lr": 0.1}, ["save"]) == []
    assert controls_of(run) == Controls(("save", "pause", "continue"), {"lr": 0.1}, False)
    write_request(run, action="save")
    write_request(run, action="profile")
    write_request(run, values={"lr": 0.05})
    write_request(run, values={"lr": 0.01, "momentum": 0.5})
    assert steering.poll(15, {"lr": 0.1}, ["save"]) == []
    assert steering.poll(20, {"lr": 0.1}, ["save"]) == [("save", None), ("lr", 0.05)]
    assert [(event.step, str(event)) for event in read_events(run)] == [
        (20, "save"),
        (20, "refused: profile: the program takes no such request"),
        (20, "lr 0.1 -> 0.05"),
        (20, "refused: momentum: the program takes no such request"),
    ]
    assert controls_of(run) == Controls(("save", "pause", "continue"), {"lr": 0.05}, False)


def test_a_program_is_held_in_a_pause(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(run.path))
    write_request(run, action="pause")
    with ThreadPoolExecutor(1) as pool:
        polled = pool.submit(steering.poll, 10, {"lr": 0.1})
        eventually(lambda: held(read_events(run)) is not None)
        write_request(run, values={"lr": 0.2})
        assert not polled.done()
        write_request(run, action="continue")
        assert polled.result(60) == [("lr", 0.2)]


_PROGRAM = """
import os, sys, time
sys.modules["nbtools"] = None
import steering
import torch.distributed as dist

dist.init_process_group("gloo")
lr = 0.1
for step in range(1, 100_000):
    time.sleep(0.002)
    for name, value in steering.poll(step, {"lr": lr}, ["save"], every=5):
        with open(f"{os.environ['RANK']}.txt", "a") as file:
            print(step, name, value, file=file)
        lr = value or lr
    if lr == 0:
        break
    if lr < 0.01:
        lr = 0
"""


@pytest.mark.slow
def test_two_ranks_of_a_program_with_a_copy_of_the_file_change_at_the_same_steps(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no nbtools: its own copy of the file is all that it imports."""
    shutil.copy(str(steering.__file__), run.path)
    (run.path / "train.py").write_text(_PROGRAM)
    monkeypatch.setenv("NBTOOLS_RUN_DIR", str(run.path))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    with subprocess.Popen(command, cwd=run.path, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}) as program:
        eventually(run.controls.exists)
        for rate in (0.09, 0.05, 0.02, 0.001):
            write_request(run, values={"lr": rate})
            write_request(run, action="save")
            eventually(lambda: run.requests.is_dir() and not any(run.requests.glob("*.json")))
        assert program.wait(60) == 0
    first, second = ((run.path / f"{rank}.txt").read_text() for rank in range(2))
    assert first == second
    assert first.count("save None") >= 3
