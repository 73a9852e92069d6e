"""Resume of a user's program in a new run: its command, a checkpoint, and the words that pass the checkpoint."""

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nbtools.errors import CheckpointError, LaunchError, NbtoolsError, ScriptError, shown
from nbtools.project import Project, expanded, find_project
from nbtools.run.checkpoints import AnyCheckpoint
from nbtools.run.lineage import ancestors
from nbtools.run.records import checkpoints_and_resume, mapping_at, recorded_arguments
from nbtools.run.run import Run, pattern_of, why_no_checkpoints
from nbtools.run.state import unsaved
from nbtools.rundir import secret_values
from nbtools.rundir.program_files.foreign_checkpoints import (
    ForeignCheckpoint,
    checkpoint_at,
    guessed_pattern,
    newest_whole,
)
from nbtools.rundir.program_files.written_files import named_folders
from nbtools.rundir.rundir import foreign_owner
from nbtools.script.program import Program
from nbtools.script.resume_arguments import takes_path, with_checkpoint
from nbtools.script.script import change_program, parse_script
from nbtools.user_config import update_user_config

_C = TypeVar("_C", bound=AnyCheckpoint)


@dataclass(frozen=True)
class ProgramResume:
    """The program, arguments and checkpoint of a resume."""

    program: Program
    """The program with absolute paths, in the recorded working directory."""
    args: tuple[str, ...]
    project: Project
    checkpoint: ForeignCheckpoint
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The checkpoint and the words with which the program continues."""
        words = [word.replace("{checkpoint}", str(self.checkpoint.path)) for word in self.program.resume]
        return f"{self.checkpoint.name} ({self.checkpoint.about}), with {shlex.join(secret_values.masked(words))}"


def planned_resume(
    parent: Run,
    checkpoint: ForeignCheckpoint | Path | str | int | None = None,
    resume_with: Sequence[str] | None = None,
    args: Sequence[str] = (),
) -> ProgramResume:
    """Return what continues a run of a program; the arguments are those of `resume`. Nothing is written.

    Raises:
        CheckpointError: the given checkpoint is missing or was not written to its end.
        ConfigError: `resume_with` are no words of a command line.
        LaunchError: the run is another user's, has no checkpoint, or no words are known that resume its program.
    """
    if why := why_not_resumable(parent, has_words=resume_with is not None):
        raise LaunchError(f"{parent.id}: {why}")
    words = known_words(parent) if resume_with is None else tuple(resume_with)
    program = program_of(parent).replace(resume=words)  # raises if they are none
    if checkpoint is None:
        found, notes = newest_saved(parent, lambda run, _: newest_whole(_saved(run)))
    else:
        found, notes = _named(parent, checkpoint), []
    if checkpoint is not None and not takes_path(words) and found != newest_whole(_saved(parent))[0]:
        raise LaunchError(
            f"{parent.id}: {shlex.join(words)} contains no checkpoint, so the program would choose one itself, not "
            f"{found.name}; pass its path with resume_with=('--flag', '{{checkpoint}}')"
        )
    own = recorded_arguments(secret_values.restored(parent.files, parent.info))
    notes += filter(None, [overwritten(parent, found, args) if args or checkpoint is not None else ""])
    return ProgramResume(
        program, (*with_checkpoint(own, words, found.path), *args), _project_of(parent), found, (*notes,)
    )


def overwritten(parent: Run, found: ForeignCheckpoint, args: Sequence[str]) -> str:
    """Return a warning if a resume from a checkpoint, with further arguments, overwrites checkpoints of the parent."""
    folder, before, after = found.path.parent, named_folders(parent.info), named_folders(parent.info, args)
    flags = [flag for flag, named in before.items() if folder.is_relative_to(named)]
    has_later = any(one.path.parent == folder and one.time > found.time for one in _saved(parent))
    is_same_name = bool(args) and not any(map(str.isdigit, found.path.name))
    is_apart = folder.is_relative_to(parent.dir) or any(before[flag] != after[flag] for flag in flags)
    if is_apart or not (has_later or is_same_name):
        return ""
    text = (
        f"the new run writes its checkpoints to {folder}, too, and overwrites those of {parent.id} with the same names"
    )
    return f"{text}; name another folder{f' with {flags[0]}' if flags and flags[0][0] == '-' else ''}"


def why_not_resumable(run: Run, *, has_words: bool = False) -> str:
    """Return why a program's run cannot be resumed; empty if it can, once it has ended and there is a checkpoint."""
    if owner := foreign_owner(run.dir):
        return f"belongs to {owner}; launch a program of your own"
    if has_words or known_words(run):
        return ""
    return (
        f"no argument of {program_of(run).name} is known to resume it; name one: resume_with=('--flag', "
        "'{checkpoint}') (--resume-with '--flag {checkpoint}', or the field in the tab Checkpoints)"
    )


def known_words(run: Run) -> tuple[str, ...]:
    """Return the words that resume the program of a run, as the user or its launch says, else the guess at its launch;
    () if none."""
    info = _restored(run)
    guess = info.get("resume_guess")
    return checkpoints_and_resume(info)[1] or (tuple(map(str, guess)) if isinstance(guess, list) else ())


