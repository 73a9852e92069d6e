"""What a chart is: which ones are open, their limits, curves and marks, before any renderer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from curves import charts, history, repeated

from nbtools.metrics.history import History
from nbtools.notebook.plots.charts import page_sizes
from nbtools.notebook.plots.decimation import smooth
from nbtools.notebook.plots.view import View


def noisy(num_rows: int) -> History:
    values = np.random.default_rng(0).normal(size=num_rows) + np.linspace(5, 1, num_rows)
    return history({"step": i, "time": 1e9 + i, "train/loss": v} for i, v in enumerate(values.tolist()))


NAMES = ("train/loss", "eval/loss", "train/learning_rate", "train/tokens_per_s", "train/grad_norm", "kl", "gate/depth")
MANY = repeated(**dict.fromkeys((*NAMES, "train/epoch", "train/data_wait"), 2.0))


WIDE = ("accuracy", "exact", "flat_accuracy", "precision", "recall", "f1", "majority_accuracy")
PREFIXES = {
    "scores of codes": [f"eval/accuracy_code{index}" for index in range(40)],
    "returns": [f"eval/return_task_with_a_long_name_{index}" for index in range(40)],
    "no usual metric": [f"gate/{index}" for index in range(40)],
    "losses": [f"{split}/{base}loss" for split in ("train", "eval", "val") for base in ("", "oracle_", "unigram_")],
    "scores and a baseline": [f"{split}/{name}" for split in ("eval", "train") for name in WIDE],
}


def opened(view: View) -> list[str]:
    return [chart.key for chart in charts(view).shown]


def test_every_metric_has_a_chart_and_the_unusual_ones_are_closed_and_named() -> None:
    found = charts(View(MANY)).charts
    assert sorted(name for chart in found for name in chart.names) == sorted(MANY)
    assert [chart.key for chart in found if chart.is_open] == ["loss", "learning_rate", "throughput", "grad_norm"]
    closed = [chart for chart in found if not chart.is_open]
    assert [chart.title for chart in closed] == ["kl", "gate/depth", "train/epoch", "train/data_wait"]
    assert not any(chart.series for chart in closed)


def test_times_speeds_and_memory_leave_the_open_charts_to_metrics() -> None:
    costs = ("time_s", "data", "batch_cost", "iter_time", "gpu_mem", "ips", "wps", "ups", "elapsed", "max_memory_gb")
    names = [f"train/{name}" for name in (*costs, "loss", "learning_rate", "loss_cls", "cost", "timestep_embedding")]
    found = charts(View(repeated(**dict.fromkeys(names, 1.0)))).charts
    assert [chart.key for chart in found if chart.is_open] == ["loss", "learning_rate", "loss_cls", "cost"]
    assert {chart.key for chart in found[5:]} == {*costs}


def test_a_run_with_nothing_but_times_shows_them() -> None:
    assert opened(View(repeated(**{"train/iter_time": 1.0}))) == ["iter_time"]


def test_rows_that_are_only_numbered_are_drawn_by_time() -> None:
    made, rows = History(), noisy(5)["train/loss"]
    made.add("train/loss", rows.steps, rows.values, rows.times, unit="row")
    drawn = charts(View(made))
    assert (drawn.x, drawn.limits) == ("relative", (0.0, 4.0)) and "step" not in drawn.kinds
    assert drawn.note == "Rows have no counter: they are drawn by order"


def test_curves_of_different_units_have_no_axis_but_time_and_it_is_said() -> None:
    made = history({"step": i, "time": 1e9 + i, "train/loss": 1.0} for i in range(80))
    made.add("eval/loss", [1280, 2560], [1.0, 0.5], [1e9 + 20, 1e9 + 40], unit="sample")
    drawn = charts(View(made, checkpoints=[(40, None)]))
    assert (drawn.x, list(drawn.kinds), drawn.limits) == ("relative", ["time", "relative"], (0.0, 79.0))
    assert drawn.note.endswith("have only time in common (train/loss: steps; eval/loss: samples)")
    (chart,) = drawn.shown
    assert {trace.name: float(trace.x[-1]) for trace in chart.series} == {"train/loss": 79.0, "eval/loss": 40.0}
    assert [mark.x for mark in chart.marks] == [40.0]


def test_without_times_curves_of_other_units_are_not_drawn_beside_steps() -> None:
    made = history({"step": i, "train/loss": 1.0} for i in range(80))
    for name in ("eval/loss", "eval/accuracy"):
        made.add(name, [1, 2], [1.0, 0.5], [float("nan")] * 2, unit="epoch")
    drawn = charts(View(made))
    assert (drawn.x, drawn.limits, [trace.name for trace in drawn.shown[0].series]) == (
        "step",
        (0.0, 79.0),
        ["train/loss"],
    )
    assert drawn.note.endswith("(train/loss: steps; eval/loss, eval/accuracy: epochs): only steps are")


def test_an_axis_of_epochs_is_named_so() -> None:
    made = History()
    made.add("eval/loss", [1, 2], [1.0, 0.5], [1.0, 2.0], unit="epoch")
    drawn = charts(View(made))
    assert (drawn.x, drawn.x_label, drawn.note) == ("step", "epoch", "")


@pytest.mark.parametrize("names", PREFIXES.values(), ids=PREFIXES.keys())
def test_each_of_many_metrics_is_in_one_chart_that_labels_it(names: list[str]) -> None:
    made = repeated(**{"train/grad_norm": 1.0}, **dict.fromkeys(names, 0.5))
    closed = charts(View(made))
    assert sorted(name for chart in closed.charts for name in chart.names) == sorted(["train/grad_norm", *names])
    assert not any(chart.series for chart in closed.charts if not chart.is_open)
    every = charts(View(made, metrics=("*",)))
    assert (
        [chart.key for chart in every.charts]
        == [chart.key for chart in closed.charts]
        == opened(View(made, metrics="*"))
    )
    assert (
        len({chart.key for chart in every.charts}) == len({chart.title for chart in every.charts}) == len(every.charts)
    )
    for chart in every.charts:
        looks = [(trace.colour, trace.dash) for trace in chart.series if trace.colour != "muted"]
        assert len(set(looks)) == len(looks) and len(chart.series) == len(chart.names) <= 5
        labels = [trace.label for trace in chart.series]
        assert len(labels) < 3 or len(set(labels)) == len(labels)
    assert opened(View(made, metrics=("grad*",))) == ["grad_norm"]


def test_parts_of_a_group_are_named_in_turn_and_open_one_by_one() -> None:
    names = [f"eval/accuracy_code{index}" for index in range(40)]
    made = repeated(**dict.fromkeys(names, 0.5))
    (first,) = charts(View(made)).shown
    assert first.key == "scores" and first.title.startswith("Scores, 1 of ")
    (found,) = charts(View(made, metrics=("code17",))).shown
    assert "eval/accuracy_code17" in found.names and found.key != "scores"
    assert opened(View(made, opened={"scores": False, found.key: True})) == [found.key]
    one = charts(View(made, metrics=("scores",), switched=frozenset({found.key}))).shown
    assert [chart.key for chart in one if chart.is_log] == [found.key]


@pytest.mark.parametrize(
    ("metrics", "keys"),
    [
        (("grad*",), ["grad_norm"]),
        (("loss",), ["loss"]),
        (("eval/*",), ["loss"]),
        (("gate/*", "KL"), ["kl", "gate/depth"]),
        (("data",), ["train/data_wait"]),
        (("nothing",), []),
    ],
)
def test_patterns_open_the_charts_of_the_metrics_that_they_match(metrics: tuple[str, ...], keys: list[str]) -> None:
    assert opened(View(MANY, metrics=metrics)) == keys


def test_each_chart_has_a_logarithmic_axis_of_its_own() -> None:
    found = {chart.key: chart for chart in charts(View(MANY, switched=frozenset({"loss", "learning_rate"}))).charts}
    assert (found["loss"].is_log, found["grad_norm"].is_log, found["learning_rate"].is_log) == (True, False, False)
    found = {chart.key: chart for chart in charts(View(MANY, log=True, switched=frozenset({"loss"}))).charts}
    assert (found["loss"].is_log, found["grad_norm"].is_log) == (False, True)
    assert found["grad_norm"].y[0] < np.log10(2) < found["grad_norm"].y[1]


@pytest.mark.parametrize("num_rows", [300, 20_000])
def test_the_smoothed_line_is_the_same_in_every_part_of_the_axis(num_rows: int) -> None:
    made = noisy(num_rows)
    (whole,) = charts(View(made, smoothing=0.9)).shown[0].series
    span = 0.5 * num_rows, 0.7 * num_rows
    zoomed = charts(View(made, smoothing=0.9, span=span))
    (part,) = zoomed.shown[0].series
    assert zoomed.limits == span
    inside = (part.x >= span[0]) & (part.x <= span[1])
    assert inside.sum() > 50
    np.testing.assert_allclose(part.bold[inside], np.interp(part.x[inside], whole.x, whole.bold), rtol=1e-12)


@pytest.mark.parametrize(("num_points", "share"), [(5, 0.1), (25, 0.5), (50, 1.0), (400, 1.0)])
def test_few_points_are_smoothed_less(num_points: int, share: float) -> None:
    (line,) = charts(View(noisy(num_points), smoothing=0.8)).shown[0].series
    np.testing.assert_allclose(line.bold, smooth(line.mean, 0.8 * share))


def test_a_part_of_the_axis_does_not_move_when_rows_arrive() -> None:
    made = noisy(100)
    before = charts(View(made, span=(20.0, 40.0)))
    made.extend(b'{"step": 5000, "time": 2e9, "train/loss": 1.0}\n')
    after = charts(View(made, span=(20.0, 40.0)))
    assert before.limits == after.limits == (20.0, 40.0) and before.full != after.full
    assert before.is_zoomed and not charts(View(made)).is_zoomed


def test_the_best_checkpoint_is_known() -> None:
    view = View(MANY, checkpoints=[(1, 2.0), (2, 1.5), (2, None)])
    assert [mark.kind for mark in charts(view).shown[0].marks] == ["checkpoint", "best", "checkpoint"]


def test_a_narrow_page_has_one_chart_in_a_row() -> None:
    assert page_sizes(4, 900) == [(378, 190)] * 4 and page_sizes(4, 500) == [(428, 197)] * 4
    assert page_sizes(1, 900) == [(828, 197)] and page_sizes(3, 1200) == [(328, 162)] * 3
    assert page_sizes(2, 1600) == [(728, 197)] * 2


# --- the axis -------------------------------------------------------------------------------------

TIMED = history(
    {"step": i, "time": 1e9 + 2 * i + (1000 if i > 60 else 0), "samples": 32 * i, "loss": 5 / i} for i in range(1, 101)
)


@pytest.mark.parametrize(
    ("options", "end"),
    [
        ({"x": "step"}, 100.0),
        ({"x": "samples"}, 3200.0),
        ({"x": "time"}, 1e9 + 1200),
        ({"x": "relative"}, 1198.0),
        ({"x": "relative", "resumed_at": 60}, 198.0),  # without the pause before the resume
    ],
)
def test_the_x_axis_counts_steps_samples_or_seconds(options: dict[str, Any], end: float) -> None:
    assert charts(View(TIMED, smoothing=0.0, **options)).shown[0].series[0].x[-1] == end


def test_an_axis_that_nothing_counts_falls_back_to_steps() -> None:
    assert charts(View(repeated(2, loss=1.0), x="samples")).x == "step"


@pytest.mark.parametrize(("x", "end"), [("step", 105.0), ("samples", 3360.0), ("relative", 208.0), ("time", 210.0)])
def test_the_axis_reaches_the_checkpoint_of_a_stop(x: Any, end: float) -> None:
    rows = [{"step": i, "time": 2 * i, "samples": 32 * i, "loss": 1 / i} for i in range(1, 101)]
    view = View(history(rows), checkpoints=[(105, None), (50, 0.2)], x=x)
    drawn = charts(view)
    assert max(mark.x for mark in drawn.shown[0].marks) == pytest.approx(end) == drawn.limits[1]
    assert charts(replace(view, checkpoints=[(50, None)])).limits[1] < end


def test_the_most_that_is_possible_is_a_level_and_returns_begin_at_zero() -> None:
    returns = {"eval/return_last": 11.5, "eval/return_first": 1.25, "eval/return_best": 15.75}
    (chart,) = charts(View(repeated(**returns))).shown
    assert [trace.dots for trace in chart.series] == [True, True, False]
    assert len({trace.colour for trace in chart.series}) == 3 and chart.y[0] == 0


def test_charts_adapt_to_a_foreign_run() -> None:
    rows = [{"step": i, "time": i, "loss": 1.0, "reward": i, "kl": 0.1} for i in range(10)]
    assert [chart.title for chart in charts(View(history(rows))).shown] == ["Loss", "reward", "kl"]


def test_a_passing_infinity_is_counted_but_is_no_divergence() -> None:
    made = history({"step": i, "grad_norm": value} for i, value in enumerate([1.0, "Infinity", 2.0, 3.0], 1))
    badge = charts(View(made)).shown[0].badge
    assert badge is not None and badge.text == "1 not finite, first at step 2"
