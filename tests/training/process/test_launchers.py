"""Every launcher that people use starts the same script on as many processes as it was told; the banner says so.

Plain python does in `test_train` of mlm_pretraining.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nbtools.cli.commands import main
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState

REPOSITORY = Path(__file__).resolve().parents[3]
SCRIPT = "scripts/mlm_pretraining.py"
OLD_LAUNCHER = ("-W", "ignore", "-m", "torch.distributed.launch", "--nproc_per_node=2")
PORT_0 = ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0")
SMALL = (
    *("--max_steps", "2", "--train_batch_size", "4", "--sequence-length", "16", "--num-layers", "1"),
    *("--hidden-size", "16", "--num-heads", "2", "--lr", "1e-3", "--eval-every", "1k"),
)

ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "bf16", "ACCELERATE_USE_CPU": "True"}
"""What `accelerate launch` says through the environment, beside what torchrun says, which it starts."""


def trained(project: Project, *words: str, **variables: str) -> Run:
    """Run a command in the project's folder and return the run that it left."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **variables}
    log = project.root / "output.txt"
    with log.open("wb") as file:  # never two processes in one pipe
        code = subprocess.run(
            words, cwd=project.root, env=environment, stdout=file, stderr=file, timeout=300, check=False
        ).returncode
    assert code == 0, log.read_text(errors="replace")[-4000:]
    (folder,) = project.runs.glob("*_mlm_pretraining")
    return Run(folder)


@pytest.fixture
def shipped(project: Project) -> Project:
    """A project with the script as it is shipped."""
    shutil.copyfile(REPOSITORY / SCRIPT, project.root / SCRIPT)
    return project


@pytest.mark.promise("guide-A2")
@pytest.mark.slow
def test_the_launcher_of_older_torch_and_the_words_of_accelerate_start_the_shipped_script(shipped: Project) -> None:
    run = trained(shipped, sys.executable, *OLD_LAUNCHER, *PORT_0, SCRIPT, *SMALL, **ACCELERATE)
    assert (run.state, run.step) == (RunState.SUCCEEDED, 2)
    assert run.config is not None
    assert run.config["derived"]["world_size"] == 2
    assert run.config["environment"]["precision"] == "bf16"
    assert run.config["config"]["batch_size"] == 4
    log = " ".join(run.log(500).split())
    for said in ("precision bf16 ", "4 per process x 1 accumulated x 2 process", "=bf16 from accelerate launch"):
        assert said in log


@pytest.mark.promise("guide-L3", "guide-A18", "guide-M1", "guide-M3", "guide-M11", "guide-G13")
@pytest.mark.slow
def test_the_written_shell_script_trains_from_any_folder(project: Project) -> None:
    words = ["--preset", "cpu_demo", "--sh", "--set", "max_steps=1k"]
    assert main(["new", "mlm_pretraining", "mlm_pretraining", *words]) == 0
    path = str(project.scripts / "mlm_pretraining.sh")
    folder = str(Path(sys.executable).parent)
    run = trained(
        project, "sh", "-c", f'cd / && exec "{path}" "$@"', path, *SMALL, PATH=f"{folder}:{os.environ['PATH']}"
    )
    assert (run.state, run.step) == (RunState.SUCCEEDED, 2)
    assert run.config is not None
    assert run.config["derived"]["world_size"] == 2
