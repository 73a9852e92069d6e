"""`nt.compare` in a real JupyterLab: hover, zoom and split of several runs, and the page without a kernel."""

import math
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pages import look_in_the_dark
from run_folder import RunFolder

from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def runs(lab: Any) -> Iterator[list[RunDir]]:
    """Twelve ended runs with different learning rates, on one or two processes."""
    found = []
    for number in range(12):
        nproc, changed = 1 + number % 2, 2 * (number == 3)
        code = {"commit": "a" * 40, "lines": changed, "sha256": "b" * 64}
        more = {"launch": {"nproc_per_node": nproc}, "versions": {"torch": "2.6"}, "code": code}
        run = RunDir(lab.project / "runs" / f"2026-02-01_0000{number:02}_lr_{number}")
        folder = RunFolder(run, 1.7e9, name=f"lr_{number}", **more)
        run.lock.touch()
        values = {"learning_rate": round(10 ** (-2 - number / 6), 6), "batch_size": 16}
        write_json(run.config, {"config": values, "derived": {"total_steps": 400}})
        for step in range(1, 401):
            loss = 2 + 5 * math.exp(-step * (3 + number) / 400) + 0.1 * math.sin(step * (number + 1))
            row = {"step": step, "time": 1.7e9 + step / nproc, "samples": 16 * step * nproc, "train/loss": loss}
            row |= {"eval/loss": loss + 0.2} if step % 20 == 0 else {}
            row |= {"train/learning_rate": values["learning_rate"] * (1 - step / 400), "train/grad_norm": 1.0}
            folder.write([row])
        run.script.write_text(f"first = 1\nlast = {number // 11}\n")
        run.source.write_text("@@ -1 +1 @@\n-print(1)\n+print(2)\n" * (number == 3))
        write_json(run.finished, {"why": "completed", "step": 400, "metrics": {}})
        found.append(run)
    yield found
    for run in found:
        shutil.rmtree(run.path, ignore_errors=True)


@pytest.mark.promise("compare-runs")
def test_compared_runs_are_zoomed_and_split(notebook: Any, runs: list[RunDir], eventually: Callable[..., Any]) -> None:
    output = notebook.run("compare.ipynb", "import nbtools as nt\nshown = nt.compare('lr_*')\nshown")
    page = notebook.page
    output.locator(".nbt-chart canvas").first.wait_for()
    legend = output.locator(".nbt-runs")
    legend.get_by_text("lr_11").wait_for()
    assert output.get_by_text("What differs").locator("visible=true").count() == 1
    assert output.get_by_text("Scaling", exact=True).locator("visible=true").count() == 1
    assert output.locator("img:visible").count() == 0, "the picture is hidden while the canvas is live"
    notebook.shoot("compare", output)
    look_in_the_dark(notebook, output, "compare")

    box = output.locator(".nbt-chart canvas").first.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    output.locator(".nbt-tip").get_by_text("lr_", exact=False).first.wait_for()
    page.mouse.move(box["x"] + 200, middle[1])
    page.mouse.down()
    page.mouse.move(box["x"] + 300, middle[1], steps=5)
    page.mouse.up()
    output.locator(".nbt-chip").wait_for()
    page.mouse.dblclick(*middle)
    eventually(lambda: not output.locator(".nbt-chip").is_visible(), "a double click shows all")

    output.get_by_label("Split by").select_option("launch.nproc_per_node")
    output.locator(".nbt-title", has_text="nproc_per_node 2").first.wait_for()
    notebook.shoot("compare-split", output)
    assert notebook.mistakes == []

    notebook.command("docmanager:save")
    notebook.restart_kernel()
    eventually(lambda: output.locator("img:visible").count() == 1, "the stored picture is shown without the widgets")
    assert output.get_by_text("What differs").locator("visible=true").count() == 1
