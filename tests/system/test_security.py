"""What strangers may put in front of nbtools: hostile values, pickles, links, pids that were given to somebody else."""

import argparse
import ast
import contextlib
import functools
import json
import os
import pickle
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import ipywidgets
import pytest
import torch
from fixture_types import Audited, Configs, Event, Inject, MonkeyPatch, Printed, Shown, Start, Train
from launched import TRAINER, python, write_torch_free
from transformers import BertConfig, BertForMaskedLM
from waiting import eventually
from widget_tree import every

import nbtools as nt
from nbtools.cli.commands import main
from nbtools.cli.field_flags import launch_flags
from nbtools.cli.output import print_run, status_lines
from nbtools.cli.parser import parser
from nbtools.config import Launch
from nbtools.errors import CheckpointError, ConfigError, InvalidNameError, NbtoolsError, RunNotFoundError
from nbtools.launcher.request import run_name
from nbtools.machine import gpu_queue
from nbtools.machine.processes import members
from nbtools.metrics.writer import MetricWriter
from nbtools.notebook.panel import html
from nbtools.notebook.panel.snapshot import take_snapshot
from nbtools.project import Project
from nbtools.recipes import RECIPES, MLMPretrainingConfig
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.ranks import stacks
from nbtools.run.ranks.stragglers import stragglers
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.atomic import hidden_name, write_file
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import parse_script, read_script, render, write_script
from nbtools.settings import Settings
from nbtools.training.engine.checkpoint import load_weights
from nbtools.training.engine.initial_state import read_weights
from nbtools.training.mlm_pretraining.train import build_model
from nbtools.training.text.tokenizers import masking_tokenizer

from capabilities import ANOTHER_UID
from trainings import Planted

PACKAGE = Path(nt.__file__).parent

HOSTILE = [
    *("../../xyzzy", "/tmp/xyzzy", "$(touch xyzzy)", "`touch xyzzy`", "xyzzy;touch p", "xyzzy|touch p &", "xyz'zy"),
    *('xyz"zy', "'''xyzzy\"\"\"", "xyzzy\nb", "xyzzy\r\x1b[2Jb", "xyzzy\0b", "xyzzy\u202eb\u2066", "xyzzy\udcff"),
    *("-xyzzy", "--xyzzy", "--", "~xyzzy", "xyzzy" + "x" * 10_000, "<img xyzzy onerror=alert(1)>"),
    *("xyzzy%s{0}{config}\\", "xyzzy con.\u3000é東", "__import__('os').system('touch xyzzy')"),
]
NAMES = [ascii(value)[1:25] for value in HOSTILE]


def everything_below(folder: Path) -> dict[str, int]:
    """Every file with its size, every folder with -1."""
    found = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): -1 if path.is_dir() else path.lstat().st_size for path in found}


def check_processes(happened: list[Event]) -> None:
    """No process was started through a shell."""
    for event, arguments in happened:
        assert event not in ("os.system", "os.popen", "os.exec", "os.posix_spawn", "pty.spawn"), arguments
        if event == "subprocess.Popen":
            executable, argv = arguments[0], arguments[1]
            assert not isinstance(argv, str | bytes)
            assert Path(os.fsdecode(executable)).name not in ("sh", "bash", "dash", "env"), argv


# --- hostile values in every field ----------------------------------------------------------------

SETTINGS: list[type[Settings]] = [Launch, *(recipe.config_class for recipe in RECIPES.values())]
FIELDS = [pytest.param(cls, name, id=f"{cls.__name__}.{name}") for cls in SETTINGS for name in cls.model_fields]
COMPANIONS: dict[str, dict[str, Any]] = {
    "LLMGANConfig.model_name": {"dataset": "a.csv"},
    "LLMGANConfig.judge_name": {"dataset": "a.csv", "model_name": "gpt2"},
}
"""What has to be given with a field, for it to make sense."""


def takes_any_text(annotation: Any) -> bool:
    return annotation is str or (get_origin(annotation) not in (Literal, tuple) and str in get_args(annotation))


@pytest.mark.promise("fault-19")
@pytest.mark.parametrize(("cls", "name"), FIELDS)
def test_text_in_any_field_is_refused_by_name_or_comes_back_as_it_went_in(cls: type[Settings], name: str) -> None:
    for value in HOSTILE:
        if not takes_any_text(cls.model_fields[name].annotation):
            with pytest.raises(ConfigError, match=name) as caught:
                cls(**{name: value})
            assert len(str(caught.value)) < 500
            continue
        if (cls, name) == (Launch, "python") and ("\0" in value or len(value) > 4096):  # no path
            with pytest.raises(ConfigError, match=r"^python=.*must be the path"):
                cls(**{name: value})
            continue
        settings = cls(**{name: value}, **COMPANIONS.get(f"{cls.__name__}.{name}", {}))
        config = MLMPretrainingConfig() if cls is Launch else settings
        source = render(config, "plain", settings if cls is Launch else None)  # type: ignore[arg-type]
        read = parse_script(Path("plain.py"), source.encode())
        assert getattr(read.launch if cls is Launch else read.config, name) == value
        assert all(character == "\n" or character.isprintable() for character in source)
        assert {type(node) for node in ast.walk(ast.parse(source))}.isdisjoint({ast.Lambda, ast.JoinedStr, ast.BinOp})


