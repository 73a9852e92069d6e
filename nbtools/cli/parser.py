"""The grammar of the command line: `commands.toml` has the commands and their arguments."""

import argparse
import contextlib
import shlex
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from types import MappingProxyType
from typing import Any, NoReturn

from nbtools import __version__
from nbtools.errors import did_you_mean
from nbtools.rundir.tail import printable

WRONG_CALL = 2
"""Exit code of an invalid call."""
TAKE_ARGUMENTS = ("launch", "resume", "new")
"""Commands that take the arguments of a script or program after `--`."""
FORMER_NAMES = {"preflight": ["launch", "--dry-run"], "presets": ["recipes", "--presets"]}
"""Words for the former names of commands, which are not listed."""
wrapped = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)  # so that paths can be copied


def complain(message: str, code: int = WRONG_CALL) -> int:
    """Print a message to stderr, without control characters, and return the exit code."""
    for line in message.splitlines():
        text = f"nbtools: {printable(line)}"
        if sys.stderr.isatty():
            text = "\n".join(wrapped(text, get_terminal_size().columns, subsequent_indent="  "))
        print(text, file=sys.stderr)
    return code


def shortest(path: Path) -> Path:
    """Return a path relative to the working directory, if it lies there."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


class _Parser(argparse.ArgumentParser):
    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Add an argument; a flag may also be written with `_` for `-`."""
        spellings = (spelling for name in names for spelling in (name, name[:2] + name[2:].replace("-", "_")))
        return super().add_argument(*dict.fromkeys(spellings), **options)

    def error(self, message: str) -> NoReturn:
        message = " ".join(message[:400].splitlines()) + ("…" if len(message) > 400 else "")
        raise SystemExit(complain(f"{message}{'' if message.endswith('?') else ';'} see {self.prog} --help"))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            advice = did_you_mean(str(value), action.choices) or f"choose from {', '.join(map(str, action.choices))}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {advice}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an unknown option is an error of its command, which suggests similar options."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = (did_you_mean(word.partition("=")[0], self._option_string_actions) for word in unknown)
            of_script = "a script's own arguments go after --" if self.get_default("verb") in TAKE_ARGUMENTS else ""
            said = f"unrecognized arguments: {' '.join(unknown)}", of_script, next(filter(None, near), "")
            self.error("; ".join(filter(None, said)))
        return found, unknown

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.nargs is None and arg_strings == ["--"]:  # Python 3.11 would drop it
            self.error(f"argument {'/'.join(action.option_strings) or action.metavar}: '--' is not a value")
        return super()._get_values(action, arg_strings)


def parser(
    description: str,
    prediction_fields: Mapping[str, str] = MappingProxyType({}),
    launch_flags: Mapping[str, Mapping[str, dict[str, Any]]] = MappingProxyType({}),
) -> argparse.ArgumentParser:
    """Return the whole grammar; the attribute `verb` of its result is the name of the command.

    Args:
        prediction_fields: settings of `predict`, and what each means; empty for another command.
        launch_flags: flags of launch settings by the commands that take them; empty for another command.
    """
    parser = _Parser(prog="nbtools", description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"nbtools {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")

    grammar = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
    shared = {kind: _Parser(add_help=False) for kind in grammar["shared"]}
    for kind, flags in launch_flags.items():
        for flag, options in flags.items():
            shared[kind].add_argument(flag, **options)
    for kind, arguments in grammar["shared"].items():
        _add_all(shared[kind], arguments)
    for verb, command in grammar["commands"].items():
        parents = [shared[kind] for kind in command.get("shared", ())]
        added = commands.add_parser(verb, description=command["help"], help=command["help"], parents=parents)
        added.set_defaults(verb=verb)
        _add_all(added, command["arguments"])
    group = commands.choices["predict"].add_argument_group("settings of the recipes")
    for name, text in prediction_fields.items():
        spellings = dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}"))
        group.add_argument(*spellings, dest=f"setting:{name}", metavar="VALUE", help=text.replace("%", "%%"))
    return parser


def _add_all(parser: argparse.ArgumentParser, arguments: Mapping[str, Mapping[str, Any]]) -> None:
    """Add arguments as `commands.toml` has them."""
    for names, options in arguments.items():
        reader = {"type": _READERS[options["type"]]} if "type" in options else {}
        parser.add_argument(*names.split(), **{**options, **reader})


def _gpus(text: str) -> tuple[int, ...]:
    if text.strip().lower() in ("none", ""):
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: give indices such as 0,1, or none") from None


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < 1e9:
            return seconds
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number of seconds")


def _age(text: str) -> float:
    units_s = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
    if text[-1:] in units_s and text[:-1].isascii() and text[:-1].isdigit() and len(text) < 10:
        return float(text[:-1]) * units_s[text[-1]]
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number and a unit, such as 30d, 12h or 2w")


def _at_least_one(text: str) -> int:
    if text.isdecimal() and (number := int(text[:9])) >= 1:
        return number
    raise argparse.ArgumentTypeError(f"{text[:80]!r}: give a number of at least 1")


_READERS: Mapping[str, Callable[[str], Any]] = {
    "age": _age,
    "count": _at_least_one,
    "gpus": _gpus,
    "seconds": _seconds,
    "upper": str.upper,
    "words": shlex.split,
}
"""The readers of arguments by their names in `commands.toml`."""
