"""Resume of a user's program in a new run: its command, a checkpoint, and the arguments that pass the checkpoint."""

import contextlib
import itertools
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtools.errors import CheckpointError, LaunchError, NbtoolsError, ScriptError, plural, shown
from nbtools.launcher.programs.program_restart import recorded_words
from nbtools.project import Project, expanded, find_project
from nbtools.run.lineage import ancestors
from nbtools.run.records import mapping_at, recorded_arguments, stop_signal
from nbtools.run.run import Run, unclear_checkpoints
from nbtools.rundir import secret_values
from nbtools.rundir.program_files.foreign_checkpoints import (
    ForeignCheckpoint,
    checkpoint_at,
    newest_whole,
    resume_order,
)
from nbtools.rundir.program_files.written_files import named_folders
from nbtools.rundir.rundir import RunDir, foreign_owner, newest_first
from nbtools.script.program import Program
from nbtools.script.resume_arguments import arguments_in, named_checkpoint_in, resume_words, takes_path, with_checkpoint
from nbtools.script.script import parse_script, write_script

_MOST_RUNS = 50
"""Number of newest runs that are searched for a checkpoint that a launch names."""

_MOST_ENTRIES = 1_000
"""Number of a folder's entries that are read to find the time of its last change."""


@dataclass(frozen=True)
class ProgramResume:
    """The program, arguments and checkpoint of a resume."""

    program: Program
    """The program with absolute paths, in the recorded working directory."""
    args: tuple[str, ...]
    project: Project
    checkpoint: ForeignCheckpoint
    notes: tuple[str, ...]

    def origin(self, parent: Run) -> dict[str, Any]:
        """Return `resumed_from` of the new run's launch.json."""
        return _origin(parent, self.checkpoint)


def planned_resume(
    parent: Run,
    checkpoint: ForeignCheckpoint | Path | str | int | None = None,
    resume_with: Sequence[str] | None = None,
    args: Sequence[str] = (),
) -> ProgramResume:
    """Return what continues a run of a program; the arguments are those of `resume`.

    Raises:
        CheckpointError: the given checkpoint is missing or was not written to its end.
        ConfigError: `resume_with` are no words of a command line.
        LaunchError: the run is another user's, has no checkpoint, or no words are known that resume its program.
    """
    if why := why_not_resumable(parent, has_words=resume_with is not None):
        raise LaunchError(f"{parent.id}: {why}")
    program = program_of(parent)
    words = known_words(parent) if resume_with is None else tuple(resume_with)
    program = program.replace(resume=words)  # raises if they are none
    found, notes = _newest(parent) if checkpoint is None else (_named(parent, checkpoint), [])
    listed = resume_order([one for one in parent.checkpoints if isinstance(one, ForeignCheckpoint)])
    if checkpoint is not None and not takes_path(words) and found in listed[1:]:
        raise LaunchError(
            f"{parent.id}: {shlex.join(words)} contains no checkpoint, so the program would choose one itself, not "
            f"{found.name}; pass its path with resume_with=('--flag', '{{checkpoint}}')"
        )
    own = recorded_arguments(secret_values.restored(parent.files, parent.info))
    kept = resume_with is not None and _remember(parent, words)
    lost = overwritten(parent, found, args) if args or checkpoint is not None else ""
    notes += [note for note in (kept, lost) if note]
    return ProgramResume(
        program, (*with_checkpoint(own, words, found.path), *args), Project(_root_of(parent)), found, tuple(notes)
    )


