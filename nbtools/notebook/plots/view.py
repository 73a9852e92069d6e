"""The content of a picture of a run: the data, the options, and the axis that its charts share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nbtools.failures.restarts import read_restarts
from nbtools.metrics.columns import UNITS, Series, Unit
from nbtools.notebook.plots.decimation import clock_ticks, ticks, time_ticks
from nbtools.notebook.plots.metric_names import matches
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.curves import Sketch
from nbtools.run.records import mapping_at
from nbtools.run.run import Run
from nbtools.rundir.json_files import finite, whole
from nbtools.rundir.requests.conditions import conditions_of, limits_in
from nbtools.rundir.rundir import has_recipe

X = Literal["step", "samples", "time", "relative"]
"""Unit of the x axis: `time` is the clock's, `relative` the time since the first row without the pause of a resume."""
KINDS: tuple[X, ...] = ("step", "samples", "time", "relative")
Limits = tuple[float, float]
Curves = Mapping[str, Series | Sketch]
"""The curves of a run, by metric."""
_MAX_FILTER = 200
_NUM_NAMED = 3
_MOST_FLAGS = 50


@dataclass(frozen=True, kw_only=True)
class Options:
    """The choices for a picture of one run or of several."""

    x: X = "step"
    log: bool = False
    smoothing: float = 0.6
    split: str = ""
    """Name of a field of compared runs: each of its values has a chart of its own."""
    span: Limits | None = None
    """Limits of the x axis in its unit; None for all."""
    metrics: Sequence[str] = ()
    """Shell patterns; charts with a matching metric are open. Without patterns, the default charts are."""
    opened: Mapping[str, bool] = field(default_factory=dict)
    """Charts that the user opened or closed, by key."""
    switched: frozenset[str] = frozenset()
    """Keys of charts whose y axis is linear if `log`, else logarithmic."""

    only: str = ""
    """Key of the chart that is shown alone; empty for none."""
    y: Mapping[str, Limits] = field(default_factory=dict)
    """Limits of the y axis of charts, by key."""

    def opens(self, key: str, texts: Iterable[str], is_default: bool) -> bool:
        """Whether a chart is open; `texts` are its metrics and what else a pattern may match."""
        if self.only:
            return key == self.only
        matched = any(matches(text, self.metrics) for text in texts) if self.metrics else is_default
        return self.opened.get(key, matched)


@dataclass(frozen=True)
class View(Options):
    """The data and options of one picture of a run."""

    history: Curves
    title: str = ""
    subtitle: str = ""
    checkpoints: Sequence[tuple[int, float | None]] = ()
    """Step of each checkpoint and the evaluation loss in its manifest."""
    resumed_at: int | None = None
    is_resume_estimated: bool = False
    """Whether this step is an estimate, from the time of a file."""
    restarted_at: Sequence[int] = ()
    """Steps from which later attempts continued."""
    flags: Sequence[tuple[int, str]] = ()
    """Steps after which the training was steered, and the numbers of the events there."""
    limits: Sequence[tuple[str, str, str]] = ()
    """Metric, sign and number of each limit beyond which a notice is sent."""
    has_ended: bool = False
    reading: str = ""
    """Text shown instead of charts while rows are being read."""


def view_of(run: Run, history: Curves | None = None, **options: Any) -> View:
    """Read the view of a run, with its parent's rows and checkpoints; with `history`, its rows are not read."""
    history = run.history if history is None else history
    shift, parent = run.rows.shift, run.parent
    resumed_at, marks = whole(mapping_at(run.info, "resumed_from").get("step")), _marks(run)
    if parent is None:
        resumed_at = resumed_at if has_recipe(run.files) else None  # a program's count may have begun again
    elif shift > parent.rows.shift:
        resumed_at = shift
    if parent is not None and resumed_at is not None:
        marks += [(step, loss) for step, loss in _marks(parent) if step <= resumed_at]
    restarted_at = [shift + (restart.checkpoint_step or 0) for restart in read_restarts(run.files)]
    flags: dict[int, list[str]] = {}
    for number, event in enumerate((event for event in run.events if not event.refused), start=1):
        flags.setdefault(shift + event.step, []).append(str(number))
    told = [(step, ", ".join(numbers)) for step, numbers in flags.items()][-_MOST_FLAGS:]
    total = f" of {run.total_steps:,}" if run.total_steps else ""
    state = run.state
    subtitle = f"{run.id} · {state.value.lower()} · step {run.step or 0:,}{total}"
    options["is_resume_estimated"] = mapping_at(run.info, "resumed_from").get("is_estimate") is True
    limits = limits_in(conditions_of(run.files))
    options |= {"restarted_at": restarted_at, "flags": told, "has_ended": state.is_final, "limits": limits}
    return View(history, run.name, subtitle, marks, resumed_at, **options)


