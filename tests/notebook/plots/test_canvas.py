"""The canvas's side in the kernel: what is sent to the page, and what its messages do. A browser draws it elsewhere."""

import json
import time
from typing import Any

import numpy as np
import pytest
from curves import charts, history

from nbtools.metrics.history import History
from nbtools.notebook.plots.canvas import Canvas, packed
from nbtools.notebook.plots.charts import INK, PALETTE, charts_of
from nbtools.notebook.plots.decimation import Curve
from nbtools.notebook.plots.figure import SCALE, RunFigure
from nbtools.notebook.plots.view import Choices, Options, View


def noisy(num_rows: int, first: int = 1, **extra: Any) -> History:
    """A history with noise, a schedule, evaluations and a baseline."""
    random, rows = np.random.default_rng(0), []
    for i in range(num_rows):
        row = {"step": first + i, "time": 1e9 + i, "samples": 32 * i, "train/loss": 5 + random.normal() / 9}
        row |= {"train/learning_rate": 1e-3, "train/grad_norm": 1 + random.random(), "train/tokens_per_s": 9.0, **extra}
        rows.append(row | ({"eval/loss": 6 - i / num_rows, "eval/unigram_loss": 7.0} if i % 20 == 0 else {}))
    return history(rows)


def unpacked(spec: dict[str, Any], data: bytes) -> dict[str, dict[str, Any]]:
    """The columns of each curve, read as canvas.js does."""
    found = {}
    for series in (series for chart in spec["charts"] for series in chart.get("series", ())):
        columns = (np.frombuffer(data, "<f8", series["n"], at) for at in series["at"])
        found[series["name"]] = dict(zip(("x", "low", "high", "mean", "bold"), columns, strict=True))
    return found


def test_the_page_gets_the_columns_at_whole_multiples_of_eight_bytes() -> None:
    made = charts(View(noisy(3000)))
    spec, data = packed(made)
    json.dumps(spec, allow_nan=False)
    found = unpacked(spec, data)
    traces = {trace.name: trace for chart in made.shown for trace in chart.series}
    names = {"train/loss", "eval/loss", "eval/unigram_loss", "train/learning_rate"}
    assert found.keys() == traces.keys() == names | {"train/grad_norm", "train/tokens_per_s"}
    described = {series["name"]: series for chart in spec["charts"] for series in chart.get("series", ())}
    for name, trace in traces.items():
        for column, values in found[name].items():
            np.testing.assert_allclose(values, getattr(trace, column), rtol=1e-6)
    offsets = [at for series in described.values() for at in series["at"]]
    assert not any(at % 8 for at in offsets)


def test_equal_columns_are_sent_once() -> None:
    few = packed(charts(View(noisy(50), smoothing=0.0)))
    for series in (series for chart in few[0]["charts"] for series in chart["series"]):
        assert len(set(series["at"])) == 2, "an exact line has one column of values"
    spec, _ = packed(charts(View(noisy(3000))))
    places = [series["at"][0] for chart in spec["charts"] for series in chart["series"] if not series["is_exact"]]
    assert len(places) == 4 and len(set(places)) == 1, "the x of all columns of one axis"


def test_steps_beyond_the_precision_of_float32_stay_apart() -> None:
    (trace, *_) = unpacked(*packed(charts(View(noisy(60, first=2**40 + 1))))).values()
    assert np.diff(trace["x"]).tolist() == [1.0] * 59


def test_values_that_are_not_finite_are_gaps_and_the_description_stays_json() -> None:
    made = noisy(10)
    made.extend(
        b'{"step": 11, "time": 2e9, "train/loss": "NaN", "eval/unigram_loss": "NaN", "train/grad_norm": 1e300}\n'
    )
    spec, data = packed(charts(View(made, checkpoints=[(5, float("nan")), (6, 5.0)])))
    json.dumps(spec, allow_nan=False)
    found, (loss, *_) = unpacked(spec, data), spec["charts"]
    assert np.isnan(found["train/loss"]["mean"][-1])
    assert [mark["y"] for mark in loss["marks"]] == [None, 5.0]
    assert loss["badge"]["text"] == "diverged at step 11"


def test_a_closed_chart_sends_its_name_alone() -> None:
    names = {f"extra/{i}": 1.0 for i in range(37)}
    many, few = noisy(2000, **names), noisy(2000)
    spec, data = packed(charts(View(many)))
    assert len(data) == len(packed(charts(View(few)))[1])
    closed = [chart for chart in spec["charts"] if not chart["open"]]
    assert len(closed) == 37
    assert all(chart.keys() == {"key", "title", "open", "names", "section"} for chart in closed)
    assert {chart["section"] for chart in closed} == {"extra"}


