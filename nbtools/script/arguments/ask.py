"""Asks a program for its arguments: a child process runs it up to its parser; the answer is kept for its files."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from nbtools.errors import ScriptError, shown
from nbtools.machine.interpreter import Interpreter
from nbtools.project import user_cache
from nbtools.rundir.atomic import write_file
from nbtools.rundir.json_files import read_small
from nbtools.script.arguments.arguments import ScriptArguments, argument_of, with_unique_names
from nbtools.script.arguments.computed_defaults import computed_defaults
from nbtools.script.arguments.consent import consent_to, repository_of, why_never
from nbtools.script.arguments.glance import glance
from nbtools.script.source import start_folder

TIME_LIMIT_S = 20
_GRACE_S = 10
_TIMED_OUT = 124
_INTERCEPT = Path(__file__).parents[1] / "intercept"
_MOST_ENTRIES = 2000
_MOST_ANSWERS = 200
_LARGEST_COPY_BYTES = 2**20
_MOST_COPIED_BYTES = 64 * 2**20
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "CLEARML_OFFLINE_MODE")
_ENVIRONMENT = dict.fromkeys((*_OFFLINE, "PYTHONDONTWRITEBYTECODE"), "1") | {"CUDA_VISIBLE_DEVICES": ""}
_ENVIRONMENT |= {"WANDB_MODE": "disabled", "COMET_MODE": "disabled", "NEPTUNE_MODE": "debug"}
_ENVIRONMENT |= {"MLFLOW_TRACKING_URI": "file:mlruns", "MPLBACKEND": "Agg"}
_SILENT: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
_REMOVED = ("PYTHONSAFEPATH", "PYTHONSTARTUP", "PYTHONINSPECT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


def known_arguments(script: Path, python: Interpreter | None, cwd: Path, module: str | None) -> ScriptArguments | None:
    """Return the arguments of a program without running it: its kept answer, else a glance at its source; None if it is
    missing, no Python, or too large."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        if python is not None and (kept := _answer_file(script, python, cwd, module)).stat().st_uid == os.getuid():
            content = json.loads(kept.read_bytes())
            if all(_stamp(Path(path)) == stamp for path, stamp in content["files"].items()):
                return _read(content["answer"], script)
    with contextlib.suppress(ScriptError, OSError):
        return glance(script, module)
    return None


def ask(
    script: Path, python: Interpreter, cwd: Path, module: str | None, timeout_s: float = TIME_LIMIT_S
) -> ScriptArguments:
    """Run a program up to its parser, if the user lets it, and return the arguments that it declares there.

    Code above the parser is executed, in a temporary folder with copies of the small files of `cwd` and links to the
    rest, which it cannot change.

    Args:
        script: the program.
        python: the Python that will run it.
        cwd: where it will run.
        module: its name, if it is started by `python -m`.
        timeout_s: after this time it is killed with all that it has started.

    Raises:
        ScriptError: why it is not run, or did not reach a parser.
    """
    if not glance(script, module).can_ask:  # it would train
        raise ScriptError(f"{script.name}: not run, since no known parser was found in its source")
    if not consent_to(script):
        raise ScriptError(why_never(script) or f"{script.name}: not run, since its project is not allowed to")
    try:
        result = _answer(script, str(python.path), cwd, module, timeout_s)
        found = _read(result, script)
    except ScriptError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ScriptError(f"{script.name}: its answer cannot be read: {type(error).__name__}: {error}") from None
    with contextlib.suppress(OSError):
        _keep(_answer_file(script, python, cwd, module, make=True), result)
    return found


# --- the child process ----------------------------------------------------------------------------


