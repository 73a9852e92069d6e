"""The curves of a log: columns of points, which are drawn as soon as it is certain that they are measured."""

import math
import re
import struct
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nbtools.metrics.columns import Unit
from nbtools.metrics.curve_names import metric_of, parts_of, split_of
from nbtools.metrics.history import History
from nbtools.metrics.printed.line_times import LineTimes

_FIELDS: Final = ("step", "value", "place", "attempt", "trial")
_POINT: Final = np.dtype([(name, "=f8" if name == "value" else "=i8") for name in _FIELDS])
_pack = struct.Struct("=qdqqq").pack
_FIRST_CLOCK_S: Final = 1e9
"""Values that rise from here on are Unix times, in seconds or in parts of them."""
_CLOCKS: Final = ("time", "elapsed", "seconds")
_MOST_KEPT: Final = 10_000
"""Points of a curve from which on nothing that follows takes it away."""


@dataclass
class PrintedCurve:
    """The points of one metric, until they are in the history for good."""

    name: str
    is_given: bool
    """Whether the user has named it, so that it is drawn at once."""
    has_order: bool = False
    """Whether the program's source or the user names it, so that lines without any counter are drawn by their order."""
    is_counted: bool = False
    """Whether its lines have a counter with a name."""
    has_fraction: bool = False
    is_bar: bool = False
    unit: Unit = "row"
    is_settled: bool = False
    """Whether it is measured for certain, whatever follows."""
    num_drawn: int = 0
    is_outdated: bool = False
    """Whether the points that are drawn are of another unit."""
    is_unsure: bool = False
    """Whether what counts its lines has contradicted other lines."""
    packed: bytearray = field(default_factory=bytearray)
    """The points, packed as `_POINT`: a log may have millions."""

    def add(self, unit: Unit, step: int, value: float, offset: int, attempt: int, trial: int) -> None:
        """Add a point; what was numbered before anything counted is dropped."""
        if self.is_unsure or (unit == "row" and not self.has_order):
            return
        if unit != self.unit:
            if self.is_settled or (self.packed and (unit == "row" or self.is_measured)):
                return  # a curve has one unit
            self.restart(unit)
        self.packed += _pack(step, value, offset, attempt, trial)

    def restart(self, unit: Unit = "row") -> None:
        """Drop all points: those of another unit, or of another rank."""
        self.packed, self.unit, self.is_outdated = bytearray(), unit, True

    @property
    def points(self) -> npt.NDArray[Any]:
        """The points so far."""
        return np.frombuffer(bytes(self.packed), _POINT)

    @property
    def is_measured(self) -> bool:
        """Whether it is certain that the points are measurements: no setting, no index, no progress, and of one thing.

        What follows may show that it is not, and the contrary later: a curve that is drawn is taken away, or drawn
        again, so that the same lines give the same curves, however often they are looked at.
        """
        if self.is_given or self.is_settled or self.is_unsure or not self.packed:
            return self.is_given or self.is_settled
        points, is_bar = self.points, self.is_bar
        is_new = _is_new(points["step"])
        num_steps = int(is_new.sum())
        num_piled = 0 if is_bar else int((~is_new[1:] & (points["value"][1:] != points["value"][:-1])).sum())
        points = points[np.roll(is_new, -1) if is_bar else is_new]  # of a bar, the last drawing of a step counts
        steps, values = points["step"], points["value"]
        with np.errstate(all="ignore"):
            changes, share = np.diff(values), values[0] * steps[1:] / (steps[0] or math.inf)
            is_rising = (changes > 0).all()
            is_count = ((changes == 0) | (changes == 1) | (values[1:] == values[0])).all()  # an index
            is_changing = (values[1 : -1 if is_bar else None] != values[0]).any()
            is_setting = ((changes == 0) | (np.diff(points["trial"]) != 0)).all() and points["trial"][-1] > 0
            least = values[0] if self.unit == "row" else max(1, values[0])  # a learning rate may grow with the step
            is_near = np.abs(values[1:] - share) <= 0.01 * (share + (share > 1))
            is_progress = (is_near & (least < values[1:]) & (values[1:] < math.inf)).all()  # as a percentage
        is_clock = is_rising and (values[0] > _FIRST_CLOCK_S or self.name.endswith(_CLOCKS))
        is_loss = self.name == "train/loss"  # no setting is called so
        is_result = is_loss or self.name.startswith(("eval/", "test/"))
        if is_clock or (is_setting and not is_result) or 3 * num_piled > num_steps:
            return False
        if self.has_fraction and is_result and num_steps < 4:  # the only one, perhaps
            return self.is_counted or num_steps > 1
        is_index = is_count or is_rising or not self.is_counted
        return bool(is_changing and (self.has_fraction or not is_index) and not is_progress)


def _is_new(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which points are the first ones of their step."""
    return np.asarray(np.diff(steps, prepend=-1), bool)


class PrintedCurves:
    """All curves of a log, by the statement that prints them and the name that it gives them."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, str], PrintedCurve] = {}
        self._names: set[str] = set()

    def named(self, statement: str, name: str, split: str | None, *, is_given: bool) -> PrintedCurve:
        """Return the curve of a name in the lines of a statement; of other statements, the name is another curve.

        `is_given` tells that the name is the user's own.
        """
        key = (statement, f"{split_of([*parts_of(name)], split)}/{name}")
        if key not in self._curves:
            own = name if is_given and "/" in name else metric_of(name, split)
            head, slash, plain = own.rpartition("/")
            words = "_".join(re.findall(r"[^\W\d]+", statement)[:2])
            names = (own, f"{head}{slash}{'_'.join(name.split())}", f"{head}{slash}{words}_{plain}")
            numbered = (f"{own}_{i}" for i in range(2, 1000))
            own = next(each for each in (*names, *numbered, own) if each not in self._names or is_given)
            self._names.add(own)
            self._curves[key] = PrintedCurve(own, is_given)
        return self._curves[key]

    def draw(self, history: History, times: LineTimes, generation: int, *, has_counter: bool) -> None:
        """Move the points of all curves that are measured into the history.

        Where anything counts, lines by their order are those before it: of the start, and no measurements.
        """
        for curve in self._curves.values():
            is_measured = curve.is_measured and (curve.is_given or curve.unit != "row" or not has_counter)
            if curve.num_drawn and (curve.is_outdated or not is_measured):
                curve.num_drawn = 0
                is_shared = any(each.is_given and each.name == curve.name for each in self._curves.values())
                curve.is_unsure |= is_shared
                if not is_shared:  # else the points of both are one series, which stays
                    history.forget(curve.name)
            curve.is_outdated = False
            num_points = len(curve.packed) // _POINT.itemsize
            if curve.num_drawn == num_points or not is_measured:
                continue
            points = curve.points
            is_kept = np.arange(num_points) >= curve.num_drawn
            if not curve.is_bar:
                is_kept &= _is_new(points["step"])
            points = points[is_kept]
            when = times.at(points["place"])
            for attempt in np.unique(points["attempt"]).tolist():
                at = points["attempt"] == attempt
                columns = points["step"][at], points["value"][at], when[at]
                history.add(curve.name, *columns, generation, unit=curve.unit, attempt=attempt)
            curve.num_drawn = num_points
            if num_points > _MOST_KEPT:
                curve.is_settled, curve.num_drawn, curve.packed = True, 1, curve.packed[-_POINT.itemsize :]
