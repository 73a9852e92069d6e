"""The config that an argument names: found in the source, its keys as arguments, and a copy with other values."""

import json
import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

import nbtools as nt
from nbtools.config import Launch
from nbtools.errors import ConfigError, LaunchError
from nbtools.launcher.preflight import preflight
from nbtools.launcher.programs.next_attempt import continued
from nbtools.launcher.resume import launch_again, resume
from nbtools.project import Project
from nbtools.script.arguments.command_line import parse_words
from nbtools.script.arguments.config_file import keys_of_config
from nbtools.script.config_copy import changed_config, load_config
from nbtools.script.program import Program
from nbtools.script.script import read_script, write_script

from asking import asked

HEAD = """
import argparse, json, sys, yaml
from pathlib import Path
p = argparse.ArgumentParser()
p.add_argument("--config", default="base.yaml")
p.add_argument("--out", default="result.json")
"""
BASE = """# the base
optim:
  lr: 0.1   # step size
  betas: [0.9, 0.99]
  warmup: null
name: small
steps: 3
blocks:
  - {kind: a}
"""


TOML = """# TOML
name = "small"
steps = 3
when = 2026-01-02T03:04:05Z
day = 2026-01-02
at = 03:04:05
limit = inf
"a.b" = [[1, 2], ["x"]]
blocks = [{kind = "a", n = 1}, {kind = "b"}]
[empty]
[optim]
betas = [0.9, 0.99]
fused = true
[optim.deep]
lr = 1e-05
[[layers]]
width = 3
"""


def test_a_copy_of_a_toml_config_keeps_every_value_that_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "base.toml"
    path.write_text(TOML)
    keys = keys_of_config(path, path.name)
    assert keys is not None and {a.name: a.default for a in keys.arguments}["optim.deep.lr"] == 1e-05
    expected = tomllib.loads(TOML)
    expected["optim"]["deep"]["lr"], expected["name"] = 0.5, 'a "b"\n\x7f\\ é'
    text = changed_config(path, ["optim.deep.lr=0.5", 'name=a "b"\n\x7f\\ é'])
    assert tomllib.loads(text) == expected and '["optim"]' in text
    with pytest.raises(ConfigError, match="or no value of it"):
        changed_config(path, ["steps=null"])


def test_the_keys_of_a_config_are_fields(tmp_path: Path) -> None:
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    keys = keys_of_config(path, "base.yaml")
    assert keys is not None and {argument.source for argument in keys.arguments} == {"base.yaml"}
    found = {argument.name: argument.default for argument in keys.arguments}
    betas = (0.9, 0.99)
    assert found == {"optim.lr": 0.1, "optim.betas": betas, "optim.warmup": None, "name": "small", "steps": 3}


def test_a_copy_has_the_changed_values_and_all_others(tmp_path: Path) -> None:
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    text = changed_config(path, ["optim.lr=1e-05", "optim.betas=[0.5,0.6]", "name='null'"])
    assert text.startswith(
        "# A copy of base.yaml with other values of optim.lr, optim.betas, name; comments of the file"
    )
    expected = yaml.safe_load(BASE)
    expected["optim"] |= {"lr": 1e-05, "betas": [0.5, 0.6]}
    assert yaml.safe_load(text) == expected | {"name": "null"}
    (tmp_path / "base.json").write_text(json.dumps({"a.b": {"c": 1}, "a": {"d": "x"}}))
    assert json.loads(changed_config(tmp_path / "base.json", ["a.b.c=2", "a.d=y"])) == {
        "a.b": {"c": 2},
        "a": {"d": "y"},
    }
    for words, wrong in (
        (["optim.rl=1"], "optim.rl=1.* is no key"),
        (["steps=many"], "or no value of it; keys: optim.lr"),
    ):
        with pytest.raises(ConfigError, match=wrong):
            changed_config(path, words)
    with pytest.raises(ConfigError, match=r"absent\.yaml: is no YAML, JSON or TOML file with keys"):
        changed_config(tmp_path / "absent.yaml", [])


TRAIN = (
    HEAD
    + """
p.add_argument("--resume", default=None)
args = p.parse_args()
cfg = yaml.safe_load(open(args.config))
print("read", json.dumps(cfg["optim"]["lr"]), args.config, args.resume, flush=True)
open("model_step3.ckpt", "w").write("x")
"""
)


