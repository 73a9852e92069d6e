"""A run, seen from outside: its state, curves, checkpoints and log, and the one thing that acts on it, `stop`.

Everything is derived from the run directory at the moment it is asked for. A fresh kernel, the command line and a
colleague over a network file system are the same kind of reader, and none of them keeps the run alive.
"""

import functools
import html
import math
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from nbtools.errors import RunFailed, RunNotFoundError
from nbtools.failures.failure import Failure
from nbtools.failures.restarts import Restart, read_restarts
from nbtools.machine import gpu_queue
from nbtools.metrics.history import History
from nbtools.metrics.readers.printed import LogMetrics
from nbtools.project import find_project, located
from nbtools.run import stop as stopping
from nbtools.run.checkpoints import Checkpoint, best_of, checkpoints_in, origin_in_words
from nbtools.run.stacks import RankStacks, take_stacks
from nbtools.run.state import RunState
from nbtools.run.stragglers import Straggler, stragglers
from nbtools.rundir import media
from nbtools.rundir.heartbeat import RankBeat, read_beats
from nbtools.rundir.identity import ProcessIdentity
from nbtools.rundir.json_files import finite, read_json, strict_number, whole
from nbtools.rundir.lock import is_locked
from nbtools.rundir.media import MediaItem
from nbtools.rundir.rundir import RunDir, find_run, goes_on, is_run, name_of
from nbtools.rundir.tail import Tail, last_lines


