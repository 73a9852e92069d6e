"""The processes of a run: search, identification and ending.

A process belongs to a run if its environment named the run when it started, or if it holds a file that only the run
writes; its name, its pid or the content of a file is not enough.
torchrun starts each rank in a session of its own, so the processes of a run share no process group.
"""

import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import psutil

from nbtools.errors import NbtoolsError, plural
from nbtools.machine.ownership import belongs_to, is_marked, is_own, may_be_signalled, ranks_of
from nbtools.rundir.json_files import read_json, write_reserved_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir, foreign_owner, goes_on
from nbtools.rundir.tail import one_line

SWEEP_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL for processes that are left after a run's end."""
STOP_GRACE_S = 10.0
"""Time that the supervisor adds to the shutdown timeout, since torchrun itself kills late ranks first."""
_POLL_S = 0.05
_READ_WITHIN_S = 1.0
"""Time in which a reader that tests a lock frees it."""
_STATE_LETTERS = {"running": "R", "sleeping": "S", "disk-sleep": "D", "stopped": "T", "tracing-stop": "t"}
RANK, LOADER_WORKER, AGENT, OTHER = "rank", "loader worker", "agent", "process"


def members(run: RunDir) -> list[psutil.Process]:
    """Return the living processes of this user that carry the marks of a launched run, except the caller."""
    found = []
    for process in psutil.process_iter():
        try:
            if is_own(process) and is_marked(process, run):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended, or of another user
    return living(found)


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


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run: no zombies, no reused pids, and not the caller."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if may_be_signalled(process) and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


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
                _signal(process, signal.SIGKILL)
            elif process not in asked:
                _signal(process, signal.SIGTERM)
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


