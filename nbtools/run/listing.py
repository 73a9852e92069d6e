"""The runs of a project: a row of each for lists, kept once it has ended, and the runs themselves, made when needed."""

import contextlib
import json
import math
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

from nbtools.errors import RunNotFoundError, html_table, plural
from nbtools.project import Project, file_digest, user_cache
from nbtools.run import facts
from nbtools.run.records import Records, local_time, mapping_at, recorded_arguments
from nbtools.run.run import Run, remaining_s
from nbtools.run.slurm_job import ends_too_early, job_in_words, time_left_s
from nbtools.run.state import RunState, state_of, unsaved, waiting_for
from nbtools.rundir.atomic import folder_names, write_file
from nbtools.rundir.json_files import finite, float_of, read_json, strict_number, whole
from nbtools.rundir.names import Labels, labels_file
from nbtools.rundir.rundir import RunDir, found_runs, is_run, launch_order, name_of, newest_first
from nbtools.rundir.tail import one_line

NUM_STORED = 50
"""Rows of the table that a notebook stores."""
_MOST_CACHED = 20_000
Stamp = tuple[int, ...]
"""Inodes and times of change of exit.json and labels.json."""


class RunRow(NamedTuple):
    """A row of the list of runs, from launch.json and the records of the end; see `is_complete`."""

    id: str
    name: str
    recipe: str
    """Key of the recipe; empty for a script without one."""
    script: str
    """File name of the script, and its own arguments."""
    state: RunState | Literal[""]
    """Empty if the run cannot be read."""
    order: tuple[float, bool, int]
    """Sort key of `launch_order`."""
    started_at: float | None = None
    ended_at: float | None = None
    duration_s: float | None = None
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    """Last training loss."""
    tags: tuple[str, ...] = ()
    note: str = ""
    problem: str = ""
    """Why the run cannot be read, or what an active one waits for or is limited by."""
    is_complete: bool = False
    """Whether `Rows.completed` has added the fields from the other files."""

    @property
    def is_final(self) -> bool:
        """Whether the run has ended or cannot be read."""
        return not self.state or self.state.is_final


_NUMBER = float | int | None
_KINDS: tuple[Any, ...] = (*[str] * 5, tuple, *[_NUMBER] * 6, tuple, str, str, bool)
"""Types of the fields of a row."""


def _row_from(name: str, values: Sequence[Any]) -> RunRow:
    """Return a row of the cache; ValueError, TypeError or IndexError if it is invalid."""
    row = RunRow(name, *values)
    started, is_copy, written = row.order
    row = row._replace(state=RunState(row.state), loss=float_of(row.loss), tags=tuple(map(str, row.tags)))
    row = row._replace(order=(float(started), bool(is_copy), int(written)))
    if not all(isinstance(value, kind) for value, kind in zip(row, _KINDS, strict=True)):
        raise ValueError(name)
    return row


class _Ended(Records):
    """The records of a run whose supervisor has recorded the end: each file is read once, and not looked at again.

    Paths are texts here: of 5,000 runs, those of `pathlib` cost a third of the list.
    """

    launch = cached_property(lambda run: read_json(f"{run.files.path}/launch.json") or {})
    finished = cached_property(lambda run: read_json(f"{run.files.path}/finished.json") or {})
    exit = cached_property(lambda run: read_json(f"{run.files.path}/exit.json"))


