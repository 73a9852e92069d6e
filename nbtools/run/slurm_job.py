"""The Slurm job of a run: its lookup, its state, and the reason of its end if Slurm reports one.

A job belongs to a run if squeue lists it as this user's, under the run's id as its name, and the run directory is the
one that launch.json names: a copied or forged slurm.json leads to no job.
"""

import re
import time
from pathlib import Path
from typing import Any

from nbtools.failures.evidence import text_end
from nbtools.machine import slurm
from nbtools.run.records import Records, mapping_at
from nbtools.rundir.json_files import file_stamp, finite, read_json, whole
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir, foreign_owner, goes_on

WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
CANCELLED, STOPPED, PREEMPTED = "cancelled", "stopped", "preempted"
TIME_LIMIT, NODE_FAILED, REQUEUED = "time limit", "node failed", "requeued"
"""Why an attempt in a job ended; the last four may be followed by another attempt."""
_MESSAGE = re.compile(r"^slurmstepd\S*: error: \*\*\* JOB [^\n]*? CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?", re.M)
_OUT_OF_MEMORY = re.compile(r"^slurmstepd\S*: error: .*oom[-_ ]?kill", re.M | re.I)
_OF_THE_LAUNCH = re.compile(r"^(?:  (?:ok|warn|problem) .*|\s+-> .*|\S+: attempt \d+ in job .*)(?:\n|\Z)", re.M)
"""Lines of the launch in the output of a job, before an attempt starts."""
_LISTED_WITHIN_S = 60.0
"""Time after its submission in which a job may be missing from another process's answer of squeue."""
_SILENT_AFTER_S = 180.0
"""Age of the newest file of a run after which no process writes it; file systems on networks show changes late."""


def runs_on_slurm(records: Records) -> bool:
    """Whether a run was submitted to Slurm, or is the batch script of a job."""
    return bool(mapping_at(records.launch, "launch").get("cluster")) or records.files.slurm.exists()


def job_of(records: Records) -> slurm.Job | None:
    """Return the pending, running or recently ended job of a run of this user; None without one, or without Slurm."""
    if not runs_on_slurm(records) or foreign_owner(records.files.path) or _is_copy(records):
        return None
    jobs = listed_jobs(records) or {}
    number = whole((read_json(records.files.slurm) or {}).get("job_id"))
    if number is not None:
        job = jobs.get(number)
        return job if job is not None and job.name == records.files.id else None
    # The client was killed between the submission and its record.
    return next((job for job in jobs.values() if job.name == records.files.id), None)


def listed_jobs(records: Records) -> dict[int, slurm.Job] | None:
    """Return this user's jobs on the cluster of a run; None if squeue has never answered."""
    return slurm.own_jobs(cluster_of(records))


def cluster_of(records: Records) -> str | None:
    """Return the name of a run's cluster; None where Slurm has named none, and for that of this machine."""
    cluster = (read_json(records.files.slurm) or {}).get("cluster")
    return cluster if isinstance(cluster, str) and slurm.own_cluster() not in (None, cluster) else None


def time_left_s(records: Records) -> float | None:
    """Return the seconds until the time limit of a running job; None without one."""
    job = job_of(records)
    return None if job is None or job.state != slurm.RUNNING or job.ends_at is None else job.ends_at - time.time()


def job_facts(records: Records, *, is_active: bool) -> dict[str, Any] | None:
    """Return the id of a run's job, and state, nodes, start and remaining time of an active one; None without one."""
    job = job_of(records) if is_active else None
    number = whole((read_json(records.files.slurm) or {}).get("job_id")) if job is None else job.id
    if number is None:
        return None
    shown = {name: getattr(job, name, None) for name in ("state", "nodes", "starts_at")}
    return {"id": number, **shown, "time_left_s": time_left_s(records) if is_active else None}


def job_in_words(records: Records) -> str:
    """Return id and nodes of a job, as `12 on n[1-2]`, `12` before its start; empty after its end and without one."""
    if (job := job_of(records)) is None or has_ended(job):
        return ""
    return f"{job.id} on {job.nodes}" if job.state == slurm.RUNNING else str(job.id)


