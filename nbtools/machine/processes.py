"""The processes of a run: search, identification, and the sweep that ends them; `run/stop.py` holds the stop.

A process belongs to a run if its environment named the run when it started, or if it holds a file that only the run
writes; its name, its pid or the content of a file is not enough.
torchrun starts each rank in a session of its own, so the processes of a run share no process group.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from nbtools.errors import NbtoolsError
from nbtools.machine.ownership import belongs_to, chosen, is_marked, is_own, lock_taker, may_be_signalled, ranks_of
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir, is_removed
from nbtools.rundir.tail import one_line

SWEEP_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL for processes that are left after a run's end."""
STOP_GRACE_S = 10.0
"""Time that the supervisor adds to the shutdown timeout, since torchrun itself kills late ranks first."""
_POLL_S = 0.05


def _own_processes(is_wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Return the wanted processes of this user, except the caller; one that ends meanwhile is left out."""
    return chosen(psutil.process_iter(), lambda process: is_own(process) and is_wanted(process))


def members(run: RunDir) -> list[psutil.Process]:
    """Return the living processes of this user that carry the marks of a launched run, except the caller."""
    return living(_own_processes(lambda process: is_marked(process, run)))


def outermost(family: list[psutil.Process]) -> list[psutil.Process]:
    """Return the processes of a family whose parents are not in it."""
    pids = {process.pid for process in family}
    return chosen(family, lambda process: process.ppid() not in pids)


def kill_command(run: RunDir) -> str:
    """Return the shell command that ends the processes of a run that has no directory any more; "" without any."""
    pids = [str(process.pid) for process in outermost(members(run))]
    return " ".join(["kill", *pids]) if pids else ""


def removed_in_words(run: RunDir) -> str:
    """Return that a run directory was removed, and the command that ends the processes that still run."""
    command = kill_command(run)
    said = "its run directory was removed"
    return f"{said}; its processes still run: stop them with {command}" if command else said


def removed_runs(runs: Path | None = None) -> list[RunDir]:
    """Return the runs with living processes of this user whose directories were removed, of one folder of runs."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            found |= {process.environ().get(RUN_DIR_VARIABLE, "")} if is_own(process) else set()
    removed = [run for run in map(RunDir, sorted(found - {""})) if is_removed(run)]
    return [run for run in removed if (runs is None or run.path.parent == runs.resolve()) and members(run)]


def started_by(process: psutil.Process, run: RunDir) -> list[psutil.Process]:
    """Return the processes that one has started, directly or through others, except those of other runs.

    A program may launch runs itself: these do not end with it.
    """
    own, spared = str(run.path.resolve()), set()
    found = []
    for child in process.children(recursive=True):  # a child comes after its parent
        with contextlib.suppress(psutil.Error, OSError):
            if child.ppid() in spared or child.environ().get(RUN_DIR_VARIABLE, own) != own:
                spared.add(child.pid)
                continue
        found.append(child)
    return found


def family_of(run: RunDir, leader: psutil.Process | None) -> set[psutil.Process]:
    """Return the processes of a run: those with its marks, and its leader with all that it started.

    The processes of a run by hand carry no marks. `leader` is a process that `belongs_to` the run, or None.
    """
    family = set(members(run))
    if leader is not None:
        # The first process of a container adopts the orphans of all others.
        for root in [leader] if may_be_signalled(leader) else ranks_of(leader):
            family.add(root)
            with contextlib.suppress(psutil.Error):
                family.update(started_by(root, run))
    return family


def lock_holders(run: RunDir) -> list[psutil.Process]:
    """Return the processes of this user that hold a run's lock because they inherited it, except the caller.

    A program's daemon may have emptied its environment and left the run's session; the run is RUNNING while it has the
    lock. Another process may take the lock for an instant, to record or to remove: it, and what it forks, do not count.
    """
    return _own_processes(
        lambda one: lock_taker(one, run) not in (None, one.pid, *(above.pid for above in one.parents()))
    )


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run: no zombies, no reused pids, and not the caller."""

    def lives(process: psutil.Process) -> bool:
        return may_be_signalled(process) and process.is_running() and process.status() != psutil.STATUS_ZOMBIE

    return chosen(processes, lives)


def sweep_processes(
    find: Callable[[], list[psutil.Process]], grace_s: float = SWEEP_GRACE_S, limit_s: float = 10.0
) -> int:
    """End all processes that `find` returns, until it returns none: SIGTERM, and SIGKILL after `grace_s`.

    Returns the number of signalled processes. One that SIGKILL does not end within `limit_s`, stuck in the kernel,
    remains.
    """
    asked: set[psutil.Process] = set()
    kill_at = time.monotonic() + grace_s
    while remaining := find():
        now = time.monotonic()
        if now > kill_at + limit_s:
            break
        for process in remaining:
            if now >= kill_at:
                send_signal(process, signal.SIGKILL)
            elif process not in asked:
                send_signal(process, signal.SIGTERM)
            asked.add(process)
        time.sleep(_POLL_S)
    return len(asked)


def ranks_among(processes: Iterable[psutil.Process]) -> dict[int, psutil.Process]:
    """Return the ranks among processes, by number: the oldest process with that RANK in its environment."""
    found: dict[int, tuple[float, int, psutil.Process]] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            rank = process.environ().get("RANK", "")
            if rank.isdecimal():  # inherited by children: loader workers, and orphans of a rank
                candidate = process.create_time(), process.pid, process
                found[int(rank)] = min(found.get(int(rank), candidate), candidate, key=lambda found: found[:2])
    return {rank: process for rank, (_, _, process) in found.items()}


def leader_of(run: RunDir, identity: ProcessIdentity | None) -> psutil.Process | None:
    """Return the living process with an identity from a run's files; None if it does not belong to the run.

    Raises:
        NbtoolsError: the process is of another user.
    """
    if identity is None or not identity.is_alive():
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(identity.pid)  # from here on psutil guards against a reused pid
        if not identity.is_alive():
            return None
        if process.uids().effective != os.geteuid():
            owner = one_line(process.username())
            raise NbtoolsError(f"{run.id}: its process {process.pid} is {owner}'s; only they can stop it")
        return process if belongs_to(process, run) else None
    return None


def send_signal(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal to a process that may be signalled and has not ended."""
    with contextlib.suppress(psutil.Error):  # it has ended, or is of another user
        if may_be_signalled(process):
            process.send_signal(number)


def happens_within(is_over: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until `is_over`; return whether that happened in time."""
    deadline = time.monotonic() + timeout_s
    while not is_over():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