def kinds_of(processes: Collection[psutil.Process], ranks: Collection[psutil.Process]) -> dict[psutil.Process, str]:
    """Return the kind of each process: a given rank, a loader worker, the agent that started ranks, or another one."""
    kinds = {process: RANK if process in ranks else OTHER for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended
            ancestors = process.parents()
            if process in ranks:
                kinds.update({above: AGENT for above in ancestors if above in kinds and above not in ranks})
            elif any(above in ranks for above in ancestors) and _is_loader_worker(process, ancestors[0]):
                kinds[process] = LOADER_WORKER
    return kinds


def _is_loader_worker(process: psutil.Process, parent: psutil.Process) -> bool:
    """Whether a process has torch's name for a loader worker, or is a fork of its parent without an exec."""
    return process.name() == "pt_data_worker" or process.cmdline() == parent.cmdline()


@dataclass(frozen=True)
class Ending:
    """The result of a stop."""

    ended: Mapping[str, int]
    """Number of processes of each kind that lived at the request to stop and have ended."""
    left: tuple[str, ...]
    """Processes that could not be ended: `pid 123 (state D)`."""
    was_killed: bool
    """Whether processes had to be killed."""

    def __str__(self) -> str:
        others = "process" if set(self.ended) <= {OTHER} else "other process"
        counts = [plural(self.ended.get(kind, 0), kind) for kind in (RANK, LOADER_WORKER) if self.ended.get(kind)]
        if self.ended.get(OTHER) or not counts:
            counts.append(plural(self.ended.get(OTHER, 0), others))
        *most, last = counts
        text = f"{', '.join(most)} and {last} ended" if most else f"{last} ended"
        left = f"{plural(len(self.left), 'process')} could not be ended: {', '.join(self.left)}"
        return f"{text}; {left}" if self.left else text


def stop_processes(run: RunDir, is_over: Callable[[], bool], timeout_s: float) -> Ending:
    """Send a run SIGTERM, wait, kill processes that have not ended after `timeout_s`, and sweep.

    The signal goes to the supervisor if it lives, else to the outermost processes of the run. Several threads may call
    this at once.

    `is_over` tells by the run's files whether it has ended; `timeout_s` includes the time for the last checkpoint.

    Raises:
        NbtoolsError: the run is on another host, in another container, or of another user.
    """
    record = _process_record(run)
    identity = ProcessIdentity.from_json(record)
    if not is_over() and identity is not None and identity.host != socket.gethostname():
        raise NbtoolsError(f"{run.id} runs on {identity.host}, this is {socket.gethostname()}: stop it from there")
    leader = leader_of(run, identity)
    supervisor = leader if record.get("role") == "supervisor" else None
    family = family_of(run, leader)
    if not family:
        if not is_over():
            if owner := foreign_owner(run.path):
                raise NbtoolsError(f"{run.id} belongs to {owner}; only they can stop it")
            raise NbtoolsError(f"{run.id} is locked by a process that is not visible from here (another container?)")
        return Ending({}, (), was_killed=False)

    def workers() -> list[psutil.Process]:
        return [process for process in living({*family, *members(run)}) if process != supervisor]

    before = workers()
    ranks = {leader} if leader is not None and record.get("role") == "worker" else {*ranks_among(before).values()}
    kinds = kinds_of(before, ranks)
    asked = [leader] if leader in family else []
    signalled: set[psutil.Process] = set()

    def is_over_once_asked() -> bool:
        nonlocal asked
        alive = living(asked)
        if is_over() and not alive:  # alive, but LOST by its files: the lock was deleted
            return True
        if not alive:  # there was none, or it ended before it passed the signal on
            asked = _outermost(workers())
        _ask(run, [process for process in asked if process not in signalled])
        signalled.update(asked)
        return False

    was_killed = not happens_within(is_over_once_asked, timeout_s)
    if was_killed:
        sweep_processes(workers, grace_s=0)
        # The supervisor sees the end of its agent, sweeps and records the end; without a supervisor, see below.
        if supervisor is not None and not happens_within(lambda: is_over() and not living([supervisor]), STOP_GRACE_S):
            _signal(supervisor, signal.SIGKILL)
            happens_within(lambda: not living([supervisor]), SWEEP_GRACE_S)
    if supervisor is None or not living([supervisor]):
        sweep_processes(workers)
        _record_stop(run)
    left = workers()
    ended = Counter(kind for process, kind in kinds.items() if process not in left and kind != AGENT)
    return Ending(ended, tuple(map(_described, left)), was_killed)


def _described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        status = process.status()
        return f"pid {process.pid} (state {_STATE_LETTERS.get(status, status)})"
    return f"pid {process.pid}"


def _process_record(run: RunDir) -> dict[str, object]:
    """Return the content of process.json; wait for a supervisor that has just been started to write it.

    The lock says that there is one: right after its start, `members` may miss it, because the kernel shows an empty
    environment until exec is complete.
    """
    deadline = time.monotonic() + 5
    while True:
        record = read_json(run.process)
        is_starting = not run.log.exists() and (goes_on(run) or members(run))
        if record is not None or not is_starting or time.monotonic() > deadline:
            return record or {}
        time.sleep(_POLL_S)


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


def _outermost(processes: list[psutil.Process]) -> list[psutil.Process]:
    pids = {process.pid for process in processes}
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.ppid() not in pids:
                found.append(process)
    return found


def _ask(run: RunDir, processes: list[psutil.Process]) -> None:
    """Send SIGTERM once per process, across all callers: a second one makes torchrun abort its shutdown."""
    for process in processes:
        try:
            if foreign_owner(run.path) is None and foreign_owner(run.ranks) is None:
                (run.ranks / f"{process.pid}.asked").touch(exist_ok=False)
        except FileExistsError:
            continue
        except OSError:
            pass  # the disk is full: signal without a mark
        _signal(process, signal.SIGTERM)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
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


def _record_stop(run: RunDir) -> None:
    """Write exit.json for a dead supervisor if no end was recorded. The holder of the run's lock is its only writer.

    Nothing is written into a run directory of another user.
    """
    descriptor = None
    with contextlib.suppress(OSError):  # a file system without locks
        if foreign_owner(run.path) is None:
            descriptor = acquire_lock(run.lock, timeout_s=_READ_WITHIN_S)
    if descriptor is None:
        return
    try:
        if read_json(run.exit) is None and read_json(run.finished) is None:
            record_stop(run)
    finally:
        os.close(descriptor)


def record_stop(run: RunDir, **more: object) -> None:
    """Write exit.json for a supervisor that could not."""
    content = {"returncode": None, "signal": None, "stopped": True, "failure": None, "time": time.time()}
    write_reserved_json(run.exit, {**content, **more})
