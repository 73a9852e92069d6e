"""The board of `nt.runs()` and `nt.compare` in a real JupyterLab, by pointer and by keys."""

import random
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pages import eventually, find_nothing_serious, look_in_the_dark
from run_folder import RunFolder

from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def make(runs: Path, number: int, name: str, why: str = "completed", **changed: Any) -> RunDir:
    """Write an ended run with a curve that depends on its number."""
    run, at = RunDir(runs / f"2026-01-{number + 1:02d}_120000_{name}"), time.time() - 86400 * (30 - number)
    folder = RunFolder(run, at, name=name, script=f"/p/{name}.py")
    run.lock.touch()
    config = RECIPES["mlm_pretraining"].preset("cpu_demo")[0].model_dump(mode="json") | changed
    write_json(run.config, {"recipe": "mlm_pretraining", "config": config, "derived": {"total_steps": 400}})
    noise = random.Random(number)
    for step in range(10, 401, 10):
        row = {"step": step, "time": at + step, "train/loss": 2 + 4 / step**0.3 + noise.random() / 5}
        folder.write([row | ({"eval/loss": 2.2 + (4 + number / 9) / step**0.3} if step % 50 == 0 else {})])
    run.script.write_text(f"first = 1\nlast = {number // 13}\n")
    write_json(run.finished, {"why": why, "step": 400, "metrics": {}, "time": at + 400})
    folder.end(int(why == "failed"), stopped=why == "stopped", at=at + 400)
    return run


@pytest.fixture
def made(lab: Any) -> Any:
    """Runs of names of their own: the project is that of all browser tests."""
    runs = lab.project / "runs"
    found = [make(runs, number, "a_base") for number in range(11)]
    found.append(make(runs, 11, "a_lr_high", "failed", learning_rate=0.01))
    found.append(make(runs, 12, "a_lr_low", learning_rate=0.0001, seed=3))
    found.append(make(runs, 13, "a_wide", "stopped", hidden_size=96))
    yield found
    (runs / "board.json").unlink(missing_ok=True)
    for run in found:
        shutil.rmtree(run.path, ignore_errors=True)


WITHOUT_NAME = re.compile(r"- (button|checkbox|combobox|textbox|searchbox|region):?$", re.MULTILINE)


