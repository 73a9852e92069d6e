"""The stop of a job, and checks after any stop: remaining processes of the run, and the memory that GPUs released."""

import os
import socket
import time
from collections.abc import Sequence

from nbtools.errors import NbtoolsError
from nbtools.machine import slurm
from nbtools.machine.devices import Device, devices
from nbtools.machine.processes import RANK, Ending, happens_within, members, record_stop
from nbtools.run.records import Records
from nbtools.run.slurm_job import cluster_of, has_ended, is_waiting, job_of, listed_jobs
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.machines import num_machines, record
from nbtools.rundir.rundir import foreign_owner
from nbtools.rundir.tail import one_line

_GPU_WAIT_S = 2.0
_POLL_S = 0.1
_CANCELLED_WITHIN_S = 60.0
"""Time in which Slurm ends a cancelled job: by default it kills after 30 s."""


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
        error = slurm.signal_batch(job.id, "TERM", cluster)
        was_killed = error is None and not _has_ended(records, timeout_s)
    if was_killed or is_waiting(job):
        error = slurm.cancel(job.id, cluster)
    if error:
        raise NbtoolsError(f"{run.id}: job {job.id} cannot be stopped: {error}")
    if not _has_ended(records, _CANCELLED_WITHIN_S):
        return Ending({}, (f"job {job.id}",), was_killed)
    if not run.exit.exists():
        record_stop(run, why="stopped")  # the job ended before its supervisor could write this
    return Ending({RANK: num_ranks} if num_ranks else {}, (), was_killed)


def _has_ended(records: Records, within_s: float) -> bool:
    """Wait until a run has recorded its end, or its job has ended; return whether that happened in time."""

    def is_over() -> bool:
        if records.files.exit.exists():
            return True
        job = job_of(records)
        return listed_jobs(records) is not None and (job is None or has_ended(job))

    return happens_within(is_over, within_s)


def left_behind(records: Records) -> bool:
    """Whether a process of an ended run still lives, other than its supervisor, which is about to exit."""
    supervisor = records.process
    return any(supervisor is None or process.pid != supervisor.pid for process in members(records.files))


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


def released(before: Sequence[Device], wait_s: float = _GPU_WAIT_S) -> list[str]:
    """Describe the memory of GPUs, given as before a stop, once the driver has freed it or after `wait_s`."""
    deadline = time.monotonic() + wait_s
    while before:
        now = {device.uuid: device for device in devices()}
        pairs = [(device, now[device.uuid]) for device in before if device.uuid in now]
        are_free = (
            not after.holders and (after.memory_used_bytes < device.memory_used_bytes or not device.holders)
            for device, after in pairs
        )
        if all(are_free) or time.monotonic() > deadline:
            return [_memory(*pair) for pair in pairs]
        time.sleep(_POLL_S)
    return []


def chosen_gpus(gpus: object) -> list[Device]:
    """Return the GPUs that a run was launched on, with their present use; none without NVML."""
    return [device for device in devices() if device.index in gpus] if isinstance(gpus, list) and gpus else []


def _memory(before: Device, after: Device) -> str:
    """`GPU 0 back to 0.4 GB`, with the processes that hold the rest."""
    verb = "back to" if after.memory_used_bytes < before.memory_used_bytes else "at"
    holders = f", held by {', '.join(map(str, after.holders))}" if after.holders else ""
    return f"GPU {after.index} {verb} {after.memory_used_bytes / 1e9:.1f} GB{holders}"
