"""The torchrun agent of a run on this machine: its start, its signals, its end, and the processes that it leaves."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

import psutil

from nbtools.failures.failure import Failure
from nbtools.machine import agent, processes
from nbtools.run.records import shutdown_timeout_s, stop_signal
from nbtools.rundir.rundir import ATTEMPT_VARIABLE, RunDir, has_recipe, marks_of

_CANNOT_START = 127


class AgentProcess:
    """The agent of one attempt at a time; `plan` is the content of launch.json, filled before the first start.

    `held` are descriptors of the run's lock and ticket. The agent inherits them: if the supervisor is killed, the run
    still counts as running and its GPUs as taken.
    """

    def __init__(self, run: RunDir, plan: Mapping[str, Any], held: Sequence[int], node: int) -> None:
        self.run = run
        self.plan = plan
        self.held = tuple(held)
        self.node = node
        self.log = run.node_output(node) if node else run.log
        self.log_start = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.returncode: int | None = None
        self.is_ending = False
        """Whether it was asked to end."""
        self.kill_at = float("inf")
        self.had_to_kill = False
        self.num_swept = 0
        """Number of processes that the agents of all attempts have left."""

    @property
    def code(self) -> int:
        """Exit code; 0 before the end."""
        return self.returncode or 0

    def forget_attempt(self) -> None:
        """Make ready for another start."""
        self.process = self.returncode = None
        self.had_to_kill = self.is_ending = False

    def open_log(self) -> IO[bytes]:
        """Return the log, opened for the output of the next attempt."""
        log = self.log.open("ab")
        if self.run.secrets.exists():  # a program may print its arguments
            with contextlib.suppress(PermissionError):  # a file system without modes
                os.fchmod(log.fileno(), 0o600)
        self.log_start = log.tell()
        return log

    def start(self, argv: Sequence[str], attempt: int, log: IO[bytes]) -> Failure | None:
        """Start the agent; return the failure if that is impossible."""
        # The agent copies the first failing rank's error file to this path, and writes its own to it.
        error_file = self.run.ranks / f"node{self.node}-error.json" if self.node else self.run.error
        # The folders in which other libraries write metrics; a user's own values are kept.
        folders = {"TENSORBOARD_LOGGING_DIR": str(self.run.tensorboard), "WANDB_DIR": str(self.run.path)}
        environment = {
            "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves the Python stacks in the log
            **({} if has_recipe(self.run) else folders),
            **os.environ,
            "COLUMNS": "200",  # rich breaks the lines and cuts the tables of a log after 80 characters
            **self.plan.get("env", {}),
            **marks_of(self.run),
            ATTEMPT_VARIABLE: str(attempt),
            "TORCHELASTIC_ERROR_FILE": str(error_file),
        }
        try:
            self.process = subprocess.Popen(
                with_own_agent(argv),
                cwd=self.plan.get("cwd"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=self.held,
                # A signal to the supervisor's process group must not reach the agent besides the forwarded one:
                # torchrun aborts its shutdown on a second signal.
                process_group=0,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return self.cannot_start(f"could not start {argv[0]!r}: {error}")
        return None

    def cannot_start(self, why: str) -> Failure:
        """Return the failure of an agent that cannot be started, whose exit code is that of a shell."""
        self.returncode = _CANNOT_START
        return Failure(None, socket.gethostname(), _CANNOT_START, None, why)

    def end(self) -> None:
        """Ask the agent to end, once: a second signal would disturb ranks that save their last checkpoint."""
        if not self.is_ending:
            self.is_ending = True
            self.kill_at = time.monotonic() + shutdown_timeout_s(self.plan) + processes.STOP_GRACE_S
            self._signal(stop_signal(self.plan))

    def kill(self, now: float) -> None:
        """Kill the agent, again each second until it has ended."""
        self.had_to_kill = True
        self.kill_at = now + 1
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.returncode is None:
            # An unreaped child, so the pid is not reused; a terminal's Ctrl-C reaches the whole process group.
            (os.killpg if number == signal.SIGINT else os.kill)(self.process.pid, number)

    def reap(self) -> None:
        """Collect every ended child of this process: the agent, and orphans re-parented to it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.process is not None and pid == self.process.pid:
                self.returncode = self.process.returncode = os.waitstatus_to_exitcode(status)

    def sweep(self) -> None:
        """End the processes that the agent left behind."""

        def survivors() -> list[psutil.Process]:
            self.reap()
            # Orphans are children of this process, even those without NBTOOLS_RUN_ID in their environment.
            own = processes.started_by(psutil.Process(), self.run)
            return processes.living({*own, *(() if self.node else processes.members(self.run))})

        if self.is_ending and stop_signal(self.plan) == signal.SIGINT:
            # On Ctrl-C, accelerate ends at once, while the program that it started still saves.
            processes.happens_within(self._has_group_ended, self.kill_at - time.monotonic())
        # After a stop that killed the agent, the ranks' shutdown timeout is over.
        grace_s = 0.0 if self.had_to_kill else processes.SWEEP_GRACE_S
        self.num_swept += processes.sweep_processes(survivors, grace_s=grace_s)

    def _has_group_ended(self) -> bool:
        """Whether no process is left in the agent's group."""
        assert self.process is not None
        self.reap()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 0)
            return False
        return True


def with_own_agent(command: Sequence[str]) -> list[str]:
    """Return a command of torchrun with the agent of nbtools in its place, which survives a second SIGTERM.

    It is named by its path: the Python of a program of the user's may lack nbtools.
    """
    words = list(command)
    with contextlib.suppress(ValueError):
        at = words.index("torch.distributed.run")
        words[at - 1 : at + 1] = [agent.__file__]
    return words