def _marks(run: Run) -> list[tuple[int, float | None]]:
    """Return the step and loss of each checkpoint with a known step; a program's may count otherwise than its curves.

    Marks far behind the last row, such as steps on an axis of epochs, are left out.
    """
    saved = [(one.step, one.metrics.get("eval/loss"), one) for one in run.checkpoints if one.step is not None]
    farthest = 2 * run.step
    return [(step, loss) for step, loss, one in saved if isinstance(one, Checkpoint) or step <= farthest]


@dataclass
class Choices:
    """The page's choices for the charts; its messages are untrusted."""

    given: Options = Options()
    """The options that hold until the page chooses others."""
    filter: str = ""
    width: float = 0.0
    """Width of the page in CSS pixels; 0 if unknown."""
    hidden: dict[str, bool] = field(default_factory=dict)
    """View of the charts -> whether it is hidden."""
    is_ready: bool = False
    """Whether a page draws the charts."""

    def __post_init__(self) -> None:
        self.options = self.given

    @property
    def is_hidden(self) -> bool:
        return bool(self.hidden) and all(self.hidden.values())

    def take(self, message: Mapping[str, Any]) -> None:
        """Apply a message of the page; invalid content is ignored."""
        if message.keys() - {"visible", "view", "width"}:
            self.hidden.clear()  # a view is in use; closed views send no message
        self.is_ready |= message.get("ready") is True
        if "width" in message and (width := finite(message["width"])) is not None and 0 < width < 10_000:
            self.width = width
        now, chosen = self.options, dict[str, Any]()
        if "zoom" in message:
            chosen["span"] = _limits(message["zoom"])
        if (x := message.get("x")) in KINDS and x != now.x:
            chosen |= {"x": x, "span": None}
        if isinstance(text := message.get("filter"), str):
            self.filter = text[:_MAX_FILTER]
            patterns = tuple(self.filter.replace(",", " ").split()) or self.given.metrics
            chosen |= {"metrics": patterns, "opened": {}, "only": ""}
        if isinstance(keys := message.get("open"), list):
            told = {key: message.get("is_open") is True for key in keys if isinstance(key, str)}
            chosen["opened"] = {**now.opened, **told}
        if isinstance(key := message.get("only"), str):
            chosen["only"] = key
        if isinstance(key := message.get("y"), str):
            others = {name: known for name, known in now.y.items() if name != key}
            chosen["y"] = others | ({key: limits} if (limits := _limits(message.get("limits"))) else {})
        if isinstance(key := message.get("log"), str):
            chosen["switched"] = now.switched ^ {key}
        self.options = replace(now, **chosen)
        if isinstance(visible := message.get("visible"), bool):
            self.hidden[str(message.get("view"))] = not visible


def _limits(sent: object) -> Limits | None:
    """Return two ascending numbers that a page sent; None for anything else."""
    low, high = map(finite, sent) if isinstance(sent, list) and len(sent) == 2 else (None, None)
    return (low, high) if low is not None and high is not None and low < high else None


