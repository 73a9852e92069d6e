"""axe-core finds nothing serious in the form, the panel of a run with its tabs, the table and the comparison."""

from typing import Any

import pytest
from pages import find_nothing_serious, see

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PROGRAM = """
for step in range(0, 60, 5):
    print(f"step {step} loss {3 / (1 + step):.4f}")
    print(f"step {step} of the wheel: {step / 7:.4f}")
"""
LAUNCH = "nt.launch(nt.Program(script='seen.py'), torchrun=False, gpus=())"


def test_axe_finds_nothing_serious_in_a_form(notebook: Any) -> None:
    form = notebook.run("new.ipynb", "import nbtools as nt\nnt.new()")
    form.get_by_role("button", name="Masked diffusion").wait_for()
    find_nothing_serious(notebook, "new", "button-name")
    form = notebook.run("form.ipynb", "import nbtools as nt\nform = nt.ConfigForm(name='experiment')\nform")
    form.get_by_label("learning_rate", exact=True).fill("-1")
    see(form, "Cannot write or launch")
    notebook.shoot("form-mistake", form)
    find_nothing_serious(notebook, "form", "label", "select-name", "color-contrast")


def test_axe_finds_nothing_serious_in_runs(notebook: Any) -> None:
    (notebook.lab.project / "seen.py").write_text(PROGRAM)
    first, second = f"import nbtools as nt\n{LAUNCH}.wait()\nnt.LivePlot({LAUNCH})", "nt.runs(name='*seen*')"
    panel = notebook.run("seen.ipynb", first, second, "nt.compare('*seen*')")
    panel.locator(".nbt-chart").first.wait_for()
    see(panel, "SUCCEEDED")
    find_nothing_serious(notebook, "panel", "aria-tab-name", "color-contrast")
    panel.get_by_role("button", name="Menu").locator("visible=true").first.click()
    panel.get_by_role("tab", name="Log").click()
    line = panel.locator(".nbt-log [data-line]", has_text="step 55 of the wheel")
    line.get_by_role("button", name="7.8571").click()
    see(panel, "of the last 24 lines match")
    find_nothing_serious(notebook, "log", "aria-input-field-name", "label", "select-name")
    notebook.run_cell(1)
    see(notebook.output(1), "1 to 2 of 2 runs")
    notebook.run_cell(2)
    notebook.output(2).locator(".nbt-chart").first.wait_for()
    find_nothing_serious(notebook, "table and comparison", "label", "aria-input-field-name")
