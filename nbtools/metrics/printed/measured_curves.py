"""The curves of a log: columns of points, which are drawn as soon as it is certain that they are measured."""

import math
from array import array
from dataclasses import dataclass, field

import numpy as np

from nbtools.metrics.columns import Unit
from nbtools.metrics.curve_names import metric_of, parts_of, split_of
from nbtools.metrics.history import History
from nbtools.metrics.printed.line_times import LineTimes


@dataclass
class PrintedCurve:
    """The points of one metric that are not in the history yet."""

    name: str
    is_given: bool
    """Whether the user has named it, so that it is drawn at once."""
    has_order: bool = False
    """Whether the program's source or the user names it, so that lines without any counter are drawn by their order."""
    is_counted: bool = False
    """Whether its lines have a counter with a name."""
    unit: Unit = "row"
    is_drawn: bool = False
    is_redrawn: bool = False
    """Whether a bar shows it, which repeats a value until it is measured again."""
    first: tuple[int, float] | None = None
    last_step: int = 0
    last_value: float = 0.0
    num_steps: int = 0
    num_piled: int = 0
    """Points that fall on the step of the point before with another value: of classes, or of ranks."""
    is_changing: bool = False
    has_fraction: bool = False
    is_count: bool = True
    """Whether the values grow by one, or start over at the first one, as an index does."""
    slope: float | None = None
    is_rising: bool = True
    is_even: bool = True
    """Whether the values change evenly with the step."""
    is_progress: bool = True
    """Whether the values grow in proportion to the step, as a percentage does."""
    is_unsure: bool = False
    """Whether what counts its lines has contradicted other lines."""
    num_shown: int = 0
    num_changes: int = 0
    shown: float | None = None
    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    attempts: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, unit: Unit, step: int, value: float, offset: int, attempt: int) -> None:
        """Add a point; what was numbered before anything counted is dropped."""
        if self.is_unsure or (unit == "row" and not self.has_order):
            return
        if unit != self.unit:
            if self.unit == "row" and self.num_steps > 1:
                unit, step = "row", self.last_step + 1  # what counted later is another loop
            elif self.num_steps and (self.is_measured or unit == "row"):
                return  # a curve has one unit
            else:
                self.clear()
                self.unit, self.first, self.num_steps, self.num_piled = unit, None, 0, 0
        if self.is_redrawn:
            self.num_shown += 1
            if value == self.shown and 2 * self.num_changes < self.num_shown:
                return
            self.num_changes += value != self.shown
            self.shown = value
        is_new = step != self.last_step or not self.num_steps
        self.num_steps += is_new
        self.num_piled += not is_new and value != self.last_value and not self.is_redrawn
        if self.is_progress or not (self.is_changing and self.has_fraction):  # only these depend on what follows
            self._compare(step, value)
        self.last_step, self.last_value = step, value
        self.steps.append(step)
        self.values.append(value)
        self.offsets.append(offset)
        self.attempts.append(attempt)

    def clear(self) -> None:
        """Forget the points."""
        self.steps, self.values, self.offsets, self.attempts = array("q"), array("d"), array("q"), array("q")

    @property
    def is_measured(self) -> bool:
        """Whether it is certain that the points are measurements: no setting, no index, no progress, and of one thing.

        What follows may show that it is not: a curve that is drawn is then taken away.
        """
        if self.is_given:
            return True
        if self.is_unsure or 3 * self.num_piled > self.num_steps:
            return False
        if self.unit == "row":
            return self.is_changing and self.has_fraction and self.num_steps > 2
        is_loss = self.name == "train/loss"  # no setting is called so
        is_result = is_loss or self.name.startswith(("eval/", "test/"))
        if self.has_fraction and is_result and self.num_steps < 4:  # the only one, perhaps
            return self.is_counted or self.num_steps > 1
        is_index = self.is_count or self.is_even or self.is_rising or not self.is_counted
        return self.is_changing and (self.has_fraction or not is_index) and not self.is_progress

    def _compare(self, step: int, value: float) -> None:
        """Note whether values of different steps differ, and whether they only count; of a bar, the last drawing of a
        step counts."""
        if self.first is not None:
            start, lowest = self.first
            self.is_count &= value - self.last_value in (0, 1) or value == lowest
            share = lowest * step / start if start else 0.0
            self.is_progress &= max(1, lowest) < value < math.inf and abs(value - share) <= 0.01 + 0.01 * share
            if self.slope is None and step != start:
                self.slope = (value - lowest) / (step - start)
            self.is_rising &= value > self.last_value or step == self.last_step
            self.is_even &= value == lowest + (self.slope or 0) * (step - start)
        if self.first is None or self.first[0] == step:
            self.first = (step, value)
            return
        seen = (self.last_step, self.last_value) if self.is_redrawn else (step, value)
        self.is_changing |= (
            seen[0] not in (self.first[0], step if self.is_redrawn else None) and seen[1] != self.first[1]
        )


class PrintedCurves:
    """All curves of a log, by the statement that prints them and the name that it gives them."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, str], PrintedCurve] = {}
        self._names: set[str] = set()
        self._given: set[str] = set()

    def named(self, statement: str, name: str, split: str | None, *, is_given: bool) -> PrintedCurve:
        """Return the curve of a name in the lines of a statement; of other statements, the name is another curve.

        `is_given` tells that the name is the user's own.
        """
        key = (statement, f"{split_of([*parts_of(name)], split)}/{name}")
        curve = self._curves.get(key)
        if curve is None:
            own = name if is_given and "/" in name else metric_of(name, split)
            head, _, plain = own.partition("/")
            words = "_".join(statement.split()[:2]).strip("_:()[]")
            names = (own, f"{head}/{'_'.join(name.split())}", f"{head}/{words}_{plain}")
            numbered = (f"{own}_{i}" for i in range(2, 1000))
            own = next(each for each in (*names, *numbered, own) if each not in self._names or is_given)
            self._names.add(own)
            if is_given:
                self._given.add(own)
            curve = self._curves[key] = PrintedCurve(own, is_given)
        return curve

    def draw(self, history: History, times: LineTimes, generation: int) -> None:
        """Move the points of all curves that are measured into the history."""
        for curve in self._curves.values():
            if not curve.is_measured:
                if curve.is_drawn:
                    curve.is_drawn, curve.is_unsure = False, True
                    if curve.name not in self._given:
                        history.forget(curve.name)
                continue
            if not curve.steps:
                continue
            curve.is_drawn = True
            attempts = np.frombuffer(curve.attempts, np.int64)
            columns = np.frombuffer(curve.steps, np.int64), np.frombuffer(curve.values)
            when = times.at(np.frombuffer(curve.offsets, np.int64))
            for attempt in np.unique(attempts).tolist():
                chosen = attempts == attempt
                steps, values = (column[chosen] for column in columns)
                history.add(curve.name, steps, values, when[chosen], generation, unit=curve.unit, attempt=attempt)
            curve.clear()
