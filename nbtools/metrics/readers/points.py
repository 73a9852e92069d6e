"""Points of metrics, as the readers of files collect them."""

Points = dict[str, tuple[list[int], list[float], list[float]]]
"""Metric -> steps, values, Unix times (NaN where unknown)."""


def add_point(points: Points, name: str, step: int, value: float, time: float) -> None:
    """Append one point."""
    steps, values, times = points.setdefault(name, ([], [], []))
    steps.append(step)
    values.append(value)
    times.append(time)
