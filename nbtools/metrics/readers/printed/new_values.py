"""Printed values that are new measurements: no settings, clocks or counts, and nothing that a bar shows again."""

import itertools
import math
from collections.abc import Iterable, Mapping

from nbtools.metrics.readers.printed.line_content import Reading
from nbtools.metrics.readers.printed.metric_words import COEFFICIENTS, RATE, SHARES, SIZES, is_time, parts_of

Row = tuple[int, dict[str, float]]
Points = list[tuple[int, float]]


class NewValues:
    """Follows the values of each metric."""

    def __init__(self) -> None:
        self._drawn: dict[str, _Drawn] = {}
        self._undecided: dict[str, Points] = {}
        self._varying: set[str] = set()
        self._first_rate: float | None = None

    def note_first_rate(self, value: float) -> None:
        """Take the learning rate that a line of its own tells before the first row: it may be that of step 0."""
        self._first_rate = value

    def are_drawn(self, names: Iterable[str]) -> bool:
        """Whether bars have shown all of these metrics."""
        return all(name in self._drawn for name in names)

    def are_shown(self, metrics: Mapping[str, float]) -> bool:
        """Whether the last drawings of bars show all of these values."""
        return all(name in self._drawn and self._drawn[name].value == value for name, value in metrics.items())

    def of(self, reading: Reading, metrics: dict[str, float], step: int) -> tuple[dict[str, float], list[Row]]:
        """Leave out what a bar shows again, settings and clocks: what never changes, and what counts up with the steps.

        A number that may be one is left out until it turns out to be none. Returns the metrics that are left, and the
        rows in which such a number was left out.
        """
        now: dict[str, float] = {}
        earlier: list[Row] = []
        for name, value in metrics.items():
            if name not in self._varying:
                words, is_clock = parts_of(name), is_time(name)
                is_whole = name.partition("/")[2] in reading.integers and SHARES.isdisjoint(words)
                may_be_setting = is_whole or is_clock or not (COEFFICIENTS | SIZES).isdisjoint(words)
                if may_be_setting or name in self._undecided:
                    seen = self._undecided.setdefault(name, [])
                    if _is_withheld(seen, step, value, is_time=is_clock, is_whole=is_whole):
                        continue
                    earlier += [(at, {name: value_then}) for at, value_then in seen]
                self._varying.add(name)
            if reading.is_bar and name != "train/epoch":
                drawn = self._drawn.setdefault(name, _Drawn())
                if not drawn.tells(value, step, is_end=any(c.value == c.total for c in reading.counters)):
                    continue
            now[name] = value
        if reading.is_bar and now.keys() - {"train/epoch"}:  # the bar's values are new, so others are, too
            now |= {
                name: value
                for name, value in metrics.items()
                if name == RATE or (name in self._drawn and self._drawn[name].comes_with_others(is_new=name in now))
            }
        if RATE in now:
            earlier += [(0, {RATE: now[RATE]})] * (now[RATE] == self._first_rate and step > 0)
            self._first_rate = None
        return now, earlier


class _Drawn:
    """The drawings of a value in a bar, which is drawn again at a step when the value arrives, or at its end."""

    def __init__(self) -> None:
        self.value, self._step, self._place, self._was_end = math.nan, -1, 0, False
        self._counts = [[0, 0], [0, 0], [0, 0]]
        """Numbers of first, second and later drawings at a step that show the value of before, and another."""
        self._num_other = [0, 0]
        """Numbers of drawings with new values of others in which this one is the same, and another."""

    def comes_with_others(self, *, is_new: bool) -> bool:
        """Whether a value, which is the same as before or not, is measured whenever others of the bar are."""
        self._num_other[is_new] += 1
        same, other = self._num_other
        return is_new or (other > 2 and 2 * other > same)

    def tells(self, value: float, step: int, *, is_end: bool) -> bool:
        """Whether a drawing shows a new measurement: another value, or the same where nearly all drawings differ.

        A bar is drawn once more at its end; one that is drawn only there has a line an epoch, as Keras prints it.
        """
        is_next_end, self._was_end = is_end and self._was_end and step != self._step, is_end
        self._place = min(self._place + 1, 2) if step == self._step else 0
        is_other, counts = value != self.value, self._counts[self._place]
        counts[is_other] += 1
        self.value, self._step = value, step
        return is_other or is_next_end or (counts[True] >= 10 * counts[False] and not is_end)


def _is_withheld(seen: Points, step: int, value: float, *, is_time: bool, is_whole: bool) -> bool:
    """Whether a number may still be a setting, a clock or a count; `seen` are its points so far, and get this one.

    A setting stays. A clock rises in each row, by about as much: four rows tell it from durations. A count grows as
    the steps do.
    """
    points = [*seen, (step, value)]
    if len({each for _, each in points}) == 1:
        seen[:] = [points[0], points[-1]] if seen else points
        return True
    if is_time and len(points) < 5:
        speeds = [(now - before) / (at - last or 1) for (last, before), (at, now) in itertools.pairwise(points)]
        is_even = len(points) < 4 or (max(speeds) <= 4 * min(speeds) and value > 1.5 * points[0][1])
        if min(speeds) <= 0 or points[0][1] < 0 or not is_even:
            return False
    elif not is_time:
        first_step, first = points[0] if points[0][0] else points[1]
        if not is_whole or not value or abs(value * first_step - first * step) > 0.05 * abs(value * first_step):
            return False
    seen[:] = points[:4]
    return True


def is_rounded(one: float, other: float) -> bool:
    """Whether two numbers are the same, printed with different numbers of digits."""
    digits = min(len(repr(number).partition(".")[2].partition("e")[0]) for number in (one, other))
    return one == other or abs(one - other) < min(0.51 * 10**-digits, 2e-3 * abs(one))
