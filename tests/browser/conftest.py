"""A real JupyterLab on a copy of the project, and a page in headless Chromium that acts as a person would."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_lab import Lab, running_lab
from pages import DEADLINE_S
from run_folder import RunFolder

from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir

ROOT = Path(__file__).resolve().parents[2]
# Read at import: the tests themselves run without any NBTOOLS_ variable.
SCREENSHOTS = os.environ.get("NBTOOLS_SCREENSHOTS")
# Opening a notebook connects a kernel some time after its cells appear; what is run before is lost without a word.
READY = """async () => {
  const widget = window.jupyterapp?.shell.currentWidget;
  if (!widget?.sessionContext) return false;
  await widget.sessionContext.ready;
  const kernel = widget.sessionContext.session?.kernel;
  return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
SLOW_PAGE = "[anywidget] Failed to initialize model."
"""anywidget says so after two seconds, as on a loaded machine; the panel then keeps its picture."""
CLOSE = """() => {
  const opened = [...window.jupyterapp.shell.widgets('main')].filter(widget => widget.context);
  for (const widget of opened) widget.context.model.dirty = false;
  document.querySelectorAll('.jp-Dialog').forEach(dialog => dialog.remove());
  for (const widget of opened) widget.dispose();
}"""
VIEWPORT = {"width": 1100, "height": 2000}
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"


@dataclass
class Notebook:
    """An open notebook in a page."""

    page: Any
    lab: Lab
    mistakes: list[str] = field(default_factory=list)
    """What went wrong in JavaScript: uncaught errors, and errors on the console that name our widgets or none."""
    _path: str = ""
    _theme: str = "Light"

    def __post_init__(self) -> None:
        self.page.on("pageerror", lambda error: self._on_mistake(str(error)))
        self.page.on("console", self._on_console)

    def open(self, path: str) -> None:
        """Open a notebook and wait until its kernel is there; JupyterLab is loaded once."""
        is_loaded, self._path = bool(self._path), path
        if is_loaded:
            self.command("docmanager:open", path=path)
            self._wait_open()
        else:
            self.reload()

    def reload(self) -> None:
        """Load the page and the notebook as it was saved."""
        self.page.goto(f"{self.lab.url}/doc/tree/{self._path}?token={self.lab.token}&reset")
        self._wait_open()

    def _wait_open(self) -> None:
        self.page.locator(f"{SHOWN} .jp-Cell").first.wait_for(timeout=DEADLINE_S * 1000)
        self.wait_ready()

    def run(self, name: str, *sources: str) -> Any:
        """Open a notebook of these cells and run the first one; return the locator of its outputs."""
        self.open(self.lab.write_notebook(name, *sources))
        self.run_cell(0)
        return self.output(0)

    def start_cell(self, index: int) -> Any:
        """Start a cell without waiting for it; return the locator of its sign of a running cell, once it is there."""
        self.page.evaluate(
            """index => {
              window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
              window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            index,
        )
        cell = self.page.locator(f"{SHOWN} .jp-Cell[data-windowed-list-index='{index}'] .jp-InputPrompt")
        is_running = cell.get_by_text("[*]")
        is_running.wait_for()
        return is_running

    def close(self) -> None:
        """Close the notebook without saving it, end its kernel and its runs, and restore the page for the next one."""
        if self._path:
            self.theme("Light")
            self.page.evaluate(CLOSE)
        for session in self.lab.ask("/api/sessions"):
            with suppress(OSError):
                self.lab.ask(f"/api/sessions/{session['id']}", "DELETE")
        _stop_runs(self.lab.project)
        self.page.set_viewport_size(VIEWPORT)
        self.mistakes.clear()

    def _on_console(self, message: Any) -> None:
        if message.type == "error" and "favicon" not in message.text:
            self._on_mistake(message.text)

    def _on_mistake(self, text: str) -> None:
        if SLOW_PAGE not in text:
            self.mistakes.append(text)

    def wait_ready(self) -> None:
        """Wait until the kernel is connected and idle."""
        self.page.wait_for_function(READY, timeout=2 * DEADLINE_S * 1000)  # a kernel starts, perhaps beside other tests

    def command(self, name: str, **arguments: Any) -> None:
        """Execute a command of JupyterLab; returns when the command is done."""
        execute = "async ([name, args]) => { await window.jupyterapp.commands.execute(name, args); }"
        self.page.evaluate(execute, [name, arguments])

    def theme(self, name: str) -> None:
        """Change JupyterLab's theme: `Dark` or `Light`; its splash screen is gone when this returns.

        A second change while the splash fades would raise an error in JupyterLab itself.
        """
        if name == self._theme:
            return
        self._theme = name
        self.command("apputils:change-theme", theme=f"JupyterLab {name}")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def run_cell(self, index: int) -> None:
        """Run one cell, chosen by its index, and wait for it."""
        self.page.evaluate("index => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = index }", index)
        self.command("notebook:run-cell")

    def append(self, source: str) -> int:
        """Add a code cell at the end, run it, and return its index."""
        index = self.page.evaluate(
            """source => {
              const notebook = window.jupyterapp.shell.currentWidget.content;
              const cells = notebook.model.sharedModel;
              cells.insertCell(cells.cells.length, {cell_type: 'code', source});
              return cells.cells.length - 1;
            }""",
            source,
        )
        self.run_cell(index)
        return int(index)

    def restart_kernel(self) -> None:
        """Restart the kernel, as the menu does after the question."""
        self.page.evaluate("async () => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
        self.wait_ready()

    def output(self, index: int) -> Any:
        """Locator of the outputs of a cell, scrolled into view (JupyterLab draws only what is in view)."""
        self.page.evaluate("index => window.jupyterapp.shell.currentWidget.content.scrollToItem(index)", index)
        return self.page.locator(f"{SHOWN} .jp-Cell[data-windowed-list-index='{index}'] .jp-Cell-outputArea")

    def shoot(self, name: str, target: Any) -> None:
        """Save pictures of `target` in both themes, if a folder for them was named."""
        if SCREENSHOTS is None:
            return
        target.scroll_into_view_if_needed()
        for theme, suffix in (("Dark", "dark"), ("Light", "light")):
            self.theme(theme)
            self.page.wait_for_timeout(500)
            self.page.mouse.move(0, 0)
            target.scroll_into_view_if_needed()
            target.screenshot(path=Path(SCREENSHOTS) / f"{name}-{suffix}.png", animations="disabled")


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab server on a copy of the project; what it launched is stopped at the end."""
    home = tmp_path_factory.mktemp("lab")
    project = home / "project"
    for folder in ("notebooks", "scripts"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    shutil.copy(ROOT / "pyproject.toml", project)
    with running_lab(home, project) as started:
        try:
            yield started
        finally:
            _stop_runs(project)


def _stop_runs(project: Path) -> None:
    from nbtools import runs
    from nbtools.project import Project

    for run in runs(Project(project)):
        if not run.state.is_final:
            run.stop(timeout_s=15)


class Record(RunFolder):
    """An active run of two thousand steps in a project."""

    def __init__(self, project: Path, name: str, **launch: Any) -> None:
        files, limits = RunDir.create(project / "runs", name), {"nproc_per_node": 2, "max_restarts": 3}
        started = {"name": name, "script": f"/{name}.py", "launch": limits}
        super().__init__(files, time.time(), total_steps=2000, **{**started, **launch})
        self._lock = acquire_lock(files.lock)  # without a log: it waits for its processes

    def train(self, first: int, last: int, started: float, every_s: float = 4.0, attempt: int = 1) -> None:
        self.say("".join(f"step {step} of 2,000\n" for step in range(first, last + 1, 5)))
        for step in range(first, last + 1, 5):
            row = {"step": step, "time": started + every_s * (step - first), "attempt": attempt}
            loss = 3 + 5 * 0.995**step + 0.1 * ((step * 7919) % 13 - 6) / 6
            values = {"train/loss": loss, "train/grad_norm": 1 + loss / 9, "train/tokens_per_s": 21_000 + step % 70}
            self.write([{**row, **values}])
            if step % 200 == 0:
                self.write([{**row, "eval/loss": 3.1 + 5 * 0.995**step}])
                self.checkpoint(step, 3.1 + 5 * 0.995**step, row["time"])
        for rank in (0, 1):
            self.beat(rank, last)


@pytest.fixture
def record(lab: Any) -> Iterator[Callable[..., Record]]:
    made: list[Record] = []

    def make(name: str, **launch: Any) -> Record:
        made.append(Record(lab.project, name, **launch))
        return made[-1]

    yield make
    for each in made:
        each.release()
        shutil.rmtree(each.files.path)


@contextmanager
def _new_page(lab: Lab, browser: Any) -> Iterator[Notebook]:
    context = browser.new_context(viewport=VIEWPORT, device_scale_factor=1.5)
    page = context.new_page()
    page.set_default_timeout(DEADLINE_S * 1000)
    yield Notebook(page, lab)
    context.close()


@pytest.fixture(scope="module")
def page_of_module(lab: Lab, browser: Any) -> Iterator[Notebook]:
    with _new_page(lab, browser) as page:
        yield page


@pytest.fixture
def notebook(page_of_module: Notebook) -> Iterator[Notebook]:
    """A page with no notebook yet; the tests of a file share it, and kernel and runs end with each test."""
    yield page_of_module
    page_of_module.close()


@pytest.fixture
def fresh_notebook(lab: Lab, browser: Any) -> Iterator[Notebook]:
    """A page of this test alone, in which nothing is loaded yet."""
    with _new_page(lab, browser) as page:
        yield page
        page.close()
