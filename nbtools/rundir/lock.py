"""The lock of a run, taken with flock."""

import errno
import fcntl
import os
from pathlib import Path

from nbtools.rundir.atomic import retried


def acquire_lock(path: Path, *, is_new: bool = False) -> int | None:
    """Take the run's lock and return its descriptor, or None if somebody holds it.

    The lock lives as long as any copy of the descriptor does: hand it on with `pass_fds`. A link is never followed.

    Args:
        path: the file, made if it is missing.
        is_new: insist on making it: where others may write, too, whatever is there may be a trap.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_new else os.O_NOFOLLOW), 0o644)
    try:  # where stdin is closed, `open` returns 0, which a child would replace by its own stdin
        descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(opened)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds the lock, without ever standing in a taker's way for more than an instant."""
    try:
        descriptor = retried(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two readers never see each other
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP):
            return False
        raise
    finally:
        os.close(descriptor)
    return False
