"""Several ranks on as many GPUs: shards against DDP, a resume on another number, and a hang with its flight record."""

from typing import Any

import pytest
import torch

import nbtools as nt
from nbtools.config import TrainConfig
from nbtools.failures.flight_recorder import stuck_collective
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json

from trainings import TINY, by_hand, rows, script_text, write_inputs

pytestmark = [pytest.mark.slow, pytest.mark.gpu(on_cpu=True), pytest.mark.filterwarnings("default")]

NUM_GPUS = torch.cuda.device_count()
NUM_RANKS = min(NUM_GPUS, 4) if NUM_GPUS else 2
if NUM_GPUS == 1:
    pytestmark.append(pytest.mark.skip(reason="needs two GPUs"))

HANGS = """
import itertools
import time
import torch
from nbtools.training.engine import worker
from nbtools.training.engine.optimizer import Optimizer

worker._SECONDS_PER_MINUTE = 20
calls, real = itertools.count(), Optimizer.backward

def backward(optimizer, loss):
    while next(calls) >= 6 and torch.distributed.get_rank():
        time.sleep(1)
    real(optimizer, loss)
    torch.cuda.synchronize()

Optimizer.backward = backward
"""
"""Before a script starts: the other ranks hang in step 4, where rank 0 waits for 20 seconds."""


def tiny(recipe: str, project: Project, **changes: Any) -> TrainConfig:
    write_inputs(recipe, project)
    values = {**TINY[recipe], "batch_size": 12 // NUM_RANKS, "num_layers": 2, "precision": "fp32", "dropout": 0.0}
    return RECIPES[recipe].config_class(**{**values, "gradient_accumulation_steps": 2, "epochs": 100, **changes})


@pytest.mark.parametrize("recipe", RECIPES)
def test_sharded_ranks_train_as_ddp_does_and_resume_on_one(recipe: str, project: Project) -> None:
    config = tiny(recipe, project)
    sharded, on_one = config.replace(strategy="fsdp"), config.replace(batch_size=12)
    with by_hand(project) as start:
        whole = rows(start.forked(config, nproc=NUM_RANKS).files)
        files = start.forked(sharded, nproc=NUM_RANKS).files
        resumed = rows(start.forked(on_one, "--resume-from", files.checkpoint(3), nproc=1).files)
    assert (read_json(files.config) or {})["environment"]["backend"] == ("nccl" if NUM_GPUS else "gloo")
    for found, expected in ((rows(files), whole), (resumed, whole[3:])):
        losses, wanted = ([row["train/loss"] for row in each if "train/loss" in row] for each in (found, expected))
        assert losses == pytest.approx(wanted, rel=1e-3)


@pytest.mark.gpu
def test_a_hang_ends_with_the_collective_that_ranks_waited_in(project: Project) -> None:
    script = project.scripts / "hangs.py"
    script.write_text(script_text(tiny("mlm_pretraining", project, collective_timeout_min=1), HANGS))
    run = nt.launch(script, nproc_per_node=2)
    assert run.wait(timeout_s=240, check=False) is RunState.FAILED
    assert stuck_collective(run.files) is not None, run.log()