@pytest.mark.promise("runs-table")
@pytest.mark.promise("compare-runs")
def test_the_board_sorts_groups_labels_opens_deletes_and_is_stored(notebook: Any, made: list[RunDir]) -> None:
    notebook.page.set_viewport_size({"width": 1600, "height": 1300})
    board = notebook.run("board.ipynb", "import nbtools as nt\nnt.runs(name='a_*')")
    board.get_by_text("1 to 12 of 14 runs").locator("visible=true").wait_for()
    eventually(lambda: board.locator("td svg polyline:visible").count() == 12, "the curves fill in behind")
    board.locator(".nbt-chart canvas").first.wait_for()
    board.get_by_text("What differs").locator("visible=true").wait_for()
    assert "of 400" in board.inner_text()
    assert WITHOUT_NAME.findall(board.aria_snapshot()) == [], "every control has a name"
    notebook.shoot("board", board)
    look_in_the_dark(notebook, board, "board")

    def pointed() -> tuple[float, float] | None:
        """Point at the first chart, which moves while the page is laid out again; return where, once it has a tip."""
        place = board.locator(".nbt-chart canvas").first.bounding_box()
        x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
        notebook.page.mouse.move(0, 0)  # a move to where the pointer is already is none
        notebook.page.mouse.move(x, y)
        return (x, y) if board.locator(".nbt-tip > div:visible").count() == 10 else None

    x, y = eventually(pointed, "the values of all runs")
    notebook.page.mouse.down()
    notebook.page.mouse.move(x + 90, y, steps=5)
    notebook.page.mouse.up()
    board.locator(".nbt-chip").wait_for()
    board.locator(".nbt-chart canvas + canvas").first.press("0")
    board.locator(".nbt-chip").wait_for(state="hidden")

    head = board.get_by_role("columnheader", name="Sort by best", exact=True)
    head.get_by_role("button").press("Enter")
    eventually(lambda: names(board)[:2] == ["a_base", "a_base"], "the best runs are first")
    assert head.get_attribute("aria-sort") == "ascending"
    assert head.get_by_role("button").evaluate("button => button === document.activeElement"), "the focus stays"
    columns = board.get_by_placeholder("add column")
    columns.press_sequentially("learning_rate")
    columns.press("Tab")
    board.get_by_role("columnheader", name="Sort by learning_rate").get_by_role("button").click()
    eventually(lambda: names(board)[0] == "a_lr_low", "any field sorts")

    legend = board.locator(".nbt-runs")
    assert "a_wide" in legend.inner_text()
    board.get_by_role("button", name=f"Curves of a_wide {made[-1].id}").press("Space")
    eventually(lambda: "a_wide" not in legend.inner_text(), "its curves are hidden")
    board.get_by_label("Group by").select_option("learning_rate")
    eventually(lambda: "learning_rate 0.003 · 7 runs" in legend.inner_text(), "the mean of the drawn runs of a group")
    assert legend.locator(".nbt-entry").count() == 3
    notebook.shoot("board-groups", board)
    board.get_by_role("button", name="learning_rate 0.003 · 12 runs", exact=True).click()
    eventually(lambda: legend.locator(".nbt-entry").count() == 9, "each run of an opened group")
    board.get_by_role("button", name="Curves of learning_rate 0.003 · 12 runs").click()
    board.get_by_label("Scatter of").select_option("best eval/loss")
    board.get_by_label("over", exact=True).select_option("learning_rate")
    # The stored outputs, which the page hides, have the same text once they are renewed.
    board.get_by_text("best eval/loss over learning_rate, 14 of 14 runs").locator("visible=true").wait_for()
    point = board.locator(".nbt-scatter").get_by_role("button", name="a_lr_low").first
    assert point.get_attribute("aria-pressed") == "true"
    point.press("Enter")
    eventually(lambda: point.get_attribute("aria-pressed") == "false", "a point hides its run")
    notebook.shoot("board-grouped", board)
    point.press("Enter")
    eventually(lambda: point.get_attribute("aria-pressed") == "true", "and shows it again")
    board.get_by_label("Group by").select_option("nothing")
    board.get_by_label("Split by").select_option("seed")
    board.locator(".nbt-title", has_text="seed 3").first.wait_for()

    box = board.get_by_placeholder("name, tag, state, drawn, recipe, note")
    box.fill("lr_")
    board.get_by_text("1 to 2 of 2 runs").locator("visible=true").wait_for()
    board.get_by_role("checkbox", name="Choose a_lr_low").press("Space")
    board.get_by_placeholder("the script's").fill("good")
    board.get_by_placeholder("a, b").fill("sweep, keep")
    board.get_by_placeholder("a, b").press("Tab")
    board.get_by_text("Saved: the tags of ").wait_for()
    labelled = next(run for run in made if run.labels.exists())
    content = read_json(labelled.labels)
    assert content is not None and (content["name"], content["tags"]) == ("good", ["sweep", "keep"])
    board.get_by_role("button", name="Open").click()
    board.get_by_role("tab", name="Checkpoints").wait_for()
    board.get_by_role("button", name="Delete…").click()
    board.get_by_text("what is deleted cannot be restored").wait_for()
    board.get_by_role("button", name="Delete 1 run").click()
    assert labelled.path.exists()
    board.get_by_role("button", name="Yes, delete for ever").click()
    board.get_by_text("Removed 1 item").wait_for()
    assert not labelled.path.exists()
    assert notebook.mistakes == []
    assert not board.locator("img, .nbtools-panel-note").locator("visible=true").count(), "nothing is there twice"

    again = notebook.output(notebook.append("nt.compare('a_lr_high', 'a_wide')"))
    again.get_by_text("1 to 2 of 2 runs").locator("visible=true").wait_for()
    again.get_by_role("columnheader", name="Sort by learning_rate").wait_for()  # the layout of the first board
    again.get_by_text("Script of a_wide against that of a_lr_high").locator("visible=true").wait_for()
    again.get_by_placeholder("name, tag, state, drawn, recipe, note").fill("a_")
    again.get_by_text("1 to 12 of 13 runs").locator("visible=true").wait_for()
    find_nothing_serious(notebook, "table and comparison", "label", "aria-input-field-name")
    notebook.command("docmanager:save")
    notebook.restart_kernel()
    eventually(lambda: again.locator("img:visible").count() == 1, "the stored picture takes the place of the widgets")
    assert not again.get_by_role("button", name="Open").is_visible()
    assert again.get_by_text("What differs").locator("visible=true").count() == 1


def names(board: Any) -> list[str]:
    return [text for text in board.locator(".nbt-board:visible b").all_inner_texts() if text]
