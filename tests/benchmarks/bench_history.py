"""Reading metrics: a cold load of 1,000,000 rows of five metrics, and ten new lines beside what is there already.

    python tests/benchmarks/bench_history.py [rounds]

Goals: a cold load in at most 3 CPU-s and 250 MB; 100,000 rows in at most 0.3 CPU-s; ten new lines cost the same
beside 1,000 and 1,000,000 rows (at most 1.2 x). Every load runs in a process of its own (CPU without imports, peak
of the resident memory), rounds interleaved. Peers: json.loads per line, pandas.read_json, and at 100,000 steps
TensorBoard's EventAccumulator, where installed.
"""

import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_s", "train/epoch")
GOAL_CPU_S, GOAL_MB, GOAL_CPU_100K_S, GOAL_GROWTH = 3.0, 250, 0.3, 1.2


def write_rows(path: Path, num_rows: int) -> None:
    """Write what a run of so many logged steps leaves, an evaluation every 1,000 steps included."""
    with path.open("w") as file:
        for step in range(1, num_rows + 1):
            row = {"step": step, "time": 1.7e9 + step * 0.123, "samples": step * 64}
            file.write(json.dumps({**row, **{name: (step * k % 9973) / 7 for k, name in enumerate(NAMES, 3)}}) + "\n")
            if step % 1000 == 0:
                file.write(json.dumps({"step": step, "time": 1.7e9 + step * 0.123, "eval/loss": step / 3}) + "\n")


def write_events(folder: Path, num_steps: int) -> None:
    """Write the same curves as TensorBoard's event file."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder), max_queue_size=1000)
    for step in range(num_steps):
        for k, name in enumerate(NAMES, 3):
            summary = Summary(value=[Summary.Value(tag=name, simple_value=(step * k % 9973) / 7)])
            writer.add_event(Event(wall_time=1.7e9, step=step, summary=summary))
    writer.close()


# --- one load, in a process of its own ------------------------------------------------------------


def load_ours() -> Callable[[str], int]:
    """History.follow, and all series asked for."""
    from nbtools.metrics.history import History
    from nbtools.rundir.tail import Tail

    def load(path: str) -> int:
        history = History()
        history.follow(Tail(path))
        series = {name: history[name] for name in history}
        return len(series["train/loss"])

    return load


def load_json() -> Callable[[str], int]:
    """json.loads per line into columns of doubles."""

    def load(path: str) -> int:
        columns = {name: array("d") for name in ("step", "time", *NAMES, "eval/loss")}
        with Path(path).open("rb") as file:
            for line in file:
                row = json.loads(line)
                for name, column in columns.items():
                    if name in row:
                        column.append(row[name])
        return len(columns["train/loss"])

    return load


def load_pandas() -> Callable[[str], int]:
    """pandas.read_json(lines=True)."""
    import pandas

    return lambda path: int(pandas.read_json(path, lines=True)["train/loss"].notna().sum())


def load_tensorboard() -> Callable[[str], int]:
    """EventAccumulator, all points."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def load(path: str) -> int:
        events = EventAccumulator(path, size_guidance={"scalars": 0})
        events.Reload()
        return len(events.Scalars("train/loss"))

    return load


LOADS = {"nbtools": load_ours, "json": load_json, "pandas": load_pandas, "tensorboard": load_tensorboard}


def child(name: str, path: str) -> None:
    """Load once; print the number of points, CPU seconds without imports, and the peak of memory in MB."""
    load = LOADS[name]()
    before = time.process_time()
    num_points = load(path)
    cpu_s = time.process_time() - before
    peak = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())  # ru_maxrss would count the parent's
    print(json.dumps([num_points, cpu_s, int(peak[1]) / 1024 if peak else None]))


def answer(program: str, *words: str, env: dict[str, str] | None = None) -> Any:
    """Run a program in a process of its own and return the JSON that it prints last."""
    done = subprocess.run([sys.executable, program, *words], capture_output=True, text=True, env=env)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, path: Path) -> tuple[int, float, float]:
    """Run `child` in a process of its own."""
    num_points, cpu_s, peak_mb = answer(__file__, "--child", name, str(path))
    return num_points, cpu_s, peak_mb


