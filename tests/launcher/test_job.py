"""What happens inside a Slurm job and after it, on a real cluster: attempts, ends, states and stops."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import waiting
from fixture_types import MonkeyPatch

from nbtools import runs
from nbtools.config import Launch, Slurm
from nbtools.errors import NbtoolsError
from nbtools.failures.evidence import text_end
from nbtools.failures.failure import Failure
from nbtools.failures.restarts import Restart, read_restarts, without_progress
from nbtools.launcher.job import ended_attempt
from nbtools.launcher.launch import run_of_job
from nbtools.machine import slurm
from nbtools.machine.processes import living, members, sweep_processes
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.run import Run
from nbtools.run.slurm_job import is_active
from nbtools.run.state import RunState, waiting_for
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import read_json, reserve, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import write_script

from slurm_cluster import SlurmCluster

TRAINER = Path(__file__).parents[1] / "programs" / "fake_trainer.py"
Submit = Callable[..., Run]


@pytest.fixture
def submit(slurm_cluster: SlurmCluster, project: Project, monkeypatch: MonkeyPatch) -> Iterator[Submit]:
    """Submit the torch-free trainer as a run of a recipe, from files as the launcher lays them out."""
    yield from submitting(slurm_cluster, project, monkeypatch)


@pytest.fixture
def submit_to_hosts(slurm_hosts: SlurmCluster, project: Project, monkeypatch: MonkeyPatch) -> Iterator[Submit]:
    """The same on two hosts, each with a name of its own."""
    yield from submitting(slurm_hosts, project, monkeypatch)


def laid_out(project: Project, args: Sequence[str] = (), **settings: Any) -> RunDir:
    """Lay out a run of the torch-free trainer, as the launcher does."""
    run = RunDir(RunDir.create(project.runs, "fake").path.resolve())
    reserve(run.exit)
    run.lock.touch()
    shutil.copyfile(TRAINER, run.script)
    root = str(project.root)
    content = {"name": "fake", "recipe": "mlm_pretraining", "args": list(args), "argv": [], "cwd": root, "root": root}
    content |= {"target": [str(run.script)], "env": {"NBTOOLS_RUN_DIR": str(run.path)}, "time": time.time()}
    write_json(run.launch, {**content, "launch": {"nproc_per_node": 1, **settings}})
    return run


def submitting(cluster: SlurmCluster, project: Project, monkeypatch: MonkeyPatch) -> Iterator[Submit]:
    monkeypatch.setattr(slurm, "POLL_EVERY_S", 0.2)
    made: list[RunDir] = []

    def start(
        *args: str,
        options: tuple[str, ...] = (),
        nnodes: int = 1,
        requeue: bool = True,
        records: bool = True,
        ended: Sequence[dict[str, Any]] = (),
        **more: Any,
    ) -> Run:
        asked = {"gpus_per_node": 0, "requeue": requeue}
        run = laid_out(project, args, **{"nnodes": nnodes, "cluster": asked, "shutdown_timeout_s": 5, **more})
        made.append(run)
        run.attempts.write_text("".join(json.dumps(line) + "\n" for line in ended))
        lines = ["#!/bin/bash", f"#SBATCH --job-name={run.id}", f"#SBATCH --output={run.job_log}"]
        lines += ["#SBATCH --open-mode=append", *(f"#SBATCH {option}" for option in options)]
        lines.append(f"export NBTOOLS_RUN_ID={run.id} NBTOOLS_RUN_DIR={run.path}")
        lines.append(f"exec {sys.executable} -P -m nbtools.launcher.job {run.path}")
        run.job_script.write_text("\n".join(lines) + "\n")
        number = int(cluster.call("sbatch", "--parsable", str(run.job_script)))
        if records:
            write_json(run.slurm, {"job_id": number, "cluster": None, "time": time.time()})
        return Run(run.path)

    yield start
    for run in made:
        sweep_processes(lambda run=run: members(run), grace_s=0)


def job_without_slurm(project: Project, tmp_path: Path) -> tuple[RunDir, list[str], dict[str, str]]:
    """Lay out a run; return it with command and environment of its batch step, in which Slurm does not answer."""
    run = laid_out(project, cluster={"gpus_per_node": 0})
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_CONF": str(tmp_path / "no Slurm")}
    return run, [sys.executable, "-P", "-m", "nbtools.launcher.job", str(run.path)], environment


def without_a_checkpoint(number: int, why: str) -> list[dict[str, Any]]:
    """Lines of attempts.jsonl on so many attempts that saved nothing."""
    line = {"time": 1.0, "failure": None, "why": why, "step": 7, "resumed_from": None, "checkpoint": None}
    return [{**line, "attempt": attempt} for attempt in range(1, number + 1)]


@pytest.mark.promise("slurm-progress")
def test_a_job_does_not_start_again_after_three_attempts_without_progress(project: Project, tmp_path: Path) -> None:
    run, command, environment = job_without_slurm(project, tmp_path)
    run.attempts.write_text("".join(json.dumps(line) + "\n" for line in without_a_checkpoint(3, "node failed")))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "3 attempts in a row ended without a new checkpoint (node failed, node failed, node failed)" in done.stderr
    assert Run(run.path).state is RunState.FAILED and not run.log.exists()


def test_the_last_row_of_an_attempt_is_its_step_without_heartbeats(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "x")
    run.metrics.write_text('{"step": 2, "loss": 1.0}\n{"step": 7, "loss": 0.5}\n')
    assert ended_attempt(run, 1, "preempted")["step"] == 7


def test_a_stop_in_the_first_moments_of_a_job_is_recorded(project: Project, tmp_path: Path) -> None:
    run, command, environment = job_without_slurm(project, tmp_path)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as job:
        status, blocked = Path(f"/proc/{job.pid}/status"), 0
        while not blocked & (1 << (signal.SIGTERM - 1)):  # as soon as the module runs, before its imports
            assert job.poll() is None
            blocked = int(status.read_text().partition("SigBlk:")[2].split()[0], 16)
        assert not run.job.exists()
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=300)
    assert (read_json(run.exit) or {})["stopped"] is True
    assert Run(run.path).state is RunState.STOPPED and not run.log.exists()


def eventually(condition: Callable[[], object], run: Run) -> None:
    waiting.eventually(condition, lambda: (run.state, waiting_for(run.records), text_end(run.files.job_log), run.log()))


def at_step(run: Run, step: int, attempt: int = 1) -> None:
    """Wait until an attempt has reached a step."""
    eventually(lambda: (read_json(run.files.job) or {}).get("attempt") == attempt, run)
    eventually(lambda: run.files.process.exists() and any(b.step >= step for b in read_heartbeats(run.files)), run)


def job_id(run: Run) -> int:
    return int((read_json(run.files.slurm) or {})["job_id"])


def has_every_step_once(run: Run, last: int) -> bool:
    return run.history["train/loss"].steps.tolist() == list(range(1, last + 1))


@pytest.mark.needs("slurm")
def test_a_run_in_a_job_is_queued_then_runs_and_succeeds(submit: Submit, slurm_cluster: SlurmCluster) -> None:
    run = submit("--steps", "5", options=("--hold",), records=False)
    assert run.state is RunState.QUEUED
    assert waiting_for(run.records).startswith("held by its user")
    assert is_active(run.files)
    number = slurm_cluster.call("squeue", "-h", "-o", "%i")
    slurm_cluster.call("scontrol", "release", number)
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert job_id(run) == int(number)  # the client had not recorded it
    assert not is_active(run.files)
    eventually(lambda: not members(run.files), run)


@pytest.mark.promise("slurm-requeue")
@pytest.mark.needs("slurm")
@pytest.mark.slow
def test_a_preempted_run_of_two_nodes_has_every_row_once(submit: Submit, slurm_cluster: SlurmCluster) -> None:
    run = submit("--steps", "150", nnodes=2, options=("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"))
    at_step(run, 3)
    eventually(lambda: {beat.rank for beat in read_heartbeats(run.files)} == {0, 1}, run)
    slurm_cluster.submit("sleep 2", "--partition=high", "--nodes=2", "--exclusive")
    eventually(lambda: run.state is RunState.QUEUED, run)
    assert waiting_for(run.records).startswith("attempt 2: ")
    assert not run.files.exit.exists()
    assert is_active(run.files)
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    (ended,) = read_restarts(run.files)
    assert (ended.attempt, ended.why, ended.failure) == (1, "preempted", None)
    saved = ended.checkpoint_step
    assert ended.checkpoint == f"step-{saved:06d}" and ended.step >= saved >= 3, "rank 1 may be ahead of rank 0"
    assert has_every_step_once(run, 150)
    rows = [json.loads(line) for line in run.files.metrics.read_text().splitlines()]
    assert [row["attempt"] for row in rows] == [1] * saved + [2] * (150 - saved)
    assert (read_json(run.files.exit) or {})["attempt"] == 2
    eventually(lambda: not members(run.files), run)


@pytest.mark.promise("slurm-stop")
@pytest.mark.needs("slurm")
@pytest.mark.slow
def test_scancel_is_a_stop_of_every_process_with_a_checkpoint(submit: Submit, slurm_cluster: SlurmCluster) -> None:
    run = submit("--step-s", "4")  # longer than torchrun and the supervisor would leave to ranks without an agent
    at_step(run, 1)
    slurm_cluster.call("scancel", str(job_id(run)))
    assert run.wait(timeout_s=300) is RunState.STOPPED
    assert (read_json(run.files.exit) or {})["why"] == "cancelled"
    assert [saved.step for saved in run.checkpoints] == [run.step]
    eventually(lambda: not members(run.files), run)


@pytest.mark.promise("slurm-stop")
@pytest.mark.needs("slurm")
def test_a_pending_run_that_is_stopped_never_starts(submit: Submit, slurm_cluster: SlurmCluster) -> None:
    run, other = submit(options=("--hold",)), submit(options=("--hold",))
    assert run.stop() == "cancelled while queued; it had not started"
    assert run.state is RunState.STOPPED
    assert slurm_cluster.state(job_id(run)) == "CANCELLED"
    slurm_cluster.call("scancel", str(job_id(other)))  # by hand: nothing but squeue knows it
    eventually(lambda: other.state is RunState.STOPPED, other)
    assert not is_active(other.files)


@pytest.mark.needs("slurm")
def test_a_launch_that_never_reached_slurm_says_so(slurm_cluster: SlurmCluster, project: Project) -> None:
    run = RunDir.create(project.runs, "unsent")  # no other test's job has its id
    settings = {"nproc_per_node": 1, "cluster": {"gpus_per_node": 0}}
    write_json(run.launch, {"name": "fake", "time": time.time(), "launch": settings})
    assert Run(run.path).state is RunState.QUEUED  # its client may be about to submit it
    write_json(run.launch, {"name": "fake", "time": time.time() - 3600, "launch": settings})
    lost = Run(run.path)
    eventually(lambda: Run(run.path).state is RunState.LOST, lost)  # as soon as squeue has answered
    assert "before sbatch accepted the job" in lost.failure.message


@pytest.mark.promise("slurm-stop")
@pytest.mark.needs("slurm")
def test_a_running_job_that_is_stopped_saves_and_tells_what_it_saw(submit: Submit) -> None:
    run = submit(options=("--time=2",))  # so near to its limit, a signal without a mark would mean the limit
    at_step(run, 3)
    said = run.stop()
    assert run.state is RunState.STOPPED
    assert said == f"stopped at step {run.step}; checkpoint step-{run.step:06d} saved; 1 rank ended"
    assert (read_json(run.files.exit) or {})["why"] == "stopped"


@pytest.mark.promise("slurm-forged")
@pytest.mark.needs("slurm")
def test_a_copied_run_directory_stops_no_job(submit: Submit, slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    run = submit(options=("--hold",))
    copy = Path(shutil.copytree(run.dir, tmp_path / "elsewhere" / run.id))
    forged = submit(options=("--hold",))
    write_json(forged.files.slurm, {"job_id": job_id(run), "cluster": None, "time": time.time()})
    for other in (Run(copy), forged):
        with pytest.raises(NbtoolsError, match="squeue lists no job"):
            other.stop()
    assert slurm_cluster.state(job_id(run)) == "PENDING"


@pytest.mark.promise("slurm-requeue")
@pytest.mark.needs("slurm")
@pytest.mark.slow
def test_at_the_time_limit_a_run_goes_on_or_stops_as_it_was_asked_to(submit: Submit) -> None:
    goes_on, ends = (submit(options=("--time=1", "--signal=B:TERM@50"), requeue=asked) for asked in (True, False))
    assert ends.wait(timeout_s=300) is RunState.STOPPED
    assert (read_json(ends.files.exit) or {})["why"] == "time limit"
    assert [saved.step for saved in ends.checkpoints] == ([ends.step] if ends.step else [])  # on a slow machine
    eventually(lambda: (read_json(goes_on.files.job) or {}).get("attempt") == 2, goes_on)
    (ended,) = read_restarts(goes_on.files)
    saved = f"step-{ended.step:06d}" if ended.step else None
    assert (ended.attempt, ended.why, ended.checkpoint) == (1, "time limit", saved)
    goes_on.stop()
    assert goes_on.state is RunState.STOPPED


@pytest.mark.promise("slurm-killed")
@pytest.mark.needs("slurm")
@pytest.mark.slow
def test_an_attempt_killed_with_its_record_has_a_next_one(submit: Submit, slurm_cluster: SlurmCluster) -> None:
    run = submit(
        "--steps", "150", "--step-s", "0.1", "--checkpoint-every", "5"
    )  # it trains until Slurm starts it again
    at_step(run, 8)
    before = members(run.files)
    kill_the_step(slurm_cluster, run)
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    (ended,) = read_restarts(run.files)
    assert (ended.attempt, ended.why) == (1, "requeued")
    assert has_every_step_once(run, 150)
    assert not living(before)


@pytest.mark.promise("slurm-progress")
@pytest.mark.slow
@pytest.mark.needs("slurm")
def test_a_job_whose_attempts_save_nothing_fails_after_the_third(submit: Submit, slurm_cluster: SlurmCluster) -> None:
    saves_nothing = ("--steps", "9999", "--checkpoint-every", "9999", "--save-no-last")
    run = submit(*saves_nothing, ended=without_a_checkpoint(2, "requeued"))
    at_step(run, 2, attempt=3)
    slurm_cluster.call("scontrol", "requeue", str(job_id(run)))
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert [ended.why for ended in read_restarts(run.files)] == ["requeued"] * 2
    assert run.failure.message.startswith("3 attempts in a row ended without a new checkpoint (requeued, requeued, ")
    assert "each began at the start" in run.failure.message and run.failure.advice
    eventually(lambda: slurm_cluster.state(job_id(run)) == "CANCELLED", run)
    eventually(lambda: not members(run.files), run)


def test_attempts_from_one_checkpoint_in_a_row_have_no_progress() -> None:
    def ended(*starts: str | None) -> list[Restart]:
        return [Restart(n, 0.0, None, start, "time limit", 5, start) for n, start in enumerate(starts, 1)]

    assert without_progress(ended(None, None), None) is None
    assert without_progress(ended(None, None, None), "step-000005") is None
    assert without_progress(ended(None, "a", "a"), "a") is None
    failure = without_progress(ended(None, "a", "a", "a"), "a")
    assert failure is not None and failure.advice is not None
    assert "(time limit, time limit, time limit); each began at a" in failure.message
    assert "time_limit" in failure.advice and "checkpoint_every" in failure.advice
    failed = Restart(4, 0.0, Failure(0, "h", 1, None, "boom"), "a")
    assert without_progress([*ended("a", "a"), failed], "a") is None


@pytest.mark.promise("slurm-rank")
@pytest.mark.slow
@pytest.mark.needs("slurm", "network namespaces")
def test_a_straggler_and_a_failing_rank_are_named_by_node_and_rank(submit_to_hosts: Submit) -> None:
    run = submit_to_hosts("--steps", "9999", nnodes=2, options=("--nodes=2", "--ntasks-per-node=1"))
    at_step(run, 3)
    eventually(lambda: {beat.host for beat in read_heartbeats(run.files)} == {"n1", "n2"}, run)
    (late,) = (beat for beat in read_heartbeats(run.files) if beat.rank == 1)
    os.kill(late.pid, signal.SIGSTOP)
    eventually(lambda: run.stragglers, run)
    assert [str(one).partition(":")[0] for one in run.stragglers] == ["rank 1 on n2 is behind"]
    os.kill(late.pid, signal.SIGKILL)
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert (run.failure.rank, run.failure.host, run.failure.signal) == (1, "n2", "SIGKILL")
    assert run.failure.headline.startswith("rank 1 on n2: killed by SIGKILL")
    eventually(lambda: not members(run.files), run)


@pytest.mark.needs("slurm")
def test_a_job_that_cannot_run_fails_in_words(submit: Submit, slurm_cluster: SlurmCluster) -> None:
    run = submit(cluster={"gpus_per_node": 1})
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert "has 0 GPUs on this node" in run.failure.message


@pytest.mark.needs("slurm")
def test_a_script_submitted_by_hand_finds_its_run_again(
    slurm_cluster: SlurmCluster, project: Project, monkeypatch: MonkeyPatch
) -> None:
    launch = Launch(cluster=Slurm(gpus_per_node=0))
    script = write_script(RECIPES["mlm_pretraining"].config_class(), "by_hand", launch, project=project)
    number = slurm_cluster.submit("sleep 60", "--hold")
    monkeypatch.setenv("SLURM_JOB_ID", str(number))
    run = run_of_job(script)
    assert job_id(Run(run)) == number
    assert slurm_cluster.call("squeue", "-h", "-o", "%j") == run.id
    assert Run(run).state is RunState.QUEUED
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert run_of_job(script).path == run.path
    assert len(runs(project)) == 1


def preempt(cluster: SlurmCluster, run: Run) -> None:
    cluster.submit("sleep 1", "--partition=high", "--nodes=2", "--exclusive")


def requeue(cluster: SlurmCluster, run: Run) -> None:
    cluster.call("scontrol", "requeue", str(job_id(run)))


def kill_the_step(cluster: SlurmCluster, run: Run) -> None:
    for parent in {process.parent() for process in members(run.files)}:
        if parent is not None and parent.name() == "slurmstepd":
            parent.kill()
    requeue(cluster, run)


def lose_the_node(cluster: SlurmCluster, run: Run) -> None:
    node = cluster.call("squeue", "-h", "-j", str(job_id(run)), "-o", "%N")
    cluster.kill(node)
    cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")


def restart_the_controller(cluster: SlurmCluster, run: Run) -> None:
    cluster.kill("slurmctld")
    cluster.start("slurmctld")


@pytest.mark.soak
@pytest.mark.needs("slurm")
@pytest.mark.parametrize("trial", range(4))
@pytest.mark.parametrize("happens", [preempt, requeue, kill_the_step, lose_the_node, restart_the_controller])
def test_a_run_survives_what_a_cluster_does_at_a_random_moment(
    submit: Submit, slurm_cluster: SlurmCluster, happens: Callable[[SlurmCluster, Run], None], trial: int
) -> None:
    run = submit("--steps", "150", "--step-s", "0.1", "--checkpoint-every", "7")
    at_step(run, random.Random(trial).randrange(1, 60))
    happens(slurm_cluster, run)
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert has_every_step_once(run, 150)
    eventually(lambda: not members(run.files), run)
