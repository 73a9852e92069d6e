"""The picture: what is drawn for which rows, tested on reduced curves, artists and pixels."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from curves import history, repeated
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from PIL import Image, ImageColor

from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.notebook.plots import decimation
from nbtools.notebook.plots.charts import INK, PALETTE, charts_of
from nbtools.notebook.plots.figure import HEIGHT, WIDTH, RunFigure, picture_of, save_plot
from nbtools.notebook.plots.metric_names import grouped
from nbtools.notebook.plots.view import View
from nbtools.run.run import Run

BACKGROUND = (255, 255, 255)


def losses(values: Sequence[float | str], name: str = "train/loss") -> History:
    return history({"step": i + 1, "time": 1e9 + i, name: value} for i, value in enumerate(values))


def drawn(view: View, **options: Any) -> Figure:
    figure = RunFigure(**options)
    return figure.draw(charts_of(view, figure.sizes), view.title, view.subtitle)


def pixels(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba()).astype(float)
    return (255 + (drawn[..., :3] - 255) * drawn[..., 3:] / 255).astype(int)  # on a white page


def inside(figure: Figure, panel: int = 0, margin: int = 0) -> np.ndarray:
    """Pixels of a panel's plot area, and of a margin around it, top row first."""
    box, height = figure.axes[panel].get_window_extent(), figure.bbox.height
    rows = slice(int(height - box.y1) - margin, int(height - box.y0) + margin)
    return pixels(figure)[rows, int(box.x0) - margin : int(box.x1) + margin]


def lines(figure: Figure, label: str) -> list[Line2D]:
    return [line for axes in figure.axes for line in axes.lines if line.get_label() == label]


def y_of(figure: Figure, label: str) -> np.ndarray:
    """Return what is drawn of the only line with a label, in units of the axis."""
    (line,) = lines(figure, label)
    return np.asarray(line.get_ydata())


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


# --- reduction ---


def reduced(x: Any, y: Any, limits: tuple[float, float], num_columns: int) -> decimation.Curve:
    x, y = np.asarray(x), np.asarray(y, float)
    return decimation.decimate(Series(x, y, x, x), x, limits, num_columns)


@settings(max_examples=50)
@given(st.lists(st.floats(width=32), min_size=1, max_size=300), st.integers(1, 40))
def test_every_column_has_the_extremes_and_the_mean_of_its_points(values: list[float], num_columns: int) -> None:
    x, y = 3 * np.arange(len(values)), np.array(values)
    curve, finite = reduced(x, y, (0, x[-1]), num_columns), np.where(np.isfinite(y), y, np.nan)
    assert curve.is_exact is (len(y) <= 2 * num_columns)
    if curve.is_exact:
        assert np.array_equal(curve.x, x) and np.array_equal(curve.path()[1], finite, equal_nan=True)
        return
    columns = np.searchsorted(np.linspace(0, x[-1], num_columns + 1)[1:-1], x, "right")
    for column, (low, high, mean) in enumerate(zip(curve.low, curve.high, curve.mean, strict=True)):
        members = finite[columns == column]
        members = members[~np.isnan(members)]
        expected = (members.min(), members.max(), members.mean()) if len(members) else [np.nan] * 3
        np.testing.assert_allclose((low, high, mean), expected, rtol=1e-9, atol=1e-6)


def test_a_range_keeps_the_neighbours_that_lead_out_of_it() -> None:
    curve = reduced([0, 10, 20, 30], np.arange(4.0), (12, 18), 100)
    np.testing.assert_array_equal(curve.x, [10, 20])


def test_smoothing_is_debiased_and_leaves_gaps() -> None:
    np.testing.assert_allclose(decimation.smooth(np.full(5, 3.0), 0.9), 3.0)
    smoothed = decimation.smooth(np.array([1.0, np.nan, 2.0]), 0.5)
    assert np.isnan(smoothed[1])
    assert smoothed[2] == pytest.approx((0.25 * 1 + 0.5 * 2) / 0.75)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0, 2.0], None),
        ([1.0, "NaN", 2.0, "NaN", "Infinity"], decimation.Break(3, 4, True, 3)),
        ([1.0, "Infinity", 2.0], decimation.Break(1, 2, False, 1)),
        (["NaN"], decimation.Break(0, 1, True, 1)),
    ],
)
def test_a_break_tells_divergence_from_a_passing_overflow(values: list[Any], found: decimation.Break | None) -> None:
    assert decimation.break_of(losses(values)["train/loss"]) == found


