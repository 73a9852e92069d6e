"""`CommandLine`: the words of a script's command line as values, and the same words with some values changed."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbtools.errors import ConfigError, did_you_mean
from nbtools.rundir.secret_values import masked
from nbtools.script.arguments.arguments import Argument, ScriptArguments, is_same, looks_like_flag
from nbtools.script.arguments.word_reader import Part, WordReader
from nbtools.script.values import allowed_values

_READS_CONFIGS = ("jsonargparse", "LightningCLI")


@dataclass(frozen=True)
class CommandLine:
    """The words of a script's command line, read as its parser reads them."""

    script: ScriptArguments
    parts: tuple[Part, ...]
    values: Mapping[str, Any]
    """Values that stand in the words, by the name of the field."""
    command: tuple[str, ...]
    """Path of the sub-command; empty without one."""

    @property
    def rest(self) -> list[str]:
        """The words that are not understood."""
        return [word for part in self.parts if not part.is_read for word in part.words]

    def edited(self, values: Mapping[str, Any], command: Sequence[str] = ()) -> list[str]:
        """Return the words with other values by the name of the field, and another sub-command.

        All words of values that are the same stay as they are, in their place; None takes a required value away.

        Raises:
            ConfigError: a value is not allowed, or the words would be read differently.
        """
        path = tuple(command)
        used = self._used(path)
        parts = self._in_command(path)
        changed = {name for name in used.keys() & values.keys() if not is_same(values[name], self._value(used[name]))}
        while more := {name for part in parts if changed & {*part.names} for name in part.names} - changed:
            changed |= more  # letters of one word, such as -vx
        for name, argument in used.items():
            if name in changed:
                value = values.get(name, self._value(argument))
                is_gone = value is None and argument.is_required
                words = [] if is_gone else self.script.written(argument, value)
                parts = self._with_words(parts, argument, words)
        found = [word for part in parts for word in part.words]
        if not self._are_read(parts):
            raise ConfigError(f"{shlex.join(masked(found))}: would be read differently; change the words of args")
        return found

    @property
    def mistakes(self) -> dict[str, str]:
        """Why the program will refuse the words, by the name of the field; that of a sub-command has the name "".

        None unless its arguments are all known: preliminary ones may be wrong.
        """
        if not self.script.is_complete:
            return {}
        found, path = dict[str, str](), self.command
        used, given = self._used(path), {name for part in self.parts for name in part.names}
        # Values may also be in a file, and positional ones behind a flag that is not known.
        others = [part.words[0] for part in self.parts if not (part.is_read or part.names)]
        has_file = self.script.parser != "argparse" and any(name.endswith("config") for name in given)
        has_file = has_file or any(word.startswith("@") for part in self.parts for word in part.words)
        if not has_file and all(word.startswith("-") for word in others):
            if not others and path in self.script.needs_command:
                allowed = ", ".join(known[-1] for known in self.script.commands if known[:-1] == path)
                found[""] = f"a sub-command is missing; choose one of {allowed}"
            for name, argument in used.items():
                if argument.is_required and name not in given and (argument.flags or not others):
                    try:
                        self.script.written(argument, None)
                    except ConfigError as error:
                        found[name] = str(error)
        for part in self.parts if self.script.parser == "argparse" else ():
            if not part.is_read and part.names and bool not in used[part.names[-1]].types:
                argument = used[part.names[-1]]
                count = f"{argument.nargs} values, each " if isinstance(argument.nargs, int) else ""
                allowed = ", or ".join(allowed_values(argument))
                found[argument.name] = f"{shlex.join(masked(part.words))}: takes {count}{allowed}"
        return found

    @property
    def refused(self) -> list[str]:
        """Why the program will refuse the words, as sentences; none unless its arguments are all known."""
        found = list(self.mistakes.values())
        if self.script.refuses_others and not any(word.startswith("@") for word in self.rest):
            flags = [flag for argument in self._used(self.command).values() for flag in argument.flags]
            others = [part.words[0] for part in self.parts if not (part.is_read or part.names)]
            for word in list(filter(looks_like_flag, others)) or others:  # the others may be values of these flags
                flag, _, _ = masked([word])[0].partition("=")
                hint = did_you_mean(flag, flags) or f"python {self.script.script.name} --help lists them"
                found.append(f"{flag}: no argument of {self.script.script.name}; {hint}")
        return found

    def _used(self, path: tuple[str, ...]) -> dict[str, Argument]:
        """Return the arguments of a sub-command and of those above it, by name."""
        return {a.name: a for a in self.script.arguments if a.command == path[: len(a.command)]}

    def _value(self, argument: Argument) -> Any:
        return self.values.get(argument.name, argument.default)

    def _in_command(self, path: tuple[str, ...]) -> list[Part]:
        """Return the parts with another sub-command in the place of the present one."""
        depth = 0
        while path[: depth + 1] == self.command[: depth + 1] and depth < len(path):
            depth += 1
        kept = [part for part in self.parts if len(part.command) <= depth]
        unknown = [part for part in self.parts[len(kept) :] if not part.is_read and not part.names]
        named = [Part((path[last],), path[: last + 1]) for last in range(depth, len(path))]
        return [*kept, *named, *(replace(part, command=path) for part in unknown)]

    def _with_words(self, parts: Sequence[Part], argument: Argument, words: Sequence[str]) -> list[Part]:
        """Return the parts with other words for an argument: in the place of its last ones, else where the parser reads
        them as its own, and all others as before."""
        name = argument.name
        others = [part for part in parts if name not in part.names]
        own = [index for index, part in enumerate(parts) if name in part.names]
        if not words:
            return others
        level = [each for each in self.script.arguments if each.command == argument.command]
        positional = {each.name for each in level if not each.flags}
        first = sum(len(part.command) < len(argument.command) for part in others) + bool(argument.command)
        end = sum(len(part.command) <= len(argument.command) for part in others)
        # Positional values come first, where no option takes them. Options come last, but before unknown pairs, and not
        # between positional values: argparse reads those that are adjacent together.
        places = [i for i in range(first, end) if i == first or not positional & {*others[i - 1].names}]
        places = [end, *reversed(places)] if argument.flags else [*range(first, end + 1)]
        if argument.action != "pair" and any(each.action == "pair" for each in level):
            places.sort()
        is_last = self.script.parser in _READS_CONFIGS and not name.endswith("config")  # a later file would win
        places = [own[-1] - len(own) + 1, *places] if own and not is_last else places
        new = Part(tuple(words), argument.command, (name,))
        found = [[*others[:place], new, *others[place:]] for place in places]
        if not argument.flags:  # one begins with a dash: all follow two dashes
            values = [part for part in found[0] if part.command == argument.command and positional & {*part.names}]
            options = [part for part in found[0] if part not in values and part.words != ("--",)]
            found.append([*options, Part(("--",), argument.command), *values])
        return next(filter(self._are_read, found), found[0])

    def _are_read(self, parts: Sequence[Part]) -> bool:
        """Whether the parser takes each word for what the parts say."""
        read = parse_words(self.script, [word for part in parts for word in part.words]).parts
        owners = ([(part.names, part.command) for part in each for _ in part.words] for each in (parts, read))
        return next(owners) == next(owners)


def parse_words(script: ScriptArguments, words: Sequence[str]) -> CommandLine:
    """Read the words of a command line."""
    reader = WordReader(script)
    reader.read(list(words))
    return CommandLine(script, tuple(reader.parts), reader.values, reader.command)
