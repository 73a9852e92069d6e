"""The small JSON files of a run: atomic writing, tolerant reading, numbers that can be trusted."""

import contextlib
import errno
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from nbtools.errors import FormatError
from nbtools.rundir.atomic import open_descriptor, retried, write_file

FORMAT = 1
LARGEST_JSON_BYTES = 16 * 2**20
"""nbtools writes no larger JSON file."""
_RESERVED_BYTES = 128 * 1024  # for a failure with its traceback
MAX_STEP = 2**53
"""The greatest step that a float holds exactly, so that it can be drawn."""
_MOST_KEPT = 512
_SETTLED_NS = 50_000_000
"""A file that changed more recently may change again within the same tick of its file system's clock."""

Content = TypeVar("Content")
_KEPT: dict[tuple[object, Path], tuple[object, Any]] = {}


def write_json(path: Path, content: Mapping[str, Any], *, mode: int | None = None, sync: bool = False) -> None:
    """Write `content` with `"format": 1` atomically; strict JSON only. See `write_file` for the rest and errors."""
    write_file(path, _encoded(content), mode=mode, sync=sync)


def reserve(path: Path) -> None:
    """Reserve disk space for `write_reserved_json(path, …)`, in a hidden file beside it; OSError if there is none."""
    descriptor = open_descriptor(_reserved(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "wb") as file:
        file.write(bytes(_RESERVED_BYTES))


def write_reserved_json(path: Path, content: Mapping[str, Any]) -> None:
    """Do what `write_json` does, in the space that was reserved for it, if there is some: the disk may be full by now.

    The hidden file is overwritten in place and then renamed, so readers see it complete or not at all.
    """
    reserved = _reserved(path)
    try:
        descriptor = open_descriptor(reserved, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError:
        write_json(path, content)
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(_encoded(content))
        file.truncate()
    retried(lambda: reserved.replace(path))


def _reserved(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserved")


def _encoded(content: Mapping[str, Any]) -> bytes:
    data = json.dumps({"format": FORMAT, **content}, allow_nan=False, ensure_ascii=False, indent=1)
    return (data + "\n").encode("utf-8", "backslashreplace")


def strict_number(value: float) -> float | str:
    """Return a number as strict JSON holds it: a non-finite one becomes `"NaN"`, `"Infinity"` or `"-Infinity"`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def float_of(value: object) -> float | None:
    """Return a number that `strict_number` wrote, finite or not; None for other values."""
    return float(str(value)) if value in ("NaN", "Infinity", "-Infinity") else finite(value)


def whole(value: object) -> int | None:
    """Return a value from a file if it is an integer from 0 to `MAX_STEP`, else None."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MAX_STEP else None


def finite(value: object) -> float | None:
    """Return a value from a file as a float if it is a finite number, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def read_json(path: str | Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None if the file is missing or does not contain one.

    Raises:
        FormatError: a newer nbtools wrote the file.
    """
    try:
        content = _STRICT.decode(retried(lambda: read_small(path)).decode(errors="surrogatepass"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    version = content.get("format", FORMAT)
    if not isinstance(version, int):
        return None
    if version > FORMAT:
        raise FormatError(f"{path}: format {version}, but this nbtools reads up to {FORMAT}; update nbtools")
    return content


def kept(read: Callable[[Path], Content | None], path: Path) -> Content | None:
    """Return `read(path)`, which is called again only after the file has changed; None if there is no such file.

    All callers get the same object, which they must not change.
    """
    if (stamp := file_stamp(path)) is None:
        return None
    known_stamp, known = _KEPT.get((read, path), (None, None))
    content: Content | None = known
    if known_stamp != stamp and (content := read(path)) is not None:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        is_settled = not 0 <= time.time_ns() - stamp[0] < _SETTLED_NS
        _KEPT[read, path] = stamp if is_settled else None, content
    return content


def content_of(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, which callers must not change; empty without one, and for a newer format."""
    with contextlib.suppress(FormatError):
        return kept(read_json, path) or {}
    return {}


def file_stamp(path: str | Path) -> tuple[int, int, int] | None:
    """Return time of change in ns, size and inode of a file; None if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a panel asks for many files every second
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_small(path: str | Path) -> bytes:
    """Return the content of a regular file of at most `LARGEST_JSON_BYTES`, without blocking on pipes.

    Raises:
        OSError: the file is missing, larger, or not a regular file.
    """
    with os.fdopen(open_descriptor(path, os.O_RDONLY), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST_JSON_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read(size)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not strict JSON")


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant)
