"""The flags of a program that may resume it, and those that name folders: of its file and of its other modules."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import NoneType

from nbtools.errors import ScriptError
from nbtools.rundir.program_files.written_files import names_folder
from nbtools.script.arguments.from_source import arguments_of
from nbtools.script.field import Field
from nbtools.script.resume_arguments import Takes, arguments_in


def flags_of_program(path: Path, args: Sequence[str], module: str | None, search: Sequence[Path]) -> dict[str, Takes]:
    """Return what `arguments_in` finds and what the program's modules declare; `search` is as for `arguments_of`."""
    found = arguments_in(path, args)
    with contextlib.suppress(ScriptError):
        for argument in arguments_of(path, module=module, search=search).arguments:
            for flag in argument.flags[:1]:
                if argument.action == "key_value":  # its config tells more than the line that reads the key
                    found[f"{flag}="] = _taken(argument.field)
                else:
                    found.setdefault(flag, _taken(argument.field) if argument.takes_value else "nothing")
    return found


def default_folders(path: Path, args: Sequence[str], module: str | None, search: Sequence[Path]) -> list[str]:
    """Return the flags that `args` leave out and whose default may be a folder, each followed by it."""
    given, found = {word.partition("=")[0] for word in args}, list[str]()
    with contextlib.suppress(ScriptError):
        for argument in arguments_of(path, module=module, search=search).arguments:
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
