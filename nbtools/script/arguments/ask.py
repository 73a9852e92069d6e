"""Asks a script for its arguments: a child process runs it up to its parser, without a GPU, a network or trackers."""

import contextlib
import json
import math
import os
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import psutil

from nbtools.errors import shown
from nbtools.script.arguments.arguments import Action, Argument, ScriptArguments, made_argument, with_unique_names
from nbtools.script.arguments.config_copy import config_names
from nbtools.script.arguments.from_source import arguments_of
from nbtools.script.follow.modules import Modules

TIME_LIMIT_S = 20
LARGEST_RESULT_BYTES = 8 * 2**20
_INTERCEPT = Path(__file__).with_name("intercept.py")
_MARK = "NBTOOLS_ASK"
_MOST_ENTRIES = 2000
_LARGEST_COPY_BYTES = 2**20
_MOST_COPIED_BYTES = 64 * 2**20
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "MLFLOW_TRACKING_URI": "file:mlruns",
    "MPLBACKEND": "Agg",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_REMOVED = ("PYTHONSAFEPATH", "PYTHONSTARTUP", "PYTHONINSPECT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_TYPES: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str}


def ask(
    script: Path,
    interpreter: str | Path,
    cwd: Path | None = None,
    *,
    module: str | None = None,
    search: Sequence[Path] = (),
    timeout_s: float = TIME_LIMIT_S,
) -> ScriptArguments:
    """Run a script up to its parser and return the arguments that it declares there.

    Code above the parser is executed, in a temporary folder with copies of the small files of `cwd` and links to the
    rest, whose files Python's own functions cannot change. Where the script does not reach a parser, the result is that
    of `arguments_of` with a note that says why.

    Args:
        script: the program.
        interpreter: the Python that will run it.
        cwd: where it will run; its folder if None.
        module: its name, if it is started by `python -m`.
        search: `sys.path` of the interpreter.
        timeout_s: after this time it is killed with all that it has started.

    Raises:
        ScriptError: the script is missing, is no Python, or is too large.
    """
    script = Path(script)
    declared = arguments_of(script, module=module, search=search)
    if not declared.can_ask and declared.parser in ("", "constants", "config file"):  # it would train
        return _with_note(declared, f"{script.name}: not run, since no known parser was found in its source")
    modules = Modules(script, module, search)
    cwd = cwd or script.absolute().parent
    result, problem = _answer(script.absolute(), str(interpreter), cwd, module, modules.start, timeout_s)
    if problem:
        return _with_note(declared, problem)
    try:
        found = _read(result, declared, cwd)
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        return _with_note(declared, f"{script.name}: its answer cannot be read: {type(error).__name__}: {error}")
    return replace(found, config_names=config_names(modules, [a.field.name for a in found.arguments], found.parser))


def _with_note(declared: ScriptArguments, note: str) -> ScriptArguments:
    return replace(declared, notes=(note, *declared.notes))


def _answer(
    script: Path, interpreter: str, cwd: Path, module: str | None, start: Path, timeout_s: float
) -> tuple[dict[str, Any], str]:
    """Run the script; return what the child process wrote, or why there is nothing."""
    nonce = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="nbtools-ask-", ignore_cleanup_errors=True) as folder:
        work, result = Path(folder, "cwd"), Path(folder, f"{nonce}.json")
        work.mkdir()
        with contextlib.suppress(OSError):
            _fill(work, cwd.absolute())
        settings = {
            "script": str(script),
            "module": module,
            "start": str(start),
            "cwd": str(cwd.resolve()),
            "folder": os.path.realpath(folder),
            "result": str(result),
            "nonce": nonce,
            "mark": _MARK,
            "parent": os.getpid(),
            "timeout_s": timeout_s,
        }
        environment = {name: value for name, value in os.environ.items() if name not in _REMOVED}
        try:
            process = subprocess.Popen(
                [interpreter, str(_INTERCEPT), json.dumps(settings)],
                cwd=work,
                env={**environment, **_ENVIRONMENT, _MARK: nonce},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return {}, f"{interpreter} cannot be started: {error}; give the path of a Python"
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _kill(process, nonce)
        found = _result(result, nonce)
    name = script.name
    if found is None and timed_out:
        return {}, f"{name}: did not reach its parser within {timeout_s:g} s, and was ended"
    if found is None:
        return {}, f"{name}: {interpreter} ended with code {process.returncode} before the script reached its parser"
    if found.get("state") == "parsed":
        return {**found, "work": os.path.realpath(work)}, ""
    if missing := str(found.get("missing") or "")[:200]:
        return {}, f"{missing} is not installed in {interpreter}; {name} needs it before it reaches its parser"
    return {}, f"{name}: {str(found.get('error'))[:500]}"


def _fill(work: Path, cwd: Path) -> None:
    """Copy the small files of a folder, which the script may then write, and link to the rest."""
    left = _MOST_COPIED_BYTES
    for path in islice(cwd.iterdir(), _MOST_ENTRIES):
        with contextlib.suppress(OSError):
            status = path.stat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= min(_LARGEST_COPY_BYTES, left):
                shutil.copy2(path, work / path.name)
                left -= status.st_size
            else:
                (work / path.name).symlink_to(path)


def _kill(process: subprocess.Popen[bytes], nonce: str) -> None:
    """Kill the process, its group, and what has left the group and still carries the mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(20):
        left = list(_marked(nonce))
        for other in left:
            with contextlib.suppress(psutil.Error):
                other.kill()
        if not left:
            return


def _marked(nonce: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == nonce:
                yield process


def _result(path: Path, nonce: str) -> dict[str, Any] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(LARGEST_RESULT_BYTES + 1)
        found = json.loads(data) if len(data) <= LARGEST_RESULT_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("nonce") == nonce else None


# --- the answer -----------------------------------------------------------------------------------


def _read(result: Mapping[str, Any], declared: ScriptArguments, cwd: Path) -> ScriptArguments:
    computed = dict(declared.computed)
    known = {key: argument for argument in declared.arguments for key in _keys(argument)}
    arguments = []
    for item in result["arguments"]:
        argument = _argument(_with_cwd(item, result["work"], str(cwd)))
        if (other := next((known[key] for key in _keys(argument) if key in known), None)) is not None:
            field = argument.field
            field = field.replace(
                source=field.source or other.field.source,
                help=field.help or other.field.help,
                group=field.group or other.field.group,
            )
            field = field if not other.field.default_text else field.replace(help=other.field.help or field.help)
            argument, text = replace(argument, field=field), other.field.default_text
        else:
            field, name = argument.field, argument.field.name.removeprefix(".".join((*argument.command, "")))
            text = next((computed[k] for k in (*argument.flags, f"{field.source} {name}") if k in computed), "")
        if text:  # what asking changes may change it: the environment, GPUs, the folder
            # A variable of the environment may be a secret, or one that asking has set.
            is_told = field.default is not None and not field.is_secret and "env" not in text
            here = f" When asked, the program computed {shown(field.default)}." if is_told else ""
            field = field.replace(default=None, default_text=text, help=f"{field.help}{here}".strip())
            argument = replace(argument, field=field)
        arguments.append(argument)
    pairs = [argument for argument in declared.arguments if argument.action == "pair"]
    arguments = [a for a in arguments if not pairs or a.flags or a.nargs != "..."] + pairs
    return ScriptArguments(
        declared.script,
        str(result["parser"]),
        arguments=tuple(with_unique_names(arguments)),
        commands=tuple(tuple(map(str, command)) for command in result["commands"]),
        aliases=tuple((tuple(map(str, path)), str(name)) for path, name in result["aliases"]),
        needs_command=tuple(tuple(map(str, command)) for command in result["needs_command"]),
        is_complete=True,
        can_ask=True,
    )


def _with_cwd(item: Mapping[str, Any], work: str, cwd: str) -> dict[str, Any]:
    """Return the description of an argument with the real working directory; a default in it is text alone."""
    found = {**item, "help": str(item.get("help") or "").replace(work, cwd)}
    default = str(item.get("shown_default") or item.get("default"))
    if work in default:
        found |= {"default": None, "shown_default": None, "default_text": default.replace(work, cwd)}
    return found


def _keys(argument: Argument) -> list[tuple[Any, ...]]:
    """Return what tells an argument from the others of its command: its flags; its name if it has none."""
    name = argument.field.name.removeprefix(".".join((*argument.command, "")))
    return [(argument.command, text.replace("-", "_")) for text in argument.flags or (name,)]


def _argument(item: Mapping[str, Any]) -> Argument:
    """Return the argument that the child process describes."""
    action, nargs = item["action"], item.get("nargs")
    if action not in get_args(Action) or (nargs not in (None, "?", "*", "+", "...") and not isinstance(nargs, int)):
        raise ValueError(f"action {action!r}, nargs {nargs!r}")
    kinds = [_TYPES[kind] for kind in item["types"]]
    is_list = bool(item.get("is_list")) or action == "append" or nargs not in (None, "?")
    default, text = _tuples(item.get("default")), str(item.get("default_text") or "")
    required = item.get("is_required") is True
    text = "" if required else text
    if (shown := item.get("shown_default")) is not None and not required:
        default, text = _from_shown(str(shown), kinds, item, is_list)
    choices = item.get("choices")
    flags = sorted(map(str, item["flags"]), key=lambda flag: not flag.startswith("--"))
    true, false = map(str, item.get("truth") or ("True", "False"))
    return made_argument(
        str(item["name"]),
        kinds,
        is_list=is_list,
        is_optional=bool(item.get("is_optional")),
        default=default,
        default_text=text,
        choices=None if choices is None else tuple(map(_tuples, choices)),
        is_required=required,
        flags=tuple(flags),
        negative_flags=tuple(map(str, item.get("negative_flags") or ())),
        action=action,
        nargs=nargs,
        command=tuple(map(str, item.get("command") or ())),
        const=_tuples(item.get("const")),
        truth=(true, false),
        **{name: str(item.get(name) or "") for name in ("help", "group", "source", "exclusive")},
    )


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    if isinstance(value, bool | int | str | NoneType) or (isinstance(value, float) and not math.isnan(value)):
        return value
    return repr(value)


def _from_shown(text: str, kinds: Sequence[type], item: Mapping[str, Any], is_list: bool) -> tuple[Any, str]:
    """Return the default that tyro shows in a help text."""
    if text == "None" and item.get("is_optional"):
        return None, ""
    if is_list:
        return tuple(_value(word, kinds) for word in text.split()), ""
    return (text if text in (item.get("choices") or ()) else _value(text, kinds)), ""


def _value(text: str, kinds: Sequence[type]) -> Any:
    if bool in kinds and text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        if kind in kinds:
            with contextlib.suppress(ValueError):
                return kind(text)
    return text
