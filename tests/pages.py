"""What is visible in an open notebook: a live panel also has a static copy, which is hidden."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator

from nbtools.rundir.rundir import RunDir

DEADLINE_S = 180
NOTHING = "print('no panel here')"


def eventually(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Poll until `condition` gives something true; return that."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {deadline_s:.0f} s: {what}")


def see(where: Locator, text: str) -> None:
    """Wait until a text is visible."""
    where.get_by_text(text).locator("visible=true").first.wait_for()


WRONG_IN_DARK = """root => {
  const seen = element => element.checkVisibility({visibilityProperty: true}) && element.getClientRects().length;
  const bright = colour => {
    const [red, green, blue, alpha = 1] = colour.match(/[\\d.]+/g).map(Number);
    return alpha < 0.5 ? null : (red + green + blue) / 3;
  };
  const told = (what, {tagName, className, textContent}) => [what, tagName, className, textContent.slice(0, 40)];
  const found = root.scrollWidth > root.clientWidth + 1 ? ["wider than the page"] : [];
  for (const element of [...root.querySelectorAll("*")].filter(seen)) {
    const style = getComputedStyle(element), back = bright(style.backgroundColor), text = bright(style.color);
    const hasText = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (back > 200 && element.offsetWidth > 40 && element.offsetHeight > 8) found.push(told("light", element));
    if (hasText && text !== null && text < 90 && !(back > 120)) found.push(told("dark text", element));
  }
  return found;
}"""


def look_in_the_dark(notebook: Any, where: Locator, name: str) -> None:
    """Find nothing light, no dark text and nothing too wide in JupyterLab's dark theme in a page of 900 pixels."""
    before = notebook.page.viewport_size
    notebook.page.set_viewport_size({"width": 900, "height": before["height"]})
    notebook.theme("Dark")
    notebook.page.wait_for_timeout(500)  # widgets are drawn again
    found = where.evaluate(WRONG_IN_DARK)
    assert not found, (name, found)
    notebook.shoot(f"{name}-900", where)
    notebook.theme("Light")
    notebook.page.set_viewport_size(before)


def picture(where: Locator) -> Locator:
    """Return the first visible picture, or the curves that the page draws."""
    return where.locator("img, .nbt-canvas").locator("visible=true").first


def show(notebook: Any, name: str, run: RunDir) -> Any:
    """Open a notebook with a panel of a run; return the locator of its outputs."""
    return notebook.run(name, f"import nbtools as nt\nnt.LivePlot({run.id!r})", NOTHING)


def choose_checkpoint(panel: Locator, text: str) -> None:
    """Choose the checkpoint to continue from whose label has a text."""
    choice = panel.get_by_label("Continue from")
    labels = choice.locator("option").all_text_contents()
    choice.select_option(label=next(label for label in labels if text in label.replace("\xa0", " ")))


def find_nothing_serious(notebook: Any, name: str, *rules: str) -> None:
    """Try the rules of axe on the outputs in both themes; `rules` are some that must have had something to look at."""
    notebook.page.evaluate("document.body.style.minHeight = '100vh'")  # JupyterLab's has no height: axe sees no text
    for theme in ("Dark", "Light"):
        notebook.theme(theme)
        notebook.page.wait_for_timeout(500)  # widgets are drawn again
        found = serious(notebook.page, ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell-outputArea", *rules)
        assert not found, (name, theme, found)


def serious(page: Any, context: str | None, *rules: str) -> list[tuple[str, list[str]]]:
    """Return what axe finds in a page, after the names of the rules that had nothing to look at."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="the extra `dev` is not installed").Axe()
    told = axe.run(page, context=context).response
    missing = {*rules} - {each["id"] for each in told["passes"]}
    wrong = [(each["id"], [node["html"] for node in each["nodes"]]) for each in told["violations"]]
    return [*((rule, []) for rule in sorted(missing)), *wrong]
