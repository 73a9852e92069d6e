"""Cost of reading TensorBoard's events, and of looking for files. Goals: 8 µs of CPU per scalar, 50 ms per look.

    python tests/benchmarks/bench_discovery.py [rounds]

The peer is tensorboard's own `EventFileLoader` on the same file, rounds interleaved.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from nbtools.metrics.history import History
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.points import extend
from nbtools.metrics.readers.printed.log import LogMetrics
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.rundir.program_files.foreign_checkpoints import checkpoints_of

NUM_STEPS = 50_000
TAGS = ("train/loss", "train/learning_rate")
NUM_FILES = 100_000


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = EventFileWriter(str(folder))
        for step in range(NUM_STEPS):
            for tag in TAGS:
                value = Summary.Value(tag=tag, simple_value=step * 0.5)
                writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=[value])))
        writer.close()
        path = next(folder.glob("events.*"))
        ours, theirs, ratios = [], [], []
        for _ in range(rounds):
            began = time.thread_time()
            history = History()
            extend(history, EventFile(path).poll())
            ours.append(time.thread_time() - began)
            assert [len(history[tag]) for tag in TAGS] == [NUM_STEPS] * len(TAGS)
            began = time.thread_time()
            num = sum(len(event.summary.value) for event in EventFileLoader(str(path)).Load())
            theirs.append(time.thread_time() - began)
            assert num == NUM_STEPS * len(TAGS)
            ratios.append(theirs[-1] / ours[-1])
        per = 1e6 / NUM_STEPS / len(TAGS)
        mine, other = statistics.median(ours) * per, statistics.median(theirs) * per
        print(f"a scalar: {mine:.1f} µs CPU; EventFileLoader {other:.1f}")
        print(f"ratio, median of the pairs: {statistics.median(ratios):.1f}")
        many = folder / "many"
        many.mkdir()
        for index in range(NUM_FILES):
            (many / f"{index}.jsonl").touch()
        looks = []
        for _ in range(rounds):
            metrics = FoundMetrics(many, LogMetrics(many / "rank0.log"))
            began = time.thread_time()
            metrics.history(str(many), (), time.time() - 1e4, None)
            looks.append(time.thread_time() - began)
        print(f"a look at a folder of {NUM_FILES:,} new files: {statistics.median(looks) * 1e3:.0f} ms CPU")
        for suffix in ("jsonl", "pt"):
            looks = []
            for _ in range(rounds):
                began = time.thread_time()
                checkpoints_of(many, str(many), (), time.time() - 1e4, None)
                looks.append(time.thread_time() - began)
            print(f"a look for checkpoints there, *.{suffix}: {statistics.median(looks) * 1e3:.0f} ms CPU")
            for index in range(NUM_FILES if suffix == "jsonl" else 0):
                (many / f"{index}.jsonl").rename(many / f"{index}.pt")


if __name__ == "__main__":
    main()