def overwritten(parent: Run, found: ForeignCheckpoint, args: Sequence[str]) -> str:
    """Return a warning if a resume from a checkpoint, with further arguments, overwrites checkpoints of the parent."""
    folder, cwd, info = found.path.parent, str(parent.info.get("cwd") or "/"), parent.info
    saved = [one for one in parent.checkpoints if isinstance(one, ForeignCheckpoint) and one.path.parent == folder]

    def is_lost(one: ForeignCheckpoint) -> bool:
        if args and one.number is None and (one.step is None or one.is_estimate):
            return True
        is_of_same_step = one.step is not None and found.step is not None and one.step <= found.step
        return one.time > found.time and not is_of_same_step

    lost = [*filter(is_lost, saved)]
    own = recorded_arguments(info)
    before, after = (named_folders(cwd, words, info) for words in (own, [*own, *args]))
    flags = [flag for flag, named in before.items() if folder.is_relative_to(named)]
    if not lost or folder.is_relative_to(parent.dir) or any(before[flag] != after[flag] for flag in flags):
        return ""
    where = f"with {flags[0]}" if flags else "with the program's own argument"
    return (
        f"the new run writes its checkpoints to {folder}, too, and overwrites those of {parent.id} with the same names "
        f"({plural(len(lost), 'checkpoint')} may be lost); name another folder {where}"
    )


def origin_of_launch(program: Program, args: Sequence[str], cwd: Path, runs: Path) -> dict[str, Any] | None:
    """Return `resumed_from` of a launch whose arguments name a checkpoint of an earlier run; None if they do not."""
    named = named_checkpoint_in(args, program.resume)
    path = Path(os.path.normpath(cwd / expanded(named)))
    if not named or not path.exists():
        return None
    saved_at = _changed_at(path)
    for folder in itertools.islice(newest_first(runs), _MOST_RUNS):
        run = Run(RunDir(folder))
        begun, ended = run.records.started_at, run.records.ended_at
        if begun is None or saved_at < begun or (ended is not None and saved_at > ended):
            continue
        for one in run.checkpoints:
            if isinstance(one, ForeignCheckpoint) and one.path == path:
                return _origin(run, one)
    return None


def _changed_at(path: Path) -> float:
    """Return the time of the last change of a file, or of a folder's direct entries; no tree is walked."""
    times = [0.0]
    with contextlib.suppress(OSError):
        if not path.is_dir():
            return path.stat().st_mtime
        with os.scandir(path) as entries:
            for entry in itertools.islice(entries, _MOST_ENTRIES):
                times.append(entry.stat(follow_symlinks=False).st_mtime)
    return max(times)


def _origin(run: Run, found: ForeignCheckpoint) -> dict[str, Any]:
    origin = {"run": run.id, "checkpoint": found.name, "step": found.step, "path": str(found.path)}
    return origin | ({"is_estimate": True} if found.is_estimate else {})


def why_not_resumable(run: Run, *, has_words: bool = False) -> str:
    """Return why a program's run cannot be resumed; empty if it can, once it has ended and there is a checkpoint."""
    if owner := foreign_owner(run.dir):
        return f"belongs to {owner}; launch a program of your own"
    if has_words or known_words(run):
        return ""
    name = program_of(run).name
    return (
        f"no argument of {name} is known to resume it; name one: resume_with=('--flag', '{{checkpoint}}') "
        "(--resume-with '--flag {checkpoint}'), or launch it again with its own arguments"
    )


def known_words(run: Run) -> tuple[str, ...]:
    """Return the words that resume the program of a run, as its launch has them, else by its arguments; () if none."""
    with contextlib.suppress(NbtoolsError):  # resuming it says that its secrets are not readable
        if words := recorded_words(secret_values.restored(run.files, run.info)):
            return words
    return resume_words(arguments_in(run.files.script, recorded_arguments(run.info)))


def program_of(run: Run) -> Program:
    """Return the program of a run without its arguments, with absolute paths and in its recorded working directory."""
    root, recorded = _root_of(run), mapping_at(run.info, "program")
    values = {name: recorded.get(name) for name in ("script", "module", "accelerate_config")}
    if not recorded:  # an older run
        values["script"] = str(run.info.get("script") or run.files.script)
    for name in ("script", "accelerate_config"):
        values[name] = None if values[name] is None else str(root / expanded(str(values[name])))
    cwd = run.info.get("cwd")
    with contextlib.suppress(NbtoolsError):  # resuming it says that its secrets are not readable
        recorded = mapping_at(secret_values.restored(run.files, run.info), "program")
    changed = tuple(map(str, recorded.get("config_values") or ()))
    values |= {"config_file": recorded.get("config_file"), "config_values": changed}
    values["stop_signal"] = stop_signal(run.info).name
    return Program(**values, cwd=str(cwd) if cwd else None, resume=recorded_words(run.info))


