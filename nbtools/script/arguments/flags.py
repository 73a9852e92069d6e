"""The flags of a program that may resume it: those that its file names, and those that its other modules declare."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from nbtools.errors import ScriptError
from nbtools.script.arguments.declared import arguments_of
from nbtools.script.resume_words import Takes, arguments_in


def flags_of_program(path: Path, args: Sequence[str], module: str | None, search: Sequence[Path]) -> dict[str, Takes]:
    """Return the arguments of `arguments_in`, and those that are found by following the program's modules.

    Args:
        path: the program's file.
        args: the arguments of a call.
        module: its name, if it is started by `python -m`.
        search: `sys.path` of its interpreter.
    """
    found = arguments_in(path, args)
    with contextlib.suppress(ScriptError):
        for argument in arguments_of(path, module=module, search=search).arguments:
            for flag in argument.flags[:1]:
                if argument.action == "key_value":
                    found.setdefault(f"{flag}=", "value")
                elif not argument.takes_value:
                    found.setdefault(flag, "nothing")
                else:
                    found.setdefault(flag, "bool" if argument.field.types == (bool,) else "value")
    return found