@pytest.mark.promise("fault-19")
@pytest.mark.parametrize("key", RECIPES)
def test_text_in_any_row_of_the_form_is_never_markup_nor_a_file(project: Project, audited: Audited, key: str) -> None:
    form = nt.ConfigForm(key)
    before = everything_below(project.root)
    found = every(form.widget)
    typed = [widget for widget in found if isinstance(widget, ipywidgets.Text | ipywidgets.Textarea)]
    assert len(typed) > 10
    with audited() as happened:
        for turn, widget in enumerate(typed):
            for value in HOSTILE[turn % 5 :: 5]:  # all rows share their code, and each value comes to many of them
                widget.value = value
                markup = "".join(shown.value for shown in found if isinstance(shown, ipywidgets.HTML))
                assert "<img" not in markup
            widget.value = ""
    check_processes(happened)
    assert everything_below(project.root) == before


@pytest.mark.parametrize("value", HOSTILE, ids=NAMES)
def test_a_name_is_refused_wherever_one_is_given(project: Project, value: str) -> None:
    (project.scripts / "present.py").touch()
    before = everything_below(project.root)
    config = MLMPretrainingConfig()
    wrong: list[tuple[type[NbtoolsError], Callable[[], object]]] = [
        (InvalidNameError, lambda: write_script(config, value)),
        (InvalidNameError, lambda: render(config, value)),
        (ConfigError, lambda: RECIPES["mlm_pretraining"].preset(value)),
        (NbtoolsError, lambda: nt.ConfigForm(value)),
        (NbtoolsError, lambda: read_script(value)),
        (NbtoolsError, lambda: read_script(project.scripts / value)),
        (NbtoolsError, lambda: nt.launch(value)),
        (NbtoolsError, lambda: nt.launch(Path(value))),
        (NbtoolsError, lambda: nt.preflight(value)),
        (RunNotFoundError, lambda: Run(value)),
        (RunNotFoundError, lambda: Run(Path(value))),
        (RunNotFoundError, lambda: Run(f"runs/{value}")),
        (RunNotFoundError, lambda: Run(f"{value}/x")),
        (RunNotFoundError, lambda: nt.launch(project.scripts / "present.py", after=value)),
    ]
    for error, call in wrong:
        with pytest.raises(error) as caught:
            call()
        assert len(str(caught.value)) < 25_000
    assert everything_below(project.root) == before


@pytest.mark.parametrize("value", HOSTILE, ids=NAMES)
def test_a_run_of_a_file_of_any_name_stays_in_its_folder(value: str) -> None:
    name = run_name(value)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    assert not name.startswith("_")


@pytest.mark.parametrize("value", HOSTILE, ids=NAMES)
def test_a_metric_of_any_name_is_one_row_and_no_markup(project: Project, value: str) -> None:
    run = RunDir.create(project.runs, "toy")
    write_json(run.launch, {"name": "toy", "recipe": "mlm_pretraining"})
    with MetricWriter(run.metrics) as writer:
        try:
            writer.write(1, {value: 2.5})
        except ValueError:
            assert "\udcff" in value  # no text file could hold it
            return
    assert run.metrics.read_bytes().count(b"\n") == 1
    json.loads(run.metrics.read_bytes())
    if len(value) < 256:
        assert Run(run.path).metrics == {value: 2.5}
    assert "<img" not in Run(run.path)._repr_html_()


@pytest.mark.promise("safety-display")
def test_no_display_has_characters_that_hide_or_reorder_others(project: Project) -> None:
    name = "2026-01-01_000000_a\x1b[31m\u202eb\u200b"
    run = RunDir(project.runs / name)
    saved = run.checkpoints / "step-000001"
    saved.mkdir(parents=True)
    write_json(run.launch, {"name": "toy"})
    write_json(run.exit, {"returncode": 0, "time": 1.0})
    plan = nt.clean(run.path, project=project)
    shown = [
        plan,
        replace(plan, kept=((name, name),)),
        Run(run.path),
        Checkpoint(1, saved, 1.0, {name: 1.0}, {}),
        nt.runs(project),
    ]
    for each in shown:
        told = each._repr_html_()
        assert "b\\u200b" in told, each
        assert not {unicodedata.category(character) for character in told} & {"Cc", "Cf"}, each


