"""Atomic writing: a file or a folder appears under its name complete, or not at all.

Both are built beside their place under a random hidden name that is created exclusively, so that a link planted there
is never followed, and two writers never use the same one. A failed write removes its hidden files.
"""

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

_TRANSIENT = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)
"""Errors that a network file system may report once for an intact file: another client replaced it, a slow server."""
T = TypeVar("T")


def write_file(
    path: Path, content: bytes | Callable[[Path], object], *, mode: int | None = None, sync: bool = False
) -> None:
    """Write a file and rename it to `path`; a link at `path` is replaced, not followed.

    Args:
        content: its bytes, or a function that creates the file at the path that it is given, which has the same name
            in a private folder.
        mode: permissions, whatever the umask, of a file of these bytes; None leaves them to the umask.
        sync: force the content to disk before the rename.

    Raises:
        OSError: the file cannot be written, or not with this `mode`; an earlier file at `path` is unchanged.
    """
    retried(lambda: _write_file(path, content, mode, sync))


def _write_file(path: Path, content: bytes | Callable[[Path], object], mode: int | None, sync: bool) -> None:
    hidden = hidden_name(path)
    if isinstance(content, bytes):
        file = hidden
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(file, flags, 0o666 if mode is None else mode)  # a private file is so from the start
    else:
        file = hidden / path.name
        hidden.mkdir(0o700)
    try:
        if isinstance(content, bytes):
            with os.fdopen(descriptor, "wb") as stream:
                if mode is not None and os.fstat(descriptor).st_mode & 0o777 & ~mode:  # exFAT by FUSE lets chmod pass
                    raise PermissionError(errno.EPERM, "this file system has no permissions", str(path))
                stream.write(content)
                if mode is not None:
                    stream.flush()
                    os.fchmod(descriptor, mode)
        else:
            content(file)
        if sync:
            sync_to_disk(file)
        file.replace(path)
    finally:
        discard(hidden)


@contextlib.contextmanager
def new_folder(final: Path, *, sync: bool = False, is_stale: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Build a folder: yields an empty hidden one, which becomes `final` when the block ends without an error.

    Args:
        final: the folder; missing parents are created.
        sync: force the names in the folder and its own to disk. The caller syncs the files that it writes.
        is_stale: whether to replace a non-empty folder that is already at `final`; otherwise that folder stays.

    Raises:
        OSError: the folder cannot be created or renamed; what was at `final` is unchanged.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    hidden = hidden_name(final)
    hidden.mkdir()
    try:
        yield hidden
        if sync:
            for path in (*sorted((path for path in hidden.rglob("*") if path.is_dir()), reverse=True), hidden):
                sync_to_disk(path)
        put_folder(hidden, final, is_stale)
        if sync:
            sync_to_disk(final.parent)
    finally:
        discard(hidden)


def put_folder(built: Path, final: Path, is_stale: Callable[[], bool] = lambda: False) -> None:
    """Rename a folder to `final`; see `new_folder`. A folder that is replaced comes back if the rename fails."""
    old = None
    try:
        for is_last in (*(False,) * 9, True):  # other processes may put and remove their own folders there meanwhile
            try:
                return _rename(built, final)
            except OSError as error:
                is_gone = not os.path.lexists(final)
                if is_last or (is_gone and error.errno not in (errno.ENOTEMPTY, errno.EEXIST)):
                    raise
                if is_gone:
                    continue
                if not is_stale():
                    if final.is_dir() and any(final.iterdir()):
                        return None
                    raise
            discard(old)
            old = hidden_name(final, "old")
            with contextlib.suppress(FileNotFoundError):  # another process has moved it
                _rename(final, old)
    except BaseException:
        if old is not None and os.path.lexists(old) and not os.path.lexists(final):
            _rename(old, final)
        raise
    finally:
        discard(old)


def _rename(source: Path, target: Path) -> None:
    """Rename a folder. After an error of a network file system the rename may still have happened."""
    retried(lambda: None if os.path.lexists(target) and not os.path.lexists(source) else source.rename(target))


def hidden_name(path: Path, kind: str = "new") -> Path:
    """Return an unused random name beside `path`: `.NAME.new-5f3a….tmp`."""
    return path.with_name(f".{path.name}.{kind}-{os.urandom(6).hex()}.tmp")


def discard(path: Path | None) -> None:
    """Remove a file, a link or a folder with its content, if that is possible."""
    if path is None:
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def open_descriptor(path: str | Path, flags: int, mode: int = 0o644) -> int:
    """Open a regular file and return its descriptor; pipes, sockets and devices of that name are never opened.

    Opening a pipe blocks until its other end is opened; opening a device may act on it.

    Raises:
        OSError: the file cannot be opened, or is something else (ENXIO).
    """

    def check(status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENXIO, "not a regular file", str(path))

    with contextlib.suppress(FileNotFoundError):
        check(os.stat(path))  # noqa: PTH116 - a Path made of a path is parsed again
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    try:
        check(os.fstat(descriptor))  # another file may have this name by now
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def open_folder(folder: Path, *parts: str) -> Iterator[int]:
    """Open a folder, then each of `parts` in the one before, and yield the descriptor of the last.

    Names relative to it (`dir_fd`) are in that folder, even if a link or another folder takes its place.

    Raises:
        OSError: one is missing, or is a link or not a folder; of `folder`, parents may be links.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        descriptor = os.open(folder, flags)
        opened.callback(os.close, descriptor)
        for part in parts:
            descriptor = os.open(part, flags, dir_fd=descriptor)
            opened.callback(os.close, descriptor)
        yield descriptor


def append_descriptor(path: str | Path) -> int:
    """Open a regular file to append to it, and to read it, and return its descriptor; creates it if it is missing.

    Raises:
        OSError: the file cannot be opened, is a link (ELOOP), or is not a regular file (ENXIO).
    """
    return open_descriptor(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def folder_names(folder: Path) -> list[str]:
    """Return the names in a folder, in any order; none if it cannot be read."""
    with contextlib.suppress(OSError):
        return retried(lambda: os.listdir(folder))  # noqa: PTH208 - thousands of names
    return []


def sync_to_disk(path: Path) -> None:
    """Force a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def retried(act: Callable[[], T]) -> T:
    """Return `act()`; call it again, up to three times within a second, after a transient error of a file system."""
    for pause_s in (0.01, 0.1, 0.5):
        try:
            return act()
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
        time.sleep(pause_s)
    return act()
