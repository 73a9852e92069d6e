"""A program of the user's in a page: controls, a number of its log that becomes a curve, a resume with arguments."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pages import choose_checkpoint, eventually, find_nothing_serious, look_in_the_dark, see

from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.script.script import read_script

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PROGRAMS = Path(__file__).parents[1] / "programs"
TURNS = """
for turn in range(60):
    value = format(3 / (1 + turn) + 0.5, ".4f")
    print(" ".join(["turn", str(5 * turn), "of the wheel:", value, "in", str(10 + turn % 3)]))
    if turn % 20 == 19:
        print("(reading the next part)")
"""
LAUNCH_TURNS = """import nbtools as nt
program = nt.Program(script="turning.py")
path = nt.write_script(program, "my_turns", nt.Launch(torchrun=False, gpus=()), overwrite=True)
nt.LivePlot(nt.launch(path))"""


WRITES = """
with open("log.csv", "w") as file:
    print("step,width,loss", file=file)
    for step in range(20):
        print(step, 64 + step % 3, 3 / (1 + step), sep=",", file=file)
"""


def test_a_column_of_a_file_is_removed_by_a_click_and_put_back(notebook: Any) -> None:
    (notebook.lab.project / "writing.py").write_text(WRITES)
    panel = notebook.run("writing.ipynb", LAUNCH_TURNS.replace("turning.py", "writing.py").replace("turns", "rows"))
    see(panel, "SUCCEEDED")
    panel.get_by_role("button", name="width").click()
    see(panel, "log.csv: width is not drawn")
    notebook.shoot("file-columns", panel)
    find_nothing_serious(notebook, "panel", "aria-tab-name", "color-contrast")
    panel.get_by_role("button", name="width").click()
    see(panel, "log.csv: width is drawn")


@pytest.mark.promise("any-script")
def test_a_clicked_number_becomes_a_curve_and_stands_in_the_launcher_script(notebook: Any) -> None:
    project = notebook.lab.project
    (project / "turning.py").write_text(TURNS)
    panel = notebook.run("turning.ipynb", LAUNCH_TURNS)
    see(panel, "SUCCEEDED")
    panel.get_by_role("button", name="Menu").locator("visible=true").first.click()
    panel.get_by_role("tab", name="Log").click()
    line = panel.locator(".nbt-log [data-line]", has_text="turn 295 of the wheel")
    line.get_by_role("button", name="0.5500").click()
    see(panel, "of the last 63 lines match")
    notebook.shoot("log-number", panel)
    find_nothing_serious(notebook, "log", "aria-input-field-name", "label", "select-name")
    name = panel.get_by_label("Name", exact=True)
    name.fill("train/loss")
    name.press("Enter")
    see(panel, "step counts from 0 to 295")
    notebook.shoot("log-curve", panel)
    panel.get_by_role("button", name="Keep").click()
    see(panel, "written into")
    script = read_script(project / "scripts" / "my_turns.py")
    assert script.program.curves == ("turn {step} of the wheel: {train/loss} in {_}",)
    panel.locator(".nbt-chart").first.wait_for()
    see(panel, "train/loss")
    notebook.shoot("log-kept", panel)
    find_nothing_serious(notebook, "panel", "aria-tab-name", "color-contrast")
    panel.get_by_role("button", name="Remove").click()
    eventually(
        lambda: read_script(project / "scripts" / "my_turns.py").program.curves == (), "the pattern is forgotten"
    )
    look_in_the_dark(notebook, panel, "log-curve")
    assert notebook.mistakes == []


LAUNCH = """import nbtools as nt
run = nt.launch({path!r}, torchrun=False, gpus=(), args={args!r})
nt.LivePlot(run)"""


def test_a_program_is_resumed_with_other_arguments_from_its_panel(notebook: Any) -> None:
    args = ["--steps", "60", "--every", "20", "--out-dir", "saved"]
    source = LAUNCH.format(path=str(PROGRAMS / "saves.py"), args=args)
    panel = notebook.run("program.ipynb", source)
    see(panel, "SUCCEEDED")
    panel.locator(".nbt-chart").first.wait_for()
    panel.get_by_role("tab", name="Checkpoints").click()
    see(panel, "saved/ckpt_step60.pt")
    notebook.shoot("program-checkpoints", panel)
    panel.get_by_role("button", name="Verify").click()
    see(panel, "3 of 3 checkpoints whole")
    choose_checkpoint(panel, "ckpt_step40")
    panel.get_by_label("Arguments").fill("--steps 90")
    see(panel, "Resume adds the arguments --steps 90")
    notebook.shoot("program-fork", panel)
    panel.get_by_role("button", name="Start").click()
    see(panel, "at step 40: adds the arguments --steps 90")
    see(panel, "SUCCEEDED")
    see(panel, "saved/ckpt_step80.pt")
    notebook.shoot("program-resumed", panel)
    assert notebook.mistakes == []


def test_a_run_in_a_dark_page_shows_stacks_stops_and_is_launched_again(notebook: Any) -> None:
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
