"""The flags of a program that may resume it or that name folders, in its file and its other modules; its epochs."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Final

from nbtools.errors import ScriptError
from nbtools.machine.interpreter import Interpreter
from nbtools.rundir.program_files.written_files import names_folder
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.ask import known_arguments
from nbtools.script.field import Field
from nbtools.script.resume_arguments import Takes, arguments_in

_EPOCHS: Final = r"(?:(?:num|n|max|num_train)_)?epochs"


def declared_arguments(path: Path, python: Interpreter, cwd: Path, module: str | None) -> ScriptArguments | None:
    """Return the arguments of a program, which is not run: its kept answer, else a glance; None if it is no Python."""
    with contextlib.suppress(ScriptError):
        return known_arguments(path, python.path, cwd, module=module, search=python.search)
    return None


def flags_of_program(path: Path, args: Sequence[str], declared: ScriptArguments | None) -> dict[str, Takes]:
    """Return the flags that `arguments_in` finds, and those of the declared arguments."""
    found = arguments_in(path, args)
    for argument in declared.arguments if declared else ():
        for flag in argument.flags[:1]:
            if argument.action == "key_value":  # its config tells more than the line that reads the key
                found[f"{flag}="] = _taken(argument.field)
            else:
                found.setdefault(flag, _taken(argument.field) if argument.takes_value else "nothing")
    return found


def num_epochs(args: Sequence[str], declared: ScriptArguments | None) -> int | None:
    """Return the number of epochs in a program's words, such as `--max-epochs 3`, else its default; None if unknown."""
    words = " ".join(args).replace("-", "_")
    if given := re.findall(rf"(?:^|[ .])_*{_EPOCHS}[ =](\d+)(?!\S)", words):
        return int(given[-1])
    fields = (argument.field for argument in (declared.arguments if declared else ()))
    named = (field for field in fields if re.fullmatch(_EPOCHS, field.name.rpartition(".")[2]))
    return next((field.default for field in named if type(field.default) is int), None)


def default_folders(args: Sequence[str], declared: ScriptArguments | None) -> list[str]:
    """Return the flags that `args` leave out and whose default may be a folder, each followed by it."""
    given, found = {word.partition("=")[0] for word in args}, list[str]()
    for argument in declared.arguments if declared else ():
        flags, default = argument.flags, argument.field.default
        if flags and given.isdisjoint(flags) and isinstance(default, str) and names_folder(flags[0]):
            found += [flags[0], default]
    return found


def _taken(field: Field) -> Takes:
    """Return what an argument takes, by its types and its default."""
    kinds = set(field.types) - {NoneType}
    if kinds == {bool}:
        return "bool"
    if field.is_closed or (kinds and kinds <= {int, float, bool}):
        return "number"
    return "preset" if isinstance(field.default, str) and field.default else "value"
