"""The content of a picture of a run: the data, the options, and the axis that its charts share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nbtools.failures.restarts import read_restarts, step_of
from nbtools.metrics.columns import UNITS, Series, Unit
from nbtools.notebook.plots.decimation import all_finite, clock_ticks, ticks, time_ticks
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.curves import Sketch
from nbtools.run.records import mapping_at
from nbtools.run.run import Run
from nbtools.rundir.json_files import finite, whole
from nbtools.rundir.rundir import has_recipe

X = Literal["step", "samples", "time", "relative"]
"""Unit of the x axis: `time` is the clock's, `relative` the time since the first row without the pause of a resume."""
KINDS: tuple[X, ...] = ("step", "samples", "time", "relative")
Limits = tuple[float, float]
_MAX_FILTER = 200
_NUM_NAMED = 3


@dataclass(frozen=True)
class View:
    """The data and options of one picture."""

    history: Mapping[str, Series | Sketch]
    title: str = ""
    subtitle: str = ""
    checkpoints: Sequence[tuple[int, float | None]] = ()
    """Step of each checkpoint and the evaluation loss in its manifest."""
    resumed_at: int | None = None
    is_resume_estimated: bool = False
    """Whether this step is an estimate, from the time of a file."""
    restarted_at: Sequence[int] = ()
    """Steps from which later attempts continued."""
    has_ended: bool = False
    x: X = "step"
    log: bool = False
    smoothing: float = 0.6
    span: Limits | None = None
    """Limits of the x axis in its unit; None for all."""
    metrics: Sequence[str] = ()
    """Shell patterns; charts with a matching metric are open. Without patterns, the default charts are."""
    opened: Mapping[str, bool] = field(default_factory=dict)
    """Charts that the user opened or closed: group -> whether it is open."""
    switched: frozenset[str] = frozenset()
    """Groups whose y axis is linear if `log`, else logarithmic."""
    system: Mapping[str, Series] = field(default_factory=dict)
    """System metrics of the run by name, such as `system/CPU`."""
    reading: str = ""
    """Text shown instead of charts while rows are being read."""


def view_of(run: Run, history: Mapping[str, Series | Sketch] | None = None, **options: Any) -> View:
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
    restarted_at = [shift + step_of(restart) for restart in read_restarts(run.files)]
    total = f" of {run.total_steps:,}" if run.total_steps else ""
    state = run.state
    subtitle = f"{run.id} · {state.value.lower()} · step {run.step or 0:,}{total}"
    options["is_resume_estimated"] = mapping_at(run.info, "resumed_from").get("is_estimate") is True
    return View(
        history, run.name, subtitle, marks, resumed_at, restarted_at=restarted_at, has_ended=state.is_final, **options
    )


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

    x: X = "step"
    span: Limits | None = None
    filter: str = ""
    opened: dict[str, bool] = field(default_factory=dict)
    switched: frozenset[str] = frozenset()
    width: float = 0.0
    """Width of the page in CSS pixels; 0 if unknown."""
    hidden: dict[str, bool] = field(default_factory=dict)
    """View of the charts -> whether it is hidden."""
    is_ready: bool = False
    """Whether a page draws the charts."""
    is_dark: bool = False

    @property
    def is_hidden(self) -> bool:
        return bool(self.hidden) and all(self.hidden.values())

    def options(self, metrics: Sequence[str] = ()) -> dict[str, Any]:
        """Return fields of `View`; `metrics` are the patterns without a filter."""
        patterns = self.filter.replace(",", " ").split() or metrics
        options = {"x": self.x, "span": self.span, "metrics": tuple(patterns), "switched": self.switched}
        return {**options, "opened": dict(self.opened)}

    def take(self, message: Mapping[str, Any]) -> None:
        """Apply a message of the page; invalid content is ignored."""
        if message.keys() - {"visible", "view", "width", "dark"}:
            self.hidden.clear()  # a view is in use; closed views send no message
        self.is_ready |= message.get("ready") is True
        if isinstance(is_dark := message.get("dark"), bool):
            self.is_dark = is_dark
        if "width" in message and (width := finite(message["width"])) is not None and 0 < width < 10_000:
            self.width = width
        if "zoom" in message:
            zoom = message["zoom"]
            left, right = map(finite, zoom) if isinstance(zoom, list) and len(zoom) == 2 else (None, None)
            self.span = (left, right) if left is not None and right is not None and left < right else None
        if (x := message.get("x")) in KINDS and x != self.x:
            self.x, self.span = x, None
        if isinstance(text := message.get("filter"), str):
            self.filter, self.opened = text[:_MAX_FILTER], {}
        if isinstance(key := message.get("open"), str):
            self.opened[key] = message.get("is_open") is True
        if isinstance(key := message.get("log"), str):
            self.switched ^= {key}
        if isinstance(visible := message.get("visible"), bool):
            self.hidden[str(message.get("view"))] = not visible


