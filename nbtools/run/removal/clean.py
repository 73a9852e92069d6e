"""Removes ended runs, checkpoints and caches: `plan_removal` selects them, `remove` deletes them.

A run is kept while it is active, while a run that is kept resumed it (the curve of a resumed run begins in its
parent), and if a newer nbtools wrote it. Links are neither followed nor listed as runs. Every item is first renamed
into `runs/.removed`, under the run's lock, and then deleted: a partly removed run is never listed.

Where others may write into `runs/`, they can put a link or another folder in the place of a listed one. Items are
therefore moved and deleted relative to descriptors of folders, and only if they still are what was listed.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nbtools.errors import CheckpointError, ConfigError, RunNotFoundError, html_table, plural, shown
from nbtools.machine.processes import members
from nbtools.project import Project, find_project, located
from nbtools.run.checkpoints import Checkpoint, best_of, checkpoint_folders, checkpoints_in, newest_verified
from nbtools.run.lineage import Origins
from nbtools.run.records import Records, local_time
from nbtools.run.removal.disk_usage import Stored, belongs_to_other, is_folder, num_bytes_in, survey
from nbtools.run.run import Run
from nbtools.run.slurm_job import has_active_job, is_active
from nbtools.run.state import RunState
from nbtools.rundir.atomic import open_descriptor, open_folder
from nbtools.rundir.json_files import read_json
from nbtools.rundir.lock import NO_LOCKS, acquire_lock, wait_for_lock
from nbtools.rundir.names import find_run
from nbtools.rundir.rundir import RunDir, foreign_owner, is_run, run_folders

CACHE = ".cache"
_GONE = "no longer exists"
_REMOVED = ".removed"
_PATIENCE_S = 2.0
"""Seconds of attempts to lock an ended run: a process that reads its state holds the lock for an instant."""
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
    identity: tuple[int, int, int] | None = field(init=False)
    """Device, inode and owner of the folder that was listed; None if it is gone."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", _identity(self.path))

    @property
    def is_run(self) -> bool:
        """Whether the item is a run and not a part of one."""
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
        return sum(item.num_bytes for item in self.items)

    def remove(self) -> str:
        """Delete the items; return the removed ones, and the kept ones with reasons."""
        gone, kept = remove(self)
        said = f"removed {plural(len(gone), 'item')}, {sum(item.num_bytes for item in gone) / 1e6:,.1f} MB"
        return "; ".join([said, *(f"{name} is kept: {why}" for name, why in kept)])

    def __repr__(self) -> str:
        return f"<{plural(len(self.items), 'item')} to remove, {self.num_bytes / 1e6:,.1f} MB; .remove() removes them>"

    def _repr_html_(self) -> str:
        rows = [(item.path.name, item.what, f"{item.num_bytes / 1e6:,.1f} MB") for item in self.items]
        rows += [(name, f"is kept: {why}", "") for name, why in self.kept]
        return html_table([*rows, (repr(self), "", "")])


def clean(
    *refs: str | Path,
    older_than_s: float | None = None,
    state: str | None = None,
    checkpoints: bool = False,
    cache: bool = False,
    project: Project | str | Path | None = None,
) -> RemovalPlan:
    """Select ended runs, checkpoints or the cache to remove, as `nbtools clean` does; `.remove()` removes them.

    Args:
        refs: Ids, unique prefixes, names or paths of runs; none for every run that the other arguments select.
        older_than_s: Only runs that ended longer ago than this.
        state: Only runs in this state, such as `FAILED`.
        checkpoints: Keep the runs and remove their checkpoints, except the newest, the best, and those resumed from.
        cache: Remove tokenized texts and learning histories; the next run prepares them again.
        project: A project or a path in it. Default: the project of the working directory.

    Raises:
        RunNotFoundError: A ref matches no run, several runs, or a run in another folder.
        ConfigError: There is no such final state.
    """
    if state is not None and not (state.upper() in set(RunState) and RunState(state.upper()).is_final):
        ended = ", ".join(known for known in RunState if known.is_final)
        raise ConfigError(f"state={shown(state)}: must be one of {ended}")
    found = project if isinstance(project, Project) else find_project(project)
    states = () if state is None else (RunState(state.upper()),)
    return plan_removal(
        found.runs, refs, older_than_s=older_than_s, states=states, checkpoints=checkpoints, cache=cache
    )


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
    """Select the items to remove from a project's folder of runs, as `clean` does; nothing is changed.

    Without `refs`, `older_than_s`, `states` and `checkpoints`, no run is selected.
    """
    runs = runs.resolve()
    named = {_named(runs, ref) for ref in refs}
    asks_for_runs = bool(refs or checkpoints or states or older_than_s is not None)
    origins = Origins(runs)
    chosen: list[Stored] = []
    items: list[Item] = []
    kept: list[Kept] = []
    for run in survey(runs, named if refs else None) if asks_for_runs else ():
        is_old = older_than_s is None or time.time() - run.since > older_than_s
        if not is_old or (states and run.state not in states):
            continue
        if not run.obstacle:
            chosen.append(run)
        elif refs or run.state is None:  # a selection of all runs leaves out the active ones silently
            kept.append((run.path.name, run.obstacle))
    if checkpoints:
        for run in chosen:
            started_from = set(map(origins.checkpoint, origins.descendants(run.path.name)))
            found, why = _checkpoints_of(run, started_from)
            items += found
            kept += [(run.path.name, why)] if why else []
    else:
        descendants = {run.path.name: origins.descendants(run.path.name) for run in chosen}
        # A run follows those that resumed it, which have fewer descendants: a child protects its parent.
        for run in sorted(chosen, key=lambda run: len(descendants[run.path.name])):
            if others := descendants[run.path.name] - descendants.keys():
                kept.append((run.path.name, _needed_by(min(others))))
            else:
                what = f"run, {run.state} {local_time(run.since)}"
                items.append(Item(run.path, RunDir(run.path), what, run.num_bytes))
    if cache and is_folder(folder := runs / CACHE):
        if why := _read_by(runs):
            kept.append((CACHE, why))
        else:
            items.append(Item(folder, None, "cache of prepared data", num_bytes_in(folder)))
    return RemovalPlan(runs, (*items, *leftovers(runs)), tuple(kept))