class Run:
    """One run. Cheap to make, safe to use from several threads, and never the owner of any process.

    Args:
        ref: a run's id, a prefix that fits one id only, `"latest"`, or the path of a run directory.

    Raises:
        RunNotFoundError: no run fits, or several do.
    """

    def __init__(self, ref: str | Path) -> None:
        self.files = RunDir(_located(ref))
        self._written_once: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._reading = threading.RLock()
        self._own, self._own_tail = History(), Tail(self.files.metrics)
        self._joined_tail = Tail(self.files.metrics)
        self._joined: History | None = None
        self._last_step: int | None = None
        self._printed = LogMetrics(self.files.log)

    @classmethod
    def latest(cls) -> Self:
        """The newest run of the project."""
        return cls("latest")

    @property
    def id(self) -> str:
        """The run's id: the name of its directory."""
        return self.files.id

    @property
    def dir(self) -> Path:
        """The run's directory."""
        return self.files.path

    @property
    def name(self) -> str:
        """What was run: the name of the script, without `.py`."""
        return str(self.info.get("name") or name_of(self.id))

    @property
    def info(self) -> dict[str, Any]:
        """How it was started (launch.json); empty while that is being written."""
        return self._read_once(self.files.launch) or {}

    @property
    def config(self) -> dict[str, Any] | None:
        """The config as run, what overrode it, and what follows from it (config.json); None before training starts."""
        return self._read_once(self.files.config)

    @property
    def state(self) -> RunState:
        """What the run is doing now."""
        recorded = self._recorded_state(supervised_only=True)
        if recorded is not None:
            return recorded
        if self._is_held():
            return RunState.RUNNING if self.files.log.exists() else RunState.QUEUED
        # It may have ended between the two looks: only now, with the lock free, is the absence of a record final.
        return self._recorded_state() or RunState.LOST

    def _recorded_state(self, *, supervised_only: bool = False) -> RunState | None:
        why = (self._read_once(self.files.finished) or {}).get("why")
        ended = self._read_once(self.files.exit)
        if ended is not None:
            # torchrun exits 1 on a stop as on a failure, so its return code is asked last.
            if ended.get("stopped"):
                return RunState.STOPPED
            if ended.get("returncode") == 0:
                return RunState.STOPPED if why == "stopped" else RunState.SUCCEEDED
            return RunState.FAILED
        if supervised_only or not isinstance(why, str):
            return None
        by_rank0 = {"completed": RunState.SUCCEEDED, "stopped": RunState.STOPPED, "failed": RunState.FAILED}
        return by_rank0.get(why)

    def _is_held(self) -> bool:
        if self.info.get("flock", True):
            return is_locked(self.files.lock)
        identity = self.process  # this file system knows no locks; said at the launch
        return identity is not None and identity.is_alive()

    @property
    def process(self) -> ProcessIdentity | None:
        """Whom to signal: the supervisor, or the torchrun or Python that was started by hand."""
        return ProcessIdentity.from_json(self._read_once(self.files.process) or {})

    @property
    def returncode(self) -> int | None:
        """Exit code of torchrun; None while it runs, or where no supervisor was left to see it."""
        code = (self._read_once(self.files.exit) or {}).get("returncode")
        return code if isinstance(code, int) and abs(code) < 2**31 else None

    @property
    def failure(self) -> Failure | None:
        """The first failure, if the run is FAILED or LOST."""
        state = self.state
        if state is RunState.LOST:
            gone = f"its processes are gone and none recorded an end (step {self.step})"
            return Failure(None, self.process.host if self.process else None, None, None, gone)
        if state is not RunState.FAILED:
            return None
        for path in (self.files.exit, self.files.finished):
            failure = Failure.from_json((self._read_once(path) or {}).get("failure"))
            if failure is not None:
                return failure
        return Failure(None, None, self.returncode, None, f"exited with code {self.returncode}")

    @property
    def ranks(self) -> list[RankBeat]:
        """The ranks' last signs of life, in order of rank."""
        return read_beats(self.files)

    @property
    def stragglers(self) -> list[Straggler]:
        """The ranks that are stuck, or that the others wait for; none unless it is RUNNING."""
        every = [self.own_history[name] for name in self.own_history]
        usual_step_s = max(every, key=len).seconds_per_step if every else None
        return stragglers(self.ranks, time.time(), usual_step_s) if self.state is RunState.RUNNING else []

    @property
    def waiting_for(self) -> str:
        """What a QUEUED run waits for: `behind ID on GPU 0,1`, or `after ID`; empty for every other."""
        if self.state is not RunState.QUEUED:
            return ""
        ticket, after = self.info.get("ticket"), self.info.get("after")
        before = gpu_queue.ahead(Path(ticket)) if isinstance(ticket, str) else []
        if before:
            return f"behind {before[-1]}" + (f" and {len(before) - 1} more" if len(before) > 1 else "")
        return f"after {name_of(Path(after).name)}" if isinstance(after, str) and goes_on(RunDir(after)) else ""

    @property
    def restarts(self) -> list[Restart]:
        """The attempts that failed and were followed by another one, oldest first."""
        return read_restarts(self.files)

    @property
    def step(self) -> int:
        """The last optimizer step: as rank 0 recorded it at the end, else the last that any file tells of."""
        recorded = whole((self._read_once(self.files.finished) or {}).get("step"))
        if recorded is not None:
            return recorded
        if (last := self._last_step) is None:
            has_ended = self._read_once(self.files.exit) is not None  # so no row will follow: one reading is enough
            last = max(self.own_history.last_step or 0, *(beat.step for beat in self.ranks), 0)
            self._last_step = last if has_ended else None
        return last

    @property
    def total_steps(self) -> int | None:
        """Steps that the config asks for; None before training starts, or for a script that is not ours."""
        return whole(_part(self.config or {}, "derived").get("total_steps"))

    @property
    def started_at(self) -> float | None:
        """Unix time of the launch."""
        return finite(self.info.get("time"))

    @property
    def ended_at(self) -> float | None:
        """Unix time of the end, as recorded by the supervisor or by rank 0."""
        for path in (self.files.exit, self.files.finished):
            ended = finite((self._read_once(path) or {}).get("time"))
            if ended is not None:
                return ended
        return None

    @property
    def parent(self) -> "Run | None":
        """The run that this one resumed; None if there is none or it was deleted."""
        name = _part(self.info, "resumed_from").get("run")
        if not isinstance(name, str) or Path(name).name != name or name == self.id:
            return None
        path = self.dir.parent / name
        return Run(path) if is_run(path) else None

    @property
    def resumed_step(self) -> int:
        """The step of its parent at which it went on."""
        return whole(_part(self.info, "resumed_from").get("step")) or 0

    # --- curves, checkpoints, log ---

    @property
    def own_history(self) -> History:
        """Metric rows of this run alone; reads only what was added since the last look."""
        with self._reading:
            # A script that is not ours has nothing but its log; one that was edited says only later that it is ours.
            if self.info.get("recipe") is None and self.files.log.exists() and not self.files.metrics.exists():
                return self._printed.history
            self._own.follow(self._own_tail)
            return self._own

    @property
    def history(self) -> History:
        """Metric rows of this run, and before its first step those of the run that it resumed."""
        if not self.info or self.origin is None:
            return self.own_history
        with self._reading:
            if self._joined is None:
                earlier = self.origin.history  # it had ended when it was resumed: nothing is added to it
                self._joined = History().joined(earlier, self.resumed_step)
            self._joined.follow(self._joined_tail)
            return self._joined

    @functools.cached_property
    def origin(self) -> "Run | None":
        """The parent, kept so that its history is read once; None if the chain of parents bites its tail."""
        seen, ancestor = {self.id}, self.parent
        while ancestor is not None:
            if ancestor.id in seen:
                return None
            seen.add(ancestor.id)
            ancestor = ancestor.parent
        return self.parent

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        history = self.own_history
        found = {name: history.last(name) for name in history.keys()}  # noqa: SIM118 - not a dict
        return {name: value for name, value in found.items() if value is not None}

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints of this run, oldest first."""
        return checkpoints_in(self.files.checkpoints)

    @property
    def media(self) -> list[MediaItem]:
        """What the training shows beside its curves: the newest showing of each."""
        return media.latest(media.folder_of(self.files))

    def log(self, num_lines: int = 200) -> str:
        """The last lines that rank 0 and torchrun printed, as plain text (not escaped for HTML)."""
        return "\n".join(last_lines(self.files.log, num_lines))

    # --- acting on it ---

    def stop(self, timeout_s: float | None = None) -> str:
        """Ask the run to save a checkpoint and end; kill what has not ended after `timeout_s`.

        Args:
            timeout_s: by default what the launch granted (`shutdown_timeout_s`) and a little more.

        Returns:
            One sentence on what was seen: the last step, the newest checkpoint, what ended and what is left.

        Raises:
            NbtoolsError: the run lives on another machine.
        """
        return stopping.stop(self, timeout_s)

    def stacks(self) -> list[RankStacks]:
        """Every rank's Python stacks, taken without stopping it; ranks on other machines are only named."""
        return take_stacks(self.files)

    def wait(self, timeout_s: float | None = None, check: bool = True) -> RunState:
        """Wait for the end and return the state.

        Raises:
            RunFailed: it ended as FAILED or LOST, and `check` is true.
            TimeoutError: it has not ended after `timeout_s`; it goes on.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not (state := self.state).is_final:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self.id} is still {state} after {timeout_s:.0f} s; it goes on")
            time.sleep(0.1)
        if check and state in (RunState.FAILED, RunState.LOST):
            said = "\n  ".join(failure.lines if (failure := self.failure) else [])
            raise RunFailed(f"{self.id} {state}: {said}\n(log: {self.files.log})")
        return state

    # --- telling about it ---

    def summary(self, *, stacks: bool = False) -> dict[str, Any]:
        """What `nbtools show --json` prints: plain values, strict JSON; with `stacks`, of every rank what it does."""
        saved, state, failure = self.checkpoints, self.state, self.failure
        best = best_of(saved)
        return {
            "id": self.id,
            "name": self.name,
            "script": self.info.get("script"),
            "state": str(state),
            "returncode": self.returncode,
            "step": self.step,
            "total_steps": self.total_steps,
            "metrics": {name: strict_number(value) for name, value in self.metrics.items()},
            "checkpoints": [{**checkpoint.to_json(), "best": checkpoint in best} for checkpoint in saved],
            "ranks": [beat.to_json() for beat in self.ranks],
            "stragglers": [{"rank": one.beat.rank, "message": str(one)} for one in self.stragglers],
            **({"stacks": [asdict(found) for found in self.stacks()]} if stacks else {}),
            "waiting_for": self.waiting_for,
            "restarts": len(self.restarts),
            "failure": None if failure is None else failure.to_json(),
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "parent": parent.id if (parent := self.parent) else None,
            "origin": origin_in_words(self.info.get("resumed_from")),
        }

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state}, step {self.progress})"

    @property
    def progress(self) -> str:
        return f"{self.step}" if self.total_steps is None else f"{self.step}/{self.total_steps}"

    def _repr_html_(self) -> str:
        failure = self.failure
        rows = [("state", str(self.state)), ("step", self.progress), ("directory", str(self.dir))]
        rows += [(name, f"{value:.4g}") for name, value in sorted(self.metrics.items())]
        rows += [] if failure is None else [("failure", failure.headline)]
        return table([(self.id, ""), *rows])

    def _read_once(self, path: Path) -> dict[str, Any] | None:
        """Read a file that is replaced at most when a failed run starts again: kept as long as it is the same file."""
        try:
            status = path.stat()
        except OSError:
            return None
        stamp = status.st_ino, status.st_mtime_ns
        known, content = self._written_once.get(path, (None, None))
        if known != stamp and (content := read_json(path)) is not None:
            self._written_once[path] = stamp, content
        return content


def _located(ref: str | Path) -> Path:
    if isinstance(ref, Path) or os.sep in ref:
        path = located(ref)
        if not is_run(path):
            raise RunNotFoundError(f"{path}: is not a run directory (it has neither launch.json nor lock)")
        return path.resolve()
    return find_run(find_project().runs, ref)


def _part(content: dict[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def table(rows: Iterable[Iterable[str]]) -> str:
    cells = ("".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table class='mathjax_ignore tex2jax_ignore'>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def clock(unix: float | None) -> str:
    """Local date and time, to the second; empty for a time that is not known or that no calendar has."""
    try:
        return "" if unix is None else f"{datetime.fromtimestamp(unix):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""
