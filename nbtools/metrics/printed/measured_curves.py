"""The curves of a log: columns of points, which are drawn as soon as it is certain that they are measured."""

import math
import re
import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from nbtools.metrics.columns import Unit
from nbtools.metrics.curve_names import metric_of, parts_of, split_of
from nbtools.metrics.history import History
from nbtools.metrics.printed.line_times import LineTimes

_POINT: Final = np.dtype([("step", "=i8"), ("value", "=f8"), ("place", "=i8"), ("attempt", "=i8")])
_pack = struct.Struct("=qdqq").pack
_FIRST_CLOCK_S: Final = 1e9
"""Values that rise from here on are Unix times, in seconds or in parts of them."""
_CLOCKS: Final = ("time", "elapsed", "seconds")
_MOST_KEPT: Final = 10_000
"""Points of a curve from which on nothing that follows takes it away."""


@dataclass
class Evidence:
    """Findings on the points of a curve so far. Those that begin as True hold until a point contradicts them."""

    is_by_order: bool = False
    """Whether the steps are the order of the lines."""
    is_count: bool = True
    """Whether the values grow by one, or start over at the first one, as an index does."""
    is_rising: bool = True
    is_progress: bool = True
    """Whether the values grow in proportion to the step, as a percentage does."""
    is_changing: bool = False
    """Whether values of different steps differ."""
    is_setting: bool = True
    """Whether the values only change where the epochs start over."""
    trial: int = 0
    num_steps: int = 0
    num_piled: int = 0
    """Points that fall on the step of the point before with another value: of classes, or of ranks."""
    first: tuple[int, float] = (0, 0.0)
    last: tuple[int, float] = (0, 0.0)

    def take(self, step: int, value: float, trial: int, *, is_bar: bool, is_certain: bool) -> None:
        """Take a point into account; of a bar, the last drawing of a step counts.

        `is_certain` tells that nothing but the number of steps, and of points on one step, can matter any more.
        """
        is_new = step != self.last[0] or not self.num_steps
        self.num_piled += not is_new and value != self.last[1] and not is_bar
        if not is_certain:
            self.is_setting &= not self.num_steps or value == self.last[1] or trial != self.trial
            self.trial = trial
            self._compare(step, value, is_bar=is_bar)
        self.num_steps += is_new
        self.last = step, value

    def _compare(self, step: int, value: float, *, is_bar: bool) -> None:
        start, lowest = self.first
        if self.num_steps:
            self.is_count &= value - self.last[1] in (0, 1) or value == lowest
            share = lowest * step / start if start else 0.0
            least = lowest if self.is_by_order else max(1, lowest)  # a learning rate may grow with the step
            self.is_progress &= least < value < math.inf and abs(value - share) <= 0.01 * (share + (share > 1))
            self.is_rising &= value > self.last[1] or step == self.last[0]
        if not self.num_steps or start == step:
            self.first = step, value
        else:
            seen_step, seen = self.last if is_bar else (step, value)
            self.is_changing |= seen_step not in (start, step if is_bar else None) and seen != lowest


@dataclass
class BarValue:
    """The value in a bar, which repeats it until it is measured again."""

    value: float | None = None
    num_shown: int = 0
    num_changes: int = 0

    def is_repeated(self, value: float) -> bool:
        """Whether a bar that is drawn with this value only repeats what it showed before."""
        self.num_shown += 1
        if value == self.value and 2 * self.num_changes < self.num_shown:
            return True
        self.num_changes += value != self.value
        self.value = value
        return False


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
    bar: BarValue | None = None
    unit: Unit = "row"
    seen: Evidence = field(default_factory=lambda: Evidence(is_by_order=True))
    is_settled: bool = False
    """Whether it is measured for certain, whatever follows."""
    num_drawn: int = 0
    is_outdated: bool = False
    """Whether the points that are drawn are of another unit."""
    is_unsure: bool = False
    """Whether what counts its lines has contradicted other lines."""
    points: bytearray = field(default_factory=bytearray)
    """The points, packed as `_POINT`: a log may have millions."""

    def add(self, unit: Unit, step: int, value: float, offset: int, attempt: int, trial: int) -> None:
        """Add a point; what was numbered before anything counted is dropped."""
        if self.is_unsure or (unit == "row" and not self.has_order):
            return
        if unit != self.unit:
            if self.seen.num_steps and (self.is_measured or unit == "row"):
                return  # a curve has one unit
            self.restart(unit)
        if self.bar is not None and self.bar.is_repeated(value):
            return
        seen = self.seen
        is_open = seen.is_progress or seen.is_setting or self.is_clock
        is_certain = self.has_fraction and seen.is_changing and not is_open
        is_first = self.bar is not None or not seen.num_steps or step != seen.last[0]
        seen.take(step, value, trial, is_bar=self.bar is not None, is_certain=is_certain)
        if is_first:
            self.points += _pack(step, value, offset, attempt)

    def restart(self, unit: Unit = "row") -> None:
        """Drop all points: those of another unit, or of another rank."""
        self.points, self.unit, self.seen, self.is_outdated = bytearray(), unit, Evidence(unit == "row"), True

    @property
    def is_clock(self) -> bool:
        """Whether the values only rise and are times, by their size or name."""
        seen = self.seen
        return seen.is_rising and (seen.first[1] > _FIRST_CLOCK_S or self.name.endswith(_CLOCKS))

    @property
    def is_measured(self) -> bool:
        """Whether it is certain that the points are measurements: no setting, no index, no progress, and of one thing.

        What follows may show that it is not, and the contrary later: a curve that is drawn is taken away, or drawn
        again, so that the same lines give the same curves, however often they are looked at.
        """
        seen = self.seen
        if self.is_given or self.is_settled:
            return True
        is_loss = self.name == "train/loss"  # no setting is called so
        is_result = is_loss or self.name.startswith(("eval/", "test/"))
        is_setting = seen.is_setting and seen.trial and not is_result
        if self.is_unsure or self.is_clock or is_setting or 3 * seen.num_piled > seen.num_steps:
            return False
        if self.has_fraction and is_result and seen.num_steps < 4:  # the only one, perhaps
            return self.is_counted or seen.num_steps > 1
        is_index = seen.is_count or seen.is_rising or not self.is_counted
        return seen.is_changing and (self.has_fraction or not is_index) and not seen.is_progress


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

    def draw(self, history: History, times: LineTimes, generation: int) -> None:
        """Move the points of all curves that are measured into the history."""
        for curve in self._curves.values():
            if curve.num_drawn and (curve.is_outdated or not curve.is_measured):
                curve.num_drawn = 0
                is_shared = any(each.is_given and each.name == curve.name for each in self._curves.values())
                curve.is_unsure |= is_shared
                if not is_shared:  # else the points of both are one series, which stays
                    history.forget(curve.name)
            curve.is_outdated = False
            num_points = len(curve.points) // _POINT.itemsize
            if curve.num_drawn == num_points or not curve.is_measured:
                continue
            points = np.frombuffer(curve.points[curve.num_drawn * _POINT.itemsize :], _POINT)
            when = times.at(points["place"])
            for attempt in np.unique(points["attempt"]).tolist():
                at = points["attempt"] == attempt
                columns = points["step"][at], points["value"][at], when[at]
                history.add(curve.name, *columns, generation, unit=curve.unit, attempt=attempt)
            curve.num_drawn = num_points
            if num_points > _MOST_KEPT:
                curve.is_settled, curve.num_drawn, curve.points = True, 0, bytearray()
