"""The supervisor: a small process that outlives the kernel and runs torchrun from the queue to `exit.json`.

It waits for its turn, starts torchrun, restarts it if `max_restarts` allows, forwards a stop, ends leftover processes
and records the end. It runs as `python -m nbtools.launcher.supervisor RUN_DIR --launched` in its own session, reads
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
from nbtools.launcher.agent_process import AgentProcess
from nbtools.launcher.programs.next_attempt import continued, newest_checkpoint, saved_checkpoints
from nbtools.machine import gpu_queue, processes
from nbtools.machine.devices import gpu_use
from nbtools.machine.on_end import NotifierProcess, sentence_on_end, start_on_end
from nbtools.machine.signal_pipe import Signals, asks_to_stop
from nbtools.run.records import Records, mapping_at, shutdown_timeout_s
from nbtools.run.state import awaited, state_of
from nbtools.rundir import machines, secret_values
from nbtools.rundir.json_files import content_of, read_json, write_json, write_reserved_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.program_files.files_before import FilesBefore
from nbtools.rundir.rundir import RunDir, has_recipe, is_removed

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
_NEVER, _FAR_S = float("inf"), 1e8


class Supervisor:
    """Supervises one run from its place in the queue to `exit.json`; `held` are descriptors of its lock and ticket.

    On a machine other than the run's first, `supervise_node` runs its agent alone. `words` has the commands of the
    launch, `on_end` and `notify_with`. The queue, the agent, the run's other machines, the conditions of `stop_on` and
    the samples are objects with due times, which `_watch` waits for.
    """

    def __init__(self, run: RunDir, held: Sequence[int] = (), *, node: int = 0, **words: Sequence[str]) -> None:
        self.run = run
        self.on_end = tuple(words.get("on_end", ()))
        self.notifier = NotifierProcess(run, words.get("notify_with", ()))
        self.plan: dict[str, Any] = {}
        """Content of launch.json with its secrets, for the objects below too; filled before the start."""
        self.signals = Signals()
        self.queue = Queue(run, self.plan)
        self.agent = AgentProcess(run, self.plan, held, node)
        self.machines = OtherMachines(run, self.plan, node)
        self.checks = StopChecks(run, self.plan)
        self.samples = MachineSamples(run)
        self.attempt = 1
        self.num_failed = 0
        """Number of failed attempts that were followed by another one."""
        self.was_asked = False
        self.was_cancelled = False
        """Whether a stop prevented a restart."""
        self.asked_late = False
        """Whether a stop arrived when the agent had already ended."""

    def supervise(self) -> None:
        """Wait in the queue, run the agent, restart it as often as allowed, and record the end.

        An error of the supervisor itself does not end a training that runs, and is the recorded cause of one that does
        not.
        """
        try:
            failure = self._run_attempts()
        except Exception as error:  # noqa: BLE001 - whatever it is, the end must be recorded
            traceback.print_exc()  # to ranks/supervisor.log
            failure = self._wait_after_error(error)
        self._record(failure)

    def supervise_node(self, plan: Mapping[str, Any]) -> int:
        """Run the agent of this machine once and return its exit code; a signal stops it, and no process is left."""
        self.plan.update(plan)
        now = time.monotonic()
        self.samples.next_sample, self.machines.next_look = now + _FAR_S, now
        self.machines.tell(self.was_asked)
        try:
            if (failure := self._start(self.plan.get("argv"))) is not None:
                raise LaunchError(failure.message)
            self._watch()
            self.agent.sweep()
            return self.agent.code
        finally:
            self.machines.tell(self.was_asked, returncode=self.agent.returncode)

    def _run_attempts(self) -> Failure | None:
        """Run the agent when it is its turn, again after a failure as often as allowed; return the last failure."""
        write_json(self.run.process, {"role": "supervisor", **ProcessIdentity.of(os.getpid()).to_json()})
        self.plan.update(self._read_plan())
        self.was_asked = self.queue.wait(self.signals)
        failure = None if self.was_asked else self._attempt(self.plan.get("argv"))
        while failure is not None and self._may_restart():
            if not self._pause():
                self.was_cancelled = True
                break
            failure = self._attempt(self._prepare_restart(failure))
        return failure

    def _read_plan(self) -> dict[str, Any]:
        return secret_values.restored(self.run, read_json(self.run.launch) or {})

    def _wait_after_error(self, error: Exception) -> Failure | None:
        """After an error of the supervisor, wait for the end of an agent that runs; return the failure."""
        message, host = f"the supervisor failed: {type(error).__name__}: {error}", socket.gethostname()
        if self.agent.process is None:
            return explained(Failure(None, host, None, None, message, traceback.format_exc()), self.run)
        self.samples.next_sample = self.checks.next_check = time.monotonic() + _FAR_S
        self._watch()
        self.agent.sweep()
        try:
            return self._failure()
        except Exception:  # noqa: BLE001 - the same error again, perhaps
            return Failure(None, host, self.agent.returncode, None, message, traceback.format_exc())

    # --- an attempt ---

    def _attempt(self, argv: object) -> Failure | None:
        """Run the agent once, end its leftover processes, and return the failure if there is one."""
        failure = self._start(argv)
        if failure is None:
            self.machines.begin()
            self.checks.begin()
            self._watch()
            self.samples.end_stamps()
            self.machines.tell(self.was_asked, returncode=self.agent.returncode)
            self.machines.wait(self.agent.code)
        self.agent.sweep()
        return failure or self._failure()

    def _start(self, argv: object) -> Failure | None:
        """Start the agent; return the failure if that is impossible."""
        if not isinstance(argv, list) or not argv:
            return self.agent.cannot_start(f"{self.run.launch}: contains no command to run")
        with self.agent.open_log() as log:
            if not self.agent.node and not has_recipe(self.run):
                self.samples.begin_stamps(self.attempt)
            return self.agent.start(argv, self.attempt, log)

    def _watch(self) -> None:
        """Return when the agent has ended, by itself or after a stop."""
        agent, checks, others, samples = self.agent, self.checks, self.machines, self.samples
        while True:
            agent.reap()
            if agent.returncode is not None:
                self.asked_late |= not self.was_asked and asks_to_stop(self.signals.wait(0))
                return
            now = time.monotonic()
            if now >= agent.kill_at:
                agent.kill(now)
            if now >= samples.next_sample:
                self.queue.keep_ticket()
                samples.sample()
                self.notifier.look(mapping_at(mapping_at(self.plan, "launch"), "notify_on"))
            if now >= samples.next_stamp:
                samples.stamp(now)
            if now >= others.next_look:
                self._look_at_machines(now)
            if now >= checks.next_check and checks.has_found(now, counts=not self.was_asked):
                self._stop()
            next_s = min(samples.next_sample, samples.next_stamp, others.next_look, checks.next_check, agent.kill_at)
            came = self.signals.wait(next_s - time.monotonic())
            if asks_to_stop(came) and not self.was_asked:
                agent.reap()
                self.asked_late = agent.returncode is not None
                if not self.asked_late:
                    self._stop()

    def _stop(self) -> None:
        """Ask the agent to end because a stop was asked for, here or on another machine."""
        if not self.was_asked:
            self.was_asked = True
            self.machines.tell(self.was_asked)
        self.agent.end()

    def _look_at_machines(self, now: float) -> None:
        """Stop when another machine stops; end the agent a while after another one's has ended."""
        is_stopping, is_lost = self.machines.look(now)
        if is_stopping:
            self._stop()
        if is_lost:
            self.agent.end()
        if (is_lost or self.was_asked) and not processes.ranks_among(processes.started_by(psutil.Process(), self.run)):
            # torchrun waits five minutes for the other agents after its ranks have ended, and ignores signals.
            self.agent.kill_at = min(self.agent.kill_at, now + _MACHINES_EVERY_S)

    def _failure(self) -> Failure | None:
        """Return the failure of an agent that has ended; None if it succeeded or was stopped."""
        if self.agent.returncode == 0 or self._was_stopped():
            return None
        if not self._is_unsaved or (found := Failure.from_json(self._finished.get("failure"))) is None:
            found = first_failure(self.run, self.agent.code, socket.gethostname(), since=self.agent.log_start)
        return found.without(secret_values.secrets_of(self.run))

    # --- restarts ---

    def _may_restart(self) -> bool:
        allowed = mapping_at(self.plan, "launch").get("max_restarts", 0)
        # After a last checkpoint that could not be written, the next one could not be, either.
        has_run = self.agent.process is not None and not self.was_asked and not self._is_unsaved
        return has_run and isinstance(allowed, int) and self.num_failed < allowed

    def _pause(self) -> bool:
        """Wait before a restart, so that a program that fails at once does not loop; False if a stop arrived."""
        self.was_asked = self.asked_late
        until = time.monotonic() + _RESTART_AFTER_S
        while not self.was_asked and (left := until - time.monotonic()) > 0:
            self.was_asked = asks_to_stop(self.signals.wait(left))
        return not self.was_asked

    def _prepare_restart(self, failure: Failure) -> list[str]:
        """Record the failed attempt, delete its state files, and return the next attempt's command."""
        checkpoint, passed_over = newest_checkpoint(self.run, self.plan)
        plan = self.plan if checkpoint is None else continued(self.plan, checkpoint.path)
        line = {"attempt": self.attempt, "returncode": self.agent.returncode, "failure": failure.to_json()}
        saved = {"checkpoint": checkpoint and checkpoint.name, "checkpoint_step": checkpoint and checkpoint.step}
        close_attempt(self.run, {**line, **saved, "passed_over": passed_over})
        self.num_failed += 1
        self.attempt += 1
        self.agent.forget_attempt()
        return list(plan["argv"])

    # --- the end ---

    def _record(self, failure: Failure | None, **more: object) -> None:
        """Write exit.json, with retries unless that cannot work: errors of the file system may have caused the end."""
        stopped_on, code = self.checks.end(), self.agent.code
        content = {
            "returncode": self.agent.returncode,
            "signal": -code if code < 0 else None,
            "stopped": self.was_cancelled or (failure is None and self._was_stopped()),
            "failure": None if failure is None else failure.to_json(),
            "time": time.time(),
            "duration_s": round(time.monotonic() - self.queue.left_at, 3),
            "waited_s": round(self.queue.left_at - self.queue.entered_at, 3),
            "swept": self.agent.num_swept,
            "attempt": self.attempt,
            **({} if stopped_on is None else {"stopped_on": stopped_on}),
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
        """Start the command of `on_end` and send the last notices, once the lock and the GPUs are free for others."""
        for descriptor in self.agent.held:
            os.close(descriptor)
        state = str(state_of(Records(self.run)))
        name = str(self.plan.get("name") or self.run.id)
        words = {"{sentence}": sentence_on_end(self.run, name, state, ended), "{run}": self.run.id, "{state}": state}
        if self.on_end:
            with contextlib.suppress(OSError):
                start_on_end(self.on_end, words, self.run)
        self.notifier.end(state, words["{sentence}"])

    @property
    def _finished(self) -> dict[str, Any]:
        """Record of rank 0 on its end; empty without one."""
        return content_of(self.run.finished)

    @property
    def _is_unsaved(self) -> bool:
        """Whether the last checkpoint could not be written."""
        return "unsaved_since" in self._finished

    def _was_stopped(self) -> bool:
        """Distinguish a stop from a failure; torchrun exits 1 on both."""
        if self._is_unsaved or (self.machines.lost_at is not None and not self.was_asked):
            return False
        code, why = self.agent.code, self._finished.get("why")
        if (on := self.checks.stopped_on) is not None and on["condition"] == "nan" and why == "failed":
            return True  # non-finite weights are not saved, which would otherwise count as a failure
        if self.was_asked:
            return why != "failed" and (self.agent.returncode, why) != (0, "completed")
        if code == -signal.SIGKILL:  # ranks without an agent may have recorded a stop
            return self.asked_late  # the kernel had held this process, and a stop killed the others meanwhile
        is_signal = code in (-signal.SIGTERM, -signal.SIGINT)
        return is_signal or (code != 0 and was_stopped_from_outside(self.run, since=self.agent.log_start))


class Queue:
    """The place of a run in the queue for GPUs, and behind the run that it waits for."""

    def __init__(self, run: RunDir, plan: Mapping[str, Any]) -> None:
        self._run = run
        self._plan = plan
        self.entered_at = self.left_at = time.monotonic()
        """The wait between them is no part of the run's duration."""

    def wait(self, signals: Signals) -> bool:
        """Return when no earlier run claims one of the GPUs and the awaited runs have ended, or True on a stop."""
        records, was_asked = Records(self._run), asks_to_stop(signals.wait(0))
        while not was_asked:
            is_our_turn = self._ticket is None or not gpu_queue.ahead(self._ticket)
            self.keep_ticket()
            if is_our_turn and awaited(records) is None:
                break
            was_asked = asks_to_stop(signals.wait(_LOOK_EVERY_S))
        self.left_at = time.monotonic()
        return was_asked

    def keep_ticket(self) -> None:
        """Touch the ticket: systems delete files in /tmp that are untouched for days."""
        if self._ticket is not None:
            with contextlib.suppress(OSError):
                os.utime(self._ticket)

    @property
    def _ticket(self) -> Path | None:
        named = self._plan.get("ticket")
        return Path(named) if isinstance(named, str) else None


class OtherMachines:
    """The other machines of a run over several: what they record, and what this one tells them."""

    def __init__(self, run: RunDir, plan: Mapping[str, Any], node: int) -> None:
        self._run = run
        self._plan = plan
        self._node = node
        self.next_look = _NEVER
        self.lost_at: float | None = None
        """When the end of another machine's agent was seen that ends this one's."""

    def begin(self) -> None:
        """Look at the other machines, if there are any, from now on."""
        if machines.num_machines(self._plan) > 1:
            self.next_look = time.monotonic()

    def tell(self, is_stopping: bool, **state: object) -> None:
        """Record the state of this machine's part of the run for the other machines."""
        if machines.num_machines(self._plan) > 1:
            machines.write_record(self._run, self._node, stopping=is_stopping, **state)

    def look(self, now: float) -> tuple[bool, bool]:
        """Return whether another machine stops, and whether one's agent has ended some time ago, so that all end."""
        self.next_look = now + _MACHINES_EVERY_S
        records = self._records()
        has_ended = [record for record in records if "returncode" in record]
        if self.lost_at is None and any(self._node or record["returncode"] != 0 for record in has_ended):
            self.lost_at = now
        grace_s = max((self._grace_s(record["returncode"]) for record in has_ended), default=0.0)
        is_lost = self.lost_at is not None and now - self.lost_at > grace_s
        return any(record.get("stopping") is True for record in records), is_lost

    def wait(self, returncode: int) -> None:
        """Wait a moment until the other machines have ended: one of them may have failed first."""
        grace_s = self._grace_s(returncode)
        processes.happens_within(lambda: all("returncode" in record for record in self._records()), grace_s)

    def _records(self) -> list[dict[str, Any]]:
        """Return what the machines to watch have recorded: node 0 watches those with started ranks, the others it."""
        others = range(1, machines.num_machines(self._plan))
        nodes = [0] if self._node else [node for node in others if machines.has_ranks(self._run, node)]
        return [machines.record(self._run, node) for node in nodes]

    def _grace_s(self, returncode: object) -> float:
        """Return the seconds a machine may run after another one's agent has ended: more if that one exited with 0."""
        return shutdown_timeout_s(self._plan) if returncode == 0 else _MACHINES_END_WITHIN_S


class StopChecks:
    """The conditions of `stop_on`, looked at beside the training."""

    def __init__(self, run: RunDir, plan: Mapping[str, Any]) -> None:
        self._run = run
        self._plan = plan
        self._conditions: StopConditions | None = None
        self.next_check = _NEVER
        self.stopped_on: dict[str, Any] | None = None
        """The condition that has stopped the run."""

    def begin(self) -> None:
        """Look at the conditions, if there are any, from now on."""
        settings = mapping_at(mapping_at(dict(self._plan), "launch"), "stop_on")
        if self._conditions is None and any(settings.values()):
            best_by, is_lower_better = str(self._plan.get("best_by") or ""), self._plan.get("lower_is_better", True)
            self._conditions = StopConditions(self._run, settings, best_by, lower=is_lower_better)
            self.next_check = time.monotonic() + LOOK_EVERY_S

    def has_found(self, now: float, *, counts: bool) -> bool:
        """Whether a condition holds that stops the run; the first one ends the checks, also if none `counts`."""
        assert self._conditions is not None
        self.next_check = now + LOOK_EVERY_S
        if (found := self._conditions.look()) is None:
            return False
        self.next_check = _NEVER
        self.stopped_on = found if counts else None
        return counts

    def end(self) -> dict[str, Any] | None:
        """End the process of the checks; return the condition that has stopped the run.

        After a value that is not finite, it names the last checkpoint before that.
        """
        if self._conditions is not None:
            self._conditions.close()
        if self.stopped_on is not None and self.stopped_on["condition"] == "nan":
            last = self.stopped_on["finite_step"]
            saved = saved_checkpoints(self._run, self._plan)
            older = [found.name for found in saved if found.step is not None and found.step <= last]
            self.stopped_on["checkpoint"] = older[-1] if older else None
            said = f"last checkpoint before it: {older[-1]}" if older else "no checkpoint is older"
            self.stopped_on["sentence"] += f"; {said}"
        return self.stopped_on


class MachineSamples:
    """Samples of the machine in system.jsonl, and of the log's size for the times of a program's lines."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.next_sample = self._began = time.monotonic()
        self.next_stamp = _NEVER
        self._attempt = 0
        self._stamped = (-1, 0)
        """Size of the log and attempt of the last stamp."""
        self._idle_until = 0.0
        """Unix time of the last look at the log at which it had not grown; 0 if it had."""
        self._files_before = FilesBefore(run)

    def sample(self) -> None:
        """Append one row to system.jsonl; its cost determines the time of the next one."""
        began = time.process_time()
        num_processes = rss = 0
        for process in processes.started_by(psutil.Process(), self._run):
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
                num_processes += 1
        row = {"time": round(time.time(), 3), "cpu_percent": psutil.cpu_percent(), "gpus": gpu_use()}
        row |= {"num_processes": num_processes, "rss_bytes": rss, **asdict(host_memory())}
        with contextlib.suppress(OSError), self._run.system.open("a") as file:
            file.write(json.dumps(row) + "\n")
        cost = time.process_time() - began
        self.next_sample = time.monotonic() + max(SAMPLE_EVERY_S, cost / _SAMPLE_SHARE)

    def begin_stamps(self, attempt: int) -> None:
        """Stamp the opened log of an attempt, before the first one after a record of the program's files."""
        self._attempt = attempt
        if attempt == 1:
            self._files_before.take()
            self._began = time.monotonic()
        self.stamp(time.monotonic())

    def end_stamps(self) -> None:
        """Stamp the log of an attempt that has ended."""
        if self.next_stamp != _NEVER:
            self.stamp(time.monotonic())
            self.next_stamp = _NEVER

    def stamp(self, now: float) -> None:
        """Append the size of the log and the time: a script that only prints gives its curves no other time.

        The time is that of the last write, unless the clock of a file server differs.
        """
        every_s = max(_STAMP_EVERY_S, (now - self._began) * _STAMP_SHARE)
        self.next_stamp = now + every_s
        self._files_before.forget_rewritten()
        with contextlib.suppress(OSError):
            status, when = self._run.log.stat(), time.time()
            idle_until, self._idle_until = self._idle_until, when
            if (status.st_size, self._attempt) != self._stamped:
                (size, attempt), self._stamped, self._idle_until = self._stamped, (status.st_size, self._attempt), 0.0
                when = status.st_mtime if 0 <= when - status.st_mtime <= 2 * every_s else when
                # The time until which nothing was printed, so that later lines are not placed in that pause.
                idle = f"[{size},{min(idle_until, when):.2f},{attempt}]\n" if idle_until else ""
                with self._run.log_times.open("a") as file:
                    file.write(f"{idle}[{status.st_size},{when:.2f},{self._attempt}]\n")


def main() -> None:
    """Supervise one run until its end is recorded; exits 2 when there is nothing to supervise."""
    parser = argparse.ArgumentParser(prog="nbtools.launcher.supervisor", description=__doc__.split("\n", 1)[0])
    parser.add_argument("run_dir", type=Path)
    text = "take the launch's commands, and the descriptors of its lock and ticket, from the input; else take the lock"
    parser.add_argument("--launched", action="store_true", help=text)
    arguments = parser.parse_args()
    words = json.loads(sys.stdin.readline() or "{}") if arguments.launched else {}
    held = words.pop("held", [])
    run = RunDir(arguments.run_dir.resolve())
    if not run.launch.is_file():
        parser.error(f"{run.path}: no launch.json, so nothing to run")
    if not arguments.launched:
        if (lock := acquire_lock(run.lock)) is None:
            parser.error(f"{run.id}: is already running (its lock is held)")
        held = [lock]
    if run.process.exists() or run.exit.exists():
        parser.error(f"{run.id}: was already started; a run directory is used once")
    adopt_orphans()
    Supervisor(run, held, **words).supervise()


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
