"""The metrics of a script that does not write metrics.jsonl: files that it writes, found by name and time, and its log.

Looked through are the run directory, where `TENSORBOARD_LOGGING_DIR` and `WANDB_DIR` point unless the user set them,
the folders that its arguments name (`--output_dir out`) and its working directory: `events.out.tfevents.*`,
`run-*.wandb`, `trainer_state.json`, `*.csv` and `*.jsonl` that changed while the run ran. Only regular files of the
run's owner count; links are not followed. A folder that another run wrote to at the same time is left out: the files do
not tell whose they are.
"""

import bisect
import contextlib
import json
import os
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from nbtools.errors import FormatError
from nbtools.metrics.history import History
from nbtools.metrics.readers.points import Reader, extend
from nbtools.metrics.readers.printed import EXAMPLE, LogMetrics
from nbtools.metrics.readers.tabular import TableFile, TrainerState
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.metrics.readers.wandb_offline import WandbFile
from nbtools.rundir.json_files import finite, read_json
from nbtools.rundir.rundir import RunDir, launch_of
from nbtools.rundir.tail import open_regular

_MAX_ENTRIES: Final = 2_000
_MAX_DEPTH: Final = 4
_MAX_FILES: Final = 50
_MAX_LISTED: Final = 8
_STATE: Final = "trainer_state.json"
_LOOK_EVERY_S: Final = 5.0
_SLACK_S: Final = 60.0
"""Time after the end of a run in which a file of it may still be written: a disk's clock, an upload."""
_SKIPPED: Final = re.compile(r"\.|(?:site-packages|node_modules|__pycache__)$|\d{4}-\d\d-\d\d_\d{6}_")
"""Folders without metrics of this run; the last are other runs'."""
_MAX_NEIGHBOURS: Final = 50
"""Runs launched before this one, and as many after it, that may have run at the same time."""
_SILENT_S: Final = 600.0
"""After this time without a line in its log, a run whose end nothing records counts as ended."""


