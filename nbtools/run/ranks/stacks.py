"""Takes the Python stacks of a run's ranks without stopping them.

A recipe's rank registers faulthandler on SIGUSR2 and announces that in its heartbeat; only such a rank is signalled,
because the signal would end any other process. For the others py-spy reads the memory of the process from outside.
Heartbeats may be forged: a process that does not belong to the run is neither signalled nor read.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from nbtools.errors import NbtoolsError
from nbtools.machine.ownership import survives
from nbtools.machine.processes import family_of, leader_of, ranks_among
from nbtools.rundir.heartbeat import RankHeartbeat, read_heartbeats
from nbtools.rundir.json_files import read_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import open_regular

_ANSWER_S = 10.0
_SETTLED_S = 0.5
"""A rank writes its stacks line by line; after this time without a new line they are complete."""
_PY_SPY_S = 30.0
_MAX_BYTES = 256 * 1024


@dataclass(frozen=True)
class RankStacks:
    """The Python stacks of one rank, as text."""

    rank: int
    pid: int
    text: str
    """The stacks of its threads, most recent call first; or why there are none."""
    has_stacks: bool


def take_stacks(run: RunDir) -> list[RankStacks]:
    """Return the stacks of all ranks on this machine, in order of rank; for other ranks, the name of their machine."""
    beats = {beat.rank: beat for beat in read_heartbeats(run) if beat.phase != "done" and beat.identity is not None}
    leader = None
    with contextlib.suppress(NbtoolsError, OSError):  # of another user, or written by a newer nbtools
        leader = leader_of(run, ProcessIdentity.from_json(read_json(run.process) or {}))
    family = family_of(run, leader)
    foreign = {rank: process for rank, process in ranks_among(family).items() if rank not in beats}
    if not beats and not foreign:
        return []
    with ThreadPoolExecutor(min(32, len(beats) + len(foreign))) as pool:
        announced = pool.map(lambda beat: _of_beat(run, beat, family), beats.values())
        others = pool.map(lambda item: _of_process(*item), foreign.items())
        return sorted([*announced, *others], key=lambda found: found.rank)


def _of_beat(run: RunDir, beat: RankHeartbeat, family: Collection[psutil.Process]) -> RankStacks:
    if beat.is_elsewhere:
        return RankStacks(beat.rank, beat.pid, f"runs on {beat.host}: take its stacks there", False)
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(beat.pid)  # from here on psutil detects a reused pid
        if beat.identity is not None and beat.identity.is_alive():
            if process not in family:
                return RankStacks(beat.rank, beat.pid, "not a process of this run, or of another user", False)
            has_announced = beat.stacks_signal == signal.SIGUSR2 and survives(process, signal.SIGUSR2)
            return _of_process(beat.rank, process, run.stacks(beat.rank) if has_announced else None)
    return RankStacks(beat.rank, beat.pid, "gone", False)


def _of_process(rank: int, process: psutil.Process, answer: Path | None = None) -> RankStacks:
    """Take the stacks of one process: by the signal if it writes them to the file `answer`, else by py-spy."""
    try:
        status = process.status()
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return RankStacks(rank, process.pid, "stopped (state T)", False)
        why = "it has registered no signal for its stacks"
        if answer is not None:
            if text := _signalled(process, answer):
                return RankStacks(rank, process.pid, text, True)
            why = f"no answer within {_ANSWER_S:.0f} s (process is {process.status()})"
    except psutil.AccessDenied:
        why = "it belongs to another user"
    except psutil.Error:
        return RankStacks(rank, process.pid, "gone", False)
    return _spied(rank, process.pid, why)


def _signalled(process: psutil.Process, answer: Path) -> str:
    """Signal the process and return the stacks that it writes; empty if it writes none."""
    before = answer.stat().st_size if answer.exists() else 0
    process.send_signal(signal.SIGUSR2)
    size, changed = before, time.monotonic()
    now = started = changed
    while now - started <= _ANSWER_S and (size == before or now - changed <= _SETTLED_S):
        time.sleep(0.05)
        now, found = time.monotonic(), answer.stat().st_size if answer.exists() else 0
        if found != size:
            size, changed = found, now
    with contextlib.suppress(OSError), open_regular(answer) as file:
        file.seek(before)
        return file.read(_MAX_BYTES).decode(errors="replace").strip()
    return ""


def _spied(rank: int, pid: int, why: str) -> RankStacks:
    if (program := _py_spy()) is None:
        return RankStacks(rank, pid, f"no stacks: {why}; install py-spy to read them from outside", False)
    command = [program, "dump", "--pid", str(pid)]
    try:
        spied = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PY_SPY_S, check=False)
        text = spied.stdout[:_MAX_BYTES].decode(errors="replace").strip()
        if spied.returncode == 0 and text:
            return RankStacks(rank, pid, text, True)
        said = [f"exit code {spied.returncode}", *spied.stderr.decode(errors="replace").strip().splitlines()][-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    return RankStacks(rank, pid, f"no stacks: {why}; {' '.join(command)}: {said[:500]}", False)


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")  # an environment that is not activated is not on the PATH
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)
