"""Proof that a process belongs to a run: the marks in its environment, or a file that only the run writes.

The files of a run may be another user's, or be copied from one, and the identity of any process is world-readable:
their content is not enough to signal a process.
"""

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir

_INIT = 1
_OF_TORCHRUN = "TORCHELASTIC_RUN_ID"


def belongs_to(process: psutil.Process, run: RunDir) -> bool:
    """Whether a process of this user is a run's: by its marks, by an open file, or as the agent of such a rank."""
    with contextlib.suppress(psutil.Error, OSError):
        if not is_own(process):
            return False
        return is_marked(process, run) or _writes(process, run) or any(_writes(rank, run) for rank in ranks_of(process))
    return False


def is_own(process: psutil.Process) -> bool:
    """Whether a process is not this one and belongs to this user."""
    return process.pid != os.getpid() and process.uids().effective == os.geteuid()


def may_be_signalled(process: psutil.Process) -> bool:
    """Whether a process is neither this one nor the first of the machine or container, which ends all others."""
    return process.pid > _INIT and process.pid != os.getpid()


def is_marked(process: psutil.Process, run: RunDir) -> bool:
    """Whether the environment with which a process started names the run.

    Both the id and the directory must match: two projects may have runs with the same id.
    """
    environment = process.environ()  # as it was at exec: a later os.environ does not show
    marks = {RUN_ID_VARIABLE: run.id, RUN_DIR_VARIABLE: str(run.path.resolve())}
    return all(environment.get(name) == value for name, value in marks.items())


def chosen(processes: Iterable[psutil.Process], is_wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Return the wanted ones of processes; one that ends meanwhile, or may not be examined, is left out."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            if is_wanted(process):
                found.append(process)
    return found


def ranks_of(agent: psutil.Process) -> list[psutil.Process]:
    """Return the processes that a torchrun agent started as ranks."""
    return chosen(agent.children(), lambda child: _OF_TORCHRUN in child.environ())


def survives(process: psutil.Process, number: signal.Signals) -> bool:
    """Whether a process handles or ignores a signal, so that the signal does not end it."""
    masks = 0
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{process.pid}/status").read_text(errors="replace").splitlines():
            if line.startswith(("SigCgt:", "SigIgn:")):
                masks |= int(line.split()[1], 16)
    return bool(masks >> (number - 1) & 1)


def lock_taker(process: psutil.Process, run: RunDir) -> int | None:
    """Return the pid that took the run's lock, of which a process has a descriptor; None if it holds no lock.

    It need not live: the launcher takes the lock, and the run's processes inherit the descriptor.
    """
    for facts in _opened(process, run.lock):
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF
        words = facts.get("lock", "").split()
        if "FLOCK" in words and "WRITE" in words:
            return int(words[words.index("WRITE") + 1])
    return None


def _writes(process: psutil.Process, run: RunDir) -> bool:
    """Whether a process holds the run's lock, or has its log open for writing."""
    modes = (int(facts["flags"], 8) & os.O_ACCMODE for facts in _opened(process, run.log))
    return lock_taker(process, run) is not None or any(mode != os.O_RDONLY for mode in modes)


def _opened(process: psutil.Process, path: Path) -> Iterator[dict[str, str]]:
    """Yield what the kernel says of each descriptor that a process has of a file."""
    try:
        wanted = path.lstat()
        descriptors = [entry.name for entry in os.scandir(f"/proc/{process.pid}/fd")]
    except OSError:  # no such file, or ended, or no /proc
        return
    is_one_name = stat.S_ISREG(wanted.st_mode) and wanted.st_nlink == 1  # else it may be another file
    for descriptor in descriptors if is_one_name else ():
        with contextlib.suppress(OSError, ValueError):
            if os.path.samestat(Path(f"/proc/{process.pid}/fd/{descriptor}").stat(), wanted):
                text = Path(f"/proc/{process.pid}/fdinfo/{descriptor}").read_text()
                yield dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
