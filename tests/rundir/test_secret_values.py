"""Secrets among a program's arguments: which are recognised, and that only secrets.json has them."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from nbtools.errors import NbtoolsError
from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.secret_values import MASK, masked, masked_environment, part, restored, shown_masked, unmasked

# Invented values in the published formats of the services' keys.
KEYS = [
    "hf_" + "aBcD" * 8 + "ef",
    "sk-" + "proj-" + "Ab1" * 12,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY",
    "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "c2lnbmF0dXJl",
    "https://alice:" + "hunter2@example.org/data.csv",
    "s" * 100 + "+ssh://alice:" + "hunter2@example.org",
    "Authorization: Bearer " + "abcdefgh12345678",
    '{"password": "hunter2"}',
]


@pytest.mark.parametrize("flag", ["--hf-token", "--api_key", "--wandb.apiKey", "--auth", "--db-passwd", "--AWS-Secret"])
def test_a_value_with_a_secret_name_is_masked_in_each_spelling(flag: str) -> None:
    assert masked([flag, "x1y2z3", "file.csv"]) == [flag, MASK, "file.csv"]
    assert masked([f"{flag}=x1=y2"]) == [f"{flag}={MASK}"]
    assert masked([f"{flag.strip('-')}=x1"]) == [f"{flag.strip('-')}={MASK}"]
    assert masked([flag, "--epochs", "3"]) == [flag, "--epochs", "3"], "a switch"


@pytest.mark.parametrize("value", KEYS)
def test_a_value_in_the_format_of_a_key_is_masked_under_any_name(value: str) -> None:
    assert masked(["--name", value, value]) == ["--name", MASK, MASK]
    assert masked([f"--name={value}"]) == [f"--name={MASK}"]
    assert masked_environment({"NAME": value, "OTHER": "1"}) == {"NAME": MASK, "OTHER": "1"}


@pytest.mark.promise("safety-bounded")
@pytest.mark.parametrize("part", ["a", "-", "eyJaaaaaaaa-", "a://", "token ", ".yaml:", "-----BEGIN A", "Bearer  "])
def test_a_long_argument_costs_time_in_proportion_to_its_length(part: str) -> None:
    plain = part * (500_000 // len(part))  # in quadratic time it would take many minutes
    assert masked([plain, f"{plain} https://a:{'b' * 9}@c"])[0] == plain


def test_edited_words_get_their_secrets_back_by_name() -> None:
    before = ["--hf-token", "x1y2z3", "--lr", "1", f"api_key={KEYS[1]}", KEYS[0]]
    assert unmasked(masked(before), before) == before
    edited = ["--fp16", f"api_key={MASK}", "--hf-token", MASK, "--lr", "2"]
    assert unmasked(edited, before) == ["--fp16", before[4], "--hf-token", "x1y2z3", "--lr", "2"]
    assert unmasked(["--hf-token", "another"], before) == ["--hf-token", "another"]
    with pytest.raises(ValueError, match="of --other-token; type the value itself"):
        unmasked(["--other-token", MASK], before)
    with pytest.raises(ValueError, match="type the value itself"):  # there was one
        unmasked(["--hf-token", MASK, "--hf-token", MASK], before)
    several = ["--key", "abcdef", "--key", "ghijkl", "Bearer 0123456789", "Bearer 9876543210"]
    assert unmasked(masked(several), several) == several
    assert unmasked(["--key", "abcdef"], several) == ["--key", "abcdef"]
    with pytest.raises(ValueError, match="stands for one of several secret values of --key; type the value itself"):
        unmasked(["--key", MASK, MASK, MASK], several)
    with pytest.raises(ValueError, match="stands for one of several secret values; type the value itself"):
        unmasked(["--key", MASK, "--key", MASK, MASK], several)
    assert "x1y2z3" not in shown_masked(tuple(before))
    assert (shown_masked(("a", "b")), shown_masked(3)) == ("('a', 'b')", "3")


def test_ordinary_arguments_stay_readable() -> None:
    plain = ["--tokenizer", "bert-base", "--max-tokens=512", "--pad-token", "0", "--author", "Poe", "--monkey=3", "a=b"]
    plain += ["--resume-from", "runs/2026-01-31_142233_mlm_tiny/checkpoints/step-000200", "--lr", "1e-4", "-v", ""]
    plain += ["--use-auth-token=true", "0123456789abcdef0123456789abcdef01234567", "data/a/b.csv", "x:y", "--seed", "1"]
    assert masked(plain) == plain


def test_the_fields_of_a_recipe_are_not_secret_by_their_names() -> None:
    for recipe in RECIPES.values():
        fields = recipe.config_class.model_fields
        args = [word for name in fields for word in (f"--{name.replace('_', '-')}", "some-text", f"--{name}=some-text")]
        assert masked(args, fields) == args
        assert masked(["--dataset", KEYS[0]], fields) == ["--dataset", MASK]


def content(*args: str, **env: str) -> dict[str, Any]:
    return {"name": "toy", "args": list(args), "argv": ["python", "toy.py", *args], "env": env}


@pytest.mark.promise("safety-secrets")
def test_launch_json_has_masks_and_secrets_json_the_values(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "toy")
    full = content("--token", "canary", "--lr=1", "canary2.csv", MY_TOKEN="canary")
    shown = part(run, full)
    assert shown["args"] == ["--token", MASK, "--lr=1", "canary2.csv"]
    assert shown["argv"] == ["python", "toy.py", *shown["args"]]
    assert shown["env"] == {"MY_TOKEN": MASK}
    assert "secrets.json" in shown["secrets"]
    assert stat.S_IMODE(run.secrets.stat().st_mode) == 0o600
    write_json(run.launch, shown)
    read = read_json(run.launch) or {}
    assert {name: restored(run, read)[name] for name in full} == full
    run.secrets.unlink()
    with pytest.raises(NbtoolsError, match="only the user who launched"):
        restored(run, read)


def test_a_run_without_secrets_has_no_secrets_json(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "toy")
    full = content("--lr", "1")
    assert part(run, full) == full
    assert restored(run, full) == full
    assert not run.secrets.exists()
    assert json.dumps(full)
