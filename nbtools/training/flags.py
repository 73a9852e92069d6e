"""A config's fields as command-line flags, and the spellings of older programs.

Every flag takes dashes or underscores. What older launchers and programs pass is put right before tyro sees it.
"""

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError
from nbtools.script import read_script

C = TypeVar("C", bound=TrainConfig)

ALIASES: dict[str, str] = {
    "lr": "learning-rate",
}
"""Spellings of older programs, and the flag they mean."""

IGNORED: dict[str, str] = {
    "local-rank": "the launcher's environment says which process this is",
    "distributed": "several processes are found by themselves",
}
"""Flags that older launchers and programs pass and nobody needs, and why."""

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Flags(Generic[C]):
    """What the command line said."""

    config: C
    """The script's config with the flags applied."""
    overridden: tuple[str, ...] = ()
    """Fields that a flag changed."""
    resume_from: Path | None = None
    """Checkpoint folder to go on from."""
    notes: tuple[str, ...] = field(default=())
    """What was ignored, and why."""


def parse(config: C, args: Sequence[str] | None = None, *, prog: str | None = None) -> Flags[C]:
    """Apply command-line flags to the config of a script.

    Args:
        config: the values that hold where no flag says otherwise.
        args: the command line; this process's own when None.
        prog: name in `--help`; the script's own when None.

    Raises:
        SystemExit: code 2 and a message on stderr for a wrong flag or value, code 0 after `--help`.
    """
    given, notes = normalized(sys.argv[1:] if args is None else args, config)
    values = vars(
        tyro.cli(
            _flags_class(config),
            args=given,
            prog=prog,
            description="Flags override the values in the script; dashes and underscores are the same.",
        )
    )
    resume_from = values.pop("resume_from")
    try:
        changed = config.replace(**values)
    except ConfigError as error:
        print(f"{prog or Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    overridden = tuple(name for name, value in changed if value != getattr(config, name))
    return Flags(changed, overridden, Path(resume_from) if resume_from is not None else None, notes)


def normalized(args: Sequence[str], config: TrainConfig) -> tuple[list[str], tuple[str, ...]]:
    """Put older spellings right: aliases, ignored flags, and `--flag true` for truth values.

    Returns:
        The arguments as tyro takes them, and notes on what was ignored.
    """
    truths = {name for name, info in type(config).model_fields.items() if info.annotation is bool}
    result: list[str] = []
    notes: list[str] = []
    rest = list(args)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            result.append(argument)
            continue
        name, separator, value = argument[2:].partition("=")
        name = name.replace("_", "-")
        name = ALIASES.get(name, name)
        if name in IGNORED:
            if not separator and name == "local-rank" and rest and rest[0].isdecimal():
                rest.pop(0)
            notes.append(f"--{name} is ignored: {IGNORED[name]}")
        elif name.replace("-", "_") in truths and (separator or (rest and rest[0].lower() in _TRUTHS)):
            text = value if separator else rest.pop(0)
            truth = _TRUTHS.get(text.lower())
            # An unknown word goes on as it is, for tyro to refuse.
            result.append(f"--{name}={text}" if truth is None else f"--{name}" if truth else f"--no-{name}")
        else:
            result.append(f"--{name}{separator}{value}")
    return result, tuple(notes)


def _flags_class(config: TrainConfig) -> type[Any]:
    """Make a plain dataclass of the config's fields, so that only the declared values become flags."""
    fields: list[tuple[str, Any, Any]] = []
    for name, info in type(config).model_fields.items():
        unit = type(config).unit(name)
        help_text = f"{info.description} [{unit}]" if unit else str(info.description)
        annotation = Annotated[info.annotation, tyro.conf.arg(help=help_text)]  # type: ignore[name-defined]
        fields.append((name, annotation, dataclasses.field(default=getattr(config, name))))
    help_text = "Checkpoint folder to go on from, such as runs/ID/checkpoints/step-000200."
    resume = Annotated[str | None, tyro.conf.arg(help=help_text, metavar="PATH")]
    fields.append(("resume_from", resume, dataclasses.field(default=None)))
    made: type[Any] = dataclasses.make_dataclass("Flags", fields)
    return made


if __name__ == "__main__":  # launch asks here, before anything starts: SCRIPT FLAGS...
    print(parse(read_script(sys.argv[1]).config, sys.argv[2:], prog=Path(sys.argv[1]).name).config.model_dump_json())
