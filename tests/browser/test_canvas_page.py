"""The live canvas in JupyterLab: pointer, keys, a save, a busy kernel, and one that restarts."""

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from pages import eventually

from nbtools.rundir.rundir import RunDir

pytestmark = [pytest.mark.browser, pytest.mark.slow]

NUM_STEPS = 5_000
DATA = "() => document.querySelector('.nbt-canvas')?.parentElement.dataset ?? {}"


class Canvas:
    """The canvas of a panel in a page."""

    def __init__(self, notebook: Any, panel: Any) -> None:
        self.page, self.panel = notebook.page, panel
        panel.locator(".nbt-chart canvas[role=img]").first.wait_for()
        eventually(lambda: self.data("version"), "the canvas is drawn")

    def data(self, name: str) -> str:
        return str(self.page.evaluate(DATA).get(name, ""))

    def chart(self, title: str) -> Any:
        return self.panel.locator(".nbt-chart", has=self.page.locator(".nbt-title", has_text=re.compile(f"^{title}$")))

    def point(self, share: float, title: str = "Loss") -> None:
        upper = self.chart(title).locator("canvas[role=img]")
        upper.scroll_into_view_if_needed()
        box = upper.bounding_box()
        self.page.mouse.move(box["x"] + 56 + share * (box["width"] - 72), box["y"] + 120)

    def says(self, pattern: str) -> str:
        return str(eventually(lambda: re.search(pattern, self.data("tip")) and self.data("tip"), f"tip: {pattern}"))

    def chip(self) -> str:
        return str(self.panel.locator(".nbt-chip").inner_text())


@pytest.fixture
def run(record: Callable[..., Any]) -> RunDir:
    """A run that is alive, with metrics in six groups."""
    files: RunDir = record("canvas").files
    append(files, 0, NUM_STEPS)
    return files


def append(files: RunDir, first: int, last: int) -> None:
    """Write rows as a training does."""
    with files.metrics.open("a") as file:
        for step in range(first, last):
            loss = 2 + 5 / (1 + step / 200) + ((step * 7919) % 13 - 6) / 40
            row = {"step": step, "time": 1.7e9 + step, "train/loss": loss, "train/grad_norm": 1 + loss / 9}
            row |= {"train/learning_rate": 1e-3, "train/tokens_per_s": 21_000 + step % 70, "train/weight_norm": loss}
            if step % 500 == 0:
                row |= {"eval/loss": loss + 0.1, "eval/accuracy": step / NUM_STEPS}
            file.write(json.dumps(row) + "\n")


def test_a_page_without_anywidget_has_a_picture_that_grows(fresh_notebook: Any, run: RunDir) -> None:
    notebook, page, asked = fresh_notebook, fresh_notebook.page, []
    page.on("request", lambda request: asked.append("/extensions/anywidget/" in request.url))
    page.route("**/extensions/anywidget/**", lambda route: route.fulfill(status=404))
    notebook.run("picture.ipynb", "import nbtools as nt", f"nt.LivePlot({run.id!r})")
    notebook.run_cell(1)  # returns when the cell has ended
    output, ended = notebook.output(1), time.monotonic()
    assert any(asked)
    picture = output.locator("img:visible").first
    picture.wait_for()
    assert time.monotonic() - ended <= 30
    first = picture.get_attribute("src")
    append(run, NUM_STEPS, NUM_STEPS + 500)
    eventually(lambda: picture.get_attribute("src") != first, "the picture grows")
    assert output.locator("img:visible").count() == 1 and output.locator(".nbt-canvas").count() == 0
    assert not page.get_by_text("Failed to load model class").locator("visible=true").count()
    assert not page.get_by_text("Error creating widget").locator("visible=true").count()


def test_the_canvas_in_jupyterlab(notebook: Any, run: RunDir) -> None:
    requests: list[str] = []
    notebook.page.set_viewport_size({"width": 1100, "height": 1400})
    notebook.page.on("request", lambda request: requests.append(request.url))
    blocking = "import time\nwhile not __import__('pathlib').Path('free').exists(): time.sleep(0.05)"
    cells = f"import nbtools as nt\nnt.LivePlot({run.id!r})", blocking
    canvas = Canvas(notebook, notebook.run("canvas.ipynb", *cells))

    # hover: every chart tells its values
    canvas.point(0.5)
    canvas.says(r"^Loss, step [\d,]+ · mean of \d+ steps: train \S+ \[\S+, \S+\], eval")
    assert canvas.panel.locator(".nbt-tip").is_visible()

    # drag: exact values once every step has a column
    canvas.point(0.50)
    notebook.page.mouse.down()
    canvas.point(0.52)
    canvas.point(0.54)
    notebook.page.mouse.up()
    eventually(lambda: canvas.data("zoomed"), "the kernel answers the zoom")
    assert re.fullmatch(r"zoomed [\d,]+–[\d,]+ ✕", canvas.chip())
    canvas.point(0.3)
    assert "mean of" not in canvas.says(r"^Loss, step [\d,]+: train \d")
    span = canvas.chip()
    append(run, NUM_STEPS, NUM_STEPS + 500)
    version = canvas.data("version")
    eventually(lambda: canvas.data("version") != version, "rows arrive")
    assert canvas.chip() == span, "the span stays where it is"

    # a save: the picture of that moment, not of the last minute
    stored = "() => jupyterapp.shell.currentWidget.content.model.cells.get(0).outputs.toJSON()[1].data['image/png']"
    before = notebook.page.evaluate(stored)
    notebook.page.keyboard.press("Control+s")
    eventually(lambda: notebook.page.evaluate(stored) != before, "the stored picture is renewed", 20)

    # keys: the notebook does not take them
    canvas.chart("Loss").locator("canvas[role=img]").focus()
    for key in ("0", "0"):
        notebook.page.keyboard.press(key)
    eventually(lambda: not canvas.panel.locator(".nbt-chip").is_visible(), "all is shown")
    assert notebook.page.locator(".jp-Dialog").count() == 0
    notebook.shoot("canvas", canvas.panel)

    # a busy kernel: pointer and zoom still answer
    notebook.start_cell(1)
    canvas.point(0.5)
    canvas.says("^Loss, step")
    before = canvas.data("zoomed")
    notebook.page.mouse.down()
    canvas.point(0.6)
    canvas.point(0.7)
    notebook.page.mouse.up()
    eventually(lambda: canvas.data("zoomed") != before, "a busy kernel answers the zoom")
    (notebook.lab.project / "notebooks" / "free").touch()

    # a restart of the kernel raises no error in the page
    notebook.restart_kernel()
    notebook.output(0).locator("visible=true").first.wait_for()
    assert notebook.mistakes == []
    outside = [url for url in requests if not url.startswith((notebook.lab.url, "data:", "blob:", "ws"))]
    assert outside == []
