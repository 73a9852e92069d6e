"""A run: its state, curves, checkpoints and log, derived from the run directory at each access."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from nbtools.errors import RunFailed, RunNotFoundError, html_table, plural
from nbtools.failures.failure import Failure, lost
from nbtools.failures.restarts import read_restarts
from nbtools.machine import processes
from nbtools.metrics.history import History, newest_rows
from nbtools.metrics.joined_runs import joined_runs
from nbtools.metrics.printed.grammars import read_line
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.printed.plans import LineKind
from nbtools.metrics.printed.run_patterns import curve_patterns, log_metrics
from nbtools.metrics.printed.shapes import folded, numbers_in
from nbtools.metrics.readers.checkpoint_steps import with_steps
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.sources import MetricSource
from nbtools.project import find_project, located
from nbtools.run.checkpoints import AnyCheckpoint, Checkpoint, best_of, checkpoints_in
from nbtools.run.lineage import ancestors, origin_in_words, parent_folder
from nbtools.run.ranks.stacks import take_stacks
from nbtools.run.ranks.stragglers import Straggler, stragglers
from nbtools.run.records import Records, checkpoints_and_resume, mapping_at, started_as, stop_signal, weights_in_words
from nbtools.run.slurm_job import end_in_words, job_facts, runs_on_slurm
from nbtools.run.state import RunState, commands_to_join, state_of, stopped_in_words, unsaved, waiting_for, why_stopped
from nbtools.run.stop import chosen_gpus, left_behind, other_machines, released, stop_job, stop_processes
from nbtools.rundir import media
from nbtools.rundir.git_source import source_in_words
from nbtools.rundir.heartbeat import RankHeartbeat, read_heartbeats
from nbtools.rundir.json_files import MAX_STEP, finite, strict_number, whole
from nbtools.rundir.names import find_run
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoints
from nbtools.rundir.rundir import RunDir, foreign_owner, has_started, is_removed, is_run, name_of
from nbtools.rundir.secret_values import secrets_of, without_secrets
from nbtools.rundir.tail import Tail, last_lines, one_line

_SHIFTED = "its steps begin again after the resume: drawn {:,} steps later, behind the curve of its parent"
_READ_BY = {"pattern": "by your pattern", "template": "as the source prints it", "grammar": "in a known form"}
_SMALL_BYTES = 1 << 20
"""Size of metrics.jsonl from which a look at the newest rows of a program takes them from it alone."""
SILENT_S = 300.0
"""Seconds without output after which a program without curves is reported as silent."""


class Run:
    """One run. Cheap to create, safe to use from several threads; owns no process.

    A fresh kernel, the command line and a colleague on a network file system read the same files. What has no
    member here is a function of `run.files` or `run.records`: `read_heartbeats`, `read_restarts`, `take_stacks`,
    `waiting_for`.

    Args:
        ref: A run's id, a prefix of exactly one id, a name for the newest run of that name (`"second~1"`: the one
            before), `"latest"`, or the path of a run directory. A `RunDir` is not looked for.

    Attributes:
        id: The name of the run directory.
        dir: The run directory.
        files: The paths of the files in it.
        records: The content of its JSON files.

    Raises:
        RunNotFoundError: No run matches, or several do.
    """

    def __init__(self, ref: str | Path | RunDir) -> None:
        self.files = ref if isinstance(ref, RunDir) else RunDir(_located(ref))
        self.id, self.dir = self.files.id, self.files.path
        self.records = Records(self.files)
        self._reading = threading.RLock()
        self._own, self._own_tail = History(), Tail(self.files.metrics)
        self._joined_tail = Tail(self.files.metrics)
        self._joined: History | None = None
        self._newest: tuple[object, tuple[int, dict[str, float]]] | None = None
        self._parent: Run | None = None
        self._ancestors: list[tuple[Path, int]] | None = None
        self._last_step: int | None = None
        self._is_read = False
        self._known: tuple[object, tuple[LogMetrics, FoundMetrics]] | None = None
        self._foreign = ForeignCheckpoints(self.dir)
        self._earlier: list[tuple[History, int]] = []
        self._shift, self._joined_key = 0, object()

    @classmethod
    def latest(cls) -> Self:
        """The newest run of the project."""
        return cls("latest")

    @property
    def name(self) -> str:
        """The name that the user gave the run, else that of the script, without `.py`."""
        return self.records.labels.name or str(self.info.get("name") or name_of(self.id))

    @property
    def info(self) -> dict[str, Any]:
        """Content of launch.json, such as the command; empty until that file exists."""
        return self.records.launch

    @property
    def config(self) -> dict[str, Any] | None:
        """The config as run, the values that flags overrode, and what is derived; None before training starts."""
        return self.records.config

    @property
    def state(self) -> RunState:
        """Current state of the run."""
        return state_of(self.records)

    @property
    def returncode(self) -> int | None:
        """Exit code of torchrun; None while it runs, or if no supervisor recorded it."""
        code = (self.records.exit or {}).get("returncode")
        return code if isinstance(code, int) and abs(code) < 2**31 else None

    @property
    def failure(self) -> Failure | None:
        """The first failure of a FAILED or LOST run; None in every other state."""
        state = self.state
        if state is RunState.LOST:
            process = self.records.process
            if ended := end_in_words(self.records):
                return Failure(None, process.host if process else None, None, None, ended, step=self.step)
            return lost(self.files, process.host if process else None, self.step)
        if state is not RunState.FAILED:
            return None
        for record in (self.records.exit or {}, self.records.finished):
            failure = Failure.from_json(record.get("failure"))
            if failure is not None:
                return self._with_progress(_without_row(failure.without(secrets_of(self.files))))
        if self.records.exit is None and (ended := end_in_words(self.records)):
            return Failure(None, None, None, None, ended, step=self.step)
        return Failure(None, None, self.returncode, None, f"exited with code {self.returncode}")

    def _with_progress(self, failure: Failure) -> Failure:
        """Add the last step and loss of a program from its curves, which the supervisor does not read."""
        if not self._has_program_log or failure.loss is not None:
            return failure
        rows = self.own_history
        step = failure.step
        if step is None and rows.has_steps and rows.last_step is not None:
            step = rows.last_step + shift_of(self)
        return replace(failure, step=step, loss=rows.last("train/loss") if "train/loss" in rows else None)

    @property
    def stragglers(self) -> list[Straggler]:
        """The ranks that hang, or that the others wait for; empty unless the run is RUNNING."""
        beats = read_heartbeats(self.files) if self.state is RunState.RUNNING else []
        return stragglers(beats, time.time(), self._newest_rows().pace()[0] if beats else None)

    @property
    def step(self) -> int:
        """The last optimizer step: as rank 0 recorded it at its end, else the greatest in metrics and heartbeats.

        A program whose count begins again after a resume is counted on from its parent, as in `history`.
        """
        return last_step(self, lambda: read_heartbeats(self.files))

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the config, or as a script prints it (`17/250`); None if unknown."""
        num_epochs = None if self.info.get("resumed_from") else whole(self.info.get("num_epochs"))
        derived = whole(mapping_at(self.config or {}, "derived").get("total_steps"))
        total = derived or (self._readers[1].total_steps(num_epochs) if self._has_program_log else None)
        return total and total + shift_of(self)

    @property
    def parent(self) -> "Run | None":
        """The run that this one resumed; None if there is none or it was deleted."""
        path = parent_folder(self.dir, self.info)
        if path is not None and (self._parent is None or self._parent.dir != path):
            self._parent = Run(path)  # kept, so that its rows are read once
        return None if path is None else self._parent

    # --- curves, checkpoints, log ---

    @property
    def own_history(self) -> History:
        """Metric rows of this run alone; each access reads only the rows that were added since the last."""
        self._own.follow(self._own_tail)  # without the lock: a long file takes seconds
        with self._reading:
            self._is_read = True
            return self._readers[1].history(*self._written_where_and_when) if self._has_program_log else self._own

    @property
    def _has_program_log(self) -> bool:
        """Whether the run has started a user's program: its curves come from more than metrics.jsonl."""
        return self._has_program and has_started(self.files)

    @property
    def _written_where_and_when(self) -> tuple[str | None, list[str], float | None, float | None]:
        """Working directory, arguments, start and end time, which locate the files of a program."""
        cwd, args = self.info.get("cwd"), self.info.get("args")
        words = [word for word in args if isinstance(word, str)] if isinstance(args, list) else []
        return cwd if isinstance(cwd, str) else None, words, self.records.started_at, self.records.ended_at

    @property
    def _readers(self) -> tuple[LogMetrics, FoundMetrics]:
        """The readers of a program's curves: of its log, and of all; new ones once the user chose other curves."""
        with self._reading:
            curves = curve_patterns(self.info)
            if self._known is None or self._known[0] != curves:
                printed = log_metrics(self.files, self.info)
                self._known = curves, (printed, FoundMetrics(self.dir, printed, self._own))
            return self._known[1]

    def _newest_rows(self) -> History:
        """Return the newest metric rows, at least: the whole file is not read for them."""
        with self._reading:
            status = _status(self.files.metrics)
            is_small = status is None or (self._has_program_log and status.st_size < _SMALL_BYTES)
            return self.own_history if self._has_rows or is_small else newest_rows(self.files.metrics)

    @property
    def _has_rows(self) -> bool:
        return self._is_read and self._own.num_rows > 0

    def _newest_values(self) -> tuple[int, dict[str, float]]:
        """Return the last step (0: none) and the last values in the newest rows; reads them again if they changed."""
        with self._reading:
            stamp = None
            if not self._has_program_log and (status := _status(self.files.metrics)):
                stamp = status.st_ino, status.st_size, status.st_mtime_ns, self._has_rows
            if self._newest is None or stamp is None or stamp != self._newest[0]:
                rows = self._newest_rows()
                self._newest = stamp, (rows.last_step or 0, _last_values(rows))
            return self._newest[1]

    @property
    def history(self) -> History:
        """Metric rows of this run, preceded by those of the runs it resumed, up to the step of each resume."""
        with self._reading:
            if self._ancestors is None and self.info:
                self._ancestors = ancestors(self.dir, self.info)
        if not self._ancestors:
            return self.own_history
        if self._has_program_log:
            return self._joined_program(self.own_history)
        if self._joined is None:  # the ancestors have ended, so they are read once
            parts = [(Run(path).own_history, step) for path, step in reversed(self._ancestors)]
            joined = History.chained([*parts, (History(), MAX_STEP)])
            with self._reading:
                self._joined = joined if self._joined is None else self._joined
        self._joined.follow(self._joined_tail)
        return self._joined

    def _joined_program(self, own: History) -> History:
        """Return the rows of a program after those of the runs it resumed."""
        with self._reading:
            key = id(own), own.version
            if self._joined is None or key != self._joined_key:
                earlier = reversed(self._ancestors or ())
                self._earlier = self._earlier or [(Run(path).own_history, step) for path, step in earlier]
                self._joined, self._shift = joined_runs([*self._earlier, (own, MAX_STEP)])
                self._joined_key = key
            return self._joined

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        return _last_values(self.own_history)

    @property
    def checkpoints(self) -> list[AnyCheckpoint]:
        """Checkpoints of this run, oldest first; those of a program of the user's are known by their names."""
        saved = checkpoints_in(self.files.checkpoints)
        if saved or not self._has_program_log:
            return [*saved]
        with self._reading:
            found = self._foreign.look(*self._written_where_and_when, pattern_of(self))
            if all(one.step is not None for one in found) and self.parent is None:
                return [*found]
            own = self.own_history
            return [*with_steps(found, own, shift_of(self))]

    @property
    def _has_program(self) -> bool:
        """Whether the run runs a user's program, not a recipe."""
        return self.info.get("recipe") is None and (self.config or {}).get("recipe") is None

    @property
    def media(self) -> list[media.MediaItem]:
        """The newest sample, table or chart of each name."""
        return media.latest(self.files.media)

    def log(self, num_lines: int = 200) -> str:
        """Return the last lines of rank 0's log as plain text (not escaped for HTML), without secret arguments."""
        return without_secrets("\n".join(last_lines(self.files.log, num_lines)), secrets_of(self.files))

    # --- stop and wait ---

    def stop(self, timeout_s: float | None = None) -> str:
        """Ask the run to end; kill the processes that remain after `timeout_s`.

        A recipe saves a checkpoint first; a program gets the `stop_signal` of its `Program`. `timeout_s` is by default
        `shutdown_timeout_s` of the launch plus a margin.

        Returns:
            One sentence: the last step, the signal that a program got, the newest checkpoint, and the processes that
            ended or remain.

        Raises:
            NbtoolsError: The run is on another machine or belongs to another user.
        """
        settings = mapping_at(self.info, "launch")
        if timeout_s is None:
            granted = finite(settings.get("shutdown_timeout_s"))
            timeout_s = (60 if granted is None else granted) + processes.STOP_GRACE_S + 5
        before, asked_at, known = self.state, time.time(), {saved.path for saved in self.checkpoints}
        if before.is_final and before is not RunState.LOST and not left_behind(self.records):
            return f"{self.id} had already ended: {before} at step {self.step}"
        used = chosen_gpus(settings.get("gpus"))
        if runs_on_slurm(self.records) and not before.is_final:
            ending = stop_job(self.records, timeout_s)
        else:
            ending = stop_processes(self.files, lambda: self.state.is_final, timeout_s)
        if is_removed(self.files):
            return f"its run directory was removed; {ending}"
        state, saved = self.state, self.checkpoints
        if state is RunState.STOPPED and not has_started(self.files) and not ending.left:
            return "cancelled while queued; it had not started"
        how = f"killed after {timeout_s:.0f} s" if ending.was_killed else str(state).lower()
        how += f" at step {self.step}" + (f" on {stop_signal(self.info).name}" if self.info.get("program") else "")
        if state is RunState.FAILED and (failure := self.failure) is not None:
            how += f": {failure.message}"
        parts = [how if state.is_final else f"still {state} at step {self.step}, although killed"]
        if not saved:
            shared = "; ".join(shared_outputs(self))
            parts.append(f"no checkpoint was found ({shared})" if shared else "no checkpoint was saved")
        else:
            newest = saved[-1]
            is_old = newest.path in known if isinstance(newest, Checkpoint) else newest.time < asked_at
            parts.append(f"newest checkpoint {newest.name}" if is_old else f"checkpoint {newest.name} saved")
        return "; ".join([*parts, str(ending), *other_machines(self.records), *released(used)])

    def wait(self, timeout_s: float | None = None, check: bool = True) -> RunState:
        """Wait for the end and return the state.

        Raises:
            RunFailed: The run ended as FAILED or LOST, and `check` is true.
            TimeoutError: The run has not ended after `timeout_s`; it continues.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not (state := self.state).is_final:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} is still {state} after {timeout_s:.0f} s; it continues")
            try:
                time.sleep(0.1)
            except KeyboardInterrupt:
                raise KeyboardInterrupt(f"the wait ended; {self.id} continues: nbtools stop {self.id}") from None
        if check and state in (RunState.FAILED, RunState.LOST):
            lines = "\n  ".join(failure.lines if (failure := self.failure) else [])
            raise RunFailed(f"{self.id} {state}: {lines}\n(log: {self.files.log})")
        return state

    # --- display ---

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.dir == other.dir

    def __hash__(self) -> int:
        return hash(self.dir)

    def summary(self, *, stacks: bool = False, brief: bool = False) -> dict[str, Any]:
        """Return what `nbtools show --json` prints, as strict JSON values.

        Args:
            stacks: Add the stacks of every rank.
            brief: Take the metrics from the record of the end, else from the newest rows; the others are not read.
        """
        saved, state, failure = self.checkpoints, self.state, self.failure
        metrics = newest_metrics(self) if brief else self.metrics
        best, labels = best_of(one for one in saved if isinstance(one, Checkpoint)), self.records.labels
        return {
            "id": self.id,
            "name": self.name,
            "tags": list(labels.tags),
            "note": labels.note,
            "script": self.info.get("script"),
            **started_as(self.info),
            "state": str(state),
            "returncode": self.returncode,
            "step": self.step,
            "total_steps": self.total_steps,
            "metrics": {name: strict_number(value) for name, value in metrics.items()},
            "units": {} if brief else {name: series.unit for name, series in self.own_history.items()},
            "curves": curve_sources(self),
            "checkpoints": [{**checkpoint.to_json(), "best": checkpoint in best} for checkpoint in saved],
            "shared": shared_outputs(self),
            "ranks": [beat.to_json() for beat in read_heartbeats(self.files)],
            "stragglers": [{"rank": one.beat.rank, "message": str(one)} for one in self.stragglers],
            **({"stacks": [asdict(found) for found in take_stacks(self.files)]} if stacks else {}),
            "waiting_for": waiting_for(self.records),
            "silent_s": silent_s(self),
            "stopped_on": why_stopped(self.records),
            "unsaved": unsaved(self.records),
            "outputs": one_line(str(self.records.finished.get("outputs") or ""), 500),
            "why_stopped": stopped_in_words(self.records) if state is RunState.STOPPED else "",
            "eta_s": remaining_s(self),
            "job": job_facts(self.records, is_active=not state.is_final),
            "join": {str(node): command for node, command in commands_to_join(self.records).items()},
            "restarts": len(read_restarts(self.files)),
            "failure": None if failure is None else failure.to_json(),
            "started_at": self.records.began_at,
            "ended_at": self.records.ended_at,
            "parent": parent.id if (parent := self.parent) else None,
            "code": source_in_words(self.info),
            "origin": origin_in_words(self.info.get("resumed_from")),
            "weights": weights_in_words(self.config),
        }

    def __repr__(self) -> str:
        try:
            return f"Run({self.id!r}, {self.state}, step {step_of_total(self)})"
        except OSError as error:
            return f"Run({self.id!r}, unreadable: {one_line(str(error))})"

    def _repr_html_(self) -> str:
        try:
            rows = [("state", str(self.state)), ("step", step_of_total(self)), ("directory", str(self.dir))]
            rows += [(name, f"{value:.4g}") for name, value in sorted(self.metrics.items())]
            rows += [] if (failure := self.failure) is None else [("failure", failure.headline)]
        except OSError as error:
            rows = [("unreadable", str(error))]
        return html_table([(self.id, ""), *rows])


def last_step(run: Run, read: Callable[[], Sequence[RankHeartbeat]]) -> int:
    """Return `run.step`; `read`, which returns the ranks' heartbeats, is called only if needed."""
    recorded = whole(run.records.finished.get("step"))
    if recorded is not None:
        return recorded
    if (last := run._last_step) is None:
        has_ended = run.records.exit is not None  # no row follows, so the value can be kept
        last = max(run._newest_values()[0] + shift_of(run), *(beat.step for beat in read()), 0)
        run._last_step = last if has_ended else None
    return last


