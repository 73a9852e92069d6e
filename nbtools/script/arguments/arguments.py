"""`ScriptArguments`: the arguments that a script declares, as fields of a form and as words of a command line."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from nbtools.errors import ConfigError, did_you_mean, shown
from nbtools.script.arguments.texts import from_text, is_list, to_text
from nbtools.script.field import Field

Action = Literal["store", "store_true", "store_false", "optional_bool", "append", "count", "key_value"]
"""How words become a value: `--lr 1e-3`; `--fp16`; `--no-cache`; `--x`/`--no-x`; one flag per value; `-vv`;
`key=value` without dashes (hydra)."""

_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""What argparse takes for a value although it begins with `-`."""
_JOINED = ("absl", "constants")
"""Parsers that read `--name=value` in one word."""
_REPLACING = ("click", "typer", "absl", "fire")
"""Parsers in which given values replace the default of an `append`; the others add to it."""
_ABBREVIATING = ("argparse", "HfArgumentParser", "jsonargparse", "LightningCLI")
_COUNTS = {"?": (0, 1), "+": (1, 1_000_000), "*": (0, 1_000_000), "...": (0, 1_000_000)}
_EITHER_DASH = ("tyro", "fire")
"""Parsers that read `_` and `-` in a flag as the same."""


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
    is_complete: bool = False
    """Whether all arguments are known."""
    can_ask: bool = False
    """Whether running the script up to its parser would tell more."""
    notes: tuple[str, ...] = ()
    """What was found and what was not, a sentence each, with file and line."""

    def words(self, values: Mapping[str, Any], command: Sequence[str] = (), extra: Sequence[str] = ()) -> list[str]:
        """Return the words of a command line for the values that differ from their defaults.

        Args:
            values: values by the name of the field.
            command: path of the sub-command.
            extra: further words, which come last.

        Raises:
            ConfigError: a required value is missing, a value is not allowed, or two exclude each other.
        """
        path = tuple(command)
        if path and path not in self.commands:
            allowed = ", ".join(" ".join(known) for known in self.commands) or "none"
            raise ConfigError(f"{' '.join(path)}: no sub-command of {self.script.name}; allowed: {allowed}")
        used = {a.field.name: a for a in self.arguments if a.command == path[: len(a.command)]}
        if unknown := values.keys() - {argument.field.name for argument in self.arguments}:
            hint = did_you_mean(min(unknown), used) or f"it has {', '.join(used) or 'none'}"
            raise ConfigError(f"{min(unknown)}: no argument of {self.script.name}; {hint}")
        given = {
            name: self._given(argument, values.get(name, argument.field.default)) for name, argument in used.items()
        }
        self._check_exclusive([used[name] for name, words in given.items() if words])
        found: list[str] = []
        late: list[str] = []
        for depth in range(len(path) + 1):
            level = [argument for argument in used.values() if len(argument.command) == depth]
            # Positional arguments first: an option with nargs="+" would take them.
            for argument in sorted(level, key=lambda argument: bool(argument.flags)):
                words = given[argument.field.name]
                is_late = argument.nargs == "..." or (not argument.flags and any(map(_looks_like_flag, words)))
                (late if is_late else found).extend(words)
                if is_late and argument.nargs != "..." and "--" not in found:
                    late.insert(0, "--")
            found.extend(path[depth : depth + 1])
        if late and late[0] == "--" and extra:
            raise ConfigError(f"{shlex.join(extra)}: no further words after {shlex.join(late)}; leave one of them out")
        return [*found, *late, *extra]

    def read(self, words: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...], list[str]]:
        """Return the values in the words of a command line, the sub-command, and the words that no argument takes."""
        return _Reader(self).read(list(words))

    def _given(self, argument: Argument, value: Any) -> list[str]:
        """Return the words for one value; none if it is the default."""
        field = argument.field
        name = argument.flags[0] if argument.flags else field.name
        where = f" ({field.source})" if field.source else ""
        if isinstance(value, list):
            value = tuple(value)
        if value is None and field.is_required:
            raise ConfigError(f"{name} is missing{where}; give it a value")
        if not field.is_required and _is_same(value, field.default):
            return []
        try:
            self._check_allowed(argument, value)
            return self._written(argument, value)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{name}={shown(value)}: {error}{where}") from None

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

    def _written(self, argument: Argument, value: Any) -> list[str]:
        def text(item: Any) -> str:
            return to_text(item, self.parser, argument.truth)

        default = argument.field.default
        flag = argument.flags[0] if argument.flags else ""
        match argument.action:
            case "store_true" | "store_false":
                if not _is_same(value, argument.const):
                    raise ValueError(f"the flag stands for {argument.const!r}; the other value is {default!r}")
                return [flag]
            case "optional_bool":
                spellings = argument.flags if value else argument.negative_flags
                if not isinstance(value, bool) or not spellings:
                    raise ValueError("has no flag for this value")
                return [spellings[0]]
            case "count":
                times = value if self.parser in _REPLACING else value - (default or 0)
                if times < 0:
                    raise ValueError(f"a flag that counts cannot lower its default {default!r}")
                short = next((flag for flag in argument.flags if _is_short(flag)), "")
                return [f"-{short[1] * times}"] if short and times else [flag] * times
            case "key_value":
                return [f"{flag}={text(value)}"]
            case "append":
                first = () if self.parser in _REPLACING else tuple(default or ())
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
        if len(texts) > 1 and self.parser not in ("click", "typer") and any(map(_looks_like_flag, texts)):
            raise ValueError("a value that begins with - cannot stand in a list")
        return [flag, *texts]

    def _is_short_click(self, flag: str) -> bool:
        return _is_short(flag) and self.parser in ("click", "typer")

    def _check_exclusive(self, given: Sequence[Argument]) -> None:
        groups: dict[str, Argument] = {}
        for argument in given:
            other = groups.setdefault(argument.exclusive, argument) if argument.exclusive else argument
            if other is not argument:
                names = " and ".join(item.flags[0] if item.flags else item.field.name for item in (other, argument))
                raise ConfigError(f"{names} exclude each other ({argument.exclusive}); leave one at its default")


