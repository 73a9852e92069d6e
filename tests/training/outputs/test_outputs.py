"""What a training leaves: model, history, picture, the same in save_dir, TensorBoard events and a profile."""

import errno
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Train
from transformers import AutoModelForMaskedLM, AutoTokenizer

from nbtools.errors import ConfigError
from nbtools.metrics.writer import MetricWriter
from nbtools.project import Project, file_digest
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.checkpoints import checkpoints_in
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.outputs import outputs, retries
from nbtools.training.outputs.outputs import Outputs, checked_save_dir
from nbtools.training.process.signals import StopRequest

from trainings import by_hand


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- outputs ----------------------------------------------------------------------------------------


@pytest.mark.promise("guide-M13")
def test_a_completed_training_leaves_its_model_its_history_and_its_picture(
    tiny_training: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(outputs.UNDRAWN_VARIABLE)
    files = tiny_training()
    newest = checkpoints_in(files.checkpoints)[-1].path / "model"
    assert tree(files.outputs / "model") == tree(newest)
    assert {"tokenizer.json", "config.json", "model.safetensors"} <= tree(files.outputs / "model")
    assert not any(folder.exists() for folder in (files.profile, files.wandb, files.tensorboard)), "not asked for"
    assert AutoModelForMaskedLM.from_pretrained(files.outputs / "model").num_parameters() > 1000
    assert len(AutoTokenizer.from_pretrained(files.outputs / "model")) > 10
    assert (files.outputs / "training_history.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert tree(files.outputs) == {f"model/{name}" for name in tree(newest)} | {
        "training_history.json",
        "training_history.png",
    }
    history = json.loads((files.outputs / "training_history.json").read_text())
    rows = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    assert history["format"] == 1
    assert history["steps"] == [1, 2, 3, 4]
    assert history["train_losses"] == [row["train/loss"] for row in rows]
    assert (history["val_steps"], len(history["val_losses"])) == ([2, 4], 2)
    assert history["val_losses"] == [row["eval/loss"] for row in rows if "eval/loss" in row]
    names = {name for row in rows for name in row} - {"step", "time", "samples"}
    assert set(history["columns"]) == names


def test_the_history_of_a_resumed_training_begins_where_its_parent_began(tiny_training: Train) -> None:
    first = tiny_training(max_steps=2)
    second = RunDir.create(first.path.parent, "mlm")
    content = {"name": "mlm", "recipe": "mlm_pretraining", "resumed_from": {"run": first.id, "step": 2}}
    first.lock.touch()
    second.launch.write_text(json.dumps(content))
    tiny_training(resume_from=first.checkpoint(2), files=second)
    assert json.loads((second.outputs / "training_history.json").read_text())["steps"] == [1, 2, 3, 4]


def stopped() -> StopRequest:
    """A stop that is asked for before the first step."""
    request = StopRequest()
    request.requested = True
    return request


def test_a_stopped_training_hands_over_too_and_draws_nothing(
    tiny_training: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise AssertionError("a stop waits for no picture")

    monkeypatch.delenv(outputs.UNDRAWN_VARIABLE)
    monkeypatch.setattr("nbtools.training.engine.worker.StopRequest", stopped)
    monkeypatch.setattr(outputs, "_draw", refuse)
    files = tiny_training()
    assert ((read_json(files.finished) or {})["why"], (read_json(files.finished) or {})["step"]) == ("stopped", 1)
    assert (files.outputs / "model" / "model.safetensors").is_file()
    assert json.loads((files.outputs / "training_history.json").read_text())["run"] == files.id


def test_a_value_that_is_not_finite_is_a_word_in_the_history(project: Project) -> None:
    files = RunDir.create(project.runs, "x")
    files.lock.touch()
    with MetricWriter(files.metrics) as writer:
        writer.write(1, {"train/loss": float("nan")})
        writer.write(2, {"train/loss": 2.5})
    history = json.loads(outputs.history(Run(files.path)))
    assert history["train_losses"] == ["NaN", 2.5]
    assert history["val_losses"] == []


@pytest.mark.parametrize("has_links", [True, False])
def test_large_files_are_links_to_the_checkpoint_where_that_works(
    project: Project, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    files, large = RunDir(project.runs / "x"), os.urandom(2**20)
    saved, handed = files.checkpoint(1) / "model", files.outputs / "model"
    saved.mkdir(parents=True)
    (saved / "model.safetensors").write_bytes(large)
    (saved / "config.json").write_text("{}")
    write_json(files.checkpoint(1) / "manifest.json", {"step": 1, "time": 1.0, "metrics": {}, "files": {"x": {}}})
    Outputs(files, MLMPretrainingConfig(), project.root, print, lambda *_: False).place_model()
    assert (handed / "model.safetensors").read_bytes() == large
    assert (saved / "model.safetensors").samefile(handed / "model.safetensors") is has_links
    assert not (saved / "config.json").samefile(handed / "config.json"), "an edited one changes no checkpoint"


def test_a_picture_that_cannot_be_drawn_is_a_warning_and_no_failure(
    tiny_training: Train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(outputs.UNDRAWN_VARIABLE)
    monkeypatch.setenv("MPLBACKEND", "no-such-backend")
    monkeypatch.setattr(sys, "executable", "/usr/bin/false")
    files = tiny_training()
    assert (read_json(files.finished) or {})["why"] == "completed"
    assert "warning: outputs/training_history.png was not drawn: exit code 1" in capfd.readouterr().out
    assert not (files.outputs / "training_history.png").exists()
    assert not list(files.outputs.glob(".*"))


def test_outputs_that_cannot_be_written_are_a_warning_and_no_failure(
    tiny_training: Train, project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    files = RunDir.create(project.runs, "mlm")
    files.outputs.write_text("in the way")
    tiny_training(files=files)
    assert (read_json(files.finished) or {})["why"] == "completed"
    assert "warning: outputs/ is not complete" in capfd.readouterr().out


@pytest.mark.promise("last-checkpoint")
@pytest.mark.parametrize("tries", [2, 1])
def test_a_save_dir_that_cannot_be_written_is_tried_again_and_recorded(
    tiny_training: Train, project: Project, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    copy, left = outputs._copy, [2]

    def fails(source: Path, target: Path, run_id: str) -> None:
        left[0] -= 1
        if left[0] >= 2 - tries:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copy(source, target, run_id)

    monkeypatch.setattr(outputs, "_copy", fails)
    monkeypatch.setattr(retries, "_RETRY_EVERY_S", 0.01)
    monkeypatch.setattr(retries, "LAST_SAVE_S", 600 if tries == 1 else 0)
    run = Run(tiny_training(save_dir="results"))
    assert run.state is RunState.SUCCEEDED
    assert ("No space left on device; everything is in" in run.summary()["outputs"]) is (tries == 2)
    assert (project.root / "results" / "model").is_dir() is (tries == 1)


def test_a_training_without_a_checkpoint_hands_over_no_model(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    files = RunDir.create(project.runs, "x")
    files.lock.touch()
    Outputs(files, MLMPretrainingConfig(), project.root, print, lambda *_: False).hand_over(draws=False)
    assert "no checkpoint was saved" in capsys.readouterr().out
    assert tree(files.outputs) == {"training_history.json"}


# --- save_dir ---------------------------------------------------------------------------------------


def test_save_dir_gets_the_same_and_a_later_training_replaces_only_its_own(
    tiny_training: Train, project: Project
) -> None:
    folder = project.root / "results" / "mlm"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    first = tiny_training(save_dir="results/mlm")
    assert tree(folder) == tree(first.outputs) | {"notes.txt", outputs.RECORD}
    (folder / "model" / "README.md").write_text("mine, too")
    before = (folder / "model" / "model.safetensors").read_bytes()
    record = json.loads((folder / outputs.RECORD).read_text())
    (folder / "model" / "model-00002.safetensors").write_text("a shard of an earlier training")
    record["files"]["model/model-00002.safetensors"] = [file_digest(folder / "model" / "model-00002.safetensors")]
    (folder / outputs.RECORD).write_text(json.dumps(record))
    # A folder with a file of somebody else where ours belong is only taken if it is none of our names.
    (folder / "model" / "README.md").unlink()
    second = tiny_training(save_dir="results/mlm", seed=1)
    assert tree(folder) == tree(second.outputs) | {"notes.txt", outputs.RECORD}
    assert (folder / "model" / "model.safetensors").read_bytes() != before
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["file/below", "file", "\0", "x" * 300])
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(project: Project, name: str) -> None:
    (project.root / "file").write_text("")
    with pytest.raises(ConfigError, match=r"save_dir='.*: cannot be written \(.+\); name another folder"):
        checked_save_dir(name, project.root)


def test_a_folder_with_another_s_model_ends_the_run_before_its_first_step(
    tiny_training: Train, project: Project
) -> None:
    (project.root / "out" / "model").mkdir(parents=True)
    (project.root / "out" / "model" / "config.json").write_text("theirs")
    files = RunDir.create(project.runs, "mlm")
    with pytest.raises(SystemExit, match=r"save_dir='out': holds model, which nbtools did not write"):
        tiny_training(files=files, save_dir="out")
    assert (project.root / "out" / "model" / "config.json").read_text() == "theirs"
    ended = read_json(files.finished) or {}
    assert (ended["why"], ended["step"]) == ("failed", 0)
    assert "save_dir='out'" in ended["failure"]["message"]
    assert not files.outputs.exists()


MINE = hashlib.sha256(b"mine").hexdigest()


@pytest.mark.promise("safety-save-dir")
@pytest.mark.parametrize("digests", [["0" * 64], [MINE], None])
@pytest.mark.parametrize("name", ["mine.txt", "linked/mine.txt", "model/mine.txt", "a link", "../source/mine.txt", "/"])
def test_a_planted_record_deletes_only_what_has_its_digest_and_no_link_before_it(
    project: Project, name: str, digests: list[str] | None
) -> None:
    source, target, elsewhere = project.root / "source", project.root / "out", project.root / "elsewhere"
    for folder in (source, target / "model", elsewhere):
        folder.mkdir(parents=True)
    (source / "training_history.json").write_text("{}")
    (elsewhere / "mine.txt").write_text("mine")
    (target / "linked").symlink_to(elsewhere)
    name = str(elsewhere / "mine.txt") if name == "/" else name
    if name == "a link":
        (target / name).symlink_to(elsewhere / "mine.txt")
    elif not name.startswith("linked"):
        (target / name).write_text("mine")
    write_json(target / outputs.RECORD, {"files": {name: digests}})
    before = tree(project.root)
    outputs._copy(source, target, "run")
    gone = {f"out/{name}"} if digests == [MINE] and name in ("mine.txt", "model/mine.txt") else set()
    assert before - tree(project.root) == gone


@pytest.mark.promise("safety-save-dir")
@pytest.mark.parametrize("folder", ["out/model", "runs/x/outputs", "runs/x/outputs/model"])
def test_outputs_are_not_written_through_a_linked_folder(
    project: Project, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    files = RunDir(project.runs / "x")
    for made in (files.outputs / "model", files.checkpoint(1) / "model", project.root / "out", project.root / "home"):
        made.mkdir(parents=True)
    for path in (files.outputs / "model", files.checkpoint(1) / "model"):
        (path / "config.json").write_text("new")
    write_json(files.checkpoint(1) / "manifest.json", {"step": 1, "time": 1.0, "metrics": {}, "files": {}})
    (project.root / "home" / "config.json").write_text("mine")
    (project.root / "home" / "mine.txt").write_text("mine")
    write_json(project.root / "out" / outputs.RECORD, {"files": {"model/config.json": [MINE]}})
    before = {path: path.read_bytes() for path in (project.root / "home").iterdir()}
    if (linked := project.root / folder).exists():
        linked.rename(project.root / "moved away")
    linked.symlink_to(project.root / "home")
    if folder.startswith("out"):
        with pytest.raises(ConfigError, match="holds model, which nbtools did not write"):
            checked_save_dir("out", project.root)
        with pytest.raises(OSError, match="does not replace files of others"):
            outputs._copy(files.outputs, project.root / "out", "run")
    else:
        Outputs(files, MLMPretrainingConfig(), project.root, print, lambda *_: False).place_model()
        assert "is a link, which nbtools does not follow" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in (project.root / "home").iterdir()} == before


@pytest.mark.promise("safety-save-dir")
def test_a_file_that_was_changed_since_is_not_replaced(project: Project) -> None:
    source, target = project.root / "source", project.root / "out"
    source.mkdir()
    (source / "training_history.json").write_text("{}")
    outputs._copy(source, target, "run")
    assert checked_save_dir("out", project.root) == target
    (target / "training_history.json").write_text("edited")
    with pytest.raises(ConfigError, match="was changed since"):
        checked_save_dir("out", project.root)
    with pytest.raises(OSError, match="does not replace files of others"):
        outputs._copy(source, target, "run")
    assert (target / "training_history.json").read_text() == "edited"


def test_two_ranks_write_one_save_dir_and_a_refusal_ends_both(texts: Project, tiny_config: Any) -> None:
    config = tiny_config(save_dir="out", report_to="tensorboard", profile_steps=1, max_steps=6)
    (texts.root / "file").touch()
    with by_hand(texts) as start:
        files = start.forked(config).files
        codes, said = start.ended(start.script, "--save-path", "file")
    assert tree(texts.root / "out") == tree(files.outputs) | {outputs.RECORD}
    assert len(list(files.tensorboard.iterdir())) == 1
    assert tree(files.profile) == {"trace.json", "table.txt", "rank1/trace.json", "rank1/table.txt"}
    assert codes == [1, 1] and said.count("save_dir='file': cannot be written") == 2
