"""Requests are small plain files of the run's owner, each taken once; everything else in the folder is named."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nbtools.errors import ConfigError
from nbtools.rundir.requests.request_files import Inbox, decoded, encoded, write_request
from nbtools.rundir.rundir import RunDir

NAME = "1769868153250000000-0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_requests_are_taken_once_in_the_order_of_their_times(run: RunDir) -> None:
    inbox = Inbox(run)
    assert (inbox.num_waiting(), inbox.take()) == (0, []), "there is no folder yet"
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
    assert Inbox(run, [name]).num_waiting() == 0
    assert [request.name for request in Inbox(run).take()] == [name]


def linked(link: Callable[[Path, Path], None]) -> Callable[[RunDir], None]:
    def put(run: RunDir) -> None:
        run.path.joinpath("elsewhere").write_text('{"format": 1, "action": "save"}')
        link(run.requests / f"{NAME}.json", run.path / "elsewhere")

    return put


def written(text: str, file: str = f"{NAME}.json") -> Callable[[RunDir], None]:
    return lambda run: (run.requests / file).write_text(text) and None


@pytest.mark.parametrize(
    ("put", "problem"),
    [
        (linked(Path.symlink_to), "cannot be opened"),
        (linked(Path.hardlink_to), "is not a plain file"),
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
    inbox = Inbox(run)
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
    assert (Inbox(run).num_waiting(), Inbox(run).take()) == (0, [])


def test_a_file_of_another_user_is_no_request(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_request(run, action="save")
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert [request.problem for request in Inbox(run).take()] == ["belongs to another user"]


def test_a_flood_of_files_is_taken_in_parts(run: RunDir) -> None:
    run.requests.mkdir()
    for number in range(150):
        (run.requests / f"{number:019}-0123456789ab.json").write_text('{"format": 1, "action": "save"}')
    inbox, counts = Inbox(run), []
    while taken := inbox.take():
        counts.append(len(taken))
    assert counts == [64, 64, 22]


@pytest.mark.parametrize("values", [{"a": float("nan")}, {"a": {1}}, {"a": "x" * 5000}])
def test_values_that_fit_no_request_are_refused_before_anything_is_written(run: RunDir, values: object) -> None:
    with pytest.raises(ConfigError, match="a"):
        write_request(run, values=values)  # type: ignore[arg-type]
    assert not run.requests.exists()
