"""A recipe in JupyterLab: its training is steered in the panel and from elsewhere, and its model answers."""

import os
import subprocess
import sys
from typing import Any

import pytest
from fixture_types import MonkeyPatch
from pages import eventually, find_nothing_serious, look_in_the_dark, see

from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.script.script import write_script

from trainings import TINY, train_here, write_inputs

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def project_with_texts(lab: Any) -> Project:
    """The project of the page, with the texts of a tiny training."""
    project = Project(lab.project)
    write_inputs("mlm_pretraining", project)
    return project


def test_a_running_training_is_steered_and_each_change_is_a_flag(notebook: Any, project_with_texts: Project) -> None:
    project = project_with_texts
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


@pytest.mark.promise("playground")
def test_a_model_answers_in_the_page_and_without_a_kernel(
    notebook: Any, project_with_texts: Project, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(project_with_texts.root)
    values = {**TINY["masked_diffusion"], "dataset": str(project_with_texts.root / "texts")}
    config = RECIPES["masked_diffusion"].config_class(**values)
    run = train_here(project_with_texts, config, monkeypatch=monkeypatch)
    source = f"import nbtools as nt\nplayground = nt.Playground('{run.path.name}', 'w1 w')"
    output = notebook.run("playground.ipynb", f"{source}\nplayground", "'playground'")
    form = output.locator(".nbtools-form")
    form.get_by_text("step-000006 on the CPU").wait_for()
    assert form.locator(".nbtools-answers").inner_text().startswith("w1 w"), "computed before the cell ended"
    form.get_by_text("Unmasking, step by step").wait_for()
    form.get_by_role("button", name="Run").wait_for()

    box = form.locator("textarea").first
    box.fill("w2\n\nw3 w4 w5 w6 w7")
    form.get_by_label("temperature").fill("0")
    form.get_by_role("button", name="Run").click()
    form.get_by_text("the prompt has 14 tokens").wait_for()
    assert form.locator(".nbtools-answers").inner_text().startswith("w2")
    form.get_by_role("button", name="Settings · ").click()
    form.get_by_label("guidance").wait_for()
    form.get_by_role("button", name="Settings").click()
    form.get_by_label("checkpoint").select_option(label="latest verified")
    box.fill("w1 w")
    form.get_by_role("button", name="Run").click()
    form.get_by_text("Unmasking, step by step").wait_for()
    form.get_by_role("button", name="Run", disabled=False).wait_for()
    notebook.shoot("playground", form)
    find_nothing_serious(notebook, "playground", "label", "aria-input-field-name", "color-contrast")
    assert notebook.mistakes == []

    notebook.restart_kernel()
    stored = output.locator(".nbtools-no-kernel")
    stored.get_by_text("needs a kernel: run this cell again").wait_for()
    assert stored.locator(".nbtools-answers").inner_text().startswith("w1 w")
    notebook.shoot("playground-without-kernel", output)
