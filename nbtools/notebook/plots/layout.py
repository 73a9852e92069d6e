"""What a picture of a run shows: groups of metrics, their axis, and the decimated curves."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nbtools.failures.restarts import read_restarts, step_of
from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.notebook.plots.decimation import Break, Floats, decimate, find_break, number, smooth, ticks, time_ticks
from nbtools.run.records import mapping_at
from nbtools.run.run import Run

X = Literal["step", "samples", "time"]

# Names of the same quantity in different programs.
_THROUGHPUT = "tokens_per_s", "samples_per_s", "tokens_per_second", "samples_per_second"
_GROUPS = {"lr": "learning_rate", **dict.fromkeys(_THROUGHPUT, "throughput")}
TITLES = {
    "loss": "Loss",
    "return": "Return",
    "scores": "Scores",
    "learning_rate": "Learning rate",
    "throughput": "Throughput",
    "grad_norm": "Gradient norm",
    "copy_rate": "Copied from the training texts",
}
_SCORES = re.compile(r"(?:.*_)?(?:accuracy|precision|recall|f1|exact|unique)(?:_.*)?")
"""Shares between 0 and 1, higher is better; one panel holds them all."""
_RETURNS = re.compile(r"(?:.*_)?return(?:_.*)?")
_BASELINE = re.compile(r"(unigram|bigram|majority|human)_(loss|accuracy|copy_rate)|return_best")
"""A context-free model's value, a human one, or the best possible one: drawn as a level, not as a curve."""
_OUTSIDE = re.compile(r"(oracle|ngram)_loss")
"""The loss of generated text under an external likelihood, drawn beside the model's own loss."""
_SPLITS = ("train", "eval", "val", "valid", "validation", "test")


@dataclass(frozen=True)
class View:
    """The data and options of one picture."""

    history: History
    title: str = ""
    subtitle: str = ""
    checkpoints: Sequence[tuple[int, float | None]] = ()
    """Step of each checkpoint and the evaluation loss in its manifest."""
    resumed_at: int | None = None
    restarted_at: Sequence[int] = ()
    """Steps from which later attempts continued."""
    has_ended: bool = False
    x: X = "step"
    log: bool = False
    smoothing: float = 0.6
    span: tuple[float, float] = (0.0, 1.0)
    """Part of the x axis to show, as fractions of its length."""


def view_of(
    run: Run, *, x: X = "step", log: bool = False, smoothing: float = 0.6, span: tuple[float, float] = (0.0, 1.0)
) -> View:
    """Read the view of a run from its directory.

    Args:
        run: the run; its parent's rows and checkpoints are included.
        x: unit of the x axis; `time` leaves out the pause before a resume.
        log: logarithmic y axes, except for the learning rate and the throughput.
        smoothing: weight of earlier values in the bold line, 0 to below 1.
        span: part of the x axis to show, as two fractions.
    """
    resumed_at = mapping_at(run.info, "resumed_from").get("step")
    checkpoints, parent = list(run.checkpoints), run.parent
    if resumed_at is not None and parent is not None:
        checkpoints += [checkpoint for checkpoint in parent.checkpoints if checkpoint.step <= resumed_at]
    losses = [(checkpoint.step, checkpoint.metrics.get("eval/loss")) for checkpoint in checkpoints]
    restarted_at = [step_of(restart) for restart in read_restarts(run.files)]
    total = f" of {run.total_steps:,}" if run.total_steps else ""
    state = run.state
    subtitle = f"{state.value.lower()} · step {run.step or 0:,}{total}"
    options = (x, log, smoothing, span)
    return View(run.history, run.id, subtitle, losses, resumed_at, restarted_at, state.is_final, *options)


