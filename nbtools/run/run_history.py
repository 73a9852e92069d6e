"""The metric rows of a run: its own, and before them those of the runs that it resumed."""

import contextlib
import threading
from dataclasses import replace

from nbtools.errors import plural
from nbtools.metrics.history import History, newest_rows
from nbtools.metrics.joined_runs import joined_runs
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.printed.plans import LineKind
from nbtools.metrics.printed.run_patterns import curve_patterns, log_metrics
from nbtools.metrics.printed.shapes import numbers_in
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.sources import MetricSource
from nbtools.run.lineage import ancestors
from nbtools.run.records import Records, mapping_at
from nbtools.rundir.json_files import MAX_STEP, file_stamp, whole
from nbtools.rundir.rundir import RunDir, has_recipe, has_started
from nbtools.rundir.secret_values import secrets_of, without_secrets
from nbtools.rundir.tail import Tail, one_line

_SHIFTED = "its steps begin again after the resume: drawn {:,} steps later, behind the curve of its parent"
_READ_BY = {"pattern": "by your pattern", "template": "as the source prints it", "grammar": "in a known form"}
_SMALL_BYTES = 1 << 20
"""Size of metrics.jsonl from which a look at the newest rows of a program takes them from it alone."""


class RunHistory:
    """Reads the metric rows of a run. Safe to use from several threads.

    `own` and `joined` read the disk: all rows at the first access, which takes seconds for a long file, then those that
    were added; `shift` and `notes` read the same. The members called `newest…` read the end of metrics.jsonl at most.
    All others read no rows; they tell of those that were read.

    Attributes:
        is_read: Whether the rows were read before, so that `own` and `joined` take little time.
    """

    def __init__(self, files: RunDir) -> None:
        self.files, self.records = files, Records(files)
        self.is_read = False
        self._lock = threading.RLock()
        self._written, self._tail = History(), Tail(files.metrics)
        self._readers_of: tuple[object, tuple[LogMetrics, FoundMetrics]] | None = None
        self._newest: tuple[object, tuple[int, dict[str, float]]] | None = None
        self._earlier: list[tuple[RunHistory, int]] | None = None
        self._joined: History | None = None
        self._joined_tail, self._joined_key, self._shift = Tail(files.metrics), object(), 0

    @property
    def own(self) -> History:
        """The rows of this run alone."""
        self._written.follow(self._tail)  # without the lock: a long file takes seconds
        with self._lock:
            self.is_read = True
            return self._readers[1].history(self.records.ended_at) if self.is_program else self._written

    @property
    def joined(self) -> History:
        """The rows of this run, preceded by those of the runs it resumed, up to the step of each resume."""
        with self._lock:
            if self._earlier is None and (launch := self.records.launch):
                found = ancestors(self.files.path, launch)
                self._earlier = [(RunHistory(RunDir(path)), step) for path, step in reversed(found)]
        if not self._earlier:
            return self.own
        if self.is_program:
            own = self.own
            with self._lock:
                key = id(own), own.version
                if self._joined is None or key != self._joined_key:
                    earlier = [(history.own, step) for history, step in self._earlier]
                    self._joined, self._shift = joined_runs([*earlier, (own, MAX_STEP)])
                    self._joined_key = key
                return self._joined
        if self._joined is None:  # the ancestors have ended, so they are read once
            joined = History.chained([*((history.own, step) for history, step in self._earlier), (History(), MAX_STEP)])
            with self._lock:
                self._joined = joined if self._joined is None else self._joined
        self._joined.follow(self._joined_tail)
        return self._joined

    # --- the newest rows ---

    @property
    def newest(self) -> History:
        """The newest rows, at least; a long file is not read for them."""
        with self._lock:
            stamp = file_stamp(self.files.metrics)
            is_small = stamp is None or (self.is_program and stamp[1] < _SMALL_BYTES)
            return self.own if self._has_rows or is_small else newest_rows(self.files.metrics)

    @property
    def newest_values(self) -> tuple[int, dict[str, float]]:
        """The last step (0: none) and the last values in the newest rows, which are read again if they changed."""
        with self._lock:
            stamp = None if self.is_program else file_stamp(self.files.metrics)
            if stamp is None or self._newest is None or self._newest[0] != (stamp, self._has_rows):
                rows = self.newest
                self._newest = (stamp, self._has_rows), (rows.last_step or 0, last_values(rows))
            return self._newest[1]

    @property
    def newest_metrics(self) -> dict[str, float]:
        """The metrics that the run recorded at its end, else the last values in its newest rows."""
        recorded = mapping_at(self.records.finished, "metrics")
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if recorded:
                return {name: float(value) for name, value in recorded.items()}
        return dict(self.newest_values[1])

    @property
    def _has_rows(self) -> bool:
        return self.is_read and self._written.num_rows > 0

    # --- a program's curves ---

    @property
    def is_program(self) -> bool:
        """Whether the run has started a user's program: its curves come from more than metrics.jsonl."""
        return not has_recipe(self.files) and has_started(self.files)

    @property
    def _readers(self) -> tuple[LogMetrics, FoundMetrics]:
        """The readers of a program's curves: of its log, and of all; new ones once the user chose other curves."""
        with self._lock:
            launch = self.records.launch
            curves = curve_patterns(launch)
            if self._readers_of is None or self._readers_of[0] != curves:
                printed = log_metrics(self.files, launch)
                self._readers_of = curves, (printed, FoundMetrics(self.files.path, printed, self._written))
            return self._readers_of[1]

    @property
    def total_steps(self) -> int | None:
        """Number of steps as a program prints it (`17/250`); None if unknown, and for a recipe."""
        launch = self.records.launch
        num_epochs = None if launch.get("resumed_from") else whole(launch.get("num_epochs"))
        return self._readers[1].total_steps(num_epochs) if self.is_program else None

    @property
    def shift(self) -> int:
        """Steps that are added to the rows of this run in `joined`: its program began to count again."""
        is_resumed = self.is_program and bool(self.records.launch.get("resumed_from"))
        return self._shift if is_resumed and len(self.joined) else 0

    @property
    def sources(self) -> list[MetricSource]:
        """The files from which the curves of a script come, with what counts their rows; those found so far."""
        return self._readers[1].sources if self.is_program else []

    @property
    def kinds(self) -> list[LineKind]:
        """The kinds of lines with numbers that a program printed, the most frequent first; none for a recipe."""
        if not self.is_program:
            return []
        hidden = secrets_of(self.files)
        kinds = (replace(kind, example=without_secrets(kind.example, hidden)) for kind in self._readers[0].kinds)
        return [kind for kind in kinds if numbers_in(kind.example)]

    @property
    def notes(self) -> list[str]:
        """Lines on where the curves of a script come from, and on what was seen but not understood."""
        if not self.is_program or (own := self.own) is self._written:
            return []
        notes, kinds = self._readers[1].notes(), self.kinds
        drawn = [kind for kind in kinds if any(name in own for name in kind.curves)]
        if kinds:
            notes[0] += f"; {plural(len(kinds), 'kind')} of lines with numbers, {len(drawn)} drawn"
        for kind in drawn:
            counted = f"counted by {kind.counter}" if kind.counter else "without a counter"
            read = _READ_BY.get(kind.source, kind.source)
            notes.append(f"{', '.join(kind.curves)}: {read}, {counted}: {one_line(kind.example, 200)}")
        return notes + ([_SHIFTED.format(self._shift)] if self.shift else [])


def last_values(history: History) -> dict[str, float]:
    """Return the last value of every metric."""
    found = {name: history.last(name) for name in history}
    return {name: value for name, value in found.items() if value is not None}
