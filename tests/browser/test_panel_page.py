"""Panels as a person meets them: beside a busy cell, after an absence, in the queue, after restarts and failures."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pages import eventually, see, show

from nbtools.metrics.writer import MetricWriter
from nbtools.rundir import media
from nbtools.rundir.json_files import write_json
from nbtools.rundir.requests.events import Event, append_events
from nbtools.rundir.rundir import RunDir

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.promise("safety-page")
def test_a_panel_without_kernel_is_a_picture_and_a_sentence(fresh_notebook: Any, record: Any) -> None:
    notebook = fresh_notebook  # the next test would meet the late error of a view without its model
    run, now = record("goes_on"), time.time()
    run.train(5, 600, now - 2500)
    often = "from nbtools.notebook.plots import chart_view\nchart_view.RENDER_EVERY_S = 2.0  # instead of a minute"
    panel = notebook.run("no_kernel.ipynb", f"import nbtools as nt\n{often}\nnt.LivePlot({run.files.id!r})")
    sentence, path = "Training was not affected", notebook.lab.project / "notebooks" / "no_kernel.ipynb"
    panel.get_by_role("button", name="Stop").wait_for()
    eventually(lambda: picture_in(notebook) is not None, "the output has a static picture")
    assert_live_curves(panel)
    assert not panel.get_by_text(sentence).is_visible()
    notebook.shoot("live", panel)
    first, size = picture_in(notebook), 0
    for last in (800, 1000):  # the static picture follows, and replaces the earlier one
        run.train(last - 195, last, now - 1500)
        before = picture_in(notebook)
        eventually(lambda before=before: picture_in(notebook) != before, "the static picture is renewed")
        notebook.command("docmanager:save")
        size = size or path.stat().st_size
    assert picture_in(notebook) != first
    assert path.stat().st_size < 1.2 * size
    assert panel.get_by_role("button", name="Stop").is_visible()

    notebook.restart_kernel()
    assert_without_kernel(panel, sentence, "step 1,000 of 2,000")
    notebook.shoot("after-restart", panel)

    notebook.reload()  # a notebook that was saved during the run, with a kernel that knows nothing of it
    panel = notebook.output(0)
    assert_without_kernel(panel, sentence, "step 1,000 of 2,000")
    notebook.shoot("reopened", panel)

    notebook.run_cell(0)
    panel = notebook.output(0)
    panel.get_by_role("button", name="Stop").wait_for()
    assert_live_curves(panel)
    run.end()
    see(panel, "Succeeded")
    assert panel.get_by_role("button", name="Resume").is_visible()
    assert_live_curves(panel)
    note = "For the controls, run"  # the outputs of the end are drawn after the words in the widgets
    eventually(lambda: note in str(stored(notebook, "text/html")), "the outputs are those of a run that has ended")
    notebook.command("docmanager:save")
    notebook.restart_kernel()
    assert_without_kernel(panel, note, "Succeeded")
    notebook.shoot("ended-restart", panel)
    notebook.reload()
    assert_without_kernel(notebook.output(0), note, "Succeeded")
    notebook.shoot("ended-reopened", notebook.output(0))


def stored(notebook: Any, kind: str) -> list[Any]:
    """What is of a kind in the first cell's outputs, as the notebook would be saved now."""
    read = """kind => {
      const cell = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells[0];
      return cell.toJSON().outputs.map(output => output.data?.[kind]).filter(Boolean);
    }"""
    return list(notebook.page.evaluate(read, kind))


def picture_in(notebook: Any) -> str | None:
    """The static picture among these outputs, if there is one and no other."""
    pictures = stored(notebook, "image/png")
    return str(pictures[0]) if len(pictures) == 1 else None


def assert_live_curves(panel: Any) -> None:
    """Assert that the page draws the curves, and shows no picture of them beside."""
    panel.locator(".nbt-chart").first.wait_for()
    assert panel.locator("img:visible").count() == 0


