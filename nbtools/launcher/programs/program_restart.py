"""The next attempt of a user's program: from its newest checkpoint, with its resume arguments."""

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtools.run.records import checkpoints_and_resume, recorded_arguments
from nbtools.rundir.json_files import finite
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint, checkpoints_of, newest_whole
from nbtools.rundir.rundir import RunDir
from nbtools.script.resume_arguments import with_checkpoint


def saved_by_program(run: RunDir, plan: Mapping[str, Any]) -> list[ForeignCheckpoint]:
    """Return the checkpoints of a program whose processes have ended, oldest first."""
    cwd, started, pattern = plan.get("cwd"), finite(plan.get("time")), checkpoints_and_resume(plan)[0]
    where, now = cwd if isinstance(cwd, str) else None, time.time()
    with contextlib.suppress(OSError):
        return checkpoints_of(run.path, where, recorded_arguments(plan), started or now, now, pattern)[0]
    return []


def newest_of_program(run: RunDir, plan: Mapping[str, Any]) -> tuple[ForeignCheckpoint | None, list[str]]:
    """Return the checkpoint from which the next attempt continues, and why newer ones are passed over.

    None if there is no checkpoint, or no words are known with which the program continues.
    """
    return newest_whole(saved_by_program(run, plan)) if checkpoints_and_resume(plan)[1] else (None, [])


def continued(plan: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Return the content of a launch.json with a command that continues from a checkpoint."""
    args, argv = recorded_arguments(plan), [str(word) for word in plan.get("argv") or ()]
    resumed = with_checkpoint(args, checkpoints_and_resume(plan)[1], checkpoint)
    return {**plan, "argv": [*argv[: len(argv) - len(args)], *resumed], "args": resumed}
