"""Files of a project that a form offers: those of some kinds, from a walk that is bounded."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nbtools.data import tables
from nbtools.errors import DataError

_DEEPEST = 3
_MOST_ENTRIES = 2000
_SKIPPED = {"runs", "tests", "node_modules", "__pycache__", "site-packages", "build", "dist"}
_OWN = Path(__file__).parents[1]
_MAIN = re.compile(
    rb"__main__|argparse|ArgumentParser|import (?:click|typer|tyro|hydra|fire)\b|from (?:absl|jsonargparse|lightning)"
)
_WRITTEN_HERE = b"\n# Written by nbtools "
_LONGEST_START = 4096
_LONGEST_PROGRAM = 2**18


@dataclass(frozen=True)
class ProjectFiles:
    """Paths below a project's root, as a config names them."""

    names: tuple[str, ...]
    is_complete: bool
    """Whether all entries were examined: the walk ends after some thousand."""


def find_files(root: Path, is_wanted: Callable[[Path], bool]) -> ProjectFiles:
    """Find the files below `root` that are wanted, at most three folders deep, those near the root first.

    Hidden folders, environments, runs, tests, and links to folders are not entered.
    """
    entries = [*islice(_entries(root), _MOST_ENTRIES + 1)]
    names = tuple(path.relative_to(root).as_posix() for path in entries[:_MOST_ENTRIES] if is_wanted(path))
    return ProjectFiles(names, len(entries) <= _MOST_ENTRIES)


def _entries(root: Path) -> Iterator[Path]:
    """Yield files and folders, folder by folder."""
    level = [root]
    for _ in range(_DEEPEST + 1):
        below: list[Path] = []
        for folder in level:
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:  # no permission, or removed
                continue
            for entry in entries:
                path = Path(entry.path)
                if entry.name.startswith(".") or entry.name in _SKIPPED or path == _OWN:
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    yield path
                elif not (path / "pyvenv.cfg").exists():
                    yield path
                    below.append(path)
        level = below


def find_data(root: Path, *, has_text: bool) -> ProjectFiles:
    """Find tables below `root`; with `has_text` also text files, and folders of several."""

    def is_data(path: Path) -> bool:
        if "scripts" in path.relative_to(root).parts:
            return False
        if path.is_dir():
            return has_text and sum(1 for _ in path.glob("*.[tT][xX][tT]")) > 1
        suffix = tables.suffix_of(path)
        if not path.is_file() or (suffix not in tables.SUFFIXES and not (has_text and suffix == ".txt")):
            return False
        return suffix != ".json" or _is_table(path)

    return find_files(root, is_data)


def find_programs(root: Path) -> ProjectFiles:
    """Find Python files with a main part or a parser, except for tests and files written by nbtools."""

    def is_program(path: Path) -> bool:
        if path.suffix != ".py" or path.name.startswith(("test_", "conftest")) or not path.is_file():
            return False
        source = b""
        with contextlib.suppress(OSError), path.open("rb") as file:
            source = file.read(_LONGEST_PROGRAM)
        return _MAIN.search(source) is not None and _WRITTEN_HERE not in source

    return find_files(root, is_program)


def _is_table(path: Path) -> bool:
    """Whether a .json file starts as a list of objects, or with an object on its first line."""
    start = b""
    with contextlib.suppress(*tables.UNREADABLE, DataError), tables.open_bytes(path) as file:
        start = file.read(_LONGEST_START).lstrip(b"\xef\xbb\xbf \t\r\n")
    is_list = start.startswith(b"[") and start[1:].lstrip().startswith(b"{")
    first = start.partition(b"\n")[0].rstrip()
    return is_list or (first.startswith(b"{") and first.endswith(b"}"))