class FoundMetrics:
    """Follows the log and the files of one script. Not thread-safe.

    Args:
        run_dir: The run directory; its owner's files count.
        printed: The metrics in the log.
    """

    def __init__(self, run_dir: Path, printed: LogMetrics) -> None:
        self._run_dir, self._printed = run_dir, printed
        self._sources: dict[Path, tuple[Reader, History]] = {}
        self._looked = float("-inf")
        self._has_ended = False
        self._merged, self._versions = History(), [-1]
        self._owners: dict[str, str] = {}
        self._left_out: dict[Path, str] = {}
        self._written: list[str] = []

    def history(self, cwd: str | None, args: Sequence[str], started: float | None, ended: float | None) -> History:
        """Return all metrics; each comes from the source with the most points of it.

        Args:
            cwd: Working directory of the script.
            args: Its arguments.
            started: Unix time of the launch; None if unknown, then no file is looked for.
            ended: Unix time of the end; None while it runs.
        """
        self._look(cwd, args, started, ended)
        for reader, history in self._sources.values():
            with contextlib.suppress(OSError):
                extend(history, reader.poll())
        printed = self._printed.history
        every = {str(path): history for path, (_, history) in self._sources.items() if len(history)}
        if not every:
            self._owners = dict.fromkeys(printed, "")
            return printed
        versions = [printed.version, *(history.version for history in every.values()), len(every)]
        if versions != self._versions:
            self._versions = versions
            self._merge({**every, **({"": printed} if printed.has_steps else {})}, sum(versions))
        return self._merged

    def notes(self) -> list[str]:
        """Return from which file each curve comes, and what was seen but not understood, a line each."""
        named: dict[str, list[str]] = {}
        for name, source in self._owners.items():
            named.setdefault(source, []).append(name)
        lines = [f"{source or 'printed lines'}: {', '.join(names)}" for source, names in named.items()]
        lines += [f"{path}: not read: {reader.note}" for path, (reader, _) in self._sources.items() if reader.note]
        lines += [
            f"{folder}: not read: run {other} ran there at the same time; give each run a folder of its own"
            for folder, other in self._left_out.items()
        ]
        if not self._owners and self._has_ended:
            lines.append(
                f"no metrics were found; a printed line such as `{EXAMPLE}` is read, or JSONL with a key `step`"
            )
            lines += [f"files that it wrote: {_listed(self._written)}"] if self._written else []
        elif not self._owners:
            lines.append(f"no metrics yet; a printed line such as `{EXAMPLE}` is read, or JSONL with a key `step`")
        elif not self._printed.history.has_steps and "" in named:
            lines.append(f"no counter is printed, so curves are drawn by time; `{EXAMPLE}` has one")
        return lines

    def _merge(self, every: dict[str, History], version: int) -> None:
        merged = History()
        self._owners = {}
        for name in dict.fromkeys(name for history in every.values() for name in history):
            owner = max((source for source in every if name in every[source]), key=lambda s: len(every[s][name]))
            series = every[owner][name]
            merged.add(name, series.steps, series.values, series.times)
            self._owners[name] = owner
        merged.version = max(version, self._merged.version + 1)
        self._merged = merged

    # --- discovery ---

    def _look(self, cwd: str | None, args: Sequence[str], started: float | None, ended: float | None) -> None:
        now = time.monotonic()
        if started is None or self._has_ended or now - self._looked < _LOOK_EVERY_S:
            return
        self._looked, self._has_ended = now, ended is not None
        first, last = _first_line_at(RunDir(self._run_dir), started), float("inf") if ended is None else ended
        with contextlib.suppress(OSError):
            named, working = [*_named_folders(cwd, args)], [Path(cwd)] if cwd else []
            others = [*_neighbours(self._run_dir)] if named or working else []
            self._leave_out(named, working, [path for path, begin, end in others if begin <= last and end >= first])
            since = max([first - 2, *(end for _, _, end in others if end < first)])
            until = min([last + _SLACK_S, *(begin for _, begin, _ in others if begin > last)])
            uid = self._run_dir.stat().st_uid
            found, left_out = (_Files(uid, since, until, notes_others=ended is not None) for _ in range(2))
            for root in (self._run_dir / "tensorboard", self._run_dir / "wandb", *named, *working):
                (left_out if root in self._left_out else found).walk(root)
            self._left_out = {root: self._left_out[root] for root, _ in left_out.files.values()}
            self._take(found.files)
            self._written = found.others

    def _leave_out(self, named: Sequence[Path], working: Sequence[Path], others: Sequence[Path]) -> None:
        """Leave out the folders that other runs write to, as far as their arguments and working directories tell."""
        self._left_out = {}
        for other in others:
            launch = launch_of(other)
            cwd, args = launch.get("cwd"), launch.get("args")
            if isinstance(cwd, str):
                theirs = [*_named_folders(cwd, args if isinstance(args, list) else [])]
                shared = [root for root in named if any(_are_nested(root, folder) for folder in theirs)]
                shared += [root for root in working if _are_nested(root, Path(cwd))]
                self._left_out |= dict.fromkeys(shared, other.name)

    def _take(self, files: dict[str, tuple[Path, float]]) -> None:
        states = {path: changed for path, (_, changed) in files.items() if path.endswith(_STATE)}
        newest = max(states, key=lambda path: states[path], default=None)
        if newest is not None:  # each has the rows of all earlier ones
            for known in [path for path in self._sources if path.name == _STATE and str(path) != newest]:
                del self._sources[known]
        for found, (root, _) in files.items():
            if len(self._sources) >= _MAX_FILES:
                return
            path = Path(found)
            if path not in self._sources and (found == newest or found not in states):
                self._sources[path] = _reader_of(path, root), History()


