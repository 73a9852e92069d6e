"""A checkpoint knows its data: a resume on other data is refused, unless the user names it; older splits are forked."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Train

from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.flags import parse

from trainings import TINY, train_here, write_inputs

Edit = Callable[[Path], object]


def lines_of(path: Path, edit: Callable[[list[str]], list[str]]) -> None:
    path.write_text("\n".join(edit(path.read_text().split("\n"))))


def swap_words(path: Path) -> None:
    words = path.read_text().split()
    path.write_text(" ".join([words[1], words[0], *words[2:]]))


CHANGES: dict[str, tuple[str, dict[str, Any], Edit]] = {
    "the order of words": ("mlm_pretraining", {}, lambda root: swap_words(root / "texts" / "03.txt")),
    "a further file": ("mlm_pretraining", {}, lambda root: shutil.copy(root / "texts/03.txt", root / "texts/99.txt")),
    "the case of a letter": (
        "masked_diffusion",
        {},
        lambda root: (root / "texts/03.txt").write_text((root / "texts/03.txt").read_text().replace("w", "W", 1)),
    ),
    "the order of pairs": (
        "masked_diffusion",
        {"dataset": "pairs.jsonl"},
        lambda root: lines_of(root / "pairs.jsonl", lambda lines: lines[::-1]),
    ),
    "the order of rows": (
        "text_classification",
        {},
        lambda root: lines_of(root / "data.csv", lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]]),
    ),
    "a word of a story": (
        "llm_gan",
        {"dataset": "stories.csv", "min_chars": 5, "sequence_length": 8, "prompt_length": 12},
        lambda root: lines_of(
            root / "stories.csv", lambda lines: [line.replace("number 7 ", "No 7 ") for line in lines]
        ),
    ),
}


@pytest.fixture
def training(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train a recipe, or with flags resume a checkpoint, in this process."""
    stories = [f"the cat,noir,the dog number {number} runs far ." for number in range(60)]
    (cpu_project.root / "stories.csv").write_text("\n".join(["title,genre,human_story", *stories]))

    def start(key: str, *flags: str, resume: Path | None = None, **changes: Any) -> RunDir:
        config = RECIPES[key].config_class(**{**TINY[key], "eval_every": 10, "test_fraction": 0.5, **changes})
        if resume is None:
            return train_here(cpu_project, config.replace(max_steps=3, checkpoint_every=3), monkeypatch=monkeypatch)
        monkeypatch.setattr(
            "trainings.Flags", lambda config, resume_from: parse(config, [*flags, "--resume-from", str(resume_from)])
        )
        return train_here(cpu_project, config.replace(max_steps=4), resume, monkeypatch=monkeypatch)

    return start


@pytest.mark.promise("safety-data")
@pytest.mark.parametrize("change", CHANGES)
def test_a_resume_on_other_data_is_refused_unless_the_dataset_is_named(
    change: str, training: Train, cpu_project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    key, changes, edit = CHANGES[change]
    write_inputs(key, cpu_project)
    saved = training(key, **changes).checkpoint(3)
    edit(cpu_project.root)
    with pytest.raises(
        SystemExit, match=r"step-000003: the content or order of the data is not .* --set dataset=\.\.\."
    ):
        training(key, resume=saved, **changes)
    if change.startswith("the order"):  # of the others the vocabulary is another
        dataset = changes.get("dataset", TINY[key].get("dataset"))
        training(key, "--dataset", str(dataset), resume=saved, **changes)
        assert "note: the data is not that of step-000003 (dataset): texts that are evaluated" in capfd.readouterr().out


@pytest.mark.parametrize("key", ["algorithm_distillation", "llm_gan"])
def test_generated_data_of_another_seed_or_size_is_told(
    key: str, training: Train, cpu_project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = training(key).checkpoint(3)
    training(key, resume=saved)
    assert "the data" not in capfd.readouterr().out
    name = "num_histories" if key == "algorithm_distillation" else "num_sequences"
    training(key, resume=saved, **{name: TINY[key][name] + 1})
    assert f"note: the data is not that of step-000003 ({name})" in capfd.readouterr().out


def test_a_touched_or_moved_folder_is_the_same_data(
    training: Train, texts: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = training("mlm_pretraining").checkpoint(3)
    for file in (texts.root / "texts").iterdir():
        os.utime(file, (1, 1))
    (texts.root / "texts").rename(texts.root / "moved")
    training("mlm_pretraining", resume=saved, dataset="moved")
    assert "the data" not in capfd.readouterr().out


@pytest.mark.promise("safety-data")
def test_a_checkpoint_of_the_older_split_is_not_resumed_but_forked(
    training: Train, texts: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    files = training("mlm_pretraining")
    manifest = files.checkpoint(3) / "manifest.json"
    write_json(manifest, {name: value for name, value in (read_json(manifest) or {}).items() if name != "data"})
    record = read_json(files.config) or {}
    record["config"]["max_steps"] = 4
    record["config"]["checkpoint_every"] = 3
    write_json(files.config, record)
    with pytest.raises(
        SystemExit, match=r"was split by an older rule, .* fork it by a change, such as --set max_steps=6"
    ):
        training("mlm_pretraining", resume=files.checkpoint(3))
    training("mlm_pretraining", "--learning-rate", "1e-4", resume=files.checkpoint(3))
    assert "note: the split is not that of step-000003, which is of an older rule" in capfd.readouterr().out
