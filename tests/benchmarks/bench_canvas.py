"""CPU milliseconds of one refresh of a live panel that draws in the page, against the picture; and the bytes sent.

A run of 1,000,000 rows of 6 metrics (6 charts), and one of 40 metrics with 6 charts open. Each round adds rows to the
same run and refreshes a panel with the canvas and one with the picture, in turns. A zoom draws a fiftieth of the axis.
First the first picture of 1,000,000 rows of 5 metrics, cold and opened before, and the one of all rows that follows,
against reading all rows, in turns.

    python tests/benchmarks/bench_canvas.py
"""

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.panel.snapshot import ShownRun
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir

METRICS = (
    *("train/loss", "train/learning_rate", "train/grad_norm", "train/tokens_per_s"),
    *("train/entropy", "train/accuracy", "eval/loss"),
)
OTHERS = tuple(f"gate/{index}" for index in range(33))
ROUNDS = 11
KINDS = {
    "cold": 300,
    "cold, complete": 2000,
    "opened before": 100,
    "opened before, complete": None,
    "all rows read": None,
}
"""What is measured of a panel that is opened, and the most CPU milliseconds to its picture."""


def rows(names: tuple[str, ...], first: int, last: int) -> bytes:
    """Rows as a run writes them."""
    noise = np.random.default_rng(first).random((last - first, len(names)))
    values = 0.05 * noise + 5 / np.sqrt(10 + np.arange(first, last))[:, None]
    line = b'{"step":%d,"time":%.3f,' + b",".join(b'"%b":%%.6f' % name.encode() for name in names) + b"}\n"
    return b"".join(line % (step, 1.7e9 + step, *values[step - first]) for step in range(first, last))


def make_run(runs: Path, name: str, content: bytes) -> RunDir:
    """A run directory whose lock is held until this program ends: it reads as RUNNING."""
    files = RunDir(runs / f"2026-01-31_142233_{name}")
    files.ranks.mkdir(parents=True)
    files.checkpoints.mkdir()
    write_json(files.launch, {"name": "bench", "recipe": "mlm_pretraining", "script": "bench.py", "time": 1.7e9})
    assert acquire_lock(files.lock) is not None
    files.log.write_text("started\n")
    files.metrics.write_bytes(content)
    return files


def cpu_ms(action: Callable[[], object]) -> float:
    """CPU milliseconds of the whole process during `action`."""
    began = time.process_time()
    action()
    return 1000 * (time.process_time() - began)


def tell(panel: LivePlot, **message: Any) -> None:
    """Send a message as the page does."""
    panel._canvas._handle_custom_msg(message, [])


def measure(files: RunDir, names: tuple[str, ...], first: int, opened: tuple[str, ...]) -> None:
    """Refresh two panels of a run in turns, and print their cost."""
    pictured, live = LivePlot(files.path, refresh_s=3600), LivePlot(files.path, refresh_s=3600)
    for panel in (pictured, live):
        panel.refresh()
    for key in opened:
        tell(live, open=key, is_open=True)
    tell(live, ready=True, width=900)
    live.refresh()
    canvas, spent = live._canvas, ([], [], [])
    for turn in range(ROUNDS):
        version = canvas.version  # the panel's own thread may draw the rows before the refresh
        with files.metrics.open("ab") as file:
            file.write(rows(names, first + 20 * turn, first + 20 * (turn + 1)))
        spent[0].append(cpu_ms(pictured.refresh))
        spent[1].append(cpu_ms(live.refresh))
        assert canvas.version > version
        num_bytes = len(json.dumps(canvas.spec)) + len(canvas.data)
        left = 0.5 * first + turn
        live._choices.take({"zoom": [left, left + 0.02 * first]})
        spent[2].append(cpu_ms(live.refresh))
        live._choices.take({"zoom": None})
    num_open = sum(chart["open"] for chart in canvas.spec["charts"])
    picture, refresh, zoom = (statistics.median(each) for each in spent)
    print(
        f"{first:>9,} rows, {num_open} of {len(canvas.spec['charts'])} charts: picture {picture:.1f} ms, "
        f"canvas {refresh:.1f} ms (least {min(spent[1]):.1f}), zoom {zoom:.1f} ms; "
        f"picture {len(pictured._png) / 1000:.1f} kB, canvas {num_bytes / 1000:.1f} kB "
        f"(spec {len(json.dumps(canvas.spec)) / 1000:.1f} kB)"
    )
    for panel in (pictured, live):
        panel.close()


def first_pictures(files: RunDir, cache: Path) -> None:
    """Print the time to the first picture of a long run, without the reading of all rows that follows."""
    spent: dict[str, list[float]] = {kind: [] for kind in KINDS}
    read = ShownRun.read_rows
    for turn in range(5):
        os.environ["XDG_CACHE_HOME"] = str(cache / str(turn))
        for kind in ("cold", "opened before"):
            go_on = threading.Event()
            ShownRun.read_rows = lambda shown, go_on=go_on: go_on.wait() and read(shown)  # type: ignore[method-assign]
            began = time.process_time()
            panel = LivePlot(files.path, refresh_s=3600)
            while not panel._png:
                time.sleep(0.002)
            spent[kind].append(1000 * (time.process_time() - began))
            assert bool(panel._shown.reading) is (kind == "cold")
            go_on.set()
            panel.refresh()
            spent[f"{kind}, complete"].append(1000 * (time.process_time() - began))
            assert panel._shown.is_whole
            panel.close()
        spent["all rows read"].append(cpu_ms(lambda: Run(files.path).history))
    whole = statistics.median(spent["all rows read"])
    for kind, each in spent.items():
        found = statistics.median(each)
        goal = "" if KINDS[kind] is None else f" (at most {KINDS[kind]})"
        print(f"panel, {kind}: {found:.0f} ms{goal} (least {min(each):.0f}), {found / whole:.3f} of reading all rows")


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        five = METRICS[:4] + METRICS[-1:]
        first_pictures(make_run(Path(folder), "five", rows(five, 0, 1_000_000)), Path(folder) / "cache")
        few = make_run(Path(folder), "few", rows(METRICS, 0, 1_000_000))
        measure(few, METRICS, 1_000_000, ("entropy",))
        every = (*METRICS, *OTHERS)
        many = make_run(Path(folder), "many", rows(every, 0, 100_000))
        measure(many, every, 100_000, ("entropy",))


if __name__ == "__main__":
    main()