def _answer(script: Path, interpreter: str, cwd: Path, module: str | None, timeout_s: float) -> dict[str, Any]:
    """Run the program and return what the child process wrote; ScriptError if the program did not reach its parser."""
    nonce = secrets.token_hex(16)
    cwd, start = cwd.resolve(), start_folder(script, module)
    with tempfile.TemporaryDirectory(prefix="nbtools-ask-", ignore_cleanup_errors=True) as folder:
        work, result = Path(folder, "cwd"), Path(folder, f"{nonce}.json")
        work.mkdir()
        with contextlib.suppress(OSError):
            _fill(work, cwd)
        places = {"start": str(start), "cwd": str(cwd), "root": str(repository_of(script))}
        places |= {"folder": os.path.realpath(folder), "result": str(result)}
        settings = {"script": str(script), "module": module, "nonce": nonce, "timeout_s": timeout_s, **places}
        command = [interpreter, str(_INTERCEPT), json.dumps({**settings, "parent": os.getpid()})]
        environment = {name: value for name, value in os.environ.items() if name not in _REMOVED}
        environment |= {**_ENVIRONMENT, "NBTOOLS_ASK": nonce}
        try:
            process = subprocess.Popen(command, cwd=work, env=environment, start_new_session=True, **_SILENT)
        except (OSError, ValueError) as error:
            raise ScriptError(f"{interpreter} cannot be started: {error}; give the path of a Python") from None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s + _GRACE_S)  # it ends itself, with all that it has started
        timed_out = process.returncode in (None, _TIMED_OUT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        found = _result(result, nonce)
        if found.get("state") == "parsed":
            return _settled(found, os.path.realpath(work), str(cwd), start)
    name, how = script.name, f"{interpreter} ended with code {process.returncode}"
    if missing := str(found.get("missing") or "")[:200]:
        raise ScriptError(f"{missing} is not installed in {interpreter}; {name} needs it before it reaches its parser")
    if timed_out and not found:
        raise ScriptError(f"{name}: did not reach its parser within {timeout_s:g} s, and was ended")
    raise ScriptError(f"{name}: {str(found.get('error') or f'{how} before the script reached its parser')[:500]}")


def _fill(work: Path, cwd: Path) -> None:
    """Copy the small files of a folder, which the program may then write, and link to the rest."""
    left = _MOST_COPIED_BYTES
    for path in islice(cwd.iterdir(), _MOST_ENTRIES):
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= min(_LARGEST_COPY_BYTES, left):
                shutil.copy2(path, work / path.name)
                left -= status.st_size
            else:
                (work / path.name).symlink_to(path)


def _result(path: Path, nonce: str) -> dict[str, Any]:
    """Return what the child process wrote; empty if it wrote nothing, or something else did."""
    try:
        found = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("nonce") == nonce else {}


def _settled(result: dict[str, Any], work: str, cwd: str, start: Path) -> dict[str, Any]:
    """Return an answer with the real working directory, and no value of what asking, or another machine, changes."""
    computed: dict[str, dict[str, str]] = {"": {}}
    for item in result["arguments"]:
        item["help"] = str(item.get("help") or "").replace(work, cwd)
        if work in (default := str(item.get("default"))):
            item |= {"default": None, "default_text": default.replace(work, cwd)}
        argument = argument_of(item)
        file, _, line = argument.source.rpartition(":")
        if file not in computed:
            computed[file] = {}
            with contextlib.suppress(ScriptError, RecursionError):
                computed[file] = computed_defaults(start / file)
        keys = (*argument.flags, f"{line} {argument.name}")
        item["help"] = argument.help  # without secrets
        if text := next((computed[file][key] for key in keys if key in computed[file]), ""):
            # A variable of the environment may be a secret, or one that asking has set.
            is_told = argument.default is not None and not argument.is_secret and "env" not in text
            here = f" When asked, the program computed {shown(argument.default)}." if is_told else ""
            item |= {"default": None, "default_text": text, "help": f"{argument.help}{here}".strip()}
    result["files"] = [str(path).replace(work, cwd, 1) for path in result["files"]]
    return result


# --- kept answers ---------------------------------------------------------------------------------


def _answer_file(script: Path, python: Interpreter, cwd: Path, module: str | None, *, make: bool = False) -> Path:
    """Return the file that keeps the answer of a program in one environment, below the user's cache folder."""
    packages = [path for path in python.search if path.name in ("site-packages", "dist-packages") and path.is_dir()]
    what = [str(script), str(python.path), str(cwd.resolve()), module]
    key = json.dumps([*what, *((str(path), path.stat().st_mtime_ns) for path in packages)])
    return user_cache("answers", Path("/", hashlib.sha256(key.encode()).hexdigest()), make=make)


def _keep(path: Path, answer: Mapping[str, Any]) -> None:
    """Write an answer with what tells that its files are the same; the oldest answers go."""
    files = {name: _stamp(Path(name)) for name in answer["files"]}
    write_file(path, json.dumps({"files": files, "answer": answer}).encode(), mode=0o600)
    kept = sorted(path.parent.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    for old in kept[:-_MOST_ANSWERS]:
        old.unlink(missing_ok=True)


def _stamp(path: Path) -> str:
    """Return what changes with a file: its hash, or the size and time of a large one; empty if it is missing."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return ""
        if status.st_size > _LARGEST_COPY_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


# --- the answer -----------------------------------------------------------------------------------


def _read(result: Mapping[str, Any], script: Path) -> ScriptArguments:
    return ScriptArguments(
        script,
        str(result["parser"]),
        arguments=tuple(with_unique_names([argument_of(item) for item in result["arguments"]])),
        commands=tuple(tuple(map(str, command)) for command in result["commands"]),
        aliases=tuple((tuple(map(str, path)), str(name)) for path, name in result["aliases"]),
        needs_command=tuple(tuple(map(str, command)) for command in result["needs_command"]),
        refuses_others=result["refuses_others"] is True,
        is_complete=True,
    )
