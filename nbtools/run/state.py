"""The states of a run."""

from enum import StrEnum


class RunState(StrEnum):
    """What a run is doing; derived from its files and its lock, never stored."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    LOST = "LOST"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended; only a LOST run can still be found to have ended otherwise."""
        return self not in (RunState.QUEUED, RunState.RUNNING)