class Axis:
    """The x axis that all charts share, and the positions of the points of each curve on it.

    Args:
        runs: the curves of each run, which determine the axis.
        options: the kind of the axis, and the part that is shown.
        resumes: for each run, the steps at which it was resumed; `relative` leaves out the pauses before them.
        reaches: steps of the first run that the axis shows too.
    """

    def __init__(
        self, runs: Sequence[Curves], options: Options, resumes: Sequence[Sequence[int]], reaches: Iterable[int] = ()
    ) -> None:
        every: dict[str, Series | Sketch] = {}
        for number, run in enumerate(runs, start=1):
            end = f" of {number}" if len(runs) > 1 else ""
            every |= {name + end: one for name, one in run.items()}
        has = {kind: _has_places(kind, every.values()) for kind in ("samples", "time")}
        units = [unit for unit in UNITS if any(one.unit == unit for one in every.values())]
        self.unit: Unit = units[0]
        self.note = _note(every, units, has["time"])
        """Sentence on curves of different units, which have only time in common, or on rows without a counter."""
        # Without times, only the curves of the first unit are drawn, by their steps.
        drawn = units if has["time"] else units[:1]
        self.runs = [{name: one for name, one in run.items() if one.unit in drawn} for run in runs]
        has["step"] = not has["time"] or (len(units) == 1 and self.unit != "row")
        self.kinds: Sequence[X] = [kind for kind in KINDS if has["time" if kind == "relative" else kind]]
        self.kind: X = options.x if options.x in self.kinds else "step" if has["step"] else "relative"
        self.positions = [places(run, self.kind, at) for run, at in zip(self.runs, resumes, strict=True)]
        self._main = _main_of(self.runs[0])
        left = min(float(x[0]) for run in self.positions for x in run.values())
        right = max(float(x[-1]) for run in self.positions for x in run.values())
        right = max([right, *map(self.of_step, reaches)])  # a stop saves between two rows
        if 0 < left < 0.15 * right:
            left = 0.0
        self.full: Limits = (left, right) if right > left else (left - 1.0, left + 1.0)
        self.is_zoomed = options.span is not None
        left, right = options.span or self.full
        self.limits: Limits = left, max(right, left + 1e-6 * (self.full[1] - self.full[0]))

    def of_step(self, step: int) -> float:
        """Return the position of a step of the first run, extrapolated at the average pace after the last row."""
        if self.kind == "step":
            return float(step)
        steps, x, rate = self.runs[0][self._main].steps, self.positions[0][self._main], 0.0
        if step > steps[-1] > steps[0]:
            rate = float(x[-1] - x[0]) / float(steps[-1] - steps[0])
        return float(np.interp(step, steps, x)) + rate * max(0.0, float(step - steps[-1]))


def places(curves: Curves, kind: X, resumed_at: Sequence[int]) -> dict[str, NDArray[Any]]:
    """Return the positions of the points of each curve of a run; `relative` leaves out the pauses before resumes."""
    if kind in ("step", "samples"):
        found = {name: one.steps if kind == "step" else one.samples for name, one in curves.items()}
    else:
        start = min((one.times[0] for one in curves.values()), default=0.0) if kind == "relative" else 0.0
        found = {name: one.times - start for name, one in curves.items()}
    if kind == "relative" and curves:
        main = curves[_main_of(curves)]
        for step in resumed_at:
            index = int(np.searchsorted(main.steps, step, "right"))
            if pause := _pause_at(main.times, index):
                for name, one in curves.items():
                    is_after = one.steps > step if one.unit == main.unit else one.times > main.times[index - 1]
                    found[name] = found[name] - np.where(is_after, pause, 0.0)
    return {name: np.maximum.accumulate(x) for name, x in found.items()}  # a clock was set back


def _main_of(curves: Curves) -> str:
    """Return the name of the longest curve of the finest unit, one of the machine's only if there is no other."""

    def rank(name: str) -> tuple[bool, int, int]:
        return not name.startswith("system/"), -UNITS.index(curves[name].unit), len(curves[name])

    return max(curves, key=rank, default="")


def x_ticks(kind: X, left: float, right: float, num_max: int) -> Sequence[tuple[float, str]]:
    """Return positions and labels of round numbers, durations or times of the clock."""
    if kind == "time":
        return clock_ticks(left, right, num_max)
    if kind == "relative":
        return time_ticks(left, right, num_max)
    return ticks(left, right, num_max, whole=True)


def _note(every: Curves, units: Sequence[Unit], has_time: bool) -> str:
    if len(units) == 1:
        return "Rows have no counter: they are drawn by order" if units == ["row"] else ""
    counted = []
    for unit in units:
        names = [name for name, one in every.items() if one.unit == unit]
        counted.append(f"{', '.join(names[:_NUM_NAMED])}{' …' * (len(names) > _NUM_NAMED)}: {unit}s")
    if has_time:
        return f"Curves of different units have only time in common ({'; '.join(counted)})"
    return f"Curves of different units need times to be drawn together ({'; '.join(counted)}): only {units[0]}s are"


def _has_places(kind: str, every: Iterable[Series | Sketch]) -> bool:
    """Whether all points of all curves have a position on an axis of this kind."""
    columns = (series.samples if kind == "samples" else series.times for series in every)
    found = {(column.__array_interface__["data"][0], len(column)): column for column in columns}  # often the same one
    return all(np.isfinite(column).all() for column in found.values())


def _pause_at(times: NDArray[Any], index: int) -> float:
    """Return by how much the time before a row is longer than the usual one before it; 0 for no row."""
    if not 0 < index < len(times):
        return 0.0
    usual = float(np.median(np.diff(times[:index]))) if index > 1 else 0.0
    return max(0.0, float(times[index] - times[index - 1]) - usual)
