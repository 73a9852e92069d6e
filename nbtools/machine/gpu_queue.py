"""The GPU queue without a server: numbered tickets in a folder of this machine, first come, first served.

A ticket names the devices of a run and stays locked (flock) from the launch to the end of the training: launcher,
supervisor and torchrun agent pass its descriptor on. A run starts once no locked ticket with a lower number names one
of its devices. The kernel releases the lock with its last holder, so a dead run does not block others.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtools.machine.devices import Device
from nbtools.rundir.atomic import discard, folder_names, hidden_name, open_folder
from nbtools.rundir.json_files import read_json
from nbtools.rundir.lock import acquire_lock, is_locked, wait_for_lock
from nbtools.rundir.rundir import RunDir, name_of
from nbtools.rundir.tail import one_line

FOLDER_VARIABLE = "NBTOOLS_QUEUE_DIR"
"""Environment variable with another folder for tickets; all users of the GPUs must name the same one."""
_FOLDER = Path("/tmp/nbtools-queue")  # of this machine and shared by its users, which TMPDIR and a home are not
_TICKET = re.compile(r"[0-9]{1,14}\.json")
_PATIENCE_S = 10.0
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Ticket:
    """The claim of a run on devices."""

    number: int
    run: Path
    gpus: tuple[int, ...]
    """GPU indices as in nvidia-smi."""
    devices: frozenset[str]
    """GPU UUIDs."""

    def __str__(self) -> str:
        return one_line(f"{name_of(self.run.name)} on GPU {','.join(map(str, self.gpus))}", _LONGEST_NAME)


def take(run: RunDir, gpus: Sequence[int], devices: Sequence[str]) -> tuple[Path, int]:
    """Append a ticket to the queue; return its path and the descriptor that keeps it locked, for `pass_fds`.

    The owner of the folder, see `foreign_folder`, can remove tickets of others; in a sticky one, no other user can.

    Raises:
        OSError: the folder cannot be used, or any user could remove the ticket from it.
    """
    folder = _folder()
    with open_folder(folder) as opened:  # whose owner may put a link in its place at any moment
        if not wait_for_lock(opened, fcntl.LOCK_EX, _PATIENCE_S):  # numbers are given one after the other
            raise OSError(f"{folder}: another process has held the lock of this folder for {_PATIENCE_S:.0f} s")
        found = _paths(folder)
        for path in found.values():
            if not is_locked(path):
                with contextlib.suppress(OSError):  # of another user; a dead ticket does not count
                    os.unlink(path.name, dir_fd=opened)
        path = folder / f"{max(found, default=0) + 1:09d}.json"
        hidden = hidden_name(path)  # locked before it is visible: a reader that tests the lock could hold it instead
        descriptor = acquire_lock(hidden, is_new=True)
        assert descriptor is not None, "no other process knows the random name"
        try:
            content = {"format": 1, "run": str(run.path), "gpus": list(gpus), "devices": list(devices)}
            os.write(descriptor, json.dumps(content).encode())
            os.fchmod(descriptor, 0o644)  # whatever the umask: all users of the queue read it
            os.rename(hidden.name, path.name, src_dir_fd=opened, dst_dir_fd=opened)
        except BaseException:
            os.close(descriptor)
            discard(hidden)
            raise
    return path, descriptor


def ahead(path: Path) -> list[Ticket]:
    """Return the locked tickets before the one at `path` that name one of its devices, in order."""
    return [ticket for ticket in _rivals(path) if ticket.number < int(path.stem)]


def behind(path: Path) -> list[Ticket]:
    """Return the locked tickets after the one at `path` that name one of its devices, in order."""
    return [ticket for ticket in _rivals(path) if ticket.number > int(path.stem)]


def _rivals(path: Path) -> list[Ticket]:
    """Return the locked tickets, and the one at `path`, that name one of its devices; none if it cannot be read."""
    own = _read(path)
    return [] if own is None else [ticket for ticket in tickets(path.parent) if ticket.devices & own.devices]


def tickets(folder: Path | None = None) -> list[Ticket]:
    """Return the locked tickets in a folder, by default this machine's, in order: those of runs that train or wait."""
    folder = folder or Path(os.environ.get(FOLDER_VARIABLE) or _FOLDER)
    found = (_read(path) for _, path in sorted(_paths(folder).items()) if is_locked(path))
    return [ticket for ticket in found if ticket]


def users_of(device: Device, queued: Sequence[Ticket]) -> list[str]:
    """Return the processes on a GPU, else the runs that claim it; none if it is free."""
    return [str(one) for one in device.holders] or [one.run.name for one in queued if device.uuid in one.devices]


def _folder() -> Path:
    """Return the folder for tickets: all users may add files, only owners may remove them, and it is not a link."""
    folder = Path(os.environ.get(FOLDER_VARIABLE) or _FOLDER)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        with open_folder(folder) as descriptor:
            os.fchmod(descriptor, 0o1777)
    status = folder.lstat()
    is_ours = status.st_uid in (0, os.getuid()) or status.st_mode & stat.S_ISVTX
    if not stat.S_ISDIR(status.st_mode) or not is_ours:
        raise OSError(f"{folder}: not a folder, or other users may remove files; delete it or set {FOLDER_VARIABLE}")
    return folder


def foreign_folder(ticket: Path) -> str:
    """Return a sentence if the folder of a ticket belongs to another user, who can remove tickets; else ""."""
    owner = ticket.parent.lstat().st_uid
    told = f"{ticket.parent}: belongs to user {owner}, who can remove this run's ticket, so that later runs do not wait"
    return "" if owner in (0, os.geteuid()) else f"{told}; an administrator should own it (mode 1777)"


def _paths(folder: Path) -> dict[int, Path]:
    paths = (folder / name for name in folder_names(folder) if _TICKET.fullmatch(name))
    return {int(path.stem): path for path in paths if path.is_file() and not path.is_symlink()}


def _read(path: Path) -> Ticket | None:
    """Return the ticket at `path`; None if it is missing, or not readable by this version."""
    try:
        content = read_json(path) or {}
        gpus = tuple(int(index) for index in content["gpus"])
        return Ticket(int(path.stem), Path(str(content["run"])), gpus, frozenset(map(str, content["devices"])))
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return None
