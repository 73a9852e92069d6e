"""Steps with the looks for requests to the training, against steps without them, in blocks of one training.

    torchrun --standalone --nproc-per-node=2 tests/benchmarks/bench_steering.py [rounds]

Blocks of both kinds alternate. Goal: a rate of at least 0.995 while nothing is asked.
"""

import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_mlm import tiny_mlm, write_texts

from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.applied_requests import AppliedRequests
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.plan import Plan
from nbtools.training.engine.worker import Worker, run
from nbtools.training.mlm_pretraining import train

GOAL = 0.995
BLOCK = 50
NEVER: dict[str, Any] = {"log_every": 20, "eval_every": 10**6, "checkpoint_every": 10**6, "checkpoint_epochs": False}
WIDE: dict[str, Any] = {"hidden_size": 128, "num_layers": 2, "batch_size": 8}


def main(rounds: int = 30) -> None:
    """Train in blocks that alternate, and print the ratio of their rates."""
    spent: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    real, since, looks = Worker.advance, [(0.0, 0.0)], list[Any]()
    applies = AppliedRequests.apply

    def advance(worker: Worker, plan: Plan) -> Any:
        due, (block, rest) = real(worker, plan), divmod(worker.progress.step, BLOCK)
        if rest == 0:
            now, (wall, cpu) = (time.perf_counter(), time.process_time()), since[0]
            if block > 2:
                spent[block % 4 in (1, 2)].append((now[0] - wall, now[1] - cpu))
            steers = (block + 1) % 4 in (1, 2)
            looks.append(worker.vote.num_waiting)
            worker.vote.num_waiting = looks[0] if steers else lambda: 0
            AppliedRequests.apply = applies if steers else lambda *_, **__: None  # type: ignore[method-assign]
            since[0] = time.perf_counter(), time.process_time()
        return due

    Worker.advance = advance  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        root = os.environ["NBTOOLS_ROOT"] = folder
        files = RunDir.create(Path(root) / "runs", "bench")
        os.environ["NBTOOLS_RUN_DIR"], texts = str(files.path), Path(root) / "texts"
        write_texts(texts)
        config = tiny_mlm(**WIDE, **NEVER, dataset=str(texts), max_steps=BLOCK * (4 * rounds + 2), epochs=10**6)
        run(train.train, Flags(config))
    if os.environ.get("RANK", "0") == "0":
        for name, kind in (("wall", 0), ("CPU", 1)):
            with_it, without = ([each[kind] for each in spent[steers]] for steers in (True, False))
            ratios = sorted(other / own for own, other in zip(with_it, without, strict=False))
            chance = random.Random(0)
            draws = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
            step_ms = 1000 * statistics.median(with_it) / BLOCK
            print(
                f"{name}: {len(ratios)} pairs of {BLOCK} steps of {step_ms:.1f} ms: rate against no looks "
                f"{statistics.median(ratios):.4f}, 95% of medians {draws[50]:.4f} to {draws[-51]:.4f} (goal {GOAL})"
            )
        print(f"load {os.getloadavg()}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
