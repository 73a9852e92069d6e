"""The counter of a program's table is shown below its curves and changed by one click, for all runs of the project."""

import time
from pathlib import Path

import pytest
from waiting import eventually

from nbtools.errors import ConfigError
from nbtools.metrics.readers.sources import choose_counter, chosen_counters
from nbtools.notebook.panel.panel import LivePlot
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir


@pytest.fixture
def run(project: Project) -> Run:
    """An ended program with a table of two columns that may count."""
    files = RunDir.create(project.runs, "train")
    write_json(files.launch, {"name": "train", "time": time.time() - 10, "cwd": str(project.root), "args": []})
    files.log.write_text("done\n")
    (project.root / "log.csv").write_text("step,tokens,loss\n1,64,3.0\n2,128,2.0\n")
    write_json(files.exit, {"returncode": 0, "time": time.time()})
    return Run(files.path)


def steps(run: Run) -> list[int]:
    return run.history["train/loss"].steps.tolist()


def test_a_choice_counts_for_an_open_run_and_for_fresh_ones(run: Run) -> None:
    assert steps(run) == [1, 2]
    (source,) = run.rows.sources
    assert (source.counter, source.counters) == ("step", ["step", "tokens", "loss"])
    choose_counter(run.dir, "log.csv", "tokens")
    assert steps(run) == steps(Run(run.files.path)) == [64, 128]
    assert run.rows.notes[0].endswith("log.csv: train/loss; counter: tokens")
    choose_counter(run.dir, "log.csv", "")
    assert (steps(run), run.history["train/loss"].unit) == ([0, 1], "row")
    choose_counter(run.dir, "log.csv", None)
    assert steps(run) == [1, 2]
    assert chosen_counters(run.dir) == {}


def test_the_panel_offers_the_columns_and_draws_again(run: Run) -> None:
    panel = LivePlot(run.dir)
    panel.refresh()
    eventually(lambda: panel._widgets.counters.widget.children)
    (control,) = panel._widgets.counters.widget.children
    assert (control.value, [value for _, value in control.options]) == ("step", ["step", "tokens", "loss", ""])
    control.value = "tokens"
    eventually(lambda: "counter: tokens" in panel._widgets.words.sources.value)
    assert panel._widgets.counters.widget.children[0].value == "tokens"
    panel.close()


def test_a_folder_that_cannot_be_written_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path / "file/config"))
    with pytest.raises(ConfigError, match="cannot be written"):
        choose_counter(run.dir, "log.csv", "tokens")
