"""`WordReader`: reads a command line as a script's parser does, and keeps which words belong to which argument."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbtools.script.arguments.arguments import NUMBER, REPLACING, Argument, ScriptArguments, is_short

_ABBREVIATING = ("argparse", "HfArgumentParser", "jsonargparse", "LightningCLI")
_COUNTS = {"?": (0, 1), "+": (1, 1_000_000), "*": (0, 1_000_000), "...": (0, 1_000_000)}
_EITHER_DASH = ("tyro", "fire")
"""Parsers that read `_` and `-` in a flag as the same."""


@dataclass(frozen=True)
class Part:
    """Adjacent words of a command line that belong together."""

    words: tuple[str, ...]
    command: tuple[str, ...]
    """The sub-command in which they stand, or which they name."""
    names: tuple[str, ...] = ()
    """Fields of the arguments that take them; empty for a sub-command, `--`, and what no argument takes."""
    is_read: bool = True
    """Whether they are understood."""


class WordReader:
    """Reads the words of one command line."""

    def __init__(self, script: ScriptArguments) -> None:
        """Begin before the first word."""
        self._script = script
        self._parser = script.parser
        self._aliases = dict(script.aliases)
        self._only_values = False
        self.parts: list[Part] = []
        """All words in their order."""
        self.values: dict[str, Any] = {}
        """Values by the name of the field."""
        self._enter(())

    def read(self, words: list[str]) -> None:
        """Read all words."""
        while words:
            word = words.pop(0)
            if word == "--" and not self._only_values:
                self._only_values = True
                self._add([word], is_read=bool(self._positional))
                continue
            if not self._is_flag(word) and not self._is_key(word):
                self._take_positional(word, words)
            elif not self._take_flag(word, words):
                self._take_unknown(word, words)

    def _add(self, words: Sequence[str], names: Sequence[str] = (), *, is_read: bool = True) -> None:
        self.parts.append(Part(tuple(words), self.command, tuple(names), is_read))

    def _enter(self, command: tuple[str, ...]) -> None:
        self.command = command
        level = [argument for argument in self._script.arguments if argument.command == command]
        self._positional = [argument for argument in level if not argument.flags]
        self._flags = {self._plain(flag): a for a in level for flag in (*a.flags, *a.negative_flags)}
        self._negative = {self._plain(flag) for a in level for flag in a.negative_flags}
        self._has_number_flags = any(map(NUMBER.fullmatch, self._flags))

    def _plain(self, flag: str) -> str:
        if self._parser in _EITHER_DASH:
            return flag.replace("_", "-")
        return f"-{flag}" if self._parser == "absl" and not flag.startswith("--") else flag

    def _is_flag(self, word: str) -> bool:
        if self._only_values or len(word) < 2 or word[0] != "-":
            return False
        if NUMBER.fullmatch(word) and not self._has_number_flags:
            return False
        return " " not in word or "=" in word

    def _is_key(self, word: str) -> bool:
        """Whether a word without dashes names an argument: `key=value`, or the key of a pair."""
        key, equals, _ = word.partition("=")
        return key in self._flags and self._flags[key].action == ("key_value" if equals else "pair")

    def _take_flag(self, word: str, words: list[str]) -> bool:
        """Take an option, or several letters at once, and the values from the words; False if one is not known."""
        found = self._named(word)
        taken, is_read = [word], True
        for argument, flag, text in found:
            if self._plain(flag) in self._negative:
                self.values[argument.name] = False
            elif text is None and not argument.takes_value:
                first = 0 if self._parser in REPLACING else argument.default or 0
                count = self.values.get(argument.name, first) + 1 if argument.action == "count" else 0
                self.values[argument.name] = count or argument.const
            else:
                texts = self._following(argument, words) if text is None else [text]
                taken += texts if text is None else []
                is_read = self._store(argument, texts)
        if found:
            self._add(taken, list(dict.fromkeys(argument.name for argument, *_ in found)), is_read=is_read)
        return bool(found)

    def _named(self, word: str) -> list[tuple[Argument, str, str | None]]:
        """Return the options that a word names, each with its flag and the text behind it; none if one is unknown."""
        flag, equals, text = word.partition("=")
        argument = self._flags.get(self._plain(flag))
        if argument is None and self._parser in _ABBREVIATING and flag.startswith("--"):
            near = {id(a): (known, a) for known, a in self._flags.items() if known.startswith(flag)}
            flag, argument = next(iter(near.values())) if len(near) == 1 else (flag, None)
        if argument is not None:
            return [(argument, flag, text if equals else None)]
        if not is_short(word[:2]) or len(word) < 3 or (argument := self._flags.get(word[:2])) is None:
            return []
        if argument.takes_value:
            return [(argument, word[:2], word[2:])]
        others = self._named(f"-{word[2:]}")
        return [(argument, word[:2], None), *others] if others else []

    def _take_unknown(self, word: str, words: list[str]) -> None:
        """Keep an unknown option; of a script whose arguments are not all known, with what may be its values."""
        taken = [word]
        if not self._script.is_complete and "=" not in word:
            while words and words[0] != "--" and not self._is_flag(words[0]) and not self._is_command(words[0]):
                taken.append(words.pop(0))
        self._add(taken, is_read=False)

    def _following(self, argument: Argument, words: list[str]) -> list[str]:
        """Remove the values of an option from the words."""
        nargs = argument.nargs
        least, most = (nargs, nargs) if isinstance(nargs, int) else _COUNTS.get(nargs or "", (1, 1))
        is_strict = least == most and self._parser in ("click", "typer", "absl")
        takes_all = nargs == "..." or argument.action == "pair" or is_strict
        taken: list[str] = []
        while words and len(taken) < most and (takes_all or not (self._is_flag(words[0]) or words[0] == "--")):
            taken.append(words.pop(0))
        return taken

    def _store(self, argument: Argument, texts: Sequence[str]) -> bool:
        """Keep the value that texts stand for; False if there is none."""
        name, adds = argument.name, argument.action == "append" and self._parser not in REPLACING
        first = tuple(argument.default or ()) if adds else ()
        try:
            self.values[name] = argument.value_of(texts, self._parser, self.values.get(name, first))
        except ValueError:
            return False
        return True

    def _path(self, word: str) -> tuple[str, ...]:
        return (*self.command, self._aliases.get((*self.command, word), word))

    def _is_command(self, word: str) -> bool:
        path = self._path(word)
        return not self._only_values and any(known[: len(path)] == path for known in self._script.commands)

    def _take_positional(self, word: str, words: list[str]) -> None:
        if (not self._positional or self._positional[0].nargs in ("?", "*", "...")) and self._is_command(word):
            self._enter(self._path(word))
            self._add([word])
            return
        if not self._positional:
            self._add([word], is_read=False)
            return
        argument = self._positional.pop(0)
        following = [] if argument.nargs in (None, "?") else self._following(_fewer(argument), words)
        self._take_values(argument, [word, *following])
        if words and self._positional and self._positional[0].nargs == "...":
            self._take_values(self._positional.pop(0), words)
            words.clear()

    def _take_values(self, argument: Argument, texts: Sequence[str]) -> None:
        self._add(texts, [argument.name], is_read=self._store(argument, texts))


def _fewer(argument: Argument) -> Argument:
    """Return a positional argument of which one value was taken."""
    nargs: Any = argument.nargs - 1 if isinstance(argument.nargs, int) else "..." if argument.nargs == "..." else "*"
    return argument.replace(nargs=nargs)
