"""nbtools: author training configs in a notebook, launch them with torchrun in the background, watch them live.

The public names load on first use (PEP 562): `import nbtools` takes milliseconds and loads neither torch nor
ipywidgets.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nbtools._version import __version__ as __version__

_HOME = {
    "Launch": "nbtools.config",
    "Slurm": "nbtools.config",
    "StopOn": "nbtools.config",
    "compare": "nbtools.notebook.board.board",
    "clean": "nbtools.run.removal.clean",
    "doctor": "nbtools.cli.doctor",
    "launch": "nbtools.launcher.launch",
    "preflight": "nbtools.launcher.preflight",
    "reproduce": "nbtools.launcher.resume",
    "resume": "nbtools.launcher.resume",
    "History": "nbtools.metrics.history",
    "ConfigForm": "nbtools.notebook.form.form",
    "new": "nbtools.notebook.form.form",
    "show_media": "nbtools.notebook.plots.media_html",
    "LivePlot": "nbtools.notebook.panel.panel",
    "Playground": "nbtools.notebook.playground.playground",
    "report": "nbtools.notebook.comparison.report",
    "scaling": "nbtools.notebook.board.scaling",
    "RECIPES": "nbtools.recipes",
    "Checkpoint": "nbtools.run.checkpoints",
    "runs": "nbtools.notebook.board.runs",
    "Run": "nbtools.run.run",
    "RunState": "nbtools.run.state",
    "Program": "nbtools.script.program",
    "read_script": "nbtools.script.script",
    "write_script": "nbtools.script.script",
}
"""Module of each public name."""

__all__ = sorted([*_HOME, "__version__"])

if TYPE_CHECKING:
    from nbtools.cli.doctor import doctor as doctor
    from nbtools.config import Launch as Launch
    from nbtools.config import Slurm as Slurm
    from nbtools.config import StopOn as StopOn
    from nbtools.launcher.launch import launch as launch
    from nbtools.launcher.preflight import preflight as preflight
    from nbtools.launcher.resume import reproduce as reproduce
    from nbtools.launcher.resume import resume as resume
    from nbtools.metrics.history import History as History
    from nbtools.notebook.board.board import compare as compare
    from nbtools.notebook.board.runs import runs as runs
    from nbtools.notebook.board.scaling import scaling as scaling
    from nbtools.notebook.comparison.report import report as report
    from nbtools.notebook.form.form import ConfigForm as ConfigForm
    from nbtools.notebook.form.form import new as new
    from nbtools.notebook.panel.panel import LivePlot as LivePlot
    from nbtools.notebook.playground.playground import Playground as Playground
    from nbtools.notebook.plots.media_html import show_media as show_media
    from nbtools.recipes import RECIPES as RECIPES
    from nbtools.run.checkpoints import Checkpoint as Checkpoint
    from nbtools.run.removal.clean import clean as clean
    from nbtools.run.run import Run as Run
    from nbtools.run.state import RunState as RunState
    from nbtools.script.program import Program as Program
    from nbtools.script.script import read_script as read_script
    from nbtools.script.script import write_script as write_script


def __getattr__(name: str) -> Any:
    if name == "media":  # a module for users' scripts
        return import_module("nbtools.rundir.media")
    if name not in _HOME:
        raise AttributeError(f"module 'nbtools' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
