"""Runs side by side in a notebook: charts, tables, pictures, and what a saved notebook keeps."""

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from ipywidgets import HTML
from matplotlib.text import Text
from PIL import Image
from run_folder import RunFolder
from widget_tree import every

from nbtools.errors import ConfigError
from nbtools.metrics.history import History
from nbtools.notebook.board.board import Board, compare
from nbtools.notebook.board.curve_reader import CurveReader
from nbtools.notebook.comparison.overlay import overlay, role, run_legend
from nbtools.notebook.comparison.tables_html import scaling_rows, tables_html
from nbtools.notebook.plots.charts import PALETTE, Charts
from nbtools.notebook.plots.figure import RunFigure
from nbtools.notebook.plots.view import Options
from nbtools.project import Project
from nbtools.run.compare import ComparedRun, Comparison, compare_runs
from nbtools.run.curves import SMALL_BYTES, cached, curves_of, read_curves
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

MakeRun = Callable[..., Run]
Keep = Callable[[Board], Board]
SIZE = (400.0, 200.0)


@pytest.fixture
def make(project: Project) -> MakeRun:
    """Make an ended run with rows, as the launcher and rank 0 write it."""

    def make_run(name: str, values: Mapping[str, Any], num_rows: int = 50, nproc: int = 1, **more: float) -> Run:
        files = RunDir.create(project.runs, name)
        files.lock.touch()
        number = len(list(project.runs.iterdir()))
        run = RunFolder(files, 1.7e9 + number, name=name, recipe="none", launch={"nproc_per_node": nproc})
        write_json(files.config, {"config": dict(values), "derived": {"total_steps": num_rows}})
        rows, common = [], {"train/learning_rate": 0.1, **more}
        for step in range(1, num_rows + 1):
            row = {"step": step, "time": 1.7e9 + step / nproc, "samples": 8 * step, "train/loss": 5 / step + number}
            rows.append({**row, "eval/accuracy": step / (num_rows + number), **common})
        run.write(rows)
        write_json(files.finished, {"why": "completed", "step": num_rows, "metrics": {}})
        return Run(files.path)

    return make_run


def charts_of_runs(comparison: Comparison, **options: Any) -> Charts:
    chosen, read = Options(**options), comparison.with_curves(read_curves)
    return overlay(read.split_by(chosen.split), chosen, lambda number: [SIZE] * number)


def test_every_run_has_one_colour_in_all_charts(make: MakeRun) -> None:
    found = charts_of_runs(compare_runs(make("a", {"lr": 1}), make("b", {"lr": 2})))
    assert [chart.key for chart in found.shown] == ["train/loss", "eval/accuracy", "train/learning_rate"]
    for chart in found.shown:
        assert [(trace.run, trace.colour) for trace in chart.series] == [("a", "run0"), ("b", "run1")]
    assert found.limits == (0.0, 50.0)


def test_twenty_runs_have_twenty_looks() -> None:
    assert len({(PALETTE[colour], dash) for colour, dash in map(role, range(20))}) == 20


def test_a_split_makes_a_chart_per_value_with_one_y_axis(make: MakeRun) -> None:
    runs = [make("a", {"lr": 1}), make("b", {"lr": 2}), make("c", {"lr": 1})]
    found = charts_of_runs(compare_runs(*runs), split="lr", metrics=("loss",))
    assert [chart.title for chart in found.shown] == ["train/loss · lr 1", "train/loss · lr 2"]
    assert [[trace.run for trace in chart.series] for chart in found.shown] == [["a", "c"], ["b"]]
    assert found.shown[0].y == found.shown[1].y
    with pytest.raises(ConfigError, match="split='lrs'"):
        charts_of_runs(compare_runs(*runs), split="lrs")


@pytest.mark.parametrize(("x", "limits"), [("samples", (0.0, 400.0)), ("relative", (0.0, 49.0))])
def test_the_x_axis_is_the_same_for_all_runs(make: MakeRun, x: str, limits: tuple[float, float]) -> None:
    found = charts_of_runs(compare_runs(make("a", {}), make("b", {}, nproc=2)), x=x)
    assert found.x == x and found.limits == limits
    slow, fast = found.shown[0].series
    assert fast.x[-1] == (slow.x[-1] if x == "samples" else slow.x[-1] / 2)


def test_the_run_that_diverged_first_is_named(make: MakeRun) -> None:
    a, b = make("a", {}), make("b", {})
    with b.files.metrics.open("a") as file:
        file.write('{"step": 51, "train/loss": "NaN"}\n')
    badge = charts_of_runs(compare_runs(a, b)).shown[0].badge
    assert badge is not None and badge.text == "b diverged at step 51"


def test_the_picture_has_a_legend_of_all_runs_and_stays_small(make: MakeRun) -> None:
    found = compare_runs([make(f"run_{number}", {"lr": number}) for number in range(20)])
    figure = RunFigure(runs=run_legend(found.members))
    texts = {text.get_text() for text in figure.draw(charts_of_runs(found)).findobj(Text)}
    assert {one.label for one in found.members} <= texts
    data = figure.png(charts_of_runs(found))
    assert len(data) < 100_000 and Image.open(io.BytesIO(data)).width == 1800


# --- tables -----------------------------------------------------------------------------------------


def plain_text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()


