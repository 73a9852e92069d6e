"""The processes of a run: who belongs to it, and how they are ended.

A process belongs to a run if its environment said so when it started; neither its name nor a bare pid ever counts.
Ranks live in sessions of their own (torchrun starts them so), hence no process group holds a run together.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from nbtools.errors import NbtoolsError
from nbtools.rundir import (
    RUN_DIR_VARIABLE,
    RUN_ID_VARIABLE,
    ProcessIdentity,
    RunDir,
    acquire_lock,
    read_json,
    write_json,
)

SWEEP_GRACE_S = 2.0
"""How long what is left over after a run's end may take to clean up between SIGTERM and SIGKILL."""
STOP_GRACE_S = 10.0
"""What the supervisor grants torchrun on top of the shutdown timeout: torchrun itself kills late ranks first."""
_POLL_S = 0.05


def members(run: RunDir) -> list[psutil.Process]:
    """Living processes of a launched run, except the caller.

    Both the id and the directory must fit: two projects may have runs of the same second and name.
    """
    marks = {RUN_ID_VARIABLE: run.id, RUN_DIR_VARIABLE: str(run.path.resolve())}
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()  # as it was at exec: a later os.environ does not show
            if all(environment.get(name) == value for name, value in marks.items()):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended, or somebody else's
    return living(found)


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run: no zombies, no pid that was given to another, and never the caller."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def sweep(find: Callable[[], list[psutil.Process]], grace_s: float = SWEEP_GRACE_S, limit_s: float = 10.0) -> int:
    """End whatever `find` returns, until it returns nothing: SIGTERM, after `grace_s` SIGKILL.

    Returns:
        How many processes were signalled. One that not even SIGKILL ends within `limit_s` (stuck in the kernel) is
        left behind.
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


@dataclass(frozen=True)
class Ending:
    """What a stop did."""

    num_processes: int
    """Processes of the run that lived when it was asked to stop, and do no more (the supervisor is not counted)."""
    was_killed: bool
    """Whether asking was not enough."""


def stop(run: RunDir, is_over: Callable[[], bool], timeout_s: float) -> Ending:
    """Ask a run to stop, wait, kill what has not ended after `timeout_s`, and sweep.

    The supervisor is asked if it lives, else the outermost process of the run. Several threads may call this at once.

    Args:
        run: the run's directory.
        is_over: tells from the run's files whether it has ended.
        timeout_s: how long the processes may take, the last checkpoint included.

    Raises:
        NbtoolsError: the run lives where no signal from here can reach it, or is another user's.
    """
    record = _process_record(run)
    identity = ProcessIdentity.from_json(record)
    if not is_over() and identity is not None and identity.host != socket.gethostname():
        raise NbtoolsError(f"{run.id} runs on {identity.host}, this is {socket.gethostname()}: stop it from there")
    leader = _process(identity)
    supervisor = leader if record.get("role") == "supervisor" else None
    family = set(members(run))
    if leader is not None:
        family |= {leader, *_descendants(leader)}
    if not family:
        if not is_over():
            raise NbtoolsError(f"{run.id} is held by a process that cannot be seen from here (another container?)")
        return Ending(0, was_killed=False)

    def workers() -> list[psutil.Process]:
        return [process for process in living({*family, *members(run)}) if process != supervisor]

    num_before = len(workers())
    asked = [] if leader is None else [leader]

    def is_over_once_asked() -> bool:
        nonlocal asked
        alive = living(asked)
        if is_over() and not alive:  # alive, but taken for LOST: somebody deleted the lock
            return True
        if not alive:  # none to begin with, or killed itself before it could pass the request on
            asked = _outermost(workers())
        _ask(run, asked)
        return False

    was_killed = not _wait(is_over_once_asked, timeout_s)
    if was_killed:
        sweep(workers, grace_s=0)
        # The supervisor sees its agent gone, sweeps once more and records the end; without one that is done below.
        if supervisor is not None and not _wait(is_over, STOP_GRACE_S):
            _signal(supervisor, signal.SIGKILL)
    if supervisor is None or not living([supervisor]):
        sweep(workers)
        _record_stop(run)
    return Ending(num_before - len(workers()), was_killed)


def _process_record(run: RunDir) -> dict[str, object]:
    """process.json; the supervisor of a run that was launched this very moment is given the time to write it."""
    deadline = time.monotonic() + 5
    while True:
        record = read_json(run.process)
        if record is not None or run.log.exists() or not members(run) or time.monotonic() > deadline:
            return record or {}
        time.sleep(_POLL_S)


def _process(identity: ProcessIdentity | None) -> psutil.Process | None:
    if identity is None or not identity.is_alive():
        return None
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(identity.pid)  # from here on psutil guards against a reused pid
        if identity.is_alive():
            return process
    return None


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    """Children and theirs: a run that was started by hand has no mark in its environment."""
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _outermost(processes: list[psutil.Process]) -> list[psutil.Process]:
    pids = {process.pid for process in processes}
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.ppid() not in pids:
                found.append(process)
    return found


def _ask(run: RunDir, processes: list[psutil.Process]) -> None:
    """Ask each process once, whoever does: a second SIGTERM makes torchrun break off its orderly shutdown."""
    for process in processes:
        try:
            process.send_signal(0)  # asks nothing, but tells whether we may
            if _is_first(run.ranks / f"{process.pid}.asked"):
                process.send_signal(signal.SIGTERM)
        except psutil.AccessDenied:
            owner = process.username()
            raise NbtoolsError(f"{run.id}: its process {process.pid} is {owner}'s; only they can stop it") from None
        except psutil.Error:
            continue  # it has ended meanwhile


def _is_first(mark: Path) -> bool:
    try:
        mark.touch(exist_ok=False)
    except OSError as error:  # without room for a mark, ask all the same
        return not isinstance(error, FileExistsError)
    return True


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or is not ours to signal
        process.send_signal(number)


def _wait(is_over: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_over():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _record_stop(run: RunDir) -> None:
    """Write exit.json in place of a supervisor that no longer can, if nobody recorded an end.

    Whoever holds the lock of a dead run is its only writer.
    """
    try:
        descriptor = acquire_lock(run.lock)
    except OSError:
        return  # a file system without locks
    if descriptor is None:
        return
    try:
        if read_json(run.exit) is None and read_json(run.finished) is None:
            content = {"returncode": None, "signal": None, "stopped": True, "failure": None, "time": time.time()}
            write_json(run.exit, content)
    finally:
        os.close(descriptor)
