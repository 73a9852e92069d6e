"""A real run in a dark page: its stacks, a stop beside a busy cell, and the header's height."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import see

from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import read_heartbeats

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PROGRAMS = Path(__file__).parents[1] / "programs"


def test_a_run_in_a_dark_page_shows_stacks_stops_and_is_launched_again(notebook: Any, eventually: Any) -> None:
    project, page = notebook.lab.project, notebook.page
    page.set_viewport_size({"width": 900, "height": 1300})
    shutil.copy(PROGRAMS / "fake_trainer.py", project / "scripts" / "pressed.py")
    options = "nproc_per_node=2, gpus=(), args=['--steps', '1000000']"
    source = f"import nbtools as nt\nrun = nt.launch('scripts/pressed.py', {options})"
    go_on = project / "go-on"
    blocking = (
        f"import pathlib, time\nwhile not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.1)\nprint('gone on')"
    )
    notebook.open(notebook.lab.write_notebook("pressed.ipynb", source, "nt.LivePlot(run)", blocking))
    notebook.theme("Dark")
    notebook.run_cell(0)
    run = Run(Project(project).runs / next(folder.name for folder in (project / "runs").glob("*_pressed")))
    eventually(lambda: [beat.step >= 5 for beat in read_heartbeats(run.files)] == [True, True], "both ranks train")
    notebook.run_cell(1)
    panel = notebook.output(1)
    panel.locator(".nbt-chart").first.wait_for()

    def top() -> float:
        return float(panel.locator(".nbt-kinds").bounding_box()["y"] - panel.bounding_box()["y"])

    def press(name: str) -> None:
        panel.get_by_role("button", name=name).locator("visible=true").first.click()

    press("Menu")
    press("Stacks")
    panel.get_by_label("stacks of the ranks").get_by_text("rank 1 (pid").wait_for()
    see(panel, "of 2 ranks at")
    panel.locator(".nbt-filter").fill("nothing*")
    see(panel, "No chart is open: the filter is nothing*")
    is_running = notebook.start_cell(2)
    panel = notebook.output(1)
    press("Stop")
    see(panel, "on request")
    see(panel, "stopped at step")
    assert run.state is RunState.STOPPED
    assert is_running.count() == 1, "the kernel is still blocked by its cell"
    go_on.touch()
    see(notebook.output(2), "gone on")
    panel = notebook.output(1)
    press("Launch again")
    see(panel, f"Launched again after {run.id}")
    panel.locator(".nbt-filter").fill("")
    panel.locator(".nbt-chart").first.wait_for()
    press("Menu")
    panel.get_by_role("button", name="Stacks").locator("visible=true").wait_for(state="hidden")
    running = top()

    # stopped in the board, which explains why this program cannot be resumed
    table = notebook.output(notebook.append("nt.runs(name='pressed')"))
    see(table, "1 to 2 of 2 runs")
    table.locator(".widget-html .nbt-board").wait_for(state="detached")  # a list without its script takes no tick
    table.locator("input[type=checkbox]:visible").first.click()  # the kernel ticks it, perhaps after another refresh
    table.locator("input[type=checkbox]:checked:visible").first.wait_for()
    table.get_by_role("button", name="Stop").locator("visible=true").first.click()
    see(table, "pressed: stopped at step")
    table.get_by_role("button", name="Resume").locator("visible=true").first.click()
    see(table, "no checkpoint to resume from")
    notebook.output(1)
    see(panel, "on request")
    panel.get_by_role("button", name="Resume").locator("visible=true").wait_for()
    assert top() == running, "the header has the height that it had"
    assert notebook.mistakes == []
