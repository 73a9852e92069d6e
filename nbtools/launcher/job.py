"""The start of a Slurm job: `python -P -m nbtools.launcher.job RUN_DIR_OR_SCRIPT` ends a job script.

It prepares an attempt on the job's first node and supervises it, in the same process, so that Slurm's signals reach the
supervisor. A preemption and the time limit end an attempt and not the run: this process requests a requeue unless Slurm
does so. With `--node` it is one task of the `srun` step that the supervisor starts for the other nodes.
"""

import signal

if __name__ == "__main__":  # a stop that comes while this loads waits for the supervisor's handlers
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtools.config import Launch
from nbtools.errors import LaunchError, NbtoolsError
from nbtools.failures.evidence import last_rows
from nbtools.failures.failure import Failure
from nbtools.failures.restarts import Restart, read_restarts, without_progress
from nbtools.launcher.node import interpreter_of, joinable, project_paths, run_part
from nbtools.launcher.placement import Placement, child_environment, place
from nbtools.launcher.programs.next_attempt import continued, newest_checkpoint
from nbtools.launcher.supervisor import Supervisor, adopt_orphans, close_attempt
from nbtools.machine import network, slurm
from nbtools.machine.devices import GLOO_INTERFACE, num_cores
from nbtools.machine.processes import members, sweep_processes
from nbtools.machine.signal_pipe import asks_to_stop
from nbtools.run.checkpoints import checkpoints_in
from nbtools.run.records import mapping_at, shutdown_timeout_s
from nbtools.run.slurm_job import CANCELLED, NODE_FAILED, PREEMPTED, REQUEUED, STOPPED, TIME_LIMIT, said_by_slurm
from nbtools.rundir import secret_values
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import finite, read_json, whole, write_json, write_reserved_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir, foreign_owner, has_recipe, is_run, marks_of
from nbtools.script.torchrun import Meeting

_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
_EARLY_S = 90.0
"""Slurm sends the signal before the time limit up to a minute earlier than it was asked to."""
_LOCK_WITHIN_S = 60.0
_CLOCKS_DIFFER_S = 20.0
"""Largest difference between the clocks of two machines of a cluster."""
_GOES_ON_AFTER = (PREEMPTED, TIME_LIMIT, NODE_FAILED, REQUEUED)


# --- the start of an attempt ------------------------------------------------------------------------


def prepare_job(run: RunDir) -> dict[str, str]:
    """Write job.json for the attempt that starts now; return the variables of the supervisor.

    Raises:
        LaunchError: the run has ended, or belongs to another job or user; nothing was changed.
        NbtoolsError: the job cannot run here; the run has failed.
    """
    number = slurm.current_job()
    if number is None:
        raise LaunchError(f"{run.id}: this is no Slurm job; submit it with sbatch {run.job_script}")
    if not is_run(run.path):
        raise LaunchError(f"{run.path}: no run directory on {socket.gethostname()}; runs/ must be on a shared disk")
    if owner := foreign_owner(run.path):
        raise LaunchError(f"{run.id} belongs to {owner}; only they can run it")
    if run.exit.exists():
        raise LaunchError(f"{run.id}: has ended; nothing is left to do")
    known = read_json(run.slurm)
    if known is None:  # the client was killed between the submission and its record
        write_json(run.slurm, {"job_id": number, "cluster": None, "time": time.time()})
    elif whole(known.get("job_id")) != number:
        raise LaunchError(f"{run.id}: is job {known.get('job_id')}, and this is job {number}; launch or resume the run")
    try:
        return _prepared(run, number)
    except (NbtoolsError, OSError) as error:
        failure = Failure(None, socket.gethostname(), None, None, str(error))
        content = {"returncode": 1, "signal": None, "stopped": False, "failure": failure.to_json()}
        write_reserved_json(run.exit, {**content, "time": time.time()})
        raise


