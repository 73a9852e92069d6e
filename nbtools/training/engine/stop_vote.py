"""Vote by which all ranks stop after the same step, without waiting for one another."""

import functools
import os
import re
import time

import torch
import torch.distributed as dist

from nbtools.machine import slurm
from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import finite, read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.process.device import is_under_torchrun
from nbtools.training.process.signals import StopRequest

_EVERY_S = 0.5
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


class StopVote:
    """An asynchronous all-reduce about twice a second, whose result is read one step later, when it has arrived.

    The vote itself carries the number of steps to the next one, so all ranks start it at the same step.
    """

    def __init__(self, stop: StopRequest, group: dist.ProcessGroup | None) -> None:
        """Share `stop` among the ranks of `group`; None for a single process."""
        self.stop = stop
        self._group = group
        self._open: tuple[dist.Work, torch.Tensor] | None = None
        self._started = time.monotonic()
        self._every, self._steps_left = 1, 0
        self._is_agreed = False

    def agreed(self) -> bool:
        """Whether all ranks stop after this step; every rank calls it once per step."""
        if self._group is None:
            return self.stop.requested
        self.count()
        self._steps_left -= 1
        if not self._is_agreed and self._steps_left <= 0:
            now = time.monotonic()
            step_s = max(now - self._started, 1e-6) / self._every
            self._started = now
            vote = torch.tensor([int(self.stop.requested), max(1, min(1000, round(_EVERY_S / step_s)))])
            work = dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
            self._open = None if work is None else (work, vote)
        return self._is_agreed

    def count(self) -> None:
        """Wait for the vote that was started, and take its result."""
        if self._open is not None:
            work, vote = self._open
            work.wait()
            self._open, self._is_agreed = None, bool(vote[0])
            self._every = self._steps_left = int(vote[1])
