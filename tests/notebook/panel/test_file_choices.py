"""What counts the rows of a program's file, and which columns are drawn, is changed by a click, for all runs."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from nbtools.errors import ConfigError
from nbtools.metrics.readers.sources import file_choices, set_file_choice
from nbtools.notebook.panel.panel import LivePlot
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.user_config import update_user_config


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


def test_a_counter_counts_for_an_open_run_and_for_fresh_ones(run: Run) -> None:
    assert steps(run) == [1, 2]
    (source,) = run.rows.sources
    assert source.rows is not None
    assert (source.rows.counter, source.rows.counters) == ("step", ["step", "tokens", "loss"])
    update_user_config("counters", lambda kept: kept.update({str(run.dir.parent.parent): {"log.csv": "damaged"}}))
    set_file_choice(run.dir, "log.csv", {"": "tokens"})
    assert steps(run) == steps(Run(run.files.path)) == [64, 128]
    assert run.rows.notes[0].endswith("log.csv: train/loss; counter: tokens")
    set_file_choice(run.dir, "log.csv", {"": ""})
    assert (steps(run), run.history["train/loss"].unit) == ([0, 1], "row")
    set_file_choice(run.dir, "log.csv", {"": None})
    assert steps(run) == [1, 2]
    assert file_choices(run.dir) == {"log.csv": {}}


def test_a_column_is_left_out_and_a_setting_is_drawn_in_all_runs(run: Run) -> None:
    table = Path(run.info["cwd"]) / "log.csv"
    table.write_text("step,width,loss\n1,64,3.0\n2,64,2.0\n3,64,1.0\n")
    assert [*run.history] == ["train/loss"]
    set_file_choice(run.dir, "log.csv", {"train/loss": False, "width": True})
    assert [*run.history] == [*Run(run.files.path).history] == ["width"]
    assert "also found, but not drawn" in "".join(run.rows.notes)


def pressed(shown: Any) -> list[str]:
    """Return the metrics of the first file that are drawn by its buttons."""
    return [each.description for row in shown.children[0].children[1:] for each in row.children[1:] if each.value]


def test_a_table_without_a_counter_is_offered_and_drawn_by_its_order(
    run: Run, kept: Callable[[LivePlot], LivePlot]
) -> None:
    (Path(run.info["cwd"]) / "log.csv").write_text("G_A,D_A\n1.5,0.5\n1.4,0.6\n")
    panel = kept(LivePlot(run.dir))
    panel.refresh()
    shown = panel._widgets.files.widget
    (counter,) = shown.children[0].children
    assert (counter.value, [value for _, value in counter.options]) == (None, [""])
    counter.value = ""
    eventually(lambda: pressed(shown) == ["g_a", "d_a"])
    assert run.history["g_a"].unit == "row"


def test_the_panel_offers_the_columns_and_draws_again(run: Run, kept: Callable[[LivePlot], LivePlot]) -> None:
    panel = kept(LivePlot(run.dir))
    panel.refresh()
    shown = panel._widgets.files.widget
    counter, _ = shown.children[0].children
    assert (counter.value, [value for _, value in counter.options]) == ("step", ["step", "tokens", "loss", ""])
    assert pressed(shown) == ["tokens", "train/loss"]
    counter.value = "tokens"
    eventually(lambda: (shown.children[0].children[0].value, pressed(shown)) == ("tokens", ["train/loss"]))
    shown.children[0].children[1].children[1].value = False
    eventually(lambda: "not drawn" in panel._widgets.words.sources.value)


def test_a_folder_that_cannot_be_written_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(tmp_path / "file/config"))
    with pytest.raises(ConfigError, match="cannot be written"):
        set_file_choice(run.dir, "log.csv", {"": "tokens"})
