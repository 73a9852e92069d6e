"""Ways to do the same, measured in turn."""

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

Found = TypeVar("Found")


class Cost(NamedTuple):
    """Seconds of the wall clock, and of CPU time with that of child processes which have ended."""

    wall_s: float
    cpu_s: float


def so_far() -> Cost:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return Cost(time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used))


def cost_of(action: Callable[[], object]) -> Cost:
    """Measure one call."""
    began = so_far()
    action()
    ended = so_far()
    return Cost(ended.wall_s - began.wall_s, ended.cpu_s - began.cpu_s)


def cpu(action: Callable[[], object]) -> float:
    """Return the CPU seconds of one call."""
    return cost_of(action).cpu_s


def interleaved(
    ways: Mapping[str, Callable[[], Found]], num_rounds: int, before: Callable[[], object] = lambda: None
) -> tuple[dict[str, list[Cost]], dict[str, Found]]:
    """Call the ways in turn, in rounds after one that warms up; return the costs of each, and its last result.

    The order of a round is the reverse of the last one's. `before` is called before each way and is not measured.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    found: dict[str, Found] = {}
    for number in range(num_rounds + 1):
        for name, way in [*ways.items()][:: -1 if number % 2 else 1]:
            before()
            cost = cost_of(lambda name=name, way=way: found.update({name: way()}))  # type: ignore[misc]
            if number:
                costs[name].append(cost)
    return costs, found


def print_costs(costs: Mapping[str, list[Cost]]) -> None:
    """Print the CPU and the wall time of each way."""
    for name, each in costs.items():
        walls, cpus = (sorted(1e3 * seconds for seconds in column) for column in zip(*each, strict=True))
        print(
            f"{name:<28} CPU median {statistics.median(cpus):,.2f} ms  least {cpus[0]:,.2f} ms  "
            f"wall median {statistics.median(walls):,.2f} ms  least {walls[0]:,.2f} ms"
        )


def cpu_medians(costs: Mapping[str, list[Cost]]) -> dict[str, float]:
    """Return the median of the CPU seconds of each way."""
    return {name: statistics.median(cost.cpu_s for cost in each) for name, each in costs.items()}
