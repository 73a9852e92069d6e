"""The state of a run: derived from its records and its lock, never stored."""

import contextlib
import time
from enum import StrEnum
from pathlib import Path

from nbtools.errors import duration, plural
from nbtools.failures.restarts import read_restarts
from nbtools.machine import gpu_queue, slurm
from nbtools.machine.processes import members
from nbtools.run.checkpoints import checkpoints_in
from nbtools.run.records import Records, mapping_at
from nbtools.run.slurm_job import CANCELLED, cluster_of, in_job, is_active, is_waiting, job_of, runs_on_slurm, why_ended
from nbtools.rundir.json_files import read_json, whole
from nbtools.rundir.machines import has_joined, join_command, num_machines
from nbtools.rundir.requests.events import held, read_events
from nbtools.rundir.rundir import RunDir, foreign_owner, goes_on, has_started, is_removed, name_of
from nbtools.rundir.secret_values import secrets_of, without_secrets
from nbtools.rundir.tail import last_lines, one_line

NO_RANK_S = 120.0
"""Seconds after the start of torchrun from which a run without a rank says so."""


class RunState(StrEnum):
    """State of a run."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended; of the final states, only LOST can still change."""
        return self not in (RunState.QUEUED, RunState.RUNNING)


_BY_RANK_0 = {"completed": RunState.SUCCEEDED, "stopped": RunState.STOPPED, "failed": RunState.FAILED}


def state_of(records: Records) -> RunState:
    """Derive the state: exit.json decides; else a held lock means RUNNING or QUEUED; else finished.json; else LOST.

    Of a run on Slurm, the job takes the place of the lock, which other machines may not see.
    """
    if (recorded := _by_supervisor(records)) is not None:
        return recorded
    if runs_on_slurm(records):
        return _on_slurm(records)
    if goes_on(records.files):
        return RunState.RUNNING if has_started(records.files) else RunState.QUEUED
    # The run may have ended between the two checks: the records are final only once the lock is free.
    return _recorded(records) or RunState.LOST


def _on_slurm(records: Records) -> RunState:
    if in_job(records):
        job, is_started = job_of(records), records.process is not None and has_started(records.files)
        return RunState.RUNNING if is_started and not (job and is_waiting(job)) else RunState.QUEUED
    if (state := _recorded(records)) is not None:
        return state
    why = why_ended(records)
    return RunState.STOPPED if why == CANCELLED else RunState.FAILED if why else RunState.LOST


def _recorded(records: Records) -> RunState | None:
    return _by_supervisor(records) or _BY_RANK_0.get(str(records.finished.get("why")))


def _by_supervisor(records: Records) -> RunState | None:
    ended = records.exit
    if ended is None:
        return None
    # torchrun exits 1 on a stop as on a failure, so its return code is checked last.
    if ended.get("stopped"):
        return RunState.STOPPED
    if ended.get("returncode") == 0:
        return RunState.STOPPED if records.finished.get("why") == "stopped" else RunState.SUCCEEDED
    return RunState.FAILED


def why_stopped(records: Records) -> str:
    """Return the condition of `stop_on` that has stopped a run, as a sentence; empty if none has."""
    found = mapping_at(records.exit or {}, "stopped_on").get("sentence")
    return one_line(found, 300) if isinstance(found, str) else ""


def unsaved(records: Records) -> str:
    """Return that the newest checkpoint that was due could not be written, as a sentence; empty if it was."""
    found = read_json(records.files.unsaved) or {}
    step, since = whole(found.get("step")), whole(found.get("since"))
    if step is None or any(saved.step >= step for saved in checkpoints_in(records.files.checkpoints)):
        return ""
    newest = f"nothing was saved since step {since:,}" if since else "nothing was saved"
    return f"no checkpoint at step {step:,} ({one_line(str(found.get('error')), 200)}): {newest}"


def waiting_for(records: Records) -> str:
    """Return what a run waits for: `behind ID on GPU 0,1`, `after ID`, machines, Slurm, or its own ranks."""
    if missing := list(commands_to_join(records)):
        more = f" and {plural(len(missing) - 1, 'machine')} more" if len(missing) > 1 else ""
        return f"waiting for machine {missing[0]}{more}"
    if (state := state_of(records)) is not RunState.QUEUED:
        return (_paused(records) or _without_ranks(records)) if state is RunState.RUNNING else ""
    if runs_on_slurm(records):
        return _waiting_on_slurm(records)
    ticket = records.launch.get("ticket")
    before = gpu_queue.ahead(Path(ticket)) if isinstance(ticket, str) else []
    if before:
        return f"behind {before[-1]}" + (f" and {len(before) - 1} more" if len(before) > 1 else "")
    return "" if (after := awaited(records)) is None else f"after {one_line(name_of(after.id), 200)}"


def _paused(records: Records) -> str:
    """Return since which step a training is paused, and by its author; empty if it is not."""
    if (pause := held(read_events(records.files))) is None:
        return ""
    by = f" by {pause.by}" if pause.by else ""
    return f"paused{by} after step {pause.step}"


def _without_ranks(records: Records) -> str:
    """Return that torchrun has started no rank for minutes, and what it printed last; empty if it has."""
    run, began = records.files, records.torchrun_at  # not the launch: it may have waited in a queue
    if began is None or mapping_at(records.launch, "launch").get("torchrun") is False:
        return ""
    waited_s = time.time() - began
    if waited_s < NO_RANK_S or any(run.ranks.glob("*/attempt_*")) or any(run.ranks.glob("*.heartbeat.json")):
        return ""
    said = next((line for line in reversed(last_lines(run.log, 20)) if line.strip()), "nothing was printed")
    said = one_line(without_secrets(said, secrets_of(run)), 200)
    return f"no rank has started for {duration(waited_s // 60 * 60)}: {said}"


def awaited(records: Records) -> RunDir | None:
    """Return the active run that a run waits for by `after`, else the one that this run waited for, and so on.

    A waiting run that is cancelled therefore leaves its place to those behind it; None if all have ended.
    """
    seen: set[str] = set()
    with contextlib.suppress(OSError):  # a newer nbtools has launched one of them
        while isinstance(after := records.launch.get("after"), str) and after not in seen:
            seen.add(after)
            records = Records(RunDir(after))
            if is_active(records.files) or (is_removed(records.files) and members(records.files)):
                return records.files
    return None


def _waiting_on_slurm(records: Records) -> str:
    """Return why Slurm has not started a run's job yet, and before a later attempt its number."""
    job = job_of(records)
    why = slurm.reason_in_words(job) if job is not None else slurm.silence(cluster_of(records)) or ""
    ended = max((restart.attempt for restart in read_restarts(records.files)), default=0)
    return ": ".join(filter(None, [f"attempt {ended + 1}" if ended else "", why]))


def commands_to_join(records: Records) -> dict[int, str]:
    """Return the machines that a RUNNING run of this user waits for, and the command for a shell of each."""
    run, count = records.files, num_machines(records.launch)
    if count == 1 or runs_on_slurm(records) or state_of(records) is not RunState.RUNNING or foreign_owner(run.path):
        return {}
    # Not read from the run's files, since it will be executed.
    return {node: join_command(run, node) for node in range(1, count) if not has_joined(run, node)}
