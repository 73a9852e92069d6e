"""The playground in a real JupyterLab: a model answers, plays its steps, and stays readable without a kernel."""

from typing import Any

import pytest
from fixture_types import MonkeyPatch
from pages import find_nothing_serious

from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir.rundir import RunDir

from trainings import TINY, train_here, write_inputs

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def trained(key: str, lab: Any, monkeypatch: MonkeyPatch) -> RunDir:
    """Train for a second in this process, in the project of the page."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(lab.project)
    project = Project(lab.project)
    if not (lab.project / "texts").exists():
        write_inputs("masked_diffusion", project)
    values = {**TINY[key], "dataset": str(lab.project / "texts") if "dataset" in TINY[key] else None}
    return train_here(project, RECIPES[key].config_class(**values), monkeypatch=monkeypatch)


@pytest.mark.promise("playground")
def test_a_model_answers_in_the_page_and_without_a_kernel(lab: Any, notebook: Any, monkeypatch: MonkeyPatch) -> None:
    run = trained("masked_diffusion", lab, monkeypatch)
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
