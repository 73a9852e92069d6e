"""The supervisor as the batch script of a Slurm job, after `nbtools.launcher.job` has prepared the attempt.

A preemption and the time limit end an attempt and not the run: this process requests a requeue unless Slurm does so.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtools.failures.evidence import last_rows
from nbtools.failures.failure import Failure
from nbtools.failures.restarts import Restart, read_restarts, without_progress
from nbtools.launcher.programs.program_restart import continued, newest_of_program
from nbtools.launcher.supervisor import Supervisor, adopt_orphans, close_attempt
from nbtools.machine import slurm
from nbtools.machine.processes import members, sweep_processes
from nbtools.machine.signal_pipe import asks_to_stop
from nbtools.run.checkpoints import AnyCheckpoint, checkpoints_in, resuming
from nbtools.run.records import checkpoints_and_resume, mapping_at
from nbtools.run.slurm_job import CANCELLED, NODE_FAILED, PREEMPTED, REQUEUED, STOPPED, TIME_LIMIT, said_by_slurm
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import finite, read_json, whole
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir, has_recipe

_EARLY_S = 90.0
"""Slurm sends the signal before the time limit up to a minute earlier than it was asked to."""
_LOCK_WITHIN_S = 60.0
_CLOCKS_DIFFER_S = 20.0
"""Largest difference between the clocks of two machines of a cluster."""
_GOES_ON_AFTER = (PREEMPTED, TIME_LIMIT, NODE_FAILED, REQUEUED)


class JobSupervisor(Supervisor):
    """Supervises the attempts of one start of a job on its first node, and starts the other nodes."""

    def __init__(self, run: RunDir, *held: int) -> None:
        super().__init__(run, held)
        self.job = read_json(run.job) or {}
        self.attempt = whole(self.job.get("attempt")) or 1
        self.num_failed = sum(ended.failure is not None for ended in read_restarts(run))
        self._nodes: subprocess.Popen[bytes] | None = None

    def _read_plan(self) -> dict[str, Any]:
        return with_job(super()._read_plan(), self.job)

    def _start(self, argv: object) -> Failure | None:
        if self._nodes is None and (command := self.job.get("nodes")):
            self._nodes = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        return super()._start(argv)

    def _record(self, failure: Failure | None, **more: object) -> None:
        """Record the end, or end the attempt only: then the job waits for its next start."""
        was_signalled = self.was_asked or self.was_cancelled or self._asked_late or asks_to_stop(self.signals.wait(0))
        has_completed = self.returncode == 0 and self._finished.get("why") != "stopped"
        if not was_signalled or has_completed:
            return super()._record(failure, **more)
        why, is_queued = self._why_signalled()
        settings = mapping_at(mapping_at(self.plan, "launch"), "cluster")
        wants_next = why in _GOES_ON_AFTER and settings.get("requeue") is True
        number = whole(self.job.get("job_id")) or 0
        line = ended_attempt(self.run, self.attempt, why, self.returncode)
        stuck = failure if self._is_unsaved else None
        if wants_next and stuck is None and has_recipe(self.run):
            saved, start = line["checkpoint"], line["resumed_from"]
            this = Restart(self.attempt, time.time(), None, saved, why, line["step"], start)
            stuck = without_progress([*read_restarts(self.run), this], saved)
        if wants_next and stuck is None and (is_queued or slurm.requeue(number)):
            end_attempt(self.run, line)
            return None
        self.was_cancelled = stuck is None  # a stop, with any exit code of the ranks
        if stuck is not None:
            self.returncode = self.returncode or 1
        super()._record(stuck, **{**more, "why": why})
        if is_queued:
            slurm.cancel(number)
        return None

    def _why_signalled(self) -> tuple[str, bool]:
        """Return why this process was asked to stop, and whether Slurm queues the job again by itself."""
        slurm.forget()
        job = (slurm.own_jobs() or {}).get(whole(self.job.get("job_id")) or 0)
        print(f"asked to end; squeue lists {job}", flush=True)
        # A cancelled job has an end by now; a requeued one has none, or the estimated end after its next start.
        is_queued = (
            job is not None
            and job.state != slurm.RUNNING
            and (job.ends_at is None or job.ends_at > time.time() + _CLOCKS_DIFFER_S)
        )
        if self.run.stop_mark.exists() or self.stopped_on is not None:
            return STOPPED, is_queued
        said = said_by_slurm(self.run)
        if is_queued:
            return (REQUEUED if said in ("", CANCELLED) else said), True
        if job is not None and job.state == slurm.RUNNING and job.ends_at is not None:
            expected = finite(self.job.get("ends_at"))
            is_sooner = expected is not None and job.ends_at < expected - 1
            lead_s = self._shutdown_timeout_s + 2 * _EARLY_S
            if is_sooner or job.ends_at - time.time() < lead_s:
                return (PREEMPTED if is_sooner else TIME_LIMIT), False
        return said or CANCELLED, False


def with_job(plan: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of launch.json, updated from job.json for this attempt."""
    args = [str(word) for word in plan.get("args") or ()]
    if (checkpoint := job.get("resume_from")) is not None:
        path = Path(str(checkpoint))
        args = continued(plan, path)["args"] if checkpoints_and_resume(plan)[1] else resuming(args, path)
    command = [*(job.get("command") or ()), *args]
    return {**plan, "argv": command, "args": args, "env": mapping_at(dict(job), "env")}


def ended_attempt(run: RunDir, attempt: int, why: str, returncode: int | None = None) -> dict[str, Any]:
    """Return the line of attempts.jsonl on an attempt that Slurm has ended."""
    finished = whole((read_json(run.finished) or {}).get("step"))
    rows = (whole(row.get("step")) or 0 for row in last_rows(run.metrics))
    step = max([finished or 0, *rows, *(beat.step for beat in read_heartbeats(run))])
    plan, start = read_json(run.launch) or {}, (read_json(run.job) or {}).get("resume_from")
    saved: AnyCheckpoint | None = newest_of_program(run, plan)[0]
    if has_recipe(run):
        saved = next(reversed(checkpoints_in(run.checkpoints)), None)
    return {
        "attempt": attempt,
        "returncode": returncode,
        "failure": None,
        "why": why,
        "step": step,
        "resumed_from": None if start is None else Path(str(start)).name,
        "checkpoint": None if saved is None else saved.name,
        "checkpoint_step": None if saved is None else saved.step,
    }


def end_attempt(run: RunDir, line: Mapping[str, Any]) -> None:
    """Record that an attempt has ended and the run waits for the next start of its job."""
    close_attempt(run, line)
    run.process.unlink(missing_ok=True)


def open_attempt(run: RunDir) -> int:
    """Return the number of the attempt that starts now; first record one that was killed and end its processes."""
    number = 1 + max((ended.attempt for ended in read_restarts(run)), default=0)
    if run.process.exists():
        sweep_processes(lambda: members(run), grace_s=0)
        end_attempt(run, ended_attempt(run, number, said_by_slurm(run) or REQUEUED))
        number += 1
    return number


def supervise_job(run: RunDir) -> None:
    """Supervise one start of the job of a run."""
    lock = None
    with contextlib.suppress(OSError):  # a file system without locks
        lock = acquire_lock(run.lock, timeout_s=_LOCK_WITHIN_S)
        if lock is None:
            sys.exit(f"{run.id}: another process holds its lock; this is {socket.gethostname()}, pid {os.getpid()}")
    adopt_orphans()
    JobSupervisor(run, *([] if lock is None else [lock])).supervise()