def curve_sources(run: Run) -> list[str]:
    """Return, a line each, from which file the curves of a script come, and what was seen but not understood."""
    if not run._has_program_log or run.own_history is run._own:
        return []
    notes, kinds = run._readers[1].notes(), line_kinds(run)
    drawn = [kind for kind in kinds if any(name in run.own_history for name in kind.curves)]
    if kinds:
        notes[0] += f"; {plural(len(kinds), 'kind')} of lines with numbers, {len(drawn)} drawn"
    for kind in drawn:
        counted = f"counted by {kind.counter}" if kind.counter else "without a counter"
        read = _READ_BY.get(kind.source, kind.source)
        notes.append(f"{', '.join(kind.curves)}: {read}, {counted}: {one_line(kind.example, 200)}")
    notes += [_SHIFTED.format(run._shift)] if shift_of(run) else []
    return notes


def line_kinds(run: Run) -> list[LineKind]:
    """Return the kinds of lines with numbers that a program printed, the most frequent first; none for a recipe."""
    hidden = secrets_of(run.files) if run._has_program_log else []
    kinds = run._readers[0].kinds if run._has_program_log else []
    kinds = [replace(kind, example=without_secrets(kind.example, hidden)) for kind in kinds]
    return [kind for kind in kinds if numbers_in(kind.example)]


