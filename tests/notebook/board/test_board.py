"""The board without a browser: what the list shows and does, what is drawn, and the layout that is kept."""

import io
import re
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from curves import history
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from run_folder import RunFolder
from traitlets import TraitError
from waiting import eventually
from widget_tree import every

import nbtools as nt
from nbtools.notebook.board import actions, run_lines
from nbtools.notebook.board.board import NUM_DRAWN, Board
from nbtools.notebook.board.cells import RunValues, run_values
from nbtools.notebook.board.group_curves import mean_curves
from nbtools.notebook.board.run_lines import NUM_LINES, BoardLayout, read_layout
from nbtools.notebook.comparison.overlay import run_legend
from nbtools.notebook.plots.figure import RunFigure
from nbtools.project import Project
from nbtools.run.curves import Curves, curves_of
from nbtools.run.listing import RunList, RunRow
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.names import label, read_labels
from nbtools.rundir.rundir import RunDir


@pytest.fixture
def made(project: Project) -> list[RunDir]:
    found = []
    for number in range(NUM_LINES + 3):
        started, run = 1.7e9 + 86400 * number, RunDir(project.runs / f"2026-01-{number + 1:02d}_120000_base")
        folder = RunFolder(run, started, name="base")
        run.lock.touch()
        write_json(run.config, {"config": {"lr": number % 2 / 10, "seed": 7}, "derived": {}})
        folder.write([{"step": step, "time": started + step, "train/loss": step + number} for step in (1, 2)])
        write_json(run.finished, {"why": "completed", "step": 2, "metrics": {"train/loss": 2.0 + number}})
        folder.end(at=started + 60)
        found.append(run)
    return found


@pytest.fixture
def opened(kept: Callable[[Board], Board]) -> Callable[[RunList], Board]:
    """Open the board of some runs, and wait until it has read what it shows."""

    def open_board(runs: RunList) -> Board:
        idle(board := kept(Board([runs])))
        return board

    return open_board


@pytest.fixture
def board(project: Project, made: list[RunDir], opened: Callable[..., Board]) -> Board:
    return opened(nt.runs(project))


def idle(board: Board) -> None:
    eventually(lambda: board._thread is None and not board._is_acting)


def tell(board: Board, act: object, *keys: object) -> None:
    """Press controls of the list in the page, and wait until the board has read what it needs."""
    for key in keys:
        board._controls.page._handle_custom_msg({"act": act, "key": key}, [])
    idle(board)


def listed(board: Board) -> list[str]:
    """Return the ids on the page of the list."""
    return re.findall(r"data-act='tick' data-key='([^']*)'", board._controls.page.list)


def place(board: Board) -> str:
    return re.findall(r"role='status'>([^<]*)<", board._controls.page.list)[0]


def press(board: Board, name: str) -> None:
    """Press the button with a text."""
    next(each for each in every(board.widget) if getattr(each, "description", "") == name).click()


def ids(runs: list[RunDir]) -> list[str]:
    return [run.id for run in runs]


def test_the_list_reads_the_runs_on_the_page_and_turns_pages(board: Board, made: list[RunDir]) -> None:
    assert set(board._lines.values) == {*ids(made[3:])}, "only what is on the page was read"
    assert "polyline" in board._controls.page.list and listed(board) == ids(made[:2:-1])
    tell(board, "turn", "1")
    assert listed(board) == ids(made[2::-1]) and place(board) == "13 to 15 of 15 runs"
    tell(board, "turn", "1")
    assert listed(board) == ids(made[2::-1]), "there is no further page"
    board._controls.text.value = "nothing"
    assert listed(board) == [] and place(board) == "no runs"
    board._controls.text.value = "succeeded 2026-01-03"
    assert listed(board) == [made[2].id]