# --- ticks ---


MIDNIGHT = time.mktime((2026, 3, 2, 0, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("kind", "low", "high", "labels"),
    [
        (decimation.ticks, 0, 600, "0 200 400 600"),
        (decimation.ticks, 0, 3e-4, "0 1e-4 2e-4 3e-4"),
        (decimation.ticks, 0, 25_000, "0 5k 10k 15k 20k 25k"),
        (decimation.ticks, 1_000_000, 1_000_200, "1M 1.00005M 1.0001M 1.00015M 1.0002M"),
        (decimation.ticks, 2.4, 2.6, "2.4 2.45 2.5 2.55 2.6"),
        (decimation.log_ticks, -4.1, 0.2, "1e-4 0.001 0.01 0.1 1"),
        (decimation.log_ticks, 0.4, 0.9, "3 4 5 6 7"),
        (decimation.time_ticks, 0, 200, "0 1m 2m 3m"),
        (decimation.time_ticks, 0, 5 * 3600, "0 1h 2h 3h 4h 5h"),
        (decimation.clock_ticks, MIDNIGHT + 50_000, MIDNIGHT + 50_400, "13:54 13:56 13:58 14:00"),
        (decimation.clock_ticks, MIDNIGHT - 40_000, MIDNIGHT + 30_000, "18:00 Mar_02 06:00"),
    ],
)
def test_tick_labels_are_short_and_distinct(kind: Any, low: float, high: float, labels: str) -> None:
    assert [
        label.replace(" ", "_") for _, label in kind(low, high, 6 if kind is not decimation.ticks else 5)
    ] == labels.split()


def test_clock_ticks_stay_evenly_spaced_across_a_change_to_summer_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0")
    time.tzset()
    try:
        change = 1_774_746_000.0  # 29 March 2026
        found = decimation.clock_ticks(change - 7000, change + 7300, 4)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [label for _, label in found] == ["02:00", "03:00", "04:00", "05:00"]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (3e-5, "3e-5"), (2.3456, "2.346"), (21_500, "21.5k"), (-1, "-1")]
)
def test_numbers_take_few_characters(value: float, text: str) -> None:
    assert decimation.number(value) == text


# --- the figure ---


