"""A person changes a training on two ranks while it runs: in the panel, beside a busy cell, and from elsewhere."""

import os
import subprocess
import sys
from typing import Any

import pytest
from pages import look_in_the_dark, see

from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.script.script import write_script

from trainings import TINY, write_inputs

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_running_training_is_steered_and_each_change_is_a_flag(notebook: Any, eventually: Any) -> None:
    project = Project(notebook.lab.project)
    write_inputs("mlm_pretraining", project)
    values = {"max_steps": 100_000, "epochs": 100_000, "checkpoint_epochs": False, "sequence_length": 32}
    often = {"log_every": 20, "eval_every": 200, "checkpoint_every": 10_000, "lr_schedule": "constant"}
    config = RECIPES["mlm_pretraining"].config_class(**{**TINY["mlm_pretraining"], **values, **often})
    write_script(config, "steered", project=project)
    source = "import nbtools as nt\nrun = nt.launch('scripts/steered.py', nproc_per_node=2, gpus=())"
    busy = "import time\nwhile run.state == 'RUNNING': time.sleep(0.2)\nprint('over')"
    notebook.open(notebook.lab.write_notebook("steered.ipynb", source, "nt.LivePlot(run)", busy))
    notebook.run_cell(0)
    run = Run(project.runs / next(folder.name for folder in project.runs.glob("*_steered")))
    notebook.run_cell(1)
    panel = notebook.output(1)
    eventually(lambda: run.step > 60, "both ranks train")

    def press(name: str) -> None:
        panel.get_by_role("button", name=name).locator("visible=true").first.click()

    panel.locator(".nbt-chart").first.wait_for()
    press("Save")
    see(panel, ": save")
    eventually(lambda: [saved.step for saved in run.checkpoints] == [run.events[0].step], "the checkpoint is there")
    text = panel.get_by_label("Change", exact=True).locator("visible=true")
    assert "learning_rate=0.01" in text.get_attribute("placeholder")
    text.fill("learning_rate=-1")
    press("Apply")
    see(panel, "learning_rate=-1.0: must be > 0")
    text.fill("learning_rate=0.001 eval_every=100")
    press("Apply")
    see(panel, "learning_rate 0.01 -> 0.001, eval_every 200 -> 100")
    press("Pause")
    see(panel, "paused by")
    at = run.events[-1].step
    panel.get_by_role("button", name="Continue").locator("visible=true").first.wait_for()
    notebook.shoot("steer-paused", panel)
    look_in_the_dark(notebook, panel, "steer")

    notebook.start_cell(2)  # the kernel is busy from here on: another process continues the training
    command = [sys.executable, "-m", "nbtools", "steer", str(run.dir), "continue", "max_steps=150000"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ), check=False)
    assert said.returncode == 0 and f"after step {at}: continue" in said.stdout, said
    panel = notebook.output(1)
    panel.get_by_role("button", name="Pause").locator("visible=true").first.wait_for()
    eventually(lambda: run.step > at + 20, "the training goes on")
    # A second kernel steers it, too, while the cell of the first one computes.
    other = notebook.run("second.ipynb", f"import nbtools as nt\nnt.LivePlot({run.id!r})")
    other.get_by_role("button", name="Evaluate").locator("visible=true").first.click()
    see(other, ": evaluate")
    notebook.command("docmanager:open", path="notebooks/steered.ipynb")
    panel = notebook.output(1)
    panel.get_by_role("tab", name="Config").click()
    see(panel, "Steered (")
    notebook.shoot("steer", panel)
    assert {(event.action or event.field) for event in run.events if not event.refused} == {
        *("save", "learning_rate", "eval_every", "pause", "continue", "max_steps", "evaluate")
    }
    press("Stop")
    see(panel, "on request")
    panel.get_by_role("button", name="Save").locator("visible=true").wait_for(state="hidden")
    assert run.state is RunState.STOPPED
    see(notebook.output(2), "over")
    assert notebook.mistakes == []
