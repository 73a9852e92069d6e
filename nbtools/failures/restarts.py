"""The automatic restarts of a run: one record per failed attempt."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from nbtools.failures.evidence import last_rows
from nbtools.failures.failure import Failure
from nbtools.rundir.json_files import LARGEST_JSON_BYTES, finite, whole
from nbtools.rundir.rundir import RunDir


@dataclass(frozen=True)
class Restart:
    """A failed attempt that was followed by another one."""

    attempt: int
    """Number of the failed attempt; 1 is the first."""
    time: float
    """Unix time of its end."""
    failure: Failure | None
    checkpoint: str | None
    """Name of the checkpoint from which the next attempt continued; None if there was none."""

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self | None:
        """Return the restart in a line of attempts.jsonl; None if it is not one."""
        attempt, ended = whole(content.get("attempt")), finite(content.get("time"))
        if attempt is None or ended is None:
            return None
        name = content.get("checkpoint")
        return cls(attempt, ended, Failure.from_json(content.get("failure")), name if isinstance(name, str) else None)


def read_restarts(run: RunDir) -> list[Restart]:
    """Return the automatic restarts, oldest first; damaged lines are skipped."""
    found = map(Restart.from_json, last_rows(run.attempts, LARGEST_JSON_BYTES))
    return [restart for restart in found if restart is not None]


def restarted(restart: Restart) -> str:
    """Return a sentence: from which step the next attempt continued, and why the failed one ended."""
    step = step_of(restart)
    why = restart.failure.headline if restart.failure else "it failed"
    return f"restarted {f'at step {step:,}' if step else 'from the start'}: {why[:300]}"


def step_of(restart: Restart) -> int:
    """Return the step from which the next attempt continued; 0 is the start."""
    found = re.fullmatch(r"step-([0-9]{1,18})", restart.checkpoint or "")
    return int(found[1]) if found else 0
