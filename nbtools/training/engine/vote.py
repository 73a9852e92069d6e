"""Vote by which all ranks stop, or take requests, after the same step, without waiting for one another."""

import functools
import os
import re
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from nbtools.machine import slurm
from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import finite, read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.process.device import is_under_torchrun
from nbtools.training.process.signals import StopRequest

_EVERY_S = 0.5
_MOST_STEPS = 50
"""Largest number of steps between two votes: where steps become slower, the next vote must not be minutes away."""
_SHARE_OF_STOP = 0.8
"""Part of the time between a stop's SIGTERM and SIGKILL in which a checkpoint is written; the end is recorded after."""
_TORCHRUN_S = 30.0
"""torchrun's own `--shutdown-timeout`."""


@functools.cache
def stop_s(files: RunDir) -> float:
    """Return the seconds after a stop's SIGTERM in which this process may still write.

    They are part of the `shutdown_timeout_s` of the launch, or of Slurm's KillWait, if that is shorter.
    """
    launch = read_json(files.launch) or {}
    granted = finite(mapping_at(launch, "launch").get("shutdown_timeout_s"))
    if granted is None or (launch.get("by_hand") and is_under_torchrun()):
        granted = _TORCHRUN_S
    wait = re.match("[0-9]+", slurm.settings().get("KillWait", "") if "SLURM_JOB_ID" in os.environ else "")
    return _SHARE_OF_STOP * min(granted, float(wait[0]) if wait else granted)


class Vote:
    """An asynchronous all-reduce about twice a second, whose result is read one step later, when it has arrived.

    It tells all ranks at the same step whether one of them was asked to stop, and whether requests wait. The vote
    itself carries the number of steps to the next one, so all ranks start it at the same step.
    """

    def __init__(self, stop: StopRequest, group: dist.ProcessGroup | None, num_waiting: Callable[[], int]) -> None:
        """Share `stop`, and the number of requests that wait, among the ranks of `group`; None for a single process."""
        self.stop = stop
        self.has_requests = False
        """Whether requests waited at the last vote that was read."""
        self._group = group
        self._num_waiting = num_waiting
        self._open: tuple[dist.Work, torch.Tensor] | None = None
        self._started = time.monotonic()
        self._every, self._steps_left = 1, 0
        self._stops = False

    def agreed(self) -> bool:
        """Whether all ranks stop after this step; every rank calls it once per step."""
        self.has_requests = False
        if self._group is None:
            if time.monotonic() - self._started >= _EVERY_S:
                self._started, self.has_requests = time.monotonic(), self._num_waiting() > 0
            return self.stop.requested
        self.count()
        self._steps_left -= 1
        if not self._stops and self._steps_left <= 0:
            now = time.monotonic()
            step_s = max(now - self._started, 1e-6) / self._every
            self._started = now
            self._open = self._begin(max(1, min(_MOST_STEPS, round(_EVERY_S / step_s))))
        return self._stops

    def at_once(self) -> bool:
        """Whether all ranks stop, between two steps; every rank calls it, and waits for the others."""
        if self._group is None:
            self.has_requests = self._num_waiting() > 0
            return self.stop.requested
        self.count()
        self._open = self._begin(1)
        self.count()
        self._started = time.monotonic()
        return self._stops

    def count(self) -> None:
        """Wait for the vote that was started, and take its result."""
        if self._open is not None:
            work, vote = self._open
            work.wait()
            self._open, self._stops, self.has_requests = None, bool(vote[0]), bool(vote[2])
            self._every = self._steps_left = int(vote[1])

    def _begin(self, steps_to_next: int) -> tuple[dist.Work, torch.Tensor] | None:
        vote = torch.tensor([int(self.stop.requested), steps_to_next, self._num_waiting()])
        work = dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return None if work is None else (work, vote)
