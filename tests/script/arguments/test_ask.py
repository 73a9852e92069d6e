"""Asking hostile scripts: they end, all that they have started ends, and the answer says what happened."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import eventually

from nbtools.errors import ConfigError, ScriptError
from nbtools.machine.interpreter import Interpreter
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.ask import ask, known_arguments
from nbtools.script.arguments.command_line import parse_words
from nbtools.script.arguments.consent import consent_to, remember_consent, repository_of

import asking
from asking import NO_PYTHON, PYTHON

PARSER = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float, default=0.1)\n"
PARSES = "args = parser.parse_args()\nopen(__file__ + '.mark', 'w')\n"


Asked = Callable[..., ScriptArguments]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.with_name(tmp_path.name + "-cache")))

    def run(text: str, timeout_s: float = 20, python: Interpreter = PYTHON) -> ScriptArguments:
        script = tmp_path / "train.py"
        script.write_text(text, encoding="utf-8")
        return asking.asked(script, timeout_s=timeout_s, python=python)

    return run


def marked(folder: Path) -> list[int]:
    """Processes that a script in a folder has started and that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            is_here = "NBTOOLS_ASK" in process.environ() and str(folder) in " ".join(process.cmdline())
            if is_here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            pass
    return found


HOSTILE = {
    "a flood of output": "import sys\nfor _ in range(20000): print('x' * 1000); print('y' * 1000, file=sys.stderr)\n",
    "closed descriptors": "import os\nos.closerange(0, 200)\n",
    "a fork that sleeps": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n",
    "a hook at exit": "import atexit, time\natexit.register(time.sleep, 600)\n",
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n",
    "fake results": 'import json\nprint(json.dumps({"state": "parsed", "parser": "argparse", "arguments": []}))\n',
    "a changed exit": "import sys, os\nsys.exit = lambda *a: None\n",
    "ignored signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    "a changed json": "import json\njson.dumps = None\n",
    "a changed folder": "import os\nos.chdir('/')\n",
    "no standard output": "import sys\nsys.stdout = sys.stderr = None\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_script_is_answered_and_leaves_nothing(text: str, tmp_path: Path, asked: Asked) -> None:
    found = asked(text + PARSER + PARSES)
    assert found.is_complete
    assert [argument.name for argument in found.arguments] == ["lr"]
    assert marked(tmp_path) == []
    assert not (tmp_path / "train.py.mark").exists()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("import time\ntime.sleep(600)\n" + PARSER + PARSES, "did not reach its parser within 2 s"),
        ("import no_such_package\n" + PARSER + PARSES, f"no_such_package is not installed in {sys.executable}"),
        (PARSER + "1 / 0\n" + PARSES, r"ZeroDivisionError: division by zero \(train.py:4\)"),
        (PARSER + "raise SystemExit('no GPU')\n" + PARSES, r"exit\(no GPU\) \(train.py:4\)"),
        (PARSER + "if parser is None:\n    parser.parse_args()\n", "ended without reading its command line"),
        ("import os\n" + PARSER + "os._exit(7)\n" + PARSES, "ended with code 7 before the script reached"),
        ("import os\n" + PARSER + "os.kill(os.getpid(), 11)\n" + PARSES, "ended with code -11"),
        ("name = input('Which? ')\n" + PARSER + PARSES, "EOFError"),
        (f"import torch\n(torch.ones(1, requires_grad=True) * 2).sum().backward()\n{PARSER}{PARSES}", "began to train"),
    ],
)
def test_a_script_that_does_not_reach_its_parser_says_why(text: str, note: str, tmp_path: Path, asked: Asked) -> None:
    started = time.monotonic()
    with pytest.raises(ScriptError, match=note):
        asked(text, timeout_s=60 if "torch" in text else 2)
    assert time.monotonic() - started < 90
    assert marked(tmp_path) == []


def test_a_program_without_a_parser_is_never_run(tmp_path: Path, asked: Asked) -> None:
    with pytest.raises(ScriptError, match="not run, since no known parser"):
        asked("open(__file__ + '.mark', 'w')\n")
    assert not (tmp_path / "train.py.mark").exists()


