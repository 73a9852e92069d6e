"""The table of runs without a browser: what it shows, and that nothing is deleted before it was asked twice."""

import shutil
import sys
import threading
from pathlib import Path

import pytest
from IPython.core.formatters import DisplayFormatter
from run_folder import RunFolder
from waiting import eventually
from widget_tree import every

import nbtools as nt
from nbtools.notebook.run_table import table_parts
from nbtools.notebook.run_table.row_html import Details, details_of, line
from nbtools.notebook.run_table.table import RunTable
from nbtools.notebook.run_table.table_parts import NUM_ROWS
from nbtools.project import Project
from nbtools.run.listing import Rows, RunRow
from nbtools.run.state import RunState
from nbtools.rundir.json_files import write_json
from nbtools.rundir.names import label, read_labels
from nbtools.rundir.rundir import RunDir


@pytest.fixture
def made(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for number in range(NUM_ROWS + 3):
        started, run = 1.7e9 + 86400 * number, RunDir(project.runs / f"2026-01-{number + 1:02d}_120000_base")
        folder = RunFolder(run, started, name="base")
        run.lock.touch()
        folder.write([{"step": step, "train/loss": step + number} for step in (1, 2)])
        write_json(run.finished, {"why": "completed", "step": 2, "metrics": {"train/loss": 2.0 + number}})
        folder.end(at=started + 60)
        found.append(run)
    return found


@pytest.fixture
def table(project: Project, made: list[RunDir]) -> RunTable:
    table = RunTable(nt.runs(project))
    eventually(lambda: table._thread is None)
    return table


def press(table: RunTable, name: str) -> None:
    """Press the button with a text or a tooltip."""
    for widget in every(table.widget):
        if name in (getattr(widget, "description", ""), getattr(widget, "tooltip", "")):
            widget.click()


def test_the_table_reads_the_rows_on_screen_and_turns_pages(table: RunTable, made: list[RunDir]) -> None:
    assert set(table._details) == {run.id for run in made[3:]}, "only what is on screen was read"
    assert "polyline" in table._page.lines[0]._text.value and made[-1].id in table._page.lines[0]._text.value
    press(table, "Next page")
    eventually(lambda: table._thread is None)
    assert [row.id for row in table._page.shown] == [run.id for run in made[2::-1]]
    table._search.text.value = "nothing"
    assert table._page.shown == [] and "no runs" in table._page._place.value


@pytest.mark.promise("runs-table")
@pytest.mark.parametrize("order", ["best", "last"])
def test_a_sort_by_value_reads_all_runs_and_puts_the_better_one_first(
    project: Project, made: list[RunDir], order: str
) -> None:
    for number, run in enumerate(made[:5]):
        run.metrics.write_text(f'{{"step": 1, "eval/accuracy": 0.{number + 1}}}\n')
    made[5].metrics.write_text('{"step": 1, "train/loss": "NaN"}\n')
    table = RunTable(nt.runs(project))
    eventually(lambda: table._thread is None)
    with table._lock:
        table._search.order.value = order
        assert f", {order} of 12 read" in table._page._place.value
    eventually(lambda: table._thread is None)
    in_order = [*made[6:], *made[4::-1], made[5]]
    assert [row.id for row in table._page.shown] == [run.id for run in in_order[:NUM_ROWS]]
    assert "read" not in table._page._place.value
    press(table, "Next page")
    assert [row.id for row in table._page.shown] == [run.id for run in in_order[NUM_ROWS:]]


@pytest.mark.promise("runs-table")
def test_a_look_for_new_runs_keeps_the_choice_of_runs(project: Project, made: list[RunDir]) -> None:
    tables = [RunTable(runs) for runs in (nt.runs(project, name="base*"), nt.runs(project)[2:])]
    label(made[0], name="other")
    shutil.rmtree(made[1].path)
    for name in ("base2", "second"):
        later = RunDir.create(project.runs, name)
        write_json(later.launch, {"name": name, "time": 1.9e9})
    for table in tables:
        press(table, "Look for new runs")
        table._search.state.value = "Lost"
    assert [[row.name for row in table._page.shown] for table in tables] == [["base2"], ["second", "base2"]]
    assert [len(table._rows) for table in tables] == [len(made), len(made) - 1]
    assert all(made[0].id in table._rows and made[1].id not in table._rows for table in tables), "renamed; removed"


@pytest.mark.promise("runs-table")
def test_a_run_is_deleted_after_two_questions_and_not_before(table: RunTable, made: list[RunDir]) -> None:
    table._page.lines[0]._tick.value = True
    for question in ("Delete 1 run", "Yes, delete for ever"):
        table._removal.delete.click()
        eventually(lambda question=question: table._removal.delete.description == question and not table._is_acting)  # type: ignore[misc]
        assert made[-1].path.exists()
    table._page.lines[1]._tick.value = True
    assert table._removal.delete.description == "Delete…", "another choice is asked again"
    table._page.lines[1]._tick.value = False
    for _ in range(3):
        table._removal.delete.click()
        eventually(lambda: not table._is_acting)
    eventually(lambda: not made[-1].path.exists())
    eventually(lambda: table._page.shown[0].id == made[-2].id)
    assert made[-2].path.exists()


@pytest.mark.promise("runs-table")
def test_runs_that_are_ticked_while_others_are_looked_at_are_asked_for(
    table: RunTable, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), table_parts.plan_removal
    monkeypatch.setattr(table_parts, "plan_removal", lambda *given: go_on.wait(60) and real(*given))
    table._page.lines[0]._tick.value = True
    table._removal.delete.click()
    table._page.lines[0]._tick.value = False
    table._page.lines[1]._tick.value = True
    go_on.set()
    for _ in range(3):
        assert made[-2].path.exists()
        eventually(lambda: not table._is_acting)
        table._removal.delete.click()
    eventually(lambda: not made[-2].path.exists())
    assert made[-1].path.exists(), "it was not ticked any more"


def test_labels_are_saved_and_wrong_ones_are_explained(table: RunTable, made: list[RunDir]) -> None:
    table._page.lines[0]._tick.value = True
    table._labels.name.value, table._labels.tags.value = "good", "a, b"
    press(table, "Save")
    eventually(lambda: read_labels(made[-1]).name == "good" and not table._is_acting)
    assert read_labels(made[-1]).tags == ("a", "b")
    label(made[-1], note="from a terminal")
    table._labels.tags.value = ""
    press(table, "Save")
    eventually(lambda: read_labels(made[-1]).tags == () and not table._is_acting)
    assert read_labels(made[-1]).note == "from a terminal"
    table._labels.name.value = "not allowed"
    press(table, "Save")
    eventually(lambda: "must be a letter" in table._said.value)
    assert read_labels(made[-1]).name == "good"


SAVES = """import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path("checkpoint-5").mkdir(exist_ok=True)
pathlib.Path("checkpoint-5/trainer_state.json").write_text('{"global_step": 5}')
print(sys.argv[1:], flush=True)
time.sleep(60)
"""


@pytest.mark.promise("runs-table")
def test_a_run_is_stopped_and_resumed_from_the_table(project: Project) -> None:
    project.scripts.mkdir(exist_ok=True)
    (project.scripts / "save.py").write_text(SAVES)
    program = nt.Program(script="scripts/save.py", resume=("--from", "{checkpoint}"), cwd=str(project.root))
    run = nt.launch(program, gpus=(), torchrun=False)
    eventually(lambda: "[]" in run.log())
    table = RunTable(nt.runs(project))
    for name in ("Stop", "Resume", "Stop"):
        table._page.lines[0]._tick.value = True
        press(table, name)
        eventually(lambda: not table._is_acting)
        assert ("stopped" if name == "Stop" else f"Resumed {run.id} as ") in table._said.value
        if name == "Resume":
            eventually(lambda: "checkpoint-5" in nt.runs(project)[0].log())
            eventually(lambda: table._page.lines[0]._name == nt.runs(project)[0].id)  # the table looks for itself
            table._page.lines[1]._tick.value = False
    assert [each.state for each in nt.runs(project)] == ["STOPPED", "STOPPED"]
    table.close()


def test_a_table_is_closed_while_its_thread_reads(
    project: Project, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, may_end = threading.Event(), threading.Event()

    def slow(rows: Rows, row: RunRow) -> Details:
        reading.set()
        may_end.wait(60)
        return details_of(rows, row)

    monkeypatch.setattr("nbtools.notebook.run_table.table.details_of", slow)
    table = RunTable(nt.runs(project))
    assert reading.wait(60)
    thread, closer = table._thread, threading.Thread(target=table.close)
    closer.start()
    may_end.set()
    closer.join(60)
    assert thread is not None and not thread.is_alive() and not closer.is_alive()
    assert table.widget.comm is None


def test_every_text_of_a_run_is_escaped(made: list[RunDir], project: Project) -> None:
    hostile = "<img src=x onerror=alert(1)>'"
    label(made[-1], tags=["<i>"], note=hostile)
    row = nt.runs(project).listed[0]._replace(name=hostile, script=hostile, recipe=hostile, problem=hostile)
    html = line(row, Details(hostile, 1.0, 2.0, (1.0, 2.0), hostile, hostile))
    assert "<img" not in html and "<i>" not in html and "onerror=alert(1)&gt;&#x27;" in html


def test_the_stored_table_has_fifty_rows_at_most_and_a_constant_text(
    project: Project, table: RunTable, made: list[RunDir]
) -> None:
    (stored, _), (live, _) = table._outputs()
    assert (stored["text/plain"], live["text/plain"]) == ("a table of runs", "")
    assert "<script" not in stored["text/html"]
    table._rows = {f"{name} {number}": row for name, row in table._rows.items() for number in range(10)}
    assert table._outputs()[0][0]["text/html"].count("min-height:38px") == 50


def test_a_long_active_run_is_not_read_whole_every_few_seconds(project: Project, made: list[RunDir]) -> None:
    rows = Rows(project.runs)
    row = rows.row(made[-1].id)._replace(state=RunState.RUNNING)
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
