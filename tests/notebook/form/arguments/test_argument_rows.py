"""The rows for the arguments of a program: what a row does to the words of the command line, and the reverse."""

import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
from waiting import eventually
from widget_tree import every

from nbtools.config import Launch
from nbtools.errors import ConfigError
from nbtools.notebook.form.arguments.argument_rows import ArgumentRows
from nbtools.notebook.form.body import FormBody
from nbtools.notebook.rows.field_rows import FieldRow
from nbtools.project import Project
from nbtools.script.arguments.consent import consent_to, remember_consent
from nbtools.script.program import Program
from nbtools.script.script import read_script

TOKEN = "hf_" + "aBcD" * 8 + "ef"
TRAIN = """
import argparse
import pathlib

pathlib.Path("executed").touch()
parser = argparse.ArgumentParser()
group = parser.add_argument_group("optimisation")
group.add_argument("--lr", type=float, default=1e-3, help="step size")
group.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--layers", type=int, nargs="+", default=[2, 3])
parser.add_argument("--hf-token")
args = parser.parse_args()
"""
COMMANDS = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
commands = parser.add_subparsers(dest="command")
train = commands.add_parser("train")
train.add_argument("--lr", type=float, default=0.1)
score = commands.add_parser("score")
score.add_argument("--split", default="test")
args = parser.parse_args()
"""
LOOP = """
import argparse
import os

parser = argparse.ArgumentParser()
for name in os.environ.get("ABSENT", "alpha beta").split():
    parser.add_argument(f"--{name}", type=float, default=0.5)
args = parser.parse_args()
"""
Show = Callable[..., FormBody]


@pytest.fixture
def show(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Make the form of a program in a project of its own, and wait until its arguments are shown."""
    monkeypatch.chdir(tmp_path)

    def make(source: str, args: tuple[str, ...] = (), *, asks: bool = False) -> FormBody:
        (tmp_path / "train.py").write_text(source)
        if asks:
            remember_consent(tmp_path / "train.py", True)
        form = opened(Program(script="train.py", args=args, cwd="."))
        eventually(lambda: not asks or is_answered(form))
        with form._lock:  # the thread that shows the answer also lists the mistakes
            return form

    return make


def opened(program: Program | None) -> FormBody:
    """Make the form of a program, and wait until its arguments are shown."""
    form = FormBody(None, "demo", None, program, Launch(gpus=()))
    eventually(lambda: rows_of(form).widget.layout.display == "")
    return form


def is_answered(form: FormBody) -> bool:
    shown = rows_of(form).own.shown
    return shown is not None and ("preliminary" not in note(form) if shown.is_complete else bool(shown.notes))


def program_of(form: FormBody) -> Program:
    content, _ = form.valid()
    assert isinstance(content, Program)
    return content


def rows_of(form: FormBody) -> ArgumentRows:
    assert form.view.arguments is not None
    return form.view.arguments


def values(form: FormBody) -> dict[str, Any]:
    return {name: line.value for name, line in rows_of(form).own.rows.items()}


def line_of(form: FormBody, name: str) -> FieldRow:
    line = form.fields.rows[name]
    assert isinstance(line, FieldRow)
    return line


def note(form: FormBody) -> str:
    return str(rows_of(form).note.value)


def mistakes(form: FormBody) -> list[str]:
    """The links of the bar; while there is any, neither button can be clicked."""
    found = [link.description for link in form.bar._list.children]
    assert form.bar.write.disabled is form.bar.launch.disabled is bool(found)
    return found


def test_rows_show_what_the_words_say_and_nothing_is_executed(show: Show) -> None:
    form = show(TRAIN, ("--lr", "0.5", "--fp16", "--layers", "1", "4", "--unknown=x"))
    given = {"lr": 0.5, "optimizer": "adamw", "steps": 3, "fp16": True, "layers": (1, 4), "hf_token": None}
    assert values(form) == given
    assert "6 arguments of train.py (argparse)" in note(form)
    described = rows_of(form).own.rows["lr"].widget.children[1].value
    assert "float" in described and "step size (train.py:8)" in described
    assert not Path("executed").exists()