def said_in_words(run: Run) -> tuple[str, str, str]:
    """Return the pattern of the checkpoints of a program, the words that resume it, and where these come from."""
    pattern, words = pattern_of(run), known_words(run)
    guessed = [] if pattern else ["the files by the usual names of checkpoints"]
    guessed += ["the words by the name of an argument"] if words and [*words] == run.info.get("resume_guess") else []
    note = f"Guessed: {', '.join(guessed)}. " if guessed else ""
    return pattern or guessed_pattern(_saved(run)), shlex.join(secret_values.masked(words)), note


def program_of(run: Run) -> Program:
    """Return the program of a run without its arguments, with absolute paths and in its recorded working directory."""
    info, root = _restored(run), _project_of(run).root
    recorded = mapping_at(info, "program") or {"script": str(info.get("script") or run.files.script)}
    paths = {name: recorded.get(name) for name in ("script", "accelerate_config")}
    values = {**recorded, **{name: path and str(root / expanded(str(path))) for name, path in paths.items()}}
    pattern, words = checkpoints_and_resume(info)
    return Program.recorded({**values, "cwd": info.get("cwd"), "checkpoints": pattern or None, "resume": words})


def program_again(run: Run, args: Sequence[str]) -> tuple[Program | Path, Sequence[str]]:
    """Return the program to start again and its arguments: the current launcher script of the run, if it has one."""
    path = Path(str(run.info.get("script")))
    try:
        program = parse_script(path).program
    except ScriptError:
        program = None
    if program is None:
        return program_of(run), args
    own = program.with_copies(program.args, program.config_copies(run.files.configs))
    return path, args[len(own) :] if list(args[: len(own)]) == own else ()


def remember(run: Run, kind: str = "checkpoints", **said: Any) -> str:
    """Keep what the user says of a run's program, such as its `checkpoints`, `resume` or `curves`; return where.

    It is kept in the run's launcher script, if nbtools wrote that, and in the file KIND.json of the user's
    configuration, for this run and for launches without such a script; ConfigError if that cannot be written.
    """
    program_of(run).replace(**said)  # raises if a value is not allowed
    path, where = Path(str(run.info.get("script"))), ""
    try:
        where = f"written into {run.info.get('script')}" if change_program(path, **said) else ""
    except NbtoolsError as error:
        where = f"remembered; {error}"
    entry = {**said, "time": time.time(), "in_script": where.startswith("written")}

    def change(content: dict[str, Any]) -> None:
        content.setdefault(str(run.info.get("root")), {}).setdefault(str(path), {}).update(entry)

    update_user_config(kind, change)
    return where or f"remembered for {path.name}"


def _restored(run: Run) -> dict[str, Any]:
    """Return launch.json with its secrets, or without where they are not readable, as resuming it says."""
    with contextlib.suppress(NbtoolsError):
        return secret_values.restored(run.files, run.info)
    return run.info


def _project_of(run: Run) -> Project:
    root = run.info.get("root")
    return Project(Path(root)) if isinstance(root, str) else find_project(run.dir.parent, missing_ok=True)


def _saved(run: Run) -> list[ForeignCheckpoint]:
    return [one for one in run.checkpoints if isinstance(one, ForeignCheckpoint)]


def lineage(run: Run) -> list[tuple[Run, int | None]]:
    """Return a run and the runs that it resumed, each with the last step that belongs to the run's curve."""
    return [(run, None), *((Run(path), step) for path, step in ancestors(run.dir, run.info))]


def newest_saved(parent: Run, find: Callable[[Run, int | None], tuple[_C | None, list[str]]]) -> tuple[_C, list[str]]:
    """Return the newest checkpoint that `find` has in a run, else in the runs that it resumed, and notes for the user.

    `find` gets a run with the last step that counts, and also returns why newer ones are passed over.
    """
    reasons: list[str] = []
    for run, up_to in lineage(parent):
        found, more = find(run, up_to)
        reasons += more
        if found is not None:
            return found, [*filter(None, [unsaved(run.records)]), *(f"passed over {reason}" for reason in reasons)]
    why = "; ".join(reasons) or why_no_checkpoints(parent) or "it saved none"
    raise LaunchError(f"{parent.id}: no checkpoint to resume from ({why}); name one, or launch it again")


def _named(parent: Run, ref: ForeignCheckpoint | Path | str | int) -> ForeignCheckpoint:
    """Return a checkpoint by its step, its name, the last part of its path, or as any file or folder."""
    saved = [one for run, _ in lineage(parent) for one in reversed(_saved(run))]
    bases = (Path.cwd(), Path(str(parent.info.get("cwd") or "/")))
    paths = [Path(os.path.normpath(base / expanded(str(ref)))) for base in bases]
    matches = [one for one in saved if str(ref) in (one.name, one.path.name, str(one.step)) or one.path in paths]
    existing = [path for path in paths if path.exists() and not isinstance(ref, int)]
    if not matches and not existing and not isinstance(ref, ForeignCheckpoint):
        names = ", ".join(dict.fromkeys(one.name for one in saved)) or "none"
        raise CheckpointError(f"{parent.id}: has no checkpoint {shown(ref)}, nor is that a path; it has {names}")
    found = ref if isinstance(ref, ForeignCheckpoint) else matches[0] if matches else checkpoint_at(existing[0])
    return verified(found)


def verified(found: _C) -> _C:
    """Return a checkpoint that was named; CheckpointError if it is incomplete or damaged."""
    try:
        found.verify()
    except CheckpointError as error:
        raise CheckpointError(f"{error}; name another checkpoint, or omit it for the latest verified one") from None
    return found