# --- hostile values in every argument of the command line -----------------------------------------

VALID = {
    "ACTION|FIELD=VALUE": "save",
    "RUN": "latest",
    "RECIPE": "mlm_pretraining",
    "RECIPE|PROGRAM.py": "mlm_pretraining",
    "NAME": "fresh",
    "SCRIPT": "scripts/present.py",
    "FILE": "out.png",
    "TEXT": "absent.txt",
    "TEXT|FILE": "rows.csv",
    "DIR": "prepared",
}
"""What stands for the arguments that are not being tried; by its metavar. A new one needs a line here."""
FREE_TEXT = {
    *(("runs", "name"), ("runs", "recipe")),
    *(("show", "tags"), ("show", "note")),
    *(("predict", "source"), ("predict", "out")),
}
"""Arguments in which any text may stand: one that no run has, a label of a run, what a model reads, a file's path."""


@functools.cache
def verbs() -> dict[str, argparse.ArgumentParser]:
    grammar = parser("", launch_flags=launch_flags())
    commands = next(each for each in grammar.__dict__["_actions"] if isinstance(each, argparse._SubParsersAction))
    return dict(commands.choices)


def slots() -> Iterator[tuple[str, argparse.Action]]:
    """Every argument of every verb that takes a value."""
    for verb, grammar in verbs().items():
        for action in grammar._actions:
            if action.nargs != 0 and not isinstance(action, argparse._HelpAction):
                yield verb, action


def command_line(verb: str, tried: argparse.Action, value: str) -> list[list[str]]:
    """The ways to write a command with `value` in one place and something valid in all that have to be there."""
    positional, options = [], []
    for action in verbs()[verb]._actions:
        if action is tried or action.dest == tried.dest or action.nargs == 0:
            if action.dest == tried.dest and not action.option_strings:
                positional.append(value)
        elif action.required or action.metavar == "TEXT|FILE":
            options += [action.option_strings[0]] if action.option_strings else []
            (options if action.option_strings else positional).append(VALID[str(action.metavar)])
    if not tried.option_strings:
        plain = [[verb, *options, *positional]] if value != "--" else []
        return plain if verb in ("launch", "new", "resume") else [*plain, [verb, *options, "--", *positional]]
    long = tried.option_strings[-1]
    joined = f"{long}={value}" if long.startswith("--") else f"{long}{value}"
    return [[verb, *positional, *options, joined], [verb, *positional, *options, tried.option_strings[0], value]]


@pytest.fixture
def ended(project: Project, monkeypatch: MonkeyPatch) -> RunDir:
    """A run that has ended, with a config, a metric and a whole checkpoint."""
    monkeypatch.chdir(project.root)
    run = RunDir.create(project.runs, "toy")
    run.lock.touch()
    config = MLMPretrainingConfig()
    run.script.write_text(render(config, "toy"))
    (project.scripts / "present.py").touch()
    (project.root / "rows.csv").write_text("text\nthe [MASK] was open\n")
    launch = {"name": "toy", "script": str(project.scripts / "toy.py"), "recipe": "mlm_pretraining", "args": []}
    write_json(run.launch, {**launch, "launch": {"gpus": [], "nproc_per_node": 1}, "time": 1e9})
    write_json(run.config, {"recipe": "mlm_pretraining", "config": config.model_dump(), "derived": {"total_steps": 9}})
    run.metrics.write_text('{"step": 7, "time": 1e9, "train/loss": 2.5}\n')
    folder = run.checkpoint(7)
    folder.mkdir()
    (folder / "state.pt").write_bytes(b"abc")
    claim = {"state.pt": {"bytes": 3, "sha256": sha256(b"abc").hexdigest()}}
    write_json(folder / "manifest.json", {"step": 7, "time": 1e9, "metrics": {}, "files": claim})
    write_json(run.exit, {"returncode": 0, "stopped": False, "failure": None, "time": 1e9})
    return run


@pytest.mark.promise("fault-19")
@pytest.mark.parametrize(
    ("verb", "action", "turn"),
    [pytest.param(*slot, turn, id=f"{slot[0]}-{slot[1].dest}") for turn, slot in enumerate(slots())],
)
def test_any_argument_of_any_verb_is_refused_by_name_or_taken_literally(
    ended: RunDir, audited: Audited, capsys: Printed, verb: str, action: argparse.Action, turn: int
) -> None:
    root, is_free = ended.path.parent.parent, (verb, action.dest) in FREE_TEXT
    before = everything_below(root)
    for value in HOSTILE[turn % 3 :: 3]:  # the parser is one, and each value comes to dozens of arguments
        for words in command_line(verb, action, value):
            capsys.readouterr()
            with audited() as happened:
                try:
                    code = main(words)
                except SystemExit as ended_early:
                    code = int(str(ended_early.code))
            said = capsys.readouterr()
            check_processes(happened)
            assert code == 2 or (is_free and code == 0), (words, said)
            assert said.out == "" or is_free, words
            assert value.startswith("-") or is_free or "xyz" in said.err.lower(), (words, said.err)
            assert len(said.err) < 2100, words
            shown = {unicodedata.category(c) for c in said.out + said.err if c != "\n"}
            assert not shown & {"Cc", "Cf", "Cs", "Zl", "Zp"}, words
    if is_free:
        ended.labels.unlink(missing_ok=True)
    assert everything_below(root) == before