def leftovers(runs: Path) -> list[Item]:
    """Return the remains of interrupted removals; no listing shows them."""
    bins = filter(_is_own_folder, (runs.resolve() / name for name in _bin_names()))
    paths = [path for bin_ in bins for path in sorted(bin_.iterdir())]
    return [Item(path, None, "left over by an interrupted clean", num_bytes_in(path)) for path in paths]


def _named(runs: Path, ref: str | Path) -> Path:
    if isinstance(ref, Path) or os.sep in ref:
        path = located(ref)  # resolves the folder, but not a link of that name
        if path.parent != runs or not is_run(path):
            raise RunNotFoundError(f"{path}: is not a run in {runs}; give an id, or change to the run's project")
        return path
    return find_run(runs, ref)


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
    except OSError as error:
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
    active = [path.name for path in run_folders(runs) if is_active(RunDir(path))]
    return f"{active[0]} may be reading it" if active else ""


# --- remove -----------------------------------------------------------------------------------------


def remove(plan: RemovalPlan) -> tuple[list[Item], list[Kept]]:
    """Remove the items of a plan; return the removed ones, and the kept ones with the reasons.

    A run that has become active since, or that another run has resumed since, is kept. While a run is locked, its items
    are only moved, which takes an instant.
    """
    gone: list[Item] = []
    kept: list[Kept] = []
    origins = Origins(plan.runs)
    with _Bin(plan.runs) as bin_:
        for run, items in itertools.groupby(plan.items, key=lambda item: item.run):
            moved = []
            with contextlib.ExitStack() as locks:
                in_use_by = "" if run is None else _locked(run, locks)
                origins.refresh()  # a resume holds the lock of its parent, shared, until its own launch.json is written
                for item in items:
                    if why := in_use_by or _why_kept(item, plan.runs, origins) or _error_of(bin_.take, item):
                        kept.append((item.path.name, why))
                    else:
                        moved.append(item)
                        origins.forget(item.path.name)
            for item in moved:
                if why := _error_of(bin_.delete, item):
                    kept.append((item.path.name, why))
                else:
                    gone.append(item)
    return gone, kept


def _error_of(act: Callable[[Item], None], item: Item) -> str:
    """Do something with an item; return the error of the file system in words, or an empty string."""
    try:
        act(item)
    except OSError as error:
        return f"{error.filename or item.path}: {error.strerror or error}"
    return ""


def _delete(name: str, folder: int) -> None:
    """Delete a folder relative to a descriptor of the folder that it is in."""
    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
    if _identity(name, folder):  # another clean may delete the same folder; the second attempt raises the error
        shutil.rmtree(name, dir_fd=folder)


def _why_kept(item: Item, runs: Path, origins: Origins) -> str:
    """Return why an item must be kept; call while its run is locked, because a resume holds that lock, shared."""
    if not is_folder(item.path):
        return _GONE
    if item.run is None:
        owner = foreign_owner(item.path)
        return (_read_by(runs) if item.path == runs / CACHE else "") or (belongs_to_other(owner) if owner else "")
    if item.is_run:
        if children := origins.children(item.run.id):
            return _needed_by(min(children))
    else:
        for child in origins.descendants(item.run.id):
            if origins.checkpoint(child) == item.path.name:
                return f"{child} resumed from it"
    return _used_by(item.run)


def _used_by(run: RunDir) -> str:
    """Return why a run is in use although its lock is free: the lock file may have been deleted, or does not work."""
    records = Records(run)
    process, has_finished = records.process, bool(records.finished)
    if records.exit:
        return ""
    if (process is not None and process.is_alive()) or (not has_finished and members(run)):
        return "some of its processes are alive: nbtools stop ends them"
    if records.launch.get("flock") is False and process is not None and process.is_elsewhere and not has_finished:
        return f"it may run on {process.host}, and its file system has no locks: remove it from there"
    return ""


