"""The stop of a run: its processes or its job are asked to save and end, then killed; and checks after the stop."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from nbtools.errors import NbtoolsError, plural
from nbtools.machine import processes, slurm
from nbtools.machine.processes import STOP_GRACE_S, SWEEP_GRACE_S, living
from nbtools.run.records import Records, stop_signal
from nbtools.run.slurm_job import cluster_of, has_ended, is_waiting, job_of, listed_jobs
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import read_json, write_json, write_reserved_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.machines import num_machines, record
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir, foreign_owner, goes_on, has_started, is_removed
from nbtools.rundir.tail import one_line

_STARTS_WITHIN_S = 5.0
_CANCELLED_WITHIN_S = 60.0
"""Time in which Slurm ends a cancelled job: by default it kills after 30 s."""
_READ_WITHIN_S = 1.0
"""Time in which a reader that tests a lock frees it."""
_STATE_LETTERS = {"running": "R", "sleeping": "S", "disk-sleep": "D", "stopped": "T", "tracing-stop": "t"}


@dataclass(frozen=True)
class Ending:
    """The result of a stop."""

    ended: str
    """Number of ranks that lived at the request to stop and have ended; that of all processes without ranks."""
    left: tuple[str, ...]
    """Processes that could not be ended: `pid 123 (state D)`."""
    was_killed: bool
    """Whether processes had to be killed."""

    def __str__(self) -> str:
        text = f"{self.ended} ended"
        left = f"{plural(len(self.left), 'process')} could not be ended: {', '.join(self.left)}"
        return f"{text}; {left}" if self.left else text


def stop_processes(run: RunDir, is_over: Callable[[], bool], timeout_s: float) -> Ending:
    """Ask a run to end, wait, kill processes that have not ended after `timeout_s`, and sweep.

    The supervisor, if it lives, gets SIGTERM and sends the run's stop signal, which the outermost processes of the run
    get otherwise. Several threads may call this at once.

    `is_over` tells by the run's files whether it has ended; `timeout_s` includes the time for the last checkpoint.

    Raises:
        NbtoolsError: the run is on another host, in another container, or of another user.
    """
    written = _process_record(run)
    role, identity = written.get("role"), ProcessIdentity.from_json(written)
    if not is_over() and identity is not None and identity.is_elsewhere:
        raise NbtoolsError(f"{run.id} runs on {identity.host}, this is {socket.gethostname()}: stop it from there")
    leader = processes.leader_of(run, identity)
    supervisor = leader if role == "supervisor" else None
    family = processes.family_of(run, leader)
    if not family:
        if not is_over():
            if owner := foreign_owner(run.path):
                raise NbtoolsError(f"{run.id} belongs to {owner}; only they can stop it")
            raise NbtoolsError(f"{run.id} is locked by a process that is not visible from here (another container?)")
        return Ending(plural(0, "process"), (), was_killed=False)

    def workers() -> list[psutil.Process]:
        return [process for process in living({*family, *processes.members(run)}) if process != supervisor]

    before = workers()
    ranks = [leader] if leader is not None and role == "worker" else [*processes.ranks_among(before).values()]
    asked = [leader] if leader in family else []
    signalled: set[psutil.Process] = set()

    def is_over_once_asked() -> bool:
        nonlocal asked
        alive = living(asked)
        if is_over() and not alive:  # alive, but LOST by its files: the lock was deleted
            return True
        if not alive:  # there was none, or it ended before it passed the signal on
            family.update(processes.lock_holders(run))  # a supervisor would end them
            asked = processes.outermost(workers())
        number = signal.SIGTERM if supervisor in asked else stop_signal(read_json(run.launch) or {})
        _ask(run, [process for process in asked if process not in signalled], number)
        signalled.update(asked)
        return False

    was_killed = not processes.happens_within(is_over_once_asked, timeout_s)
    if was_killed:
        processes.sweep_processes(workers, grace_s=0)
        # The supervisor sees the end of its agent, sweeps and records the end; without a supervisor, see below. One
        # that waits for a process which even SIGKILL does not end, or is itself held by the kernel, does so later.
        if (
            supervisor is not None
            and not workers()
            and not processes.happens_within(lambda: is_over() and not living([supervisor]), STOP_GRACE_S)
            and "(state D)" not in _described(supervisor)
        ):
            processes.send_signal(supervisor, signal.SIGKILL)
            processes.happens_within(lambda: not living([supervisor]), SWEEP_GRACE_S)
    if supervisor is None or not living([supervisor]):
        processes.sweep_processes(workers)
        _record_stop(run)
    left = workers()
    ended = plural(len([one for one in ranks or before if one not in left]), "rank" if ranks else "process")
    stuck = living([supervisor]) if supervisor is not None and not left and not is_over() else []
    return Ending(ended, (*map(_described, left), *(f"{_described(one)}, the supervisor" for one in stuck)), was_killed)


def _described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        status = process.status()
        return f"pid {process.pid} (state {_STATE_LETTERS.get(status, status)})"
    return f"pid {process.pid}"


def _process_record(run: RunDir) -> dict[str, object]:
    """Return the content of process.json; wait for a supervisor that has just been started to write it.

    The lock says that there is one: right after its start, `members` may miss it, because the kernel shows an empty
    environment until exec is complete.
    """

    def is_known() -> bool:
        is_starting = not (is_removed(run) or has_started(run)) and (goes_on(run) or processes.members(run))
        return read_json(run.process) is not None or not is_starting

    processes.happens_within(is_known, _STARTS_WITHIN_S)
    return read_json(run.process) or {}


def _ask(run: RunDir, receivers: list[psutil.Process], number: signal.Signals) -> None:
    """Send a signal once per process, across all callers: a second one makes torchrun abort its shutdown."""
    for process in receivers:
        try:
            if foreign_owner(run.path) is None and foreign_owner(run.ranks) is None:
                (run.ranks / f"{process.pid}.asked").touch(exist_ok=False)
        except FileExistsError:
            continue
        except OSError:
            pass  # the disk is full: signal without a mark
        processes.send_signal(process, number)


def _record_stop(run: RunDir) -> None:
    """Write exit.json for a dead supervisor if no end was recorded. The holder of the run's lock is its only writer.

    Nothing is written into a run directory of another user.
    """
    descriptor = None
    with contextlib.suppress(OSError):  # a file system without locks
        if foreign_owner(run.path) is None:
            descriptor = acquire_lock(run.lock, timeout_s=_READ_WITHIN_S)
    if descriptor is None:
        return
    try:
        if read_json(run.exit) is None and read_json(run.finished) is None:
            record_stop(run)
    finally:
        os.close(descriptor)


def record_stop(run: RunDir, **more: object) -> None:
    """Write exit.json for a supervisor that could not."""
    content = {"returncode": None, "signal": None, "stopped": True, "failure": None, "time": time.time()}
    write_reserved_json(run.exit, {**content, **more})


def stop_job(records: Records, timeout_s: float) -> Ending:
    """Cancel the pending job of a run; ask a running one to save and end, and cancel it after `timeout_s`.

    Raises:
        NbtoolsError: the run is another user's, Slurm does not answer, or squeue lists no job of this run.
    """
    run = records.files
    if owner := foreign_owner(run.path):
        raise NbtoolsError(f"{run.id} belongs to {owner}; only they can stop it")
    slurm.forget()
    number = (read_json(run.slurm) or {}).get("job_id")
    if listed_jobs(records) is None:
        raise NbtoolsError(f"{run.id}: squeue does not answer here; try again, or run scancel {number} where it does")
    job = job_of(records)
    if job is None:
        raise NbtoolsError(
            f"{run.id}: squeue lists no job {number} of yours under the name {run.id}, so nothing was signalled"
        )
    num_ranks = len(read_heartbeats(run))
    # The supervisor cannot see who sent a signal: without the mark, one close to the time limit means the time limit.
    write_json(run.stop_mark, {"host": socket.gethostname(), "pid": os.getpid(), "time": time.time()})
    cluster, was_killed = cluster_of(records), False
    if not is_waiting(job):
        error = slurm.cancel(job.id, cluster, by_sigterm=True)
        was_killed = error is None and not _has_ended(records, timeout_s)
    if was_killed or is_waiting(job):
        error = slurm.cancel(job.id, cluster)
    if error:
        raise NbtoolsError(f"{run.id}: job {job.id} cannot be stopped: {error}")
    if not _has_ended(records, _CANCELLED_WITHIN_S):
        return Ending(plural(0, "rank"), (f"job {job.id}",), was_killed)
    if not run.exit.exists():
        record_stop(run, why="stopped")  # the job ended before its supervisor could write this
    return Ending(plural(num_ranks, "rank"), (), was_killed)


def _has_ended(records: Records, within_s: float) -> bool:
    """Wait until a run has recorded its end, or its job has ended; return whether that happened in time."""

    def is_over() -> bool:
        if records.files.exit.exists():
            return True
        job = job_of(records)
        return listed_jobs(records) is not None and (job is None or has_ended(job))

    return processes.happens_within(is_over, within_s)


def left_behind(records: Records) -> bool:
    """Whether a process of an ended run still lives, other than its supervisor, which is about to exit."""
    supervisor = records.process
    return any(supervisor is None or process.pid != supervisor.pid for process in processes.members(records.files))


def other_machines(records: Records) -> list[str]:
    """Say of each machine but the first that has joined a run whether its processes have ended."""
    said = []
    for node in range(1, num_machines(records.launch)):
        if found := record(records.files, node):
            name = f"machine {node} ({one_line(str(found.get('host')), 200)})"
            said.append(
                f"{name} ended" if "returncode" in found else f"{name} has not recorded its end: check it there"
            )
    return said