def program_again(run: Run, args: Sequence[str]) -> tuple[Program | Path, Sequence[str]]:
    """Return the program to start again and its arguments: the current launcher script of the run, if it has one."""
    path = Path(str(run.info.get("script")))
    try:
        program = parse_script(path).program
    except ScriptError:
        program = None
    if program is None:
        return program_of(run), args
    own = list(program.args)
    if program.config_values:
        own = program.with_copies(own, program.config_copies(run.files.configs))
    return path, args[len(own) :] if list(args[: len(own)]) == own else ()


def _root_of(run: Run) -> Path:
    root = run.info.get("root")
    return Path(root) if isinstance(root, str) else find_project(run.dir.parent, missing_ok=True).root


def _newest(parent: Run) -> tuple[ForeignCheckpoint, list[str]]:
    """Return the newest whole checkpoint of a run, else of the runs that it resumed, and a note per skipped one."""
    reasons: list[str] = []
    for run in (parent, *(Run(path) for path, _ in ancestors(parent.dir, parent.info))):
        saved = [one for one in run.checkpoints if isinstance(one, ForeignCheckpoint)]
        found, more = newest_whole(saved)
        reasons += more
        if found is not None:
            return found, [f"passed over {reason}" for reason in reasons]
    why = (
        "; ".join([*reasons, *filter(None, [unclear_checkpoints(parent)])])
        or "none of its files has a checkpoint's name"
    )
    raise LaunchError(f"{parent.id}: no checkpoint to resume from ({why}); name its file or folder, or launch it again")


def _named(parent: Run, ref: ForeignCheckpoint | Path | str | int) -> ForeignCheckpoint:
    """Return a checkpoint by its step, its name, the last part of its path, or as any file or folder."""
    runs = [parent, *(Run(path) for path, _ in ancestors(parent.dir, parent.info))]
    saved = [one for run in runs for one in reversed(run.checkpoints) if isinstance(one, ForeignCheckpoint)]
    if isinstance(ref, ForeignCheckpoint):
        found = ref
    else:
        text = str(ref)
        folders = (Path.cwd(), Path(str(parent.info.get("cwd") or "/")))
        paths = [path for folder in folders if (path := Path(os.path.normpath(folder / expanded(text)))).exists()]
        matches = [one for one in saved if text in (one.name, one.path.name, str(one.step)) or one.path in paths]
        if not matches and (isinstance(ref, int) or not paths):
            names = ", ".join(dict.fromkeys(one.name for one in saved)) or "no checkpoints with a known name"
            raise CheckpointError(f"{parent.id}: has no checkpoint {shown(ref)}, nor is that a path; it has {names}")
        found = matches[0] if matches else checkpoint_at(paths[0])
    try:
        found.verify()
    except CheckpointError as error:
        raise CheckpointError(f"{error}; name another checkpoint, or omit it for the newest whole one") from None
    return found


def _remember(parent: Run, words: tuple[str, ...]) -> str:
    """Write the resume arguments into a run's launcher script; return a note if the script cannot be changed."""
    path = Path(str(parent.info.get("script")))
    project = find_project(path.parent, missing_ok=True)
    try:
        script = parse_script(path)
    except ScriptError:
        return ""  # the program itself
    if script.program is None or script.program.resume == words:
        return ""
    advice = f"{path} is not changed; write resume={words!r} into its Program(...)"
    if script.hand_edited or project.script(path.stem) != path:
        return f"{advice}: it was edited by hand" if script.hand_edited else advice
    try:
        write_script(script.program.replace(resume=words), path.stem, script.launch, project=project, overwrite=True)
    except (NbtoolsError, OSError) as error:
        return f"{advice}: {error}"
    return ""