def ends_too_early(left_s: float | None, remaining_s: float | None) -> bool:
    """Whether the time limit ends a job before its last step, for which it needs about `remaining_s`."""
    return left_s is not None and remaining_s is not None and left_s < remaining_s


def is_waiting(job: slurm.Job) -> bool:
    """Whether a job waits for its start, the first one or one after a requeue."""
    return job.state in WAITING


def has_ended(job: slurm.Job) -> bool:
    """Whether a job has ended and will not be queued again; a COMPLETING job has not ended."""
    return job.state in slurm.word_table("ended")


def is_active(run: RunDir) -> bool:
    """Whether a run has not ended: by its lock, or as a job of Slurm."""
    return goes_on(run) or has_active_job(run)


def has_active_job(run: RunDir) -> bool:
    """Whether a run on Slurm is pending or running; False for a run on this machine."""
    records = Records(run)
    return not run.exit.exists() and runs_on_slurm(records) and in_job(records)


def in_job(records: Records) -> bool:
    """Whether the job of a run without exit.json is pending or running.

    Without an answer of squeue, as for another user's run, the age of the newest file decides.
    """
    if foreign_owner(records.files.path) or listed_jobs(records) is None:
        return records.process is None or not is_silent(records.files)
    if (job := job_of(records)) is not None:
        return not has_ended(job)
    submitted = finite((read_json(records.files.slurm) or {}).get("time")) or records.started_at
    return records.process is None and submitted is not None and abs(time.time() - submitted) < _LISTED_WITHIN_S


def is_silent(run: RunDir) -> bool:
    """Whether heartbeats, system.jsonl and log of a run have not been written for long."""
    stamps = map(file_stamp, (run.process, run.system, run.log, *run.ranks.glob("*.heartbeat.json")))
    return time.time() - max((stamp[0] for stamp in stamps if stamp), default=0) / 1e9 > _SILENT_AFTER_S


def why_ended(records: Records) -> str:
    """Return why a job without exit.json has ended, by squeue and the job's output; empty if unknown."""
    job, run = job_of(records), records.files
    if job is not None and has_ended(job):
        return slurm.word_table("ended")[job.state]
    if not runs_on_slurm(records) or (job is None and not run.slurm.exists()):
        return ""
    if found := said_by_slurm(run):
        return found
    # Only a cancelled job vanishes before its preamble or a next attempt has written anything.
    return CANCELLED if records.process is None and not _output(run) else ""


def said_by_slurm(run: RunDir) -> str:
    """Return why the newest attempt ended by Slurm's own messages in the job's output; empty without one."""
    text = _output(run)
    if _OUT_OF_MEMORY.search(text):
        return slurm.word_table("ended")["OUT_OF_MEMORY"]
    found = list(_MESSAGE.finditer(text))
    return slurm.word_table("due").get((found[-1][1] or "").strip(), CANCELLED) if found else ""


def end_in_words(records: Records) -> str:
    """Return a sentence on the end of a job without exit.json; empty for a run that is not on Slurm."""
    if not runs_on_slurm(records):
        return ""
    if not records.files.slurm.exists():
        return "the launch was interrupted before sbatch accepted the job; launch the script again"
    why, number = why_ended(records), (read_json(records.files.slurm) or {}).get("job_id")
    if not why:
        return f"job {number} is no longer listed by squeue, and its end was not recorded"
    said = _OF_THE_LAUNCH.sub("", _output(records.files)).strip().rpartition("\n")[2][-300:]
    end = f"ends with: {said}" if said else "does not say why"
    other = f"ended without a record of the run; {records.files.job_log} {end}"
    return f"job {number} {slurm.word_table('ends').get(why, other)}"


def _output(run: RunDir) -> str:
    """Return the end of the job's output since the newest attempt was prepared."""
    return text_end(run.job_log, whole((read_json(run.job) or {}).get("log_start")) or 0)


def _is_copy(records: Records) -> bool:
    """Whether a run directory was copied from the one that its launch.json names."""
    original = mapping_at(records.launch, "env").get(RUN_DIR_VARIABLE)
    try:
        return original is not None and not Path(str(original)).samefile(records.files.path)
    except OSError:
        return False  # moved, or seen under another path here
