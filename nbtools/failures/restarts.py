"""The automatic restarts of a run: one record per failed attempt, and how they read."""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from nbtools.failures.failure import Failure
from nbtools.rundir.json_files import finite, read_small, whole
from nbtools.rundir.rundir import RunDir


@dataclass(frozen=True)
class Restart:
    """A failed attempt that was followed by another one."""

    attempt: int
    """Number of the attempt that failed; 1 for the first start."""
    time: float
    """Unix time of its end."""
    failure: Failure | None
    checkpoint: str | None
    """Name of the checkpoint that the next attempt went on from; None if there was none."""

    @classmethod
    def from_json(cls, content: object) -> Self | None:
        """Read a line of attempts.jsonl; None if it is nothing of the kind."""
        if not isinstance(content, Mapping):
            return None
        attempt, ended = whole(content.get("attempt")), finite(content.get("time"))
        if attempt is None or ended is None:
            return None
        name = content.get("checkpoint")
        return cls(attempt, ended, Failure.from_json(content.get("failure")), name if isinstance(name, str) else None)


def read_restarts(run: RunDir) -> list[Restart]:
    """Automatic restarts so far, oldest first; damaged lines are left out."""
    found = []
    try:
        lines = read_small(run.attempts).splitlines()
    except OSError:
        return []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(Restart.from_json(json.loads(line)))
    return [restart for restart in found if restart is not None]


def restarted(restart: "Restart") -> str:
    """Where the next attempt went on, and why it had to."""
    step = step_of(restart)
    why = restart.failure.headline if restart.failure else "it failed"
    return f"restarted {f'at step {step:,}' if step else 'from the start'}: {why[:300]}"


def step_of(restart: "Restart") -> int:
    """The step that the next attempt went on from; 0 for the start."""
    found = re.fullmatch(r"step-([0-9]{1,18})", restart.checkpoint or "")
    return int(found[1]) if found else 0