@pytest.mark.parametrize(
    "value", ["$(touch xyzzy)", "xyz'zy\"", "-xyzzy", "xyzzy\nb", "~xyzzy", "xyzzy\udcff"], ids=ascii
)
def test_a_picture_is_called_as_it_was_asked_for(ended: RunDir, audited: Audited, capsys: Printed, value: str) -> None:
    root = ended.path.parent.parent
    before = set(everything_below(root))
    with audited() as happened:
        assert main(["plot", "latest", f"--output={value}.png"]) == 0
    check_processes(happened)
    assert set(everything_below(root)) - before == {f"{value}.png"}


FREE = [name for name, field in MLMPretrainingConfig.model_fields.items() if takes_any_text(field.annotation)]


@pytest.mark.parametrize("value", HOSTILE, ids=NAMES)
def test_a_value_set_on_the_command_line_is_carried_literally(
    project: Project, audited: Audited, monkeypatch: MonkeyPatch, capsys: Printed, value: str
) -> None:
    monkeypatch.chdir(project.root)
    with audited() as happened:
        code = main(["new", "mlm_pretraining", "plain", *(f"--set={name}={value}" for name in FREE)])
    check_processes(happened)
    assert (code, capsys.readouterr().out) == (0, "scripts/plain.py\n")
    config = read_script("scripts/plain.py").config.model_dump()
    assert {name: config[name] for name in FREE} == dict.fromkeys(FREE, value)
    assert set(everything_below(project.root)) == {"runs", "scripts", "scripts/plain.py"}


# --- what the source never does -------------------------------------------------------------------

FORBIDDEN = {
    *("eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "tempfile.mktemp"),
    *("pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "yaml.load", "yaml.unsafe_load", "runpy.run_path"),
}


RUNS_A_SCRIPT = {("script/intercept/run_to_parser.py", "runpy.run_path")}
"""Once the user has let forms run the programs of a project, a child process runs one up to its parser."""

REPLACES_ITS_PROCESS = {("script/program.py", "Program.run"): "os.execvp(command[0], command)"}
"""Only `python scripts/NAME.py` becomes the program that this script names; each other exec starts Python itself."""


def replacements(path: Path) -> dict[tuple[str, str], str]:
    """Return each call of os.exec*, os.posix_spawn or os.spawn* that does not start sys.executable, by its function."""
    found: dict[tuple[str, str], str] = {}

    def visit(node: ast.AST, inside: str) -> None:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inside = f"{inside}.{node.name}".lstrip(".")
        if isinstance(node, ast.Call):
            call = ast.unparse(node)
            is_one = re.match(r"(os\.)?(exec[lv]\w*|posix_spawnp?|spawn[lv]\w*)\(", call)
            if is_one and not call.startswith("os.execve(sys.executable, "):
                found[str(path.relative_to(PACKAGE)), inside] = call
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text()), "")
    return found


def test_one_function_of_the_source_becomes_another_program() -> None:
    found = {where: call for path in PACKAGE.rglob("*.py") for where, call in replacements(path).items()}
    assert found == REPLACES_ITS_PROCESS
    imported = [path for path in PACKAGE.rglob("*.py") if re.search(r"from os import .*(exec|spawn)", path.read_text())]
    assert not imported


# Never allowed by the source itself: only what the user typed into a config that has the field is handed on.
ASKED_FOR = {"False", "trust_remote_code", "config.trust_remote_code"}
SETTINGS_ALONE = {"GenerationConfig.from_pretrained", "peft.LoraConfig.from_pretrained"}
"""They read a JSON file, and know no code of others."""


