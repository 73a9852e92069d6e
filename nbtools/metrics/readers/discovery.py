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
from nbtools.metrics.readers.printed.log import EXAMPLE, LogMetrics
from nbtools.metrics.readers.sources import Curves, MetricSource, joined_sources, writer_of
from nbtools.metrics.readers.tabular import TableFile, TrainerState
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.metrics.readers.wandb_offline import WandbFile
from nbtools.rundir.program_files.written_files import Places, places_of, walk

_MAX_FILES: Final = 50
_MAX_LISTED: Final = 8
_STATE: Final = "trainer_state.json"
_PRINTED: Final = "printed lines"
_LOOK_EVERY_S: Final = 5.0


class FoundMetrics:
    """Follows the log and the files of one script. Not thread-safe.

    Args:
        run_dir: The run directory; its owner's files count.
        printed: The metrics in the log.
    """

    def __init__(self, run_dir: Path, printed: LogMetrics) -> None:
        self._run_dir, self._printed = run_dir, printed
        self._sources: dict[str, tuple[Reader, MetricSource]] = {}
        self._failed: dict[str, str] = {}
        self._looked = float("-inf")
        self._has_ended = False
        self._merged, self._versions = Curves(History(), {}, {}), [-1]
        self._left_out: dict[Path, str] = {}
        self._num_unread = 0
        self._written: list[str] = []

    def history(self, cwd: str | None, args: Sequence[str], started: float | None, ended: float | None) -> History:
        """Return all metrics; each comes from the source, or the files of one writer, with the most points of it.

        Args:
            cwd: Working directory of the script.
            args: Its arguments.
            started: Unix time of the launch; None if unknown, then no file is looked for.
            ended: Unix time of the end; None while it runs.
        """
        self._look(cwd, args, started, ended)
        for path in self._sources.keys() - self._failed.keys():
            self._poll(path, is_complete=ended is not None)
        printed = self._printed.history
        sources = [source for _, source in self._sources.values() if len(source.history)]
        if not sources:
            self._merged = Curves(printed, {"": [*printed]} if len(printed) else {}, {})
            return printed
        versions = [printed.version, *(source.history.version for source in sources), len(sources)]
        if versions != self._versions:
            self._versions, before = versions, self._merged.history.version
            self._merged = joined_sources(
                [*sources, *([MetricSource("", "", 0, printed)] if printed.has_steps else [])]
            )
            self._merged.history.version = max(sum(versions), before + 1)
        return self._merged.history

    def notes(self) -> list[str]:
        """Return from which file each curve comes, and what was seen but not understood, a line each."""
        drawn = self._merged.drawn
        lines = [f"{source or _PRINTED}: {', '.join(names)}" for source, names in drawn.items()]
        if others := [f"{name or _PRINTED} ({', '.join(names)})" for name, names in self._merged.not_drawn.items()]:
            lines.append(f"also found, but not drawn: {_listed(others)}")
        reasons = {path: reader.note for path, (reader, _) in self._sources.items() if reader.note} | self._failed
        lines += [f"{path}: not read: {reason}" for path, reason in reasons.items()]
        if self._num_unread:
            lines.append(f"{self._num_unread:,} more files were not read: only the newest {_MAX_FILES} are")
        lines += [
            f"{folder}: not read: run {other} ran there at the same time; give each run a folder of its own"
            for folder, other in self._left_out.items()
        ]
        if not drawn and self._has_ended:
            lines.append(
                f"no metrics were found; a printed line such as `{EXAMPLE}` is read, or JSONL with a key `step`"
            )
            lines += [f"files that it wrote: {_listed(self._written)}"] if self._written else []
        elif not drawn:
            lines.append(f"no metrics yet; a printed line such as `{EXAMPLE}` is read, or JSONL with a key `step`")
        elif not self._printed.history.has_steps and "" in drawn:
            lines.append(f"no counter is printed, so curves are drawn by time; `{EXAMPLE}` has one")
        return lines

    def _poll(self, path: str, *, is_complete: bool) -> None:
        reader, source = self._sources[path]
        try:
            extend(source.history, reader.poll())
            if is_complete and isinstance(reader, TableFile):
                extend(source.history, reader.rest())
        except OSError:  # the next look reads it
            pass
        except Exception as error:  # noqa: BLE001 - a file of another program never breaks reading a run
            self._failed[path] = f"{type(error).__name__}: {error}"

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
        """Read the newest files."""
        by_age = sorted(files, key=lambda path: -files[path][1])
        earlier = set([path for path in by_age if path.endswith(_STATE)][1:])  # the newest has the rows of all
        self._sources = {path: source for path, source in self._sources.items() if path not in earlier}
        new = [path for path in by_age if path not in self._sources and path not in earlier]
        room = max(_MAX_FILES - len(self._sources), 0)
        for path in new[:room]:
            root, changed = files[path]
            reader, place = _reader_of(Path(path), root)
            self._sources[path] = reader, MetricSource(path, f"{type(reader).__name__} {writer_of(place)}", changed)
        self._num_unread = len(new[room:])


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


def _reader_of(path: Path, root: Path) -> tuple[Reader, Path]:
    """Return a reader, and the path or folder of which the numbers tell the files of one writer apart."""
    if path.suffix == ".wandb":
        return WandbFile(path), path.parent.parent
    if path.name.startswith("events.out.tfevents."):
        return EventFile(path, str(path.parent.relative_to(root))), path.parent
    return TrainerState(path) if path.suffix == ".json" else TableFile(path), path