@pytest.fixture
def work(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    (cpu_project.root / "train.py").write_text(TRAIN)
    (cpu_project.root / "base.yaml").write_text(BASE)
    monkeypatch.chdir(cpu_project.root)
    return cpu_project.root


PROGRAM = Program(
    script="train.py", args=("--config=base.yaml",), cwd=".", config_file="base.yaml", config_values=("optim.lr=0.5",)
)


def test_a_run_reads_the_copy_in_its_directory_and_so_do_resume_and_restart(work: Path, cpu_project: Project) -> None:
    launch = Launch(torchrun=False, gpus=())
    path = write_script(PROGRAM, "demo", launch, project=cpu_project)
    script = read_script(path)
    assert (script.program, script.hand_edited) == (PROGRAM, False)
    assert "config_values=(" in path.read_text() and "optim.lr=0.5" in path.read_text()
    run = nt.launch(path)
    run.wait(60)
    copy = run.dir / "configs" / "base.yaml"
    assert f"read 0.5 {copy} None" in run.log()
    assert run.info["args"] == run.info["argv"][-1:] == [f"--config={copy}"]
    assert copy.stat().st_mode & 0o777 == 0o600 and not run.files.secrets.exists()
    plan = continued(run.info, work / "model_step3.ckpt")
    assert plan["argv"][-3:] == [f"--config={copy}", "--resume", str(work / "model_step3.ckpt")]
    (work / "base.yaml").write_text("other: 1\n")
    child = resume(run)
    child.wait(60)
    assert f"read 0.5 {child.dir / 'configs' / 'base.yaml'} {work / 'model_step3.ckpt'}" in child.log()
    assert child.info["args"][0] == f"--config={child.dir / 'configs' / 'base.yaml'}"


def test_a_launcher_script_by_hand_says_that_a_key_is_gone(work: Path, cpu_project: Project) -> None:
    path = write_script(PROGRAM, "demo", Launch(torchrun=False, gpus=()), project=cpu_project)
    (work / "base.yaml").write_text("optim: {}\n")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, cwd=work)
    assert done.returncode == 1 and "optim.lr=0.5'] is no key of" in done.stderr and "Traceback" not in done.stderr


def test_values_of_a_config_that_cannot_be_copied_are_refused(work: Path) -> None:
    for changes, wrong in (
        ({"args": ()}, "config_file=base.yaml: no argument names it"),
        ({"config_values": ("lr=1",)}, "is no key of"),
        ({"config_file": "no.yaml", "args": ("no.yaml",)}, "is no YAML, JSON or TOML file with keys"),
        ({"config_values": ("other.yaml:size=5",)}, r"config_file=other\.yaml: no argument names it; add it to args"),
    ):
        with pytest.raises(LaunchError, match=wrong):
            preflight(PROGRAM.replace(**changes), gpus=(), torchrun=False)
    with pytest.raises(ConfigError, match="config_values: are those of a config_file; name it"):
        PROGRAM.replace(config_file=None)
    assert not list((work / "runs").glob("*"))


# --- several files --------------------------------------------------------------------------------

TWO = """
import argparse, json, yaml
p = argparse.ArgumentParser()
p.add_argument("--model_config", default="model/config.yaml")
p.add_argument("--data_config", default="data/config.yaml")
p.add_argument("--resume", default=None)
args = p.parse_args()
model = yaml.safe_load(open(args.model_config))
data = yaml.safe_load(open(args.data_config))
print("read", json.dumps([model, data]), args.resume, flush=True)
open("model_step3.ckpt", "w").write("x")
"""
CLI = """
import jsonargparse
p = jsonargparse.ArgumentParser()
p.add_argument("--config", action="config")
p.add_argument("--optim.lr", type=float, default=0.1)
p.add_argument("--width", type=int, default=3)
args = p.parse_args()
print("read", args.optim.lr, args.width)
"""


