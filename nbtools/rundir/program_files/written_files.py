"""Files that a user's program wrote, and their times: found by the times of the run and of concurrent runs.

Searched are the run directory, the folders that the program's arguments and their defaults name (`--output_dir out`),
and its working directory. Only regular files of the run's owner that changed while the run ran count; links are not
followed. A folder that another run wrote to at the same time is left out: the files do not tell whose they are.
"""

import bisect
import contextlib
import json
import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from nbtools.project import expanded
from nbtools.rundir.json_files import finite, read_json
from nbtools.rundir.rundir import RunDir, launch_of
from nbtools.rundir.tail import open_regular

_MAX_IN_FOLDER: Final = 2_000
_MAX_ENTRIES: Final = 10_000
"""Entries examined below a root; `_MAX_IN_FOLDER` of one folder, so that a folder of images hides no other."""
_FIRST: Final = re.compile(r"checkpoint|ckpt|weights|snapshot|model|logs", re.IGNORECASE)
"""Folders that are searched first."""
_MAX_DEPTH: Final = 4
_SLACK_S: Final = 60.0
"""Time after the end of a run in which a file of it may still be written: a disk's clock, an upload."""
_SKIPPED: Final = re.compile(r"\.|(?:site-packages|node_modules|__pycache__)$|\d{4}-\d\d-\d\d_\d{6}_")
"""Folders without files of this run; the last are other runs'."""
_MAX_NEIGHBOURS: Final = 50
"""Runs launched before this one, and as many after it, that may have run at the same time."""
_SILENT_S: Final = 600.0
"""After this time without a line in its log, a run whose end nothing records counts as ended."""


@dataclass(frozen=True)
class Places:
    """The folders that a program wrote to, and the time in which it did."""

    named: tuple[Path, ...]
    """Folders that the program's arguments name."""
    working: tuple[Path, ...]
    """Working directory of the program; empty if unknown."""
    left_out: dict[Path, str]
    """Folder -> name of the other run that wrote to it at the same time."""
    since: float
    until: float
    uid: int

    def has(self, status: os.stat_result) -> bool:
        """Whether a regular file with this status is the program's."""
        is_in_time = self.since <= status.st_mtime <= self.until
        return stat.S_ISREG(status.st_mode) and status.st_uid == self.uid and is_in_time


def places_of(run_dir: Path, cwd: str | None, args: Sequence[str], started: float, ended: float | None) -> Places:
    """Return where and when a program wrote files; OSError if the run directory, or its folder, cannot be read.

    Args:
        run_dir: its run directory; the files of its owner count.
        cwd: its working directory.
        args: its arguments.
        started: Unix time of the launch.
        ended: Unix time of the end; None while it runs.
    """
    first, last = _first_line_at(RunDir(run_dir), started), float("inf") if ended is None else ended
    working = (Path(cwd),) if cwd and cwd[0] == "/" else ()
    named = tuple(_existing_folders(cwd, args, launch_of(run_dir)))
    others = [*_neighbours(run_dir)] if named or working else []
    left_out: dict[Path, str] = {}
    for other in (path for path, begin, end in others if begin <= last and end >= first):
        theirs = folders_of(other)
        shared = [root for root in named if any(_are_nested(root, folder) for folder in theirs[:-1])]
        shared += [root for root in working if any(_are_nested(root, folder) for folder in theirs[-1:])]
        left_out |= dict.fromkeys(shared, other.name)
    since = max([first - 2, *(end for _, _, end in others if end < first)])
    until = min([last + _SLACK_S, *(begin for _, begin, _ in others if begin > last)])
    return Places(named, working, left_out, since, until, run_dir.stat().st_uid)


def folders_of(run_dir: Path) -> list[Path]:
    """Return the folders to which a program may write: those that its arguments name, then its working directory."""
    launch = launch_of(run_dir)
    cwd, args = launch.get("cwd"), launch.get("args")
    if not isinstance(cwd, str) or cwd[:1] != "/":
        return []
    return [*_existing_folders(cwd, args if isinstance(args, list) else [], launch), Path(cwd)]


