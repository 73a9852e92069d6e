"""The flags of launch settings, made of the fields that are also the rows of a form and the values of a script."""

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from nbtools.config import COMMANDS, Launch, Slurm
from nbtools.errors import shown
from nbtools.script.field import Field, fields_of
from nbtools.script.program import Program
from nbtools.script.values import SHELL, from_text

_NAMES = {"settings": ("nproc_per_node", "nnodes"), "restarts": ("max_restarts", *COMMANDS)}
_OF_PROGRAM = "python", "cwd", "stop_signal"
"""Fields of `Launch` and `Program` by the commands that take them; other flags have words of their own in `parser`."""


def launch_flags() -> Mapping[str, Mapping[str, dict[str, Any]]]:
    """Return the options of `add_argument` by flag, and by the commands that take the flags."""
    launch, program = fields_of(Launch), fields_of(Program)
    fields = {kind: [launch[name] for name in names] for kind, names in _NAMES.items()}
    fields["program"] = [(program | launch)[name] for name in _OF_PROGRAM]
    fields["where"] = [field for name, field in fields_of(Slurm).items() if name != "requeue"]
    return {kind: dict(map(_flag, those)) for kind, those in fields.items()}


def _flag(field: Field) -> tuple[str, dict[str, Any]]:
    options = {"type": partial(_value, field), "help": field.help.removesuffix(".").replace("%", "%%")}
    return f"--{field.name.replace('_', '-')}", options


def _value(field: Field, text: str) -> Any:
    try:
        return from_text(text, field, SHELL)
    except ValueError as error:
        said, given = str(error), shown(text)
        raise argparse.ArgumentTypeError(said if given in said else f"{given}: {said}") from None
