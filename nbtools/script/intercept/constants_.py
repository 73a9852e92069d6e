"""Module constants that a program lets another file override from its command line, as nanoGPT's configurator does."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator
from typing import Any

from . import answer
from .answer import Described

ASSIGNS = r"( *)(?:\w+, *)*%s(?:, *\w+)* *(?::[^=]*)?=(?!=) *([^#]*\S)(?:.*# (.*))?"
"""A line that assigns to a name: its indent, the expression and its comment."""


def watch_exec(event: str, arguments: tuple[Any, ...]) -> None:
    """End the program where it executes a file that reads the command line into its globals; an audit hook."""
    if event == "exec" and {"argv", "globals"}.issubset(getattr(arguments[0], "co_names", ())):
        frame = sys._getframe(1)
        if answer.in_program(frame.f_code.co_filename):
            answer.ARGUMENTS.extend(constants_of(frame))
            answer.finish("constants")


def constants_of(frame: Any) -> Iterator[Described]:
    """Yield the file of assignments that may come first, and the constants that were assigned so far."""
    path, end = frame.f_code.co_filename, frame.f_lineno
    lines = linecache.getlines(path)[: end - 1]
    yield dict(name="config_file", action="store", types=["str"], nargs="?", help="A file of such assignments")
    for name, value in frame.f_globals.items():
        kind = answer.NAMED.get(type(value))
        matches = [(number, re.match(ASSIGNS % re.escape(name), line)) for number, line in enumerate(lines, 1)]
        places = [(number, match) for number, match in matches if match]
        if kind is None or name.startswith("_") or not places:
            continue
        default = answer.default_of(value)
        line, first = places[0]
        if first.group(1) or len(places) > 1:  # a branch decides, which may be another one where the program runs
            default = {"default_text": " or ".join(match.group(2) for _, match in places)}
        place = {"help": first.group(3) or "", "source": "%s:%d" % (answer.shown_path(path), line)}
        yield dict(default, action="store", name=name, flags=["--" + name], types=[kind], **place)
