"""One rank of a training, forked from a server that has imported torch: an import takes longer than the training."""

import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_PR_SET_PDEATHSIG = 1

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "peft",
        "transformers.models.modernbert.modeling_modernbert",
        "transformers.models.llama.modeling_llama",
        "nbtools.training.mlm_pretraining.train",
        "nbtools.training.masked_diffusion.train",
        "nbtools.training.text_classification.train",
        "nbtools.training.algorithm_distillation.train",
        "nbtools.training.llm_gan.train",
    ]
)


def launched_ranks(world_size: int, port: int, per_node: int | None = None) -> list[dict[str, str]]:
    """The variables of so many ranks, as a launcher that knows torch sets them; by default all are on one node."""
    per_node = per_node or world_size
    same = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    same |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(per_node)}
    return [{**same, "RANK": str(rank), "LOCAL_RANK": str(rank % per_node)} for rank in range(world_size)]


def start_ranks(
    script: Path, args: Sequence[str], variables: Sequence[Mapping[str, str]], *, cwd: Path, log: Path
) -> list[ForkServerProcess]:
    """Start a script once with each of the variables, beside those of this process; all of them write to `log`."""
    started = []
    for more in variables:
        given = (str(script), [*args], {**os.environ, **more}, str(cwd), str(log))
        started.append(_server.Process(target=_run, args=given))
        started[-1].start()
    return started


def _run(script: str, args: list[str], environment: dict[str, str], cwd: str, log: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives the server, nor the server pytest
    # As in any other rank: the server's method would import torch again for each rank that has loader workers.
    multiprocessing.set_start_method(None, force=True)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    import torch

    torch.set_num_threads(1)
    sys.argv = [script, *args]
    runpy.run_path(script, run_name="__main__")
