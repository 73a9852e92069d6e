"""Names, tags and notes of runs, and the runs that references name."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MonkeyPatch, Printed

from nbtools.cli.commands import main
from nbtools.errors import ConfigError, FormatError, NbtoolsError, RunNotFoundError
from nbtools.project import Project, user_cache
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.names import Labels, find_run, label, read_labels
from nbtools.rundir.rundir import RunDir


def launched(runs: Path, day: int, name: str, folder: str | None = None) -> RunDir:
    run = RunDir(runs / (folder or f"2026-01-{day:02d}_000000_{name}"))
    run.path.mkdir(parents=True)
    write_json(run.launch, {"name": name.removesuffix("_2"), "time": 1.7e9 + 86400 * day})
    return run


@pytest.mark.promise("names")
def test_a_name_is_its_newest_run_and_tilde_counts_back(tmp_path: Path) -> None:
    first, other, second = (launched(tmp_path, day, name) for day, name in enumerate(("base", "other", "base"), 1))
    same_second = launched(tmp_path, 3, "base_2")
    assert find_run(tmp_path, "base") == same_second.path
    assert find_run(tmp_path, "base~1") == second.path
    assert find_run(tmp_path, "base~2") == first.path
    assert find_run(tmp_path, "latest~3") == first.path
    assert find_run(tmp_path, "other~0") == other.path
    assert find_run(tmp_path, first.id) == first.path
    with pytest.raises(RunNotFoundError, match="there are 3 runs of that name; the oldest is base~2"):
        find_run(tmp_path, "base~3")
    with pytest.raises(RunNotFoundError, match="did you mean base"):
        find_run(tmp_path, "bsae")


@pytest.mark.promise("names")
def test_a_renamed_or_moved_run_is_found_by_its_name(tmp_path: Path) -> None:
    renamed, kept = launched(tmp_path, 1, "base"), launched(tmp_path, 2, "base")
    moved = launched(tmp_path, 3, "base", folder="archived")
    label(renamed, name="good")
    assert find_run(tmp_path, "good") == renamed.path
    assert (find_run(tmp_path, "base"), find_run(tmp_path, "base~1")) == (moved.path, kept.path)
    label(kept, name="archived")
    assert find_run(tmp_path, "archived") == moved.path, "the id"
    label(renamed, name="")
    assert find_run(tmp_path, "base~1") == renamed.path


def test_labels_that_are_not_allowed_are_refused_and_keep_the_others(tmp_path: Path) -> None:
    run = launched(tmp_path, 1, "base")
    label(run, name="good", tags=["a", "b", "a"], note="first line\nsecond")
    for wrong in ("latest", "1st", "a/b", "a b", "x" * 65, "a~1", "é"):
        with pytest.raises(ConfigError, match="must be a letter"):
            label(run, name=wrong)
    for tags in (["a,b"], [" a"], [""], ["x" * 41], list("abcdefghijklmnopq")):
        with pytest.raises(ConfigError, match="at most 16 tags of 1 to 40 characters"):
            label(run, tags=tags)
    with pytest.raises(ConfigError, match="at most 2,000 characters"):
        label(run, note="x" * 2001)
    assert read_labels(run) == Labels("good", ("a", "b"), "first line\nsecond")
    assert read_json(run.labels) == {"format": 1, "name": "good", "tags": ["a", "b"], "note": "first line\nsecond"}


def test_labels_of_another_kind_are_none_and_newer_ones_stay(tmp_path: Path) -> None:
    run = launched(tmp_path, 1, "base")
    run.labels.write_text(json.dumps({"name": "../x", "tags": ["ok", 3, "a,b", "x" * 50], "note": ["x"]}))
    assert Run(run).records.labels == read_labels(run) == Labels(tags=("ok",))
    run.labels.unlink()
    os.mkfifo(run.labels)
    assert Run(run).name == "base"
    assert find_run(tmp_path, "base") == run.path
    run.labels.unlink()
    run.labels.write_text('{"format": 2, "name": "new"}')
    assert Run(run).name == "base"
    with pytest.raises(FormatError, match="update nbtools"):
        label(run, name="mine")
    assert json.loads(run.labels.read_text())["name"] == "new"


@pytest.mark.promise("safety-foreign-run")
def test_labels_of_another_users_run_are_kept_in_the_cache(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = launched(tmp_path / "runs", 1, "base")
    label(run, name="theirs", tags=["t"])
    before = {path: path.stat().st_mtime_ns for path in (run.path, run.labels)}
    monkeypatch.setattr(os, "geteuid", lambda: run.path.stat().st_uid + 1)
    assert find_run(tmp_path / "runs", "theirs") == run.path
    label(run, name="mine", note="of another user")
    assert read_labels(run) == Labels("mine", ("t",), "of another user")
    assert find_run(tmp_path / "runs", "mine") == run.path
    assert {path: path.stat().st_mtime_ns for path in before} == before
    own = user_cache("labels", run.path)
    assert own.is_relative_to(tmp_path / "cache")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (own, own.parent, own.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
    run.path.rename(moved := tmp_path / "runs" / "elsewhere")
    assert read_labels(RunDir(moved)).name == "theirs"


@pytest.mark.promise("names")
def test_name_tags_and_note_that_are_given_at_once_are_all_kept(tmp_path: Path) -> None:
    run = launched(tmp_path, 1, "base")
    values: list[dict[str, Any]] = [{"name": "good"}, {"tags": ["a"]}, {"note": "the best"}]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(50):
            run.labels.unlink(missing_ok=True)
            list(pool.map(lambda given: label(run, **given), values))
            assert read_labels(run) == Labels("good", ("a",), "the best")


def test_a_link_at_labels_json_is_replaced_and_not_followed(tmp_path: Path) -> None:
    run = launched(tmp_path, 1, "base")
    (victim := tmp_path / "victim").write_text("{}")
    run.labels.symlink_to(victim)
    label(run, note="mine")
    assert victim.read_text() == "{}"
    assert stat.S_ISREG(run.labels.lstat().st_mode)


@pytest.mark.promise("names")
def test_every_verb_takes_a_name_show_changes(project: Project, monkeypatch: MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.chdir(project.root)
    old, new = (launched(project.runs, day, "base") for day in (1, 2))
    for run in (old, new):
        run.log.write_text(f"log of {run.id}\n")
        write_json(run.exit, {"returncode": 0, "stopped": False, "time": 1.7e9})
    assert main(["show", "base~1", "--rename", "good", "--tags", "a, b", "--note", "the best\x1b[31m"]) == 0
    shown = capsys.readouterr().out
    assert f"name     good\nrun      {old.id}\ntags     a, b\nnote     the best" in shown
    assert "\x1b" not in shown
    for words in (["log"], ["wait"], ["stop"], ["show"]):
        assert main([*words, "good"]) == 0
        assert old.id in capsys.readouterr().out
    assert main(["clean", "good", "--yes"]) == 0
    assert not old.path.exists() and new.path.exists()
    assert main(["show", "good"]) == 2
    assert "has this id, prefix or name" in capsys.readouterr().err
    assert main(["show", "base", "--rename", "a b"]) == 2
    with pytest.raises(NbtoolsError):
        Run("base~1")
