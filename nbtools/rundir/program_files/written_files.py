"""Files that a user's program wrote, and their times: found by the times of the run and of concurrent runs.

Searched are the run directory, the folders that the program's arguments and their defaults name (`--output_dir out`),
and its working directory. Only regular files of the run's owner that changed while the run ran count; links are not
followed. A folder that another run wrote to at the same time is left out: the files do not tell whose they are.
"""

import bisect
import contextlib
import errno
import json
import math
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
from nbtools.rundir.json_files import content_of, finite
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


def places_of(run_dir: Path, ended: float | None) -> Places:
    """Return where and when the program of a run wrote files, as its launch.json says.

    Args:
        run_dir: The run directory; the files of its owner count.
        ended: Unix time of the end; None while it runs.

    Raises:
        OSError: There is no launch.json, or the run directory or its folder cannot be read.
    """
    launch, left_out = launch_of(run_dir), dict[Path, str]()
    begin, last = _first_line_at(RunDir(run_dir), launch), math.inf if ended is None else ended
    if begin is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(run_dir / "launch.json"))
    folders, since, until = folders_of(launch), begin - 2, last + _SLACK_S
    for other, theirs_begin, theirs_end in _neighbours(run_dir) if any(folders) else ():
        if theirs_end < begin:
            since = max(since, theirs_end)
        elif theirs_begin > last:
            until = min(until, theirs_begin)
        else:
            for own, theirs in zip(folders, folders_of(launch_of(other)), strict=True):
                shared = (one for one in own if any(one.is_relative_to(f) or f.is_relative_to(one) for f in theirs))
                left_out |= dict.fromkeys(shared, other.name)
    return Places(*folders, left_out, since, until, run_dir.stat().st_uid)


def folders_of(launch: Mapping[str, Any]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the folders that the arguments in a launch.json name, and its working directory; empty if unknown."""
    cwd, found = launch.get("cwd"), list[Path]()
    if not isinstance(cwd, str) or cwd[:1] != "/":
        return (), ()
    for folder in named_folders(launch).values():
        with contextlib.suppress(OSError, ValueError):
            found += [folder] if folder.is_dir() and len(folder.parts) > 2 else []
    return tuple(found), (Path(cwd),)


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
        if name != run_dir.name and (begin := _first_line_at(files, launch_of(files.path))) is not None:
            with contextlib.suppress(OSError):
                ended = finite(content_of(files.exit).get("time"))
                yield files.path, begin, files.log.stat().st_mtime + _SILENT_S if ended is None else ended


def _first_line_at(files: RunDir, launch: Mapping[str, Any]) -> float | None:
    """Return the time of a run's first line, before which it has waited in a queue, else that of its launch."""
    launched = finite(launch.get("time"))
    if launched is not None:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open_regular(files.log_times) as file:
            return max(launched, float(json.loads(file.readline(200))[1]))
    return launched


def names_folder(name: str) -> bool:
    """Whether an argument of this name may be that of a folder."""
    return any(part in name.lower() for part in ("dir", "out", "log", "save", "path", "project"))


def split_pattern(cwd: str, pattern: str) -> tuple[Path, str]:
    """Return the folder in which the files of a pattern lie, and the rest, from the first part with a wildcard on."""
    path = _absolute(cwd, pattern)
    num_plain = next((i for i, part in enumerate(path.parts) if re.search(r"[*?[]", part)), len(path.parts) - 1)
    return Path(*path.parts[:num_plain]), "/".join(path.parts[num_plain:])


def named_folders(launch: Mapping[str, Any], more: Sequence[str] = ()) -> dict[str, Path]:
    """Return the folders that arguments name, existing or not: `--output_dir out`, `--log-dir=logs`, `trainer.dir=x`.

    Of a repeated argument the last one counts. The defaults in a launch.json count where its arguments and `more` leave
    them out, if they are not around the working directory, as does the folder of its pattern of checkpoints.
    """
    cwd, program, found = str(launch.get("cwd") or "/"), launch.get("program"), dict[str, Path]()
    recorded = [words if isinstance(words := launch.get(key), list) else [] for key in ("default_folders", "args")]
    if isinstance(program, dict) and isinstance(pattern := program.get("checkpoints"), str):
        folder, _ = split_pattern(cwd, pattern)
        found |= {} if Path(cwd).is_relative_to(folder) else {"the pattern of its checkpoints": folder}
    for given, is_default in ((recorded[0], True), ([*recorded[1], *more], False)):
        words = [word for arg in given if isinstance(arg, str) for word in arg.split("=", 1)]
        for name, value in pairwise(words):
            if names_folder(name) and value[:1] != "-":
                folder = _absolute(cwd, value)
                if not is_default or not Path(cwd).is_relative_to(folder):
                    found[name] = folder
    return found


def _absolute(cwd: str, path: str) -> Path:
    return Path(os.path.normpath(Path(cwd) / expanded(path)))
