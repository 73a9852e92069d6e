"""The small process that outlives the kernel: waits for its turn, starts torchrun (again, where that was asked for),
passes a stop on, sweeps, and records how it ended.

Run as `python -m nbtools.launcher.supervisor RUN_DIR --lock-fd N` in a session of its own.
It reads its orders from launch.json.
It imports little and sleeps nearly always: it lives as long as the training, beside it.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from nbtools.failures.failure import Failure, first_failure, was_told_to_stop
from nbtools.failures.known_errors import host_memory
from nbtools.machine import gpu_queue
from nbtools.machine.devices import gpu_use
from nbtools.machine.processes import STOP_GRACE_S, SWEEP_GRACE_S, living, members, sweep_processes
from nbtools.run.checkpoints import newest_verified, resuming
from nbtools.rundir.identity import ProcessIdentity
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import ATTEMPT_VARIABLE, RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir, goes_on

SAMPLE_EVERY_S = 5.0
_SAMPLE_SHARE = 1 / 400  # of one core, at most: on a machine with thousands of processes a look costs more
_RECORD_RETRIES_S = 60.0
_LOOK_EVERY_S = 0.5
"""How often a queued run looks whether it is its turn."""
_RESTART_AFTER_S = 1.0


class Signals:
    """Signals as data: `wait` returns those that came in.

    The handlers do nothing. Python's C-level handler writes each signal's number into a pipe, and waiting is a `select`
    on that pipe: no signal is lost between two waits, nothing is interrupted, and children inherit neither a mask nor
    an ignored signal.
    """

    HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def __init__(self) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in self.HANDLED:
            signal.signal(number, _do_nothing)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever launched us may have blocked some

    def wait(self, timeout_s: float) -> set[int]:
        """Return the signals that came since the last call; wait for one at most `timeout_s`."""
        select.select([self._read], [], [], max(0.0, timeout_s))
        with contextlib.suppress(BlockingIOError):
            return set(os.read(self._read, 4096))
        return set()


class Supervisor:
    """Watches over one run from its place in the queue to the record of its end.

    Args:
        run: the run.
        held: descriptors of what the run holds: its lock, and its ticket for GPUs.
    """

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
        self.had_to_kill = False
        self._log_start = 0
        self._num_swept = 0
        self._started = time.monotonic()
        self._kill_at = float("inf")
        self._next_sample = self._started

    def supervise(self) -> None:
        """Do it all: wait for the turn, start, watch, sweep_processes, start again where that was asked for, record."""
        write_json(self.run.process, {"role": "supervisor", **ProcessIdentity.of(os.getpid()).to_json()})
        self.plan = read_json(self.run.launch) or {}
        self._wait_for_turn()
        failure = None
        if not self.was_asked:
            failure = self._attempt(self.plan.get("argv"))
            while failure is not None and self._may_restart():
                failure = self._attempt(self._prepare_restart(failure)) if self._pause() else failure
        self._record(failure)

    def _wait_for_turn(self) -> None:
        """Return when no earlier run claims one of our devices and the run to wait for has ended, or on a stop."""
        ticket, after = self.plan.get("ticket"), self.plan.get("after")
        while not self.was_asked:
            is_our_turn = not (isinstance(ticket, str) and gpu_queue.ahead(Path(ticket)))
            self._keep_ticket()
            if is_our_turn and not (isinstance(after, str) and goes_on(RunDir(after))):
                return
            self.was_asked = _asks_to_stop(self.signals.wait(_LOOK_EVERY_S))

    def _attempt(self, argv: object) -> Failure | None:
        """Run the agent once, to its end and that of all it left behind; say why if it failed."""
        failure = self._start(argv)
        if failure is None:
            self._watch(float(self.plan.get("launch", {}).get("shutdown_timeout_s", 60)))
        self._num_swept += self._sweep()
        if failure is not None or self.returncode == 0 or self._was_stopped():
            return failure
        return first_failure(self.run, self._code, self.host, since=self._log_start)

    def _keep_ticket(self) -> None:
        """Touch the ticket: machines clear away what lies in /tmp untouched for days."""
        ticket = self.plan.get("ticket")
        if isinstance(ticket, str):
            with contextlib.suppress(OSError):
                os.utime(ticket)

    # --- starting again ---

    def _may_restart(self) -> bool:
        allowed = self.plan.get("launch", {}).get("max_restarts", 0)
        has_run = self.agent is not None and not self.was_asked
        return has_run and isinstance(allowed, int) and self.attempt <= allowed

    def _pause(self) -> bool:
        """Wait a little, so that a program that fails at once does not spin; False if a stop came meanwhile."""
        until = time.monotonic() + _RESTART_AFTER_S
        while not self.was_asked and (left := until - time.monotonic()) > 0:
            self.was_asked = _asks_to_stop(self.signals.wait(left))
        return not self.was_asked

    def _prepare_restart(self, failure: Failure) -> list[str]:
        """Record the failed attempt, clear what it left behind, and return the next one's command."""
        argv = list(self.plan["argv"])
        checkpoint, passed_over = newest_verified(self.run.checkpoints)
        recipe = self.plan.get("recipe") or (read_json(self.run.config) or {}).get("recipe")
        if recipe is None:
            checkpoint = None  # only the script itself knows how to go on
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
        for path in [*stale, *self.run.ranks.glob("*.asked")]:  # the next attempt's own are not to be mistaken for them
            path.unlink(missing_ok=True)
        self.attempt += 1
        self.agent = self.returncode = None
        self.had_to_kill = False
        return argv

    # --- the agent ---

    def _start(self, argv: object) -> Failure | None:
        """Start the agent; say why if that is impossible."""
        marks = {RUN_ID_VARIABLE: self.run.id, RUN_DIR_VARIABLE: str(self.run.path)}
        marks[ATTEMPT_VARIABLE] = str(self.attempt)
        # The agent copies the first failing rank's error file there, and writes its own there.
        marks["TORCHELASTIC_ERROR_FILE"] = str(self.run.error)
        if not isinstance(argv, list) or not argv:
            self.returncode = 127
            return Failure(None, self.host, 127, None, f"{self.run.launch}: holds no command to run")
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
                    # With the descriptors the agent holds lock and ticket, too: if this process is killed, the run
                    # still counts as running, and its GPUs as taken.
                    pass_fds=self.held,
                    # A signal to our process group must not reach the agent beside the one that we pass on: torchrun
                    # breaks off its orderly shutdown on a second one.
                    process_group=0,
                )
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                self.returncode = 127
                return Failure(None, self.host, 127, None, f"could not start {argv[0]!r}: {error}")
        return None

    def _watch(self, shutdown_timeout_s: float) -> None:
        """Return when the agent has ended, of itself or because a stop asked it to."""
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
                # Only the first one: ranks that are saving their last checkpoint are not to be disturbed.
                self._reap()
                if self.returncode is None:
                    self.was_asked = True
                    self._kill_at = time.monotonic() + shutdown_timeout_s + STOP_GRACE_S
                    self._signal_agent(signal.SIGTERM)

    def _signal_agent(self, number: signal.Signals) -> None:
        if self.agent is not None and self.returncode is None:
            os.kill(self.agent.pid, number)  # our child and not reaped, so the pid is still its own

    def _reap(self) -> None:
        """Collect every child that has ended: the agent, and orphans that were re-parented to us."""
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
        """End what the agent left behind, and return how many processes that were."""

        def survivors() -> list[psutil.Process]:
            self._reap()
            # Orphans are our children now, even those that wiped their environment.
            ours = psutil.Process().children(recursive=True)
            return living({*ours, *members(self.run)})

        # After a stop that had to kill the agent, the ranks have had all the time they were given.
        return sweep_processes(survivors, grace_s=0 if self.had_to_kill else SWEEP_GRACE_S)

    def _record(self, failure: Failure | None) -> None:
        """Write exit.json, patiently: a full disk is a likely reason for being here."""
        content = {
            "returncode": self.returncode,
            "signal": -self._code if self._code < 0 else None,
            "stopped": failure is None and self._was_stopped(),
            "failure": None if failure is None else failure.to_json(),
            "time": time.time(),
            "duration_s": round(time.monotonic() - self._started, 3),
            "swept": self._num_swept,
            "attempt": self.attempt,
        }
        deadline = time.monotonic() + _RECORD_RETRIES_S
        while True:
            try:
                write_json(self.run.exit, content)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return

    @property
    def _code(self) -> int:
        """The agent's exit code; 0 while there is none."""
        return self.returncode or 0

    def _was_stopped(self) -> bool:
        """Tell a stop from a failure; torchrun exits 1 on both."""
        why = (read_json(self.run.finished) or {}).get("why")
        if self.was_asked:
            return why != "failed" and (self.returncode, why) != (0, "completed")
        if self._code == -signal.SIGKILL:
            return False  # ranks that lost their agent may still have called it a stop
        is_signal = self._code in (-signal.SIGTERM, -signal.SIGINT)
        return is_signal or (self._code != 0 and was_told_to_stop(self.run, since=self._log_start))

    # --- the machine ---

    def _sample(self) -> None:
        """Append one row to system.jsonl, and choose the time of the next by what this one cost."""
        began = time.process_time()
        self._keep_ticket()
        num_processes = rss = 0
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
                num_processes += 1
        row = {"time": round(time.time(), 3), "cpu_percent": psutil.cpu_percent(), "gpus": gpu_use()}
        row |= {"num_processes": num_processes, "rss_bytes": rss, **host_memory().to_row()}
        with contextlib.suppress(OSError), self.run.system.open("a") as file:
            file.write(json.dumps(row) + "\n")
        cost = time.process_time() - began
        self._next_sample = time.monotonic() + max(SAMPLE_EVERY_S, cost / _SAMPLE_SHARE)