def calls_of_the_source() -> Iterator[tuple[str, ast.Call]]:
    """Every call of the product, with the path of its module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield path.relative_to(PACKAGE).as_posix(), node


def test_the_source_runs_no_values_no_shell_no_pickle_and_no_remote_code() -> None:
    for path, call in calls_of_the_source():
        name = ast.unparse(call.func)
        where = f"{path}:{call.lineno}: {name}"
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert name not in FORBIDDEN or (path, name) in RUNS_A_SCRIPT, where
        assert options.get("shell", "False") == "False", where
        assert options.get("trust_remote_code", "False") in ASKED_FOR, where
        assert options.get("allow_pickle", "False") == "False", where
        assert options.get("weights_only", "True") == "True", where
        if name == "torch.load":
            assert options.get("weights_only") == "True", where
        if name.endswith(".from_pretrained") and name not in SETTINGS_ALONE:
            assert options.get("trust_remote_code") in ASKED_FOR, where


# --- one run directory, many starts ---------------------------------------------------------------


@pytest.mark.promise("fault-21")
@pytest.mark.slow
def test_of_fifty_starts_of_one_run_at_once_one_wins_and_the_others_say_why(project: Project) -> None:
    run = RunDir.create(project.runs, "contested")
    program = "import os, time; os.write(1, b'ran\\n'); time.sleep(3)"
    write_json(run.launch, {"argv": [sys.executable, "-c", program], "cwd": str(project.root), "launch": {}})
    command = [sys.executable, "-P", "-m", "nbtools.launcher.supervisor", str(run.path)]
    starts = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(50)]
    ended = [(start.communicate(timeout=300)[1], start.returncode) for start in starts]
    assert sorted(code for _, code in ended) == [0] + [2] * 49
    for said, code in ended:
        assert code == 0 or re.search(r"^nbtools\.launcher\.supervisor: error: \S+: (is|was) already .*\n$", said, re.M)
    assert run.log.read_text() == "ran\n"
    assert Run(run.path).state is RunState.SUCCEEDED


CLEAN = """
import sys
from nbtools.cli.commands import main
while not main(["clean", "--state", "LOST", "--state", "FAILED", "--yes"]):
    pass
"""
LAUNCH_FIVE = """
import sys
from concurrent.futures import ThreadPoolExecutor
from nbtools.launcher.launch import launch
with ThreadPoolExecutor(5) as pool:
    for run in pool.map(lambda _: launch(sys.argv[1], gpus=()), range(5)):
        print(run.id, flush=True)
        run.wait(timeout_s=300)
"""


@pytest.mark.slow
@pytest.mark.promise("safety-many-launches")
def test_twenty_launches_beside_a_loop_of_clean_are_twenty_runs(project: Project, tmp_path: Path) -> None:
    """`clean` removes runs that are lost or failed, again and again; a run between two of its files is neither."""
    script = project.scripts / "toy.py"
    script.write_text("print('hello')\n")
    write_torch_free(tmp_path / "torch_free", "print('ran --shutdown-timeout', flush=True)\n")
    path = str(tmp_path / "torch_free")
    lost = RunDir.create(project.runs, "lost")
    lost.lock.touch()
    write_json(lost.launch, {"name": "lost", "time": 1e9})
    write_json(lost.exit, {"returncode": 1, "stopped": False, "failure": None, "time": 1e9})
    with subprocess.Popen([sys.executable, "-c", CLEAN], stdout=subprocess.DEVNULL) as cleaning:
        try:
            eventually(lambda: not lost.path.exists())  # it cleans
            with ThreadPoolExecutor(4) as pool:
                said = list(pool.map(lambda _: python("-c", LAUNCH_FIVE, script, PYTHONPATH=path), range(4)))
            assert cleaning.poll() is None, "it cleaned to the end"
        finally:
            cleaning.kill()
    ids = " ".join(said).split()
    assert len(set(ids)) == len(ids) == 20
    assert {path.name for path in project.runs.iterdir() if not path.name.startswith(".")} == set(ids)
    for run in map(Run, ids):
        assert run.state is RunState.SUCCEEDED
        assert run.log() == "ran --shutdown-timeout"


# --- pids that were given to somebody else, clocks that were set, reboots --------------------------


def claims_of(pid: int) -> Iterator[dict[str, Any]]:
    """What files may say of a process whose pid, after a reboot or a wrap, is somebody else's."""
    true = ProcessIdentity.of(pid).to_json()
    for change in ({"start_time": true["start_time"] - 3600}, {"start_time": true["start_time"] + 3600}):
        yield {**true, **change}
    yield {**true, "boot_id": "another boot"}
    yield {**true, "pid_namespace": 1}
    yield {**true, "boot_id": "", "host": "another-host"}
    yield {"pid": pid}
    yield {"pid": pid, "host": true["host"]}


