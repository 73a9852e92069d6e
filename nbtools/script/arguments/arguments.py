"""`ScriptArguments`: the arguments that a script declares, as fields of a form, and the words for a value."""

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

from nbtools.errors import ConfigError, shown
from nbtools.rundir.secret_values import MASK, is_secret, masked, without_secrets
from nbtools.script.field import Field
from nbtools.script.values import element_type, from_text, is_list, to_text

Action = Literal["store", "switch", "append", "count", "key_value", "pair"]
"""How words become a value: `--lr 1e-3`; `--fp16` or `--x`/`--no-x`; one flag per value; `-vv`; `key=value` without
dashes (hydra); `KEY value` behind all others (yacs)."""

NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""Numbers that argparse takes for values although they begin with `-`."""
_JOINED = ("absl", "constants")
"""Parsers that read `--name=value` in one word."""
TYPES: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "str": str}
"""Types of plain values, by their names in answers."""
REPLACING = ("click", "typer", "absl", "fire")
"""Parsers in which given values replace the default of an `append`; the others add to it."""


@dataclass(frozen=True)
class Argument(Field):
    """An argument of a script: a field, and the words that set it."""

    flags: tuple[str, ...] = ()
    """Spellings, the one to write first; empty for a positional argument."""
    negative_flags: tuple[str, ...] = ()
    """Spellings without a value that turn a truth value off."""
    action: Action = "store"
    nargs: int | Literal["?", "*", "+", "..."] | None = None
    """Number of values, as argparse has it; None for one, `...` for all remaining words."""
    command: tuple[str, ...] = ()
    """The sub-command that it belongs to; empty for all."""
    const: Any = True
    """The value of the flag alone, without a value."""
    truth: tuple[str, str] = ("True", "False")
    """Texts of True and False."""

    def language(self, parser: str) -> str:
        """Return the parser whose texts of values it reads, in a script of a parser."""
        return "fire" if self.action == "pair" else parser

    @property
    def takes_value(self) -> bool:
        """Whether words follow the flag."""
        return self.action in ("store", "append", "pair")

    @property
    def takes_several(self) -> bool:
        """Whether a list of words makes one value."""
        return self.nargs not in (None, "?")

    def check_count(self, values: Sequence[Any]) -> None:
        """Raise a ValueError if it does not take this number of values."""
        if isinstance(self.nargs, int) and len(values) != self.nargs:
            raise ValueError(f"takes {self.nargs} values, {len(values)} given")
        if self.nargs == "+" and not values:
            raise ValueError("takes at least one value")

    def value_of(self, texts: Sequence[str], parser: str, before: Any) -> Any:
        """Return the value that the texts behind its flag stand for, after an earlier value; ValueError if there is
        none."""
        item = self.replace(types=tuple(map(element_type, self.types)))
        if self.action == "append" and self.nargs is not None:
            return (*before, shlex.join(texts))
        if self.takes_several:
            value = tuple(from_text(text, item, parser, self.truth) for text in texts)
            if value == (None,):
                return None
            self.check_count(value)
            return value
        if self.nargs == "?" and not texts:
            return self.const
        [text] = texts
        if self.action == "append":
            return (*before, from_text(text, item, parser, self.truth))
        return from_text(text, self, self.language(parser), self.truth)


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
    aliases: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Paths that end with another name of a sub-command, each with the name that `commands` has."""
    needs_command: tuple[tuple[str, ...], ...] = ()
    """The paths that a further sub-command must follow; () stands for the script itself."""
    is_complete: bool = False
    """Whether all arguments are known."""
    refuses_others: bool = False
    """Whether argparse ends the program at words that none of them takes; unlike `parse_known_args`."""
    can_ask: bool = False
    """Whether running the script up to its parser would tell more."""
    notes: tuple[str, ...] = ()
    """Why the program did not tell more."""

    def written(self, argument: Argument, value: Any) -> list[str]:
        """Return the words for the value of an argument; none if it is the default; ConfigError if a required value is
        missing, or the value is not allowed."""
        name = argument.flags[0] if argument.flags else argument.name
        where = f" ({argument.source})" if argument.source else ""
        if isinstance(value, list):
            value = tuple(value)
        if value is None and argument.is_required:
            raise ConfigError(f"{name} is missing{where}; give it a value")
        if not argument.is_required and is_same(value, argument.default):
            return []
        try:
            self._check_allowed(argument, value)
            return self._words(argument, value)
        except (ValueError, TypeError) as error:
            text = MASK if argument.is_secret else shown(value)
            raise ConfigError(f"{name}={text}: {error}{where}") from None

    def _check_allowed(self, argument: Argument, value: Any) -> None:
        if argument.takes_value and is_list(argument) and not isinstance(value, tuple) and value is not None:
            raise ValueError("is no list; give a list of values")
        if argument.action == "store":
            argument.check_count(value or ())
        if argument.is_closed or (is_list(argument) and argument.choices):
            allowed = [to_text(choice, "constants", argument.truth) for choice in argument.choices or ()]
            for item in value if isinstance(value, tuple) else (value,):
                if to_text(item, "constants", argument.truth) not in allowed:
                    raise ValueError(f"allowed are {', '.join(allowed)}")

    def _words(self, argument: Argument, value: Any) -> list[str]:
        def text(item: Any) -> str:
            if isinstance(item, float) and item < 0 and argument.takes_several:
                return format(Decimal(repr(item)), "f")  # argparse would take one with an exponent for a flag
            return to_text(item, self.parser, argument.truth)

        default, flag = argument.default, argument.flags[0] if argument.flags else ""
        match argument.action:
            case "switch":
                is_on = is_same(value, argument.const)
                if spellings := argument.flags if is_on else argument.negative_flags if value is False else ():
                    return [spellings[0]]
                other = argument.default_text or repr(default)
                raise ValueError(f"the flag stands for {argument.const!r}; the other value is {other}")
            case "count":
                times = value if self.parser in REPLACING else value - (default or 0)
                if times < 0:
                    raise ValueError(f"a flag that counts cannot lower its default {default!r}")
                short = next((flag for flag in argument.flags if is_short(flag)), "")
                return [f"-{short[1] * times}"] if short and times else [flag] * times
            case "key_value" | "pair":
                is_literal = isinstance(value, str) and argument.default_text.startswith(("{", "["))
                word = to_text(value, argument.language(self.parser), argument.truth)
                word = value if is_literal else word  # its text, not quoted
                return [f"{flag}={word}"] if argument.action == "key_value" else [flag, word]
            case "append":
                first = () if self.parser in REPLACING else tuple(default or ())
                if value[: len(first)] != first:
                    raise ValueError(f"the script adds values to its default {list(first)}; begin with these")
                several = argument.nargs is not None
                parts = [shlex.split(item) if several else [text(item)] for item in value[len(first) :]]
                return [word for part in parts for word in self._with_flag(flag, part)]
        texts = list(map(text, value)) if argument.takes_several and isinstance(value, tuple) else [text(value)]
        return self._with_flag(flag, texts) if flag else texts

    def _with_flag(self, flag: str, texts: Sequence[str]) -> list[str]:
        is_separate = is_short(flag) and self.parser in ("click", "typer")
        if len(texts) == 1 and (self.parser in _JOINED or (texts[0].startswith("-") and not is_separate)):
            return [f"{flag}={texts[0]}"]
        if len(texts) > 1 and self.parser not in ("click", "typer") and any(map(looks_like_flag, texts)):
            raise ValueError("a value that begins with - cannot stand in a list")
        return [flag, *texts]