def metric_sources(run: Run) -> list[MetricSource]:
    """Return the files from which the curves of a script come, with what counts their rows; those found so far."""
    return run._readers[1].sources if run._has_program_log else []


def shift_of(run: Run) -> int:
    """Return by how many steps the rows of a run are shifted in its history: its program began to count again."""
    return run._shift if run._has_program_log and run.parent is not None and len(run.history) else 0


def pattern_of(run: Run) -> str:
    """Return the pattern of the checkpoints of a program; empty without one, and for the run of another user, whose
    pattern could have every folder of this machine read."""
    return "" if foreign_owner(run.dir) else checkpoints_and_resume(run.info)[0]


def shared_outputs(run: Run) -> list[str]:
    """Return, a sentence each, folders whose checkpoints are not listed: another run may have written them."""
    return [
        f"{folder}: its checkpoints are not listed, since {other} ran at the same time and may have written them; give "
        "each run a folder of its own"
        for folder, other in (run._foreign.shared if run._has_program_log else {}).items()
    ]


def why_no_checkpoints(run: Run) -> str:
    """Return why no checkpoint of a program is listed; empty if one is, and of a recipe."""
    if run.checkpoints or not run._has_program_log:
        return ""
    pattern = pattern_of(run)
    usual = f"none of its files is named {pattern}" if pattern else "none of its files has a checkpoint's name"
    return "; ".join(shared_outputs(run)) or usual