def test_an_interpreter_that_is_none_is_named(asked: Asked) -> None:
    with pytest.raises(ScriptError, match="/no/such/python cannot be started"):
        asked(PARSER + PARSES, python=NO_PYTHON)
    with pytest.raises(ScriptError, match="ended with code 0"):
        asked(PARSER + PARSES, python=replace(PYTHON, path=Path("/bin/true")))


def test_the_script_sees_no_gpu_no_network_and_no_tracker(asked: Asked) -> None:
    text = (
        "import os, socket\n" + PARSER + "names = ('CUDA_VISIBLE_DEVICES', 'HF_HUB_OFFLINE', 'WANDB_MODE')\n"
        "parser.add_argument('--seen', choices=[os.environ.get(name) for name in names], nargs='+')\n"
        "parser.add_argument('--devices', choices=[name for _, name in socket.if_nameindex()], nargs='+')\n"
        "parser.add_argument('--words', choices=[os.read(0, 10).decode(), len(__import__('sys').argv)], nargs='+')\n"
        + PARSES
    )
    found = {argument.name: argument.choices for argument in asked(text).arguments}
    assert found["seen"] == ("", "1", "disabled")
    assert found["words"] == ("", 1)
    separates = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
    assert found["devices"] == ("lo",) or not separates


def test_files_of_the_working_directory_are_readable_and_new_ones_are_not_left_there(
    tmp_path: Path, asked: Asked
) -> None:
    (tmp_path / "helper.py").write_text("WIDTH = 64\n", encoding="utf-8")
    (tmp_path / "width.txt").write_text("32", encoding="utf-8")
    text = (
        "import os, helper\n" + PARSER + "open('new.txt', 'w').write('x')\nos.makedirs('runs/1')\n"
        "parser.add_argument('--width', type=int, choices=[helper.WIDTH + int(open('width.txt').read())])\n" + PARSES
    )
    found = {argument.name: argument.choices for argument in asked(text).arguments}
    assert found == {"lr": None, "width": (96, None)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["helper.py", "train.py", "width.txt"]


def test_a_default_that_asking_may_change_is_known_only_to_the_program(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("MYTOK", "0123topsecret")
    computed = {
        "device": '"cuda" if os.environ.get("CUDA_VISIBLE_DEVICES", "0") else "cpu"',
        "wandb_mode": 'os.environ.get("WANDB_MODE")',
        "auth_token": 'os.environ.get("MYTOK")',
        "out": 'os.path.join(os.getcwd(), "out")',
    }
    lines = [
        f"parser.add_argument('--{name}', default={text}, help='(default: %(default)s)')\n"
        for name, text in computed.items()
    ]
    unread = "parser.add_argument(os.environ.get('ABSENT', '--folder'), default=os.getcwd(), help=os.getcwd())\n"
    found = asked(f"import os\n{PARSER}{''.join(lines)}{unread}{PARSES}")
    assert found.is_complete
    fields = {argument.name: argument for argument in found.arguments}
    for name, text in computed.items():
        assert (fields[name].default, fields[name].types[0]) == (None, str)
        assert fields[name].default_text.replace("'", '"') == text
        assert "online" not in fields[name].help and "0123" not in fields[name].help
    words = parse_words(found, ()).edited({"device": "cpu", "wandb_mode": "disabled"})
    assert words == ["--device", "cpu", "--wandb_mode", "disabled"]
    assert (fields["folder"].default, fields["folder"].default_text) == (None, str(tmp_path))
    assert fields["folder"].help == str(tmp_path)
    [kept] = (Path(os.environ["XDG_CACHE_HOME"]) / "nbtools" / "answers").iterdir()
    assert "topsecret" not in kept.read_text()


DATA = "os.path.realpath('logs/train.log')"
CHANGES = (
    "open('logs/train.log', 'w')",
    "open('large.csv', 'a').write('x')",
    "os.truncate('large.csv', 0)",
    "os.remove('logs/train.log')",
    "os.rename('logs/train.log', 'logs/old.log')",
    "pathlib.Path('logs/train.log').write_text('')",
    "__import__('shutil').rmtree('logs/old')",
    "os.unlink('train.log', dir_fd=os.open('logs', os.O_RDONLY))",
    f"os.link({DATA}, 'mine'); open('mine', 'w')",
    f"os.chmod({DATA}, 0)",
    f"os.utime({DATA}, (0, 0))",
    f"open({DATA}, 'w')",
    f"__import__('subprocess').run(['rm', '-rf', {DATA}], check=True)",
)
"""Ways to change what a link in the temporary folder leads to."""


@pytest.mark.parametrize("change", CHANGES)
def test_files_of_the_project_are_readable_and_not_changed(change: str, tmp_path: Path, asked: Asked) -> None:
    can_mount = subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode == 0
    if "subprocess" in change and not can_mount:
        pytest.skip("needs mounts of its own")
    (tmp_path / "logs" / "old").mkdir(parents=True)
    (tmp_path / "logs" / "train.log").write_text("an earlier run")
    (tmp_path / "first.log").write_text("an earlier run")
    (tmp_path / "large.csv").write_bytes(b"1\n" * 2**20)
    before = (tmp_path / "logs" / "train.log").stat()
    reads = (
        "import logging, os, pathlib\nassert len(open('large.csv').read()) == 2**21\nopen('logs/train.log').read()\n"
    )
    reads += "logging.basicConfig(filename='first.log', filemode='w')\nlogging.warning('started')\n"  # a copy
    why = "" if "subprocess" in change else "may not change this while it is asked.*"
    with pytest.raises(ScriptError, match=rf"{why}\(train\.py:6\)"):
        asked(f"{reads}{change}\n{PARSER}{PARSES}")
    after = (tmp_path / "logs" / "train.log").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_nlink) == (before.st_mode, before.st_mtime_ns, 1)
    assert (tmp_path / "logs" / "train.log").read_text() == "an earlier run"
    assert (tmp_path / "first.log").read_text() == "an earlier run"
    assert (tmp_path / "logs" / "old").is_dir()
    assert (tmp_path / "large.csv").stat().st_size == 2**21


ASKS = """
import sys, tempfile
from pathlib import Path
from nbtools.machine.interpreter import own_interpreter
from nbtools.script.arguments.ask import ask
from nbtools.script.arguments.consent import remember_consent
script = Path(sys.argv[1])
remember_consent(script, True)
tempfile.tempdir = sys.argv[2]
ask(script, own_interpreter(), script.parent, None, timeout_s=float(sys.argv[3]))
"""


@pytest.mark.parametrize(("timeout_s", "ending"), [(60, signal.SIGKILL), (4, signal.SIGSTOP)])
def test_nothing_is_left_of_a_caller_that_is_killed_or_stopped(
    timeout_s: int, ending: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    script = tmp_path / "train.py"
    # One process alone makes the file: the other would not be allowed to open it for writing, and would end.
    leaves_the_group = "import os, time\nif os.fork() == 0: os.setsid(), open(__file__ + '.up', 'w')\ntime.sleep(600)\n"
    script.write_text(leaves_the_group + PARSER + PARSES)
    caller = subprocess.Popen([sys.executable, "-c", ASKS, script, tmp_path / "tmp", str(timeout_s)])
    try:
        eventually(lambda: (tmp_path / "train.py.up").exists())
        assert marked(tmp_path) and list((tmp_path / "tmp").iterdir())
        caller.send_signal(ending)
        eventually(lambda: not marked(tmp_path))
        eventually(lambda: not list((tmp_path / "tmp").iterdir()))
    finally:
        caller.kill()
        caller.wait()


def test_a_first_parser_of_two_does_not_end_the_script(tmp_path: Path, asked: Asked) -> None:
    text = (
        "import argparse\nfirst = argparse.ArgumentParser(add_help=False)\n"
        "first.add_argument('--config', required=True)\n"
        "known, rest = first.parse_known_args()\n" + PARSER + "parser.parse_args(rest)\nraise SystemError\n"
    )
    assert [argument.name for argument in asked(text).arguments] == ["config", "lr"]
    last = PARSER + "args, _ = parser.parse_known_args()\nopen(__file__ + '.mark', 'w')\n"
    assert asked(last).is_complete
    assert not (tmp_path / "train.py.mark").exists()


def test_parsing_words_of_its_own_is_not_the_command_line(asked: Asked) -> None:
    text = (
        "import argparse\nother = argparse.ArgumentParser()\nother.add_argument('--inner', type=int)\n"
        "assert other.parse_args(['--inner', '3']).inner == 3\n" + PARSER + PARSES
    )
    assert [argument.name for argument in asked(text).arguments] == ["lr"]


def test_the_interceptor_is_for_old_pythons_without_nbtools() -> None:
    import nbtools.script.intercept as package

    for path in Path(package.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        imported = {alias.name.split(".")[0] for node in imports for alias in node.names}
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 0]
        assert imported | {str(node.module).split(".")[0] for node in froms} <= sys.stdlib_module_names
        words = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert not {"removeprefix", "removesuffix"} & words  # since 3.9
        subscripts = [
            node for node in ast.walk(tree) if isinstance(node, ast.Subscript) and not in_annotation(node, tree)
        ]
        assert not [node for node in subscripts if ast.unparse(node.value) in ("list", "dict", "tuple", "set")]


def in_annotation(node: Any, tree: Any) -> bool:
    """Whether an expression is a part of an annotation, which is not evaluated there."""
    found = []
    for each in ast.walk(tree):
        found += [getattr(each, name, None) for name in ("annotation", "returns")]
    return any(node in list(ast.walk(each)) for each in found if each is not None)


def test_a_default_is_what_a_word_stands_for_and_else_the_word(asked: Asked) -> None:
    text = PARSER + (
        "def split(x): return tuple(map(int, x.split(',')))\n"
        "parser.add_argument('--size', type=split, default=(64, 32))\n"
        "parser.add_argument('--other', type=lambda x: x.split(';'), default=['a', 'b'])\n"
    )
    text += "parser.add_argument('--tag', type=lambda x: x, action='append', default=['a'])\n"
    text += "parser.add_argument('--level', type=lambda x: {'a': 1}[x], default='a')\n"
    text += "parser.add_argument('--case', type=str.lower, default='ABC', choices=['abc'])\n"
    text += "parser.add_argument('--counts', type=int, nargs='+', default='3')\n"
    text += "import json\nparser.add_argument('--any', type=json.loads, default={'a': 1})\n"
    fields = {argument.name: argument for argument in asked(text + PARSES).arguments}
    assert (fields["size"].types, fields["size"].default, fields["size"].default_text) == ((str,), None, "[64, 32]")
    assert (fields["other"].types, fields["other"].default) == ((str,), None)
    assert (fields["any"].types, fields["any"].default) == ((str,), None)
    assert (fields["tag"].types, fields["tag"].default) == ((tuple[str, ...],), ("a",))
    assert (fields["level"].default, fields["case"].default, fields["counts"].default) == ("a", "abc", (3,))
    assert fields["other"].default_text == "['a', 'b']"


COMPUTED = {
    "typer": "import typer\napp = typer.Typer()\n@app.command()\ndef main(device: str = DEVICE, n: int = 3,\n"
    "         hf_token: str = typer.Option(TOKEN, '--hf-token')):\n    pass\napp()\n",
    "click": "import click\n@click.command()\n@click.option('--device', default=DEVICE)\n"
    "@click.option('--n', default=3)\n@click.option('--hf-token', default=TOKEN)\n"
    "def main(**given):\n    pass\nmain()\n",
    "absl": "from absl import app, flags\nflags.DEFINE_string('device', DEVICE, '')\nflags.DEFINE_integer('n', 3, '')\n"
    "flags.DEFINE_string('hf_token', TOKEN, '')\napp.run(print)\n",
    "argparse": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--device', default=DEVICE)\n"
    "p.add_argument('--n', type=int, default=3)\np.add_argument('--hf_token', default=TOKEN)\np.parse_args()\n",
}


@pytest.mark.parametrize("library", COMPUTED)
def test_a_default_that_the_program_computes_when_asked_is_no_value(
    library: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library != "argparse":
        pytest.importorskip(library)
    monkeypatch.setenv("MADE_UP", "hf_0123456789abcdef")
    head = "import os\nDEVICE = 'cuda' if os.path.exists('/gpu') else 'cpu'\nTOKEN = os.environ['MADE_UP']\n"
    found = asked(head + COMPUTED[library])
    device, n, token = found.arguments
    assert (device.default, device.default_text) == (None, "'cuda' if os.path.exists('/gpu') else 'cpu'")
    assert device.help.endswith("When asked, the program computed 'cpu'.")
    assert (n.default, n.default_text, token.default) == (3, "", None)
    assert "0123456789" not in repr(token)
    assert found.written(found.arguments[0], None) == []
    assert found.written(found.arguments[0], "cpu")[0].startswith("--device")


# --- consent --------------------------------------------------------------------------------------


def test_nothing_is_run_before_the_consent_and_after_it_once_per_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    (tmp_path / "repo" / "lib").mkdir()
    script, other = tmp_path / "repo" / "train.py", tmp_path / "repo" / "lib" / "other.py"
    for path in (script, other):
        path.write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n{PARSER}{PARSES}")
    for answer in (None, False):
        assert consent_to(script) is answer
        with pytest.raises(ScriptError, match="not run, since its project is not allowed to"):
            ask(script, NO_PYTHON, script.parent, None)
        remember_consent(other, False)
    assert not (tmp_path / "executed").exists()
    remember_consent(other, True)
    assert all(ask(path, PYTHON, path.parent, None).is_complete for path in (script, other))
    assert (tmp_path / "executed").exists()


def test_no_consent_is_for_the_home_folder_or_one_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    (tmp_path / "project").mkdir()
    assert repository_of(tmp_path / "project" / "train.py") == tmp_path / "project"
    for folder in (tmp_path, Path("/tmp"), Path("/")):
        assert repository_of(folder / "train.py") is None
    (tmp_path / "train.py").write_text(PARSER + PARSES)
    with pytest.raises(ConfigError, match="move it into a folder of its own"):
        remember_consent(tmp_path / "train.py", True)
    with pytest.raises(ScriptError, match="is no project"):
        ask(tmp_path / "train.py", PYTHON, tmp_path, None)


@pytest.mark.needs("another user")
@pytest.mark.parametrize("name", ["train.py", "helper.py"])
def test_a_file_of_another_user_is_never_run(name: str, tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "helper.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (tmp_path / "train.py").write_text(f"import helper\n{PARSER}{PARSES}")
    remember_consent(tmp_path / "train.py", True)
    os.chown(tmp_path / name, 12345, -1)
    with pytest.raises(ScriptError, match="belongs to another user"):
        ask(tmp_path / "train.py", PYTHON, tmp_path, None)
    assert not (tmp_path / "executed").exists()


def test_an_answer_is_kept_until_a_file_that_was_loaded_changes(tmp_path: Path, asked: Asked) -> None:
    (tmp_path / "helper.py").write_text("WIDTH = 64\n")
    (tmp_path / "base.txt").write_text("7")
    width_of = "parser.add_argument('--width', default=helper.WIDTH + WIDTH)\n"
    text = f"import helper\n{PARSER}with open('base.txt') as file: [WIDTH] = map(int, file)\n{width_of}"

    def width() -> Any:
        found = known_arguments(tmp_path / "train.py", PYTHON, tmp_path, None)
        assert found is not None
        defaults = {argument.name: argument.default for argument in found.arguments}
        return defaults.get("width") if found.is_complete else ""

    assert asked(text + PARSES).is_complete and width() == 71
    for name, content in {
        "helper.py": "WIDTH = 32\n",
        "base.txt": "8",
        "train.py": f"# changed\n{text}{PARSES}",
    }.items():
        (tmp_path / name).write_text(content)
        assert width() == ""
        assert ask(tmp_path / "train.py", PYTHON, tmp_path, None).is_complete
        assert width() == (32 + 7 if name == "helper.py" else 40)
    [kept] = (Path(os.environ["XDG_CACHE_HOME"]) / "nbtools" / "answers").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_process_that_leaves_everything_behind_is_ended(tmp_path: Path, asked: Asked) -> None:
    leaves = "import subprocess\nsubprocess.Popen(['setsid', 'sleep', '61.25'], env={})\n"
    assert asked(leaves + PARSER + PARSES).is_complete
    commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert ["sleep", "61.25"] not in commands
