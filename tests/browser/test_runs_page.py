"""The table of `nt.runs()` in a real JupyterLab: sorts, filters, labels, opens and deletes runs."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import look_in_the_dark

from nbtools.recipes import RECIPES
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def make(runs: Path, number: int, name: str, why: str = "completed", **changed: Any) -> RunDir:
    """Write an ended run with a curve that depends on its number."""
    run = RunDir(runs / f"2026-01-{number + 1:02d}_120000_{name}")
    run.ranks.mkdir(parents=True)
    run.lock.touch()
    at = time.time() - 86400 * (30 - number)
    write_json(run.launch, {"name": name, "recipe": "mlm_pretraining", "time": at, "script": f"/p/{name}.py"})
    config = RECIPES["mlm_pretraining"].preset("cpu_demo")[0].model_dump(mode="json") | changed
    write_json(run.config, {"recipe": "mlm_pretraining", "config": config, "derived": {"total_steps": 400}})
    noise = random.Random(number)
    rows = []
    for step in range(10, 401, 10):
        row = {"step": step, "time": at + step, "train/loss": 2 + 4 / step**0.3 + noise.random() / 5}
        rows.append(row | ({"eval/loss": 2.2 + (4 + number / 9) / step**0.3} if step % 50 == 0 else {}))
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run.log.write_text("started\n")
    last = {"train/loss": rows[-1]["train/loss"], "eval/loss": rows[-1]["eval/loss"]}
    write_json(run.finished, {"why": why, "step": 400, "metrics": last, "time": at + 400})
    code = {"returncode": int(why == "failed"), "stopped": why == "stopped", "time": at + 400, "duration_s": 400.0}
    write_json(run.exit, code)
    return run


@pytest.fixture
def made(lab: Any) -> Any:
    """Runs of names of their own: the project is that of all browser tests."""
    runs = lab.project / "runs"
    found = [make(runs, number, "a_base") for number in range(11)]
    found.append(make(runs, 11, "a_lr_high", "failed", learning_rate=0.01))
    found.append(make(runs, 12, "a_lr_low", learning_rate=0.0001, seed=3))
    found.append(make(runs, 13, "a_wide", "stopped", hidden_size=96))
    yield found
    for run in found:
        shutil.rmtree(run.path, ignore_errors=True)


@pytest.mark.promise("runs-table")
def test_the_table_of_runs_sorts_labels_opens_deletes_and_is_stored(
    notebook: Any, made: list[RunDir], eventually: Callable[..., Any]
) -> None:
    table = notebook.run("runs.ipynb", "import nbtools as nt\nnt.runs(name='a_*')")
    table.get_by_text("1 to 12 of 14 runs").wait_for()
    eventually(lambda: table.locator("svg polyline:visible").count() == 12, "the curves fill in behind")
    assert "learning_rate 0.0001, seed 3" in table.inner_text() and "of 400" in table.inner_text()
    notebook.shoot("runs", table)
    look_in_the_dark(notebook, table, "runs")

    table.get_by_role("combobox").nth(1).select_option("best")
    first = table.locator(".nbtools-live .nbtools-runs-line:visible").nth(1)
    eventually(lambda: made[0].id in first.inner_text(), "the best run is first")
    assert lines(table)[:2] == ["a_base", "a_base"]
    table.get_by_placeholder("name, tag, recipe, note").fill("lr_")
    table.get_by_placeholder("name, tag, recipe, note").press("Enter")
    table.get_by_text("1 to 2 of 2 runs").wait_for()

    for number in (0, 1):
        table.locator("input[type=checkbox]:visible").nth(number).check()
    table.get_by_role("button", name="Compare").click()
    table.get_by_text("Split by").wait_for()
    notebook.shoot("runs-compare", table)
    table.locator("input[type=checkbox]:visible").nth(1).uncheck()

    table.get_by_placeholder("the script's").fill("good")
    table.get_by_placeholder("a, b").fill("sweep, keep")
    table.get_by_placeholder("a, b").press("Tab")
    table.get_by_role("button", name="Save").click()
    table.get_by_text("Saved: ").wait_for()
    labelled = [run for run in made if run.labels.exists()]
    assert len(labelled) == 1
    content = read_json(labelled[0].labels)
    assert content is not None and (content["name"], content["tags"]) == ("good", ["sweep", "keep"])

    table.get_by_role("button", name="Open").click()
    table.get_by_role("tab", name="Checkpoints").wait_for()
    notebook.shoot("runs-open", table)

    table.get_by_role("button", name="Delete…").click()
    table.get_by_text("what is deleted cannot be restored").wait_for()
    table.get_by_role("button", name="Delete 1 run").click()
    assert labelled[0].path.exists()
    table.get_by_role("button", name="Yes, delete for ever").click()
    table.get_by_text("Removed 1 item").wait_for()
    assert not labelled[0].path.exists()
    assert notebook.mistakes == []
    assert not table.locator(".nbtools-runs-stored").is_visible()

    notebook.restart_kernel()
    eventually(table.locator(".nbtools-runs-stored").is_visible, "the stored table takes the place of the widgets")
    assert not table.get_by_role("button", name="Open").is_visible()
    assert table.locator(".nbtools-runs-stored b").all_inner_texts()[0] == "a_wide"
    notebook.shoot("runs-stored", table)


def lines(table: Any) -> list[str]:
    return [line for line in table.locator(".nbtools-live b:visible").all_inner_texts() if line]