def _neighbours(run_dir: Path) -> Iterator[tuple[Path, float, float]]:
    """Yield the runs beside a run directory launched shortly before and after it, with the times of start and end."""
    names = sorted(os.listdir(run_dir.parent))  # noqa: PTH208 - thousands of names
    at = bisect.bisect(names, run_dir.name)
    for name in names[max(0, at - 1 - _MAX_NEIGHBOURS) : at + _MAX_NEIGHBOURS]:
        files = RunDir(run_dir.parent / name)
        launched = finite(launch_of(files.path).get("time"))
        if name == run_dir.name or launched is None:
            continue
        with contextlib.suppress(OSError, FormatError):
            ended = finite((read_json(files.exit) or {}).get("time"))
            last = files.log.stat().st_mtime + _SILENT_S if ended is None else ended
            yield files.path, _first_line_at(files, launched), last


def _first_line_at(files: RunDir, launched: float) -> float:
    """Return the time of a run's first line, before which it has waited in a queue; `launched` without one."""
    with contextlib.suppress(OSError, ValueError, IndexError, TypeError), open_regular(files.log_times) as file:
        return max(launched, float(json.loads(file.readline(200))[1]))
    return launched


def _are_nested(folder: Path, other: Path) -> bool:
    return folder.is_relative_to(other) or other.is_relative_to(folder)


class _Files:
    """The files of an owner that changed within some time, in at most `_MAX_ENTRIES` entries per folder tree."""

    def __init__(self, uid: int, since: float, until: float, *, notes_others: bool) -> None:
        self._uid, self._since, self._until, self._notes_others = uid, since, until, notes_others
        self.files: dict[str, tuple[Path, float]] = {}
        """Path -> the root below which it was found, and the time of its last change."""
        self.others: list[str] = []
        """Paths of other files than of metrics, with `notes_others`."""

    def walk(self, root: Path) -> None:
        num_entries, folders = 0, deque([(root, 0)])
        while folders:
            folder, depth = folders.popleft()
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    num_entries += 1
                    if num_entries > _MAX_ENTRIES:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH and not _SKIPPED.match(entry.name):
                            folders.append((Path(entry.path), depth + 1))
                    elif ((is_one := _may_be_metrics(entry.name)) or self._notes_others) and entry.is_file(
                        follow_symlinks=False
                    ):
                        status = entry.stat(follow_symlinks=False)
                        if status.st_uid != self._uid or not self._since <= status.st_mtime <= self._until:
                            continue
                        if is_one:
                            self.files.setdefault(entry.path, (root, status.st_mtime))
                        elif entry.path not in self.others:
                            self.others.append(entry.path)


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MAX_LISTED} more" if len(paths) > _MAX_LISTED else ""
    return ", ".join(sorted(paths)[:_MAX_LISTED]) + more


def _may_be_metrics(name: str) -> bool:
    if name.startswith(("events.out.tfevents.", "run-")):
        return name[0] == "e" or name.endswith(".wandb")
    return name.endswith((".csv", ".jsonl")) or name == _STATE


def _reader_of(path: Path, root: Path) -> Reader:
    if path.suffix == ".wandb":
        return WandbFile(path)
    if path.name.startswith("events.out.tfevents."):
        return EventFile(path, str(path.parent.relative_to(root)))
    return TrainerState(path) if path.suffix == ".json" else TableFile(path)


def _named_folders(cwd: str | None, args: Sequence[str]) -> Iterator[Path]:
    """Yield the existing folders that arguments name: `--output_dir out`, `--log-dir=logs`, `trainer.dir=x`."""
    words = [word for arg in args if isinstance(arg, str) for word in arg.split("=", 1)]
    for name, value in pairwise(words):
        if any(part in name.lower() for part in ("dir", "out", "log", "save", "path", "project")) and value[:1] != "-":
            folder = Path(cwd or "/", value).expanduser()
            with contextlib.suppress(OSError, ValueError):
                if folder.is_dir() and len(folder.parts) > 2:
                    yield folder
