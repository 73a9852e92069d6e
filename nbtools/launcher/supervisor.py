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
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from nbtools.errors import LaunchError
from nbtools.failures.failure import Failure, explained, first_failure, was_stopped_from_outside
from nbtools.failures.known_errors import host_memory
from nbtools.failures.stop_conditions import LOOK_EVERY_S, StopConditions
from nbtools.launcher.programs.program_restart import continued, newest_of_program, saved_by_program
from nbtools.machine import gpu_queue, processes
from nbtools.machine.devices import gpu_use
from nbtools.machine.on_end import sentence_on_end, start_on_end
from nbtools.machine.signal_pipe import Signals, asks_to_stop
from nbtools.run.checkpoints import AnyCheckpoint, checkpoints_in, newest_verified, resuming
from nbtools.run.records import Records, mapping_at, stop_signal
from nbtools.run.state import awaited, state_of
from nbtools.rundir import machines, secret_values
from nbtools.rundir.json_files import finite, read_json, write_json, write_reserved_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.program_files.files_before import FilesBefore
from nbtools.rundir.rundir import ATTEMPT_VARIABLE, RunDir, has_recipe, is_removed, marks_of

SAMPLE_EVERY_S = 5.0
_SAMPLE_SHARE = 1 / 400  # of one core, at most: a sample costs more on a machine with thousands of processes
_RECORD_RETRIES_S = 60.0
_STAMP_EVERY_S = 1.0
_STAMP_SHARE = 1 / 5000  # of the run's time so far: a month gives some forty thousand lines
_LOOK_EVERY_S = 0.5
"""Interval between a queued run's checks of the queue."""
_RESTART_AFTER_S = 1.0
_MACHINES_EVERY_S = 2.0
_MACHINES_END_WITHIN_S = 10.0
"""Time in which the machines of a run end after one has failed; agents on several machines do not notice that."""
_NEVER_S = 1e8