def walk(root: Path, cut: list[Path] | None = None) -> Iterator[tuple[Path, list[str], list[os.DirEntry[str]]]]:
    """Yield each folder, the names of its sub-folders, and its other entries, up to the limits on entries.

    The nearest folders come first. A sub-folder that the caller removes from the list is not searched.

    Args:
        cut: receives the folders that were not read to their end.
    """
    left, folders = _MAX_ENTRIES, deque([(root, 0)])
    while folders and left > 0:
        folder, depth = folders.popleft()
        limit = min(_MAX_IN_FOLDER, left)
        inner: list[str] = []
        others: list[os.DirEntry[str]] = []
        with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number == limit:
                    if cut is not None:
                        cut.append(folder)
                    break
                left -= 1
                with contextlib.suppress(OSError):  # some file systems look it up
                    if not entry.is_dir(follow_symlinks=False):
                        others.append(entry)
                    elif depth < _MAX_DEPTH and not _SKIPPED.match(entry.name):
                        inner.append(entry.name)
        inner.sort(key=lambda name: _FIRST.search(name) is None)
        yield folder, inner, others
        folders += [(folder / name, depth + 1) for name in inner]
    if cut is not None:
        cut.extend(folder for folder, _ in folders)


def _neighbours(run_dir: Path) -> Iterator[tuple[Path, float, float]]:
    """Yield the runs beside a run directory launched shortly before and after it, with the times of start and end."""
    names = sorted(os.listdir(run_dir.parent))  # noqa: PTH208 - thousands of names
    at = bisect.bisect(names, run_dir.name)
    for name in names[max(0, at - 1 - _MAX_NEIGHBOURS) : at + _MAX_NEIGHBOURS]:
        files = RunDir(run_dir.parent / name)
        launched = finite(launch_of(files.path).get("time"))
        if name == run_dir.name or launched is None:
            continue
        with contextlib.suppress(OSError):
            ended = finite((read_json(files.exit) or {}).get("time"))
            last = files.log.stat().st_mtime + _SILENT_S if ended is None else ended
            yield files.path, _first_line_at(files, launched), last


def _first_line_at(files: RunDir, launched: float) -> float:
    """Return the time of a run's first line, before which it has waited in a queue; `launched` without one."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open_regular(files.log_times) as file:
        return max(launched, float(json.loads(file.readline(200))[1]))
    return launched


def _are_nested(folder: Path, other: Path) -> bool:
    return folder.is_relative_to(other) or other.is_relative_to(folder)


def names_folder(name: str) -> bool:
    """Whether an argument of this name may be that of a folder."""
    return any(part in name.lower() for part in ("dir", "out", "log", "save", "path", "project"))


def split_pattern(cwd: str | None, pattern: str) -> tuple[Path, str]:
    """Return the folder in which the files of a pattern lie, and the rest, from the first part with a wildcard on."""
    path = Path(os.path.normpath(Path(cwd or "/") / expanded(pattern)))
    num_plain = next((i for i, part in enumerate(path.parts) if re.search(r"[*?[]", part)), len(path.parts) - 1)
    return Path(*path.parts[:num_plain]), "/".join(path.parts[num_plain:])


def named_folders(cwd: str | None, args: Sequence[str], launch: Mapping[str, Any]) -> dict[str, Path]:
    """Return the folders that arguments name, existing or not: `--output_dir out`, `--log-dir=logs`, `trainer.dir=x`.

    Of a repeated argument the last one counts. The defaults in a launch.json count where `args` leave them out, if they
    are not around the working directory, as does the folder of its pattern of checkpoints.
    """
    recorded, program, found = launch.get("default_folders"), launch.get("program"), dict[str, Path]()
    if isinstance(program, dict) and isinstance(pattern := program.get("checkpoints"), str):
        folder, _ = split_pattern(cwd, pattern)
        found |= {} if Path(cwd or "/").is_relative_to(folder) else {"the pattern of its checkpoints": folder}
    for given, is_default in ((recorded if isinstance(recorded, list) else [], True), (args, False)):
        words = [word for arg in given if isinstance(arg, str) for word in arg.split("=", 1)]
        for name, value in pairwise(words):
            if names_folder(name) and value[:1] != "-":
                folder = Path(os.path.normpath(Path(cwd or "/") / expanded(value)))
                if not is_default or not Path(cwd or "/").is_relative_to(folder):
                    found[name] = folder
    return found


def _existing_folders(cwd: str | None, args: Sequence[str], launch: Mapping[str, Any]) -> Iterator[Path]:
    for folder in named_folders(cwd, args, launch).values():
        with contextlib.suppress(OSError, ValueError):
            if folder.is_dir() and len(folder.parts) > 2:
                yield folder