class Rows:
    """The rows of a folder's runs; those of ended runs are kept in the user's cache folder.

    `save` writes what was added. A cache that cannot be read, or is not of this form, counts as none.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self._known: dict[str, tuple[Stamp, RunRow]] = {}
        self._is_changed = False
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            entries = mapping_at(read_json(user_cache("runs", runs)) or {}, "runs").items()
            self._known = {name: (tuple(stamp), _row_from(name, row)) for name, (stamp, row) in entries}

    def every(self) -> list[RunRow]:
        """Return the rows of all runs, newest first."""
        rows, names = [], folder_names(self.runs)
        for name in names:
            if (row := self._cached(name, stamp := self._stamp(name))) is not None:
                rows.append(row)
            elif is_run(self.runs / name):
                rows.append(self._read(name, stamp))
        for name in self._known.keys() - set(names):
            del self._known[name]
        return sorted(rows, key=lambda row: (row.order, row.id))

    def newest(self) -> Iterator[RunRow]:
        """Yield the rows, newest first; no file of a run is opened before its turn, but a few launch.json."""
        for path in newest_first(self.runs):
            if not path.is_symlink() or path.exists():  # a link to a run that has just been removed
                yield self.row(path.name)

    def row(self, name: str) -> RunRow:
        """Return the current row of the run with this id."""
        stamp = self._stamp(name)
        return self._cached(name, stamp) or self._read(name, stamp)

    def completed(self, row: RunRow) -> RunRow:
        """Return a row completed from the other files of a run: all steps, and a step or loss that no record has."""
        known = self._known.get(row.id)
        row = row if known is None else known[1]
        if row.is_complete or not row.state:
            return row
        try:
            run = self.run(row.id)
            step = run.step if known is None or row.step is None else row.step  # the record of the end has it
            metrics = {} if row.loss is not None else run.rows.newest_metrics
            waits = "" if row.is_final else waiting_for(run.records) or job_limit(run)
            problem = "; ".join(filter(None, (unsaved(run.records), waits)))
            loss = float_of(metrics.get("train/loss", metrics.get("loss"))) if metrics else row.loss
            row = row._replace(step=step, total_steps=run.total_steps, loss=loss, problem=problem)
        except (OSError, RunNotFoundError) as error:
            return row._replace(problem=str(error))
        if known is not None:
            row = row._replace(is_complete=True)
            self._known[row.id], self._is_changed = (known[0], row), True
        return row

    def run(self, name: str) -> Run:
        """Return a run; a link is followed."""
        return _listed(self.runs / name)

    def save(self) -> None:
        """Write the added rows into the user's cache folder, if that is possible."""
        if not self._is_changed:
            return
        self._is_changed = False
        entries = {}
        for name, (stamp, row) in list(self._known.items())[-_MOST_CACHED:]:
            loss = None if row.loss is None else strict_number(row.loss)
            entries[name] = stamp, row._replace(loss=loss)[1:]  # type: ignore[arg-type]
        with contextlib.suppress(OSError, ValueError):
            path = user_cache("runs", self.runs, make=True)
            write_file(path, json.dumps({"format": 1, "runs": entries}, allow_nan=False).encode(), mode=0o600)

    def _stamp(self, name: str) -> Stamp | None:
        """Return what changes with the row of an ended run; None for one without a record of its supervisor."""
        folder, labelled = f"{self.runs}/{name}", None
        try:
            ended = os.stat(f"{folder}/exit.json")  # noqa: PTH116 - thousands of files, here and below
        except OSError:
            return None
        own = f"{folder}/labels.json"
        with contextlib.suppress(OSError):
            labelled = os.stat(own if ended.st_uid == os.geteuid() else labels_file(RunDir(folder)))  # noqa: PTH116
        change = (0, 0) if labelled is None else (labelled.st_ino, labelled.st_mtime_ns)
        return (ended.st_ino, ended.st_mtime_ns, *change) if stat.S_ISREG(ended.st_mode) else None

    def _cached(self, name: str, stamp: Stamp | None) -> RunRow | None:
        known = self._known.get(name)
        return known[1] if known is not None and known[0] == stamp else None

    def _read(self, name: str, stamp: Stamp | None) -> RunRow:
        path = self.runs / name
        records = (Records if stamp is None else _Ended)(RunDir(path))
        try:
            # A stamp tells whether there are labels; most runs have none.
            row = _row_of(path, records, Labels() if stamp is not None and stamp[2:] == (0, 0) else records.labels)
            has_ended = records.exit is not None
        except OSError as error:
            return RunRow(name, name_of(name), "", "", "", launch_order(path, {}), problem=str(error))
        if stamp is not None and has_ended:
            self._known[name], self._is_changed = (stamp, row), True
        return row


def _row_of(path: Path, records: Records, labels: Labels) -> RunRow:
    launch, finished, state = records.launch, records.finished, state_of(records)
    metrics, started, ended = mapping_at(finished, "metrics"), records.started_at, records.ended_at
    duration = records.duration_s
    if duration is None and started is not None and ended is not None:
        duration = ended - started
    words = [Path(str(launch.get("script") or "")).name, *recorded_arguments(launch)]
    return RunRow(
        id=path.name,
        name=labels.name or str(launch.get("name") or name_of(path.name)),
        recipe=str(launch.get("recipe") or ""),
        script=" ".join(words)[:500],
        state=state,
        started_at=started,
        ended_at=ended,
        duration_s=duration,
        step=whole(finished.get("step")),
        loss=float_of(metrics.get("train/loss", metrics.get("loss"))),
        order=launch_order(path, launch),
        tags=labels.tags,
        note=labels.note,
    )