@contextlib.contextmanager
def in_use(run: RunDir) -> Iterator[None]:
    """Prevent the removal of an ended run while another run that resumes it starts.

    The lock is shared: any number of processes may hold it at once, and the state of the run does not change.

    Raises:
        RunNotFoundError: The run has been removed, or its lock does not become free.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # no lock file, or a file system without locks
            descriptor = open_descriptor(run.lock, os.O_RDONLY)
            held.callback(os.close, descriptor)
            # The supervisor of an ended run holds the exclusive lock until it exits.
            if not wait_for_lock(descriptor, fcntl.LOCK_SH, _PATIENCE_TO_SHARE_S):
                why = "its lock is still held, by a process of it or by nbtools clean; try again"
                raise RunNotFoundError(f"run {run.id!r}: {why}")
        if not is_run(run.path):
            raise RunNotFoundError(f"run {run.id!r}: is no longer in {run.path.parent}; see nbtools runs")
        yield


def _locked(run: RunDir, locks: contextlib.ExitStack) -> str:
    """Hold a run's lock until `locks` is closed; return why it cannot be held, or an empty string."""
    try:
        if owner := foreign_owner(run.path):
            return belongs_to_other(owner)
        descriptor = acquire_lock(run.lock, timeout_s=_PATIENCE_S)
    except FileNotFoundError:  # another clean has just moved the folder
        return _GONE
    except OSError as error:
        if error.errno not in NO_LOCKS:
            return f"{error.filename or run.lock}: {error.strerror or error}"
        return "" if Run(run.path).state.is_final else "is in use"  # a file system without locks
    if descriptor is None:
        return "is in use"
    locks.callback(os.close, descriptor)
    return "is in use" if has_active_job(run) else ""


def _identity(path: str | Path, folder: int | None = None) -> tuple[int, int, int] | None:
    """Return device, inode and owner of a path, which is relative to the descriptor of a folder; None if it is gone."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_uid


def _bin_names() -> tuple[str, str]:
    """Return the names of the hidden folder: in a folder of several users, each but the first has one of their own."""
    return _REMOVED, f"{_REMOVED}-{os.geteuid()}"


def _is_own_folder(path: Path) -> bool:
    return is_folder(path) and path.lstat().st_uid == os.geteuid()


def _own_bin(runs: Path) -> str:
    """Return the name of this user's hidden folder in `runs`, and make it if it is missing; OSError if that fails."""
    for name in _bin_names():
        bin_ = runs / name
        bin_.mkdir(exist_ok=True)
        if not is_folder(bin_):
            raise NotADirectoryError(errno.ENOTDIR, "is a link or not a folder", str(bin_))
        if _is_own_folder(bin_):
            return name
    raise PermissionError(errno.EPERM, "belongs to another user", str(bin_))


class _Bin(contextlib.ExitStack):
    """A private folder in `.removed`, known by its descriptor: it is made for the first item that is moved into it."""

    def __init__(self, runs: Path) -> None:
        super().__init__()
        self._names: dict[Item, str] = {}
        """Name in the folder of each item that was moved into it."""
        self._runs = runs
        self._folder: int | None = None

    def take(self, item: Item) -> None:
        """Move an item into the folder; OSError if that is impossible, or another has its place."""
        with open_folder(self._runs, *item.path.parent.relative_to(self._runs).parts) as parent:
            _check(item, item.path.name, parent)
            name = str(len(self._names))
            os.rename(item.path.name, name, src_dir_fd=parent, dst_dir_fd=self._descriptor())
            try:
                _check(item, name, self._descriptor())
            except OSError:
                os.rename(name, item.path.name, src_dir_fd=self._descriptor(), dst_dir_fd=parent)
                raise
            self._names[item] = name

    def delete(self, item: Item) -> None:
        """Delete an item that was moved here; OSError if a part of it cannot be deleted."""
        _delete(self._names[item], self._descriptor())

    def _descriptor(self) -> int:
        if self._folder is None:
            own, name = _own_bin(self._runs), os.urandom(6).hex()
            with open_folder(self._runs, own) as bin_:
                os.mkdir(name, 0o700, dir_fd=bin_)
            self.callback(_remove_empty, self._runs, own, name)
            folder = self.enter_context(open_folder(self._runs, own, name))
            if os.fstat(folder).st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "was replaced by another user's folder", str(self._runs / own))
            self._folder = folder
        return self._folder


def _remove_empty(runs: Path, own: str, name: str) -> None:
    with contextlib.suppress(OSError), open_folder(runs, own) as bin_:
        os.rmdir(name, dir_fd=bin_)


def _check(item: Item, name: str, folder: int) -> None:
    """Raise an OSError if `name` in the folder of a descriptor is not what was listed as an item."""
    if item.identity is None or _identity(name, folder) != item.identity:
        raise OSError(errno.ESTALE, "is no longer the folder that was listed", str(item.path))
