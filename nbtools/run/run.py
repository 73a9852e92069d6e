"""A run: its state, curves, checkpoints and log, derived from the run directory at each access."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from nbtools.errors import ConfigError, LaunchError, RunFailed, RunNotFoundError, html_table, shown
from nbtools.failures.failure import Failure, lost
from nbtools.failures.restarts import read_restarts
from nbtools.machine import processes
from nbtools.metrics.history import History
from nbtools.metrics.printed.grammars import read_line
from nbtools.metrics.printed.shapes import folded
from nbtools.metrics.readers.checkpoint_steps import with_steps
from nbtools.project import find_project, located
from nbtools.run import facts
from nbtools.run.checkpoints import AnyCheckpoint, Checkpoint, best_of, checkpoints_in
from nbtools.run.lineage import parent_folder
from nbtools.run.ranks.phases import PhaseRows, why_slow
from nbtools.run.ranks.stacks import take_stacks
from nbtools.run.ranks.stragglers import Straggler, stragglers
from nbtools.run.records import Records, checkpoints_and_resume, mapping_at, shutdown_timeout_s, stop_signal
from nbtools.run.run_history import RunHistory, last_values
from nbtools.run.slurm_job import end_in_words, job_facts, runs_on_slurm
from nbtools.run.state import RunState, commands_to_join, state_of, unsaved, waiting_for, why_stopped
from nbtools.run.stop import left_behind, other_machines, stop_job, stop_processes
from nbtools.rundir import media
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import strict_number, whole
from nbtools.rundir.names import find_run
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoints
from nbtools.rundir.requests.conditions import NOTIFY_ON, why_wrong
from nbtools.rundir.requests.events import Event, changed_values, read_events
from nbtools.rundir.requests.steer import steer
from nbtools.rundir.rundir import RunDir, foreign_owner, has_started, is_removed, is_run, name_of
from nbtools.rundir.secret_values import secrets_of, without_secrets
from nbtools.rundir.tail import last_lines, one_line

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
        rows: Its metric rows, and where they come from.
        of_program: The checkpoints of a user's program.

    Raises:
        RunNotFoundError: No run matches, or several do.
    """

    def __init__(self, ref: str | Path | RunDir) -> None:
        self.files = ref if isinstance(ref, RunDir) else RunDir(_located(ref))
        self.id, self.dir = self.files.id, self.files.path
        self.records = Records(self.files)
        self.rows, self.of_program = RunHistory(self.files), ForeignCheckpoints(self.dir)
        self._reading = threading.RLock()
        self._parent: Run | None = None
        self._last_step: int | None = None

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
        if not self.rows.is_program or failure.loss is not None:
            return failure
        rows = self.own_history
        step = failure.step
        if step is None and rows.has_steps and rows.last_step is not None:
            step = rows.last_step + self.rows.shift
        return replace(failure, step=step, loss=rows.last("train/loss") if "train/loss" in rows else None)

    @property
    def stragglers(self) -> list[Straggler]:
        """The ranks that hang, or that the others wait for; empty unless the run is RUNNING."""
        beats = read_heartbeats(self.files) if self.state is RunState.RUNNING else []
        return stragglers(beats, time.time(), self.rows.newest.pace()[0] if beats else None)

    @property
    def step(self) -> int:
        """The last optimizer step: as rank 0 recorded it at its end, else the greatest in metrics and heartbeats.

        A program whose count begins again after a resume is counted on from its parent, as in `history`.
        """
        recorded = whole(self.records.finished.get("step"))
        if recorded is not None:
            return recorded
        if (last := self._last_step) is None:
            has_ended = self.records.exit is not None  # no row follows, so the value can be kept
            beats = read_heartbeats(self.files)
            last = max(self.rows.newest_values[0] + self.rows.shift, *(beat.step for beat in beats), 0)
            self._last_step = last if has_ended else None
        return last

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the config, or as a script prints it (`17/250`); None if unknown."""
        planned = whole(mapping_at(self.config or {}, "derived").get("total_steps"))
        total = whole(changed_values(self.events).get("max_steps")) or planned or self.rows.total_steps
        return total and total + self.rows.shift

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
        return self.rows.own

    @property
    def history(self) -> History:
        """Metric rows of this run, preceded by those of the runs it resumed, up to the step of each resume."""
        return self.rows.joined

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        return last_values(self.own_history)

    @property
    def checkpoints(self) -> list[AnyCheckpoint]:
        """Checkpoints of this run, oldest first; those of a program of the user's are known by their names."""
        saved = checkpoints_in(self.files.checkpoints)
        if saved or not self.rows.is_program:
            return [*saved]
        with self._reading:
            found = self.of_program.look(self.records.ended_at, pattern_of(self))
            if all(one.step is not None for one in found) and self.parent is None:
                return [*found]
            return [*with_steps(found, self.own_history, self.rows.shift)]

    @property
    def media(self) -> list[media.MediaItem]:
        """The newest sample, table or chart of each name."""
        return media.latest(self.files.media)

    def log(self, num_lines: int = 200) -> str:
        """Return the last lines of rank 0's log as plain text (not escaped for HTML), without secret arguments."""
        return without_secrets("\n".join(last_lines(self.files.log, num_lines)), secrets_of(self.files))

    def phases(self, first: float = 0, last: float = math.inf) -> dict[int, dict[str, float]]:
        """Return the seconds of each rank in each phase from one step to another."""
        return PhaseRows(self.files).seconds((first, last))

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
        if timeout_s is None:
            timeout_s = shutdown_timeout_s(self.info) + processes.STOP_GRACE_S + 5
        before, asked_at, known = self.state, time.time(), {saved.path for saved in self.checkpoints}
        if before.is_final and before is not RunState.LOST and not left_behind(self.records):
            return f"{self.id} had already ended: {before} at step {self.step}"
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
        return "; ".join([*parts, str(ending), *other_machines(self.records)])

    @property
    def events(self) -> list[Event]:
        """The answers to the requests to the running training, oldest first: see `steer`."""
        return read_events(self.files)

    def steer(
        self, *actions: str, timeout_s: float = 10.0, notify_on: Mapping[str, object] | None = None, **values: object
    ) -> str:
        """Change a running training: take actions, or change values for the steps that are left.

        All ranks apply it after the same step. `run.steer("save")`, `run.steer(learning_rate=5e-4)`.

        Args:
            actions: `save`, `evaluate`, `pause`, `continue` or `profile` (the next five steps).
            timeout_s: Seconds to wait for the answer.
            notify_on: Conditions to change, whatever the program is, such as `{"stalled_min": 10, "failed": True}`.
            values: Config fields and their new values: each learning rate (a new peak; the schedule keeps its shape),
                `max_steps`, `log_every`, `eval_every`, `checkpoint_every`.

        Returns:
            One sentence: what was done after which step, or that there is no answer yet.

        Raises:
            ConfigError: The training does not take what was asked for, or refused it.
            LaunchError: The run does not run, takes no requests, or belongs to another user.
        """
        if notify_on and (why := why_wrong(notify_on)):
            raise ConfigError(why)
        values |= {f"{NOTIFY_ON}{name}": value for name, value in (notify_on or {}).items()}
        if (state := self.state) is not RunState.RUNNING:
            asked = ", ".join(map(shown, (*actions, *values)))
            raise LaunchError(f"{asked}: {self.id} is {state}; only a running training can be steered")
        found = steer(self.files, lambda: self.state.is_final, actions, values, timeout_s)
        if not found:
            return f"{self.id} has not answered within {timeout_s:g} s; a training does after its current step"
        return f"after step {found[-1].step}: {', '.join(map(str, found))}"

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
        metrics = self.rows.newest_metrics if brief else self.metrics
        phases = {} if brief else self.phases()
        best, labels = best_of(saved), self.records.labels
        return {
            "id": self.id,
            "name": self.name,
            "tags": list(labels.tags),
            "note": labels.note,
            "script": self.info.get("script"),
            **facts.started_as(self.info),
            "state": str(state),
            "returncode": self.returncode,
            "step": self.step,
            "total_steps": self.total_steps,
            "metrics": {name: strict_number(value) for name, value in metrics.items()},
            "units": {} if brief else {name: series.unit for name, series in self.own_history.items()},
            "curves": self.rows.notes,
            "events": [event.to_json() for event in self.events],
            "checkpoints": [{**checkpoint.to_json(), "best": checkpoint in best} for checkpoint in saved],
            "shared": shared_outputs(self),
            "ranks": [beat.to_json() for beat in read_heartbeats(self.files)],
            "stragglers": [{"rank": one.beat.rank, "message": str(one)} for one in self.stragglers],
            "phases": [{"rank": rank, **seconds} for rank, seconds in phases.items()],
            "slow": why_slow(phases),
            **({"stacks": [asdict(found) for found in take_stacks(self.files)]} if stacks else {}),
            "waiting_for": waiting_for(self.records),
            "silent_s": silent_s(self),
            "stopped_on": why_stopped(self.records),
            "notices": [" ".join(pair) for pair in facts.notices(self.files)],
            "unsaved": unsaved(self.records),
            "outputs": one_line(str(self.records.finished.get("outputs") or ""), 500),
            "why_stopped": facts.stopped_by(self.records) if state is RunState.STOPPED else "",
            "eta_s": remaining_s(self),
            "job": job_facts(self.records, is_active=not state.is_final),
            "join": {str(node): command for node, command in commands_to_join(self.records).items()},
            "restarts": len(read_restarts(self.files)),
            "failure": None if failure is None else failure.to_json(),
            "started_at": self.records.began_at,
            "ended_at": self.records.ended_at,
            "parent": parent.id if (parent := self.parent) else None,
            "code": facts.commit(self.info),
            "origin": facts.origin(self.info),
            "weights": facts.weights(self.config),
        }

    def __repr__(self) -> str:
        try:
            return f"Run({self.id!r}, {self.state}, step {facts.steps(self.step, self.total_steps)})"
        except OSError as error:
            return f"Run({self.id!r}, unreadable: {one_line(str(error))})"

    def _repr_html_(self) -> str:
        try:
            rows = [("state", str(self.state)), ("step", facts.steps(self.step, self.total_steps))]
            rows += [("directory", str(self.dir))]
            rows += [(name, f"{value:.4g}") for name, value in sorted(self.metrics.items())]
            rows += [] if (failure := self.failure) is None else [("failure", failure.headline)]
        except OSError as error:
            rows = [("unreadable", str(error))]
        return html_table([(self.id, ""), *rows])


