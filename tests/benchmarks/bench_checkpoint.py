"""A durable, hashed checkpoint of 200 MB against `torch.save` + fsync of the same tensors. Goal: at most 1.2 x.

    python tests/benchmarks/bench_checkpoint.py [rounds]

Both write the same bytes of weights and AdamW moments (a third weights); ours adds SHA-256, atomic rename, directory
fsync and manifest. Rounds are interleaved; the medians of wall time count, since both wait for the disk.
"""

import itertools
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from rounds import interleaved, print_costs
from safetensors.torch import save_file

from nbtools.training.engine import checkpoint
from nbtools.training.engine.checkpoint import Progress
from nbtools.training.process import random_state

GOAL = 1.2


def main(rounds: int = 7) -> None:
    """Print both times and their ratio."""
    weights = {f"layer{number}": torch.randn(1024, 1024) for number in range(17)}  # 71 MB
    shape = (1024, 1024)
    moments = {number: {"exp_avg": torch.randn(shape), "exp_avg_sq": torch.rand(shape)} for number in range(16)}
    num_bytes = 4 * 1024 * 1024 * (len(weights) + 2 * len(moments))
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix=".bench-"))
    steps = itertools.count()
    ways = {
        "torch.save + fsync": lambda: peer(folder / "peer.pt", weights, moments),
        "nbtools": lambda: ours(folder / "checkpoints", next(steps), weights, moments),
    }
    try:
        (folder / "checkpoints").mkdir()
        costs, _ = interleaved(ways, rounds, before=os.sync)
    finally:
        shutil.rmtree(folder)
    print(f"{num_bytes / 1e6:.0f} MB, {rounds} rounds (order alternating)")
    print_costs(costs)
    plain, ours_s = (statistics.median(cost.wall_s for cost in each) for each in costs.values())
    ratio = ours_s / plain
    print(f"ratio {ratio:.2f} (goal <= {GOAL}): {'reached' if ratio <= GOAL else 'MISSED'}")


def ours(
    folder: Path, step: int, weights: dict[str, torch.Tensor], moments: dict[int, dict[str, torch.Tensor]]
) -> None:
    """What the training does."""
    checkpoint.save(
        folder,
        Progress(step=step),
        write_model=lambda path: save_file(weights, path / "model.safetensors"),
        state={"optimizer": moments},
        rank_states=[{"random": random_state.random_state()}],
        metrics={},
        attempt=1,
        keep_last=1,
    )


def peer(path: Path, weights: dict[str, torch.Tensor], moments: dict[int, dict[str, torch.Tensor]]) -> None:
    """What a careful script does."""
    with path.open("wb") as file:
        torch.save({"model": weights, "optimizer": moments}, file)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
