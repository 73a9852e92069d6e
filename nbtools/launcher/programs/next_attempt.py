"""The next attempt of a run: from its newest checkpoint, with the arguments that resume its recipe or program."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtools.run.checkpoints import AnyCheckpoint, checkpoints_in, newest_verified, steered_values
from nbtools.run.records import checkpoints_and_resume, recorded_arguments
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint, checkpoints_of, newest_whole
from nbtools.rundir.rundir import RunDir, has_recipe
from nbtools.script.resume_arguments import CHECKPOINT, with_checkpoint


def saved_checkpoints(run: RunDir, plan: Mapping[str, Any]) -> Sequence[AnyCheckpoint]:
    """Return the checkpoints of a run whose processes have ended, oldest first; they may be damaged."""
    found = checkpoints_in(run.checkpoints)
    return found if found or has_recipe(run) else _saved_by_program(run, plan)


def newest_checkpoint(run: RunDir, plan: Mapping[str, Any]) -> tuple[AnyCheckpoint | None, list[str]]:
    """Return the checkpoint from which the next attempt continues, and why newer ones are passed over.

    None if there is no whole one, or no words are known with which a program continues.
    """
    if has_recipe(run):
        return newest_verified(run.checkpoints)
    return newest_whole(_saved_by_program(run, plan)) if checkpoints_and_resume(plan)[1] else (None, [])


def continued(plan: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Return the content of a launch.json with a command that continues from a checkpoint."""
    args, argv = recorded_arguments(plan), [str(word) for word in plan.get("argv") or ()]
    words = checkpoints_and_resume(plan)[1]
    resumed = with_checkpoint(args, words, checkpoint) if words else resuming(args, checkpoint)
    return {**plan, "argv": [*argv[: len(argv) - len(args)], *resumed], "args": resumed}


def resuming(args: Sequence[str], checkpoint: Path, *, steered: bool = True) -> list[str]:
    """Return the arguments of a recipe's script with `--resume-from CHECKPOINT` at the end; an earlier one is removed.

    With `steered`, flags before it repeat the values that were changed while the training ran.
    """
    values = steered_values(checkpoint) if steered else {}
    flags = [f"--{name.replace('_', '-')}={value!r}" for name, value in values.items()]
    return with_checkpoint([*args, *flags], ("--resume-from", CHECKPOINT), checkpoint.resolve())


def _saved_by_program(run: RunDir, plan: Mapping[str, Any]) -> list[ForeignCheckpoint]:
    with contextlib.suppress(OSError):
        return checkpoints_of(run.path, time.time(), checkpoints_and_resume(plan)[0])[0]
    return []
