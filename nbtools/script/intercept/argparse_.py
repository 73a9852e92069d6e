"""Parsers of argparse, and of the libraries that build on it."""

from __future__ import annotations

import argparse
import ast
import enum
import inspect
import os
import re
import sys
import threading
import typing
from collections.abc import Iterator
from typing import Any, cast

from . import answer
from .answer import Described

RECORDED: list[argparse.ArgumentParser] = []
"""Parsers that have read a part of the command line, while the program continues to another one."""
VISITED: set[Any] = set()
PARSES = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")
OWN_SOURCES = ("argparse.py", "hf_argparser.py", "_cli.py", "tyro", "jsonargparse", "simple_parsing", "tap", "hydra")
WAIT_FOR_NEXT_S = 5
PARSE_KNOWN_ARGS = cast(Any, argparse.ArgumentParser.parse_known_args)


class Words(typing.List[str]):
    """Words of the command line, of which parts remain words of the command line."""

    def __getitem__(self, index: Any) -> Any:
        """Return a word, or several."""
        found = list.__getitem__(self, index)
        return Words(found) if isinstance(index, slice) else found


def hook() -> None:
    """Let parsers end the program where they read the command line."""
    add_argument = argparse._ActionsContainer.add_argument

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        action = add_argument(self, *args, **kwargs)
        try:
            action._declared_at = caller()  # type: ignore[attr-defined]
        except AttributeError:
            pass
        return action

    def reached(self: Any, args: Any = None, namespace: Any = None, **kwargs: Any) -> Any:
        frame, names = sys._getframe(1), []
        if frame.f_back is not None and frame.f_back.f_code.co_filename.endswith(os.path.join("hydra", "main.py")):
            return PARSE_KNOWN_ARGS(self, [], namespace)  # its config follows
        if args is not None and len(args) > 0 and list(args) != list(sys.argv[1:]):
            return PARSE_KNOWN_ARGS(self, args, namespace, **kwargs)
        while frame.f_back is not None and not answer.in_program(frame.f_code.co_filename):
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        if self not in RECORDED:
            RECORDED.append(self)
        is_guess = args is not None and not isinstance(args, Words)  # parse_args([]), to get the defaults
        is_whole = any(name in names for name in PARSES if name != "parse_known_args")
        if (is_whole and not is_guess) or is_last(frame):
            finish_recorded(is_whole)
        timer = threading.Timer(WAIT_FOR_NEXT_S, finish_recorded)
        timer.daemon = True
        timer.start()
        return values_without_words(self, namespace), Words()

    argparse._ActionsContainer.add_argument = noting  # type: ignore[method-assign]
    argparse.ArgumentParser.parse_known_args = reached  # type: ignore[method-assign]


def values_without_words(parser: argparse.ArgumentParser, namespace: Any) -> Any:
    """Return what a parser makes of no words, with None for required arguments."""
    holders: list[Any] = [*parser._actions, *parser._mutually_exclusive_groups]
    required = [holder.required for holder in holders]
    for holder in holders:
        holder.required = False
    try:
        return PARSE_KNOWN_ARGS(parser, [], namespace)[0]
    finally:
        for holder, value in zip(holders, required):
            holder.required = value


def finish_recorded(is_whole: bool = False) -> None:
    """Write the arguments of all parsers that were recorded, and end the process; return if there are none."""
    if not RECORDED:
        return
    for parser in RECORDED:
        describe_parser(parser, ())
    arguments = answer.ARGUMENTS
    if arguments and arguments[-1]["nargs"] == "..." and not arguments[-1]["flags"]:
        arguments[-1:] = pairs() or arguments[-1:]
    is_hf = any("HfArgumentParser" in class_names(parser) for parser in RECORDED)
    library, refuses = "HfArgumentParser" if is_hf else "argparse", is_whole and len(RECORDED) == 1
    answer.finish(library, refuses)


def pairs() -> list[Described]:
    """Return the keys of the only tree of settings in the program's modules: `KEY value` changes one, as in yacs."""
    own = [m for m in list(sys.modules.values()) if answer.is_own_file(getattr(m, "__file__", None) or "")]
    values = [value for module in own for value in vars(module).values() if type(value) is not dict]
    trees = {id(v): v for v in values if isinstance(v, dict) and any(type(inner) is type(v) for inner in v.values())}

    def walk(tree: Any, prefix: str) -> Iterator[Described]:
        for key, value in tree.items():
            name = "%s%s" % (prefix, key)
            if isinstance(value, type(tree)) and value:
                yield from walk(value, name + ".")
                continue
            yield dict(answer.value_entries(value), name=name, flags=[name], action="pair")

    return [pair for tree in trees.values() for pair in walk(tree, "")] if len(trees) == 1 else []


def is_last(frame: Any) -> bool:
    """Whether the program has no further call that parses after the one in a frame."""
    sites = [site for path in {answer.SETTINGS["script"], frame.f_code.co_filename} for site in call_sites(path)]
    VISITED.update(s for s in sites if s[0] == frame.f_code.co_filename and s[1] <= frame.f_lineno <= s[2])
    return all(site in VISITED for site in sites)


def call_sites(path: str) -> list[tuple[str, int, int]]:
    """Return the lines of a file's calls that parse, first and last each."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        (path, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARSES
    ]


def caller() -> str:
    """Return where an argument is declared; empty if a library declares it for a dataclass or a function."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in (argparse.__file__, __file__):
        frame = frame.f_back
    if frame is None or any(part in OWN_SOURCES for part in frame.f_code.co_filename.split(os.sep)):
        return ""
    return "%s:%d" % (answer.shown_path(frame.f_code.co_filename), frame.f_lineno)


