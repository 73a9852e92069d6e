"""The supervisor: a small process that outlives the kernel and runs torchrun from the queue to `exit.json`.

It waits for its turn, starts torchrun, restarts it if `max_restarts` allows, forwards a stop, ends leftover processes
and records the end. It runs as `python -m nbtools.launcher.supervisor RUN_DIR --lock-fd N` in its own session, reads
launch.json, and imports little, because it lives as long as the training.
"""

import argparse
import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from nbtools.errors import FormatError
from nbtools.failures.failure import Failure, explained, first_failure, was_stopped_from_outside
from nbtools.failures.known_errors import host_memory
from nbtools.machine import gpu_queue
from nbtools.machine.devices import gpu_use
from nbtools.machine.processes import STOP_GRACE_S, SWEEP_GRACE_S, living, members, started_by, sweep_processes
from nbtools.run.checkpoints import newest_verified, resuming
from nbtools.run.records import mapping_at
from nbtools.rundir import secret_values
from nbtools.rundir.identity import ProcessIdentity
from nbtools.rundir.json_files import finite, read_json, write_json, write_reserved_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import ATTEMPT_VARIABLE, RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir, goes_on

SAMPLE_EVERY_S = 5.0
_SAMPLE_SHARE = 1 / 400  # of one core, at most: a sample costs more on a machine with thousands of processes
_RECORD_RETRIES_S = 60.0
_LOOK_EVERY_S = 0.5
"""Interval between a queued run's checks of the queue."""
_RESTART_AFTER_S = 1.0
_NEVER_S = 1e8


class Signals:
    """Signals as data: `wait` returns the signals received since the last call.

    The Python handlers do nothing. CPython's C-level handler writes each signal's number into a pipe, and `wait`
    selects on it: no signal is lost between two waits, no system call is interrupted, and children inherit neither a
    mask nor an ignored signal.
    """

    HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in self.HANDLED:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launching process may have blocked some

    def wait(self, timeout_s: float) -> set[int]:
        """Return the signals received since the last call; wait at most `timeout_s` for the first one."""
        select.select([self._read], [], [], max(0.0, timeout_s))
        with contextlib.suppress(BlockingIOError):
            return set(os.read(self._read, 4096))
        return set()