def _prepared(run: RunDir, number: int) -> dict[str, str]:
    attempt = open_attempt(run)
    plan = secret_values.restored(run, read_json(run.launch) or {})
    target, _ = project_paths(plan)
    placement = _placed(plan)
    checkpoint = newest_checkpoint(run, plan)[0] if attempt > 1 else None
    stuck = without_progress(read_restarts(run), None if checkpoint is None else checkpoint.name)
    if has_recipe(run) and stuck is not None:
        raise LaunchError(f"{stuck.message}. {stuck.advice}")
    job, meeting = (slurm.own_jobs() or {}).get(number), placement.meeting
    marks = marks_of(run, plan.get("root"))
    content = {
        "job_id": number,
        "attempt": attempt,
        "command": placement.command(target, run.path, ()),
        "env": {**placement.variables(run), **marks},
        "meeting": meeting and [meeting.address, meeting.port],
        "resume_from": None if checkpoint is None else str(checkpoint.path),
        "nodes": _on_other_nodes(run, placement.launch.nnodes),
        "ends_at": None if job is None else job.ends_at,
        "log_start": run.job_log.stat().st_size if run.job_log.exists() else 0,
        "time": time.time(),
    }
    write_json(run.job, content)
    print(f"{run.id}: attempt {attempt} in job {number} on {os.environ.get('SLURM_JOB_NODELIST')}", flush=True)
    for finding in placement.findings:
        print(f"  {finding}", flush=True)
    return child_environment(os.environ, marks)