def pattern_of(run: Run) -> str:
    """Return the pattern of the checkpoints of a program; empty without one, and for the run of another user, whose
    pattern could have every folder of this machine read."""
    return "" if foreign_owner(run.dir) else checkpoints_and_resume(run.info)[0]


def shared_outputs(run: Run) -> list[str]:
    """Return, a sentence each, folders whose checkpoints are not listed: another run may have written them."""
    return [
        f"{folder}: its checkpoints are not listed, since {other} ran at the same time and may have written them; give "
        "each run a folder of its own"
        for folder, other in run.of_program.shared.items()
    ]


def why_no_checkpoints(run: Run) -> str:
    """Return why no checkpoint of a program is listed; empty if one is, and of a recipe."""
    if run.checkpoints or not run.rows.is_program:
        return ""
    pattern = pattern_of(run)
    usual = f"none of its files is named {pattern}" if pattern else "none of its files has a checkpoint's name"
    return "; ".join(shared_outputs(run)) or usual


def silent_s(run: Run) -> float | None:
    """Return the seconds since a running program without a metric last printed; None for every other run."""
    if run.rows.is_program and run.state is RunState.RUNNING and run.own_history.last_step is None:
        with contextlib.suppress(OSError):
            return max(0.0, time.time() - run.files.log.stat().st_mtime)
    return None


def remaining_s(run: Run) -> float | None:
    """Return the estimated seconds to the last step of an active run; None if unknown."""
    if run.state.is_final:
        return None
    pace, _ = run.rows.newest.pace()  # without the pause between the parent and the resume
    return max(0, run.total_steps - run.step) * pace if pace and run.total_steps else None


def _without_row(failure: Failure) -> Failure:
    """Return a failure whose message does not end with a row of the curves, as a program prints before `sys.exit`."""
    head, _, printed = failure.message.partition(": ")
    row = read_line(folded(printed)) if head.startswith("exited with code") else None
    if row is None or not row.values or not row.counters:
        return failure
    return replace(failure, message=f"{head} without a message (sys.exit?)")


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
