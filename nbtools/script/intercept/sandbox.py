"""Holds the program: no network, a read-only project, and an end for all that it starts."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import time
from typing import Any, NoReturn

from .answer import OPENED, SETTINGS, is_below

TIMED_OUT, SIGNALLED = 124, 128
NEW_MOUNTS, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x00020000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, REMOUNT, BIND, RECURSIVE, PRIVATE, RELATIME = 1, 32, 4096, 16384, 1 << 18, 1 << 21
KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048
"""Flags of a mount that a user may not drop: nosuid, nodev, noexec, noatime, nodiratime."""
PARENT_DEATH_SIGNAL, CHILD_SUBREAPER = 1, 36
CHANGES = {
    **dict.fromkeys(("open", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime"), 1),
    **dict.fromkeys(("os.rename", "os.link", "shutil.rmtree"), 2),
}
"""Audit events, and how many of their first arguments are paths that they change."""
LOOK_EVERY_S = 0.02
MOST_OPENED = 10000


def hold() -> None:
    """Fork the process that runs the program, and return in that alone; this one watches it and ends with it."""
    libc = ctypes.CDLL(None)
    libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)  # what leaves its group, and its parent, becomes a child of this process
    is_apart = _separate(libc)
    child = os.fork()
    if child:
        _watch(child, is_apart)
    libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if not is_apart:
        return
    libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None)
    libc.mount(b"proc", b"/proc", b"proc", 0, None)
    for folder in (SETTINGS["root"], SETTINGS["cwd"]):
        if not is_below(SETTINGS["folder"], folder):
            _mount_read_only(libc, os.fsencode(folder))
    inner = os.fork()  # the first process of a namespace ignores signals: it only waits
    if inner:
        os._exit(_code(os.waitpid(inner, 0)[1]))


def _separate(libc: Any) -> bool:
    """Leave the network, the mounts and the processes of the caller, where the machine allows it."""
    user, group, apart = os.getuid(), os.getgid(), NEW_NETWORK | NEW_MOUNTS | NEW_PIDS
    try:
        if libc.unshare(apart) == 0:
            return True
        if libc.unshare(apart | NEW_USER) != 0:
            return False
        maps = ("setgroups", "deny"), ("uid_map", "%d %d 1" % (user, user)), ("gid_map", "%d %d 1" % (group, group))
        for name, content in maps:
            with open("/proc/self/" + name, "w") as file:
                file.write(content)
    except (OSError, AttributeError):
        return False
    return True


def _mount_read_only(libc: Any, folder: bytes) -> None:
    flags = os.statvfs(folder).f_flag
    kept = flags & KEPT_FLAGS | (RELATIME if flags & 4096 else 0)
    if libc.mount(folder, folder, None, BIND | RECURSIVE, None) == 0:
        libc.mount(None, folder, None, REMOUNT | BIND | READ_ONLY | kept, None)


def _watch(child: int, is_apart: bool) -> NoReturn:
    """Wait for the child, its time or the end of the caller; then end all that it has started."""
    end, status = time.monotonic() + SETTINGS["timeout_s"], 0
    done = False
    while not done and time.monotonic() < end and os.getppid() == SETTINGS["parent"]:
        time.sleep(LOOK_EVERY_S)
        pid, status = os.waitpid(child, os.WNOHANG)
        done = pid == child
    if not done:
        os.kill(child, signal.SIGKILL)  # the first process of a namespace takes all others with it
    if not is_apart:
        _end_children()
    if not done:  # a caller that is dead or stopped does not remove it
        os.chdir("/")
        shutil.rmtree(SETTINGS["folder"], ignore_errors=True)
        os._exit(TIMED_OUT)
    code = _code(status)
    if code > SIGNALLED:
        os.kill(os.getpid(), code - SIGNALLED)
    os._exit(code)


def _code(status: int) -> int:
    return SIGNALLED + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _end_children() -> None:
    """Kill the children of this process until it has none; those of a dead child become its own."""
    while True:
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                        os.kill(int(name), signal.SIGKILL)
            except (OSError, IndexError):
                pass  # it has ended
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def watch_files(event: str, arguments: tuple[Any, ...]) -> None:
    """Note the files that are read, and refuse to change one of the project or to run another user's; an audit hook."""
    if event == "import" and arguments[1]:
        _check_owner(arguments[1])
    if event not in CHANGES:
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
        if isinstance(arguments[0], (str, bytes)) and len(OPENED) < MOST_OPENED:
            name = os.path.abspath(os.fsdecode(arguments[0]))
            OPENED[name] = None
            if name.endswith((".py", ".pyc")):
                _check_owner(name)
        return
    has_folder = event.startswith("os.") and type(arguments[-1]) is int and arguments[-1] >= 0
    for path in arguments[: CHANGES[event]]:
        if not isinstance(path, (str, bytes, os.PathLike)):
            continue
        name = os.fsdecode(path)
        if has_folder and event != "os.truncate" and not os.path.isabs(name):
            name = "/proc/self/fd/%d/%s" % (arguments[-1], name)
        if event in ("os.remove", "os.rename") and os.path.islink(name):
            name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        else:
            name = os.path.realpath(name)
        is_inside = any(is_below(name, SETTINGS[folder]) for folder in ("cwd", "root"))
        if is_inside and not is_below(name, SETTINGS["folder"]) and (os.path.isfile(name) or os.path.isdir(name)):
            raise PermissionError(errno.EPERM, "the script may not change this while it is asked", name)


def _check_owner(path: str) -> None:
    """Refuse a file of the project that belongs to another user."""
    is_own = not any(is_below(path, SETTINGS[folder]) for folder in ("root", "start"))
    if not is_own and os.path.exists(path) and os.stat(path).st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to another user, so it is not run", path)
