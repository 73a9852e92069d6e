"""The Log tab: a number that is clicked becomes a curve, which the launcher script remembers."""

from typing import Any

import pytest
from pages import look_in_the_dark, see

from nbtools.script.script import read_script

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PROGRAM = """
for turn in range(60):
    value = format(3 / (1 + turn) + 0.5, ".4f")
    print(" ".join(["turn", str(5 * turn), "of the wheel:", value, "in", str(10 + turn % 3)]))
    if turn % 20 == 19:
        print("(reading the next part)")
"""
LAUNCH = """import nbtools as nt
program = nt.Program(script="turning.py")
path = nt.write_script(program, "my_turns", nt.Launch(torchrun=False, gpus=()), overwrite=True)
nt.LivePlot(nt.launch(path))"""


@pytest.mark.promise("any-script")
def test_a_clicked_number_becomes_a_curve_and_stands_in_the_launcher_script(notebook: Any, eventually: Any) -> None:
    project = notebook.lab.project
    (project / "turning.py").write_text(PROGRAM)
    panel = notebook.run("turning.ipynb", LAUNCH)
    see(panel, "SUCCEEDED")
    panel.get_by_role("tab", name="Log").click()
    line = panel.locator(".nbt-log [data-line]", has_text="turn 295 of the wheel")
    line.get_by_role("button", name="0.5500").click()
    see(panel, "of the last 63 lines match")
    notebook.shoot("log-number", panel)
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
    panel.get_by_role("button", name="Remove").click()
    eventually(
        lambda: read_script(project / "scripts" / "my_turns.py").program.curves == (), "the pattern is forgotten"
    )
    look_in_the_dark(notebook, panel, "log-curve")
    assert notebook.mistakes == []
