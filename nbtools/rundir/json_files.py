"""The small JSON files of a run: atomic writing, tolerant reading, numbers that can be trusted."""

import errno
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from nbtools.errors import FormatError
from nbtools.rundir.atomic import retried, write_file
from nbtools.rundir.tail import open_regular

FORMAT = 1
LARGEST_JSON_BYTES = 16 * 2**20
"""nbtools writes no larger JSON file."""
MAX_STEP = 2**53
"""The greatest step that a float holds exactly, so that it can be drawn."""


def write_json(path: Path, content: Mapping[str, Any], *, sync: bool = False) -> None:
    """Write `content` with `"format": 1` atomically; strict JSON only. See `write_file` for `sync` and errors."""
    data = json.dumps({"format": FORMAT, **content}, allow_nan=False, ensure_ascii=False, indent=1)
    write_file(path, (data + "\n").encode("utf-8", "backslashreplace"), sync=sync)


def strict_number(value: float) -> float | str:
    """Return a number as strict JSON holds it: a non-finite one becomes `"NaN"`, `"Infinity"` or `"-Infinity"`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


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


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None if there is none, or none that can be read.

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
    """Return the content of a regular file of at most `LARGEST_JSON_BYTES`, without blocking on pipes.

    Raises:
        OSError: the file is missing, larger, or not a regular file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LARGEST_JSON_BYTES:
            data = file.read(size + 1)  # not more: the buffer for a larger number is made first
            if len(data) > size:
                data += file.read(LARGEST_JSON_BYTES + 1 - len(data))
            if len(data) <= LARGEST_JSON_BYTES:
                return data
    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not strict JSON")
