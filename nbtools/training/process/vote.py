"""Vote by which all ranks stop, or take requests, after the same step, without waiting for one another."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from nbtools.training.process.signals import StopRequest

_EVERY_S = 0.5
_MOST_STEPS = 50
"""Largest number of steps between two votes: where steps become slower, the next vote must not be minutes away."""


class Vote:
    """An asynchronous all-reduce about twice a second, whose result is read one step later, when it has arrived.

    It tells all ranks at the same step whether one of them was asked to stop, and whether requests wait. The vote
    itself carries the number of steps to the next one, so all ranks start it at the same step.
    """

    def __init__(self, stop: StopRequest, group: dist.ProcessGroup | None) -> None:
        """Share `stop` among the ranks of `group`; None for a single process."""
        self.stop = stop
        self.num_waiting: Callable[[], int] = lambda: 0
        """Returns the number of requests that wait."""
        self.is_agreed = False
        """Whether all ranks stop after the step that the last vote was about."""
        self.has_requests = False
        """Whether requests waited at the last vote that was read."""
        self._group = group
        self._open: tuple[dist.Work, Tensor] | None = None
        self._started = time.monotonic()
        self._every, self._steps_left = 1, 0

    def agreed(self) -> bool:
        """Whether all ranks stop after this step; every rank calls it once per step."""
        self.has_requests = False
        if self._group is None:
            if time.monotonic() - self._started >= _EVERY_S:
                self.at_once()
            self.is_agreed = self.stop.requested
            return self.is_agreed
        self.count()
        self._steps_left -= 1
        if not self.is_agreed and self._steps_left <= 0:
            step_s = max(time.monotonic() - self._started, 1e-6) / self._every
            self._begin(max(1, min(_MOST_STEPS, round(_EVERY_S / step_s))))
        return self.is_agreed

    def at_once(self) -> bool:
        """Whether all ranks stop, between two steps; every rank calls it, and waits for the others."""
        if self._group is None:
            self._started, self.has_requests = time.monotonic(), self.num_waiting() > 0
            self.is_agreed = self.stop.requested
        else:
            self.count()
            self._begin(steps_to_next=1)
            self.count()
        return self.is_agreed

    def count(self) -> None:
        """Wait for the vote that was started, and take its result."""
        if self._open is not None:
            work, vote = self._open
            work.wait()
            self._open, self.is_agreed, self.has_requests = None, bool(vote[0]), bool(vote[2])
            self._every = self._steps_left = int(vote[1])

    def _begin(self, steps_to_next: int) -> None:
        self._started = time.monotonic()
        vote = torch.tensor([int(self.stop.requested), steps_to_next, self.num_waiting()])
        work = dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._open = None if work is None else (work, vote)