@pytest.mark.promise("fault-22")
def test_a_stranger_with_a_recorded_pid_is_not_ours(project: Project, stranger: subprocess.Popen[bytes]) -> None:
    """By no file, with no lock and with a held one, for no purpose."""
    for claim in claims_of(stranger.pid):
        for role in ("supervisor", "torchrun", "worker"):
            run = RunDir.create(project.runs, "toy")
            run.lock.touch()
            run.log.touch()
            write_json(run.launch, {"name": "toy", "flock": False, "launch": {"shutdown_timeout_s": 1}})
            write_json(run.process, {"role": role, **claim})
            beat = {"rank": 0, "step": 3, "phase": "forward", "time": time.time(), "host": socket.gethostname()}
            announced = {"signal": int(signal.SIGUSR2), "stacks_signal": int(signal.SIGUSR2)}
            write_json(run.heartbeat(0), {**beat, **announced, **claim})
            seen = Run(run.path)
            assert seen.state is RunState.LOST
            assert members(run) == []
            assert all(not found.has_stacks for found in stacks.take_stacks(run))
            with contextlib.suppress(NbtoolsError):
                seen.stop(timeout_s=0.1)
    time.sleep(0.2)
    assert stranger.poll() is None


CLOCK = """
import os, time
really, began = time.time, time.monotonic()
time.time = lambda: really() + (float(os.environ["CLOCK_JUMP_S"]) if time.monotonic() - began > 0.7 else 0.0)
"""


@pytest.mark.promise("fault-22")
@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_meanwhile_changes_no_duration_and_ends_no_run(
    supervised: Start, injected: Inject, jump_s: float
) -> None:
    """Every process of the run, but not this one, sees the clock of the day jump by an hour."""
    injected(CLOCK, CLOCK_JUMP_S=jump_s)
    run = supervised(sys.executable, TRAINER, "--steps", "40", "--step-s", "0.05")
    began = time.monotonic()
    while not run.state.is_final:
        look_at(run)
        assert time.monotonic() - began < 250
        time.sleep(0.1)
    assert run.state is RunState.SUCCEEDED
    assert run.step == 40
    ended = read_json(run.files.exit) or {}
    assert 1.5 < ended["duration_s"] < 600
    assert abs(ended["time"] - time.time() - jump_s) < 600, "the clock did jump"
    look_at(run)


def look_at(run: Run) -> None:
    """What panel, table and command line show of it."""
    summary = json.loads(json.dumps(run.summary(), allow_nan=False))
    print_run(summary)
    assert status_lines(run)
    facts = take_snapshot(run, run.state)
    for now in (time.time(), time.time() + 3600, time.time() - 3600):
        remaining_s = facts.remaining_s(now)
        assert remaining_s is None or 0 <= remaining_s < 1e6
        shown = html.ranks(facts.ranks, stragglers(facts.ranks, now, facts.seconds_per_step), now, is_running=True)
        assert "nan" not in shown
        assert "-" not in re.sub("<[^>]*>", "", shown)


# --- pickles --------------------------------------------------------------------------------------


PICKLED = ["state.pt", "rank-0.pt", "model/pytorch_model.bin", "model/training_args.bin", "model/model.safetensors"]


