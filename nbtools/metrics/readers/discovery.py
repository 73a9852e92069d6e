"""The metrics of a script that does not write metrics.jsonl: files that it writes, found by name and time, and its log.

`nbtools.rundir.program_files.written_files` says where is looked: also in the folders of the run directory to which
`TENSORBOARD_LOGGING_DIR` and `WANDB_DIR` point unless the user set them. Files are `events.out.tfevents.*`,
`run-*.wandb`, `trainer_state.json`, `*.csv` and `*.jsonl`.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nbtools.metrics.history import History
from nbtools.metrics.readers.points import Reader, extend
from nbtools.metrics.readers.printed import EXAMPLE, LogMetrics
from nbtools.metrics.readers.tabular import TableFile, TrainerState
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.metrics.readers.wandb_offline import WandbFile
from nbtools.rundir.program_files.written_files import Places, places_of, walk

_MAX_FILES: Final = 50
_MAX_LISTED: Final = 8
_STATE: Final = "trainer_state.json"
_LOOK_EVERY_S: Final = 5.0


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
        with contextlib.suppress(OSError):
            places = places_of(self._run_dir, cwd, args, started, ended)
            found: dict[str, tuple[Path, float]] = {}
            others: dict[str, None] = {}
            self._left_out = {}
            for root in (self._run_dir / "tensorboard", self._run_dir / "wandb", *places.named, *places.working):
                other = places.left_out.get(root)
                for path, changed in _files_below(root, places, every=ended is not None):
                    if not _may_be_metrics(Path(path).name):
                        others |= {path: None} if other is None else {}
                    elif other is None:
                        found.setdefault(path, (root, changed))
                    else:
                        self._left_out[root] = other
            self._take(found)
            self._written = [*others]

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


def _files_below(root: Path, places: Places, *, every: bool) -> Iterator[tuple[str, float]]:
    """Yield the program's files below a folder that may hold metrics, or `every` file, with the time of its change."""
    for _, _, entries in walk(root):
        for entry in entries:
            if every or _may_be_metrics(entry.name):
                with contextlib.suppress(OSError):  # just removed
                    status = entry.stat(follow_symlinks=False)
                    if places.has(status):
                        yield entry.path, status.st_mtime


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