class Supervisor:
    """Supervises one run from its place in the queue to `exit.json`; `held` are descriptors of its lock and ticket."""

    def __init__(self, run: RunDir, held: Sequence[int]) -> None:
        self.run = run
        self.held = tuple(held)
        self.signals = Signals()
        self.host = socket.gethostname()
        self.plan: dict[str, Any] = {}
        self.agent: subprocess.Popen[bytes] | None = None
        self.returncode: int | None = None
        self.attempt = 1
        self.was_asked = False
        self.was_cancelled = False
        """Whether a stop prevented a restart."""
        self.had_to_kill = False
        self._asked_late = False
        """Whether a stop arrived when the agent had already ended."""
        self._log_start = 0
        self._num_swept = 0
        self._started = time.monotonic()
        self._kill_at = float("inf")
        self._next_sample = self._started

    def supervise(self) -> None:
        """Wait in the queue, run the agent, restart it as often as allowed, and record the end.

        An error of the supervisor itself does not end a training that runs, and is the recorded cause of one that does
        not.
        """
        try:
            failure = self._run_attempts()
        except Exception as error:  # noqa: BLE001 - whatever it is, the end must be recorded
            traceback.print_exc()  # to ranks/supervisor.log
            failure = self._outlive(error)
        self._record(failure)

    def _run_attempts(self) -> Failure | None:
        """Run the agent when it is its turn, again after a failure as often as allowed; return the last failure."""
        write_json(self.run.process, {"role": "supervisor", **ProcessIdentity.of(os.getpid()).to_json()})
        self.plan = secret_values.restored(self.run, read_json(self.run.launch) or {})
        self._wait_for_turn()
        failure = None if self.was_asked else self._attempt(self.plan.get("argv"))
        while failure is not None and self._may_restart():
            if not self._pause():
                self.was_cancelled = True
                break
            failure = self._attempt(self._prepare_restart(failure))
        return failure

    def _outlive(self, error: Exception) -> Failure | None:
        """After an error of the supervisor, wait for the end of an agent that runs; return the failure."""
        message = f"the supervisor failed: {type(error).__name__}: {error}"
        if self.agent is None:
            return explained(Failure(None, self.host, None, None, message, traceback.format_exc()), self.run)
        self._next_sample = time.monotonic() + _NEVER_S
        self._watch(self._shutdown_timeout_s)
        self._num_swept += self._sweep()
        try:
            return self._failure()
        except Exception:  # noqa: BLE001 - the same error again, perhaps
            return Failure(None, self.host, self.returncode, None, message, traceback.format_exc())

    def _wait_for_turn(self) -> None:
        """Return when no earlier run claims one of the GPUs and the awaited run has ended, or on a stop."""
        ticket, after = self.plan.get("ticket"), self.plan.get("after")
        while not self.was_asked:
            is_our_turn = not (isinstance(ticket, str) and gpu_queue.ahead(Path(ticket)))
            self._keep_ticket()
            if is_our_turn and not (isinstance(after, str) and goes_on(RunDir(after))):
                return
            self.was_asked = _asks_to_stop(self.signals.wait(_LOOK_EVERY_S))

    def _attempt(self, argv: object) -> Failure | None:
        """Run the agent once, end its leftover processes, and return the failure if there is one."""
        failure = self._start(argv)
        if failure is None:
            self._watch(self._shutdown_timeout_s)
        self._num_swept += self._sweep()
        return failure or self._failure()

    def _failure(self) -> Failure | None:
        """Return the failure of an agent that has ended; None if it succeeded or was stopped."""
        if self.returncode == 0 or self._was_stopped():
            return None
        return first_failure(self.run, self._code, self.host, since=self._log_start)

    @property
    def _shutdown_timeout_s(self) -> float:
        granted = finite(mapping_at(self.plan, "launch").get("shutdown_timeout_s"))
        return 60.0 if granted is None else granted

    def _keep_ticket(self) -> None:
        """Touch the ticket: systems delete files in /tmp that are untouched for days."""
        ticket = self.plan.get("ticket")
        if isinstance(ticket, str):
            with contextlib.suppress(OSError):
                os.utime(ticket)

    # --- restarts ---

    def _may_restart(self) -> bool:
        allowed = mapping_at(self.plan, "launch").get("max_restarts", 0)
        has_run = self.agent is not None and not self.was_asked
        return has_run and isinstance(allowed, int) and self.attempt <= allowed

    def _pause(self) -> bool:
        """Wait before a restart, so that a program that fails at once does not loop; False if a stop arrived."""
        self.was_asked = self._asked_late
        until = time.monotonic() + _RESTART_AFTER_S
        while not self.was_asked and (left := until - time.monotonic()) > 0:
            self.was_asked = _asks_to_stop(self.signals.wait(left))
        return not self.was_asked

    def _prepare_restart(self, failure: Failure) -> list[str]:
        """Record the failed attempt, delete its state files, and return the next attempt's command."""
        argv = list(self.plan["argv"])
        checkpoint, passed_over = newest_verified(self.run.checkpoints)
        recipe = self.plan.get("recipe") or (read_json(self.run.config) or {}).get("recipe")
        if recipe is None:
            checkpoint = None  # a script without a recipe starts from its beginning
        elif checkpoint is not None:
            argv = resuming(argv, checkpoint.path)
        line = {
            "format": 1,
            "attempt": self.attempt,
            "time": time.time(),
            "returncode": self.returncode,
            "failure": failure.to_json(),
            "checkpoint": None if checkpoint is None else checkpoint.name,
            "passed_over": passed_over,
        }
        with contextlib.suppress(OSError), self.run.attempts.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        stale = [self.run.finished, self.run.error, *self.run.ranks.glob("*.heartbeat.json")]
        for path in [*stale, *self.run.ranks.glob("*.asked")]:  # or they would be read as the next attempt's
            path.unlink(missing_ok=True)
        self.attempt += 1
        self.agent = self.returncode = None
        self.had_to_kill = False
        return argv

    # --- the agent ---

    def _start(self, argv: object) -> Failure | None:
        """Start the agent; return the failure if that is impossible."""
        marks = {RUN_ID_VARIABLE: self.run.id, RUN_DIR_VARIABLE: str(self.run.path)}
        marks[ATTEMPT_VARIABLE] = str(self.attempt)
        # The agent copies the first failing rank's error file to this path, and writes its own to it.
        marks["TORCHELASTIC_ERROR_FILE"] = str(self.run.error)
        if not isinstance(argv, list) or not argv:
            self.returncode = 127
            return Failure(None, self.host, 127, None, f"{self.run.launch}: contains no command to run")
        with self.run.log.open("ab") as log:
            self._log_start = log.tell()
            try:
                self.agent = subprocess.Popen(
                    argv,
                    cwd=self.plan.get("cwd"),
                    # A crash in native code then leaves the Python stacks in the log.
                    env={"PYTHONFAULTHANDLER": "1", **os.environ, **self.plan.get("env", {}), **marks},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # The agent inherits lock and ticket: if this process is killed, the run still counts as running
                    # and its GPUs as taken.
                    pass_fds=self.held,
                    # A signal to this process group must not reach the agent besides the forwarded one: torchrun
                    # aborts its shutdown on a second signal.
                    process_group=0,
                )
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                self.returncode = 127
                return Failure(None, self.host, 127, None, f"could not start {argv[0]!r}: {error}")
        return None

    def _watch(self, shutdown_timeout_s: float) -> None:
        """Return when the agent has ended, by itself or after a stop."""
        while True:
            self._reap()
            if self.returncode is not None:
                return
            now = time.monotonic()
            if now >= self._kill_at:
                self.had_to_kill = True
                self._kill_at = now + 1
                self._signal_agent(signal.SIGKILL)
            if now >= self._next_sample:
                self._sample()
            came = self.signals.wait(min(self._next_sample, self._kill_at) - time.monotonic())
            if _asks_to_stop(came) and not self.was_asked:
                # Only the first one: a second would disturb ranks that save their last checkpoint.
                self._reap()
                self._asked_late = self.returncode is not None
                if not self._asked_late:
                    self.was_asked = True
                    self._kill_at = time.monotonic() + shutdown_timeout_s + STOP_GRACE_S
                    self._signal_agent(signal.SIGTERM)

    def _signal_agent(self, number: signal.Signals) -> None:
        if self.agent is not None and self.returncode is None:
            os.kill(self.agent.pid, number)  # an unreaped child, so the pid is not reused

    def _reap(self) -> None:
        """Collect every ended child: the agent, and orphans re-parented to this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.agent is not None and pid == self.agent.pid:
                self.returncode = self.agent.returncode = os.waitstatus_to_exitcode(status)

    # --- the end ---

    def _sweep(self) -> int:
        """End the processes that the agent left behind, and return their number."""

        def survivors() -> list[psutil.Process]:
            self._reap()
            # Orphans are children of this process, even those without NBTOOLS_RUN_ID in their environment.
            return living({*started_by(psutil.Process(), self.run), *members(self.run)})

        # After a stop that killed the agent, the ranks' shutdown timeout is over.
        return sweep_processes(survivors, grace_s=0 if self.had_to_kill else SWEEP_GRACE_S)

    def _record(self, failure: Failure | None) -> None:
        """Write exit.json, with retries unless the file system is read-only: its errors may have caused the end."""
        content = {
            "returncode": self.returncode,
            "signal": -self._code if self._code < 0 else None,
            "stopped": self.was_cancelled or (failure is None and self._was_stopped()),
            "failure": None if failure is None else failure.to_json(),
            "time": time.time(),
            "duration_s": round(time.monotonic() - self._started, 3),
            "swept": self._num_swept,
            "attempt": self.attempt,
        }
        deadline = time.monotonic() + _RECORD_RETRIES_S
        while True:
            try:
                return write_reserved_json(self.run.exit, content)
            except OSError as error:
                if error.errno == errno.EROFS or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    @property
    def _code(self) -> int:
        """The agent's exit code; 0 while there is none."""
        return self.returncode or 0

    def _was_stopped(self) -> bool:
        """Distinguish a stop from a failure; torchrun exits 1 on both."""
        why = None
        with contextlib.suppress(FormatError):  # the training has a newer nbtools
            why = (read_json(self.run.finished) or {}).get("why")
        if self.was_asked:
            return why != "failed" and (self.returncode, why) != (0, "completed")
        if self._code == -signal.SIGKILL:
            return False  # ranks without an agent may have recorded a stop
        is_signal = self._code in (-signal.SIGTERM, -signal.SIGINT)
        return is_signal or (self._code != 0 and was_stopped_from_outside(self.run, since=self._log_start))

    # --- the machine ---

    def _sample(self) -> None:
        """Append one row to system.jsonl; its cost determines the time of the next one."""
        began = time.process_time()
        self._keep_ticket()
        num_processes = rss = 0
        for process in started_by(psutil.Process(), self.run):
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
                num_processes += 1
        row = {"time": round(time.time(), 3), "cpu_percent": psutil.cpu_percent(), "gpus": gpu_use()}
        row |= {"num_processes": num_processes, "rss_bytes": rss, **asdict(host_memory())}
        with contextlib.suppress(OSError), self.run.system.open("a") as file:
            file.write(json.dumps(row) + "\n")
        cost = time.process_time() - began
        self._next_sample = time.monotonic() + max(SAMPLE_EVERY_S, cost / _SAMPLE_SHARE)