def table(title: str, files: dict[str, Path], num_rows: int, num_rounds: int) -> tuple[float, float]:
    """Measure all loads, interleaved, and print them; return our CPU seconds and peak of memory."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(num_rounds):
        for name, path in files.items():
            num_points, cpu_s, peak_mb = measure(name, path)
            assert num_points == num_rows, f"{name} read {num_points} of {num_rows} points"
            found.setdefault(name, []).append((cpu_s, peak_mb))
    medians = {
        name: tuple(statistics.median(column) for column in zip(*rows, strict=True)) for name, rows in found.items()
    }
    print(f"\n{title} ({num_rounds} rounds, medians)\n{'':<14}{'CPU s':>8}{'peak MB':>9}{'x ours':>8}")
    for name, (cpu_s, peak_mb) in medians.items():
        print(f"{name:<14}{cpu_s:>8.2f}{peak_mb:>9.0f}{cpu_s / medians['nbtools'][0]:>8.1f}")
    return medians["nbtools"][0], medians["nbtools"][1]


def new_lines(path: Path, num_rows: int) -> list[float]:
    """CPU µs to read ten new lines and ask for all series, beside `num_rows` rows."""
    from nbtools.metrics.history import History
    from nbtools.rundir.tail import Tail

    history, tail, costs = History(), Tail(path), []
    history.follow(tail)
    for number in range(100):
        with path.open("a") as file:
            for step in range(num_rows + 10 * number + 1, num_rows + 10 * number + 11):
                file.write(json.dumps({"step": step, "time": 1.0, "samples": 1, **dict.fromkeys(NAMES, 1.0)}) + "\n")
        before = time.thread_time()
        history.follow(tail)
        for name in history:
            history[name]
        costs.append((time.thread_time() - before) * 1e6)
    return costs


def told(goals: dict[str, bool]) -> int:
    """Print what became of each goal; 0 if all are reached."""
    for goal, reached in goals.items():
        print(f"{'reached' if reached else 'MISSED '}  {goal}")
    return int(not all(goals.values()))


def main(num_rounds: int = 3) -> int:
    """Print the tables; 0 if the goals are reached."""
    missing = [name for name in LOADS if name not in ("nbtools", "json") and importlib.util.find_spec(name) is None]
    for name in missing:
        print(f"{name}: not installed, not measured")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large, tiny = folder / "small.jsonl", folder / "large.jsonl", folder / "tiny.jsonl"
        for path, num_rows in ((tiny, 1000), (small, 100_000), (large, 1_000_000)):
            write_rows(path, num_rows)
        files = {name: large for name in LOADS if name not in (*missing, "tensorboard")}
        cpu_s, peak_mb = table(f"1,000,000 rows x 5, {large.stat().st_size / 1e6:.0f} MB", files, 1_000_000, num_rounds)
        files = dict.fromkeys(files, small)
        if "tensorboard" not in missing:
            write_events(folder / "events", 100_000)
            files["tensorboard"] = folder / "events"
        cpu_100k_s, _ = table("100,000 rows x 5", files, 100_000, num_rounds)
        costs = {"1,000": new_lines(tiny, 1000), "1,000,000": new_lines(large, 1_000_000)}
    few, many = (statistics.median(column) for column in costs.values())
    print(f"\nten new lines, all series asked for: {few:.0f} µs beside 1,000 rows, {many:.0f} µs beside 1,000,000")
    goals = {
        f"cold load of 1,000,000 rows <= {GOAL_CPU_S} CPU-s": cpu_s <= GOAL_CPU_S,
        f"its peak of memory <= {GOAL_MB} MB": peak_mb <= GOAL_MB,
        f"cold load of 100,000 rows <= {GOAL_CPU_100K_S} CPU-s": cpu_100k_s <= GOAL_CPU_100K_S,
        f"new lines at 1,000,000 rows <= {GOAL_GROWTH} x those at 1,000": many <= GOAL_GROWTH * few,
    }
    return told(goals)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        sys.exit(main(*map(int, sys.argv[1:])))
