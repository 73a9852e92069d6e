"""`ScriptArguments`: the arguments that a script declares, as fields of a form, and the words for a value."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from nbtools.errors import ConfigError, shown
from nbtools.rundir.secret_values import MASK
from nbtools.script.arguments.texts import is_list, to_text
from nbtools.script.field import Field

Action = Literal["store", "store_true", "store_false", "optional_bool", "append", "count", "key_value"]
"""How words become a value: `--lr 1e-3`; `--fp16`; `--no-cache`; `--x`/`--no-x`; one flag per value; `-vv`;
`key=value` without dashes (hydra)."""

NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse takes for a value although it begins with `-`."""
_JOINED = ("absl", "constants")
"""Parsers that read `--name=value` in one word."""
REPLACING = ("click", "typer", "absl", "fire")
"""Parsers in which given values replace the default of an `append`; the others add to it."""


@dataclass(frozen=True)
class Argument:
    """An argument of a script."""

    field: Field
    flags: tuple[str, ...] = ()
    """Spellings, the one to write first; empty for a positional argument."""
    negative_flags: tuple[str, ...] = ()
    """Spellings without a value that turn a truth value off."""
    action: Action = "store"
    nargs: int | Literal["?", "*", "+", "..."] | None = None
    """Number of values, as argparse has it; None for one, `...` for all remaining words."""
    exclusive: str = ""
    """Arguments with the same text here exclude each other."""
    command: tuple[str, ...] = ()
    """The sub-command that it belongs to; empty for all."""
    const: Any = True
    """The value of the flag alone, without a value."""
    truth: tuple[str, str] = ("True", "False")
    """Texts of True and False."""

    @property
    def takes_value(self) -> bool:
        """Whether words follow the flag."""
        return self.action in ("store", "append")


@dataclass(frozen=True)
class ScriptArguments:
    """The arguments of one script."""

    script: Path
    parser: str
    """Library that parses: `argparse`, `HfArgumentParser`, `tyro`, `click`, `typer`, `hydra`, `absl`, `jsonargparse`,
    `LightningCLI`, `fire`, `constants` (module constants read by a configurator), `config file`; empty for none."""
    arguments: tuple[Argument, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    """Paths of the sub-commands; empty without any."""
    needs_command: tuple[tuple[str, ...], ...] = ()
    """Those of them that a further sub-command must follow; () stands for the script itself."""
    is_complete: bool = False
    """Whether all arguments are known."""
    can_ask: bool = False
    """Whether running the script up to its parser would tell more."""
    notes: tuple[str, ...] = ()
    """What was found and what was not, a sentence each, with file and line."""

    def written(self, argument: Argument, value: Any) -> list[str]:
        """Return the words for the value of an argument; none if it is the default.

        Raises:
            ConfigError: a required value is missing, or the value is not allowed.
        """
        field = argument.field
        name = argument.flags[0] if argument.flags else field.name
        where = f" ({field.source})" if field.source else ""
        if isinstance(value, list):
            value = tuple(value)
        if value is None and field.is_required:
            raise ConfigError(f"{name} is missing{where}; give it a value")
        if not field.is_required and is_same(value, field.default):
            return []
        try:
            self._check_allowed(argument, value)
            return self._words(argument, value)
        except (ValueError, TypeError) as error:
            text = MASK if field.is_secret else shown(value)
            raise ConfigError(f"{name}={text}: {error}{where}") from None

    def _check_allowed(self, argument: Argument, value: Any) -> None:
        field = argument.field
        if argument.takes_value and is_list(field) and not isinstance(value, tuple) and value is not None:
            raise ValueError("is no list; give a list of values")
        if isinstance(argument.nargs, int) and argument.action == "store" and len(value) != argument.nargs:
            raise ValueError(f"takes {argument.nargs} values, {len(value)} given")
        if argument.nargs == "+" and argument.action == "store" and not value:
            raise ValueError("takes at least one value")
        closed = field.is_closed or (is_list(field) and field.choices is not None)
        if closed and field.choices is not None:
            allowed = [to_text(choice, "constants", argument.truth) for choice in field.choices]
            for item in value if isinstance(value, tuple) else (value,):
                if to_text(item, "constants", argument.truth) not in allowed:
                    raise ValueError(f"allowed are {', '.join(allowed)}")

    def _words(self, argument: Argument, value: Any) -> list[str]:
        def text(item: Any) -> str:
            return to_text(item, self.parser, argument.truth)

        field, default = argument.field, argument.field.default
        flag = argument.flags[0] if argument.flags else ""
        match argument.action:
            case "store_true" | "store_false":
                if not is_same(value, argument.const):
                    other = field.default_text or repr(default)
                    raise ValueError(f"the flag stands for {argument.const!r}; the other value is {other}")
                return [flag]
            case "optional_bool":
                spellings = argument.flags if value else argument.negative_flags
                if not isinstance(value, bool) or not spellings:
                    raise ValueError("has no flag for this value")
                return [spellings[0]]
            case "count":
                times = value if self.parser in REPLACING else value - (default or 0)
                if times < 0:
                    raise ValueError(f"a flag that counts cannot lower its default {default!r}")
                short = next((flag for flag in argument.flags if is_short(flag)), "")
                return [f"-{short[1] * times}"] if short and times else [flag] * times
            case "key_value":
                return [f"{flag}={text(value)}"]
            case "append":
                first = () if self.parser in REPLACING else tuple(default or ())
                if value[: len(first)] != first:
                    raise ValueError(f"the script adds values to its default {list(first)}; begin with these")
                several = argument.nargs is not None
                parts = [shlex.split(item) if several else [text(item)] for item in value[len(first) :]]
                return [word for part in parts for word in self._with_flag(flag, part)]
        several = argument.nargs in ("*", "+", "...") or isinstance(argument.nargs, int)
        texts = (
            [_decimal(item) or text(item) for item in value] if several and isinstance(value, tuple) else [text(value)]
        )
        return self._with_flag(flag, texts) if flag else texts

    def _with_flag(self, flag: str, texts: Sequence[str]) -> list[str]:
        if len(texts) == 1 and (
            self.parser in _JOINED or (texts[0].startswith("-") and not self._is_short_click(flag))
        ):
            return [f"{flag}={texts[0]}"]
        if len(texts) > 1 and self.parser not in ("click", "typer") and any(map(looks_like_flag, texts)):
            raise ValueError("a value that begins with - cannot stand in a list")
        return [flag, *texts]

    def _is_short_click(self, flag: str) -> bool:
        return is_short(flag) and self.parser in ("click", "typer")


def is_same(value: Any, default: Any) -> bool:
    """Whether a value is the default: True is not 1, and a list equals a tuple of the same values."""
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return len(value) == len(default) and all(map(is_same, value, default))
    is_nan = value != value and default != default
    return (value == default or is_nan) and isinstance(value, bool) == isinstance(default, bool)


def is_short(flag: str) -> bool:
    """Whether a flag is `-` and one letter."""
    return len(flag) == 2 and flag[0] == "-" and flag[1] != "-"


def _decimal(value: Any) -> str:
    """Return a negative number without an exponent, with which argparse would take it for a flag."""
    return format(Decimal(repr(value)), "f") if isinstance(value, float) and value < 0 else ""


def looks_like_flag(text: str) -> bool:
    """Whether a parser takes a value for a flag."""
    return text.startswith("-") and len(text) > 1 and not NUMBER.fullmatch(text)