def main() -> None:
    """Supervise one run until its end is recorded; exits 2 when there is nothing to supervise."""
    parser = argparse.ArgumentParser(prog="nbtools.launcher.supervisor", description=__doc__.split("\n", 1)[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--lock-fd", type=int, help="descriptor of the held lock; by default the lock is taken")
    parser.add_argument("--no-lock", action="store_true", help="the file system has no locks")
    parser.add_argument("--ticket-fd", type=int, help="descriptor of the locked ticket for GPUs")
    arguments = parser.parse_args()
    run = RunDir(arguments.run_dir.resolve())
    if not run.launch.is_file():
        parser.error(f"{run.path}: no launch.json, so nothing to run")
    lock = arguments.lock_fd
    if lock is None and not arguments.no_lock and (lock := acquire_lock(run.lock)) is None:
        parser.error(f"{run.id}: is already running (its lock is held)")
    if run.process.exists() or run.exit.exists():
        parser.error(f"{run.id}: was already started; a run directory is used once")
    if sys.platform.startswith("linux"):
        set_child_subreaper = 36  # adopt orphaned descendants, so that the sweep finds all
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
    Supervisor(run, [held for held in (lock, arguments.ticket_fd) if held is not None]).supervise()


def _asks_to_stop(came: set[int]) -> bool:
    return bool(came & {signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