def assert_one_picture(panel: Any) -> None:
    images = panel.locator("img:visible, .jupyter-widgets img:visible")
    images.first.wait_for()
    assert images.count() == 1


def assert_without_kernel(panel: Any, sentence: str, words: str) -> None:
    """Assert that a panel shows its picture and one sentence, and nothing that looks broken."""
    see(panel, sentence)
    see(panel, words)
    assert panel.get_by_text(sentence).count() == 1
    assert_one_picture(panel)
    assert panel.get_by_text("Error displaying widget").locator("visible=true").count() == 0
    assert panel.locator(".jupyter-widgets-disconnected:visible").count() == 0
    assert panel.locator("button:visible, input:visible").count() == 0


# --- text that would rather be something else ---

HOSTILE = "<img src=x onerror=window.__pwned=1>\"'><script>window.__pwned=2</script>$\\frac{1}{0}$"
# Text nodes that MathJax, in JupyterLab and in an exported page, would take for a formula.
FORMULAS = """() => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const skipped = 'pre, code, textarea, script, style, .tex2jax_ignore.mathjax_ignore';
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.data.includes('\\\\frac') && !node.parentElement.closest(skipped)) found.push(node.data);
  }
  return found;
}"""


def test_what_a_training_shows_can_be_played_and_stays(notebook: Any, record: Any) -> None:
    run, now = record("shows"), time.time()
    run.train(5, 400, started=now - 400, every_s=1.0)
    text = "to be, or not to be: that is the question"
    order = [(7 * place) % len(text) for place in range(len(text))]
    states = [
        "".join(c if order[place] < known else "\N{LIGHT SHADE}" for place, c in enumerate(text))
        for known in range(len(text) + 1)
    ]
    folder = run.files.media
    media.append(folder, "unmasked", 400, media.frames("A text being unmasked", states))
    mistakes = [
        [f"smith and farmer {number}", "83110 61110", "83110", f"{0.99 - number / 50:.2f}"] for number in range(25)
    ]
    columns = ["text", "true", "predicted", "confidence"]
    media.append(folder, "mistakes", 400, media.table("The worst mistakes", columns, mistakes))
    media.append(folder, "sample", 400, media.text("A sample", "once upon a time there was\na loss that fell"))
    returns = {
        "unseen goals": [0.4 * x**0.8 for x in range(32)],
        "context cleared": [0.8 + 0.01 * x for x in range(32)],
    }
    labels = {"x_label": "episode", "y_label": "return"}
    media.append(folder, "returns", 400, media.series("Return by episode", list(range(32)), returns, **labels))
    panel = show(notebook, "shows.ipynb", run.files)
    see(panel, "smith and farmer 19")
    assert panel.get_by_text("smith and farmer 20").count() == 0
    see(panel, "and 5 more rows")
    notebook.shoot("media", panel)

    def state() -> int:
        slider = panel.locator(".widget-hslider", has_text="Frame")
        return int(slider.locator(".widget-readout").inner_text())

    assert state() == len(text)
    masked = "\N{LIGHT SHADE}"
    # Play from the first state: the button of ipywidgets' Play begins at its minimum once it has reached its end.
    panel.locator(".widget-play button").first.click()
    eventually(lambda: 0 < state() < len(text), "the states go by")
    eventually(lambda: panel.get_by_text(masked, exact=False).count() > 0, "a state with masks is shown")
    eventually(lambda: state() == len(text), "it plays to the end")
    run.end()
    see(panel, "Succeeded")
    eventually(lambda: panel.locator("details[open] img").count() == 1, "the static outputs have it")
    panel.get_by_role("tab", name="Samples").wait_for()  # which the widgets cover
    see(panel, "smith and farmer 19")
    assert panel.locator(".widget-play").locator("visible=true").count() == 1, "what can be played still can"
    notebook.shoot("media-ended", panel)
    assert notebook.mistakes == []


