"""The Python stacks of a run's ranks, taken without stopping them.

A rank of ours registers faulthandler on a signal and announces that in its heartbeat; only such a rank is signalled,
for the signal would end any other. For the rest there is py-spy, which reads the memory of a process from outside.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from nbtools.machine.processes import members, ranks_among
from nbtools.rundir.heartbeat import RankBeat, read_beats
from nbtools.rundir.rundir import RunDir

_ANSWER_S = 10.0
_SETTLED_S = 0.5
"""A rank writes its stacks line by line; when none came for so long, that was all."""
_PY_SPY_S = 30.0
_MAX_BYTES = 256 * 1024


@dataclass(frozen=True)
class RankStacks:
    """What one rank is doing, as text."""

    rank: int
    pid: int
    text: str
    """The Python stacks of its threads, most recent call first; or why there are none."""
    has_stacks: bool


def take_stacks(run: RunDir) -> list[RankStacks]:
    """Take the stacks of all ranks that run on this machine, in order of rank; of others say where they are."""
    beats = {beat.rank: beat for beat in read_beats(run) if beat.phase != "done" and beat.identity is not None}
    foreign = {rank: process for rank, process in ranks_among(members(run)).items() if rank not in beats}
    if not beats and not foreign:
        return []
    with ThreadPoolExecutor(min(32, len(beats) + len(foreign))) as pool:
        announced = pool.map(lambda beat: _of_beat(run, beat), beats.values())
        others = pool.map(lambda item: _of_process(*item), foreign.items())
        return sorted([*announced, *others], key=lambda found: found.rank)


def _of_beat(run: RunDir, beat: RankBeat) -> RankStacks:
    if beat.host != socket.gethostname():
        return RankStacks(beat.rank, beat.pid, f"runs on {beat.host}: ask for its stacks there", False)
    try:
        process = psutil.Process(beat.pid)  # from here on psutil guards against a reused pid
        if beat.identity is None or not beat.identity.is_alive():
            return RankStacks(beat.rank, beat.pid, "gone", False)
        return _of_process(beat.rank, process, run.stacks(beat.rank) if _has_announced(beat) else None)
    except psutil.Error:
        return RankStacks(beat.rank, beat.pid, "gone", False)


def _has_announced(beat: RankBeat) -> bool:
    return beat.stacks_signal == signal.SIGUSR2  # a file could name any number, SIGKILL too


def _of_process(rank: int, process: psutil.Process, answer: Path | None = None) -> RankStacks:
    """Ask one process: by the signal if it answers into the file `answer`, else by py-spy."""
    try:
        status = process.status()
        if status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return RankStacks(rank, process.pid, "stopped (state T)", False)
        why = "it announced no signal for its stacks"
        if answer is not None:
            if text := _signalled(process, answer):
                return RankStacks(rank, process.pid, text, True)
            why = f"no answer within {_ANSWER_S:.0f} s (process is {process.status()})"
    except psutil.AccessDenied:
        why = "it is another user's"
    except psutil.Error:
        return RankStacks(rank, process.pid, "gone", False)
    return _spied(rank, process.pid, why)


def _signalled(process: psutil.Process, answer: Path) -> str:
    """Let the process write its stacks, and return what it wrote; empty if nothing came."""
    before = answer.stat().st_size if answer.exists() else 0
    process.send_signal(signal.SIGUSR2)
    size, changed = before, time.monotonic()
    deadline = changed + _ANSWER_S
    while True:
        time.sleep(0.05)
        now, found = time.monotonic(), answer.stat().st_size if answer.exists() else 0
        if found != size:
            size, changed = found, now
        if now > deadline or (size > before and now - changed > _SETTLED_S):
            break
    with contextlib.suppress(OSError), answer.open("rb") as file:
        file.seek(before)
        return file.read(_MAX_BYTES).decode(errors="replace").strip()
    return ""


def _spied(rank: int, pid: int, why: str) -> RankStacks:
    program = _py_spy()
    if program is None:
        return RankStacks(rank, pid, f"no stacks: {why}; with py-spy installed they can be read from outside", False)
    command = [program, "dump", "--pid", str(pid)]
    try:
        spied = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PY_SPY_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return RankStacks(rank, pid, f"no stacks: {why}; {' '.join(command)}: {error}", False)
    text = spied.stdout[:_MAX_BYTES].decode(errors="replace").strip()
    if spied.returncode == 0 and text:
        return RankStacks(rank, pid, text, True)
    said = spied.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {spied.returncode}"]
    return RankStacks(rank, pid, f"no stacks: {why}; {' '.join(command)}: {said[0][:500]}", False)


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")  # an environment that was not activated is not on the PATH
    return shutil.which("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)