# --- descriptions ---------------------------------------------------------------------------------


def class_names(value: Any) -> list[str]:
    """Return the names of an object's classes: libraries keep copies of argparse."""
    return [cls.__name__ for cls in type(value).__mro__]


def is_argument(action: Any) -> bool:
    """Whether an action is more than a request for help."""
    return "--help" not in action.option_strings and not {"_HelpAction", "_VersionAction"} & set(class_names(action))


def describe_parser(parser: Any, command: tuple[str, ...], describe: Any = None) -> None:
    """Add what one parser declares to the answer.

    `describe` takes the place of `describe_action`; it may name a group, and nothing is no argument.
    """
    titles = {id(action): group.title for group in parser._action_groups[2:] for action in group._group_actions}
    for action in parser._actions:
        if "_SubParsersAction" in class_names(action):
            answer.NEEDS_COMMAND.extend([list(command)] if action.required else [])
            first: dict[int, str] = {}
            for name, inner in action.choices.items():
                if first.setdefault(id(inner), name) != name:
                    answer.ALIASES.append([(*command, name), first[id(inner)]])
                else:
                    answer.COMMANDS.append([*command, name])
                    describe_parser(inner, (*command, name), describe)
        elif is_argument(action):
            found = (describe or describe_action)(action, parser)
            group = {"group": titles.get(id(action)) or "", "command": list(command)}
            answer.ARGUMENTS.extend([dict(group, **found)] if found else [])


def describe_action(action: Any, parser: Any) -> Described:
    """Return one argument."""
    names = class_names(action)
    nargs = {argparse.REMAINDER: "...", argparse.PARSER: "*"}.get(action.nargs, action.nargs)
    default = answer.as_plain(action.default)
    kind, truth = converter(action.type, default)
    if isinstance(default, str) and default != argparse.SUPPRESS and action.type is not None:
        value = tried(lambda word: answer.as_plain(parser._get_value(action, word)), default)
        is_text = isinstance(value, (list, dict)) or (kind == "str" and not isinstance(value, str))
        default = default if value is None or is_text else value
    # One word stands for all values, in a way that only the function knows.
    is_split = isinstance(default, list) and inspect.isroutine(action.type) and action.nargs is None
    choices = answer.choices_of(action.choices) if action.choices is not None else None
    if choices is None and inspect.isclass(action.type) and issubclass(action.type, enum.Enum):
        choices = answer.choices_of(action.type)
    what, const = "store", answer.as_plain(action.const)
    has_both = "BooleanOptionalAction" in names  # --x and --no-x
    if has_both or {"_StoreTrueAction", "_StoreFalseAction"}.intersection(names):
        what, kind, const = "switch", "bool", has_both or const
    elif "_StoreConstAction" in names:
        what, choices = "switch", [answer.as_plain(action.default), const]
    elif "_CountAction" in names:
        what, kind = "count", "int"
    elif "_AppendAction" in names:
        what, nargs = "append", None if "_ExtendAction" in names else nargs
    elif nargs == 0:
        what, kind, const = "switch", "bool", True
    if what == "switch" and kind == "bool" and not has_both and default in (None, argparse.SUPPRESS):
        default = not const  # what a program reads where the flag is not given
    flags = list(action.option_strings)
    negative = [flag for flag in flags if has_both and re.match(r"--(.+\.)?no-", flag)]
    help_text = action.help if action.help and action.help != argparse.SUPPRESS else ""
    try:
        help_text = help_text % dict(vars(action), prog=parser.prog)
    except Exception:  # `50% of x`, or a default whose own text fails: shown as it is written
        pass
    text: Described = {"default": None, "default_text": repr(default)}
    entries = text if is_split and "_AppendAction" not in names else answer.default_of(default)
    positive = [flag for flag in flags if flag not in negative]
    entries.update(name=action.dest, flags=positive, negative_flags=negative, action=what, types=[kind], truth=truth)
    nargs = nargs if what in ("store", "append") else None
    entries.update(nargs=nargs, choices=choices, help=answer.on_one_line(help_text))
    entries.update(const=const if answer.fits_json(const) else None, source=getattr(action, "_declared_at", ""))
    is_required = bool(action.required) and not (not flags and nargs in ("?", "*", "..."))
    return dict(entries, is_required=is_required)


def tried(function: Any, word: str) -> Any:
    """Return what a function makes of a word; None if it fails."""
    try:
        return function(word)
    except BaseException:  # a function of the program's
        return None


def converter(kind: Any, example: Any) -> tuple[str, list[str]]:
    """Return the name of the type that a converter makes, and the texts of True and False."""
    usual = ["True", "False"]
    if isinstance(example, (list, tuple)) and example:
        example = example[0]
    known = answer.NAMED.get(type(example), "str")
    if kind in answer.NAMED:
        return answer.NAMED[kind], ["True", ""] if kind is bool else usual
    if inspect.isclass(kind):
        return ("str" if issubclass(kind, (os.PathLike, enum.Enum)) else known), usual
    if isinstance(kind, argparse.FileType) or not callable(kind):
        return "str", usual
    made = tried(kind, "1")
    for pair in (usual, ["true", "false"], ["1", "0"], ["yes", "no"], ["y", "n"]):
        if tried(kind, pair[0]) is True and tried(kind, pair[1]) is False:
            return (known if type(made) is int else "bool"), pair  # int: it reads any literal, as json.loads
    if type(made) in (int, float):
        return answer.NAMED[type(made)], usual
    return known if made is None else "str", usual