def planted(folder: Path, name: str, victim: Path) -> None:
    """Put a pickle into a checkpoint, with the size and hash of every file as they should be."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(Planted(victim), protocol=2))
    manifest = read_json(folder / "manifest.json") or {}
    data = (folder / name).read_bytes()
    manifest["files"][name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    write_json(folder / "manifest.json", manifest)


@pytest.mark.promise("safety-model-files")
@pytest.mark.parametrize("name", PICKLED)
def test_looking_at_a_checkpoint_unpickles_nothing(ended: RunDir, tmp_path: Path, capsys: Printed, name: str) -> None:
    victim = tmp_path / "victim"
    planted(ended.checkpoint(7), name, victim)
    run = Run(ended.path)
    assert [checkpoint.name for checkpoint in run.checkpoints] == ["step-000007"]
    run.checkpoints[0].verify()
    panel = nt.LivePlot(run.dir)
    panel.close()
    for words in (
        ["show", "latest"],
        ["show", "latest", "--json"],
        ["runs"],
        ["clean"],
        ["plot", "latest", "-o", "x.png"],
    ):
        assert main(words) == 0
    assert not victim.exists()
    pickle.loads((ended.checkpoint(7) / name).read_bytes())
    assert victim.exists()  # it would have


class NoText:
    """What `build_model` asks of a tokenized text."""

    tokenizer = range(40)


def small_bert(folder: Path) -> MLMPretrainingConfig:
    """Save a model as `save_pretrained` does, and return a config that starts from it."""
    shape = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertForMaskedLM(BertConfig(**shape, intermediate_size=8)).save_pretrained(folder)
    return MLMPretrainingConfig(model_name=str(folder), sequence_length=16)


@pytest.mark.promise("safety-model-files")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("how", ["torch.save", "pickle"])
def test_pretrained_weights_that_are_a_pickle_are_refused(tmp_path: Path, name: str, how: str) -> None:
    config, victim = small_bert(tmp_path / "model"), tmp_path / "victim"
    (tmp_path / "model" / "model.safetensors").unlink()
    if how == "torch.save":
        torch.save({"bert.weight": Planted(victim)}, tmp_path / "model" / name)
    else:
        (tmp_path / "model" / name).write_bytes(pickle.dumps(Planted(victim), protocol=2))
    with pytest.raises(ConfigError, match="model_name"):
        build_model(config, NoText())  # type: ignore[arg-type]
    assert not victim.exists()


@pytest.mark.promise("safety-model-files")
@pytest.mark.parametrize("num_bytes", [2**40, 2**63 - 1])
def test_weights_whose_header_claims_to_be_huge_take_no_memory(tmp_path: Path, num_bytes: int) -> None:
    config, path = small_bert(tmp_path / "model"), tmp_path / "model" / "model.safetensors"
    path.write_bytes(num_bytes.to_bytes(8, "little") + b"{}")
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError, match="header too large"):
        build_model(config, NoText())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="header too large"):
        load_weights(torch.nn.Linear(1, 1), path.parent)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weights(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 200_000


def test_code_that_comes_with_a_model_is_refused_at_once(tmp_path: Path) -> None:
    config, folder = small_bert(tmp_path / "model"), tmp_path / "model"
    described = json.loads((folder / "config.json").read_text())
    described |= {"model_type": "custom", "auto_map": {"AutoConfig": "custom.C", "AutoModelForMaskedLM": "custom.M"}}
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["custom.T", null]}}')
    (folder / "custom.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'victim')!r}).touch()\n")
    with pytest.raises(ConfigError, match="custom code"):
        build_model(config, NoText())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="custom code"):
        masking_tokenizer(str(folder))
    assert not (tmp_path / "victim").exists()


# --- a training of our own, for what only that can show --------------------------------------------


@pytest.mark.promise("fault-18")
@pytest.mark.slow
@pytest.mark.usefixtures("capfd")  # torch wants streams with descriptors
def test_a_training_is_not_resumed_from_a_pickle(tiny_training: Train, tmp_path: Path) -> None:
    whole, victim = tiny_training(max_steps=2, checkpoint_every=1).checkpoint(1), tmp_path / "victim"
    for name in ("state.pt", "rank-0.pt", "model/training_args.bin"):
        folder = tmp_path / name.replace("/", "-") / "step-000001"
        shutil.copytree(whole, folder)
        planted(folder, name, victim)
        if name.endswith(".bin"):  # nothing reads it
            tiny_training(folder, max_steps=2)
        else:
            with pytest.raises(SystemExit, match=re.escape(f"CheckpointError: {folder / name}: cannot be read")):
                tiny_training(folder, max_steps=2)
        assert not victim.exists()


# --- secrets --------------------------------------------------------------------------------------

SECRETS = {
    name: f"canary-{number}-6d1f"
    for number, name in enumerate(
        ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "HUGGING_FACE_HUB_TOKEN")
    )
}


def check_secrets(folder: Path) -> None:
    """No file below holds a secret, in its name or content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 4
    for path in files:
        assert b"canary-" not in path.read_bytes(), path


@pytest.mark.slow
def test_what_is_secret_in_the_environment_is_in_no_file_and_on_no_screen(
    project: Project, monkeypatch: MonkeyPatch, everything_shown: Shown
) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    program = "import os\nassert os.environ['RANK'] and os.environ['HF_TOKEN'], 'it has both'\nprint('loss=1.5')\n"
    script = project.scripts / "toy.py"
    script.write_text(f"{program}raise ValueError('boom')\n")
    run = nt.launch(script, nproc_per_node=2, gpus=())
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED, run.log()
    assert "boom" in run.failure.message
    check_secrets(project.runs)
    assert "canary-" not in everything_shown(run)


@pytest.mark.slow
def test_a_training_by_hand_writes_no_secret_down_and_doctor_tells_none(
    texts: Project, tiny_config: Configs, monkeypatch: MonkeyPatch, capsys: Printed, everything_shown: Shown
) -> None:
    monkeypatch.chdir(texts.root)
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    script = write_script(tiny_config(max_steps=2), "tiny", Launch(gpus=()), project=texts)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    check_secrets(texts.runs)
    assert "canary-" not in everything_shown(Run.latest())
    main(["doctor"])
    said = capsys.readouterr()
    assert "python" in said.out
    assert "canary-" not in done.stdout + done.stderr + said.out + said.err


# --- folders that others may write to --------------------------------------------------------------


