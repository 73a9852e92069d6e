"""Cost of logging one row of five metrics, on the training thread. Goal: at most 5 µs of its CPU time.

    python tests/benchmarks/bench_metric_row.py [rounds]

Peers are measured in the same run, rounds interleaved, where they are installed: json.dumps + write + flush,
TensorBoard's SummaryWriter (five scalars), trackio.log (offline). Thread CPU counts what the training loop pays;
process CPU adds the peers' background threads.
"""

import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from nbtools.metrics.writer import MetricWriter

GOAL_US = 5.0
NUM_ROWS = 500
VALUES = {
    "train/loss": 2.3125,
    "train/learning_rate": 1.234e-4,
    "train/grad_norm": 1.0625,
    "train/tokens_per_s": 12345.678,
    "train/epoch": 0.5,
}
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


def tensorboard(folder: Path) -> Log:
    """Five add_scalar, through torch's writer or, without torch, the same event writer beneath it."""
    if importlib.util.find_spec("torch"):
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / "tb"))

        def log(step: int) -> None:
            for name, value in VALUES.items():
                writer.add_scalar(name, value, step)

        return log
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    events = EventFileWriter(str(folder / "tb"))

    def log_events(step: int) -> None:
        for name, value in VALUES.items():
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            events.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    return log_events


def trackio(folder: Path) -> Log:
    """trackio without a Space: a local SQLite file."""
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    import trackio as package

    package.init(project="bench", embed=False)
    return lambda step: package.log(dict(VALUES), step=step)


PEERS: dict[str, tuple[str, Callable[[Path], Log]]] = {
    "nbtools MetricWriter": ("nbtools", ours),
    "json.dumps + write + flush": ("json", plain_json),
    "TensorBoard, 5 scalars": ("tensorboard", tensorboard),
    "trackio.log": ("trackio", trackio),
}


def main(num_rounds: int = 20) -> int:
    """Print a table; 0 if the goal is reached."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        logs = {}
        for peer, (package, start) in PEERS.items():
            if importlib.util.find_spec(package) is None:
                print(f"{peer}: not installed, not measured")
            else:
                logs[peer] = start(folder)
        thread: dict[str, list[float]] = {peer: [] for peer in logs}
        process: dict[str, list[float]] = {peer: [] for peer in logs}
        latencies: dict[str, list[float]] = {peer: [] for peer in logs}
        step = 0
        for number in range(num_rounds + 1):
            for peer, log in logs.items():
                before = time.thread_time(), time.process_time()
                for i in range(step, step + NUM_ROWS):
                    log(i)
                spent = time.thread_time() - before[0], time.process_time() - before[1]
                for i in range(step + NUM_ROWS, step + 2 * NUM_ROWS):
                    start_s = time.perf_counter()
                    log(i)
                    latencies[peer].append((time.perf_counter() - start_s) * 1e6)
                if number:  # the first round warms up
                    thread[peer].append(spent[0] / NUM_ROWS * 1e6)
                    process[peer].append(spent[1] / NUM_ROWS * 1e6)
            step += 2 * NUM_ROWS
    mine = statistics.median(thread["nbtools MetricWriter"])
    print(f"\n{num_rounds} rounds x {NUM_ROWS} rows of 5 values, medians, µs per row")
    print(f"{'':<28}{'thread CPU':>12}{'process CPU':>13}{'wall p50':>10}{'wall p99':>10}{'x ours':>8}")
    for peer in logs:
        ordered = sorted(latencies[peer])
        cpu = statistics.median(thread[peer])
        print(
            f"{peer:<28}{cpu:>12.2f}{statistics.median(process[peer]):>13.2f}{ordered[len(ordered) // 2]:>10.1f}"
            f"{ordered[len(ordered) * 99 // 100]:>10.1f}{cpu / mine:>8.1f}"
        )
    print(f"goal: <= {GOAL_US} µs of thread CPU: {'reached' if mine <= GOAL_US else 'MISSED'} ({mine:.2f})")
    sys.stdout.flush()
    return int(mine > GOAL_US)


if __name__ == "__main__":
    status = main(*map(int, sys.argv[1:]))
    os._exit(status)  # the peers' background threads need not be waited for
