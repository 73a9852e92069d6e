"""CPU seconds of one refresh of the live panel, at 1,000 and at 1,000,000 rows of 5 metrics, and at 1,000 ranks.

Prints ours, the peer and the ratio. The peer draws as livelossplot does: a new figure of all points at each update,
tight layout, PNG. It draws a quarter of our pixels, and gets its arrays for nothing. Both run in turns.

    python tests/benchmarks/bench_panel.py
"""

import io
import statistics
import tempfile
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from bench_canvas import cpu_ms, make_run, rows
from matplotlib import pyplot as plt

from nbtools.notebook.panel.panel import LivePlot
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

METRICS = ("train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_s", "eval/loss")
ROUNDS = 15


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
            files = make_run(Path(folder), f"rows{num_rows}", rows(METRICS, 0, num_rows))
            panels[num_rows] = (LivePlot(files.path, refresh_s=3600), files)
            panels[num_rows][0].refresh()
        for num_rows, (panel, files) in panels.items():
            ours, theirs, at = [], [], num_rows
            for _ in range(ROUNDS):
                with files.metrics.open("ab") as file:
                    file.write(rows(METRICS, at, at + 10))
                at += 10
                ours.append(cpu_ms(panel.refresh) / 1000)
                if len(theirs) < 5:
                    theirs.append(cpu_ms(lambda panel=panel: replot(panel.run)) / 1000)  # type: ignore[misc]
            best[num_rows] = min(ours)
            size = len(bytes(panel._image.value)) / 1000
            print(
                f"{num_rows:>9,} {min(ours):>15.3f} {statistics.median(ours):>14.3f}"
                f" {min(theirs):>7.3f} {statistics.median(theirs):>8.3f} {min(ours) / min(theirs):>7.2f} {size:>8.0f}"
            )
        print(f"1,000,000 rows against 1,000: {best[1_000_000] / best[1_000]:.2f} (at most 1.2; 0.2 s each)")
        panel, files = panels[1_000_000]
        idle = min(cpu_ms(panel.refresh) for _ in range(20))
        print(f"a look when nothing changed: {idle:.2f} ms CPU")
        at = 2_000_000
        for count in (10, 1_000, 100_000):
            block = rows(METRICS, at, at + count)
            with files.metrics.open("ab") as file:
                file.write(block)
            at += count
            took = cpu_ms(lambda: panel.run.history.version)
            print(f"reading {count:>7,} new rows ({len(block) / 1000:>8,.1f} kB) of that run: {took:>7.2f} ms CPU")
        many_ranks(make_run(Path(folder), "ranks", rows(METRICS, 0, 10_000)))
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
        took.append(cpu_ms(panel.refresh))
    print(f"one look at 1,000 ranks: {min(took):.0f} ms CPU (at most 100)")
    panel.close()


if __name__ == "__main__":
    main()
