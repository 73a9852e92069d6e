"""A real JupyterLab in headless Chromium: a written row to the changed charts, frames of a moving pointer, zooms.

Each row is written alone, at a random moment of the panel's clock, into a run that is alive; the page notes when the
canvas had drawn what followed. The pointer moves over 20 compared runs x 6 charts while rows arrive in all of them,
first with an idle kernel, then while a cell computes; a frame is the work of the page's main thread for one move, in
CPU and in wall time. A zoom of 1,000,000 rows x 5 is a drag of the mouse, from its end to the drawn answer. Needs
Playwright and a Chromium (`apt-get install chromium`).

    python tests/benchmarks/bench_row_to_pixel.py [number of rows]
"""

import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import Any

from bench_canvas import METRICS, make_run, rows
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from browser.conftest import Lab, Notebook, running_lab

from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

LISTEN = """() => {
  window.draws = [];
  const drawn = document.querySelector('.nbt-canvas').parentElement;
  new MutationObserver(() => window.draws.push(Date.now() / 1000)).observe(drawn, {attributeFilter: ['data-version']});
}"""
FRAME = """
const free = () => new Promise(done => {
  const channel = new MessageChannel();
  channel.port1.onmessage = done;
  channel.port2.postMessage(0);
});
window.frame = async act => {
  let start = 0;
  const began = new Promise(done => requestAnimationFrame(() => { start = performance.now(); done(free()); }));
  const before = performance.now();
  act();
  const acted = performance.now() - before;
  await began;
  return acted + performance.now() - start;
};
undefined;
"""
"""A frame's cost: the event itself, then from the first animation callback until the main thread is free again."""
MOVE = """share => {
  const target = document.querySelector('.nbt-chart canvas[role=img]');
  const {left, top, width, height} = target.getBoundingClientRect();
  const clientX = left + width * share, clientY = top + height * (0.4 + 0.2 * Math.sin(99 * share));
  return frame(() => target.dispatchEvent(
    new PointerEvent('pointermove', {clientX, clientY, bubbles: true, pointerType: 'mouse'})));
}"""
NUM_COMPARED, NUM_MOVES, NUM_ZOOMS = 20, 300, 40
COMPUTES = "import time\nend = time.time() + 25\nwhile time.time() < end: sum(range(10_000))"
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]


def make_project(root: Path) -> RunDir:
    """A project with one live run of 1,000 rows."""
    for folder in ("scripts", "notebooks", "runs"):
        (root / folder).mkdir()
    (root / "pyproject.toml").touch()
    files = make_run(root / "runs", "bench", "".join(map(row, range(1000))).encode())
    write_json(files.config, {"derived": {"total_steps": 10_000}})
    return files


def row(step: int) -> str:
    """One row of a loss with some noise."""
    loss = 2 + 5 / (10 + step) ** 0.5 + random.random() / 10
    return json.dumps({"step": step, "time": time.time(), "train/loss": loss, "train/grad_norm": loss / 3}) + "\n"


def open_notebook(browser: Any, lab: Lab, name: str, *sources: str) -> Notebook:
    """Open a notebook of these cells, run the first two and return it."""
    notebook = Notebook(browser.new_page(viewport={"width": 1280, "height": 1000}), lab)
    notebook.open(lab.write_notebook(f"{name}.ipynb", "import nbtools as nt", *sources))
    for index in range(2):
        notebook.run_cell(index)
    return notebook


def first_canvas(page: Any) -> Any:
    """Wait for the charts in the page; return the first."""
    page.wait_for_function("() => document.querySelector('.nbt-canvas')?.parentElement.dataset.version", timeout=60_000)
    upper = page.locator(".nbt-chart canvas[role=img]").first
    upper.scroll_into_view_if_needed()
    page.wait_for_timeout(3000)
    return upper


def measure_rows(page: Any, files: RunDir, num_rows: int) -> list[float]:
    """Seconds from a row to the drawn charts, one value per row."""
    first_canvas(page)
    page.evaluate(LISTEN)
    taken = []
    for step in range(1000, 1000 + num_rows):
        page.wait_for_timeout(1300 + random.random() * 1000)
        seen = page.evaluate("() => window.draws.length")
        with files.metrics.open("a") as file:
            file.write(row(step))
        written = time.time()
        page.wait_for_function("seen => window.draws.length > seen", arg=seen, timeout=30_000, polling=20)
        taken.append(page.evaluate("seen => window.draws[seen]", seen) - written)
    return taken