class Axis:
    """The x axis that all panels share, and the positions of each metric's points on it."""

    def __init__(self, view: View, names: Sequence[str]) -> None:
        self.kind: X = view.x
        # Taken once: the history may grow in another thread while this picture is made.
        self.series = every = {name: view.history[name] for name in names}
        main = max(every, key=lambda name: len(every[name].steps))
        if self.kind != "step":
            known = [series.samples if self.kind == "samples" else series.times for series in every.values()]
            self.kind = self.kind if all(np.isfinite(values).all() for values in known) else "step"
        start = min(float(series.times[0]) for series in every.values()) if self.kind == "time" else 0.0
        pause = _pause(every[main], view.resumed_at) if self.kind == "time" else 0.0
        self.positions = {name: self._place(series, start, pause, view.resumed_at) for name, series in every.items()}
        self._steps, self._main = every[main].steps, self.positions[main]
        left = min(float(x[0]) for x in self.positions.values())
        right = max(float(x[-1]) for x in self.positions.values())
        if view.checkpoints:  # a stop saves between two rows
            right = max(right, self.of_step(max(step for step, _ in view.checkpoints)))
        left = 0.0 if 0 < left < 0.15 * right else left
        if right <= left:
            left, right = left - 1.0, left + 1.0
        first, last = view.span
        self.left = left + first * (right - left)
        self.right = max(left + last * (right - left), self.left + 1e-6 * (right - left))

    def _place(self, series: Series, start: float, pause: float, resumed_at: int | None) -> NDArray[Any]:
        if self.kind == "step":
            return series.steps
        if self.kind == "samples":
            return np.maximum.accumulate(series.samples)
        times = series.times - start
        if pause and resumed_at is not None:
            times = np.where(series.steps > resumed_at, times - pause, times)
        return np.maximum.accumulate(times)  # keeps the curve from folding after the clock was set back

    def of_step(self, step: int) -> float:
        """Return the position of a step, extrapolated at the average pace after the last row."""
        if self.kind == "step":
            return float(step)
        steps, places, rate = self._steps, self._main, 0.0
        if step > steps[-1] > steps[0]:
            rate = float(places[-1] - places[0]) / float(steps[-1] - steps[0])
        return float(np.interp(step, steps, places)) + rate * max(0.0, float(step - steps[-1]))

    def ticks(self, num_max: int) -> list[tuple[float, str]]:
        """Return positions and labels of round numbers."""
        if self.kind == "time":
            return time_ticks(self.left, self.right, num_max)
        return ticks(self.left, self.right, num_max, whole=True)


def _pause(series: Series, resumed_at: int | None) -> float:
    """Return the seconds between the last row before a resume and the first after it, less the usual distance."""
    index = 0 if resumed_at is None else int(np.searchsorted(series.steps, resumed_at, "right"))
    if not 0 < index < len(series.steps):
        return 0.0
    usual = float(np.median(np.diff(series.times[:index]))) if index > 1 else 0.0
    return max(0.0, float(series.times[index] - series.times[index - 1]) - usual)


# --- curves -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theme:
    """Colours on a page, by default on a light one, for JupyterLab's backgrounds.

    The hues are those of petroff10 (Petroff 2021, arXiv:2107.02270), distinguishable under colour blindness.
    """

    background: str = "#ffffff"
    text: str = "#24292f"
    muted: str = "#6b7280"
    grid: str = "#e9ebee"
    axis: str = "#c3c8ce"
    line: str = "#3f90da"
    evaluation: str = "#e76300"
    others: tuple[str, ...] = ("#832db6", "#a96b59", "#92a4a2")
    alarm: str = "#bd1f01"


LIGHT = Theme()
DARK = Theme(
    "#111111",
    "#e3e5e8",
    "#9aa0a8",
    "#2a2c30",
    "#4a4d52",
    "#5aa5ea",
    "#ffa90e",
    ("#b98be0", "#c98f7d", "#b9ac70"),
    "#c8311a",
)
_DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (4, 1.2, 1, 1.2)), (0, (1.5, 1.2)))


@dataclass(frozen=True)
class Trace:
    """One metric to draw: a thin line through all its extremes, and a bold one over it."""

    label: str
    thin: tuple[Floats, Floats]
    bold: tuple[Floats, Floats]
    style: dict[str, Any]
    """Properties of the bold line."""
    is_smoothed: bool = False
    """The bold line is smoothed, so the thin line is drawn too."""
    found: Break | None = None
    break_x: float = 0.0
    break_step: int = 0


def traces_of(group: str, names: Sequence[str], view: View, axis: Axis, width: int, theme: Theme) -> list[Trace]:
    """Reduce the metrics of a panel to what its `width` pixel columns can show."""
    traces = []
    for index, name in enumerate(names):
        hue = sum(kind_of(earlier) == kind_of(name) for earlier in names[:index])
        traces.append(_trace(name, group, view, axis, width, theme, hue))
    return _legible(traces, width - _TITLE_WIDTH)


_TITLE_WIDTH, _CHARACTER_WIDTH, _SAMPLE_WIDTH = 35, 6.2, 35


def _legible(traces: list[Trace], room: float) -> list[Trace]:
    """Shorten labels, last ones first, until the legend's line holds all; leave out curves without room for a label.

    The traces are in order of importance; `room` is the width of the legend in pixels.
    """

    def needed(shown: Sequence[Trace]) -> float:
        return sum(_SAMPLE_WIDTH + _CHARACTER_WIDTH * len(trace.label) for trace in shown) - 13

    shown = list(traces)
    for index in reversed(range(len(shown))):
        if needed(shown) > room:
            shown[index] = replace(shown[index], label=shown[index].label.rpartition(" ")[0])
    while len(shown) > 2 and needed(shown) > room:
        shown.pop()
    return shown


