"""Real trainings in a real Slurm: on two hosts, under its users' own launchers, and submitted by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
from fixture_types import Configs, MonkeyPatch
from waiting import eventually

from nbtools import runs
from nbtools.config import Launch, Slurm
from nbtools.failures.restarts import read_restarts
from nbtools.launcher.launch import launch
from nbtools.launcher.sbatch import script_text, site_file
from nbtools.machine import slurm
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.rundir import run_folders
from nbtools.script.script import write_script

from slurm_cluster import SlurmCluster
from trainings import free_port

pytestmark = pytest.mark.slow
ON_CPU = Slurm(gpus_per_node=0, cpus_per_task=2)


@pytest.fixture(autouse=True)
def site(monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    """A site whose nodes see all folders of this machine, and a squeue that is asked often."""
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path / "config"))
    site_file().parent.mkdir(parents=True)
    site_file().write_text('shared_paths = ["/"]')
    monkeypatch.setattr(slurm, "POLL_EVERY_S", 0.2)


def own_launchers(script: Path) -> list[tuple[int, str]]:
    """Number of nodes, and the line of a user's own job script that starts two ranks: srun, torchrun, accelerate."""
    meeting = f"--rdzv_backend=c10d --rdzv_endpoint=n1:{free_port()} --rdzv_id=7"
    agent = f"{sys.executable} -m torch.distributed.run"
    return [
        (2, f"srun --ntasks-per-node=1 {sys.executable} {script}"),
        (2, f"srun --ntasks-per-node=1 {agent} {meeting} --nnodes=2 {script}"),
        (1, f"env ACCELERATE_MIXED_PRECISION=no {agent} --standalone --nproc_per_node=2 {script}"),
    ]


@pytest.mark.promise("slurm-nodes", "guide-A15", "slurm-launchers")
@pytest.mark.needs("slurm", "network namespaces")
def test_each_way_to_start_two_ranks_has_the_same_losses(
    texts: Project, tiny_config: Configs, slurm_hosts: SlurmCluster
) -> None:
    script = write_script(tiny_config(max_steps=2), "tiny", Launch(cluster=ON_CPU), project=texts)
    launch(script, nnodes=2)
    jobs = []
    for number, (nodes, line) in enumerate(own_launchers(script)):
        options = [f"--nodes={nodes}", "--cpus-per-task=2", "--ntasks-per-node=1", f"--chdir={texts.root}"]
        jobs.append(slurm_hosts.submit(line, *options, f"--output={texts.root / f'{number}.log'}"))
    for job in jobs:
        slurm_hosts.wait_until(job, "COMPLETED", "FAILED", within_s=400)
    runs_ = [Run(folder) for folder in run_folders(texts.runs)]
    logs = [path.read_text() for path in texts.root.glob("*.log")]
    for run in runs_:
        assert run.wait(timeout_s=300, check=False) is RunState.SUCCEEDED, (run.log(), run.failure, logs)
        assert (run.config or {})["derived"]["world_size"] == 2
    losses = [run.history["train/loss"].values.tolist() for run in runs_]
    assert losses == [pytest.approx(losses[0], abs=1e-6)] * 4 and len(losses[0]) == 2, logs
    assert sorted(len({beat.host for beat in read_heartbeats(run.files)}) for run in runs_) == [1, 2, 2, 2]


@pytest.mark.promise("slurm-by-hand")
@pytest.mark.needs("slurm")
def test_a_script_for_sbatch_tells_of_preemption(
    texts: Project, tiny_config: Configs, slurm_cluster: SlurmCluster
) -> None:
    asked = Launch(cluster=ON_CPU)
    write_script(tiny_config(max_steps=10**6, epochs=10**6), "by_hand", asked, project=texts)
    path = texts.script("by_hand").with_suffix(".sbatch")
    path.write_text(script_text("by_hand", asked))
    number = subprocess.run(["sbatch", "--parsable", path], cwd=texts.root, capture_output=True, text=True, check=True)
    said = texts.root / f"slurm-{number.stdout.strip()}.out"
    eventually(lambda: runs(texts), said.read_text)
    (run,) = runs(texts)
    assert run.name == "by_hand"
    eventually(lambda: run.state is RunState.RUNNING and run.step >= 2, lambda: (said.read_text(), run.log()))
    slurm_cluster.submit("sleep 1", "--partition=high", "--nodes=2", "--exclusive")
    eventually(lambda: run.state is RunState.QUEUED, run.log)
    (ended,) = read_restarts(run.files)
    assert (ended.why, ended.checkpoint) == ("preempted", f"step-{ended.step:06d}")
    run.stop()
    assert run.state is RunState.STOPPED