def test_tables_tell_what_differs_and_mark_the_best(make: MakeRun) -> None:
    found = compare_runs(make("a", {"lr": 1, "layers": 2}), make("b", {"lr": 2, "layers": 2}))
    html = tables_html(found.with_curves(read_curves))
    words = plain_text(html)
    assert "What differs field a b state SUCCEEDED SUCCEEDED step 50/50 50/50 lr 1 2 train/loss" in words
    assert "layers" not in words
    assert "<b>1.1 (50)</b> → 1.1" in html, "the least loss"
    assert "Scaling" not in words


@pytest.mark.promise("source")
def test_scripts_that_differ_are_shown_and_uncommitted_changes_in_the_widgets_alone(make: MakeRun, kept: Keep) -> None:
    runs = make("a", {"lr": 1}), make("b", {"lr": 1}), make("c", {"lr": 1})
    for run, line, diff in zip(runs, ("x < 1", "x < 2", "x < 1"), ("", "-old\n+<b>new</b>\n", ""), strict=True):
        run.files.script.write_text(f"first\n{line}\n")
        run.files.source.write_text(diff)
        code = {"commit": "a" * 40, "lines": 2 * bool(diff), "sha256": "b" * 64 if diff else None}
        write_json(run.files.launch, {**run.info, "code": code})
    panel = kept(compare(*(Run(run.dir) for run in runs)))
    assert panel._controls.tables.value.count("<details") == 1, "c has the script of a"
    told = plain_text(panel._controls.tables.value)
    assert "Script of b against that of a @@ -1,2 +1,2 @@ first -x &lt; 1 +x &lt; 2" in told
    assert "new" not in panel._controls.tables.value, "a saved notebook keeps the tables"
    code = "Uncommitted changes of b (2 lines) -old +&lt;b&gt;new&lt;/b&gt;"
    assert code in [plain_text(part.value) for part in every(panel.widget) if isinstance(part, HTML)]


def test_runs_on_more_processes_get_a_card_on_scaling(make: MakeRun) -> None:
    runs = [make("one", {}), make("two", {}, nproc=2, **{"train/data_wait": 0.25, "train/peer_wait": 0.125})]
    words = plain_text(tables_html(compare_runs(runs).with_curves(read_curves)))
    assert "Scaling run processes throughput efficiency waiting for data for other processes" in words
    assert "one 1 8 samples/s 100% not recorded –" in words and "two 2 16 samples/s 100% 25% 12%" in words


def test_without_samples_scaling_counts_steps(make: MakeRun) -> None:
    def ran(nproc: int, seconds: float) -> ComparedRun:
        history = History()
        history.extend("".join(f'{{"step":{n},"time":{n * seconds},"loss":1}}\n' for n in range(1, 9)).encode())
        return replace(some, nproc=nproc, curves=curves_of(history))

    (some,) = compare_runs(make("a", {}), least=1).members
    (_, _, (_, _, rate, efficiency, *_)), _ = scaling_rows([ran(1, 1.0), ran(4, 0.5)])
    assert rate == "2 steps/s" and plain_text(efficiency) == "50%"
    assert scaling_rows([ran(2, 1.0), ran(2, 0.5)]) == ([], "")


# --- the panel --------------------------------------------------------------------------------------


def test_rows_of_an_active_run_are_drawn_as_they_come(make: MakeRun, kept: Keep) -> None:
    a, b = make("a", {"lr": 1}), make("b", {"lr": 2})
    panel = kept(compare(a, b))
    with b.files.metrics.open("a") as file:
        file.write('{"step": 60, "train/loss": 0.5}\n')
    panel.refresh()
    assert panel._reader.curves[b.id]["train/loss"].ends.last_step == 60


def test_a_long_run_is_read_by_a_process_of_its_own(make: MakeRun, kept: Callable[[Any], CurveReader]) -> None:
    a, b = make("a", {"lr": 1}), make("b", {"lr": 2}, num_rows=9000)
    assert b.files.metrics.stat().st_size > SMALL_BYTES
    reader = kept(CurveReader())
    assert reader.look([a, b]) and reader.unread == [b] and reader.is_reading
    assert not reader.curves[b.id]["train/loss"].is_complete
    assert reader._child is not None and reader._child.wait(60) == 0
    assert reader.look([a, b]) and not reader.unread and not reader.look([a, b])
    assert reader.curves[b.id]["train/loss"].counts.sum() == 9000 and cached(b) is not None
    assert b.rows._written.num_rows == 0, "its rows are not in this process"


# --- the command line -------------------------------------------------------------------------------


def test_plot_draws_several_runs_over_each_other(make: MakeRun, cli: Callable[..., Any], project: Project) -> None:
    a, b = make("lr_a", {"lr": 1}), make("lr_b", {"lr": 2})
    path = project.root / "both.png"
    assert cli("plot", a.id, b.id, "-o", path).stdout == f"{path}\n"
    first = path.read_bytes()
    assert cli("plot", "lr_*", "-o", path).stdout == f"{path}\n" and path.read_bytes() == first
    cli("plot", "lr_*", "-o", path, "--split", "lr", "--x", "relative", "--log")
    assert path.read_bytes() not in (first, b"")
    refused = cli("plot", "lr_*", "-o", path, "--split", "seed", code=2).stderr
    assert "split='seed': no compared run has such a field" in refused
    assert "is for several runs" in cli("plot", a.id, "-o", path, "--split", "lr", code=2).stderr
    assert "'x*': fits no name" in cli("plot", "x*", "-o", path, code=2).stderr
    assert f"{a.id}: was given twice" in cli("plot", a.id, b.id, a.id, "-o", path).stderr
    assert "must end in .png" in cli("plot", a.id, b.id, "-o", "x.pdf", code=2).stderr