def with_unique_names(arguments: Sequence[Argument]) -> list[Argument]:
    """Return arguments with unique names.

    Two that set the same truth value become one; others with the name of an earlier one are called after their flag,
    and where several sub-commands have the same name, the sub-command stands in front of it.
    """
    found: dict[tuple[tuple[str, ...], str], Argument] = {}
    for argument in arguments:
        key = argument.command, argument.name
        if (first := found.get(key)) is not None:
            if set(first.flags) & set(argument.flags):
                continue
            if (merged := _merged(first, argument)) is not None:
                found[key] = merged
                continue
            name = argument.flags[0].lstrip("-").replace("-", "_") if argument.flags else f"{key[1]}.2"
            key = argument.command, f"{key[1]}.{name}" if (argument.command, name) in found else name
            argument = argument.replace(name=key[1])
        found.setdefault(key, argument)
    counts = Counter(argument.name for argument in found.values())
    for key, argument in found.items():
        if argument.command and counts[argument.name] > 1:
            found[key] = argument.replace(name=".".join((*argument.command, argument.name)))
    return [*found.values()]


def _merged(first: Argument, second: Argument) -> Argument | None:
    """Return one argument for two that set the same truth value, such as `--cache` and `--no-cache`."""
    is_truth = first.action == "switch" or (first.action == "store" and bool in first.types)
    first_is_off = first.action == "switch" and first.const is False
    if second.action != "switch" or not is_truth or first_is_off == (second.const is False):
        return None
    if first_is_off:
        return first.replace(flags=second.flags, negative_flags=first.flags, const=second.const)
    return first.replace(negative_flags=(*first.negative_flags, *second.flags))


