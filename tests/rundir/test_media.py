"""Samples and charts of a run: written, read back, torn, hostile, and on a terminal."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.cli.commands import main
from nbtools.errors import ConfigError
from nbtools.metrics.writer import MetricWriter
from nbtools.project import Project
from nbtools.run.checkpoints import Progress
from nbtools.run.run import Run
from nbtools.rundir import media
from nbtools.rundir.media import MediaItem, append, latest, names, read, to_json
from nbtools.rundir.rundir import RunDir

TEXT = media.text("A sample", "once\nupon é東🚀")
TABLE = media.table("Mistakes", ["text", "true", "p"], [["smith", "83110", 0.25], ["baker", "-1", None]])
FRAMES = media.frames("Unmasked", ["____", "_nce", "once"])
DRAWINGS = media.frames("A walk", ["..\n.@", "..\n@."], keep_lines=True)
SERIES = media.series("Return", [1, 2, 3], {"unseen": [0.5, math.nan, 2]}, x_label="episode", y_label="return")


def without_place(item: MediaItem) -> dict[str, Any]:
    return {key: value for key, value in to_json(item).items() if key not in ("name", "step", "time")}


@pytest.mark.parametrize(
    "item", [TEXT, TABLE, FRAMES, DRAWINGS, SERIES], ids=["text", "table", "frames", "drawing", "series"]
)
def test_what_is_appended_is_read_back(tmp_path: Path, item: MediaItem) -> None:
    folder = tmp_path / "media"
    append(folder, "it", 100, item)
    append(folder, "it", 200, item)
    found = read(folder, "it")
    assert [(one.name, one.step) for one in found] == [("it", 100), ("it", 200)]
    assert all(without_place(one) == without_place(item) for one in found)
    assert [one.step for one in latest(folder)] == [200]


def test_values_that_are_not_finite_are_strict_json_on_disk(tmp_path: Path) -> None:
    append(tmp_path, "it", 1, SERIES)
    line = (tmp_path / "it.jsonl").read_text()
    content = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert content["lines"]["unseen"] == [0.5, "NaN", 2.0]
    (found,) = read(tmp_path, "it")
    assert math.isnan((found.lines or {})["unseen"][1])


@given(st.text(), st.lists(st.text()), st.lists(st.floats()))
def test_any_text_and_number_comes_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, frames: list[str], numbers: list[float]
) -> None:
    folder = tmp_path_factory.mktemp("media")
    append(folder, "a", 1, media.text("t", text))
    append(folder, "b", 1, media.frames("t", ["", *frames]))
    append(folder, "c", 1, media.series("t", numbers, {"y": numbers}, x_label="", y_label=""))
    a, b, c = latest(folder)
    assert a.text == text.encode("utf-8", "replace").decode()
    assert b.frames[1:] == tuple(frame.encode("utf-8", "replace").decode() for frame in frames)
    assert [value for value in c.x if value == value] == [value for value in numbers if value == value]


@pytest.mark.parametrize("name", ["", "A", "../x", "a.b", "a b", "1a", "x" * 65, "a/b", "a\n"])
def test_a_name_that_could_be_anything_else_than_a_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="write it in lower-case letters"):
        append(tmp_path, name, 1, TEXT)
    assert list(tmp_path.iterdir()) == []


def test_a_torn_last_line_is_held_back_until_its_newline(tmp_path: Path) -> None:
    append(tmp_path, "it", 1, TEXT)
    append(tmp_path, "it", 2, TEXT)
    whole = (tmp_path / "it.jsonl").read_bytes()
    for cut in range(whole.index(b"\n") + 1, len(whole)):
        (tmp_path / "it.jsonl").write_bytes(whole[:cut])
        assert [one.step for one in read(tmp_path, "it")] == [1]


GOOD = {"step": 1, "time": 1.0, "kind": "text", "title": "t", "text": "fine"}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"null",
        b"[" * 100_000,
        b"{}",
        *(
            json.dumps({**GOOD, **change}).encode()
            for change in (
                {"kind": "video"},
                {"kind": ["text"]},
                {"kind": None},
                {"step": -1},
                {"step": "one"},
                {"step": 1e400},
                {"step": True},
                {"time": "now"},
                {"time": float("nan")},
                {"text": ["no"]},
                {"text": {"a": 1}},
                {"title": []},
                {"kind": "table", "columns": "abc", "rows": []},
                {"kind": "table", "columns": ["a"], "rows": {"a": 1}},
                {"kind": "table", "columns": ["a"], "rows": ["abc"]},
                {"kind": "table", "columns": ["a"], "rows": [[["nested"]]]},
                {"kind": "table", "columns": ["a"]},
                {"kind": "frames", "frames": "abc"},
                {"kind": "frames", "frames": []},
                {"kind": "frames", "frames": [[1]]},
                {"kind": "series", "x": [1], "lines": [1]},
                {"kind": "series", "x": "12", "lines": {}},
                {"kind": "series", "x": [1], "lines": {"a": ["b"]}},
                {"kind": "series", "x": [1], "lines": {"a": [10**400]}},
            )
        ),
    ],
)
def test_a_line_that_is_malformed_or_of_an_unknown_kind_hides_no_other(tmp_path: Path, line: bytes) -> None:
    good = json.dumps(GOOD).encode()
    (tmp_path / "it.jsonl").write_bytes(good + b"\n" + line + b"\n")
    assert [one.text for one in read(tmp_path, "it")] == ["fine"]
    assert [one.text for one in latest(tmp_path)] == ["fine"]


def test_sizes_have_limits(tmp_path: Path) -> None:
    append(tmp_path, "text", 1, media.text("t" * 1000, "x" * 100_000))
    append(tmp_path, "table", 1, media.table("t", ["c"] * 100, [["x" * 5000] * 100] * 2))
    append(tmp_path, "tall", 1, media.table("t", ["c"], [["x"]] * 5000))
    append(tmp_path, "frames", 1, media.frames("t", ["x"] * 5000))
    lines = {f"l{number}": [1.0] for number in range(100)}
    append(tmp_path, "series", 1, media.series("t", [1.0], lines, x_label="", y_label=""))
    frames, series, table, tall, text = latest(tmp_path)
    assert (len(text.text), len(text.title)) == (20_000, 200)
    assert (len(table.columns), len(table.rows[0]), len(table.rows[0][0])) == (50, 50, 1000)
    assert (len(tall.rows), len(frames.frames), len(series.lines or {})) == (1000, 1000, 20)


def test_of_a_long_file_only_the_end_is_read(tmp_path: Path) -> None:
    for step in range(1, 61):
        append(tmp_path, "it", step, media.text("t", "x" * 100_000))
    steps = [one.step for one in read(tmp_path, "it")]
    assert steps[-1] == 60
    assert steps == list(range(steps[0], 61)) and 19 < steps[0] < 25


def test_what_is_no_file_or_has_another_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "No.jsonl").write_text(json.dumps(GOOD) + "\n")
    (tmp_path / "other.txt").write_text(json.dumps(GOOD) + "\n")
    append(tmp_path, "it", 1, TEXT)
    assert names(tmp_path) == ["it"]
    assert read(tmp_path, "pipe") == [], "and is not waited for"
    assert latest(tmp_path / "missing") == []


# --- of a run ---------------------------------------------------------------------------------------


@pytest.fixture
def shown(project: Project) -> RunDir:
    """A run that shows one item of each kind."""
    files = RunDir.create(project.runs, "toy")
    files.lock.touch()
    for name, item in (("sample", TEXT), ("mistakes", TABLE), ("unmasked", FRAMES), ("returns", SERIES)):
        append(files.media, name, 7, item)
    append(files.media, "sample", 9, media.text("Evil", "\x1b[2Jred\x07 \u202eabc"))
    return files


def test_a_run_knows_the_newest_of_each(shown: RunDir) -> None:
    assert [(one.name, one.step) for one in Run(shown.path).media] == [
        ("mistakes", 7),
        ("returns", 7),
        ("sample", 9),
        ("unmasked", 7),
    ]


def test_the_terminal_shows_each_kind_as_harmless_text(shown: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "latest", "--media"]) == 0
    said = capsys.readouterr().out
    assert "--- Mistakes (mistakes, step 7)\ntext   true   p\nsmith  83110  0.25\nbaker  -1     None\n" in said
    assert "[1/3] ____\n[2/3] _nce\n[3/3] once\n" in said
    assert "episode  unseen\n1        0.5\n2        nan\n3        2\n" in said
    assert "--- Evil (sample, step 9)\n" in said and "red" in said
    assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_json_holds_them_only_when_asked(shown: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "latest", "--media", "--json"]) == 0
    content = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert [one["kind"] for one in content["media"]] == ["table", "series", "text", "frames"]
    assert content["media"][1]["lines"] == {"unseen": [0.5, "NaN", 2.0]}
    assert main(["show", "latest", "--json"]) == 0
    assert "media" not in json.loads(capsys.readouterr().out)


def test_ragged_and_empty_tables_are_printed(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    files = RunDir.create(project.runs, "toy")
    files.lock.touch()
    append(files.media, "a", 1, media.table("ragged", ["x"], [["1", "2", "3"], []]))
    append(files.media, "b", 1, media.table("empty", [], []))
    append(files.media, "c", 1, media.series("none", [], {}, x_label="", y_label=""))
    append(files.media, "d", 1, media.table("long", ["x"], [["y" * 500]]))
    assert main(["show", "latest", "--media"]) == 0
    said = capsys.readouterr().out
    assert "1  2  3" in said and "--- none" in said
    assert max(map(len, said.splitlines())) < 200


def test_the_terminal_shows_a_drawing_line_by_line(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    files = RunDir.create(project.runs, "toy")
    files.lock.touch()
    append(files.media, "walk", 3, DRAWINGS)
    assert main(["show", "latest", "--media"]) == 0
    assert "[1/2]\n..\n.@\n[2/2]\n..\n@.\n" in capsys.readouterr().out


def test_a_run_that_shows_nothing_says_so(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    RunDir.create(project.runs, "toy").lock.touch()
    assert main(["show", "latest", "--media"]) == 0
    assert "no samples, tables or charts" in capsys.readouterr().out


def test_a_training_shows_items_on_rank_0_only(project: Project) -> None:
    from nbtools.training.outputs.training_log import TrainingLog

    files = RunDir.create(project.runs, "toy")
    with MetricWriter(files.metrics) as writer:
        for of_rank in (writer, None):
            TrainingLog(files, Progress(step=5), of_rank).show("sample", TEXT)
    assert [one.step for one in read(files.media, "sample")] == [5]
