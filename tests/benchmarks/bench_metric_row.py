"""Cost of logging one row of five metrics, on the training thread. Goal: at most 5 µs of its CPU time.

    python tests/benchmarks/bench_metric_row.py [rounds]

The peer is what one would write by hand: json.dumps + write + flush. Rounds are interleaved.
"""

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rounds import cpu_medians, interleaved

from nbtools.metrics.writer import MetricWriter

GOAL_US = 5.0
NUM_ROWS = 500
VALUES = {"train/loss": 2.3125, "train/learning_rate": 1.234e-4, "train/grad_norm": 1.0625}
VALUES |= {"train/tokens_per_s": 12345.678, "train/epoch": 0.5}
Log = Callable[[int], None]


def ours(folder: Path) -> Log:
    """One os.write of one line."""
    writer = MetricWriter(folder / "metrics.jsonl")
    return lambda step: writer.write(step, VALUES, samples=step * 64)


def plain_json(folder: Path) -> Log:
    """What one would write by hand."""
    file = (folder / "plain.jsonl").open("w")

    def log(step: int) -> None:
        file.write(json.dumps({"step": step, "time": time.time(), "samples": step * 64, **VALUES}) + "\n")
        file.flush()

    return log


def block(log: Log, steps: Iterator[int]) -> None:
    """Log some rows."""
    for step in itertools.islice(steps, NUM_ROWS):
        log(step)


def main(num_rounds: int = 20) -> int:
    """Print a table; 0 if the goal is reached."""
    with tempfile.TemporaryDirectory() as name:
        logs = {"nbtools MetricWriter": ours(Path(name)), "json.dumps + write + flush": plain_json(Path(name))}
        costs, _ = interleaved({peer: partial(block, log, itertools.count()) for peer, log in logs.items()}, num_rounds)
    medians = {peer: cpu_s / NUM_ROWS * 1e6 for peer, cpu_s in cpu_medians(costs).items()}
    mine, *_ = medians.values()
    print(f"{num_rounds} rounds x {NUM_ROWS} rows of 5 values, medians of CPU")
    for peer, median in medians.items():
        print(f"{peer:<28}{median:>8.2f} µs{median / mine:>8.1f} x ours")
    print(f"goal: <= {GOAL_US} µs: {'reached' if mine <= GOAL_US else 'MISSED'} ({mine:.2f})")
    return int(mine > GOAL_US)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
