"""The small JSON files of a run: atomic writing, tolerant reading, numbers that can be trusted."""

import errno
import json
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from nbtools.errors import FormatError

FORMAT = 1
LARGEST_JSON_BYTES = 16 * 2**20
"""A larger file is none of ours."""
MAX_STEP = 2**53
"""The greatest step that a float holds exactly, so that it can be drawn."""
_PASSING = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)
"""What a network file system may say once of a file that is well: another machine replaced it, the server is slow."""
T = TypeVar("T")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` with `"format": 1` under `path` by an atomic rename; strict JSON only."""
    data = json.dumps({"format": FORMAT, **content}, allow_nan=False, ensure_ascii=False, indent=1)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def write() -> None:
        temporary.write_text(data + "\n", encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)

    try:
        retried(write)
    finally:
        temporary.unlink(missing_ok=True)


def retried(act: Callable[[], T]) -> T:
    """Do something with a file; again, within a second, where a network file system has lost track of it meanwhile."""
    for pause_s in (0.01, 0.1, 0.5):
        try:
            return act()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause_s)
    return act()


def strict_number(value: float) -> float | str:
    """Return a number as strict JSON can hold it: what is not finite becomes `"NaN"` or `"Infinity"`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def whole(value: object) -> int | None:
    """A whole number that a file claims, if one can count with it: 0 to `MAX_STEP`."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MAX_STEP else None


def finite(value: object) -> float | None:
    """A number that a file claims, if one can calculate with it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in `path`, or None where there is none (yet) that can be read.

    Raises:
        FormatError: a newer nbtools wrote the file.
    """
    try:
        content = json.loads(retried(lambda: read_small(path)), parse_constant=_refuse_constant)
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


def read_small(path: Path) -> bytes:
    """Return what is in a regular file of at most `LARGEST_JSON_BYTES`; others are not waited for, nor held in memory.

    Raises:
        OSError: there is none, or it is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(LARGEST_JSON_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > LARGEST_JSON_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not strict JSON")
