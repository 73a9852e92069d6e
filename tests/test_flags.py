"""Flags: every field, both spellings, the words of older programs, and clear refusals."""

from pathlib import Path

import pytest

from nbtools.recipes import MLMPretrainingConfig
from nbtools.training.flags import ALIASES, parse

CONFIG = MLMPretrainingConfig(batch_size=4, learning_rate=1e-3)


def test_no_flags_leave_the_script_s_values_alone() -> None:
    flags = parse(CONFIG, [])
    assert flags.config == CONFIG
    assert flags.overridden == ()
    assert flags.resume_from is None


@pytest.mark.parametrize("spelling", ["--batch-size", "--batch_size"])
@pytest.mark.parametrize("joined", [True, False])
def test_dashes_and_underscores_are_the_same(spelling: str, joined: bool) -> None:
    flags = parse(CONFIG, [f"{spelling}=8"] if joined else [spelling, "8"])
    assert flags.config == CONFIG.replace(batch_size=8)
    assert flags.overridden == ("batch_size",)


def test_a_flag_that_repeats_the_script_s_value_overrides_nothing() -> None:
    assert parse(CONFIG, ["--batch-size", "4"]).overridden == ()


@pytest.mark.parametrize("field", MLMPretrainingConfig.model_fields)
def test_every_field_of_the_config_is_a_flag(field: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(CONFIG, ["--help"])
    assert ended.value.code == 0
    assert f"--{field.replace('_', '-')}" in capsys.readouterr().out


def test_help_says_meaning_unit_and_the_checkpoint_to_resume_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(CONFIG, ["--help"], prog="mlm_tiny.py")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "usage: mlm_tiny.py" in text
    assert "Sequences per process and forward pass. [sequences per process] (default: 4)" in text
    assert "--resume-from PATH" in text


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_means_a_field(alias: str) -> None:
    assert ALIASES[alias].replace("-", "_") in MLMPretrainingConfig.model_fields


def test_lr_is_the_learning_rate() -> None:
    assert parse(CONFIG, ["--lr", "0.02"]).config.learning_rate == 0.02


@pytest.mark.parametrize("old", [["--local-rank=1"], ["--local_rank", "1"], ["--local_rank=1"], ["--distributed"]])
def test_what_old_launchers_pass_is_ignored_with_a_note(old: list[str]) -> None:
    flags = parse(CONFIG, [*old, "--batch-size", "8"])
    assert flags.config == CONFIG.replace(batch_size=8)
    assert len(flags.notes) == 1
    assert "ignored" in flags.notes[0]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--deterministic"], True),
        (["--deterministic", "true"], True),
        (["--deterministic=True"], True),
        (["--no-deterministic"], False),
        (["--no_deterministic"], False),
        (["--deterministic", "false"], False),
    ],
)
def test_truth_values_take_words_too(given: list[str], expected: bool) -> None:
    assert parse(CONFIG.replace(deterministic=not expected), given).config.deterministic is expected


def test_none_and_paths_with_underscores_and_dashes_arrive_unchanged() -> None:
    flags = parse(CONFIG.replace(max_steps=5), ["--max-steps", "None", "--dataset=my_data/a-b.txt"])
    assert flags.config.max_steps is None
    assert flags.config.dataset == "my_data/a-b.txt"


def test_resume_from_is_a_path_and_no_override() -> None:
    flags = parse(CONFIG, ["--resume_from", "runs/x/checkpoints/step-000200"])
    assert flags.resume_from == Path("runs/x/checkpoints/step-000200")
    assert flags.overridden == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--learning-rate", "-1"], "learning_rate=-1.0: must be > 0"),
        (["--batch-size", "many"], "batch-size"),
        (["--nonsense", "3"], "--nonsense"),
        (["--precision", "fp7"], "precision"),
        (["--hidden-size", "7"], "multiple of 2 x num_heads"),
        (["--dataset"], "--dataset"),
        (["stray"], "stray"),
    ],
)
def test_a_wrong_flag_ends_with_code_2_and_names_itself(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(CONFIG, given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