def argument_of(item: Mapping[str, Any]) -> Argument:
    """Return the argument that the answer of a program describes; ValueError or TypeError if it describes none."""
    action, nargs = item["action"], item.get("nargs")
    if action not in get_args(Action) or (nargs not in (None, "?", "*", "+", "...") and not isinstance(nargs, int)):
        raise ValueError(f"action {action!r}, nargs {nargs!r}")
    kinds: list[Any] = [TYPES[kind] for kind in item["types"]]
    is_list = bool(item.get("is_list")) or action == "append" or nargs not in (None, "?")
    required = item.get("is_required") is True
    default, text = _tuples(item.get("default")), "" if required else str(item.get("default_text") or "")
    choices = None if item.get("choices") is None else tuple(map(_tuples, item["choices"]))
    if is_list and default is not None and not isinstance(default, tuple):
        default = (default,)
    types: tuple[Any, ...] = tuple(tuple[kind, ...] for kind in kinds or [str]) if is_list else tuple(kinds)  # type: ignore[valid-type]
    if choices is not None and not is_list and action != "count":
        types = ()
    if item.get("is_optional") or (default is None and not required and not text):
        types = (*types, NoneType)
        if choices is not None and not is_list and None not in choices:
            choices = (*choices, None)
    true, false = map(str, item.get("truth") or ("True", "False"))
    told: dict[str, Any] = {name: str(item.get(name) or "") for name in ("help", "group", "source")}
    told |= {"types": types, "default": default, "default_text": text, "choices": choices, "is_required": required}
    names = ("flags", "negative_flags", "command")
    flags, negative, command = (tuple(map(str, item.get(name) or ())) for name in names)
    flags = tuple(sorted(flags, key=lambda flag: not flag.startswith("--")))
    told |= {"flags": flags, "negative_flags": negative, "action": action, "nargs": nargs, "command": command}
    const = _tuples(item.get("const", True))
    return _without_secrets(Argument(str(item["name"]), **told, const=const, truth=(true, false)))


def _tuples(value: Any) -> Any:
    """Return a value of JSON with tuples for its lists; an object, which no argument has, as a text."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return repr(value) if isinstance(value, dict) else value


def _without_secrets(argument: Argument) -> Argument:
    """Return an argument that is secret if its name or its default says so; its help has no secret."""
    default = argument.default if isinstance(argument.default, tuple) else [argument.default]
    texts = [item for item in default if item and isinstance(item, str)]
    hides = str in map(element_type, argument.types) and any(is_secret(argument.name, it) for it in ["value", *texts])
    (default_text,) = masked([argument.default_text])
    help = without_secrets(argument.help, texts) if hides else argument.help
    return argument.replace(is_secret=hides and not argument.choices, default_text=default_text, help=help)


def is_same(value: Any, default: Any) -> bool:
    """Whether a value is the default: True is not 1, and a list equals a tuple of the same values."""
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return len(value) == len(default) and all(map(is_same, value, default))
    is_nan = value != value and default != default
    return (value == default or is_nan) and isinstance(value, bool) == isinstance(default, bool)


def is_short(flag: str) -> bool:
    """Whether a flag is `-` and one letter."""
    return len(flag) == 2 and flag[0] == "-" and flag[1] != "-"


def looks_like_flag(text: str) -> bool:
    """Whether a parser takes a value for a flag."""
    return text.startswith("-") and len(text) > 1 and not NUMBER.fullmatch(text)
