"""The flags of a program that may resume it: those that its file names, and those that its other modules declare."""

from collections.abc import Sequence
from pathlib import Path
from types import NoneType

from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.field import Field
from nbtools.script.resume_arguments import Takes, arguments_in


def flags_of_program(path: Path, args: Sequence[str], declared: ScriptArguments | None) -> dict[str, Takes]:
    """Return what `arguments_in` finds in a program's file, and what its modules declare."""
    found = arguments_in(path, args)
    for argument in declared.arguments if declared else ():
        for flag in argument.flags[:1]:
            if argument.action == "key_value":  # its config tells more than the line that reads the key
                found[f"{flag}="] = _taken(argument.field)
            else:
                found.setdefault(flag, _taken(argument.field) if argument.takes_value else "nothing")
    return found


def _taken(field: Field) -> Takes:
    """Return what an argument takes, by its types and its default."""
    kinds = set(field.types) - {NoneType}
    if kinds == {bool}:
        return "bool"
    if field.is_closed or (kinds and kinds <= {int, float, bool}):
        return "number"
    return "preset" if isinstance(field.default, str) and field.default else "value"