@pytest.mark.promise("fault-32")
def test_hostile_text_is_literal_on_the_page_and_exported(notebook: Any, browser: Any, tmp_path: Path) -> None:
    in_a_name = HOSTILE.replace("/", "∕")
    run = RunDir.create(notebook.lab.project / "runs", in_a_name)
    parent = {"run": HOSTILE, "step": 1}
    launch = {"name": HOSTILE, "script": f"/{HOSTILE}.py", "recipe": None, "args": [], "time": time.time()}
    write_json(run.launch, {**launch, "resumed_from": parent})
    failure: dict[str, Any] = {"rank": 0, "exitcode": 1, "step": 2, "loss": 1.0}
    failure |= dict.fromkeys(("host", "signal", "message", "traceback", "where", "advice"), HOSTILE)
    failure["others"] = [{"rank": 1, "exitcode": 1, "signal": HOSTILE, "message": HOSTILE}]
    write_json(run.finished, {"why": "failed", "step": 2, "metrics": {}, "failure": failure, "time": time.time()})
    line = {"format": 1, "attempt": 1, "time": time.time(), "failure": failure, "checkpoint": HOSTILE}
    run.attempts.write_text(json.dumps(line) + "\n")
    beat = {"rank": 0, "pid": 1, "host": HOSTILE, "step": 2, "phase": HOSTILE, "time": time.time()}
    write_json(run.heartbeat(0), beat)
    run.log.write_text(f"before\n{HOSTILE}\n\x1b[31m{HOSTILE}\x1b[0m\nwarning: {HOSTILE}\nlast line\n")
    append_events(run, [Event(HOSTILE, 1, 1.0, HOSTILE, field=HOSTILE, before=HOSTILE, after=HOSTILE)])
    write_json(run.controls, {"actions": [HOSTILE, "save"], "values": {HOSTILE: HOSTILE}})
    with MetricWriter(run.metrics) as writer:
        for step in (1, 2):
            writer.write(step, {"train/loss": 1.0, HOSTILE: float("nan")})

    shown = f"import nbtools as nt\nrun = nt.Run({str(run.path)!r})\nnt.LivePlot(run)"
    path = notebook.lab.write_notebook("hostile.ipynb", shown, "run", "nt.runs()", "nt.LivePlot(run).widget")
    page = notebook.page
    page.on("dialog", lambda dialog: notebook.mistakes.append(f"dialog: {dialog.message}"))
    try:
        notebook.open(path)
        for index in range(4):
            notebook.run_cell(index)
            see(notebook.output(index), "window.__pwned")
        see(notebook.output(0), "last line")
        page.wait_for_timeout(500)
        assert_literal(page)
        for index in (0, 3):
            assert notebook.output(index).get_by_text(HOSTILE).count() >= 5
        notebook.shoot("hostile", notebook.output(0))
        notebook.command("docmanager:save")
        assert notebook.mistakes == []
    finally:
        shutil.rmtree(run.path)

    export(notebook.lab.project / path, tmp_path)
    context = browser.new_context()
    try:
        exported = context.new_page()
        dialogs: list[str] = []
        exported.on("dialog", lambda dialog: dialogs.append(dialog.message))
        exported.goto((tmp_path / "exported.html").as_uri(), wait_until="domcontentloaded")
        see(exported, "window.__pwned")
        exported.wait_for_timeout(500)
        assert exported.get_by_text("window.__pwned").count() >= 5
        assert_literal(exported)
        assert dialogs == []
    finally:
        context.close()


def assert_literal(page: Any) -> None:
    assert page.evaluate("() => window.__pwned") is None and page.locator("img[src='x']").count() == 0
    assert page.locator("mjx-container, .MathJax, .MathJax_Preview").count() == 0
    assert page.evaluate(FORMULAS) == []


def export(notebook: Path, folder: Path) -> None:
    """What `jupyter nbconvert --to html` makes of a notebook as it was saved."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "nbconvert", "--to", "html", str(notebook)),
            *("--output-dir", str(folder), "--output", "exported"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
