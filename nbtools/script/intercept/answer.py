"""The answer: what a program declares, in values that JSON can hold; writing it ends the process."""

from __future__ import annotations

import argparse
import enum
import inspect
import json
import os
import sys
import traceback
import typing
from typing import Any, NoReturn

Described = typing.Dict[str, Any]
"""An argument as the answer has it."""

SETTINGS: Described = {}
"""Settings of the caller: script, module, start, cwd, root, folder, result, nonce, parent and timeout_s."""
ARGUMENTS: list[Described] = []
"""All arguments that were found."""
COMMANDS: list[list[str]] = []
"""Paths of the sub-commands."""
NEEDS_COMMAND: list[list[str]] = []
"""Paths of the commands that a sub-command must follow."""
ALIASES: list[Any] = []
"""Paths that end with another name of a sub-command, each with its first name."""
OPENED: dict[str, None] = {}
"""Files that were opened for reading, in their order."""
LONGEST_TEXT = 2000
MOST_CHOICES = 1000
MOST_FILES = 2000
UNSET = ("Sentinel", "_Unset", "UnsetType")
"""Classes of values that stand for no default."""
NAMED = {bool: "bool", int: "int", float: "float", str: "str"}


def write_result(**content: Any) -> None:
    """Write the result; a later one replaces it."""
    path = str(SETTINGS["result"])
    part = "%s.%d" % (path, os.getpid())
    with open(part, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(DUMPS(dict(content, nonce=SETTINGS["nonce"]), default=repr))
    os.replace(part, path)


DUMPS = json.dumps
"""The function itself: the program may change its module."""


def finish(library: str, refuses_others: bool = False) -> NoReturn:
    """Write what was found and end the process, so that nothing of the program runs after its parser."""
    try:
        own = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
        files = dict.fromkeys(os.path.realpath(path) for path in [*own, *OPENED] if path)
        kept = [path for path in files if is_own_file(path)][:MOST_FILES]
        found = dict(arguments=ARGUMENTS, commands=COMMANDS, aliases=ALIASES, needs_command=NEEDS_COMMAND)
        write_result(state="parsed", parser=library, files=kept, refuses_others=refuses_others, **found)
    finally:
        os._exit(0)


def fail(state: str, error: str, missing: str = "") -> NoReturn:
    """Write why there are no arguments, and end the process."""
    try:
        write_result(state=state, error=error[:LONGEST_TEXT], missing=missing)
    finally:
        os._exit(1)


def failed(error: BaseException) -> NoReturn:
    """Write the exception that ended the program before its parser."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if in_program(f.filename)]
    where = " (%s:%d)" % (shown_path(frames[-1].filename), frames[-1].lineno or 0) if frames else ""
    if isinstance(error, SystemExit):
        fail("exited", "exit(%s)%s" % (text_of_any(error.code), where))
    missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    line = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1:]
    fail("failed", "%s%s" % (line[0] if line else type(error).__name__, where), missing)


# --- places ---------------------------------------------------------------------------------------


def is_below(path: str, folder: str) -> bool:
    """Whether a path is a folder or in it."""
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def in_program(path: str) -> bool:
    """Whether a file belongs to the program, not to an installed package."""
    return is_below(os.path.abspath(path), SETTINGS["start"]) and "site-packages" not in path


def is_own_file(path: str) -> bool:
    """Whether a file that was opened is one of the program's project, or a copy of one."""
    folders = [SETTINGS[name] for name in ("start", "cwd", "root", "folder")]
    is_own = any(is_below(path, folder) for folder in folders) and "site-packages" not in path
    return is_own and not path.endswith((".pyc", ".json.%d" % os.getpid())) and os.path.isfile(path)


def shown_path(path: str) -> str:
    """Return a file's path below the folder where the program starts; its last parts elsewhere."""
    path = os.path.abspath(path)
    if is_below(path, SETTINGS["start"]):
        return os.path.relpath(path, SETTINGS["start"])
    return "/".join(path.split("site-packages" + os.sep)[-1].split(os.sep)[-3:])


def source_of(function: Any) -> str:
    """Return where a function is defined."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return "%s:%d" % (shown_path(code.co_filename), code.co_firstlineno) if code else ""


# --- values ---------------------------------------------------------------------------------------


def text_of_any(value: Any) -> str:
    """Return the text of a value of any kind."""
    try:
        return str(value)[:LONGEST_TEXT]
    except Exception:  # a method of the program's own class
        return type(value).__name__


def on_one_line(value: Any) -> str:
    """Return the text of a value on one line; empty for None."""
    return " ".join(text_of_any(value).split()) if value else ""


def fits_json(value: Any) -> bool:
    """Whether JSON can hold a value."""
    if isinstance(value, (list, tuple)):
        return all(fits_json(item) for item in value)
    return value is None or type(value) in NAMED


def as_plain(value: Any) -> Any:
    """Return a value as a literal where it stands for one."""
    if isinstance(value, enum.Enum):
        return as_plain(value.value)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [as_plain(item) for item in value]
    if isinstance(value, (set, frozenset)) and fits_json(list(value)):
        return sorted(value, key=str)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return next((kind(value) for kind in NAMED if isinstance(value, kind) and type(value) not in NAMED), value)


def default_of(value: Any) -> Described:
    """Return the entries of a default: a literal, or the text of something else."""
    value = as_plain(value)
    if value == argparse.SUPPRESS or type(value) is object or type(value).__name__ in UNSET:
        return {"default": None}
    return {"default": value} if fits_json(value) else {"default": None, "default_text": text_of_any(repr(value))[:200]}


def value_entries(value: Any, kind: Any = None) -> Described:
    """Return the entries of a default with the type that it has, or `kind` if that is a plain one."""
    value = as_plain(value)
    is_list = isinstance(value, list)
    first = (value or [""])[0] if is_list else value
    return dict(default_of(value), types=[NAMED.get(kind) or NAMED.get(type(first), "str")], is_list=is_list)


def choices_of(values: Any) -> list[Any]:
    """Return allowed values as literals, or all as texts if one of them is none."""
    found = [as_plain(choice) for choice in list(values)[:MOST_CHOICES]]
    return found if all(map(fits_json, found)) else list(map(text_of_any, found))


def annotated(annotation: Any) -> tuple[list[str], list[Any], bool, bool]:
    """Return an annotation's names of types, its choices, whether it is a list, and whether None is allowed."""
    members = [annotation]
    if getattr(annotation, "__origin__", None) is typing.Union or type(annotation).__name__ == "UnionType":
        members = list(annotation.__args__)
    kinds: list[str] = []
    choices: list[Any] = []
    is_list = has_others = False
    for member in members:
        origin = getattr(member, "__origin__", None)
        if member in NAMED:
            kinds.append(NAMED[member])
        elif origin is not None and origin is getattr(typing, "Literal", None):
            choices += [as_plain(value) for value in member.__args__]
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            choices += [as_plain(value) for value in member]
        elif origin in (list, tuple, set) and not kinds:
            is_list = True
            kinds.append(NAMED.get((getattr(member, "__args__", ()) or (str,))[0], "str"))
        else:
            has_others = has_others or member is not type(None)
    kinds += ["str"] if has_others and kinds else []  # such as the path of a class
    return list(dict.fromkeys(kinds)), choices, is_list, type(None) in members
