"""The lineage of runs: which run resumed which, at what step, and with which changes."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtools.errors import shown
from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import read_json, read_small, whole
from nbtools.rundir.rundir import RunDir, is_run, run_folders


def parent_folder(run: Path, launch: dict[str, Any]) -> Path | None:
    """Return the directory of the run that `run`, with this launch.json, resumed; None if there is none any more."""
    name = mapping_at(launch, "resumed_from").get("run")
    if not isinstance(name, str) or Path(name).name != name or name == run.name:
        return None
    path = run.parent / name
    return path if is_run(path) else None


def resumed_step(launch: dict[str, Any]) -> int:
    """Return the step of the parent at which the run with this launch.json resumed; 0 if it has no parent."""
    return whole(mapping_at(launch, "resumed_from").get("step")) or 0


def ancestors(run: Path, launch: dict[str, Any]) -> list[tuple[Path, int]]:
    """Return the run's ancestors, nearest first, each with the step at which its child resumed.

    Empty if the chain of parents contains a cycle.
    """
    found: list[tuple[Path, int]] = []
    seen, path = {run.name}, parent_folder(run, launch)
    while path is not None:
        if path.name in seen:
            return []
        seen.add(path.name)
        found.append((path, resumed_step(launch)))
        launch = read_json(RunDir(path).launch) or {}
        path = parent_folder(path, launch)
    return found


def origins_in(runs: Path) -> dict[str, tuple[str, str]]:
    """Return, for every resumed run in the folder `runs`, the id of its parent and the name of the checkpoint.

    The checkpoint may belong to an earlier ancestor: a run that saved none is resumed from the one it started with.
    """
    found = {}
    for path in run_folders(runs):
        with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
            # Not read_json: the entry counts whatever the file's format is.
            origin = json.loads(read_small(RunDir(path).launch)).get("resumed_from") or {}
            if isinstance(parent := origin.get("run"), str):
                found[path.name] = parent, str(origin.get("checkpoint"))
    return found


def descendants(name: str, origins: Mapping[str, tuple[str, str]]) -> set[str]:
    """Return the runs that resumed the run `name`, directly or through others."""
    family = {name}
    while more := {child for child, (parent, _) in origins.items() if parent in family} - family:
        family |= more
    return family - {name}


def origin_in_words(resumed_from: object) -> str:
    """Describe `resumed_from` of a launch.json: `forked from ID at step 200: batch_size 16 -> 32`."""
    if not isinstance(resumed_from, dict):
        return ""
    where = f"from {resumed_from.get('run')} at step {resumed_from.get('step')}"
    changes = resumed_from.get("changes")
    if not isinstance(changes, dict) or not changes:
        return f"resumed {where}"
    is_fork = changes.keys() - {"nproc_per_node", "effective_batch"}
    return f"{'forked' if is_fork else 'resumed'} {where}: {changes_in_words(changes)}"


def changes_in_words(changes: Mapping[str, object]) -> str:
    """Describe changes that are given as pairs of an old and a new value."""
    pairs = {name: pair for name, pair in changes.items() if isinstance(pair, Sequence) and len(pair) == 2}
    return ", ".join(f"{name} {shown(pair[0], 40)} -> {shown(pair[1], 40)}" for name, pair in pairs.items())