@pytest.mark.parametrize("smoothing", [0.6, 0.0])
@pytest.mark.parametrize("log", [False, True])
def test_picture_and_canvas_have_the_same_limits_series_labels_and_marks(log: bool, smoothing: float) -> None:
    marks = {"checkpoints": [(1000, 5.2), (2000, None)], "resumed_at": 500, "restarted_at": [1500]}
    marks["limits"] = [("train/loss", ">", "8"), ("train/grad_norm", ">", "1e9"), ("no/metric", "<", "1")]
    view = View(noisy(3000), log=log, smoothing=smoothing, **marks)
    figure = RunFigure(titled=False)
    drawn = charts_of(view, figure.sizes)
    axes_of = figure.draw(drawn).axes
    spec, data = packed(charts(view))
    columns = unpacked(spec, data)
    opened = [chart for chart in spec["charts"] if chart["open"]]
    assert len(opened) == len(axes_of) == 4
    kinds: set[tuple[bool, bool]] = set()
    for axes, chart, picture in zip(axes_of, opened, drawn.shown, strict=True):
        assert picture.title == chart["title"]
        low, high = chart["y"]
        assert (low, high) == pytest.approx(picture.y) and axes.get_ylim() == picture.y
        assert [(s["name"], s["label"], s["colour"], s["dash"]) for s in chart["series"]] == [
            (trace.name, trace.label, trace.colour, trace.dash) for trace in picture.series
        ]
        lines = {line.get_label(): line for line in axes.lines}
        height = axes.get_window_extent().height / SCALE
        for series in chart["series"]:
            column = columns[series["name"]]
            curve = Curve(*(column[name] for name in ("x", "low", "high", "mean")), series["per_column"])
            line, extremes = lines[series["name"]], curve.path()[1]
            assert line.get_color() == PALETTE.get(series["colour"], INK)
            shown = [(line, column["bold"] if series["is_smoothed"] else extremes)]
            shown += [(lines[f"raw {series['name']}"], extremes)] if series["is_smoothed"] else []
            kinds.add((series["is_smoothed"], curve.is_exact))
            for artist, values in shown:
                there = np.log10(values) if chart["is_log"] else values
                y = np.asarray(artist.get_ydata())  # that of the parent is another line
                assert np.nanmax(np.abs(y - there[len(there) - len(y) :])) / (high - low) * height < 1.5
        assert [mark["x"] for mark in chart["marks"]] == (lines["mark"].get_xdata() if "mark" in lines else [])
        assert [x for x, _ in chart["cuts"]] == [x for x, _ in picture.cuts] == [500, 1500]
        assert chart["veil"] == picture.veil == 500
    highest = {picture.key: picture.y[1] for picture in drawn.shown}
    assert highest["loss"] > (np.log10(8) if log else 8)
    assert highest["grad_norm"] < 3, "a limit far off does not flatten the curve"
    assert kinds >= {(smoothing > 0, False), (False, True)}, "lines of few points, and through all extremes"


def test_the_canvas_sends_one_consistent_state() -> None:
    sent: list[dict[str, Any]] = []
    canvas = Canvas(lambda message: None)
    canvas.send_state = lambda key=None: sent.append({name: getattr(canvas, name) for name in key})
    canvas.show(charts(View(noisy(30))), alt="curves of x")
    assert len(sent) == 1 and sent[0].keys() == {"spec", "data", "version"}
    assert sent[0]["spec"]["alt"] == "curves of x"


def test_an_axis_of_the_clock_tells_the_zone_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    try:
        told = [packed(charts(View(noisy(50), x=x)))[0]["x"]["ahead"] for x in ("time", "step")]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert told == [19_800, 0]


def test_a_page_without_an_open_chart_says_so_and_names_the_filter() -> None:
    canvas, loss = Canvas(lambda message: None), noisy(30)
    canvas.show(charts(View(loss, metrics=("nothing*",))), alt="", filter="nothing*")
    assert canvas.spec["message"] == "No chart is open: the filter is nothing*"
    canvas.show(charts(View(loss, metrics=("grad*",))), alt="", filter="grad*")
    assert canvas.spec["message"] == ""
    canvas.show(charts(View(loss, opened={chart["key"]: False for chart in canvas.spec["charts"]})), alt="")
    assert canvas.spec["message"] == "No chart is open"


# --- messages ---


def test_messages_choose_the_axis_the_span_and_the_open_charts() -> None:
    choices = Choices(Options(metrics=("loss",)))
    for message in (
        {"ready": True, "width": 640},
        {"zoom": [200, 600.5]},
        {"open": ["kl"], "is_open": True},
        {"open": ["loss", 3], "is_open": False},
        {"y": "kl", "limits": [0, 1]},
        {"y": "kl", "limits": None},
        {"y": "loss", "limits": [-1, 2.5]},
        {"y": "loss2", "limits": [2, 1]},
        {"only": "loss"},
        {"log": "loss"},
        {"log": "kl"},
        {"log": "kl"},
    ):
        choices.take(message)
    assert (choices.is_ready, choices.width) == (True, 640)
    options = choices.options
    assert options.y == {"loss": (-1, 2.5)} and options.only == "loss"
    assert options.span == (200, 600.5) and options.opened == {"kl": True, "loss": False}
    assert options.switched == {"loss"} and options.metrics == ("loss",)
    choices.take({"x": "relative"})
    assert (choices.options.x, choices.options.span) == ("relative", None), "a span has no meaning in another unit"
    choices.take({"filter": "grad*, kl"})
    assert choices.options.metrics == ("grad*", "kl") and choices.options.opened == {}
    choices.take({"filter": ""})
    assert choices.options.metrics == ("loss",)


WRONG = {
    "zoom": [[1], 3, ["a", None], [float("nan"), 3], [5, 5]],
    "x": ["furlongs", []],
    "width": [-3, "wide", 1e9],
    "filter": [None],
    "log": [["loss"]],
    "open": [7],
    "ready": [1],
    "unknown": [1],
}


@pytest.mark.parametrize("message", [{key: value} for key, values in WRONG.items() for value in values])
def test_a_message_that_says_nothing_known_changes_nothing(message: dict[str, Any]) -> None:
    choices = Choices()
    choices.take({**message, "is_open": True})
    assert (choices, choices.options) == (Choices(), Options())


def test_charts_are_hidden_while_no_view_of_them_is_seen_or_in_use() -> None:
    choices = Choices()
    assert not choices.is_hidden
    for message in ({"ready": True}, {"zoom": None}, {"filter": ""}, {"log": "loss"}, {"visible": True, "view": "b"}):
        choices.take({"visible": False, "view": "a"})
        assert choices.is_hidden
        choices.take(message)
        assert not choices.is_hidden