def silent_s(run: Run) -> float | None:
    """Return the seconds since a running program without a metric last printed; None for every other run."""
    if run._has_program_log and run.state is RunState.RUNNING and run.own_history.last_step is None:
        with contextlib.suppress(OSError):
            return max(0.0, time.time() - run.files.log.stat().st_mtime)
    return None


def remaining_s(run: Run) -> float | None:
    """Return the estimated seconds to the last step of an active run; None if unknown."""
    if run.state.is_final:
        return None
    pace, _ = run._newest_rows().pace()  # without the pause between the parent and the resume
    return max(0, run.total_steps - run.step) * pace if pace and run.total_steps else None


def _without_row(failure: Failure) -> Failure:
    """Return a failure whose message does not end with a row of the curves, as a program prints before `sys.exit`."""
    head, _, printed = failure.message.partition(": ")
    row = read_line(folded(printed)) if head.startswith("exited with code") else None
    if row is None or not row.values or not row.counters:
        return failure
    return replace(failure, message=f"{head} without a message (sys.exit?)")


def is_read(run: Run) -> bool:
    """Whether the metric rows of a run were read before, so that its history takes little time."""
    return run._is_read


def newest_history(run: Run) -> History:
    """Return the newest metric rows of a run, at least; a long file is not read for them."""
    return run._newest_rows()