@pytest.fixture
def files(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two configs with a key of the same name."""
    for name, text in {"model": "size: 1\nwidth: 8\n", "data": "size: 2\nfast: true\n"}.items():
        (cpu_project.root / name).mkdir()
        (cpu_project.root / name / "config.yaml").write_text(text)
    monkeypatch.chdir(cpu_project.root)
    return cpu_project.root


MODEL, DATA = {"size": 1, "width": 8}, {"size": 2, "fast": True}
NAMED = ("--model_config", "model/config.yaml", "--data_config=data/config.yaml")


@pytest.mark.parametrize(
    ("changes", "model", "data"),
    [
        ({"config_file": "model/config.yaml", "config_values": ("size=5",)}, {"size": 5}, {}),
        ({"config_file": "data/config.yaml", "config_values": ("size=5",)}, {}, {"size": 5}),
        ({"config_values": ("data/config.yaml:size=5", "data/config.yaml:fast=false")}, {}, {"size": 5, "fast": False}),
        (
            {"config_file": "data/config.yaml", "config_values": ("model/config.yaml:size=6", "size=5")},
            {"size": 6},
            {"size": 5},
        ),
    ],
)
def test_a_changed_value_reaches_its_file_and_the_other_stays(
    files: Path, cpu_project: Project, tmp_path: Path, changes: dict[str, object], model: object, data: object
) -> None:
    (files / "train.py").write_text(TWO)
    program = Program(script="train.py", args=NAMED, cwd=".", **changes)  # type: ignore[arg-type]
    path = write_script(program, "two", Launch(torchrun=False, gpus=()), project=cpu_project)
    assert read_script(path).program == program
    expected = "read " + json.dumps([{**MODEL, **model}, {**DATA, **data}])  # type: ignore[dict-item]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    by_hand = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, check=True)
    assert expected in by_hand.stdout
    if not (model and data):
        return
    run = nt.launch(path)  # both files at once: the launch makes its copies as the start by hand does
    run.wait(60)
    assert expected in run.log()
    for each in (resume(run), launch_again(run)):
        each.wait(60)
        assert expected in each.log()
        assert all(str(each.dir) in word for word in each.info["args"] if str(run.dir.parent) in word)
    assert yaml.safe_load(Path("model/config.yaml").read_text()) == MODEL
    assert yaml.safe_load(Path("data/config.yaml").read_text()) == DATA


def test_a_secret_of_a_second_config_is_masked(files: Path) -> None:
    Path("data/config.yaml").write_text("api_key: x\n")
    (files / "train.py").write_text(TWO)
    program = Program(script="train.py", args=NAMED, cwd=".", config_values=("data/config.yaml:api_key=abcdefgh",))
    assert program.has_secrets
    run = nt.launch(program, torchrun=False, gpus=())
    run.wait(60)
    assert run.info["program"]["config_values"][0].endswith("/config.yaml:api_key=***")
    assert "abcdefgh" not in run.files.launch.read_text()


def test_no_config_of_jsonargparse_is_lost_and_a_changed_value_stands_behind_them(files: Path) -> None:
    path = files / "train.py"
    path.write_text(CLI)
    Path("base.yaml").write_text("optim: {lr: 0.5}\nwidth: 7\n")
    Path("override.yaml").write_text("width: 9\n")
    found = asked(path)
    words = ["--width=4", "--config", "base.yaml", "--config", "override.yaml"]
    line = parse_words(found, words)
    assert line.values["config"] == ("base.yaml", "override.yaml")

    def said(args: list[str]) -> str:
        return subprocess.run([sys.executable, path, *args], capture_output=True, text=True, check=True).stdout

    assert said(words) == "read 0.5 9\n"  # each file counts, and the last word
    assert said(line.edited({**line.values, "width": 5})) == "read 0.5 5\n"
    assert said(line.edited({**line.values, "optim.lr": 0.25})) == "read 0.25 9\n"
    Path("other.yaml").write_text("width: 11\n")
    assert said(line.edited({**line.values, "config": ("base.yaml", "other.yaml")})) == "read 0.5 11\n"


# --- what is a config -----------------------------------------------------------------------------


def levels(first: str, item: str, start: str, end: str) -> str:
    """Ten levels, each of ten times the one before."""
    lines = [f"l0: &l0 {first}"]
    for number in range(1, 11):
        items = ", ".join(item.format(key=key, alias=f"*l{number - 1}") for key in range(10))
        lines.append(f"l{number}: &l{number} {start}{items}{end}")
    return "\n".join(lines)


NO_CONFIGS = {
    "aliases": levels("{a: 1, b: 2}", "k{key}: {alias}", "{", "}"),
    "lists without leaves": levels("[]", "{alias}", "[", "]"),
    "dicts without leaves": levels("{}", "k{key}: {alias}", "{", "}"),
    "merges": levels("{a: 1}", "{alias}", "{<<: [", "]}"),
    "large": "".join(f"key_{number}: {{lr: 0.1, path: data/{number}}}\n" for number in range(6000)),
    "recursive": "a: &a\n  b: *a\n",
    "a list": "- 1\n",
    "empty": "",
    "broken": "a: [\n",
}


@pytest.mark.parametrize("text", NO_CONFIGS.values(), ids=NO_CONFIGS)
def test_what_is_no_config_of_a_program_is_passed_over_at_once(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    started = time.monotonic()
    assert load_config(path) is None
    assert time.monotonic() - started < 20


def test_a_key_of_toml_with_many_dots_is_passed_over_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(".".join(["a"] * 60_000) + " = 1\n")
    started = time.process_time()
    assert load_config(path) is None
    assert time.process_time() - started < 15
    path.write_text("rates = [" + ", ".join(["0.1"] * 200) + "]\na.b.c = 1\n")
    assert load_config(path) is not None
