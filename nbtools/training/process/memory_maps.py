"""Pickling of memory maps for a spawned process: it opens the file instead of receiving a copy.

Loader workers under spawn and forkserver (Python 3.14's default) get their dataset as a pickle.
"""

from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def send_by_path() -> None:
    """Let `multiprocessing` pickle arrays of memory-mapped files by path and place, and repeated values once."""
    for kind in (np.ndarray, np.memmap):
        ForkingPickler.register(kind, reduced)


def reduced(array: Array) -> Any:
    """Return what pickles an array: see `send_by_path`; its content where it is in memory."""
    if any(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True)):
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
        return np.broadcast_to, (array[once], array.shape)
    mapped = _mapped(array)
    if mapped is None or array.size == 0:
        return np.asarray(array).__reduce_ex__(4)
    offset = mapped.offset + array.ctypes.data - mapped.ctypes.data
    return _reopened, (str(mapped.filename), array.dtype, array.shape, array.strides, offset)


def _mapped(array: Array) -> "np.memmap[Any, Any] | None":
    """Return the read-only memory map that an array is a part of: the one that opened the file."""
    found, part = None, cast(Any, array)
    while part is not None:
        if isinstance(part, np.memmap) and part.mode == "r" and isinstance(part.filename, str | Path):
            found = part
        part = getattr(part, "base", None)
    return found


def _reopened(path: str, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Array:
    return np.ndarray(shape, dtype, np.memmap(path, mode="r"), offset, strides)