class Supervisor:
    """Supervises one run from its place in the queue to `exit.json`; `held` are descriptors of its lock and ticket.

    On a machine other than the run's first, `supervise_node` runs its agent alone. `on_end` is the command that the
    launch wants started at the end.
    """

    def __init__(self, run: RunDir, held: Sequence[int] = (), *, node: int = 0, on_end: Sequence[str] = ()) -> None:
        self.run = run
        self.node = node
        self.on_end = tuple(on_end)
        self.held = tuple(held)
        self._log = run.node_output(node) if node else run.log
        self.signals = Signals()
        self.host = socket.gethostname()
        self.plan: dict[str, Any] = {}
        self.agent: subprocess.Popen[bytes] | None = None
        self.returncode: int | None = None
        self.attempt = 1
        self.num_failed = 0
        """Number of failed attempts that were followed by another one."""
        self.was_asked = False
        self.was_cancelled = False
        """Whether a stop prevented a restart."""
        self.had_to_kill = False
        self._asked_late = False
        """Whether a stop arrived when the agent had already ended."""
        self.stopped_on: dict[str, Any] | None = None
        """The condition of `stop_on` that holds."""
        self._conditions: StopConditions | None = None
        self._next_check = float("inf")
        self._log_start = 0
        self._num_swept = 0
        self._stamped = (-1, 0)
        self._idle_until = 0.0
        """Unix time of the last look at the log at which it had not grown; 0 if it had."""
        self._files_before = FilesBefore(run)
        self._started = time.monotonic()
        self._waited_s = 0.0
        """Time in the queue, which is no part of the run's duration."""
        self._kill_at = float("inf")
        self._next_sample = self._started
        self._next_stamp = float("inf")
        self._next_look = float("inf")
        """Time of the next check whether the run's other machines stop or have ended."""
        self._lost_machine_at: float | None = None
        self._is_ending = False
        """Whether the agent was asked to end."""

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

    def supervise_node(self, plan: Mapping[str, Any]) -> int:
        """Run the agent of this machine once and return its exit code; a signal stops it, and no process is left."""
        self.plan = dict(plan)
        self._next_sample, self._next_look = self._started + _NEVER_S, self._started
        self._tell_machines()
        try:
            if (failure := self._start(self.plan.get("argv"))) is not None:
                raise LaunchError(failure.message)
            self._watch()
            self._sweep()
            return self._code
        finally:
            self._tell_machines(returncode=self.returncode)

    def _run_attempts(self) -> Failure | None:
        """Run the agent when it is its turn, again after a failure as often as allowed; return the last failure."""
        write_json(self.run.process, {"role": "supervisor", **ProcessIdentity.of(os.getpid()).to_json()})
        self.plan = self._read_plan()
        self._wait_for_turn()
        self._waited_s = time.monotonic() - self._started
        self._started += self._waited_s
        failure = None if self.was_asked else self._attempt(self.plan.get("argv"))
        while failure is not None and self._may_restart():
            if not self._pause():
                self.was_cancelled = True
                break
            failure = self._attempt(self._prepare_restart(failure))
        return failure

    def _read_plan(self) -> dict[str, Any]:
        return secret_values.restored(self.run, read_json(self.run.launch) or {})

    def _outlive(self, error: Exception) -> Failure | None:
        """After an error of the supervisor, wait for the end of an agent that runs; return the failure."""
        message = f"the supervisor failed: {type(error).__name__}: {error}"
        if self.agent is None:
            return explained(Failure(None, self.host, None, None, message, traceback.format_exc()), self.run)
        self._next_sample = self._next_check = time.monotonic() + _NEVER_S
        self._watch()
        self._num_swept += self._sweep()
        try:
            return self._failure()
        except Exception:  # noqa: BLE001 - the same error again, perhaps
            return Failure(None, self.host, self.returncode, None, message, traceback.format_exc())

    def _wait_for_turn(self) -> None:
        """Return when no earlier run claims one of the GPUs and the awaited runs have ended, or on a stop."""
        ticket, records = self.plan.get("ticket"), Records(self.run)
        self.was_asked = asks_to_stop(self.signals.wait(0))
        while not self.was_asked:
            is_our_turn = not (isinstance(ticket, str) and gpu_queue.ahead(Path(ticket)))
            self._keep_ticket()
            if is_our_turn and awaited(records) is None:
                return
            self.was_asked = asks_to_stop(self.signals.wait(_LOOK_EVERY_S))

    def _attempt(self, argv: object) -> Failure | None:
        """Run the agent once, end its leftover processes, and return the failure if there is one."""
        failure = self._start(argv)
        if failure is None:
            if machines.num_machines(self.plan) > 1:
                self._next_look = time.monotonic()
            self._begin_checks()
            self._watch()
            if self._next_stamp < _NEVER_S:
                self._stamp(time.monotonic())
                self._next_stamp = float("inf")
            self._tell_machines(returncode=self.returncode)
            self._wait_for_machines()
        self._num_swept += self._sweep()
        return failure or self._failure()

    def _failure(self) -> Failure | None:
        """Return the failure of an agent that has ended; None if it succeeded or was stopped."""
        if self.returncode == 0 or self._was_stopped():
            return None
        if self._is_unsaved and (found := Failure.from_json(self._finished.get("failure"))) is not None:
            return found.without(secret_values.secrets_of(self.run))
        failure = first_failure(self.run, self._code, self.host, since=self._log_start)
        return failure.without(secret_values.secrets_of(self.run))

    # --- the conditions of stop_on ---

    def _begin_checks(self) -> None:
        settings = mapping_at(mapping_at(self.plan, "launch"), "stop_on")
        if self._conditions is None and any(settings.values()):
            best_by = str(self.plan.get("best_by") or "")
            self._conditions = StopConditions(self.run, settings, best_by, lower=self.plan.get("lower_is_better", True))
            self._next_check = time.monotonic() + LOOK_EVERY_S

    def _check(self, now: float) -> None:
        """Stop the run if one of the conditions holds."""
        assert self._conditions is not None
        self._next_check = now + LOOK_EVERY_S
        if (found := self._conditions.look()) is None:
            return
        self._next_check = float("inf")
        if not self.was_asked:
            self.stopped_on = found
            self._stop()

    def _end_checks(self) -> None:
        """End the process of the checks, and name the last checkpoint before a value that is not finite."""
        if self._conditions is not None:
            self._conditions.close()
        if self.stopped_on is not None and self.stopped_on["condition"] == "nan":
            last = self.stopped_on["finite_step"]
            saved: Sequence[AnyCheckpoint] = checkpoints_in(self.run.checkpoints)
            saved = saved if saved or has_recipe(self.run) else saved_by_program(self.run, self.plan)
            older = [found.name for found in saved if found.step is not None and found.step <= last]
            self.stopped_on["checkpoint"] = older[-1] if older else None
            said = f"last checkpoint before it: {older[-1]}" if older else "no checkpoint is older"
            self.stopped_on["sentence"] += f"; {said}"

    # --- the run's other machines ---

    def _tell_machines(self, **state: object) -> None:
        """Record the state of this machine's part of the run for the other machines."""
        if machines.num_machines(self.plan) > 1:
            machines.write_record(self.run, self.node, stopping=self.was_asked, **state)

    def _other_machines(self) -> list[int]:
        """Return the nodes to watch: node 0 watches nodes with started ranks, every other node watches node 0."""
        if self.node:
            return [0]
        return [n for n in range(1, machines.num_machines(self.plan)) if machines.has_ranks(self.run, n)]

    def _wait_for_machines(self) -> None:
        """Wait a moment until the other machines have ended: one of them may have failed first."""
        deadline = time.monotonic() + self._grace_s(self._code)
        while time.monotonic() < deadline:
            if all("returncode" in machines.record(self.run, node) for node in self._other_machines()):
                return
            time.sleep(_LOOK_EVERY_S)

    def _look_at_machines(self, now: float) -> None:
        """Stop when another machine stops; end the agent a while after another one's has ended."""
        self._next_look = now + _MACHINES_EVERY_S
        records = [machines.record(self.run, node) for node in self._other_machines()]
        if any(record.get("stopping") is True for record in records):
            self._stop()
        has_ended = [record for record in records if "returncode" in record]
        if self._lost_machine_at is None and any(self.node or record["returncode"] != 0 for record in has_ended):
            self._lost_machine_at = now
        grace_s = max((self._grace_s(record["returncode"]) for record in has_ended), default=0.0)
        is_lost = self._lost_machine_at is not None and now - self._lost_machine_at > grace_s
        if is_lost:
            self._end_agent()
        if (is_lost or self.was_asked) and not processes.ranks_among(processes.started_by(psutil.Process(), self.run)):
            # torchrun waits five minutes for the other agents after its ranks have ended, and ignores signals.
            self._kill_at = min(self._kill_at, now + _MACHINES_EVERY_S)

    def _grace_s(self, returncode: object) -> float:
        """Return the seconds a machine may run after another one's agent has ended: more if that one exited with 0."""
        return self._shutdown_timeout_s if returncode == 0 else _MACHINES_END_WITHIN_S

    def _stop(self) -> None:
        """Ask the agent to end because a stop was asked for, here or on another machine."""
        if not self.was_asked:
            self.was_asked = True
            self._tell_machines()
        self._end_agent()

    def _end_agent(self) -> None:
        """Ask the agent to end, once: a second signal would disturb ranks that save their last checkpoint."""
        if not self._is_ending:
            self._is_ending = True
            self._kill_at = time.monotonic() + self._shutdown_timeout_s + processes.STOP_GRACE_S
            self._signal_agent(stop_signal(self.plan))

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
        # After a last checkpoint that could not be written, the next one could not be, either.
        has_run = self.agent is not None and not self.was_asked and not self._is_unsaved
        return has_run and isinstance(allowed, int) and self.num_failed < allowed

    def _pause(self) -> bool:
        """Wait before a restart, so that a program that fails at once does not loop; False if a stop arrived."""
        self.was_asked = self._asked_late
        until = time.monotonic() + _RESTART_AFTER_S
        while not self.was_asked and (left := until - time.monotonic()) > 0:
            self.was_asked = asks_to_stop(self.signals.wait(left))
        return not self.was_asked

    def _prepare_restart(self, failure: Failure) -> list[str]:
        """Record the failed attempt, delete its state files, and return the next attempt's command."""
        argv = list(self.plan["argv"])
        checkpoint: AnyCheckpoint | None
        if has_recipe(self.run):
            checkpoint, passed_over = newest_verified(self.run.checkpoints)
            argv = argv if checkpoint is None else resuming(argv, checkpoint.path)
        else:
            checkpoint, passed_over = newest_of_program(self.run, self.plan)
            argv = argv if checkpoint is None else continued(self.plan, checkpoint.path)["argv"]
        close_attempt(
            self.run,
            {
                "attempt": self.attempt,
                "returncode": self.returncode,
                "failure": failure.to_json(),
                "checkpoint": None if checkpoint is None else checkpoint.name,
                "checkpoint_step": None if checkpoint is None else checkpoint.step,
                "passed_over": passed_over,
            },
        )
        self.num_failed += 1
        self.attempt += 1
        self.agent = self.returncode = None
        self.had_to_kill = self._is_ending = False
        return argv

    # --- the agent ---

    def _start(self, argv: object) -> Failure | None:
        """Start the agent; return the failure if that is impossible."""
        marks = {**marks_of(self.run), ATTEMPT_VARIABLE: str(self.attempt)}
        # The agent copies the first failing rank's error file to this path, and writes its own to it.
        error = self.run.ranks / f"node{self.node}-error.json" if self.node else self.run.error
        marks["TORCHELASTIC_ERROR_FILE"] = str(error)
        if not isinstance(argv, list) or not argv:
            self.returncode = 127
            return Failure(None, self.host, 127, None, f"{self.run.launch}: contains no command to run")
        with self._log.open("ab") as log:
            if self.run.secrets.exists():  # a program may print its arguments
                with contextlib.suppress(PermissionError):  # a file system without modes
                    os.fchmod(log.fileno(), 0o600)
            self._log_start = log.tell()
            if not self.node and not has_recipe(self.run):
                if self.attempt == 1:
                    self._files_before.take()
                self._stamp(time.monotonic())
            try:
                self.agent = subprocess.Popen(
                    argv,
                    cwd=self.plan.get("cwd"),
                    env={
                        "PYTHONFAULTHANDLER": "1",  # a crash in native code leaves the Python stacks in the log
                        **self._folders(),
                        **os.environ,
                        "COLUMNS": "200",  # rich breaks the lines and cuts the tables of a log after 80 characters
                        **self.plan.get("env", {}),
                        **marks,
                    },
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

    def _folders(self) -> dict[str, str]:
        """Variables with the folders in which other libraries write metrics; a user's own values are kept."""
        if has_recipe(self.run):
            return {}
        return {"TENSORBOARD_LOGGING_DIR": str(self.run.tensorboard), "WANDB_DIR": str(self.run.path)}

    def _watch(self) -> None:
        """Return when the agent has ended, by itself or after a stop."""
        while True:
            self._reap()
            if self.returncode is not None:
                self._asked_late |= not self.was_asked and asks_to_stop(self.signals.wait(0))
                return
            now = time.monotonic()
            if now >= self._kill_at:
                self.had_to_kill = True
                self._kill_at = now + 1
                self._signal_agent(signal.SIGKILL)
            if now >= self._next_sample:
                self._sample()
            if now >= self._next_stamp:
                self._stamp(now)
            if now >= self._next_look:
                self._look_at_machines(now)
            if now >= self._next_check:
                self._check(now)
            next_s = min(self._next_sample, self._next_stamp, self._next_look, self._next_check, self._kill_at)
            came = self.signals.wait(next_s - time.monotonic())
            if asks_to_stop(came) and not self.was_asked:
                self._reap()
                self._asked_late = self.returncode is not None
                if not self._asked_late:
                    self._stop()

    def _signal_agent(self, number: signal.Signals) -> None:
        if self.agent is not None and self.returncode is None:
            # An unreaped child, so the pid is not reused; a terminal's Ctrl-C reaches the whole process group.
            (os.killpg if number == signal.SIGINT else os.kill)(self.agent.pid, number)

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
            own = processes.started_by(psutil.Process(), self.run)
            return processes.living({*own, *(() if self.node else processes.members(self.run))})

        if self._is_ending and stop_signal(self.plan) == signal.SIGINT:
            # On Ctrl-C, accelerate ends at once, while the program that it started still saves.
            processes.happens_within(self._has_group_ended, self._kill_at - time.monotonic())
        # After a stop that killed the agent, the ranks' shutdown timeout is over.
        return processes.sweep_processes(survivors, grace_s=0 if self.had_to_kill else processes.SWEEP_GRACE_S)

    def _has_group_ended(self) -> bool:
        """Whether no process is left in the agent's group."""
        assert self.agent is not None
        self._reap()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.agent.pid, 0)
            return False
        return True

    def _record(self, failure: Failure | None, **more: object) -> None:
        """Write exit.json, with retries unless that cannot work: errors of the file system may have caused the end."""
        self._end_checks()
        content = {
            "returncode": self.returncode,
            "signal": -self._code if self._code < 0 else None,
            "stopped": self.was_cancelled or (failure is None and self._was_stopped()),
            "failure": None if failure is None else failure.to_json(),
            "time": time.time(),
            "duration_s": round(time.monotonic() - self._started, 3),
            "waited_s": round(self._waited_s, 3),
            "swept": self._num_swept,
            "attempt": self.attempt,
            **({} if self.stopped_on is None else {"stopped_on": self.stopped_on}),
            **more,
        }
        deadline = time.monotonic() + _RECORD_RETRIES_S
        while True:
            try:
                write_reserved_json(self.run.exit, content)
                return self._tell_end(content)
            except OSError as error:
                if error.errno == errno.EROFS or is_removed(self.run) or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def _tell_end(self, ended: Mapping[str, Any]) -> None:
        """Start the command of `on_end`, once the lock and the GPUs are free for others."""
        if not self.on_end:
            return
        for descriptor in self.held:
            os.close(descriptor)
        state = str(state_of(Records(self.run)))
        name = str(self.plan.get("name") or self.run.id)
        words = {"{sentence}": sentence_on_end(self.run, name, state, ended), "{run}": self.run.id, "{state}": state}
        with contextlib.suppress(OSError):
            start_on_end(self.on_end, words, self.run)

    @property
    def _code(self) -> int:
        """Exit code of the agent; 0 before it has ended."""
        return self.returncode or 0

    @property
    def _finished(self) -> dict[str, Any]:
        """Record of rank 0 on its end; empty without one."""
        with contextlib.suppress(OSError):  # the training has a newer nbtools
            return read_json(self.run.finished) or {}
        return {}

    @property
    def _is_unsaved(self) -> bool:
        """Whether the last checkpoint could not be written."""
        return "unsaved_since" in self._finished

    def _was_stopped(self) -> bool:
        """Distinguish a stop from a failure; torchrun exits 1 on both."""
        if self._lost_machine_at is not None and not self.was_asked:
            return False
        if self._is_unsaved:
            return False
        why = self._finished.get("why")
        if self.stopped_on is not None and self.stopped_on["condition"] == "nan" and why == "failed":
            return True  # non-finite weights are not saved, which would otherwise count as a failure
        if self.was_asked:
            return why != "failed" and (self.returncode, why) != (0, "completed")
        if self._code == -signal.SIGKILL:  # ranks without an agent may have recorded a stop
            return self._asked_late  # the kernel had held this process, and a stop killed the others meanwhile
        is_signal = self._code in (-signal.SIGTERM, -signal.SIGINT)
        return is_signal or (self._code != 0 and was_stopped_from_outside(self.run, since=self._log_start))

    # --- the machine ---

    def _stamp(self, now: float) -> None:
        """Append the size of the log and the time: a script that only prints gives its curves no other time.

        The time is that of the last write, unless the clock of a file server differs.
        """
        every_s = max(_STAMP_EVERY_S, (now - self._started) * _STAMP_SHARE)
        self._next_stamp = now + every_s
        self._files_before.forget_rewritten()
        with contextlib.suppress(OSError):
            status, when = self._log.stat(), time.time()
            idle_until, self._idle_until = self._idle_until, when
            if (status.st_size, self.attempt) != self._stamped:
                (size, attempt), self._stamped, self._idle_until = self._stamped, (status.st_size, self.attempt), 0.0
                when = status.st_mtime if 0 <= when - status.st_mtime <= 2 * every_s else when
                # The time until which nothing was printed, so that later lines are not placed in that pause.
                idle = f"[{size},{min(idle_until, when):.2f},{attempt}]\n" if idle_until else ""
                with self.run.log_times.open("a") as file:
                    file.write(f"{idle}[{status.st_size},{when:.2f},{self.attempt}]\n")

    def _sample(self) -> None:
        """Append one row to system.jsonl; its cost determines the time of the next one."""
        began = time.process_time()
        self._keep_ticket()
        num_processes = rss = 0
        for process in processes.started_by(psutil.Process(), self.run):
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
    parser.add_argument("--reads-on-end", action="store_true", help="take the command for the end from the input")
    arguments = parser.parse_args()
    on_end = json.loads(sys.stdin.readline() or "[]") if arguments.reads_on_end else []
    run = RunDir(arguments.run_dir.resolve())
    if not run.launch.is_file():
        parser.error(f"{run.path}: no launch.json, so nothing to run")
    lock = arguments.lock_fd
    if lock is None and not arguments.no_lock and (lock := acquire_lock(run.lock)) is None:
        parser.error(f"{run.id}: is already running (its lock is held)")
    if run.process.exists() or run.exit.exists():
        parser.error(f"{run.id}: was already started; a run directory is used once")
    adopt_orphans()
    held = [descriptor for descriptor in (lock, arguments.ticket_fd) if descriptor is not None]
    Supervisor(run, held, on_end=on_end).supervise()


def close_attempt(run: RunDir, line: Mapping[str, Any]) -> None:
    """Append a line on an ended attempt to attempts.jsonl, and delete its state files, which the next one writes."""
    with contextlib.suppress(OSError), run.attempts.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"format": 1, "time": time.time(), **line}) + "\n")
    for pattern in ("*.heartbeat.json", "*.asked", "node*.json", f"{run.collectives.name}*"):
        for path in run.ranks.glob(pattern):
            path.unlink(missing_ok=True)
    for path in (run.finished, run.error):
        path.unlink(missing_ok=True)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that a sweep finds all of them; on Linux."""
    if sys.platform.startswith("linux"):
        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


if __name__ == "__main__":
    main()
