"""Making room on the disk: what may go (`plan`), and its removal (`remove`).

A run stays while it is active, while a run that stays went on from it (the curve of a resumed run begins in its
parent), and where a newer nbtools wrote it. Links are neither followed nor taken for runs. What goes is renamed into
`runs/.removed` at once, under the run's lock, and then deleted: a half-removed run is never listed.
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
from nbtools.rundir.lock import acquire_lock, is_locked
from nbtools.rundir.rundir import RunDir, find_run, is_run, run_folders

CACHE = ".cache"
_REMOVED = ".removed"
_PATIENCE_S = 2.0
"""How long to try for the lock of an ended run: whoever looks at its state holds it for an instant."""
_PATIENCE_TO_SHARE_S = 10.0

Kept = tuple[str, str]
"""The name of what stays although it was asked for, and why."""


@dataclass(frozen=True)
class Item:
    """Something that may go."""

    path: Path
    run: RunDir | None
    """Whose lock protects it; None for caches and what an interrupted removal left behind."""
    what: str
    num_bytes: int

    @property
    def is_run(self) -> bool:
        """Whether it is a whole run."""
        return self.run is not None and self.run.path == self.path


@dataclass(frozen=True)
class Plan:
    """What would go, and what was asked for and stays."""

    runs: Path
    """The folder that holds all of it."""
    items: tuple[Item, ...]
    kept: tuple[Kept, ...]

    @property
    def num_bytes(self) -> int:
        """What would be freed."""
        return sum(item.num_bytes for item in self.items)


# --- choosing --------------------------------------------------------------------------------------


def plan(
    runs: Path,
    refs: Sequence[str | Path] = (),
    *,
    older_than_s: float | None = None,
    states: Collection[RunState] = (),
    checkpoints: bool = False,
    cache: bool = False,
) -> Plan:
    """Choose what may go; nothing is touched.

    Args:
        runs: the project's folder of runs.
        refs: ids, unique prefixes or paths of runs; none for every run that fits the rest. Without `refs`,
            `older_than_s`, `states` and `checkpoints`, no run is chosen.
        older_than_s: only runs that ended longer ago than this.
        states: only runs in one of these states.
        checkpoints: leave the runs, and remove their checkpoints but the newest and the best that verify, and those
            that other runs went on from.
        cache: remove tokenized texts and learning histories; the next run prepares them anew.

    Raises:
        RunNotFoundError: a ref fits no run, or several, or one elsewhere.
    """
    runs = runs.resolve()
    named = {_named(runs, ref) for ref in refs}
    asks_for_runs = bool(refs or checkpoints or states or older_than_s is not None)
    origins = origins_in(runs)
    chosen: list[Stored] = []
    kept: list[Kept] = []
    for run in survey(runs) if asks_for_runs else ():
        is_old = older_than_s is None or time.time() - run.since > older_than_s
        if (refs and run.path not in named) or not is_old or (states and run.state not in states):
            continue
        if not run.obstacle:
            chosen.append(run)
        elif refs or run.state is None:  # of all runs, nobody expects the active ones to go
            kept.append((run.path.name, run.obstacle))
    if checkpoints:
        parts = [
            _checkpoints_of(run, {origins[child][1] for child in descendants(run.path.name, origins)}) for run in chosen
        ]
        items = [item for found, _ in parts for item in found]
        kept += [(run.path.name, why) for run, (_, why) in zip(chosen, parts, strict=True) if why]
    else:
        leaving, needed = _without_parents([run.path.name for run in chosen], origins)
        whole = [run for run in chosen if run.path.name in leaving]
        whole.sort(key=lambda run: len(descendants(run.path.name, origins)))  # children first: they keep their parents
        items = [
            Item(run.path, RunDir(run.path), f"run, {run.state} {local_time(run.since)}", run.num_bytes)
            for run in whole
        ]
        kept += needed
    if cache and is_folder(folder := runs / CACHE):
        if why := _read_by(runs):
            kept.append((CACHE, why))
        else:
            items.append(Item(folder, None, "cache of prepared data", num_bytes_in(folder)))
    return Plan(runs, (*items, *leftovers(runs)), tuple(kept))


def leftovers(runs: Path) -> list[Item]:
    """What interrupted removals left behind; it was removed already as far as anybody can see."""
    bin_ = runs.resolve() / _REMOVED
    paths = sorted(bin_.iterdir()) if is_folder(bin_) else []
    return [Item(path, None, "left over by an interrupted clean", num_bytes_in(path)) for path in paths]


def _named(runs: Path, ref: str | Path) -> Path:
    if isinstance(ref, Path) or os.sep in ref:
        path = located(ref)  # resolves its folder, but not a link of that name
        if path.parent != runs or not is_run(path):
            raise RunNotFoundError(f"{path}: is no run in {runs}; give an id, or work in its own project")
        return path
    return find_run(runs, ref)


def _without_parents(chosen: Iterable[str], origins: Mapping[str, tuple[str, str]]) -> tuple[set[str], list[Kept]]:
    """Leave out runs that others went on from, unless those go too."""
    leaving = set(chosen)
    kept: list[Kept] = []
    while True:
        staying = {parent: child for child, (parent, _) in origins.items() if child not in leaving}
        if not (needed := leaving & staying.keys()):
            return leaving, kept
        leaving -= needed
        kept += [(parent, _needed_by(staying[parent])) for parent in sorted(needed)]


def _needed_by(child: str) -> str:
    return f"{child} went on from it, and its curve begins here: name that one too"


def _checkpoints_of(run: Stored, started_from: Collection[str]) -> tuple[list[Item], str]:
    """The checkpoints of an ended run that nobody will miss; and why there are none although there could be.

    Args:
        run: the run.
        started_from: names of checkpoints that other runs went on from.
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
    items = [Item(path, files, "unfinished checkpoint", num_bytes_in(path)) for path in _unfinished(files)]
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


