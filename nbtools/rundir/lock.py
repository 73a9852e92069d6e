"""The lock of a run, taken with flock."""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from nbtools.rundir.atomic import discard, hidden_name, open_descriptor, retried

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors of flock on a file system that has no locks."""


def acquire_lock(path: Path, *, is_new: bool = False, timeout_s: float = 0) -> int | None:
    """Take the run's lock and return its descriptor; None if another process still holds it after `timeout_s`.

    The lock lasts until all copies of the descriptor are closed; pass it on with `pass_fds`. Links are not followed.

    A missing file is created. With `is_new`, an existing one is an error: other users may plant files in some folders.

    Raises:
        OSError: the file cannot be opened, is a link (ELOOP) or not a regular file (ENXIO); or see `NO_LOCKS`.
    """
    opened = open_descriptor(path, os.O_RDWR | os.O_CREAT | (os.O_EXCL if is_new else os.O_NOFOLLOW))
    try:  # with stdin closed, `open` returns 0, which a child would use as its stdin
        descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(opened)
    is_ours = False
    try:
        is_ours = wait_for_lock(descriptor, fcntl.LOCK_EX, timeout_s)
    finally:
        if not is_ours:
            os.close(descriptor)
    return descriptor if is_ours else None


def create_lock(path: Path) -> int:
    """Create a lock file that is held from the moment at which it is visible; returns its descriptor.

    A reader that tests the lock never finds it free, so its test cannot be mistaken for another holder.

    Raises:
        OSError: the file cannot be created; an `errno` of `NO_LOCKS` means that the file system has no locks.
    """
    hidden = hidden_name(path)
    try:
        descriptor = acquire_lock(hidden, is_new=True)
        assert descriptor is not None, "no other process knows the random name"
        hidden.rename(path)
    except BaseException:
        discard(hidden)
        raise
    return descriptor


def wait_for_lock(descriptor: int, kind: int, timeout_s: float) -> bool:
    """Take a lock of this kind (LOCK_SH or LOCK_EX) on an open file; returns whether it became free in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)


@contextlib.contextmanager
def locked_folder(folder: Path, timeout_s: float = 10.0) -> Iterator[None]:
    """Lock a folder while a file in it is read and written again.

    Without a lock on a file system that has none for folders, and after `timeout_s` with another holder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            wait_for_lock(descriptor, fcntl.LOCK_EX, timeout_s)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. The test holds a shared lock for an instant."""
    try:
        descriptor = retried(lambda: open_descriptor(path, os.O_RDONLY))
    except OSError:
        return False
    try:
        return not wait_for_lock(descriptor, fcntl.LOCK_SH, 0)  # shared: readers do not see one another
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    finally:
        os.close(descriptor)
