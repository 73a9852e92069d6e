"""Vote by which all ranks stop after the same step, without waiting for one another."""

import time

import torch
import torch.distributed as dist

from nbtools.training.process.signals import StopRequest

_EVERY_S = 0.5


class StopVote:
    """An asynchronous all-reduce about twice a second, whose result is read one step later, when it has arrived.

    The vote itself carries the number of steps to the next one, so all ranks start it at the same step.
    """

    def __init__(self, stop: StopRequest, group: dist.ProcessGroup | None) -> None:
        """Share `stop` among the ranks of `group`; None for a single process."""
        self.stop = stop
        self.is_agreed = False
        """Whether all ranks stop after the step that the last vote was about."""
        self._group = group
        self._open: tuple[dist.Work, torch.Tensor] | None = None
        self._started = time.monotonic()
        self._every, self._steps_left = 1, 0

    def agreed(self) -> bool:
        """Whether all ranks stop after this step; every rank calls it once per step."""
        if self._group is None:
            self.is_agreed = self.stop.requested
            return self.is_agreed
        self.count()
        self._steps_left -= 1
        if not self.is_agreed and self._steps_left <= 0:
            now = time.monotonic()
            step_s = max(now - self._started, 1e-6) / self._every
            self._started = now
            vote = torch.tensor([int(self.stop.requested), max(1, min(1000, round(_EVERY_S / step_s)))])
            work = dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
            self._open = None if work is None else (work, vote)
        return self.is_agreed

    def count(self) -> None:
        """Wait for the vote that was started, and take its result."""
        if self._open is not None:
            work, vote = self._open
            work.wait()
            self._open, self.is_agreed = None, bool(vote[0])
            self._every = self._steps_left = int(vote[1])