def test_of_many_runs_the_newest_are_shown_before_the_others_are_looked_at(
    project: Project, made: list[RunDir], opened: Callable[..., Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lines, "NUM_STORED", 5)
    runs = nt.runs(project)
    lines = run_lines.RunLines([runs], BoardLayout(), is_whole=False)
    RunFolder(RunDir(project.runs / "2026-02-01_120000_later"), 1.8e9)
    lines.fill("")
    assert [*lines.rows] == ids(made[:-6:-1]) and "1 to 5 of 5 runs, the others are being listed" in lines.html()
    read = lines.rows[made[-1].id] = lines.rows[made[-1].id]._replace(loss=7.0)
    lines.add(lines.others())
    assert [*lines.rows] == ids(made[::-1]) and lines.rows[made[-1].id] is read
    assert place(opened(runs)) == place(opened(nt.runs(project)[1:])) == "1 to 12 of 15 runs"


@pytest.mark.promise("runs-table")
@pytest.mark.parametrize("column", ["best", "last", "train/loss"])
def test_a_sort_by_value_reads_all_runs_and_puts_the_better_one_first(
    project: Project, made: list[RunDir], column: str, opened: Callable[..., Board]
) -> None:
    for number, run in enumerate(made[:5]):
        run.metrics.write_text(f'{{"step": 1, "eval/accuracy": 0.{number + 1}}}\n')
    made[5].metrics.write_text('{"step": 1, "train/loss": "NaN"}\n')
    board = opened(nt.runs(project))
    tell(board, "sort", column)
    others = [*made[4::-1], made[5]] if column in ("best", "last") else made[5::-1]
    assert listed(board) == ids([*made[6:], *others][:NUM_LINES])
    assert ("aria-sort='ascending'" in board._controls.page.list) is ("/" not in column)
    assert "read" not in place(board)
    tell(board, "sort", column)
    assert listed(board)[0] == made[-1].id, "a second click turns the order"


def test_any_metric_or_field_is_a_column_and_the_layout_is_kept(
    board: Board, project: Project, opened: Callable[..., Board]
) -> None:
    columns = board._controls.columns
    assert {"train/loss", "best train/loss", "lr", "seed", "code.recipe"} <= {*columns.allowed_tags}
    columns.value = ["lr", *(column for column in columns.value if column != "age")]
    with pytest.raises(TraitError):
        columns.value = ["nothing"]
    tell(board, "sort", "lr", ["lr"], None)
    board._controls.choices["group"].value = "seed"
    board._receive({"open": ["train/loss"], "is_open": False})
    board._receive({"y": "train/loss", "limits": [0, 3]})
    kept = read_json(project.runs / "board.json") or {}
    assert kept.pop("columns") == ["lr", "state", "curve", "best", "last", "steps", "took", "recipe"]
    order = {"sort": "lr", "is_reversed": False}
    scatter = {"over": "", "of": "best"}
    charts = {"charts": {"train/loss": False}, "y": {"train/loss": [0, 3]}}
    assert kept == {"format": 1, **order, "group": "seed", **charts, **scatter}
    again = opened(nt.runs(project))
    assert again._choices.options.y == {"train/loss": (0, 3)}
    assert again._kept == board._kept and again._controls.choices["group"].value == "seed"
    assert "Sort by lr" in again._controls.page.list and "Sort by age" not in again._controls.page.list
    assert "seed 7 · 15 runs" in again._controls.page.list


BROKEN = {
    "{": "is no JSON object",
    '{"columns": [1]}': "columns.0: Input should be a valid string",
    '{"charts": {"a": "yes"}}': "charts.a: Input should be a valid boolean",
    '{"format": 99}': "format 99",
}


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_layout_is_ignored_with_a_sentence(project: Project, text: str) -> None:
    project.runs.mkdir(exist_ok=True)
    (project.runs / "board.json").write_text(text)
    layout, why = read_layout(project.runs)
    assert layout == BoardLayout() and BROKEN[text] in why and "the usual layout is shown" in why.lower()


def test_groups_show_mean_and_range_and_unfold(board: Board, made: list[RunDir]) -> None:
    board._controls.choices["group"].value = "lr"
    idle(board)
    assert listed(board) == [] and place(board) == "1 to 2 of 2 lines, 15 runs"
    text = re.sub(r"<[^>]*>", " ", board._controls.page.list)
    assert re.search(r"lr 0.0 · 8 runs.* 8 +1 to 15 .*lr 0.1 · 7 runs.* 8 +2 to 14 ", text), "of the best values"
    assert drawn(board) == {"lr 0.0 · 5 runs": (7, 11, 15, True), "lr 0.1 · 5 runs": (6, 10, 14, True)}
    tell(board, "fold", "0.1")
    assert listed(board) == ids(made[-2::-2]) and "aria-expanded='true'" in board._controls.page.list
    assert [band for *_, band in drawn(board).values()] == [True, *[False] * 5], "each run of an opened group"
    tell(board, "draw-group", "0.0")
    assert "lr 0.0 · 8 runs" in drawn(board), "those that were not drawn, too"
    tell(board, "draw-group", "0.0")
    assert "lr" not in str([*drawn(board)]) and len(board.comparison.runs) == 5


def drawn(board: Board) -> dict[str, tuple[float, float, float, bool]]:
    """Return the lowest value, the mean and the highest value of each curve of the first chart at its first step."""
    traces = board._made(lambda num_open: [(400, 200)] * num_open).shown[0].series
    return {one.run: (one.low[0], one.mean[0], one.high[0], one.is_band) for one in traces}


def test_the_mean_of_runs_is_of_those_that_have_a_step_and_shows_what_is_not_finite() -> None:
    def curve(**values: object) -> Curves:
        return curves_of(history({"step": int(step[1:]), "time": 1, "loss": value} for step, value in values.items()))

    long = curve(_2=1, _4=3, _6=5)
    mean = mean_curves([long, curve(_1=8, _5=4)])["loss"]
    assert mean.steps.tolist() == [1, 2, 4, 5, 6] and mean.num_runs == 2
    assert mean.mean.tolist() == [8, (1 + 7) / 2, (3 + 5) / 2, 4, 5]
    assert mean.low.tolist() == [8, 1, 3, 4, 5] and mean.high.tolist() == [8, 7, 5, 4, 5]
    lost = mean_curves([long, curve(_2=1, _4="NaN")])["loss"]
    assert np.isnan(lost.mean[1]) and lost.mean[2] == 5 and lost.diverged_at == 4


def test_an_eye_draws_a_run_which_keeps_its_colour_while_others_are_hidden(
    board: Board, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [run.id for run in board.comparison.runs] == ids(made[: -NUM_DRAWN - 1 : -1])
    tell(board, "draw", made[-1].id, made[0].id, "nothing", None)
    shown = {one.run.id: one.slot for one in board.comparison.members}
    assert shown[made[-2].id] == 1 and shown[made[0].id] == 0 and made[-1].id not in shown
    monkeypatch.setattr(run_lines, "MOST_RUNS", NUM_DRAWN)
    tell(board, "draw", made[-1].id)
    assert len(board.comparison.runs) == NUM_DRAWN and "hide one first" in board._controls.said.value
    tell(board, "draw", *[run.id for run in board.comparison.runs])
    assert board.comparison.runs == [] and board._made(lambda number: []).message.startswith("No run is drawn")


def test_compare_draws_the_ticked_runs_and_the_word_drawn_lists_these_alone(board: Board, made: list[RunDir]) -> None:
    tell(board, "tick", *ids(made[-3:-1]))
    press(board, "Compare")
    idle(board)
    board._controls.text.value = "drawn"
    assert listed(board) == ids(made[-2:-4:-1]) == [run.id for run in reversed(board.comparison.runs)]
    assert "What differs" in board._controls.tables.value


@pytest.mark.promise("runs-table")
def test_a_look_for_new_runs_keeps_the_choice_of_runs(
    project: Project, made: list[RunDir], opened: Callable[..., Board]
) -> None:
    boards = [opened(runs) for runs in (nt.runs(project, name="base*"), nt.runs(project)[2:])]
    label(made[0], name="other")
    shutil.rmtree(made[1].path)
    for name in ("base2", "second"):
        later = RunDir.create(project.runs, name)
        write_json(later.launch, {"name": name, "time": 1.9e9})
    for board in boards:
        tell(board, "turn", "0")
        board._controls.text.value = "lost"
    assert [[row.name for row in board._lines.fitting] for board in boards] == [["base2"], ["second", "base2"]]
    assert [len(board._lines.rows) for board in boards] == [len(made), len(made) - 1]
    assert all(made[0].id in board._lines.rows and made[1].id not in board._lines.rows for board in boards)


@pytest.mark.promise("runs-table")
def test_a_run_is_deleted_after_two_questions_and_not_before(board: Board, made: list[RunDir]) -> None:
    delete = board._removal.delete
    tell(board, "tick", made[-1].id)
    for question in ("Delete 1 run", "Yes, delete for ever"):
        delete.click()
        idle(board)
        assert delete.description == question and made[-1].path.exists()
    tell(board, "tick", made[-2].id)
    assert delete.description == "Delete…", "another choice is asked again"
    tell(board, "tick", made[-2].id)
    for _ in range(3):
        delete.click()
        idle(board)
    eventually(lambda: listed(board)[0] == made[-2].id)
    assert not made[-1].path.exists() and made[-2].path.exists()


@pytest.mark.promise("runs-table")
def test_runs_that_are_ticked_while_others_are_looked_at_are_asked_for(
    board: Board, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, real = threading.Event(), actions.plan_removal
    monkeypatch.setattr(actions, "plan_removal", lambda *given: go_on.wait(60) and real(*given))
    board._take({"act": "tick", "key": made[-1].id})
    board._removal.delete.click()
    for run in made[-2:]:
        board._take({"act": "tick", "key": run.id})
    go_on.set()
    for _ in range(3):
        assert made[-2].path.exists()
        idle(board)
        board._removal.delete.click()
    eventually(lambda: not made[-2].path.exists())
    assert made[-1].path.exists(), "it was not ticked any more"


def test_labels_are_saved_and_wrong_ones_are_explained(board: Board, made: list[RunDir]) -> None:
    tell(board, "tick", made[-1].id)
    name, tags, note = board._controls.labels.row.children
    name.value, tags.value, note.value = "good", "a, b", "mine"
    kept = read_labels(made[-1])
    assert (kept.name, kept.tags, kept.note) == ("good", ("a", "b"), "mine")
    label(made[-1], note="from a terminal")
    tags.value = ""
    assert (read_labels(made[-1]).tags, read_labels(made[-1]).note) == ((), "from a terminal")
    name.value = "not allowed"
    assert "must be a letter" in board._controls.said.value and read_labels(made[-1]).name == "good"
    tell(board, "tick", made[-1].id, made[-2].id)
    assert name.value == "" and not read_labels(made[-2]).name, "another run is shown, and not changed"


SAVES = """import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
pathlib.Path("checkpoint-5").mkdir(exist_ok=True)
pathlib.Path("checkpoint-5/trainer_state.json").write_text('{"global_step": 5}')
print(sys.argv[1:], flush=True)
time.sleep(60)
"""


@pytest.mark.promise("runs-table")
def test_a_run_is_stopped_and_resumed_from_the_list(project: Project, kept: Callable[[Board], Board]) -> None:
    project.scripts.mkdir(exist_ok=True)
    (project.scripts / "save.py").write_text(SAVES)
    program = nt.Program(script="scripts/save.py", resume=("--from", "{checkpoint}"), cwd=str(project.root))
    run = nt.launch(program, gpus=(), torchrun=False)
    eventually(lambda: "[]" in run.log())
    board = kept(Board([nt.runs(project)]))
    for name in ("Stop", "Resume", "Stop"):
        if not board._lines.chosen:
            board._take({"act": "tick", "key": listed(board)[0]})
        press(board, name)
        eventually(lambda: not board._is_acting)
        assert ("stopped" if name == "Stop" else f"Resumed {run.id} as ") in board._controls.said.value
        if name == "Resume":
            eventually(lambda: "checkpoint-5" in nt.runs(project)[0].log())
            eventually(lambda: listed(board)[0] == nt.runs(project)[0].id)  # the board looks for itself
            board._take({"act": "tick", "key": listed(board)[1]})
    assert [each.state for each in nt.runs(project)] == ["STOPPED", "STOPPED"]


def test_a_board_is_closed_while_its_thread_reads(
    project: Project, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, may_end = threading.Event(), threading.Event()

    def slow(run: Run, row: RunRow) -> RunValues:
        reading.set()
        may_end.wait(60)
        return run_values(run, row)

    monkeypatch.setattr(run_lines, "run_values", slow)
    board = Board([nt.runs(project)])
    assert reading.wait(60)
    thread, closer = board._thread, threading.Thread(target=board.close)
    closer.start()
    may_end.set()
    closer.join(60)
    assert thread is not None and not thread.is_alive() and not closer.is_alive()
    assert board.widget.comm is None


def test_every_text_of_a_run_is_escaped(made: list[RunDir], project: Project, opened: Callable[..., Board]) -> None:
    hostile = "<img src=x onerror=alert(1)>'"
    label(made[-1], tags=["<i>"], note=hostile)
    write_json(made[-1].config, {"config": {hostile: 1, "lr": hostile}})
    made[-1].metrics.write_text('{"step": 1, "<img>loss": 1.0}\n{"step": 2, "<img>loss": 2.0}\n')
    write_json(made[-1].launch, {"name": hostile, "recipe": hostile, "script": hostile, "time": 1.9e9})
    board = opened(nt.runs(project))
    board._controls.columns.value = [hostile, *board._controls.columns.value]
    board._controls.choices["group"].value = "lr"
    idle(board)
    tell(board, "fold", hostile)
    for html in (board._controls.page.list, board._controls.tables.value):
        assert "<img" not in html and "<i>" not in html
    assert "onerror=alert(1)&gt;&#x27;" in board._controls.page.list


def test_the_stored_outputs_have_a_constant_text_and_are_renewed(
    board: Board, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[Any] = []
    publish = lambda data, metadata, transient, update=False: published.append((data, update))  # noqa: E731
    monkeypatch.setattr("nbtools.notebook.widgets._publish", publish)
    monkeypatch.setattr(InteractiveShell, "initialized", lambda: True)
    board._ipython_display_()
    board._store(at_once=True)
    assert [update for _, update in published] == [False] * 4 + [True] * 3
    outputs = [output for output, _ in published[:4]]
    assert [output["text/plain"] for output in outputs] == ["a board of runs", "", "", ""]
    assert made[-1].id in outputs[2]["text/html"] and "What differs" in outputs[2]["text/html"]
    height = RunFigure(titled=False, runs=run_legend(board.comparison.members)).height
    assert Image.open(io.BytesIO(outputs[1]["image/png"])).height == 2 * height, "with the legend of the runs"
    assert made[-1].id in board._controls.plain.value, "shown until the page draws the list"
    board._canvas._handle_custom_msg({"ready": True, "width": 900}, [])
    assert not board._controls.plain.value


def test_a_long_run_delays_no_other_row_and_is_read_by_a_process_of_its_own(
    project: Project, made: list[RunDir], opened: Callable[..., Board]
) -> None:
    rows = "".join(
        f'{{"step": {step}, "time": {1.8e9 + step}, "train/loss": {abs(step - 9000)}}}\n' for step in range(30_000)
    )
    made[0].metrics.write_text(rows)
    board = opened(nt.runs(project))
    began = run_values(Run(made[0].path), board._lines.rows[made[0].id])
    assert not began.is_whole and began.ends["train/loss"].best is None, "the first and last rows"
    tell(board, "sort", "best")
    assert listed(board)[0] == made[0].id and board._lines.values[made[0].id].ends["train/loss"].best_step == 9000


def test_without_the_widgets_a_notebook_shows_the_plain_table(
    project: Project, made: list[RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nbtools.notebook.board.board", None)
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    assert DisplayFormatter().ipython_display_formatter(nt.runs(project)), "nothing else is asked"
    (bundle,) = shown
    assert made[-1].id in bundle["text/html"] and bundle["text/plain"].startswith("<15 runs")


def test_the_scatter_shows_the_runs_that_fit_at_two_columns_and_a_point_draws_its_run(
    board: Board, made: list[RunDir], project: Project, opened: Callable[..., Board]
) -> None:
    assert board._controls.scatter.list == ""
    for number, run in enumerate(made):
        write_json(run.config, {"config": {"lr": 10.0 ** -(number % 5), "kind": "ab"[number % 2]}, "derived": {}})
    board = opened(nt.runs(project))
    board._controls.choices["over"].value = "lr"
    idle(board)
    shown = board._controls.scatter.list
    assert "best train/loss over lr, 15 of 15 runs" in shown, "all runs were read"
    places = re.findall(r"data-key='([^']*)'.*?aria-pressed='(\w*)' style='left:([\d.]*)%;bottom:([\d.]*)%", shown)
    assert [name for name, *_ in places] == ids(made[::-1])
    assert [pressed for _, pressed, *_ in places] == ["true"] * NUM_DRAWN + ["false"] * 5
    lefts = [float(left) for *_, left, _ in places[:5]]
    assert np.diff(lefts, 2) == pytest.approx(0, abs=0.03), "the axis of a wide range is logarithmic"
    assert [float(up) for *_, up in places] == sorted((float(up) for *_, up in places), reverse=True)
    board._controls.scatter._handle_custom_msg({"act": "draw", "key": made[0].id}, [])
    idle(board)
    assert made[0].id in board._lines.slots
    board._controls.choices["over"].value, board._controls.text.value = "kind", "2026-01-0"
    idle(board)
    assert "over kind, 9 of 9 runs" in board._controls.scatter.list and ">a</b>" in board._controls.scatter.list
    assert opened(nt.runs(project))._controls.choices["over"].value == "kind", "it is kept"
