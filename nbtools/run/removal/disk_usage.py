"""The disk space of the runs of a project, and which of them may be removed."""

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nbtools.run.records import Records
from nbtools.run.state import RunState, state_of
from nbtools.rundir.json_files import file_stamp
from nbtools.rundir.rundir import RunDir, foreign_owner, run_folders

_STARTING_S = 60.0
"""A younger run without a lock may be about to take it."""


@dataclass(frozen=True)
class Stored:
    """The disk space of one run, and whether it may be removed."""

    path: Path
    state: RunState | None
    """State of the run; None if it cannot be read."""
    since: float
    """Unix time of the run's end, else of its start."""
    num_bytes: int
    checkpoint_bytes: int
    """Size of its checkpoints, included in `num_bytes`."""
    obstacle: str
    """Why nothing of the run may be removed; empty for a run that has ended."""


def survey(runs: Path, only: Collection[Path] | None = None) -> list[Stored]:
    """Return every run in the folder `runs` with its size, newest first; with `only`, those among them."""
    return [_stored(path) for path in run_folders(runs.resolve()) if only is None or path in only]


def num_bytes_in(path: Path) -> int:
    """Return the sizes of all files below `path`; a link counts its own size, an unreadable file 0."""
    total, folders = 0, [str(path)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total


def _stored(path: Path) -> Stored:
    files = RunDir(path)
    first = file_stamp(files.launch) or file_stamp(files.lock)  # the launcher writes these first
    state, since, obstacle = None, first[0] / 1e9 if first else time.time(), ""
    if path.is_symlink() or files.lock.is_symlink():
        return Stored(path, None, since, 0, 0, "is a link, which is never followed: remove it by hand")
    try:
        if owner := foreign_owner(path):
            obstacle = belongs_to_other(owner)
        records = Records(files)
        _ = records.launch, records.config, records.process  # a FormatError for a run of a newer nbtools
        _ = records.finished, records.exit
        state = state_of(records)
        since = records.ended_at or records.started_at or since
        if not state.is_final:
            obstacle = f"is {state}"
        elif not obstacle and state is RunState.LOST and time.time() - since < _STARTING_S:
            obstacle = "was started less than a minute ago"
    except OSError as error:
        obstacle = str(error)
    of_checkpoints = num_bytes_in(files.checkpoints) if is_folder(files.checkpoints) else 0
    return Stored(path, state, since, num_bytes_in(path), of_checkpoints, obstacle)


def belongs_to_other(owner: str) -> str:
    """Return why a run of another user is kept."""
    return f"belongs to {owner}; only the owner may remove it"


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder and not a link to one."""
    return path.is_dir() and not path.is_symlink()
