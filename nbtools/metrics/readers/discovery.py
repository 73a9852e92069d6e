"""The metrics of a user's script: files that it writes, found by name and time, its log, and its rows in metrics.jsonl.

`nbtools.rundir.program_files.written_files` says where is looked: also in the folders of the run directory to which
`TENSORBOARD_LOGGING_DIR` and `WANDB_DIR` point unless the user set them. Files are `events.out.tfevents.*`,
`run-*.wandb`, `trainer_state.json`, `*.csv` and `*.jsonl`, and those of `_LOOSE` names whose first lines are rows.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nbtools.metrics.history import History
from nbtools.metrics.printed.log import EXAMPLE, LogMetrics
from nbtools.metrics.printed.run_patterns import log_metrics
from nbtools.metrics.readers.points import Reader, extend
from nbtools.metrics.readers.sources import Curves, MetricSource, joined_sources, writer_of
from nbtools.metrics.readers.tabular import OlderFile, TableFile, TrainerState, holds_rows
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.metrics.readers.wandb_offline import WandbFile
from nbtools.rundir.program_files.written_files import Places, places_of, walk
from nbtools.rundir.rundir import RunDir, launch_of

_MAX_FILES: Final = 50
_MAX_LISTED: Final = 8
_STATE: Final = "trainer_state.json"
_LOOSE: Final = (".json", ".log", ".ndjson", ".tsv", ".txt")
_KNOWN: Final = (
    *("results.csv", "metrics.csv", "progress.csv", "log.csv", "metrics.jsonl", "log.jsonl", "metrics.json"),
    *("scalars.json", "log.txt", "training.log", _STATE),
)
"""Names that are looked for in folders with too many entries."""
_METRICS: Final = re.compile(r"events\.out\.tfevents\..*|run-.*\.wandb|.*\.(?:csv|jsonl)|" + re.escape(_STATE))
_ROTATED: Final = re.compile(r"(.+\.(?:csv|jsonl|json|log|ndjson|tsv|txt))[.-]\d[\d._-]*")
_MAX_CUT: Final = 100
_MAX_KNOWN: Final = 20_000
_SNIFF_S: Final = 0.01
"""Time of a look in which the beginnings of files are read; the next one continues."""
_PRINTED: Final = "printed lines"
_SHARE: Final = 0.05
"""Share of the time that looks for files take, within these limits of the interval."""
_LOOK_EVERY_S: Final = (1.0, 5.0)


class FoundMetrics:
    """Follows the log and the files of one script. Not thread-safe.

    Args:
        run_dir: The run directory; its owner's files count.
        printed: The metrics in the log.
        written: The rows of metrics.jsonl, which the caller reads.
    """

    def __init__(self, run_dir: Path, printed: LogMetrics, written: History | None = None) -> None:
        self._run_dir, self._printed = run_dir, printed
        rows = str(RunDir(run_dir).metrics)
        self._own = MetricSource(rows, rows, 0, History() if written is None else written, is_asked=True)
        self._sources: dict[str, tuple[Reader, MetricSource]] = {}
        self._failed: dict[str, str] = {}
        self._next_look = float("-inf")
        self._has_ended = False
        self._merged = Curves(History(), {}, {})
        self._versions: list[tuple[History, int]] = []
        self._last_rank: dict[Path, tuple[LogMetrics, MetricSource]] = {}
        self._left_out: dict[Path, str] = {}
        self._num_unread = 0
        self._written: list[str] = []
        self._cut: list[Path] = []
        self._older: dict[str, set[OlderFile]] = {}
        """Path -> the files that its rotation has left."""
        self._sniff_left_s = 0.0
        self._sniffed: dict[tuple[str, int], bool | int] = {}
        """Path and inode -> whether the file holds rows, or its size while that is not decided."""

    def history(self, cwd: str | None, args: Sequence[str], started: float | None, ended: float | None) -> History:
        """Return all metrics; each comes from the source, or the files of one writer, with the most points of it.

        The arguments are those of `places_of`; without `started`, no file is looked for.
        """
        self._look(cwd, args, started, ended)
        for path in self._sources.keys() - self._failed.keys():
            self._poll(path, is_complete=ended is not None)
        printed = MetricSource("", "", 0, self._printed.history)
        files = [source for source in (self._own, *(source for _, source in self._sources.values())) if source.history]
        lines = [printed] if printed.history else [source for log, source in self._last_rank.values() if log.history]
        sources = [*files, *(source for source in lines if source.history.has_steps)] or lines[:1]
        if sources in ([], [self._own], lines[:1]):
            only = sources[0] if sources else printed
            self._merged = Curves(only.history, {only.name: [*only.history]} if sources else {}, {})
            return only.history
        versions = [(source.history, source.history.version) for source in sources]
        if versions != self._versions:
            self._versions, before = versions, self._merged.history.version
            self._merged = joined_sources(sources)
            self._merged.history.version = before + 1
        return self._merged.history

    def total_steps(self, num_epochs: int | None = None) -> int | None:
        """Return the steps of the whole run, as in `LogMetrics`."""
        logs = [self._printed, *(log for log, _ in [*self._last_rank.values()])]
        return next((total for log in logs if (total := log.total_steps(num_epochs))), None)

    def notes(self) -> list[str]:
        """Return from which file each curve comes, and what was seen but not understood, a line each."""
        drawn = self._merged.drawn
        lines = [f"{source or _PRINTED}: {', '.join(names)}" for source, names in drawn.items()]
        if others := [f"{name or _PRINTED} ({', '.join(names)})" for name, names in self._merged.not_drawn.items()]:
            lines.append(f"also found, but not drawn: {_listed(others)}")
        logs = {self._run_dir / "rank0.log": self._printed} | {log: each for log, (each, _) in self._last_rank.items()}
        noted = [*((path, reader.note) for path, (reader, _) in self._sources.items())]
        noted += [(str(path), log.note) for path, log in logs.items()]
        reasons = {path: note for path, note in noted if note} | self._failed
        lines += [f"{path}: not read: {reason}" for path, reason in reasons.items()]
        tables = {path: reader for path, (reader, _) in self._sources.items() if isinstance(reader, TableFile)}
        lines += [f"{path}: {table.seen}" for path, table in tables.items() if table.seen]
        if self._num_unread:
            lines.append(f"{self._num_unread:,} more files were not read: only the newest {_MAX_FILES} are")
        lines += [
            f"{folder}: not read: run {other} ran there at the same time; give each run a folder of its own"
            for folder, other in self._left_out.items()
        ]
        if self._cut and not any(source.history for _, source in self._sources.values()):
            lines.append(f"{_listed([*map(str, self._cut)], 3)}: too many entries; name a folder with --output_dir")
        if not drawn:
            found = "no metrics were found" if self._has_ended else "no metrics yet"
            lines.append(f'{found}; click a number in the Log tab of the panel, or print lines such as "{EXAMPLE}"')
            lines += [f"files that it wrote: {_listed(self._written)}"] if self._written and self._has_ended else []
        elif not self._printed.history.has_steps and "" in drawn:
            lines.append(f'no counter is printed, so curves are drawn by time; "{EXAMPLE}" has one')
        return lines

    def _poll(self, path: str, *, is_complete: bool) -> None:
        reader, source = self._sources[path]
        try:
            generation, points = reader.generation, reader.poll()
            if not isinstance(reader, TableFile):
                source.history = source.history if reader.generation == generation else History()
                extend(source.history, points)
                return
            extend(source.history, points, reader.generation)
            while reader.held:
                self._next_look = float("-inf")  # it was rotated, or written again
                extend(source.history, reader.poll(), reader.generation)
            if is_complete:
                extend(source.history, reader.rest(), reader.generation)
        except Exception as error:  # noqa: BLE001 - a file of another program never breaks reading a run
            self._failed[path] = f"{type(error).__name__}: {error}"

    # --- discovery ---

    def _look(self, cwd: str | None, args: Sequence[str], started: float | None, ended: float | None) -> None:
        now = time.monotonic()
        if started is None or self._has_ended or now < self._next_look:
            return
        self._sniff_left_s = _SNIFF_S * (1 if ended is None else 20)
        with contextlib.suppress(OSError):
            # Some programs, such as Megatron's, print on the last rank alone.
            for log in [] if self._printed.history else sorted(last_rank_logs(self._run_dir) - self._last_rank.keys()):
                with contextlib.suppress(OSError):
                    metrics = log_metrics(RunDir(self._run_dir), launch_of(self._run_dir), log)
                    changed = log.stat().st_mtime
                    source = MetricSource(str(log), f"last rank's {log.name}", changed, metrics.history)
                    self._last_rank[log] = metrics, source
            places = places_of(self._run_dir, cwd, args, started, ended)
            found: dict[str, tuple[Path, float]] = {}
            others: dict[str, None] = {}
            self._left_out, self._cut, self._older = {}, [], {}
            for root in (self._run_dir / "tensorboard", self._run_dir / "wandb", *places.named, *places.working):
                other = places.left_out.get(root)
                for path, changed, has_rows in self._files_below(root, places, every=ended is not None):
                    if not has_rows:
                        others |= {path: None} if other is None else {}
                    elif other is None:
                        first, before = found.get(path, (root, changed))
                        found[path] = first, max(before, changed)
                    else:
                        self._left_out[root] = other
            self._take(found)
            self._written = [*others]
            self._has_ended = ended is not None and self._sniff_left_s > 0
        took = time.monotonic() - now
        self._next_look = now + min(max(took / _SHARE, _LOOK_EVERY_S[0]), _LOOK_EVERY_S[1])

    def _files_below(self, root: Path, places: Places, *, every: bool) -> Iterator[tuple[str, float, bool]]:
        """Yield the program's files below a folder that may hold metrics, or `every` file.

        Of each also the time of its change, and whether it may hold metrics. In folders that are not read to their end,
        `_KNOWN` names are looked for.
        """
        cut: list[Path] = []
        for folder, _, entries in walk(root, cut):
            is_log = (
                folder in (self._run_dir, self._run_dir / "ranks") or "wandb" in folder.parts[len(root.parts) - 1 :]
            )
            for entry in entries:
                is_named = _may_be_metrics(entry.name)
                is_loose = not is_named and not is_log and entry.name.endswith(_LOOSE)
                is_named |= _ROTATED.fullmatch(entry.name) is not None
                known = self._sniffed.get((entry.path, entry.inode())) if is_loose else None
                if every or is_named or known is True or (is_loose and known is not False and self._sniff_left_s > 0):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:  # just removed
                        continue
                    if rotated := places.has(status) and _ROTATED.fullmatch(entry.path):
                        older = status.st_mtime_ns, entry.inode(), entry.path
                        self._older.setdefault(rotated[1], set()).add(older)
                        has_rows = _may_be_metrics(Path(rotated[1]).name) or self._holds_rows(entry.path, status)
                        yield rotated[1] if has_rows else entry.path, status.st_mtime, has_rows
                    elif places.has(status) and entry.path != self._own.name:
                        has_rows = is_loose and self._holds_rows(entry.path, status)
                        yield entry.path, status.st_mtime, is_named or has_rows
        for path in (folder / name for folder in cut[:_MAX_CUT] for name in _KNOWN):
            with contextlib.suppress(OSError):
                if places.has(status := path.lstat()):
                    has_rows = _may_be_metrics(path.name) or self._holds_rows(str(path), status)
                    yield str(path), status.st_mtime, has_rows
        self._cut += cut

    def _holds_rows(self, path: str, status: os.stat_result) -> bool:
        """Whether the first lines of a file are rows; it is read once, and again while that is not decided."""
        key = path, status.st_ino
        known = self._sniffed.get(key, 0)
        if known == status.st_size or isinstance(known, bool) or self._sniff_left_s <= 0:
            return known is True
        if len(self._sniffed) > _MAX_KNOWN:
            self._sniffed.clear()
        began, found = time.monotonic(), holds_rows(path)
        self._sniff_left_s -= time.monotonic() - began
        self._sniffed[key] = status.st_size if found is None else found
        return found is True

    def _take(self, files: dict[str, tuple[Path, float]]) -> None:
        """Read the newest files."""
        by_age = sorted(files, key=lambda path: -files[path][1])
        earlier = set([path for path in by_age if path.endswith(_STATE)][1:])  # the newest has the rows of all
        self._sources = {path: source for path, source in self._sources.items() if path not in earlier}
        for path, (reader, source) in self._sources.items():
            older, known = sorted(self._older.get(path, ())), {file[:2] for file in getattr(reader, "older", ())}
            if isinstance(reader, TableFile) and not {file[:2] for file in older} <= known:
                self._sources[path] = TableFile(path, older, reader.generation + 1), source
        new = [path for path in by_age if path not in self._sources and path not in earlier]
        room = max(_MAX_FILES - len(self._sources), 0)
        for path in new[:room]:
            root, changed = files[path]
            reader, place = _reader_of(Path(path), root, sorted(self._older.get(path, ())))
            self._sources[path] = reader, MetricSource(path, f"{type(reader).__name__} {writer_of(place)}", changed)
        self._num_unread = len(new[room:])


def last_rank_logs(run_dir: Path) -> set[Path]:
    """Return the logs of the last rank of a run, of each agent that was started, as torchrun lays them out."""
    found: dict[tuple[int, int], set[Path]] = {}
    for log in run_dir.glob("ranks/**/attempt_*/*/std*.log"):
        node = log.relative_to(run_dir).parts[1].removeprefix("node")
        if log.parent.name.isdecimal():
            found.setdefault((int(node) if node.isdecimal() else 0, int(log.parent.name)), set()).add(log)
    return found[max(found)] if found else set()


def _listed(paths: Sequence[str], most: int = _MAX_LISTED) -> str:
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(sorted(paths)[:most]) + more


def _may_be_metrics(name: str) -> bool:
    return _METRICS.fullmatch(name) is not None


def _reader_of(path: Path, root: Path, older: Sequence[OlderFile]) -> tuple[Reader, Path]:
    """Return a reader, and the path or folder of which the numbers tell the files of one writer apart."""
    if path.suffix == ".wandb":
        return WandbFile(path), path.parent.parent
    if path.name.startswith("events.out.tfevents."):
        return EventFile(path, str(path.parent.relative_to(root))), path.parent
    return TrainerState(path) if path.name == _STATE else TableFile(path, older), path
