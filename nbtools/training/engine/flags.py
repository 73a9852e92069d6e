"""A config's fields as command-line flags, and the flags of older programs.

Every flag takes dashes or underscores. Arguments of older launchers and programs are translated before tyro parses
them. A setting in the environment by `accelerate launch` overrides the script; a flag overrides both.
"""

import contextlib
import dataclasses
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, NoReturn, TypeVar

import tyro

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError
from nbtools.project import expanded
from nbtools.run.checkpoints import steered_values
from nbtools.run.records import mapping_at, recorded_arguments
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir
from nbtools.script.compat import aliases
from nbtools.script.script import read_script
from nbtools.script.values import TRUTHS
from nbtools.training.process import launchers

C = TypeVar("C", bound=TrainConfig)


@dataclass(frozen=True)
class Flags(Generic[C]):
    """A config from a parsed command line."""

    config: C
    """The script's config with the flags applied."""
    overridden: tuple[str, ...] = ()
    """Names of the fields that a flag changed."""
    resume_from: Path | None = None
    """Checkpoint folder to resume from, or a file of weights."""
    notes: tuple[str, ...] = ()
    """Ignored arguments, each with the reason."""
    named: tuple[str, ...] = ()
    """Names of the fields that flags set here, and did not in the run that is resumed."""
    recorded: Mapping[str, Any] | None = None
    """Values of the run that is resumed; None if it recorded none."""
    steered: Mapping[str, Any] = field(default_factory=dict)
    """Values of the config that were changed while the run that is resumed by hand ran."""


def parse(config: C, args: Sequence[str] | None = None, *, prog: str | None = None) -> Flags[C]:
    """Apply command-line flags to the config of a script.

    Args:
        config: values of the fields that no flag sets.
        args: the command line; this process's own when None.
        prog: name in `--help`; the script's own when None.

    Raises:
        SystemExit: code 2 and a message on stderr for a wrong flag or value, code 0 after `--help`.
    """
    prog = prog or Path(sys.argv[0]).name
    try:
        given, notes = normalized(sys.argv[1:] if args is None else args, type(config))
        default, precision = config, launchers.precision(os.environ)
        if precision is not None:
            default = config.replace(precision=precision)
            notes += (f"precision={precision} from accelerate launch; a flag overrides it",)
        notes += tuple(launchers.notes(os.environ))
    except ConfigError as error:
        _refuse(prog, error)
    about = "Flags override the values in the script; dashes and underscores are the same."
    values: dict[str, Any] = vars(tyro.cli(_flags_class(default), args=given, prog=prog, description=about))
    named, resume_from, known = _names(given), values.pop("resume_from"), None
    if resume_from:
        run = RunDir(expanded(resume_from).resolve().parent.parent)
        known = mapping_at(read_json(run.config) or {}, "config") or None
    if known is not None:
        earlier = config.values_before({*known, *config.model_fields_set, *named})
        values |= earlier
        notes += tuple(f"{name}={value!r}, as in the run that is resumed" for name, value in earlier.items())
    steered = {} if resume_from is None or RUN_DIR_VARIABLE in os.environ else steered_values(expanded(resume_from))
    steered = {name: value for name, value in steered.items() if name not in named}  # the launcher gives them as flags
    values |= steered
    # A run recorded with these epochs and a cap keeps it: its flags meant that.
    if "epochs" in named and not (known and known.get("max_steps") and known.get("epochs") == values["epochs"]):
        asked = {name: value for name, value in values.items() if name != "max_steps" or "max_steps" in named}
        values, lifted = default.uncapped(asked)
        notes += lifted
    try:
        changed = config.replace(**values)
    except ConfigError as error:
        _refuse(prog, error)
    overridden = tuple(name for name, value in changed if value != getattr(config, name))
    if not resume_from:
        return Flags(changed, overridden, None, notes)
    before = read_json(run.launch) or {}
    with contextlib.suppress(ConfigError):
        named = list(Counter(named) - Counter(_names(normalized(recorded_arguments(before), type(config))[0])))
    return Flags(changed, overridden, Path(resume_from), notes, tuple(named), known, steered)


