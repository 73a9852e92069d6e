"""The table of runs without a browser: what it shows, and that nothing is deleted before it was asked twice."""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from IPython.core.formatters import DisplayFormatter

import nbtools as nt
from nbtools.notebook.run_table.details import details_of
from nbtools.notebook.run_table.row_html import Details, line
from nbtools.notebook.run_table.table import NUM_ROWS, RunTable
from nbtools.project import Project
from nbtools.run.listing import Rows, RunRow
from nbtools.rundir.json_files import write_json
from nbtools.rundir.names import label, read_labels
from nbtools.rundir.rundir import RunDir


@pytest.fixture
def made(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for number in range(NUM_ROWS + 3):
        run = RunDir(project.runs / f"2026-01-{number + 1:02d}_120000_base")
        run.ranks.mkdir(parents=True)
        run.lock.touch()
        write_json(run.launch, {"name": "base", "recipe": "mlm_pretraining", "time": 1.7e9 + 86400 * number})
        rows = (f'{{"step": {step}, "train/loss": {step + number}}}\n' for step in (1, 2))
        run.metrics.write_text("".join(rows))
        write_json(run.finished, {"why": "completed", "step": 2, "metrics": {"train/loss": 2.0 + number}})
        write_json(run.exit, {"returncode": 0, "stopped": False, "time": 1.7e9 + 86400 * number + 60})
        found.append(run)
    return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        threading.Event().wait(0.02)


@pytest.fixture
def table(project: Project, made: list[RunDir]) -> RunTable:
    table = RunTable(nt.runs(project))
    until(lambda: table._thread is None)
    return table


def test_the_table_reads_the_rows_on_screen_and_turns_pages(table: RunTable, made: list[RunDir]) -> None:
    assert set(table._details) == {run.id for run in made[3:]}, "only what is on screen was read"
    assert "polyline" in table._lines[0]._text.value and made[-1].id in table._lines[0]._text.value
    table._next.click()
    until(lambda: table._thread is None)
    assert [row.id for row in table._shown] == [run.id for run in made[2::-1]]
    table._order.value = "best"
    assert table._shown[0].id == made[0].id
    table._text.value = "nothing"
    assert table._shown == [] and "no runs" in table._place.value


@pytest.mark.promise("runs-table")
def test_a_run_is_deleted_after_two_questions_and_not_before(table: RunTable, made: list[RunDir]) -> None:
    table._lines[0]._tick.value = True
    for question in ("Delete 1 run", "Yes, delete for ever"):
        table._delete.click()
        until(lambda question=question: table._delete.description == question and not table._is_acting)  # type: ignore[misc]
        assert made[-1].path.exists()
    table._lines[1]._tick.value = True
    assert table._delete.description == "Delete…", "another choice is asked again"
    table._lines[1]._tick.value = False
    for _ in range(3):
        table._delete.click()
        until(lambda: not table._is_acting)
    until(lambda: not made[-1].path.exists())
    until(lambda: table._shown[0].id == made[-2].id)
    assert made[-2].path.exists()


def test_labels_are_saved_and_wrong_ones_are_explained(table: RunTable, made: list[RunDir]) -> None:
    table._lines[0]._tick.value = True
    table._name.value, table._tags.value = "good", "a, b"
    table._save.click()
    until(lambda: read_labels(made[-1]).name == "good" and not table._is_acting)
    assert read_labels(made[-1]).tags == ("a", "b")
    table._name.value = "not allowed"
    table._save.click()
    until(lambda: "must be a letter" in table._said.value)
    assert read_labels(made[-1]).name == "good"


def test_every_text_of_a_run_is_escaped(made: list[RunDir], project: Project) -> None:
    hostile = "<img src=x onerror=alert(1)>'"
    label(made[-1], tags=["<i>"], note=hostile)
    row = nt.runs(project).listed[0]._replace(name=hostile, script=hostile, recipe=hostile, problem=hostile)
    html = line(row, Details(hostile, 1.0, 2.0, (1.0, 2.0), hostile, hostile))
    assert "<img" not in html and "<i>" not in html and "onerror=alert(1)&gt;&#x27;" in html
    assert isinstance(row, RunRow)


def test_the_stored_table_has_fifty_rows_at_most_and_a_constant_text(
    project: Project, table: RunTable, made: list[RunDir]
) -> None:
    stored, live = table._outputs()
    assert (stored["text/plain"], live["text/plain"]) == ("a table of runs", "")
    assert "<script" not in stored["text/html"]
    table._rows = table._rows * 10
    assert table._outputs()[0]["text/html"].count("min-height:38px") == 50


def test_a_long_active_run_is_not_read_whole_every_few_seconds(project: Project, made: list[RunDir]) -> None:
    rows = Rows(project.runs)
    row = rows.row(made[-1].id)._replace(state="RUNNING")
    lines = (f'{{"step": {step}, "train/loss": {1 / step}}}\n' for step in range(1, 50_001))
    made[-1].metrics.write_text("".join(lines))
    before = process_bytes_read()
    details = details_of(rows, row)
    assert process_bytes_read() - before < made[-1].metrics.stat().st_size / 2
    assert details.last == 1 / 50_000 and len(details.points) > 2


def process_bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_without_the_widgets_a_notebook_shows_the_plain_table(
    project: Project, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nbtools.notebook.run_table.table", None)
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    assert DisplayFormatter().ipython_display_formatter(nt.runs(project)), "nothing else is asked"
    (bundle,) = shown
    assert made[-1].id in bundle["text/html"] and bundle["text/plain"].startswith("<15 runs")
