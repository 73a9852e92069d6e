"""A run: its state, curves, checkpoints and log, derived from the run directory at each access."""

import contextlib
import html
import math
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from nbtools.errors import RunFailed, RunNotFoundError
from nbtools.failures.failure import Failure, lost
from nbtools.failures.restarts import read_restarts
from nbtools.machine import processes
from nbtools.metrics.history import History, newest_rows
from nbtools.metrics.readers.printed import LogMetrics
from nbtools.project import find_project, located
from nbtools.run.checkpoints import Checkpoint, best_of, checkpoints_in
from nbtools.run.lineage import ancestors, origin_in_words, parent_folder
from nbtools.run.records import Records, mapping_at
from nbtools.run.stacks import take_stacks
from nbtools.run.state import RunState, state_of, waiting_for
from nbtools.run.stop import chosen_gpus, left_behind, released
from nbtools.run.stragglers import Straggler, stragglers
from nbtools.rundir import media
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import MAX_STEP, finite, strict_number, whole
from nbtools.rundir.media import MediaItem
from nbtools.rundir.rundir import RunDir, find_run, is_run, name_of
from nbtools.rundir.tail import Tail, last_lines


class Run:
    """One run. Cheap to create, safe to use from several threads; owns no process.

    A fresh kernel, the command line and a colleague on a network file system read the same files. What has no
    member here is a function of `run.files` or `run.records`: `read_heartbeats`, `read_restarts`, `take_stacks`,
    `waiting_for`.

    Args:
        ref: A run's id, a prefix of exactly one id, `"latest"`, or the path of a run directory. A `RunDir` is not
            looked for.

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
        self._ancestors: list[tuple[Path, int]] | None = None
        self._last_step: int | None = None
        self._printed = LogMetrics(self.files.log)

    @classmethod
    def latest(cls) -> Self:
        """The newest run of the project."""
        return cls("latest")

    @property
    def name(self) -> str:
        """The name of the script, without `.py`."""
        return str(self.info.get("name") or name_of(self.id))

    @property
    def info(self) -> dict[str, Any]:
        """How the run was started (launch.json); empty until that file exists."""
        return self.records.launch

    @property
    def config(self) -> dict[str, Any] | None:
        """The config as run, the values that flags overrode, and what is derived; None before training starts."""
        return self.records.config

    @property
    def state(self) -> RunState:
        """What the run is doing now."""
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
            return lost(self.files, process.host if process else None, self.step)
        if state is not RunState.FAILED:
            return None
        for record in (self.records.exit or {}, self.records.finished):
            failure = Failure.from_json(record.get("failure"))
            if failure is not None:
                return failure
        return Failure(None, None, self.returncode, None, f"exited with code {self.returncode}")

    @property
    def stragglers(self) -> list[Straggler]:
        """The ranks that hang, or that the others wait for; empty unless the run is RUNNING."""
        beats = read_heartbeats(self.files) if self.state is RunState.RUNNING else []
        return stragglers(beats, time.time(), self._newest_rows().pace()[0] if beats else None)

    @property
    def step(self) -> int:
        """The last optimizer step: as rank 0 recorded it at its end, else the greatest in metrics and heartbeats."""
        recorded = whole(self.records.finished.get("step"))
        if recorded is not None:
            return recorded
        if (last := self._last_step) is None:
            has_ended = self.records.exit is not None  # no row follows, so the value can be kept
            last = max(self._newest_values()[0], *(beat.step for beat in read_heartbeats(self.files)), 0)
            self._last_step = last if has_ended else None
        return last

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the config; None before training starts, and for a script that is not a recipe's."""
        return whole(mapping_at(self.config or {}, "derived").get("total_steps"))

    @property
    def parent(self) -> "Run | None":
        """The run that this one resumed; None if there is none or it was deleted."""
        path = parent_folder(self.dir, self.info)
        return None if path is None else Run(path)

    # --- curves, checkpoints, log ---

    @property
    def own_history(self) -> History:
        """Metric rows of this run alone; each access reads only the rows that were added since the last."""
        with self._reading:
            # A foreign script has only its log; an edited recipe script writes metrics.jsonl later.
            if self.info.get("recipe") is None and self.files.log.exists() and not self.files.metrics.exists():
                return self._printed.history
            self._own.follow(self._own_tail)
            return self._own

    def _newest_rows(self) -> History:
        """Return the newest metric rows, at least: the whole file is not read for them."""
        with self._reading:
            is_read = self._own.num_rows > 0 or not self.files.metrics.exists()
            return self.own_history if is_read else newest_rows(self.files.metrics)

    def _newest_values(self) -> tuple[int, dict[str, float]]:
        """Return the last step (0: none) and the last values in the newest rows; reads them again if they changed."""
        with self._reading:
            stamp = None
            with contextlib.suppress(OSError):
                status = self.files.metrics.stat()
                stamp = status.st_ino, status.st_size, status.st_mtime_ns, self._own.num_rows > 0
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
            if self._joined is None:  # the ancestors have ended, so they are read once
                parts = [(Run(path).own_history, step) for path, step in reversed(self._ancestors)]
                self._joined = History.chained([*parts, (History(), MAX_STEP)])
            self._joined.follow(self._joined_tail)
            return self._joined

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        return _last_values(self.own_history)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints of this run, oldest first."""
        return checkpoints_in(self.files.checkpoints)

    @property
    def media(self) -> list[MediaItem]:
        """The newest sample, table or chart of each name."""
        return media.latest(media.folder_of(self.files))

    def log(self, num_lines: int = 200) -> str:
        """Return the last lines of rank 0's log as plain text (not escaped for HTML)."""
        return "\n".join(last_lines(self.files.log, num_lines))

    # --- stop and wait ---

    def stop(self, timeout_s: float | None = None) -> str:
        """Ask the run to save a checkpoint and end; kill the processes that remain after `timeout_s`.

        `timeout_s` is by default `shutdown_timeout_s` of the launch plus a margin.

        Returns:
            One sentence: the last step, the newest checkpoint, and the processes that ended or remain.

        Raises:
            NbtoolsError: The run is on another machine or belongs to another user.
        """
        settings = mapping_at(self.info, "launch")
        if timeout_s is None:
            granted = finite(settings.get("shutdown_timeout_s"))
            timeout_s = (60 if granted is None else granted) + processes.STOP_GRACE_S + 5
        before, known = self.state, {checkpoint.step for checkpoint in self.checkpoints}
        if before.is_final and before is not RunState.LOST and not left_behind(self.records):
            return f"{self.id} had already ended: {before} at step {self.step}"
        used = chosen_gpus(settings.get("gpus"))
        ending = processes.stop_processes(self.files, lambda: self.state.is_final, timeout_s)
        state, saved = self.state, self.checkpoints
        if state is RunState.STOPPED and not self.files.log.exists() and not ending.left:
            return "cancelled while queued; it had not started"
        how = f"killed after {timeout_s:.0f} s" if ending.was_killed else str(state).lower()
        how += f" at step {self.step}"
        parts = [how if state.is_final else f"still {state} at step {self.step}, although killed"]
        if not saved:
            parts.append("no checkpoint was saved")
        else:
            is_old = saved[-1].step in known
            parts.append(f"newest checkpoint {saved[-1].name}" if is_old else f"checkpoint {saved[-1].name} saved")
        return "; ".join([*parts, str(ending), *released(used)])

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
            time.sleep(0.1)
        if check and state in (RunState.FAILED, RunState.LOST):
            lines = "\n  ".join(failure.lines if (failure := self.failure) else [])
            raise RunFailed(f"{self.id} {state}: {lines}\n(log: {self.files.log})")
        return state

    # --- display ---

    def summary(self, *, stacks: bool = False, brief: bool = False) -> dict[str, Any]:
        """Return what `nbtools show --json` prints, as strict JSON values.

        Args:
            stacks: Add the stacks of every rank.
            brief: Take the metrics from the record of the end, else from the newest rows; the others are not read.
        """
        saved, state, failure = self.checkpoints, self.state, self.failure
        metrics = newest_metrics(self) if brief else self.metrics
        best = best_of(saved)
        return {
            "id": self.id,
            "name": self.name,
            "script": self.info.get("script"),
            "state": str(state),
            "returncode": self.returncode,
            "step": self.step,
            "total_steps": self.total_steps,
            "metrics": {name: strict_number(value) for name, value in metrics.items()},
            "checkpoints": [{**checkpoint.to_json(), "best": checkpoint in best} for checkpoint in saved],
            "ranks": [beat.to_json() for beat in read_heartbeats(self.files)],
            "stragglers": [{"rank": one.beat.rank, "message": str(one)} for one in self.stragglers],
            **({"stacks": [asdict(found) for found in take_stacks(self.files)]} if stacks else {}),
            "waiting_for": waiting_for(self.records),
            "restarts": len(read_restarts(self.files)),
            "failure": None if failure is None else failure.to_json(),
            "started_at": self.records.started_at,
            "ended_at": self.records.ended_at,
            "parent": parent.id if (parent := self.parent) else None,
            "origin": origin_in_words(self.info.get("resumed_from")),
        }

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state}, step {step_of_total(self)})"

    def _repr_html_(self) -> str:
        failure = self.failure
        rows = [("state", str(self.state)), ("step", step_of_total(self)), ("directory", str(self.dir))]
        rows += [(name, f"{value:.4g}") for name, value in sorted(self.metrics.items())]
        rows += [] if failure is None else [("failure", failure.headline)]
        return html_table([(self.id, ""), *rows])


def newest_metrics(run: Run) -> dict[str, float]:
    """Return the metrics that a run recorded at its end, else the last values in its newest rows."""
    recorded = mapping_at(run.records.finished, "metrics")
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if recorded:
            return {name: float(value) for name, value in recorded.items()}
    return dict(run._newest_values()[1])


def _last_values(history: History) -> dict[str, float]:
    found = {name: history.last(name) for name in history.keys()}  # noqa: SIM118 - not a dict
    return {name: value for name, value in found.items() if value is not None}


def _located(ref: str | Path) -> Path:
    if isinstance(ref, Path) or os.sep in ref:
        path = located(ref)
        if not is_run(path):
            raise RunNotFoundError(f"{path}: is not a run directory (it has neither launch.json nor lock)")
        return path.resolve() if path.is_symlink() else path
    return find_run(find_project().runs, ref)


def step_of_total(run: Run) -> str:
    """Return the step of a run, and the number of steps where that is known: `20/400`."""
    total = run.total_steps
    return f"{run.step}" if total is None else f"{run.step}/{total}"


def html_table(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of plain text as an HTML table; every cell is escaped."""
    cells = ("".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table class='mathjax_ignore tex2jax_ignore'>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