def newest_value(run: Run, name: str) -> float | None:
    """Return the last value of a metric in the newest rows of a run; None if they lack it."""
    return run._newest_values()[1].get(name)


def newest_metrics(run: Run) -> dict[str, float]:
    """Return the metrics that a run recorded at its end, else the last values in its newest rows."""
    recorded = mapping_at(run.records.finished, "metrics")
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if recorded:
            return {name: float(value) for name, value in recorded.items()}
    return dict(run._newest_values()[1])


def _last_values(history: History) -> dict[str, float]:
    found = {name: history.last(name) for name in history}
    return {name: value for name, value in found.items() if value is not None}


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return path.stat()
    return None


def _located(ref: str | Path) -> Path:
    if isinstance(ref, Path) or os.sep in ref:
        path = located(ref)
        if not is_run(path):
            if (removed := _removed(path.parent, path.name)) is not None:
                return removed
            raise RunNotFoundError(f"{path}: is not a run directory (it has neither launch.json nor lock)")
        # Another user's link keeps its name, so that it is not taken for the run of this user to which it may lead.
        return path.resolve() if path.is_symlink() and foreign_owner(path) is None else path
    runs = find_project().runs
    try:
        found = find_run(runs, ref)
    except RunNotFoundError:
        if (removed := _removed(runs, ref)) is None:
            raise
        return removed
    is_longer = found.name != ref and found.name.startswith(ref)  # ID_2, and ID may be the removed run
    return (_removed(runs, ref) if is_longer else None) or found


def _removed(runs: Path, name: str) -> Path | None:
    """Return the path of a run whose directory was removed while its processes live, by its id or name."""
    found = [run.path for run in processes.removed_runs(runs) if name in (run.id, name_of(run.id))]
    return found[-1] if found else None


def step_of_total(run: Run) -> str:
    """Return the step of a run, and the number of steps where that is known: `20/400`."""
    total = run.total_steps
    return f"{run.step}" if total is None else f"{run.step}/{total}"