def measure_frames(notebook: Notebook, compared: Sequence[RunDir]) -> dict[str, list[float]]:
    """CPU and wall milliseconds of a frame of a moving pointer while rows arrive, beside an idle and a busy kernel."""
    page = notebook.page
    first_canvas(page)
    page.evaluate(FRAME)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    is_done, found = Event(), {}

    def write() -> None:
        step = 2000
        while not is_done.wait(0.5):
            for files in compared:
                with files.metrics.open("ab") as file:
                    file.write(rows(METRICS[:6], step, step + 20))
            step += 20

    writer = Thread(target=write, daemon=True)
    writer.start()
    version = "() => Number(document.querySelector('.nbt-canvas').parentElement.dataset.version)"
    for kernel in ("an idle kernel", "a busy kernel"):
        if kernel == "a busy kernel":
            notebook.start_cell(2)
            first_canvas(page)  # the page has scrolled to that cell
        before = page.evaluate(version)
        cpu, wall = found[f"{kernel}, CPU"], found[f"{kernel}, wall"] = [], []
        for index in range(NUM_MOVES):
            began = busy(session)
            wall.append(page.evaluate(MOVE, 0.15 + 0.8 * index / NUM_MOVES))
            cpu.append(busy(session) - began)
        print(f"{page.evaluate(version) - before} drawings of new rows meanwhile, {kernel}")
    is_done.set()
    writer.join()
    return found


def busy(session: Any) -> float:
    """CPU milliseconds of the page's main thread so far, in tasks."""
    found = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return 1e3 * float(found["TaskDuration"])


def measure_zooms(page: Any) -> list[float]:
    """Milliseconds from the end of a drag to the drawn columns of that span."""
    box, taken = first_canvas(page).bounding_box(), []
    data = "document.querySelector('.nbt-canvas').parentElement.dataset"
    for _ in range(NUM_ZOOMS):
        left = box["x"] + 70 + random.random() * box["width"] / 2
        page.evaluate(f"delete {data}.zoomed")
        page.mouse.move(left, box["y"] + 120)
        page.mouse.down()
        page.mouse.move(left + 30 + random.random() * 60, box["y"] + 120, steps=3)
        page.mouse.up()
        page.wait_for_function(f"{data}.zoomed", timeout=30_000)
        taken.append(float(page.evaluate(f"{data}.zoomed")))
        page.evaluate(f"delete {data}.zoomed")
        page.keyboard.press("0")
        page.wait_for_function(f"{data}.zoomed", timeout=30_000)
    return taken


def told(name: str, taken: Sequence[float], unit: str, goal: str) -> None:
    """Print a median and a 95th percentile."""
    p95 = statistics.quantiles(taken, n=20)[-1]
    print(f"{name:42} p50 {statistics.median(taken):.3g} {unit}, p95 {p95:.3g} {unit}, max {max(taken):.3g} {goal}")


def main() -> None:
    """Measure and print."""
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    random.seed(0)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        files = make_project(root := Path(folder))
        compared = [make_run(root / "runs", f"lr_{n}", rows(METRICS[:6], 0, 2000)) for n in range(NUM_COMPARED)]
        make_run(root / "runs", "long", rows(METRICS[:4] + METRICS[-1:], 0, 1_000_000))
        with running_lab(root / "home", root) as lab, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
            long = open_notebook(browser, lab, "zooms", "nt.LivePlot('2026-01-31_142233_long')")
            told("zoom of 1,000,000 rows x 5", measure_zooms(long.page), "ms", "(<= 120)")
            several = open_notebook(browser, lab, "frames", "nt.compare('*_lr_*', metrics=['*'])", COMPUTES)
            for kernel, taken in measure_frames(several, compared).items():
                told(f"a frame with a move, {kernel}", taken, "ms", "(<= 16)")
            growing = open_notebook(browser, lab, "row", "nt.LivePlot('2026-01-31_142233_bench')")
            told("written row to pixel", measure_rows(growing.page, files, num_rows), "s", "(<= 2)")
            browser.close()


if __name__ == "__main__":
    main()