def test_a_spike_in_a_million_points_is_drawn() -> None:
    made, steps, values = History(), np.arange(1_000_000), np.ones(1_000_000)
    values[654_321] = 9.0
    made.add("loss", steps, values, steps)
    area = inside(drawn(View(made, smoothing=0.9)))
    upper = area[: area.shape[0] // 2]
    # The grid is the only other thing up there; it is grey, and the curve is not.
    coloured = (upper.max(axis=2) - upper.min(axis=2)) > 25
    columns = np.flatnonzero(coloured.any(axis=0))
    assert len(columns)
    assert abs(columns.mean() / area.shape[1] - 0.654) < 0.02


@pytest.mark.promise("fault-13")
def test_a_diverged_loss_gets_a_gap_a_mark_and_a_badge() -> None:
    figure = drawn(View(losses([3.0 - 0.01 * i for i in range(50)] + ["NaN"] * 50)))
    assert "diverged at step 51" in texts(figure) and len(lines(figure, "break")) == 1
    assert np.isnan(y_of(figure, "train/loss")[50:]).all()
    right_half = inside(figure)[60:-12, -300:-20]
    assert ((right_half.max(axis=2) - right_half.min(axis=2)) < 25).all(), (
        "nothing coloured is drawn where the loss is NaN"
    )


HOSTILE = [r"$\frac", r"$\frac{1}{2}$", "<img src=x onerror=alert(1)>", "</script>", "a_{b}^c", "%s {0}", "\\"]


@pytest.mark.promise("fault-32")
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_drawn_literally(name: str) -> None:
    figure = drawn(View(losses([1.0, 2.0], name), title=name))
    assert texts(figure).count(name) >= 2
    assert not any(text.get_parse_math() or text.get_usetex() for text in figure.findobj(Text))
    pixels(figure)


def test_characters_without_a_glyph_become_boxes() -> None:
    figure = drawn(View(losses([1.0], "a\u202eb\n日本"), title="\x00" + "x" * 500))
    assert "a□b□□□" in texts(figure)
    assert all("\x00" not in text and len(text) <= 70 for text in texts(figure))
    pixels(figure)


def test_a_users_matplotlib_settings_do_not_leak_in() -> None:
    view = View(history(ROWS), title="run", checkpoints=[(50, 0.2)], resumed_at=60)
    expected = picture_of(view)
    theirs = {"text.usetex": True, "axes.grid": True, "lines.linewidth": 9, "font.size": 40, "font.style": "italic"}
    theirs |= {"xtick.minor.visible": True, "legend.numpoints": 3, "figure.autolayout": True, "axes.xmargin": 1.0}
    theirs |= {"path.sketch": (1, 100, 2), "path.effects": [withStroke(linewidth=4)], "font.weight": 900}
    with matplotlib.rc_context(theirs):
        assert picture_of(view) == expected


def test_the_log_scale_draws_exponents_and_leaves_out_what_has_none() -> None:
    figure = drawn(View(losses([100.0, 0.0, 1.0]), log=True, smoothing=0.0))
    np.testing.assert_array_equal(y_of(figure, "train/loss"), [2.0, np.nan, 0.0])


def test_the_greatest_numbers_are_drawn() -> None:
    figure = drawn(View(losses([1e308 * (-1) ** (step // 2) for step in range(5_000)]), smoothing=0.0))
    assert (pixels(figure) != BACKGROUND).any(axis=2).mean() > 0.3


def test_smoothing_keeps_the_raw_values_beneath() -> None:
    values = [1.0, 5.0] * 30
    figure = drawn(View(losses(values), smoothing=0.9))
    assert y_of(figure, "raw train/loss").tolist() == values
    assert np.ptp(y_of(figure, "train/loss")[2:]) < 2
    (raw,), (bold,) = lines(figure, "raw train/loss"), lines(figure, "train/loss")
    assert raw.get_zorder() < bold.get_zorder()
    assert y_of(drawn(View(losses(values), smoothing=0.0)), "train/loss").tolist() == values


ROWS = [
    {
        "step": i,
        "time": 1e9 + 2 * i + (1000 if i > 60 else 0),
        "samples": 32 * i,
        "train/loss": 5 / i,
        "train/learning_rate": 1e-3,
        "train/grad_norm": 1.0,
        "train/tokens_per_s": 2e4,
        "train/epoch": i / 50,
        **({"eval/loss": 6 / i, "eval/accuracy": 0.5, "eval/unigram_loss": 4.0} if i % 20 == 0 else {}),
    }
    for i in range(1, 101)
]


SHARES = {"eval/accuracy": 0.9, "eval/exact": 0.8, "eval/majority_accuracy": 0.1}
LOSSES = {"eval/loss": 2.0, "eval/unigram_loss": 3.0, "eval/bigram_loss": 2.5}
RETURNS = {"eval/return_last": 11.5, "eval/return_first": 1.25, "eval/return_best": 15.75}
COPIES = {"eval/copy_rate": 0.4, "eval/human_copy_rate": 0.25}
OUTSIDE = {"train/loss": 2.9, "eval/loss": 2.5, "eval/oracle_loss": 3.5, "eval/ngram_loss": 6.0}


@pytest.mark.parametrize(
    ("row", "group", "names", "shown"),
    [
        (SHARES | LOSSES, "scores", SHARES, "accuracy 0.9, exact 0.8, majority 0.1"),
        (SHARES | LOSSES, "loss", LOSSES, "eval 2, unigram 3, bigram 2.5"),
        (RETURNS | {"train/loss": 1.0}, "return", RETURNS, "last 11.5, first 1.25, best 15.75"),
        ({"return": 3.0, "train/episode_return": 2.0}, "return", ("return", "train/episode_return"), "train episode 2"),
        pytest.param(COPIES, "copy_rate", COPIES, "eval 0.4, human 0.25", marks=pytest.mark.promise("safety-copies")),
        ({"eval/self_bleu": 0.9, "eval/human_self_bleu": 0.3}, "self_bleu", None, "eval 0.9, human 0.3"),
        (OUTSIDE | {"eval/judge_accuracy": 0.8}, "loss", OUTSIDE, "train 2.9, eval 2.5, oracle 3.5, ngram 6"),
        ({"eval/loss": 2.0, "test/loss": 2.1}, "loss", None, "eval 2, test 2.1"),
    ],
)
def test_metrics_that_belong_together_share_a_panel(row: dict[str, float], group: str, names: Any, shown: str) -> None:
    every = repeated(**row)
    assert sorted(dict(grouped(every))[group]) == sorted(names or row)
    assert set(shown.split(", ")) <= set(texts(drawn(View(every))))


def test_the_usual_panels_come_first_and_in_order() -> None:
    groups = grouped(history(ROWS))
    assert [group for group, _ in groups] == ["loss", "scores", "learning_rate", "throughput", "grad_norm"]
    assert groups[0][1] == ["train/loss", "eval/loss", "eval/unigram_loss"]
    shown = texts(drawn(View(history(ROWS))))
    assert "2 more charts: Gradient norm, train/epoch" in shown
    titles = ["Loss", "Scores", "Learning rate", "Throughput"]
    assert [text for text in shown if text in titles] == titles


def test_a_test_at_the_end_is_a_number() -> None:
    rows = [{"step": i, "time": i, "eval/loss": 2.0, "test/f1": 0.5} for i in (1, 2, 3)]
    assert "test/loss" not in dict(grouped(history([*rows, {"step": 3, "time": 4, "test/loss": 2.1}])))["loss"]


def test_every_curve_has_a_name_in_the_legend_if_need_be_without_its_value() -> None:
    scores = ("accuracy", "exact", "flat_accuracy", "precision", "recall", "f1", "majority_accuracy")
    row = {f"eval/{name}": 0.1234 + number / 10 for number, name in enumerate(scores)}
    row |= {"train/loss": 2.345, "eval/loss": 2.5, "eval/unigram_loss": 3.5, "eval/bigram_loss": 2.75}
    every = repeated(8, **row)
    figure = drawn(View(every))
    assert {"train 2.345", "eval 2.5", "unigram 3.5", "bigram"} <= set(texts(figure))
    assert {"Scores, 1 of 3", "accuracy 0.1234", "exact", "majority"} <= set(texts(figure))
    parts = "Scores, 2 of 3 (eval/flat_accuracy, eval/precision), Scores, 3 of 3 (eval/recall, eval/f1)"
    assert f"2 more charts: {parts}" in texts(figure)
    rest = {"flat accuracy 0.3234", "precision 0.4234", "recall 0.5234", "f1 0.6234"}
    assert rest <= set(texts(drawn(View(every, metrics=("scores",)))))


def test_a_picture_says_how_many_charts_it_leaves_out_and_names_the_first() -> None:
    row = {f"gate/{index}": 1.0 for index in range(40)}
    (said,) = (text for text in texts(drawn(View(repeated(1, **row)))) if "more chart" in text)
    assert said.startswith("36 more charts: gate/4, gate/5, ") and said.endswith("…") and said.count("gate/") > 8


def test_checkpoints_are_marked_with_their_evaluation() -> None:
    figure = drawn(View(history(ROWS), checkpoints=[(50, 0.2), (100, None)]))
    assert [len(line.get_xdata()) for line in lines(figure, "mark")] == [2], "on the first chart alone"
    assert y_of(figure, "ring").tolist() == [0.2]
    assert "checkpoint" in texts(figure)
    alone = drawn(View(losses([3.0, 2.0]), checkpoints=[(2, None)]))
    assert lines(alone, "mark") and not lines(alone, "ring")


def test_what_the_parent_did_is_dimmed_up_to_the_resume() -> None:
    plain, resumed = (drawn(View(history(ROWS), resumed_at=at)) for at in (None, 60))
    assert "resumed at 60" in texts(resumed)
    assert "resumed at about 60" in texts(drawn(View(history(ROWS), resumed_at=60, is_resume_estimated=True)))
    before, after = (inside(figure, 1)[:, 100:300] for figure in (plain, resumed))
    assert after.min() > before.min() + 40, "the curve left of the resume is fainter"


def test_without_rows_the_picture_says_why() -> None:
    assert "Waiting for the first metrics" in texts(drawn(View(History(), title="run")))
    assert "No metrics were recorded" in texts(drawn(View(History(), title="run", has_ended=True)))


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    shares = np.array(ImageColor.getrgb(colour)) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("page", ["#ffffff", "#0d1117", "#111111"], ids=["white", "GitHub-dark", "JupyterLab-dark"])
def test_every_colour_is_seen_on_light_and_dark_pages(page: str) -> None:
    for least, colours in ((3.0, PALETTE.values()), (4.2, [INK])):
        for colour in colours:
            low, high = sorted((luminance(colour), luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= least, colour


def test_a_picture_is_transparent(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(picture_of(View(history(ROWS))))
    with Image.open(tmp_path / "x.png") as image:
        pixel = np.asarray(image.convert("RGBA"))
    assert pixel.shape == (2 * HEIGHT, 2 * WIDTH, 4) and (pixel[..., 3] == 0).mean() > 0.8


def test_a_picture_stays_small() -> None:
    names = ("train/loss", "train/learning_rate", "train/tokens_per_s", "train/grad_norm", "eval/loss")
    noise = np.random.default_rng(0).random((20_000, 5)).tolist()
    rows = ({"step": i, "time": i, **dict(zip(names, noise[i], strict=True))} for i in range(20_000))
    assert len(picture_of(View(history(rows)))) <= 250_000, "of noise"
    assert len(picture_of(View(history(ROWS)))) <= 60_000


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [0.0, 0.0], ["NaN"], [1e308, -1e308]])
def test_one_value_and_constant_values_are_drawn(values: list[Any]) -> None:
    figure = drawn(View(losses(values)))
    pixels(figure)
    assert np.ptp(figure.axes[0].get_ylim()) > 0.1, "the labels of the ticks can be read"
    pixels(drawn(View(losses(values), log=True, x="relative")))


@pytest.mark.parametrize("values", [[2.0], [2.0, "NaN"], ["NaN", 2.0]])
@pytest.mark.parametrize("options", [{}, {"log": True}, {"smoothing": 0.0}])
def test_a_single_finite_value_is_a_dot(values: list[Any], options: dict[str, Any]) -> None:
    figure = drawn(View(losses(values), **options))
    assert [line.get_marker() for line in lines(figure, "train/loss")] == ["o"]
    area = inside(figure, margin=5)
    assert ((area.max(axis=2) - area.min(axis=2)) > 60).sum() >= 60, "some 10 pixels wide, also at the edge"
    (two,) = lines(drawn(View(losses([2.0, 1.0]))), "train/loss")
    assert two.get_marker() == "none" and two.get_clip_on()


def test_a_dot_outside_the_range_is_not_drawn_beside_the_axes() -> None:
    view = View(losses(["NaN"] * 50 + [2.0] + ["NaN"] * 49), span=(52.0, 100.0))
    assert [line.get_clip_on() for line in lines(drawn(view), "train/loss")] == [True]


# --- a run ---


def test_a_run_is_saved_as_a_png(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "2026-01-31_142233_tiny"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text('{"format": 1, "name": "tiny"}')
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with pytest.raises(FileNotFoundError):
        save_plot(Run(folder), tmp_path / "new" / "x.png")
    assert not (tmp_path / "new").exists()
    target = save_plot(Run(folder), tmp_path / "x.png", x="time", log=True, smoothing=0.0)
    with Image.open(target) as image:
        assert image.size == (2 * WIDTH, 2 * HEIGHT)
    with pytest.raises(ValueError, match=r"must end in \.png"):
        save_plot(Run(folder), tmp_path / "x.svg")