class Axis:
    """The x axis that all charts share, and the positions of each metric's points on it.

    `names` are metrics that determine it, and have positions on it.
    """

    def __init__(self, view: View, names: Sequence[str]) -> None:
        # Taken once: the history may grow in another thread while this picture is made.
        every = {name: (view.system if name in view.system else view.history)[name] for name in names}
        has = places_of_all(every)
        self.unit, self.note, left_out = common_unit(every, has)
        self.series = every = {name: series for name, series in every.items() if name not in left_out}
        rank = {name: (name not in view.system, -UNITS.index(one.unit), len(one)) for name, one in every.items()}
        main = max(every, key=lambda name: rank[name])
        self.kinds: Sequence[X] = [kind for kind in KINDS if has["time" if kind == "relative" else kind]]
        self.kind: X = view.x if view.x in self.kinds else "step" if has["step"] else "relative"
        start = min(float(series.times[0]) for series in every.values()) if self.kind == "relative" else 0.0
        self.positions = {name: self._place(series, start) for name, series in every.items()}
        if self.kind == "relative" and view.resumed_at is not None:
            self._close_pause(every, main, view.resumed_at)
        self.positions = {name: np.maximum.accumulate(x) for name, x in self.positions.items()}  # a clock was set back
        self._steps, self._main = every[main].steps, self.positions[main]
        left = min(float(x[0]) for x in self.positions.values())
        right = max(float(x[-1]) for x in self.positions.values())
        if view.checkpoints:  # a stop saves between two rows
            right = max(right, self.of_step(max(step for step, _ in view.checkpoints)))
        self.full = left, right = full_limits(left, right)
        self.is_zoomed = view.span is not None
        self.left, self.right = view.span or self.full
        self.right = max(self.right, self.left + 1e-6 * (right - left))

    def _place(self, series: Series | Sketch, start: float) -> NDArray[Any]:
        if self.kind == "step":
            return series.steps
        return series.samples if self.kind == "samples" else series.times - start

    def _close_pause(self, every: Mapping[str, Series | Sketch], main: str, resumed_at: int) -> None:
        """Leave out the pause between the last row before a resume and the first after it."""
        index = int(np.searchsorted(every[main].steps, resumed_at, "right"))
        if pause := pause_at(every[main].times, index):
            last = every[main].times[index - 1]
            for name, one in every.items():
                is_after = one.steps > resumed_at if one.unit == every[main].unit else one.times > last
                self.positions[name] = self.positions[name] - np.where(is_after, pause, 0.0)

    def of_step(self, step: int) -> float:
        """Return the position of a step, extrapolated at the average pace after the last row."""
        if self.kind == "step":
            return float(step)
        steps, places, rate = self._steps, self._main, 0.0
        if step > steps[-1] > steps[0]:
            rate = float(places[-1] - places[0]) / float(steps[-1] - steps[0])
        return float(np.interp(step, steps, places)) + rate * max(0.0, float(step - steps[-1]))


def x_ticks(kind: X, left: float, right: float, num_max: int) -> Sequence[tuple[float, str]]:
    """Return positions and labels of round numbers, durations or times of the clock."""
    if kind == "time":
        return clock_ticks(left, right, num_max)
    if kind == "relative":
        return time_ticks(left, right, num_max)
    return ticks(left, right, num_max, whole=True)


def full_limits(left: float, right: float) -> Limits:
    """Return the limits of an axis for positions between these; it begins at 0 if they begin near it."""
    left = 0.0 if 0 < left < 0.15 * right else left
    return (left, right) if right > left else (left - 1.0, left + 1.0)


def places_of_all(every: Mapping[str, Series | Sketch]) -> dict[str, bool]:
    """Return for each kind of axis whether all curves have positions on it; those of different units have no step."""
    has = {kind: has_places(kind, every.values()) for kind in ("samples", "time")}
    units = {one.unit for one in every.values()}
    return has | {"step": len(units) < 2 and (units != {"row"} or not has["time"])}


def common_unit(every: Mapping[str, Series | Sketch], has: dict[str, bool]) -> tuple[Unit, str, set[str]]:
    """Return the unit of an axis of steps, a sentence where curves have others, and those that cannot be drawn.

    Curves of several units are drawn by time; without times only those of the first unit are, by their steps, which
    changes `has`.
    """
    names: dict[Unit, list[str]] = {unit: [n for n, one in every.items() if one.unit == unit] for unit in UNITS}
    first, *others = [unit for unit in UNITS if names[unit]]
    if not others:
        return first, "Rows have no counter: they are drawn by order" * (first == "row"), set()
    several = {unit: ", ".join(names[unit][:_NUM_NAMED]) + " …" * (len(names[unit]) > _NUM_NAMED) for unit in UNITS}
    counted = "; ".join(f"{several[unit]}: {unit}s" for unit in (first, *others))
    if has["time"]:
        return first, f"Curves of different units have only time in common ({counted})", set()
    has["step"] = True
    left_out = {name for unit in others for name in names[unit]}
    return first, f"Curves of different units need times to be drawn together ({counted}): only {first}s are", left_out


def has_places(kind: str, every: Iterable[Series | Sketch]) -> bool:
    """Whether all points of all curves have a position on an axis of this kind."""
    if kind == "step":
        return True
    columns = (series.samples if kind == "samples" else series.times for series in every)
    found = {(column.__array_interface__["data"][0], len(column)): column for column in columns}  # often the same one
    return all(np.isfinite(column[-1]) and all_finite(column) for column in found.values())


def pause_at(times: NDArray[Any], index: int) -> float:
    """Return by how much the time before a row is longer than the usual one before it; 0 for no row."""
    if not 0 < index < len(times):
        return 0.0
    usual = float(np.median(np.diff(times[:index]))) if index > 1 else 0.0
    return max(0.0, float(times[index] - times[index - 1]) - usual)
