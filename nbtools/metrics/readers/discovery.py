"""The metrics of a user's script: files that it writes, found by name and time, its log, and its rows in metrics.jsonl.

`nbtools.rundir.program_files.written_files` says where is looked: also in the folders of the run directory to which
`TENSORBOARD_LOGGING_DIR` and `WANDB_DIR` point unless the user set them. Files are `events.out.tfevents.*`,
`run-*.wandb`, `trainer_state.json`, `*.csv` and `*.jsonl`, and those of `_LOOSE` names whose first lines are rows.
"""

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from nbtools.metrics.history import History
from nbtools.metrics.printed.log import EXAMPLE, LogMetrics
from nbtools.metrics.printed.run_patterns import log_metrics
from nbtools.metrics.readers.reader import Reader
from nbtools.metrics.readers.sources import Curves, MetricSource, file_choices, joined_sources, kind_of_file, writer_of
from nbtools.metrics.readers.tabular import TableFile, TrainerState, holds_rows
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.metrics.readers.wandb_offline import WandbFile
from nbtools.rundir.json_files import read_small
from nbtools.rundir.program_files.files_before import FilesBefore
from nbtools.rundir.program_files.written_files import Places, places_of, walk
from nbtools.rundir.rundir import RunDir, launch_of

_MAX_FILES: Final = 50
_MAX_LISTED: Final = 8
_STATE: Final = "trainer_state.json"
_LOOSE: Final = re.compile(r".*\.(?:json|log|ndjson|tsv|txt)(?:[.-]\d[\d._-]*)?")
_METRICS: Final = re.compile(
    r"events\.out\.tfevents\..*|run-.*\.wandb|.*\.(?:csv|jsonl)(?:[.-]\d[\d._-]*)?|" + re.escape(_STATE)
)
"""Names of files with metrics, also of those that a rotation has left: `metrics.csv.1`."""
_MOST_SNIFFED: Final = 40
"""Files of which one look reads the beginning; the next one continues."""
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
        self._files = RunDir(run_dir)
        rows = str(self._files.metrics)
        self._own = MetricSource(rows, rows, 0, History() if written is None else written, is_asked=True)
        self._log, self._last_rank = MetricSource("", "", 0, reader=printed), dict[str, MetricSource]()
        self._sources: dict[str, MetricSource] = {}
        self._chosen: dict[str, dict[str, Any]] = {}
        self._next_look = -math.inf
        """Time of the next look for files; infinite after the last one."""
        self._merged = Curves(History(), {}, {})
        self._versions: list[tuple[History, int]] = []
        self._written: list[str] = []
        self._remarks: list[str] = []
        """Sentences on folders and files that are not read."""
        self._sniffs_left = 0
        self._sniffed: dict[tuple[str, int], bool | int] = {}
        """Path and inode -> whether the file holds rows, or its size while that is not decided."""

    def history(self, ended: float | None) -> History:
        """Return all metrics; each comes from the source, or the files of one writer, with the most points of it.

        Args:
            ended: Unix time of the end; None while the program runs.
        """
        if (chosen := file_choices(self._files.path)) != self._chosen:
            self._chosen, self._next_look, self._versions = chosen, -math.inf, []
        if (began := time.monotonic()) >= self._next_look:
            is_last = self._look(ended)
            pause = min(max((time.monotonic() - began) / _SHARE, _LOOK_EVERY_S[0]), _LOOK_EVERY_S[1])
            self._next_look = math.inf if is_last else began + pause
        is_complete, restarts = ended is not None, 0
        with contextlib.suppress(OSError):
            restarts = read_small(self._files.attempts).count(b"\n")
        for table in (source.reader for source in self.sources if isinstance(source.reader, TableFile)):
            table.rows.restarts = restarts
        files = [source for source in (self._own, *self.sources) if source.poll(is_complete=is_complete)]
        lines = [source for source in self._logs if source.poll(is_complete=is_complete)]
        lines = [self._log] if self._log in lines else lines
        sources = [*files, *(source for source in lines if source.history.has_steps)] or lines[:1]
        if sources in ([], [self._own], lines[:1]):
            only = sources[0] if sources else self._log
            self._merged = Curves(only.history, {only.name: [*only.history]} if sources else {}, {})
            return only.history
        versions = [(source.history, source.history.version) for source in sources]
        if versions != self._versions:
            self._versions, before = versions, self._merged.history.version
            self._merged = joined_sources(sources)
            self._merged.history.version = before + 1
        return self._merged.history

    @property
    def sources(self) -> list[MetricSource]:
        """The files that are read."""
        return [*self._sources.values()]

    def total_steps(self, num_epochs: int | None = None) -> int | None:
        """Return the steps of the whole run, as a file or the log says."""
        readers = [source.reader for source in (*self.sources, *self._logs)]
        totals = [reader.rows.total for reader in readers if isinstance(reader, Reader) and reader.rows]
        totals += [reader.total_steps(num_epochs) for reader in readers if isinstance(reader, LogMetrics)]
        return next(filter(None, totals), None)

    @property
    def _logs(self) -> list[MetricSource]:
        return [self._log, *self._last_rank.values()]

    def notes(self) -> list[str]:
        """Return from which file each curve comes, and what was seen but not understood, a line each."""
        drawn, counters = self._merged.drawn, {s.name: s.rows.counter for s in self.sources if s.rows}
        words = {n: f"; counter: {one or 'none, rows by order'}" for n, one in counters.items() if one is not None}
        words |= {s.name: f"; {log.again}" for s in self._logs if isinstance(log := s.reader, LogMetrics) and log.again}
        lines = [f"{name or _PRINTED}: {', '.join(names)}{words.get(name, '')}" for name, names in drawn.items()]
        if others := [f"{name or _PRINTED} ({', '.join(names)})" for name, names in self._merged.not_drawn.items()]:
            lines.append(f"also found, but not drawn: {_listed(others)}")
        every = [*self.sources, *self._logs]
        lines += [f"{one.name or self._files.log}: not read: {one.note}" for one in every if one.note]
        lines += self._remarks
        if not drawn:
            has_ended = self._next_look == math.inf
            found = "no metrics were found" if has_ended else "no metrics yet"
            lines.append(f'{found}; click a number in the Log tab of the panel, or print lines such as "{EXAMPLE}"')
            lines += [f"files that it wrote: {_listed(self._written)}"] if self._written and has_ended else []
        return lines

    # --- discovery ---

    def _look(self, ended: float | None) -> bool:
        """Look for new files; whether no other look can find more."""
        cut, found, others = list[Path](), dict[str, tuple[Path, float]](), dict[str, tuple[Path, float]]()
        is_last, self._remarks = ended is not None, []
        self._sniffs_left = _MOST_SNIFFED * (20 if is_last else 1)
        try:
            # Some programs, such as Megatron's, print on the last rank alone.
            for log in [] if self._log.history else sorted(last_rank_logs(self._files.path)):
                made = log_metrics(self._files, launch_of(self._files.path), log)
                source = MetricSource(str(log), f"last rank's {log.name}", log.stat().st_mtime, reader=made)
                self._last_rank.setdefault(source.name, source)
            places = places_of(self._files.path, ended)
            for root in (self._files.tensorboard, self._files.wandb, *places.named, *places.working):
                for path, changed, has_rows in self._files_below(root, places, cut, every=is_last):
                    if root not in places.left_out:
                        (found if has_rows else others).setdefault(path, (root, changed))
                    elif has_rows:
                        other = f"run {places.left_out[root]} ran there at the same time"
                        self._remarks.append(f"{root}: not read: {other}; give each run a folder of its own")
        except OSError:  # the next look finds it
            return False
        if cut and not found:
            many = _listed([*map(str, cut)], 3)
            self._remarks.append(f"{many}: too many entries; name a folder with --output_dir")
        self._take(found)
        self._remarks, self._written = [*dict.fromkeys(self._remarks)], [*others]
        return is_last and self._sniffs_left > 0

    def _files_below(
        self, root: Path, places: Places, cut: list[Path], *, every: bool
    ) -> Iterator[tuple[str, float, bool]]:
        """Yield the program's files below a folder that may hold metrics, or `every` file.

        Of each also the time of its change, and whether it may hold metrics; `cut` receives the folders that are not
        read to their end.
        """
        for folder, _, entries in walk(root, cut):
            is_log = folder in (self._files.path, self._files.ranks) or "wandb" in folder.parts[len(root.parts) - 1 :]
            for entry in entries:
                is_named = _METRICS.fullmatch(entry.name) is not None
                may_hold = not is_log and _LOOSE.fullmatch(entry.name) is not None
                if (every or is_named or may_hold) and entry.path != self._own.name:
                    with contextlib.suppress(OSError):  # just removed
                        if places.has(status := entry.stat(follow_symlinks=False)):
                            has_rows = is_named or (may_hold and self._holds_rows(entry.path, status))
                            yield entry.path, status.st_mtime, has_rows

    def _holds_rows(self, path: str, status: os.stat_result) -> bool:
        """Whether the first lines of a file are rows; it is read once, and again while that is not decided."""
        known = self._sniffed.get(key := (path, status.st_ino), 0)
        if not isinstance(known, bool) and known != status.st_size and self._sniffs_left > 0:
            self._sniffs_left -= 1
            decided = holds_rows(path)
            known = self._sniffed[key] = status.st_size if decided is None else decided
        return known is True

    def _take(self, files: dict[str, tuple[Path, float]]) -> None:
        """Read the newest files."""
        by_age = sorted(files, key=lambda path: -files[path][1])
        earlier = [path for path in by_age if path.endswith(_STATE)][1:]  # the newest has the rows of all
        for path, source in [*self._sources.items()]:
            source.choices = choices = self._chosen.get(kind_of_file(path), {})
            source.changed = files[path][1] if path in files else source.changed
            is_new = isinstance(source.reader, TableFile) and source.reader.rows.chosen != choices.get("")
            if path in earlier or is_new:  # the user chose another counter
                del self._sources[path]
        new = [path for path in by_age if path not in self._sources and path not in earlier]
        room, before = max(_MAX_FILES - len(self._sources), 0), FilesBefore(self._files)
        for path in new[:room]:
            (root, changed), place, name = files[path], Path(path), Path(path).name
            choices = self._chosen.get(kind_of_file(name), {})
            made: Reader = TableFile(path, choices.get(""), before.end_in)
            if name.endswith(".wandb"):
                made, place = WandbFile(path), place.parent.parent
            elif name.startswith("events.out.tfevents."):
                made, place = EventFile(path, str(place.parent.relative_to(root))), place.parent
            elif name == _STATE:
                made = TrainerState(path)
            writer = f"{type(made).__name__} {writer_of(place)}"
            self._sources[path] = MetricSource(path, writer, changed, reader=made, choices=choices)
        if num_left := len(new[room:]):
            self._remarks.append(f"{num_left:,} more files were not read: only the newest {_MAX_FILES} are")


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
