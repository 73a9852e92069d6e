"""CPU seconds of one refresh of the live panel, at 1,000 and at 1,000,000 rows of 5 metrics, and at 1,000 ranks.

Prints ours, the peer and the ratio. The peer draws as livelossplot does: a new figure of all points at each update,
tight layout, PNG. It draws a quarter of our pixels, and gets its arrays for nothing. Both run in turns.

    python tests/benchmarks/bench_panel.py
"""

import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt

from nbtools.notebook.panel.panel import LivePlot
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir

METRICS = ("train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_s", "eval/loss")
ROUNDS = 15


def rows(first: int, last: int) -> bytes:
    """Rows as a run writes them."""
    noise = np.random.default_rng(first).random((last - first, 5))
    values = 0.05 * noise + 5 / np.sqrt(10 + np.arange(first, last))[:, None]
    line = (
        b'{"step":%d,"time":%.3f,"samples":%d,' + b",".join(b'"%b":%%.6f' % name.encode() for name in METRICS) + b"}\n"
    )
    return b"".join(line % (step, 1.7e9 + step, 64 * step, *values[step - first]) for step in range(first, last))


def make_run(runs: Path, num_rows: int) -> RunDir:
    """A run directory with so many rows, whose lock is held until this program ends: it reads as RUNNING."""
    files = RunDir(runs / f"2026-01-31_142233_rows{num_rows}")
    files.ranks.mkdir(parents=True)
    files.checkpoints.mkdir()
    write_json(files.launch, {"name": "bench", "recipe": "mlm_pretraining", "script": "bench.py", "time": 1.7e9})
    write_json(files.config, {"derived": {"total_steps": 2 * num_rows}})
    assert acquire_lock(files.lock) is not None
    files.log.write_text("started\n")
    files.metrics.write_bytes(rows(0, num_rows))
    return files


def cpu(action: Callable[[], object]) -> float:
    """CPU seconds of the whole process during `action`."""
    began = time.process_time()
    action()
    return time.process_time() - began


def replot(run: Run) -> bytes:
    """The peer: everything anew."""
    series = {name: run.history[name] for name in METRICS}
    figure, axes = plt.subplots(2, 2, figsize=(9, 5.2))
    for axis, name in zip(axes.flat, METRICS[:4], strict=True):
        axis.plot(series[name].steps, series[name].values, label=name)
        axis.grid(True)
        axis.set_title(name)
    axes[0, 0].plot(series["eval/loss"].steps, series["eval/loss"].values, label="eval/loss")
    axes[0, 0].legend(loc="upper right")
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    plt.close(figure)
    return buffer.getvalue()


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        best: dict[int, float] = {}
        print(f"{'rows':>9} {'refresh, CPU s (min, median)':>30} {'peer':>16} {'ratio':>7} {'PNG, kB':>8}")
        panels = {}
        for num_rows in (1_000, 1_000_000):
            files = make_run(Path(folder), num_rows)
            panels[num_rows] = (LivePlot(files.path, refresh_s=3600), files)
            panels[num_rows][0].refresh()
        for num_rows, (panel, files) in panels.items():
            ours, theirs, at = [], [], num_rows
            for _ in range(ROUNDS):
                with files.metrics.open("ab") as file:
                    file.write(rows(at, at + 10))
                at += 10
                ours.append(cpu(panel.refresh))
                if len(theirs) < 5:
                    theirs.append(cpu(lambda panel=panel: replot(panel.run)))  # type: ignore[misc]
            best[num_rows] = min(ours)
            size = len(bytes(panel._image.value)) / 1000
            print(
                f"{num_rows:>9,} {min(ours):>15.3f} {statistics.median(ours):>14.3f}"
                f" {min(theirs):>7.3f} {statistics.median(theirs):>8.3f} {min(ours) / min(theirs):>7.2f} {size:>8.0f}"
            )
        print(f"1,000,000 rows against 1,000: {best[1_000_000] / best[1_000]:.2f} (at most 1.2; 0.2 s each)")
        panel, files = panels[1_000_000]
        idle = min(cpu(panel.refresh) for _ in range(20))
        print(f"a look when nothing changed: {1e3 * idle:.2f} ms CPU")
        at = 2_000_000
        for count in (10, 1_000, 100_000):
            block = rows(at, at + count)
            with files.metrics.open("ab") as file:
                file.write(block)
            at += count
            took = cpu(lambda: panel.run.history.version)
            print(
                f"reading {count:>7,} new rows ({len(block) / 1000:>8,.1f} kB) of that run: {1e3 * took:>7.2f} ms CPU"
            )
        many_ranks(make_run(Path(folder), 10_000))
        for panel, _ in panels.values():
            panel.close()


def many_ranks(files: RunDir) -> None:
    """Print the CPU time of one look at 1,000 ranks on 125 nodes, all of which have a new heartbeat."""
    write_json(files.launch, {"name": "bench", "launch": {"nnodes": 125, "nproc_per_node": 8}, "time": 1.7e9})
    panel, took = LivePlot(files.path, refresh_s=3600), []
    for step in range(ROUNDS):
        for rank in range(1_000):
            beat = {"rank": rank, "pid": 7, "host": f"n{rank // 8}", "step": step, "phase": "forward", "nth": 0}
            write_json(files.heartbeat(rank), {**beat, "time": time.time(), "stacks_signal": 10})
        took.append(cpu(panel.refresh))
    print(f"one look at 1,000 ranks: {1e3 * min(took):.0f} ms CPU (at most 100)")
    panel.close()


if __name__ == "__main__":
    main()
