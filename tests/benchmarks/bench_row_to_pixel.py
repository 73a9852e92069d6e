"""Seconds from a written metric row to the changed picture in a real JupyterLab in headless Chromium.

Each row is written alone, at a random moment of the panel's clock, into a run that is alive; the page notes when the
picture that followed was decoded. Needs Playwright and a Chromium (`apt-get install chromium`).

    python tests/benchmarks/bench_row_to_pixel.py [number of rows]
"""

import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import sync_playwright

from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir

RUN_ID = "2026-01-31_142233_bench"
READY = """async () => {
  const widget = window.jupyterapp?.shell.currentWidget;
  if (!widget?.sessionContext) return false;
  await widget.sessionContext.ready;
  const kernel = widget.sessionContext.session?.kernel;
  return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
LISTEN = """() => {
  window.loads = [];
  const listen = image => image.addEventListener('load', () => window.loads.push(Date.now() / 1000));
  document.querySelectorAll('.jp-OutputArea img').forEach(listen);
  return document.querySelectorAll('.jp-OutputArea img').length;
}"""
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]


def make_project(root: Path) -> RunDir:
    """A project with one live run of 1,000 rows and a notebook that shows it."""
    for folder in ("scripts", "notebooks", "runs"):
        (root / folder).mkdir()
    (root / "pyproject.toml").touch()
    files = RunDir(root / "runs" / RUN_ID)
    files.ranks.mkdir(parents=True)
    files.checkpoints.mkdir()
    write_json(files.launch, {"name": "bench", "recipe": "mlm_pretraining", "script": "bench.py", "time": time.time()})
    write_json(files.config, {"derived": {"total_steps": 10_000}})
    files.log.write_text("started\n")
    assert acquire_lock(files.lock) is not None
    with files.metrics.open("w") as file:
        file.writelines(row(step) for step in range(1000))
    cell = nbformat.v4.new_code_cell(f"import nbtools as nt\nnt.LivePlot({RUN_ID!r})")
    notebook = nbformat.v4.new_notebook(cells=[cell])
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(notebook, root / "notebooks" / "bench.ipynb")
    return files


def row(step: int) -> str:
    """One row of a loss with some noise."""
    loss = 2 + 5 / (10 + step) ** 0.5 + random.random() / 10
    return json.dumps({"step": step, "time": time.time(), "train/loss": loss, "train/grad_norm": loss / 3}) + "\n"


@contextlib.contextmanager
def jupyter_lab(root: Path) -> Iterator[str]:
    """A server on that project; yields the notebook's address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"]
    command += [f"--port={port}", f"--ServerApp.root_dir={root}", "--IdentityProvider.token=bench"]
    settings = root / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(root / "settings")}
    with (root / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            base = f"http://127.0.0.1:{port}"
            for _ in range(240):
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"{base}/api?token=bench")
                    break
                time.sleep(0.25)
            yield f"{base}/lab/tree/notebooks/bench.ipynb?token=bench&reset"
        finally:
            server.terminate()
            server.wait(30)


def measure(page: Any, files: RunDir, num_rows: int) -> list[float]:
    """Seconds from row to picture, one value per row."""
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    page.wait_for_function(READY, timeout=60_000)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.locator(".jp-OutputArea img").first.wait_for(timeout=60_000)
    page.wait_for_timeout(3000)
    assert page.evaluate(LISTEN) == 1
    taken = []
    for step in range(1000, 1000 + num_rows):
        page.wait_for_timeout(1300 + random.random() * 1000)
        seen = page.evaluate("() => window.loads.length")
        with files.metrics.open("a") as file:
            file.write(row(step))
        written = time.time()
        page.wait_for_function("seen => window.loads.length > seen", arg=seen, timeout=30_000, polling=20)
        taken.append(page.evaluate("seen => window.loads[seen]", seen) - written)
    return taken


def main() -> None:
    """Measure and print."""
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    random.seed(0)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        files = make_project(Path(folder))
        with jupyter_lab(Path(folder)) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.goto(address)
            taken = measure(page, files, num_rows)
            browser.close()
    p50, p95 = statistics.median(taken), statistics.quantiles(taken, n=20)[-1]
    print(
        f"written row to pixel, {num_rows} rows: p50 {p50:.2f} s, p95 {p95:.2f} s, max {max(taken):.2f} s (p95 <= 2 s)"
    )


if __name__ == "__main__":
    main()