class RunList(Sequence[Run]):
    """Runs, newest first: those of `choice`, as for `selected`. A slice is a list of its own, `[0]` the newest run."""

    def __init__(self, rows: Rows, *, listed: Sequence[RunRow] | None = None, **choice: Any) -> None:
        self.rows = rows
        self._choice = choice
        self._left_out: frozenset[str] = frozenset()  # by a slice
        self._there = frozenset(folder_names(rows.runs))
        if listed is not None:
            self.listed = listed
        self._made: dict[str, Run] = {}

    @cached_property
    def listed(self) -> Sequence[RunRow]:
        """The rows of the runs that were there when the list was made, as they were when they were first asked for."""
        return [row for row in self.chosen_now() if row.id in self._there]

    def first(self, num_rows: int) -> Sequence[RunRow]:
        """Return the first rows, without a look at the others if none was taken yet."""
        if "listed" in vars(self):
            return self.listed[:num_rows]
        there = (row for row in self.rows.newest() if row.id in self._there)
        return [*islice(selected(there, **self._choice), num_rows)]

    def __len__(self) -> int:
        return len(self.listed)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Run | Self:
        if isinstance(index, slice):
            part = type(self)(self.rows, listed=self.listed[index], **self._choice)
            part._left_out = self._left_out | ({row.id for row in self.listed} - {row.id for row in part.listed})
            return part
        name = self.listed[index].id
        if name not in self._made:
            self._made[name] = self.rows.run(name)
        return self._made[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        first = [f"{one_line(row.id, 100)} {row.state or one_line(row.problem, 200)}" for row in self.listed[:3]]
        return f"<{plural(len(self), 'run')}: {', '.join(first)}{', …' if len(self) > 3 else ''}>"

    def _repr_html_(self) -> str:
        rows: list[tuple[str, ...]] = [("run", "state", "step", "train loss", "duration", "started", "")]
        shown = [self.rows.completed(self.rows.row(row.id)) for row in self.first(NUM_STORED)]
        self.rows.save()
        for row in shown:
            rows.append((row.id, *cells(row), local_time(row.started_at), row.problem))
        if (others := len(self) - NUM_STORED) > 0:
            rows.append((f"and {plural(others, 'earlier run')}", *[""] * 4, "nbtools runs --all lists them", ""))
        return html_table(rows)

    def chosen_now(self, kept: Collection[str] = ()) -> list[RunRow]:
        """Return the rows that fit now, with those of later runs, and the `kept` ones as they are now."""
        every = self.rows.every()
        chosen = ({row.id for row in selected(every, **self._choice)} - self._left_out).union(kept)
        return [row for row in every if row.id in chosen]


def cells(row: RunRow) -> tuple[str, str, str, str]:
    """Return state, step, loss and duration of a completed row as text."""
    took = "" if row.duration_s is None or row.duration_s < 0 else str(timedelta(seconds=round(row.duration_s)))
    step = facts.steps(row.step, row.total_steps)
    return row.state, step, "" if row.loss is None else f"{row.loss:.5g}", took


def selected(
    rows: Iterable[RunRow], *, name: str | None = None, states: Collection[str] = (), recipe: str | None = None
) -> Iterator[RunRow]:
    """Yield the rows with a name (or a pattern such as `lr_*`), in one of these states, and of a recipe.

    A run that cannot be read is in every state.
    """
    for row in rows:
        is_named = name is None or fnmatchcase(row.name, name)
        is_in_state = not states or not row.state or row.state in states
        if is_named and is_in_state and (recipe is None or row.recipe == recipe):
            yield row


_KEYS: dict[str, Callable[[RunRow], float | None]] = {
    "loss": lambda row: row.loss,
    "step": lambda row: None if row.step is None else -row.step,
    "duration": lambda row: None if row.duration_s is None else -row.duration_s,
}
"""Sort keys: the smallest loss, the greatest step and the longest duration are first."""


def in_order(rows: Iterable[RunRow], by: str) -> list[RunRow]:
    """Return completed rows by `name` or a sort key; those without the value, or with a loss of NaN, are last."""
    if by == "name":
        return sorted(rows, key=lambda row: row.name)
    return sorted(rows, key=lambda row: math.inf if (key := finite(_KEYS[by](row))) is None else key)


def _listed(path: Path) -> Run:
    """Return the run in a folder that has just been listed, without looking for it again; a link is followed."""
    return Run(path if path.is_symlink() else RunDir(path))


def job_limit(run: Run) -> str:
    """Return when a run's job ends by its time limit, and whether before the last step; empty without a limit."""
    if (left_s := time_left_s(run.records)) is None:
        return ""
    limit = facts.time_limit(left_s, is_early=ends_too_early(left_s, remaining_s(run)))
    return f"job {job_in_words(run.records)} {limit}"


def active_run(script: Path, project: Project) -> Run | None:
    """Return the newest active run of a script with the same bytes and without extra arguments, or None."""
    wanted, active = file_digest(script), []
    for path in found_runs(project.runs):
        if RunDir(path).exit.exists():  # it has ended, whatever else its files contain
            continue
        with contextlib.suppress(RunNotFoundError, OSError):  # of a newer nbtools, or just removed
            run = _listed(path)
            same = run.info.get("script_sha256") == wanted and not run.info.get("args")
            if same and not run.state.is_final:
                active.append(run)
    return max(active, key=lambda run: (run.records.started_at or 0.0, run.id), default=None)
