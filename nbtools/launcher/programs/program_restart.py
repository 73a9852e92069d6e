"""The next attempt of a user's program: from its newest checkpoint, with its resume arguments."""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtools.project import expanded
from nbtools.run.records import mapping_at, recorded_arguments
from nbtools.rundir.json_files import finite
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint, checkpoints_of, newest_whole
from nbtools.rundir.rundir import RunDir
from nbtools.script.resume_arguments import named_checkpoint_in, with_checkpoint


def recorded_words(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words that resume the program of a launch.json; () if none are known."""
    words = mapping_at(dict(plan), "program").get("resume")
    return tuple(map(str, words)) if isinstance(words, list) else ()


def saved_by_program(run: RunDir, plan: Mapping[str, Any], cut: list[Path] | None = None) -> list[ForeignCheckpoint]:
    """Return the checkpoints of a program whose processes have ended, oldest first; `cut` receives unread folders."""
    cwd, started = plan.get("cwd"), finite(plan.get("time"))
    folder = cwd if isinstance(cwd, str) else None
    since = time.time() if started is None else started
    with contextlib.suppress(OSError):
        return checkpoints_of(run.path, folder, recorded_arguments(plan), since, None, quiet_s=0, cut=cut)
    return []


def newest_of_program(run: RunDir, plan: Mapping[str, Any]) -> tuple[ForeignCheckpoint | None, list[str]]:
    """Return the checkpoint from which the next attempt continues, and why newer ones are passed over.

    None if there is no checkpoint, or no words are known with which the program continues.
    """
    if not recorded_words(plan):
        return None, []
    cut: list[Path] = []
    found, reasons = newest_whole(saved_by_program(run, plan, cut))
    if found is None and cut:
        reasons.append(
            f"{cut[0]}: has too many entries to find a checkpoint among; name a folder for checkpoints alone"
        )
    return found, reasons


def continued(plan: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Return the content of a launch.json with a command that continues from a checkpoint.

    A program that already names a folder with that checkpoint finds it there itself.
    """
    args, argv = recorded_arguments(plan), [str(word) for word in plan.get("argv") or ()]
    words = recorded_words(plan)
    named = named_checkpoint_in(args, words)
    folder = Path(os.path.realpath(str(plan.get("cwd") or "/") / expanded(named)))
    is_found = named and folder.is_dir() and Path(os.path.realpath(checkpoint)).is_relative_to(folder)
    resumed = args if is_found else with_checkpoint(args, words, checkpoint)
    return {**plan, "argv": [*argv[: len(argv) - len(args)], *resumed], "args": resumed}
