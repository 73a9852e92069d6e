"""The lock of a run, taken with flock."""

import errno
import fcntl
import os
import time
from pathlib import Path

from nbtools.rundir.atomic import retried


def acquire_lock(path: Path, *, is_new: bool = False) -> int | None:
    """Take the run's lock and return its descriptor; None if another process holds it.

    The lock lasts until all copies of the descriptor are closed; pass it on with `pass_fds`. Links are not followed.

    A missing file is created. With `is_new`, an existing one is an error: other users may plant files in some folders.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_new else os.O_NOFOLLOW), 0o644)
    try:  # with stdin closed, `open` returns 0, which a child would use as its stdin
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


def wait_for_lock(descriptor: int, kind: int, timeout_s: float) -> bool:
    """Take a lock of this kind (LOCK_SH or LOCK_EX) on an open file; returns whether it became free in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. The test holds a shared lock for an instant."""
    try:
        descriptor = retried(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: readers do not see one another
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP):
            return False
        raise
    finally:
        os.close(descriptor)
    return False
