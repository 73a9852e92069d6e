"""The lineage of runs: which run resumed which, at what step, and with which changes."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import MAX_STEP, read_small, whole
from nbtools.rundir.rundir import is_run, launch_of


def parent_folder(run: Path, launch: dict[str, Any]) -> Path | None:
    """Return the directory of the run that `run`, with this launch.json, resumed; None if it does not exist."""
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
    seen = {run.name}
    while (parent := parent_folder(run, launch)) is not None:
        if parent.name in seen:
            return []
        seen.add(parent.name)
        step = whole(mapping_at(launch, "resumed_from").get("step"))
        found.append((parent, MAX_STEP if step is None else step))  # all rows if the checkpoint did not say its step
        run, launch = parent, launch_of(parent)
    return found


class Origins:
    """The resumed runs of a folder: from which run, and from which checkpoint.

    Each launch.json is read once, whatever the format of the run; `refresh` reads those of the runs that are new. The
    checkpoint may belong to an earlier ancestor: a run that saved none is resumed from the one it started with.
    """

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._known: dict[str, tuple[str, str] | None] = {}
        self._children: dict[str, set[str]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the runs that were added, and forget those that were removed."""
        try:
            names = {name for name in os.listdir(self._runs) if name[0] != "."}  # noqa: PTH208 - thousands of names
        except OSError:
            return
        for name in self._known.keys() - names:
            self.forget(name)
        for name in names - self._known.keys():
            with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
                # Not read_json: the entry counts whatever the file's format is.
                origin = json.loads(read_small(self._runs / name / "launch.json")).get("resumed_from") or {}
                known = (origin["run"], str(origin.get("checkpoint"))) if isinstance(origin.get("run"), str) else None
                self._known[name] = known
                if known is not None:
                    self._children.setdefault(known[0], set()).add(name)

    def forget(self, name: str) -> None:
        """Leave out a run that was removed."""
        if (known := self._known.pop(name, None)) is not None:
            self._children[known[0]].discard(name)

    def children(self, name: str) -> set[str]:
        """Return the runs that resumed the run `name` directly."""
        return self._children.get(name, set())

    def checkpoint(self, name: str) -> str:
        """Return the name of the checkpoint that the run `name` resumed from; empty if it resumed none."""
        return (self._known.get(name) or ("", ""))[1]

    def descendants(self, name: str) -> set[str]:
        """Return the runs that resumed the run `name`, directly or through others."""
        found: set[str] = set()
        left = [name]
        while left:
            new = self.children(left.pop()) - found
            found |= new
            left += new
        return found - {name}
