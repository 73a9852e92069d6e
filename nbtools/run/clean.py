"""Removes ended runs, checkpoints and caches: `plan_removal` selects them, `remove` deletes them.

A run is kept while it is active, while a run that is kept resumed it (the curve of a resumed run begins in its
parent), and if a newer nbtools wrote it. Links are neither followed nor listed as runs. Every item is first renamed
into `runs/.removed`, under the run's lock, and then deleted: a partly removed run is never listed.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtools.errors import CheckpointError, FormatError, RunNotFoundError
from nbtools.machine.processes import members
from nbtools.project import located
from nbtools.run.checkpoints import Checkpoint, best_of, checkpoint_folders, checkpoints_in, newest_verified
from nbtools.run.disk_usage import Stored, is_folder, num_bytes_in, survey
from nbtools.run.lineage import descendants, origins_in
from nbtools.run.records import local_time
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json
from nbtools.rundir.lock import acquire_lock, is_locked, wait_for_lock
from nbtools.rundir.rundir import RunDir, find_run, is_run, run_folders

CACHE = ".cache"
_REMOVED = ".removed"
_PATIENCE_S = 2.0
"""How long to try to lock an ended run: a process that reads its state holds the lock for an instant."""
_PATIENCE_TO_SHARE_S = 10.0

Kept = tuple[str, str]
"""The name of a selected item that is kept, and the reason."""


@dataclass(frozen=True)
class Item:
    """A run, a checkpoint or a folder that may be removed."""

    path: Path
    run: RunDir | None
    """The run whose lock protects the item; None for caches and the remains of an interrupted removal."""
    what: str
    num_bytes: int

    @property
    def is_run(self) -> bool:
        """Whether the item is a whole run."""
        return self.run is not None and self.run.path == self.path


@dataclass(frozen=True)
class RemovalPlan:
    """The items to remove, and the selected ones that are kept."""

    runs: Path
    """The folder that contains all items."""
    items: tuple[Item, ...]
    kept: tuple[Kept, ...]

    @property
    def num_bytes(self) -> int:
        """Total size of the items."""
        return sum(item.num_bytes for item in self.items)


# --- select --------------------------------------------------------------------------------------


def plan_removal(
    runs: Path,
    refs: Sequence[str | Path] = (),
    *,
    older_than_s: float | None = None,
    states: Collection[RunState] = (),
    checkpoints: bool = False,
    cache: bool = False,
) -> RemovalPlan:
    """Select the items to remove; nothing is changed.

    Args:
        runs: The project's folder of runs.
        refs: Ids, unique prefixes or paths of runs; empty for every run that the other arguments select. Without
            `refs`, `older_than_s`, `states` and `checkpoints`, no run is selected.
        older_than_s: Only runs that ended longer ago than this.
        states: Only runs in one of these states.
        checkpoints: Keep the runs and remove their checkpoints, except the newest and the best that verify, and those
            that other runs resumed from.
        cache: Remove tokenized texts and learning histories; the next run prepares them again.

    Raises:
        RunNotFoundError: A ref matches no run, several runs, or a run in another folder.
    """
    runs = runs.resolve()
    named = {_named(runs, ref) for ref in refs}
    asks_for_runs = bool(refs or checkpoints or states or older_than_s is not None)
    origins = origins_in(runs)
    chosen: list[Stored] = []
    items: list[Item] = []
    kept: list[Kept] = []
    for run in survey(runs) if asks_for_runs else ():
        is_old = older_than_s is None or time.time() - run.since > older_than_s
        if (refs and run.path not in named) or not is_old or (states and run.state not in states):
            continue
        if not run.obstacle:
            chosen.append(run)
        elif refs or run.state is None:  # a selection of all runs leaves out the active ones silently
            kept.append((run.path.name, run.obstacle))
    if checkpoints:
        for run in chosen:
            found, why = _checkpoints_of(run, {origins[child][1] for child in descendants(run.path.name, origins)})
            items += found
            kept += [(run.path.name, why)] if why else []
    else:
        leaving, needed = _without_parents([run.path.name for run in chosen], origins)
        whole = [run for run in chosen if run.path.name in leaving]
        whole.sort(key=lambda run: len(descendants(run.path.name, origins)))  # a child protects its parent
        for run in whole:
            what = f"run, {run.state} {local_time(run.since)}"
            items.append(Item(run.path, RunDir(run.path), what, run.num_bytes))
        kept += needed
    if cache and is_folder(folder := runs / CACHE):
        if why := _read_by(runs):
            kept.append((CACHE, why))
        else:
            items.append(Item(folder, None, "cache of prepared data", num_bytes_in(folder)))
    return RemovalPlan(runs, (*items, *leftovers(runs)), tuple(kept))


def leftovers(runs: Path) -> list[Item]:
    """Return the remains of interrupted removals; no listing shows them."""
    bin_ = runs.resolve() / _REMOVED
    paths = sorted(bin_.iterdir()) if is_folder(bin_) else []
    return [Item(path, None, "left over by an interrupted clean", num_bytes_in(path)) for path in paths]


def _named(runs: Path, ref: str | Path) -> Path:
    if isinstance(ref, Path) or os.sep in ref:
        path = located(ref)  # resolves the folder, but not a link of that name
        if path.parent != runs or not is_run(path):
            raise RunNotFoundError(f"{path}: is not a run in {runs}; give an id, or change to the run's project")
        return path
    return find_run(runs, ref)


def _without_parents(chosen: Iterable[str], origins: Mapping[str, tuple[str, str]]) -> tuple[set[str], list[Kept]]:
    """Leave out runs that others resumed, unless those are selected too."""
    leaving = set(chosen)
    kept: list[Kept] = []
    while True:
        staying = {parent: child for child, (parent, _) in origins.items() if child not in leaving}
        if not (needed := leaving & staying.keys()):
            return leaving, kept
        leaving -= needed
        kept += [(parent, _needed_by(staying[parent])) for parent in sorted(needed)]


def _needed_by(child: str) -> str:
    return f"{child} resumed it, and the curve of that run begins here; name that run too"


def _checkpoints_of(run: Stored, started_from: Collection[str]) -> tuple[list[Item], str]:
    """Return the checkpoints of an ended run that may be removed, and why none may although it has several.

    Other runs resumed from the checkpoints with the names `started_from`.
    """
    files = RunDir(run.path)
    if not is_folder(files.checkpoints):
        return [], ""
    folders = checkpoint_folders(files.checkpoints)
    try:
        for path in folders:
            read_json(path / "manifest.json")
    except FormatError as error:
        return [], str(error)
    unfinished = filter(is_folder, sorted(files.checkpoints.glob(".step-*.tmp")))
    items = [Item(path, files, "unfinished checkpoint", num_bytes_in(path)) for path in unfinished]
    if len(folders) < 2:
        return items, ""
    newest, _ = newest_verified(files.checkpoints)
    if newest is None:
        return items, "none of its checkpoints verifies, so none is removed"
    listed = checkpoints_in(files.checkpoints)
    best = next((saved.name for saved in best_of(listed, len(listed)) if saved == newest or _verifies(saved)), "")
    needed = {newest.name, best, *started_from}
    spare = [path for path in folders if path.name not in needed and is_folder(path)]
    return items + [Item(path, files, "checkpoint", num_bytes_in(path)) for path in spare], ""


def _verifies(checkpoint: Checkpoint) -> bool:
    try:
        checkpoint.verify()
    except CheckpointError:
        return False
    return True


def _read_by(runs: Path) -> str:
    """Return why the cache must be kept: an active run reads it; empty if it may be removed."""
    active = [path.name for path in run_folders(runs) if is_locked(RunDir(path).lock)]
    return f"{active[0]} may be reading it" if active else ""


# --- remove -----------------------------------------------------------------------------------------


def remove(plan: RemovalPlan) -> tuple[list[Item], list[Kept]]:
    """Remove the items of a plan.

    A run that has become active since, or that another run has resumed since, is kept.

    Returns:
        The removed items, and the kept ones with the reasons.
    """
    gone: list[Item] = []
    kept: list[Kept] = []
    for item in plan.items:
        try:
            why = _remove(item, plan.runs)
        except OSError as error:
            why = f"{error.filename or item.path}: {error.strerror or error}"
        if why:
            kept.append((item.path.name, why))
        else:
            gone.append(item)
    return gone, kept


def _remove(item: Item, runs: Path) -> str:
    """Remove one item; return why it is kept, or an empty string."""
    if item.run is None:
        is_cache = item.path == runs / CACHE
        if is_cache and (why := _read_by(runs)):
            return why
        _delete(_hidden(item.path, runs) if is_cache else item.path)
        return ""
    if not is_folder(item.run.path):
        return "does not exist any more"
    with _locked(item.run) as is_free:
        if not is_free:
            return "is in use"
        if not is_folder(item.path):
            return "does not exist any more"
        if why := _still_needed(item, runs):
            return why
        hidden = _hidden(item.path, runs)
    _delete(hidden)
    return ""


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # another clean may delete the same folder; the second attempt raises the error
        shutil.rmtree(folder)


def _still_needed(item: Item, runs: Path) -> str:
    """Return why an item must be kept; call while its run is locked, because a resume holds that lock, shared."""
    assert item.run is not None
    origins = origins_in(runs)
    for child in descendants(item.run.id, origins):
        parent, checkpoint = origins[child]
        if item.is_run and parent == item.run.id:
            return _needed_by(child)
        if not item.is_run and checkpoint == item.path.name:
            return f"{child} resumed from it"
    ended = read_json(item.run.exit) or read_json(item.run.finished)
    return "" if ended or not members(item.run) else "some of its processes are alive: nbtools stop ends them"


@contextlib.contextmanager
def in_use(run: RunDir) -> Iterator[None]:
    """Prevent the removal of an ended run while another run that resumes it starts.

    The lock is shared: any number of processes may hold it at once, and the state of the run does not change.

    Raises:
        RunNotFoundError: The run has been removed, or its lock does not become free.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # no lock file, or a file system without locks
            descriptor = os.open(run.lock, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            # The supervisor of an ended run holds the exclusive lock until it exits.
            if not wait_for_lock(descriptor, fcntl.LOCK_SH, _PATIENCE_TO_SHARE_S):
                why = "its lock is still held, by a process of it or by nbtools clean; try again"
                raise RunNotFoundError(f"run {run.id!r}: {why}")
        if not is_run(run.path):
            raise RunNotFoundError(f"run {run.id!r}: is not in {run.path.parent} any more; see nbtools runs")
        yield


@contextlib.contextmanager
def _locked(run: RunDir) -> Iterator[bool]:
    """Hold a run's lock; yields False if another process holds it."""
    descriptor, deadline = None, time.monotonic() + _PATIENCE_S
    try:
        while (descriptor := acquire_lock(run.lock)) is None and time.monotonic() < deadline:
            time.sleep(0.02)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise
        yield Run(run.path).state.is_final  # a file system without locks
        return
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _hidden(path: Path, runs: Path) -> Path:
    """Move an item into the hidden folder `.removed`; return the folder to delete."""
    bin_ = runs / _REMOVED
    bin_.mkdir(exist_ok=True)
    if not is_folder(bin_):
        raise NotADirectoryError(errno.ENOTDIR, "is a link or not a folder", str(bin_))
    folder = Path(tempfile.mkdtemp(dir=bin_))
    path.rename(folder / path.name)
    return folder
