"""What is visible in an open notebook: a live panel also has a static copy, which is hidden."""

from typing import Any

from playwright.sync_api import Locator

from nbtools.rundir.rundir import RunDir

NOTHING = "print('no panel here')"


def see(where: Locator, text: str) -> None:
    """Wait until a text is visible."""
    where.get_by_text(text).locator("visible=true").first.wait_for()


def picture(where: Locator) -> Locator:
    """Return the first visible picture, or the curves that the page draws."""
    return where.locator("img, .nbt-canvas").locator("visible=true").first


def show(notebook: Any, name: str, run: RunDir) -> Any:
    """Open a notebook with a panel of a run; return the locator of its outputs."""
    notebook.open(notebook.lab.write_notebook(name, f"import nbtools as nt\nnt.LivePlot({run.id!r})", NOTHING))
    notebook.run_cell(0)
    return notebook.output(0)
