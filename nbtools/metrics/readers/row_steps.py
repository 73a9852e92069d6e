"""The step of each row of a file, from those of its numbers that count steps, batches or epochs."""

import math
from collections.abc import Set
from typing import Final

from nbtools.metrics.readers.lines.names import COUNTERS, EPOCHS, is_setting
from nbtools.rundir.json_files import MAX_STEP

EPOCH_RANK: Final = 9
_STEPS: Final = ("step", "steps", "timestep", "timesteps")


def plain_name(name: str) -> str:
    """Return the last part of a path, with its words joined: `time/total_timesteps`, `_step`, `global step`."""
    return "_".join(name.lower().rpartition("/")[2].replace("_", " ").split())


def rank_of(name: str) -> int | None:
    """Return how well a column of this name counts the steps of a run, 0 at best; None if it counts nothing."""
    plain = plain_name(name)
    if plain in EPOCHS:
        return EPOCH_RANK
    first, _, last = plain.rpartition("_")  # env_steps, but not max_steps
    return COUNTERS.get(plain, COUNTERS[last] if last in _STEPS and not is_setting(first) else None)


class RowSteps:
    """Finds the steps of the rows of one file, in their order.

    The best counter of a row counts. One that starts over in each epoch continues from the end of the epoch before. A
    row with an epoch alone, in a file that counts steps, belongs to the last step of that epoch.
    """

    def __init__(self) -> None:
        self._rank, self._count, self._first, self._base = EPOCH_RANK + 1, -1, -1, 0
        self._outer, self._step = -1, 0
        self._metrics: Set[str] = frozenset()
        self._epochs: dict[int, tuple[int, int]] = {}
        """Epoch -> the steps before it, and its last step."""

    def place(self, counts: list[tuple[int, float]], metrics: Set[str]) -> int | None:
        """Return the step of a row; None if its counter is not a whole number.

        Args:
            counts: its numbers that count, from 0 to `MAX_STEP`, each with its rank, the best first; at least one.
            metrics: names of its other numbers.
        """
        rank, count = counts[0]
        if rank > self._rank:
            return self._epochs.get(math.floor(count), (0, self._step))[1]
        if count != int(count):
            return None
        if rank < self._rank:
            self._rank, self._count, self._base, self._epochs = rank, -1, 0, {}
        outer_rank, outer = counts[-1][0], math.floor(counts[-1][1]) if len(counts) > 1 else self._outer
        if outer != self._outer and outer in self._epochs:
            self._base = self._epochs[outer][0]  # a restart repeats the epoch
        elif outer > self._outer >= 0:
            is_again = count == self._count == self._first and not self._metrics.isdisjoint(metrics)
            if count < self._count or (is_again and outer_rank == EPOCH_RANK):
                self._base = self._step + (count == 0)
        elif len(counts) == 1 and rank == COUNTERS["batch"] and count < self._count:
            self._base = self._step + (count == 0)
        self._first = self._first if outer == self._outer else int(count)
        step = min(self._base + int(count), MAX_STEP)
        self._metrics = self._metrics | metrics if step == self._step else metrics
        self._count, self._outer, self._step = int(count), outer, step
        self._epochs[outer] = self._base, step
        return step