class _Reader:
    """Reads the words of one command line."""

    def __init__(self, script: ScriptArguments) -> None:
        self._parser = script.parser
        self._commands = set(script.commands)
        self._arguments = script.arguments
        self._values: dict[str, Any] = {}
        self._command: tuple[str, ...] = ()
        self._rest: list[str] = []
        self._enter(())

    def read(self, words: list[str]) -> tuple[dict[str, Any], tuple[str, ...], list[str]]:
        """Read all words; what none takes remains in its order."""
        while words:
            word = words.pop(0)
            if word == "--" and self._positional:
                for value in words:
                    self._take_positional(value, [])
                break
            key, equals, text = word.partition("=")
            if equals and key in self._keys:
                self._store(self._keys[key], [text], [word])
            elif not self._is_flag(word):
                self._take_positional(word, words)
            elif not self._take_flag(word, words):
                self._rest.append(word)
        return self._values, self._command, self._rest

    def _enter(self, command: tuple[str, ...]) -> None:
        self._command = command
        level = [argument for argument in self._arguments if argument.command == command]
        self._positional = [argument for argument in level if not argument.flags]
        self._keys = {flag: a for a in level if a.action == "key_value" for flag in a.flags}
        options = [argument for argument in level if argument.action != "key_value"]
        self._flags = {self._plain(flag): a for a in options for flag in (*a.flags, *a.negative_flags)}
        self._negative = {self._plain(flag) for a in options for flag in a.negative_flags}
        self._has_number_flags = any(map(_NUMBER.fullmatch, self._flags))

    def _plain(self, flag: str) -> str:
        if self._parser in _EITHER_DASH:
            return flag.replace("_", "-")
        return f"-{flag}" if self._parser == "absl" and not flag.startswith("--") else flag

    def _is_flag(self, word: str) -> bool:
        if len(word) < 2 or word[0] != "-" or (_NUMBER.fullmatch(word) and not self._has_number_flags):
            return False
        return " " not in word or "=" in word

    def _take_flag(self, word: str, words: list[str]) -> bool:
        """Take an option and its values from the words; False if it is not known or its values are not allowed."""
        flag, equals, text = word.partition("=")
        argument = self._flags.get(self._plain(flag))
        if argument is None and self._parser in _ABBREVIATING and flag.startswith("--"):
            near = {id(a): (known, a) for known, a in self._flags.items() if known.startswith(flag)}
            flag, argument = next(iter(near.values())) if len(near) == 1 else (flag, None)
        if argument is None and _is_short(word[:2]) and len(word) > 2 and (argument := self._flags.get(word[:2])):
            if not argument.takes_value:  # -vv, or several letters at once
                return self._take_flag(word[:2], words) and self._take_flag(f"-{word[2:]}", words)
            flag, equals, text = word[:2], "=", word[2:]
        if argument is None:
            return False
        if self._plain(flag) in self._negative:
            self._values[argument.field.name] = False
        elif not argument.takes_value:
            self._count(argument)
        else:
            texts = [text] if equals else self._following(argument, words)
            self._store(argument, texts, [word] if equals else [word, *texts])
        return True

    def _count(self, argument: Argument) -> None:
        name = argument.field.name
        if argument.action == "count":
            first = 0 if self._parser in _REPLACING else argument.field.default or 0
            self._values[name] = self._values.get(name, first) + 1
        else:
            self._values[name] = True if argument.action == "optional_bool" else argument.const

    def _following(self, argument: Argument, words: list[str]) -> list[str]:
        """Remove the values of an option from the words."""
        nargs = argument.nargs
        least, most = (nargs, nargs) if isinstance(nargs, int) else _COUNTS.get(nargs or "", (1, 1))
        takes_all = argument.nargs == "..." or (least == most and self._parser in ("click", "typer", "absl"))
        count = 0
        while count < min(most, len(words)) and (
            takes_all or not (self._is_flag(words[count]) or words[count] == "--")
        ):
            count += 1
        taken = words[:count]
        del words[:count]
        return taken

    def _store(self, argument: Argument, texts: list[str], taken: list[str]) -> None:
        """Keep the value that texts stand for; where there is none, what was taken remains."""
        name, field = argument.field.name, argument.field
        try:
            if argument.action == "append":
                several = argument.nargs is not None
                item = shlex.join(texts) if several else self._value(argument, *texts)
                first = () if self._parser in _REPLACING else tuple(field.default or ())
                value: Any = (*self._values.get(name, first), item)
            elif argument.nargs in ("*", "+", "...") or isinstance(argument.nargs, int):
                value = tuple(self._element(argument, text) for text in texts)
                self._check_count(argument, value)
            elif not texts:
                value = argument.const if argument.nargs == "?" else self._value(argument, *texts)
            else:
                value = self._value(argument, *texts)
        except (ValueError, TypeError):
            self._rest.extend(taken)
        else:
            self._values[name] = value

    def _check_count(self, argument: Argument, value: Sequence[Any]) -> None:
        if (isinstance(argument.nargs, int) and len(value) != argument.nargs) or (argument.nargs == "+" and not value):
            raise ValueError(argument.field.name)

    def _value(self, argument: Argument, text: str) -> Any:
        if argument.action == "append":
            return self._element(argument, text)
        return from_text(text, argument.field, self._parser, argument.truth)

    def _element(self, argument: Argument, text: str) -> Any:
        field = argument.field
        types = tuple(kind.__args__[0] if hasattr(kind, "__args__") else kind for kind in field.types)
        return from_text(text, field.replace(types=types), self._parser, argument.truth)

    def _take_positional(self, word: str, words: list[str]) -> None:
        if not self._positional or self._positional[0].nargs in ("?", "*", "..."):
            command = (*self._command, word)
            if any(known[: len(command)] == command for known in self._commands):
                self._enter(command)
                return
        if not self._positional:
            self._rest.append(word)
            return
        argument = self._positional.pop(0)
        following = [] if argument.nargs in (None, "?") else self._following(_fewer(argument), words)
        self._store(argument, [word, *following], [word, *following])


def _fewer(argument: Argument) -> Argument:
    """Return a positional argument of which one value was taken."""
    nargs: Any = argument.nargs - 1 if isinstance(argument.nargs, int) else "..." if argument.nargs == "..." else "*"
    return Argument(argument.field, nargs=nargs)


def _is_same(value: Any, default: Any) -> bool:
    """Whether a value is the default: True is not 1, and a list equals a tuple of the same values."""
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return len(value) == len(default) and all(map(_is_same, value, default))
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def _is_short(flag: str) -> bool:
    return len(flag) == 2 and flag[0] == "-" and flag[1] != "-"


def _decimal(value: Any) -> str:
    """Return a negative number without an exponent, with which argparse would take it for a flag."""
    return format(Decimal(repr(value)), "f") if isinstance(value, float) and value < 0 else ""


def _looks_like_flag(text: str) -> bool:
    return text.startswith("-") and len(text) > 1 and not _NUMBER.fullmatch(text)