def _names(args: Sequence[str]) -> list[str]:
    """Return the fields that normalized arguments set."""
    flags = (argument[2:].partition("=")[0] for argument in args if argument.startswith("--"))
    return [flag.removeprefix("no-").replace("-", "_") for flag in flags]


def _refuse(prog: str, error: ConfigError) -> NoReturn:
    print(f"{prog}: error: {error}", file=sys.stderr)
    raise SystemExit(2) from None


def normalized(args: Sequence[str], cls: type[TrainConfig]) -> tuple[list[str], tuple[str, ...]]:
    """Translate arguments of older programs: names, values in words, ignored flags, and `--flag true` for booleans.

    Returns:
        The arguments for tyro, and notes on ignored ones.

    Raises:
        ConfigError: a flag of an older program has no field in this recipe.
    """
    result: list[str] = []
    notes: list[str] = []
    rest = list(args)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or argument == "--":
            result.append(argument)
            continue
        given, sign, value = argument[2:].partition("=")
        name, text = given.replace("-", "_"), value if sign else None
        if text is None and rest and re.fullmatch(_value_pattern(cls, name), rest[0].lower()):
            text = rest.pop(0)
        if name in aliases.older("ignored"):
            notes.append(f"--{name.replace('_', '-')} is ignored: {aliases.older('ignored')[name]}")
        else:
            field, text = aliases.translated(cls, name, text)
            flag = field.replace("_", "-")
            if is_truth(cls, field) and text is not None and text.lower() in TRUTHS:
                result.append(f"--{flag}" if TRUTHS[text.lower()] else f"--no-{flag}")
            else:
                result.append(f"--{flag}" if text is None else f"--{flag}={text}")
    return result, tuple(notes)


def _value_pattern(cls: type[TrainConfig], name: str) -> str:
    """Return the pattern of a word behind a flag that is its value and is translated; tyro judges all others."""
    truth, any_word, none = "|".join(TRUTHS), "(?!--).*", "(?!)"
    if name in aliases.older("ignored"):
        return rf"-?[0-9]+|{truth}"
    if name in aliases.SWITCHES or is_truth(cls, name):
        return truth
    field = name if name in cls.model_fields else aliases.older("fields").get(name, name)
    # A count may be 500k, and a precision has older names.
    info = cls.model_fields.get(field)
    is_spelled = info is not None and (info.annotation in (int, int | None) or field == "precision")
    return any_word if is_spelled else none


def is_truth(cls: type[TrainConfig], name: str) -> bool:
    """Whether a field is a bool, so that its flag needs no value."""
    field = name if name in cls.model_fields else aliases.older("fields").get(name, name)
    return field in cls.model_fields and cls.model_fields[field].annotation is bool


def _flags_class(config: TrainConfig) -> type[Any]:
    """Return a plain dataclass of the config's fields, so that only declared fields become flags."""
    fields: list[tuple[str, Any, Any]] = []
    for name, info in type(config).model_fields.items():
        unit = type(config).unit(name)
        help_text = f"{info.description} [{unit}]" if unit else str(info.description)
        annotation = Annotated[info.annotation, tyro.conf.arg(help=help_text)]  # type: ignore[name-defined]
        fields.append((name, annotation, dataclasses.field(default=getattr(config, name))))
    help_text = "Checkpoint folder to resume from, such as runs/ID/checkpoints/step-000200; or a file of weights."
    resume = Annotated[str | None, tyro.conf.arg(help=help_text, metavar="PATH")]
    fields.append(("resume_from", resume, dataclasses.field(default=None)))
    made: type[Any] = dataclasses.make_dataclass("Flags", fields)
    return made


if __name__ == "__main__":  # `nbtools launch` runs this to check flags: SCRIPT FLAGS...
    print(parse(read_script(sys.argv[1]).config, sys.argv[2:], prog=Path(sys.argv[1]).name).config.model_dump_json())