def _placed(plan: Mapping[str, Any], meeting: Meeting | None = None) -> Placement:
    """Place a launch on a node of this job: Slurm has chosen the devices and the cores."""
    asked = Launch(**mapping_at(dict(plan), "launch"))
    num_gpus = None if asked.cluster is None else asked.cluster.num_gpus(asked.nproc_per_node)
    launch = asked.resolved(0).replace(cluster=None, **({"gpus": ()} if num_gpus == 0 else {}))
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    cores = min(num_cores(), int(given)) if given.isdecimal() else num_cores()
    if launch.omp_num_threads is None:
        launch = launch.replace(omp_num_threads=max(1, cores // launch.num_processes))
    if meeting is None and launch.nnodes > 1:
        nodes = (slurm.control("show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")) or "").split()
        meeting = Meeting(*network.meeting_point(nodes[1:2]))
    placement = place(launch, meeting, interpreter_of(plan))
    if num_gpus and len(placement.gpus) < launch.num_processes:
        raise LaunchError(
            f"{socket.gethostname()}: job {slurm.current_job()} has {len(placement.gpus)} GPUs on this node, and "
            f"{launch.num_processes} processes need one each (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES')}); set gpus_per_node: 0 is the CPU"
        )
    if num_gpus != 0:
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            placement.environment.pop(name, None)
        if launch.nnodes > 1 and _NCCL_INTERFACE not in os.environ and GLOO_INTERFACE in placement.environment:
            placement.environment[_NCCL_INTERFACE] = f"={placement.environment[GLOO_INTERFACE]}"  # "=": exact
    return placement


def _on_other_nodes(run: RunDir, num_nodes: int) -> list[str] | None:
    """Return the command that starts this module on the other nodes of the job; None for a single node."""
    if num_nodes == 1:
        return None
    cores = os.environ.get("SLURM_CPUS_PER_TASK")  # since 22.05 srun does not read it
    return [
        *("srun", f"--nodes={num_nodes - 1}", f"--ntasks={num_nodes - 1}", "--ntasks-per-node=1", "--relative=1"),
        *("--kill-on-bad-exit=0", "--mpi=none", "--cpu-bind=none", *([f"--cpus-per-task={cores}"] if cores else [])),
        *(sys.executable, "-P", "-m", "nbtools.launcher.job", str(run.path), "--node"),
    ]


def _run_node(run: RunDir) -> int:
    """Run this node's part of the run, given by the task's number in its job step."""
    node = 1 + int(os.environ["SLURM_PROCID"])
    joinable(run.path, node)
    job = read_json(run.job) or {}
    plan = secret_values.restored(run, read_json(run.launch) or {})
    address, port = job["meeting"]
    placement = _placed(plan, Meeting(str(address), int(port)))
    args = with_job({**plan, "argv": []}, {**job, "command": []})["argv"]
    return run_part(run, node, {**plan, "args": args}, placement, attempt=whole(job.get("attempt")) or 1)


# --- its supervision and its end --------------------------------------------------------------------


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
        was_signalled = self.was_asked or self.was_cancelled or self.asked_late or asks_to_stop(self.signals.wait(0))
        has_completed = self.agent.returncode == 0 and self._finished.get("why") != "stopped"
        if not was_signalled or has_completed:
            return super()._record(failure, **more)
        why, is_queued = self._why_signalled()
        settings = mapping_at(mapping_at(self.plan, "launch"), "cluster")
        wants_next = why in _GOES_ON_AFTER and settings.get("requeue") is True
        number = whole(self.job.get("job_id")) or 0
        line = ended_attempt(self.run, self.attempt, why, self.agent.returncode)
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
            self.agent.returncode = self.agent.returncode or 1
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
        if self.run.stop_mark.exists() or self.checks.stopped_on is not None:
            return STOPPED, is_queued
        said = said_by_slurm(self.run)
        if is_queued:
            return (REQUEUED if said in ("", CANCELLED) else said), True
        if job is not None and job.state == slurm.RUNNING and job.ends_at is not None:
            expected = finite(self.job.get("ends_at"))
            is_sooner = expected is not None and job.ends_at < expected - 1
            lead_s = shutdown_timeout_s(self.plan) + 2 * _EARLY_S
            if is_sooner or job.ends_at - time.time() < lead_s:
                return (PREEMPTED if is_sooner else TIME_LIMIT), False
        return said or CANCELLED, False


def with_job(plan: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of launch.json, updated from job.json for this attempt."""
    args = [str(word) for word in plan.get("args") or ()]
    if (checkpoint := job.get("resume_from")) is not None:
        args = continued(plan, Path(str(checkpoint)))["args"]
    command = [*(job.get("command") or ()), *args]
    return {**plan, "argv": command, "args": args, "env": mapping_at(dict(job), "env")}


def ended_attempt(run: RunDir, attempt: int, why: str, returncode: int | None = None) -> dict[str, Any]:
    """Return the line of attempts.jsonl on an attempt that Slurm has ended."""
    finished = whole((read_json(run.finished) or {}).get("step"))
    rows = (whole(row.get("step")) or 0 for row in last_rows(run.metrics))
    step = max([finished or 0, *rows, *(beat.step for beat in read_heartbeats(run))])
    plan, start = read_json(run.launch) or {}, (read_json(run.job) or {}).get("resume_from")
    # Hashes of a recipe's checkpoint take longer than Slurm may wait; the next attempt verifies it.
    own = next(reversed(checkpoints_in(run.checkpoints)), None)
    saved = own if has_recipe(run) else newest_checkpoint(run, plan)[0]
    return {
        "attempt": attempt,
        "returncode": returncode,
        "failure": None,
        "why": why,
        "step": step,
        "resumed_from": None if start is None else Path(str(start)).name,
        "checkpoint": saved and saved.name,
        "checkpoint_step": saved and saved.step,
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


def main() -> None:
    """Supervise a run in a job, or run one of its other nodes; exits 1 when that is impossible."""
    parser = argparse.ArgumentParser(prog="nbtools.launcher.job", description=__doc__.split("\n", 1)[0])
    parser.add_argument("run_or_script", type=Path)
    parser.add_argument("--node", action="store_true", help="run the part of this srun task")
    arguments = parser.parse_args()
    if arguments.run_or_script.is_file():  # submitted by hand: another module makes the run directory
        by_hand = [sys.executable, "-P", "-m", "nbtools.launcher.launch", str(arguments.run_or_script)]
        os.execve(sys.executable, by_hand, os.environ)
    run = RunDir(arguments.run_or_script.resolve())
    try:
        if arguments.node:
            sys.exit(_run_node(run))
        environment = prepare_job(run)
    except (NbtoolsError, OSError) as error:
        sys.exit(f"nbtools: {error}")
    os.environ.clear()
    os.environ.update(environment)
    supervise_job(run)


if __name__ == "__main__":
    main()
