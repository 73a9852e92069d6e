"""A durable, hashed checkpoint of 200 MB against `torch.save` + fsync of the same tensors. Goal: at most 1.2 x.

    python tests/benchmarks/bench_checkpoint.py [rounds]

Both write the same bytes of weights and AdamW moments (a third weights); ours adds SHA-256, atomic rename, directory
fsync and manifest. Rounds are interleaved; the medians of wall time count, since both wait for the disk.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
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
    times: dict[str, list[tuple[float, float]]] = {"torch.save + fsync": [], "nbtools": []}
    try:
        (folder / "checkpoints").mkdir()
        for number in range(rounds + 1):
            for name in sorted(times, reverse=number % 2 == 0):
                os.sync()
                wall, cpu = time.perf_counter(), time.process_time()
                if name == "nbtools":
                    ours(folder / "checkpoints", number, weights, moments)
                else:
                    peer(folder / "peer.pt", weights, moments)
                if number:  # the first round warms up
                    times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    finally:
        shutil.rmtree(folder)
    medians = {}
    print(f"{num_bytes / 1e6:.0f} MB, {rounds} rounds (sorted by name, order alternating)")
    for name, rows in times.items():
        medians[name] = statistics.median(wall for wall, _ in rows)
        print(
            f"{name:<20} wall median {medians[name]:.3f} s  best {min(wall for wall, _ in rows):.3f} s  "
            f"CPU median {statistics.median(cpu for _, cpu in rows):.3f} s"
        )
    ratio = medians["nbtools"] / medians["torch.save + fsync"]
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