def test_a_changed_row_is_words_of_the_script_and_unknown_words_stay(show: Show) -> None:
    form = show(TRAIN, ("--lr", "0.5", "--unknown=x"))
    rows = rows_of(form).own.rows
    rows["steps"].type_in("7")
    rows["fp16"].type_in(True)
    rows["optimizer"].type_in("sgd")
    words = ("--lr", "0.5", "--unknown=x", "--steps", "7", "--fp16", "--optimizer", "sgd")
    assert program_of(form).args == words
    script = read_script(form.write())
    assert (script.program, script.hand_edited) == (program_of(form), False)
    rows["lr"].type_in("0.001")  # the default again
    assert "--lr" not in program_of(form).args


def test_typed_words_change_the_rows(show: Show) -> None:
    form = show(TRAIN, ("--lr", "0.5"))
    line_of(form, "args").type_in("--steps 9 --optimizer=sgd")
    assert [values(form)[name] for name in ("lr", "steps", "optimizer")] == [0.001, 9, "sgd"]


def test_a_wrong_value_is_a_mistake_and_valid_rows_are_taken_over(show: Show) -> None:
    form = show(TRAIN, ("--lr", "0.5"))
    row = rows_of(form).own.rows["steps"]
    row.type_in("many")
    rows_of(form).own.rows["optimizer"].type_in("sgd")
    wrong = "argument steps: 'many' is not a whole number such as 1_000"
    assert mistakes(form) == [wrong]
    assert wrong.partition(": ")[2] in row.widget.children[1].value.replace("&#x27;", "'")
    for act in (form.valid, form.write, form.launch):
        with pytest.raises(ConfigError, match="argument steps: 'many' is not a whole number"):
            act()
    assert line_of(form, "args").value == ("--lr", "0.5", "--optimizer", "sgd")
    line_of(form, "nnodes").type_in("many")
    assert [text.partition(":")[0] for text in mistakes(form)] == ["nnodes", "argument steps"]
    line_of(form, "nnodes").type_in("1")
    row.type_in("4")
    words = ("--lr", "0.5", "--optimizer", "sgd", "--steps", "4")
    assert (program_of(form).args, mistakes(form)) == (words, [])
    assert "<mark>default: 3</mark>" in row.widget.children[1].value


def test_a_secret_is_dots_in_its_row_and_masked_in_the_words(show: Show) -> None:
    form = show(TRAIN)
    row = rows_of(form).own.rows["hf_token"]
    assert isinstance(row._input, ipywidgets.Password)
    row.type_in(TOKEN)
    line = line_of(form, "args")
    assert "type the value itself" not in line.widget.children[1].value
    assert line._input.value == "--hf-token '***'"
    assert program_of(form).args == ("--hf-token", TOKEN)
    line.type_in("--lr 2 --hf-token '***'")
    assert program_of(form).args == ("--lr", "2", "--hf-token", TOKEN)
    assert TOKEN not in form.told() + note(form) and TOKEN not in form._summary.widget.value
    path = form.write()
    assert read_script(path).program == program_of(form)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    form._write_and_say(True)
    assert "looks secret and stands in the script" in form.bar._said.value
    line.type_in("--hf-token '***' --other-token '***'")
    with pytest.raises(ConfigError, match="--other-token; type the value itself"):
        form.valid()


SECRETS = """
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--api_key", default="abcd1234topsecret", help="key (default: %(default)s)")
parser.add_argument("--auth_token", default=os.environ.get("MYTOK"), help="token (default: %(default)s)")
parser.add_argument("--db")
parser.add_argument("--headers", nargs="*")
parser.add_argument("--store", default="s3://user:pa55word@host/x", help="%(default)s")
parser.add_argument("data", nargs="?")
args = parser.parse_args()
"""


def texts_in(widget: Any) -> str:
    """All texts that a widget shows."""
    shown = [each for each in every(widget) if not isinstance(each, ipywidgets.Password)]
    texts = [getattr(each, "value", "") for each in shown]
    texts += [getattr(each, name, "") for each in every(widget) for name in ("tooltip", "placeholder", "description")]
    return "\n".join(map(str, texts))