def main(argv: Sequence[str] | None = None) -> int:
    """Supervise one run; 0 when its end is recorded, 2 when there is nothing to supervise."""
    parser = argparse.ArgumentParser(prog="nbtools.launcher.supervisor", description=__doc__.split("\n", 1)[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--lock-fd", type=int, help="descriptor of the held lock; without it the lock is taken here")
    parser.add_argument("--no-lock", action="store_true", help="the file system has no locks")
    parser.add_argument("--ticket-fd", type=int, help="descriptor of the locked ticket for GPUs")
    arguments = parser.parse_args(argv)
    run = RunDir(arguments.run_dir.resolve())
    if not run.launch.is_file():
        return _refuse(f"{run.path}: no launch.json, so nothing to run")
    lock = arguments.lock_fd
    if lock is None and not arguments.no_lock:
        lock = acquire_lock(run.lock)
        if lock is None:
            return _refuse(f"{run.id}: is already running (its lock is held)")
    if run.process.exists() or run.exit.exists():
        return _refuse(f"{run.id}: was already started; a run directory is used once")
    become_subreaper()
    Supervisor(run, [held for held in (lock, arguments.ticket_fd) if held is not None]).supervise()
    return 0


def become_subreaper() -> bool:
    """Adopt orphaned descendants, so that none escapes the sweep; False where the system cannot do that."""
    if not sys.platform.startswith("linux"):
        return False
    set_child_subreaper = 36
    return bool(ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0)


def _asks_to_stop(came: set[int]) -> bool:
    return bool(came & {signal.SIGTERM, signal.SIGINT})


def _refuse(reason: str) -> int:
    print(f"nbtools.launcher.supervisor: {reason}", file=sys.stderr)
    return 2


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Stand in as a handler, so that the signal reaches the wake-up pipe."""


if __name__ == "__main__":
    sys.exit(main())