def _unfinished(files: RunDir) -> Iterator[Path]:
    return (path for path in sorted(files.checkpoints.glob(".step-*.tmp")) if is_folder(path))


def _read_by(runs: Path) -> str:
    """Why the cache may not go: whoever starts now reads it."""
    active = [path.name for path in run_folders(runs) if is_locked(RunDir(path).lock)]
    return f"{active[0]} may be reading it" if active else ""


# --- doing -----------------------------------------------------------------------------------------


def remove(what: Plan) -> tuple[list[Item], list[Kept]]:
    """Remove what a plan holds, as far as it may still go by now.

    A run that became active, or from which another run just went on, stays.

    Returns:
        What has gone, and what stays: names, and why.
    """
    gone: list[Item] = []
    kept: list[Kept] = []
    for item in what.items:
        try:
            why = _remove(item, what.runs)
        except OSError as error:
            why = f"{error.filename or item.path}: {error.strerror or error}"
        if why:
            kept.append((item.path.name, why))
        else:
            gone.append(item)
    return gone, kept


def _remove(item: Item, runs: Path) -> str:
    """Remove one thing; return why it may not go, or an empty string."""
    if item.run is None:
        is_cache = item.path == runs / CACHE
        if is_cache and (why := _read_by(runs)):
            return why
        _delete(_hidden(item.path, runs) if is_cache else item.path)
        return ""
    if not is_folder(item.run.path):
        return "is no longer there"
    with _locked(item.run) as is_free:
        if not is_free:
            return "is in use"
        if not is_folder(item.path):
            return "is no longer there"
        if why := _still_needed(item, runs):
            return why
        hidden = _hidden(item.path, runs)
    _delete(hidden)
    return ""


def _delete(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):  # another clean may be at the same leftovers; what neither can remove says why
        shutil.rmtree(folder)


def _still_needed(item: Item, runs: Path) -> str:
    """Why something may not go, as seen while its run is locked: whoever resumes a run shares that lock meanwhile."""
    assert item.run is not None
    origins = origins_in(runs)
    for child in descendants(item.run.id, origins):
        parent, checkpoint = origins[child]
        if item.is_run and parent == item.run.id:
            return _needed_by(child)
        if not item.is_run and checkpoint == item.path.name:
            return f"{child} went on from it"
    ended = read_json(item.run.exit) or read_json(item.run.finished)
    return "" if ended or not members(item.run) else "some of its processes still live: nbtools stop ends them"


@contextlib.contextmanager
def in_use(run: RunDir) -> Iterator[None]:
    """Keep an ended run from being removed while another one starts that goes on from it.

    The lock is shared: any number may hold it at once, and nobody who looks at the run sees a difference.

    Raises:
        RunNotFoundError: it has been removed, or its lock does not become free.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # no lock file, or a file system without locks
            descriptor = os.open(run.lock, os.O_RDONLY | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            _share(descriptor, run)
        if not is_run(run.path):
            raise RunNotFoundError(f"run {run.id!r}: is no longer in {run.path.parent}; see nbtools runs")
        yield


def _share(descriptor: int, run: RunDir) -> None:
    """Take a shared lock; the supervisor of a run that has ended holds it until it has ended too."""
    deadline = time.monotonic() + _PATIENCE_TO_SHARE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                why = "its lock is still held, by a process of it or by nbtools clean; try again"
                raise RunNotFoundError(f"run {run.id!r}: {why}") from None
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def _locked(run: RunDir) -> Iterator[bool]:
    """Hold a run's lock; false if somebody else does."""
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
    """Move something where nobody lists it; returns the folder to delete."""
    bin_ = runs / _REMOVED
    bin_.mkdir(exist_ok=True)
    if not is_folder(bin_):
        raise NotADirectoryError(errno.ENOTDIR, "is a link or no folder", str(bin_))
    folder = Path(tempfile.mkdtemp(dir=bin_))
    path.rename(folder / path.name)
    return folder