def test_no_secret_of_the_words_or_the_source_is_shown(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYTOK", "0123topsecret")
    given = ("--db", "postgres://u:hunter22@h/x", "--headers", "a", "Bearer 0a1b2c3d4e5f")
    form = show(SECRETS, given)
    rows = rows_of(form)

    def leaked() -> list[str]:
        secrets = ("topsecret", "hunter22", "0a1b2c", "pa55word", "hunter33")
        return [secret for secret in secrets if secret in texts_in(rows.widget)]

    assert leaked() == []
    assert "key (default: ***)" in texts_in(rows.widget)
    rows.own.rows["api_key"].type_in("another")
    assert "default: ***" in rows.own.rows["api_key"].widget.children[1].value
    rows.own.rows["data"].type_in("https://u:hunter33@h/x")
    assert program_of(form).args == ("https://u:hunter33@h/x", *given, "--api_key", "another")
    assert isinstance(rows.own.rows["data"]._input, ipywidgets.Password)
    rows.consent.allow.click()
    eventually(lambda: is_answered(form) and "auth_token" in rows.own.rows)
    assert "os.environ.get" in rows.own.rows["auth_token"]._input.placeholder
    assert leaked() == []


def test_a_secret_is_never_the_value_of_a_plain_text_field(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: list[str] = []

    def note(widget: ipywidgets.Text, change: Any) -> None:
        if not isinstance(widget, ipywidgets.Password):
            plain.append(str(change["new"]))

    setup = ipywidgets.Text.__init__

    def watched(self: ipywidgets.Text, *args: Any, **more: Any) -> None:
        setup(self, *args, **more)
        self.observe(lambda change: note(self, change), names="value")

    monkeypatch.setattr(ipywidgets.Text, "__init__", watched)
    rows_of(show(SECRETS, ("file.csv", "--db", "postgres://u:hunter22@h/x", "--headers", "a", "Bearer 0a1b2c3d4e5f")))
    assert "file.csv" in plain
    assert not [text for text in plain if "hunter22" in text or "0a1b2c" in text]


def test_an_error_about_the_words_has_no_secret(show: Show) -> None:
    form = show(SECRETS, asks=True, args=("--unknown", "a", "b", "--db", "postgres://u:hunter22@h/x"))
    rows_of(form).own.rows["data"].type_in("-x")
    [mistake] = mistakes(form)
    assert mistake.startswith("args: ") and "would be read differently" in mistake and "hunter22" not in mistake


def test_a_sub_command_is_added_only_when_it_is_chosen(show: Show) -> None:
    form = show(COMMANDS, ("--seed", "1"), asks=True)
    rows = rows_of(form)
    assert rows.own.command.value == ()
    by_flag = {name.rpartition(".")[2]: line for name, line in rows.own.rows.items()}

    def shown() -> list[str]:
        return [name for name, line in by_flag.items() if line.widget.layout.display == ""]

    assert shown() == ["seed"]
    by_flag["seed"].type_in("2")
    assert program_of(form).args == ("--seed", "2")
    rows.own.command.value = ("train",)
    assert program_of(form).args == ("--seed", "2", "train") and shown() == ["seed", "lr"]
    rows.own.command.value = ("score",)
    by_flag["split"].type_in("dev")
    assert program_of(form).args == ("--seed", "2", "score", "--split", "dev")
    rows.own.command.value = ()
    assert program_of(form).args == ("--seed", "2")
    line_of(form, "args").type_in("--seed 1 train --lr 0.5")
    assert (rows.own.command.value, by_flag["lr"].value, shown()) == (("train",), 0.5, ["seed", "lr"])


def test_a_required_sub_command_that_is_missing_is_an_error(show: Show) -> None:
    form = show(COMMANDS.replace('dest="command"', 'dest="command", required=True'), ("--seed", "1"), asks=True)
    rows = rows_of(form)
    wrong = ["sub-command: a sub-command is missing; choose one of train, score"]
    assert mistakes(form) == wrong
    rows.own.rows["seed"].type_in("2")
    assert mistakes(form) == wrong
    rows.own.command.value = ("score",)
    assert program_of(form).args == ("--seed", "2", "score")


def test_a_program_is_asked_once_its_project_may_be_and_its_rows_are_preliminary_until_then(show: Show) -> None:
    form = show(LOOP, ("--alpha", "0.25"))
    rows = rows_of(form)
    assert "preliminary" in note(form) and rows.consent.widget.layout.display == ""
    assert f"Forms may run the programs of {Path.cwd()} up to their parser, as you?" in rows.consent.why.value
    rows.consent.refuse.click()
    assert consent_to(Path("train.py").absolute()) is False
    eventually(lambda: rows.consent.refuse.layout.display == "none")
    assert rows._reader._told._known is None and "without GPUs" not in rows.consent.why.value
    rows.consent.allow.click()
    eventually(lambda: is_answered(form))
    assert rows.consent.widget.layout.display == "none"
    assert values(form) == {"alpha": 0.25, "beta": 0.5} and "preliminary" not in note(form)
    rows.own.rows["beta"].type_in("1")
    assert program_of(form).args == ("--alpha", "0.25", "--beta", "1.0")
    again = opened(Program(script="train.py", cwd="."))
    assert values(again) == {"alpha": 0.5, "beta": 0.5} and rows_of(again)._reader._told._known is None  # kept


def test_a_form_says_that_a_program_is_asked_until_it_answers(show: Show) -> None:
    form = show("import time\ntime.sleep(2)\n" + LOOP)
    Path("other.py").write_text(LOOP.replace("alpha beta", "gamma"))
    rows_of(form).consent.allow.click()
    eventually(lambda: "asking train.py, for at most 20 s" in note(form))
    line_of(form, "script").type_in("other.py")  # asked after it
    eventually(lambda: "gamma" in rows_of(form).own.rows)
    eventually(lambda: "asking" not in note(form))


def test_a_changed_program_is_asked_again_without_a_question(show: Show) -> None:
    form = show(LOOP, asks=True)
    Path("train.py").write_text(LOOP.replace("alpha beta", "alpha gamma"))
    line_of(form, "args").type_in("--alpha 1")
    eventually(lambda: "gamma" in rows_of(form).own.rows)
    assert rows_of(form).consent.widget.layout.display == "none"


def test_a_script_that_cannot_be_asked_says_why(show: Show) -> None:
    form = show(f"{LOOP.replace('args =', 'missing_name; args =')}", ("--alpha", "2"), asks=True)
    eventually(lambda: "missing_name" in note(form))
    assert program_of(form).args == ("--alpha", "2")


def test_no_interpreter_beside_a_script_is_started_before_the_consent(show: Show, tmp_path: Path) -> None:
    for folder in ("bin", "lib/python3.11/site-packages"):
        (tmp_path / ".venv" / folder).mkdir(parents=True)
    for path in (tmp_path / ".venv" / "bin" / "python", tmp_path / "tools" / "bin" / "python"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
        path.chmod(0o755)
    form = show(TRAIN)
    line_of(form, "python").type_in("tools/bin/python")
    eventually(lambda: "is in no environment of Python" in line_of(form, "python").widget.children[1].value)
    line_of(form, "python").type_in(".venv")
    eventually(lambda: "torch is not installed in" in line_of(form, "python").widget.children[1].value)
    assert not (tmp_path / "executed").exists()


def test_a_list_is_written_as_words_of_a_shell(show: Show) -> None:
    source = TRAIN.replace('"--hf-token"', '"--prompts", nargs="+"')
    form = show(source, ("--prompts", "Hello, world", "second", "--layers", "1", "4"))
    rows = rows_of(form).own.rows
    assert (rows["prompts"]._input.value, rows["layers"]._input.value) == ("'Hello, world' second", "1 4")
    assert "str, none, several as in a shell" in rows["prompts"].widget.children[1].value
    rows["prompts"].type_in("'Hello, world' second a.txt")
    rows["layers"].type_in("5 6 7")
    words = ("--prompts", "Hello, world", "second", "a.txt", "--layers", "5", "6", "7")
    assert program_of(form).args == words
    rows["prompts"].type_in("'Hello")
    assert "No closing quotation" in rows["prompts"].widget.children[1].value


def test_another_program_has_other_rows_and_none_has_none(show: Show) -> None:
    form = show(TRAIN)
    Path("other.py").write_text(COMMANDS)
    line_of(form, "script").type_in("other.py")
    eventually(lambda: any(name.endswith("split") for name in rows_of(form).own.rows))
    line_of(form, "script").type_in("absent.py")
    assert rows_of(form).widget.layout.display == "none"
    Path("broken.py").write_text("def :\n")
    line_of(form, "script").type_in("broken.py")
    time.sleep(0.3)
    assert rows_of(form).widget.layout.display == "none"


@pytest.mark.parametrize("name", ["script", "cwd", "python", "accelerate_config"])
@pytest.mark.parametrize("path", ["x" * 300, "a/" * 3000 + "t.py"])
def test_a_path_that_is_too_long_is_marked(show: Show, name: str, path: str) -> None:
    form = show(TRAIN)
    line_of(form, name).type_in(path)
    assert "<b>must be " in line_of(form, name).widget.children[1].value
    assert form.bar._said.value == "" and form.bar.launch.disabled


def test_the_interpreter_is_named_and_one_without_torch_is_a_mistake(show: Show) -> None:
    form = show(TRAIN)
    assert f"runs in {sys.executable} (the environment of nbtools; Python " in note(form) and "torch 2" in note(form)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "bare"], check=True)
    line = line_of(form, "python")
    line.type_in("bare")
    eventually(lambda: "torch is not installed in" in line.widget.children[1].value)
    eventually(lambda: form.bar.launch.disabled)
    assert not form.bar.write.disabled
    assert values(form)["steps"] == 3
    line.type_in("")
    eventually(lambda: not form.bar.launch.disabled)


TRUTHS = """
import argparse
import os
import torch

parser = argparse.ArgumentParser()
parser.add_argument("ready", type=bool)
parser.add_argument("--cuda", action="store_true", default=torch.cuda.is_available())
parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=os.environ.get("AMP"))
parser.add_argument("--cache", type=lambda text: text == "yes", default=os.environ.get("CACHE"))
parser.add_argument("--no-log", dest="log", action="store_false", default=os.environ.get("LOG"))
parser.add_argument("--go", type=bool, required=True)
args = parser.parse_args()
"""


def test_a_truth_value_with_an_unknown_default_is_not_set_and_a_required_one_is_missing(show: Show) -> None:
    form = show(TRUTHS, ("yes",), asks=True)
    rows = rows_of(form).own.rows
    assert mistakes(form) == ["argument go: --go is missing (train.py:12); give it a value"]
    rows["go"].type_in(True)
    assert values(form) == {"ready": True, "cuda": None, "amp": None, "cache": None, "log": None, "go": True}
    assert rows["cuda"]._input.label == "not set (torch.cuda.is_available())"
    for name, value in {"cuda": True, "amp": False, "cache": True, "log": False}.items():
        rows[name].type_in(value)
    words = ("yes", "--go", "True", "--cuda", "--no-amp", "--cache", "yes", "--no-log")
    assert program_of(form).args == words
    rows["cuda"].type_in(False)  # no word turns it off
    [mistake] = mistakes(form)
    assert "the flag stands for True; the other value is torch.cuda.is_available()" in mistake
    assert line_of(form, "args").value == words


REQUIRED = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--model", required=True)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()
"""


def test_missing_arguments_are_named_at_once_unless_preliminary(show: Show) -> None:
    preliminary = show(REQUIRED)
    assert "preliminary" in note(preliminary) and mistakes(preliminary) == []
    form = show(REQUIRED, asks=True)
    rows = rows_of(form).own.rows
    missing = ["argument data: data is missing (train.py:5); give it a value"]
    missing += ["argument model: --model is missing (train.py:6); give it a value"]
    assert mistakes(form) == missing
    rows["data"].type_in("texts/")
    rows["steps"].type_in("9")
    assert line_of(form, "args").value == ("texts/", "--steps", "9")
    assert mistakes(form) == missing[1:]
    form.bar._links[0].click()
    assert form.bar._said.value == ""
    rows["model"].type_in("tiny")
    assert mistakes(form) == []
    line_of(form, "args").type_in("texts/ --model tiny --steps many")
    assert mistakes(form) == ["argument steps: --steps many: takes a whole number such as 1_000"]
    rows["steps"].type_in("4")
    assert (program_of(form).args, mistakes(form)) == (("texts/", "--model", "tiny", "--steps", "4"), [])
    rows["data"].type_in("")
    assert mistakes(form) == missing[:1]
    line_of(form, "args").type_in("--unknown texts/")  # which may be the data
    assert mistakes(form) == missing[1:]
    line_of(form, "args").type_in("@more.txt")
    assert mistakes(form) == []  # argparse may read the others from the file


def test_one_box_finds_settings_of_the_launch_and_arguments(show: Show) -> None:
    form = show(TRAIN)
    sections, rows = form.view.sections, rows_of(form).own.rows
    form.view._finder.text.value = "step size"
    shown = [line.field.name for line in [*sections.rows, *rows.values()] if line.widget.layout.display == ""]
    assert (shown, form.view._finder._note.value) == (["lr"], "")
    form.view._finder.text.value = "processes"
    assert rows["lr"].widget.layout.display == "none" and line_of(form, "nproc_per_node").widget.layout.display == ""
    form.view._finder.text.value = "absent"
    assert "no setting matches" in form.view._finder._note.value
    form.view._finder.text.value = ""
    assert rows["lr"].widget.layout.display == ""


def test_a_module_elsewhere_in_the_project_is_a_mistake_of_the_working_directory(show: Show, tmp_path: Path) -> None:
    form = show(TRAIN)
    assert f"<br>starts in {tmp_path}<br>" in note(form)
    for folder in ("pkg", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pkg" / "fit.py").write_text(COMMANDS)
    line_of(form, "script").type_in("")
    line_of(form, "module").type_in("pkg.fit")
    eventually(lambda: "seed" in rows_of(form).own.rows)
    line_of(form, "cwd").type_in("notebooks")
    eventually(lambda: [link for link in form.bar._list.children if link.description.startswith("module")])
    [link] = form.bar._list.children
    assert f"{tmp_path} has it: set cwd=" in link.description
    assert rows_of(form).widget.layout.display == "none" and not form.bar.write.disabled


def test_a_form_in_the_folder_of_a_notebook_reads_the_program_from_there(
    show: Show, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = show(TRAIN)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    line_of(form, "cwd").type_in("")
    eventually(lambda: f"starts in {tmp_path / 'notebooks'}<br>" in note(form))
    new = FormBody(None, "new")
    line_of(new, "script").type_in("train.py")
    eventually(lambda: f"starts in {tmp_path}<br>" in note(new))
    assert program_of(new).cwd == "."


CONFIG = """
import argparse
import yaml

parser = argparse.ArgumentParser()
parser.add_argument("--config", default="base.yaml")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
config = yaml.safe_load(open(args.config))
"""
BASE = "optim:\n  lr: 0.1\n  layers: [2, 3]\nsteps: 3\nname: small\n"


def test_the_keys_of_a_config_are_rows_whose_changes_stand_in_the_launcher_script(show: Show) -> None:
    Path("base.yaml").write_text(BASE)
    form = show(CONFIG)
    rows = rows_of(form)
    keys = rows.config.keys.rows
    shown = {name: line.value for name, line in keys.items()}
    assert shown == {"optim.lr": 0.1, "optim.layers": (2, 3), "steps": 3, "name": "small"}
    assert "float</i> (base.yaml)" in keys["optim.lr"].widget.children[1].value
    assert "4 keys of base.yaml; a run gets a copy" in note(form)
    keys["optim.lr"].type_in("0.5")
    keys["optim.layers"].type_in("4 5 6")
    rows.own.rows["seed"].type_in("7")
    program = program_of(form)
    assert program.args == ("--config", "base.yaml", "--seed", "7")
    assert (program.config_file, program.config_values) == ("base.yaml", ("optim.lr=0.5", "optim.layers=[4,5,6]"))
    assert "<mark>default: 0.1</mark>" in keys["optim.lr"].widget.children[1].value
    keys["steps"].type_in("many")
    assert mistakes(form) == ["key steps: 'many' is not a whole number such as 1_000"]
    keys["steps"].type_in("3")
    again = opened(read_script(form.write()).program)
    assert rows_of(again).config.keys.rows["optim.layers"].value == (4, 5, 6)
    form.view._finder.text.value = "steps"
    assert keys["steps"].widget.layout.display == "" and keys["name"].widget.layout.display == "none"


def test_another_config_has_its_own_keys_and_none_of_the_changed_values(show: Show) -> None:
    Path("base.yaml").write_text(BASE)
    Path("large.json").write_text('{"width": 512}')
    form = show(CONFIG, ("--config=base.yaml",))
    rows = rows_of(form)
    rows.config.keys.rows["steps"].type_in("9")
    assert program_of(form).args == ("--config=base.yaml",)
    rows.own.rows["config"].type_in("large.json")
    assert list(rows.config.keys.rows) == ["width"]
    program = program_of(form)
    assert (program.args, program.config_file, program.config_values) == (("--config", "large.json"), None, ())
    rows.config.keys.rows["width"].type_in("256")
    rows.config.keys.rows["width"].type_in("512")
    assert program_of(form).config_file is None
    rows.own.rows["config"].type_in("absent.yaml")
    assert rows.config.keys.widget.layout.display == "none" and mistakes(form) == []


TWO_CONFIGS = """
import argparse
import yaml

parser = argparse.ArgumentParser()
parser.add_argument("--model_config", default="base.yaml")
parser.add_argument("--data_config")
args = parser.parse_args()
model, data = yaml.safe_load(open(args.model_config)), yaml.safe_load(open(args.data_config))
"""


def test_the_keys_of_two_configs_are_rows_and_each_change_names_its_file(show: Show) -> None:
    Path("base.yaml").write_text(BASE)
    Path("data.yaml").write_text("steps: 5\nfast: true\n")
    Path("other.yaml").write_text("steps: 8\n")
    form = show(TWO_CONFIGS, ("--data_config=data.yaml",))
    rows = rows_of(form)
    keys = rows.config.keys.rows
    assert list(keys) == ["optim.lr", "optim.layers", "steps", "name", "data.yaml:steps", "data.yaml:fast"]
    assert "6 keys of base.yaml, data.yaml; a run gets a copy" in note(form)
    keys["data.yaml:steps"].type_in("6")
    program = program_of(form)
    assert (program.args, program.config_file) == (("--data_config=data.yaml",), None)
    assert program.config_values == ("data.yaml:steps=6",)
    keys["steps"].type_in("4")
    program = program_of(form)
    assert program.args == ("--model_config", "base.yaml", "--data_config=data.yaml")
    assert (program.config_file, program.config_values) == ("base.yaml", ("data.yaml:steps=6", "steps=4"))
    again = opened(read_script(form.write()).program)
    shown = rows_of(again).config.keys.rows
    assert (shown["steps"].value, shown["data.yaml:steps"].value) == (4, 6)
    rows.own.rows["model_config"].type_in("other.yaml")
    program = program_of(form)
    assert (program.config_file, program.config_values) == (None, ("data.yaml:steps=6",))
    assert (rows.config.keys.rows["steps"].value, rows.config.keys.rows["data.yaml:steps"].value) == (8, 6)
    assert mistakes(form) == []


def test_keys_below_a_changed_config_group_say_whose_values_they_show(show: Show, tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    zoo = Path(__file__).parents[3] / "script/arguments/zoo"
    shutil.copytree(zoo / "hydra_conf", tmp_path / "hydra_conf")
    form = show((zoo / "hydra_app.py").read_text(), ("data_dir=d",), asks=True)
    rows = rows_of(form).own.rows

    def said(name: str) -> str:
        return texts_in(rows[name].widget)

    said_so = "of optimizer=adam; unless it is changed here, the run has that of the new optimizer"
    assert said_so not in said("optimizer.lr")
    rows["optimizer"].type_in("sgd")
    assert program_of(form).args == ("data_dir=d", "optimizer=sgd")
    assert said_so in said("optimizer.lr") and said_so not in said("epochs")
    rows["optimizer.lr"].type_in("0.5")
    assert said_so not in said("optimizer.lr") and said_so in said("optimizer.name")
