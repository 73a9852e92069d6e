"""Cost of reading TensorBoard's events, and of looking for files. Goals: 8 µs of CPU per scalar, 50 ms per look.

    python tests/benchmarks/bench_discovery.py [rounds]

The peer is tensorboard's own `EventFileLoader`, on the first tenth of the same scalars, rounds interleaved. Looks are
measured in a folder of 100,000 files, and in a tree of 1,000 folders with 100 each.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from rounds import cpu, interleaved
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.tensorboard import EventFile
from nbtools.rundir.program_files.foreign_checkpoints import checkpoints_of

NUM_STEPS, NUM_PEER_STEPS = 500_000, 50_000
TAGS = ("train/loss", "train/learning_rate")
NUM_FILES, NUM_FOLDERS = 100_000, 1_000


def events(folder: Path, num_steps: int) -> Path:
    writer = EventFileWriter(str(folder))
    for step in range(num_steps):
        for tag in TAGS:
            value = Summary.Value(tag=tag, simple_value=step * 0.5)
            writer.add_event(Event(wall_time=1e9 + step, step=step, summary=Summary(value=[value])))
    writer.close()
    return next(folder.glob("events.*"))


def look(root: Path, rounds: int) -> float:
    """Return the median of the CPU ms of a first look at new files below a folder."""
    searches = [FoundMetrics(root, LogMetrics(root / "rank0.log")) for _ in range(rounds)]
    looks = (cpu(lambda each=each: each.history(str(root), (), time.time() - 1e4, None)) for each in searches)  # type: ignore[misc]
    return statistics.median(looks) * 1e3


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, peer_path = events(folder / "all", NUM_STEPS), events(folder / "peer", NUM_PEER_STEPS)
        ways = {
            "ours": lambda: sum(map(len, EventFile(path).poll().values())),
            "theirs": lambda: sum(len(event.summary.value) for event in EventFileLoader(str(peer_path)).Load()),
        }
        costs, found = interleaved(ways, rounds)
        assert found == {"ours": NUM_STEPS * len(TAGS), "theirs": NUM_PEER_STEPS * len(TAGS)}
        per = 1e6 / NUM_STEPS / len(TAGS)
        pairs = [
            (one.cpu_s, other.cpu_s * NUM_STEPS / NUM_PEER_STEPS) for one, other in zip(*costs.values(), strict=True)
        ]
        mine, other = map(statistics.median, zip(*pairs, strict=True))
        print(f"{NUM_STEPS * len(TAGS):,} scalars: {mine:.1f} CPU s")
        print(f"a scalar: {mine * per:.1f} µs CPU; EventFileLoader {other * per:.1f}")
        print(f"ratio, median of the pairs: {statistics.median(theirs / ours for ours, theirs in pairs):.1f}")
        many = folder / "many"
        many.mkdir()
        for index in range(NUM_FILES):
            (many / f"{index}.jsonl").touch()
        print(f"a look at a folder of {NUM_FILES:,} new files: {look(many, rounds):.0f} ms CPU")
        for suffix in ("jsonl", "txt", "json"):
            tree = folder / suffix
            for index in range(NUM_FOLDERS):
                (tree / f"{index}").mkdir(parents=True)
                for number in range(NUM_FILES // NUM_FOLDERS):
                    (tree / f"{index}/{number}.{suffix}").write_text("a text of two\nlines\n")
            print(f"at {NUM_FOLDERS:,} folders with {NUM_FILES:,} new *.{suffix}: {look(tree, rounds):.0f} ms CPU")
        for suffix in ("jsonl", "pt"):
            where = many, str(many), (), time.time() - 1e4, None
            looks = [cpu(lambda where=where: checkpoints_of(*where)) for _ in range(rounds)]  # type: ignore[misc]
            print(f"a look for checkpoints there, *.{suffix}: {statistics.median(looks) * 1e3:.0f} ms CPU")
            for index in range(NUM_FILES if suffix == "jsonl" else 0):
                (many / f"{index}.jsonl").rename(many / f"{index}.pt")


if __name__ == "__main__":
    main()