@pytest.fixture
def shared(project: Project, tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """A folder like /tmp, with the queue in it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv(gpu_queue.FOLDER_VARIABLE, str(folder / "queue"))
    return folder


def test_a_queue_that_is_a_link_or_anybodys_is_not_used(shared: Path, project: Project, tmp_path: Path) -> None:
    run = RunDir.create(project.runs, "toy")
    (tmp_path / "elsewhere").mkdir()
    (shared / "queue").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="other users may remove"):
        gpu_queue.take(run, [0], ["GPU-0"])
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (shared / "queue").unlink()
    (shared / "queue").write_text("a file")
    with pytest.raises(OSError, match="other users may remove"):
        gpu_queue.take(run, [0], ["GPU-0"])


def test_a_trap_in_the_queue_changes_no_other_file(
    shared: Path, project: Project, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """Links with every name that a ticket could get on its way, as if another user had guessed them."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (shared / "queue").mkdir(mode=0o1777)
    for number in range(1, 6):
        for link in (Path.symlink_to, Path.hardlink_to):
            (shared / "queue" / f"{number:09d}.json").unlink(missing_ok=True)
            link(shared / "queue" / f"{number:09d}.json", precious)
    before = precious.stat()
    run = RunDir.create(project.runs, "toy")
    with monkeypatch.context() as patched:
        patched.setattr(os, "urandom", bytes)
        for link in (Path.symlink_to, Path.hardlink_to):
            planted = [hidden_name(shared / "queue" / f"{number:09d}.json") for number in range(1, 10)]
            for hidden in planted:
                link(hidden, precious)
            with pytest.raises(FileExistsError):
                gpu_queue.take(run, [0], ["GPU-0"])
            for hidden in planted:
                hidden.unlink()
    path, descriptor = gpu_queue.take(run, [0], ["GPU-0"])
    os.close(descriptor)
    assert path.stat().st_nlink == 1
    after = precious.stat()
    assert precious.read_text() == "precious"
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)


@pytest.mark.promise("safety-chmod")
@pytest.mark.parametrize("name", ["ticket", "write_file"])
def test_permissions_of_a_new_file_never_reach_what_replaces_it(
    shared: Path, project: Project, tmp_path: Path, monkeypatch: MonkeyPatch, name: str
) -> None:
    """Another user who owns the folder puts a link in the place of each file at the moment at which it is made."""
    (private := tmp_path / "private").write_text("mine")
    private.chmod(0o600)
    really_open, swapped = os.open, []

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor = really_open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_EXCL:
            swapped.append(Path(path).rename(tmp_path / f"moved {len(swapped)}"))
            Path(path).symlink_to(private)
        return descriptor

    run = RunDir.create(project.runs, "toy")
    with monkeypatch.context() as patched, contextlib.suppress(OSError):
        patched.setattr(os, "open", open_)
        if name == "write_file":
            write_file(shared / "new", b"", mode=0o644)
        else:
            os.close(gpu_queue.take(run, [0], ["GPU-0"])[1])
    assert swapped
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.needs("another user")
@pytest.mark.promise("safety-chmod")
def test_a_queue_of_another_user_is_told_at_the_launch(shared: Path, project: Project) -> None:
    path, descriptor = gpu_queue.take(RunDir.create(project.runs, "toy"), [0], ["GPU-0"])
    os.close(descriptor)
    assert gpu_queue.foreign_folder(path) == ""
    os.chown(path.parent, ANOTHER_UID, ANOTHER_UID)
    assert "can remove this run's ticket" in gpu_queue.foreign_folder(path)


NOTES_CARELESS_FILES = """
import os, sys
shared, log = os.environ["TMPDIR"], os.environ["CARELESS_LOG"]
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and os.path.dirname(os.path.abspath(arguments[0])) == shared:
        flags = arguments[2] or 0
        if flags & os.O_CREAT and not flags & os.O_EXCL:
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{sys.argv} {arguments}\\n".encode())
            os.close(descriptor)
sys.addaudithook(hook)
"""


@pytest.mark.slow
def test_nothing_predictable_is_made_in_the_shared_temporary_folder(
    shared: Path, project: Project, tmp_path: Path, injected: Inject
) -> None:
    """By no process of a launch, a doctor's visit or a picture: somebody else could have put a link there first."""
    injected(NOTES_CARELESS_FILES, CARELESS_LOG=tmp_path / "careless.log")
    proof = "import os; open(os.environ['TMPDIR'] + '/predictable', 'w').close()"
    subprocess.run([sys.executable, "-c", proof], check=True)
    assert "predictable" in (tmp_path / "careless.log").read_text(), "the hook works"
    (tmp_path / "careless.log").unlink()
    (shared / "predictable").unlink()
    script = project.scripts / "toy.py"
    script.write_text("print('loss=1.5')\n")
    calls = [["launch", str(script), "--gpus", "none", "--nproc-per-node", "2"], ["wait", "latest"], ["doctor"]]
    for words in [*calls, ["plot", "latest", "-o", str(tmp_path / "x.png")], ["show", "latest"]]:
        done = subprocess.run([sys.executable, "-m", "nbtools", *words], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (words, done.stderr)
    assert not (tmp_path / "careless.log").exists(), (tmp_path / "careless.log").read_text()
