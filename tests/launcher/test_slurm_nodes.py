"""Real trainings in a real Slurm: on two hosts, under its users' own launchers, and submitted by hand."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
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
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A site whose nodes see all folders of this machine, and a squeue that is asked often."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    site_file().parent.mkdir(parents=True)
    site_file().write_text('shared_paths = ["/"]')
    monkeypatch.setattr(slurm, "POLL_EVERY_S", 0.2)


@pytest.mark.promise("slurm-nodes", "guide-A15")
@pytest.mark.needs("slurm", "network namespaces")
def test_two_nodes_with_a_rank_each_train_as_one_node_with_two(
    texts: Project, tiny_config: Callable[..., Any], slurm_hosts: SlurmCluster
) -> None:
    script = write_script(tiny_config(max_steps=4), "tiny", Launch(cluster=ON_CPU), project=texts)
    runs_ = [launch(script, nnodes=nnodes, nproc_per_node=2 // nnodes) for nnodes in (2, 1)]
    for run in runs_:
        assert run.wait(timeout_s=240, check=False) is RunState.SUCCEEDED, (run.log(), run.failure)
    spread, together = (run.history["train/loss"].values.tolist() for run in runs_)
    assert spread == pytest.approx(together, abs=1e-6) and len(spread) == 4
    assert {beat.host for beat in read_heartbeats(runs_[0].files)} == {"n1", "n2"}


@pytest.mark.promise("slurm-launchers")
@pytest.mark.needs("slurm", "network namespaces")
@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (2, ["srun", "--ntasks-per-node=1", "python"]),
        (2, ["srun", "--ntasks-per-node=1", "python", "-m", "torch.distributed.run", "--nnodes=2"]),
        (1, ["env", "ACCELERATE_MIXED_PRECISION=no", "python", "-m", "torch.distributed.run", "--nproc_per_node=2"]),
    ],
    ids=["srun python", "srun torchrun", "accelerate launch"],
)
def test_a_users_own_launcher_in_a_job_makes_one_run_of_two_ranks(
    texts: Project, tiny_config: Callable[..., Any], slurm_hosts: SlurmCluster, nodes: int, words: list[str]
) -> None:
    script = write_script(tiny_config(max_steps=2), "tiny", project=texts)
    rendezvous = ["--rdzv_backend=c10d", f"--rdzv_endpoint=n1:{free_port()}", "--rdzv_id=7"] if "-m" in words else []
    command = [sys.executable if word == "python" else word for word in words] + [*rendezvous, str(script)]
    log = texts.root / "job.log"
    options = [
        f"--nodes={nodes}",
        f"--output={log}",
        f"--chdir={texts.root}",
        "--cpus-per-task=2",
        "--ntasks-per-node=1",
    ]
    job = slurm_hosts.submit(" ".join(command), *options)
    slurm_hosts.wait_until(job, "COMPLETED", "FAILED", within_s=240)
    (folder,) = run_folders(texts.runs)
    run = Run(folder)
    assert run.state is RunState.SUCCEEDED, log.read_text()
    assert run.config is not None and run.config["derived"]["world_size"] == 2
    assert run.history["train/loss"].steps.tolist() == [1, 2]


@pytest.mark.promise("slurm-by-hand")
@pytest.mark.needs("slurm")
def test_a_script_for_sbatch_is_found_and_its_preemption_is_told(
    texts: Project, tiny_config: Callable[..., Any], slurm_cluster: SlurmCluster
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