def _trace(name: str, group: str, view: View, axis: Axis, width: int, theme: Theme, hue: int) -> Trace:
    series, x, kind = axis.series[name], axis.positions[name], kind_of(name)
    last = float(series.values[-1])
    label = f"{label_of(name, group)} {number(last).replace('nan', 'NaN')}".strip()
    if kind == "baseline":
        level = np.array([axis.left, axis.right]), np.array([last, last])
        return Trace(label, level, level, {"color": theme.muted, "linestyle": (0, (5, 3)), "linewidth": 1.4})
    curve = decimate(x, series.values, axis.left, axis.right, width)
    thin = bold = curve.path()
    # A schedule has no noise: smoothing only delays it.
    is_smoothed = kind == "train" and group != "learning_rate" and view.smoothing > 0
    # Outside the scores panel the first hue belongs to training.
    colours: tuple[str, ...] = (theme.line, *theme.others)
    if kind == "eval":
        colours = (theme.evaluation, *(colours if group == "scores" else theme.others))
    style: dict[str, Any] = {"color": colours[hue % len(colours)], "linestyle": _DASHES[hue % len(_DASHES)]}
    style["linewidth"] = 1.9 if kind == "train" else 1.4
    if kind == "eval":
        style |= {"marker": "o" if len(curve.x) <= 80 else "none", "markersize": 4.5}
    if is_smoothed:
        bold = curve.x, smooth(curve.mean, view.smoothing)
    found = find_break(series.values)
    at = found.index if found else 0
    return Trace(label, thin, bold, style, is_smoothed, found, float(x[at]), int(series.steps[at]))


# --- names --------------------------------------------------------------------------------------


def grouped(history: History) -> list[tuple[str, list[str]]]:
    """Return the metrics by panel, the usual panels first."""
    groups: dict[str, list[str]] = {}
    for name in history:
        group = _group(name)
        is_final_test = name.startswith("test/") and len(history[name]) == 1  # a number, not a curve
        if group != "epoch" and len(history[name]) and not is_final_test:
            groups.setdefault(group, []).append(name)
    order = {group: index for index, group in enumerate(TITLES)}
    shown = sorted(groups.items(), key=lambda item: order.get(item[0], len(order)))
    return [(group, _in_order(group, names)) for group, names in shown]


def _in_order(group: str, names: list[str]) -> list[str]:
    """Order training, evaluation, baselines; of many scores only three come before the baseline."""
    ordered = sorted(names, key=lambda name: ("train", "eval", "baseline").index(kind_of(name)))
    scores = [name for name in ordered if kind_of(name) != "baseline"]
    return (
        [*scores[:3], *(name for name in ordered if name not in scores), *scores[3:]] if group == "scores" else ordered
    )


def _split(name: str) -> tuple[str, str]:
    """Split `eval/loss` or `eval_loss` into ("eval", "loss"); without a split the first part is empty."""
    for separator in ("/", "_"):
        split, found, rest = name.partition(separator)
        if found and split.lower() in _SPLITS:
            return split.lower(), rest
    return "", name


def _group(name: str) -> str:
    rest = _split(name)[1].lower()
    if found := _BASELINE.fullmatch(rest):
        rest = found[2] or rest
    if _RETURNS.fullmatch(rest):
        return "return"
    if _OUTSIDE.fullmatch(rest):
        return "loss"
    return "scores" if _SCORES.fullmatch(rest) else _GROUPS.get(rest, rest)


def kind_of(name: str) -> Literal["train", "eval", "baseline"]:
    """Return how to draw a metric."""
    split, rest = _split(name)
    if _BASELINE.fullmatch(rest):
        return "baseline"
    return "eval" if split in _SPLITS[1:] else "train"


def label_of(name: str, group: str) -> str:
    """Return the legend's name of a metric in the panel of its group."""
    split, rest = _split(name)
    if (found := _BASELINE.fullmatch(rest)) and found[1]:
        return found[1]
    if found := _OUTSIDE.fullmatch(rest):
        return found[1]
    if group in ("scores", "return"):
        words = [word for word in rest.split("_") if word != group]
        return " ".join((*((split,) if split == "train" or not words else ()), *words))
    if group == "throughput":
        return rest.replace("_per_second", "/s").replace("_per_s", "/s")
    return split if group == "loss" or split in _SPLITS[1:] else ""
