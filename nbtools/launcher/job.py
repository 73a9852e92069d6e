"""The start of a Slurm job: `python -P -m nbtools.launcher.job RUN_DIR_OR_SCRIPT` ends a job script.

It prepares an attempt on the job's first node and supervises it, in the same process, so that Slurm's signals reach the
supervisor. With `--node` it is one task of the `srun` step that the supervisor starts for the other nodes.
"""

import signal

if __name__ == "__main__":  # a stop that comes while this loads waits for the supervisor's handlers
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

import argparse
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtools.config import Launch
from nbtools.errors import LaunchError, NbtoolsError
from nbtools.failures.failure import Failure
from nbtools.failures.restarts import read_restarts, without_progress
from nbtools.launcher.job_supervisor import open_attempt, supervise_job, with_job
from nbtools.launcher.node import interpreter_of, joinable, project_paths, run_part, with_agent_of_job
from nbtools.launcher.placement import Placement, child_environment, place
from nbtools.launcher.programs.program_restart import newest_of_program
from nbtools.machine import network, slurm
from nbtools.machine.devices import GLOO_INTERFACE, num_cores
from nbtools.run.checkpoints import AnyCheckpoint, newest_verified
from nbtools.run.records import mapping_at
from nbtools.rundir import secret_values
from nbtools.rundir.json_files import read_json, whole, write_json, write_reserved_json
from nbtools.rundir.rundir import RunDir, foreign_owner, has_recipe, is_run, marks_of
from nbtools.script.torchrun import Meeting

_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"


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
    target, _ = project_paths(run, plan)
    placement = _placed(plan)
    can_resume = has_recipe(run)
    checkpoint: AnyCheckpoint | None = None
    if attempt > 1:
        checkpoint = newest_verified(run.checkpoints)[0] if can_resume else newest_of_program(run, plan)[0]
    stuck = without_progress(read_restarts(run), None if checkpoint is None else checkpoint.name)
    if can_resume and stuck is not None:
        raise LaunchError(f"{stuck.message}. {stuck.advice}")
    job, meeting = (slurm.own_jobs() or {}).get(number), placement.meeting
    marks = marks_of(run, plan.get("root"))
    content = {
        "job_id": number,
        "attempt": attempt,
        "command": with_agent_of_job(placement.command(target, run.path, ())),
        "env": {**placement.variables(run), **marks},
        "meeting": None if meeting is None else [meeting.address, meeting.port],
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
    marks = marks_of(run)
    if not arguments.node and any(os.environ.get(name) != value for name, value in marks.items()):
        # sbatch passed no environment (--export); /proc shows the environment at a process's start
        again = [sys.executable, "-P", "-m", "nbtools.launcher.job", str(run.path)]
        os.execve(sys.executable, again, {**os.environ, **marks})
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
