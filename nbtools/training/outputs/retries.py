"""Further tries to write the last checkpoint and the outputs, while a full disk may be freed."""

import functools
import os
import re
import time
from dataclasses import dataclass

from nbtools.errors import Say, duration
from nbtools.machine import slurm
from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import finite, read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.process.device import is_under_torchrun
from nbtools.training.process.signals import StopRequest

LAST_SAVE_S = 600.0
"""Time after the last step in which a checkpoint or an output that cannot be written is tried again."""
_RETRY_EVERY_S = 1.0
_SAY_EVERY_S = 30.0
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


@dataclass(eq=False)
class Retries:
    """The time after the last step in which rank 0 tries once a second to write what it could not write."""

    files: RunDir
    stop: StopRequest
    say: Say
    since: float | None = None
    """Monotonic time of the first error after the last step; None before one."""
    _said: float = 0.0
    _tried: float | None = None
    """Monotonic time at which the newest further try began; None before one."""

    def may_retry(self, what: str, error: OSError) -> bool:
        """Pause before another try, and return whether there is time for one as long as the newest."""
        now = time.monotonic()
        took_s = now - (self._tried or now)
        until = (self.since or now) + LAST_SAVE_S
        if self.stop.at is not None:
            until = min(until, self.stop.at + stop_s(self.files))
        if now + _RETRY_EVERY_S + took_s > until:
            return False
        if self.since is None or now - self._said > _SAY_EVERY_S:
            self.say(f"warning: {what} cannot be written: {error}; trying again for {duration(until - now)}")
            self._said = now
        self.since = self.since or now
        time.sleep(_RETRY_EVERY_S)
        self._tried = time.monotonic()
        return True
