"""The result of every reader of a metrics file: `poll()` gives the new points of each metric since the last call."""

import math
from typing import Protocol

from nbtools.metrics.history import History

Points = dict[str, tuple[list[int], list[float], list[float]]]
"""Metric -> steps, values, Unix times (NaN where unknown)."""


class Reader(Protocol):
    """Reads one growing file."""

    note: str
    """Why the file is not understood; "" if it is."""
    generation: int
    """How often the file was replaced or cut; the points of `poll` then replace all earlier ones."""

    def poll(self) -> Points:
        """Return the points that were added since the last call."""
        ...


def add_point(points: Points, name: str, step: int, value: float, time: float = math.nan) -> None:
    """Append one point."""
    steps, values, times = points.setdefault(name, ([], [], []))
    steps.append(step)
    values.append(value)
    times.append(time)


def extend(history: History, points: Points, generation: int = 0) -> None:
    """Add points to a history; those of a later generation replace earlier ones from their first step on."""
    for name, (steps, values, times) in points.items():
        history.add(name, steps, values, times, generation)
