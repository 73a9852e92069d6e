"""The writer of metric rows."""

import contextlib
import math
import operator
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat, SupportsIndex

import orjson

from nbtools.metrics.columns import RESERVED
from nbtools.rundir.atomic import append_descriptor
from nbtools.rundir.json_files import MAX_STEP, strict_number


class MetricWriter(contextlib.AbstractContextManager["MetricWriter"]):
    """Appends metric rows to a file: one `os.write` of a complete line per row, from the calling thread.

    The operating system holds the row when `write` returns, so a SIGKILL loses nothing. If the disk is full or a write
    fails, the training continues: lost rows are counted, and the next written row holds `"dropped": n`. For one
    process and one thread.
    """

    def __init__(self, path: str | Path, attempt: int = 1) -> None:
        """Open the file, created if missing, for appending; rows hold the number of an attempt greater than 1."""
        self._path = Path(path)
        self._attempt = attempt
        self._names: set[str] = set()
        self.num_dropped = 0
        """Number of lost rows that no later row has reported yet."""
        self._last_step = 0
        self._failed = False
        self._descriptor, self._torn = self._open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(
        self, step: SupportsIndex, values: Mapping[str, SupportsFloat], samples: SupportsIndex | None = None
    ) -> None:
        """Append one row.

        Args:
            step: Completed optimizer steps.
            values: Metrics as `split/name`: values that convert to one float; a bool is 0 or 1. Reading a tensor on a
                GPU waits for it.
            samples: Training samples so far.

        Raises:
            ValueError: a name is empty or reserved, or the writer is closed.
            TypeError: a value is not a number.
            RuntimeError: torch could not read a value.
        """
        row: dict[str, Any] = {"step": int(operator.index(step)), "time": time.time()}
        if samples is not None:
            row["samples"] = int(operator.index(samples))
        if self._attempt > 1:
            row["attempt"] = self._attempt
        for name, value in values.items():
            if name not in self._names:
                self._check_name(name)
            number = value if value.__class__ is float else _number(name, value)
            row[name] = number if math.isfinite(number) else strict_number(number)
        if self.num_dropped:
            row["dropped"] = self.num_dropped
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        if self._failed:
            self._reopen()
        if self._torn:
            line = b"\n" + line
        try:
            num_written = os.write(self._descriptor, line)
        except OSError:
            num_written = 0
        if num_written == len(line):
            self._torn = False
            self.num_dropped = 0
        else:
            self._last_step = row["step"]
            self._recover(line, num_written)

    def close(self) -> None:
        """Close the file. Rows dropped at the end are reported in a row without values, if it can be written."""
        if self._descriptor >= 0:
            if self.num_dropped:
                self.write(self._last_step, {})
            os.close(self._descriptor)
            self._descriptor = -1
            self._failed = self._torn = False

    def _open(self) -> tuple[int, bool]:
        """Return a descriptor, and whether the file ends in an incomplete line, which the next row must close."""
        descriptor = append_descriptor(self._path)
        try:
            size = os.fstat(descriptor).st_size
            return descriptor, size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        except BaseException:
            os.close(descriptor)
            raise

    def _reopen(self) -> None:
        """Open the file again after a failure: the descriptor may be stale, the last line incomplete."""
        self._failed = False
        try:
            descriptor, self._torn = self._open()
        except OSError:
            self._torn = True  # unknown; readers skip an empty line
        else:
            os.close(self._descriptor)
            self._descriptor = descriptor

    def _recover(self, line: bytes, num_written: int) -> None:
        """Write the rest of a partly written row, or count it as dropped."""
        if self._descriptor < 0:
            raise ValueError(f"{self._path}: the MetricWriter is closed")
        self._failed = True
        if num_written:
            with contextlib.suppress(OSError):
                num_written += os.write(self._descriptor, line[num_written:])
        if num_written >= len(line) - 1:  # complete, except perhaps for its newline
            self.num_dropped = 0
        else:
            self.num_dropped += 1

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"metric name {name!r}: must be a non-empty str such as 'train/loss'")
        if name in RESERVED:
            raise ValueError(f"metric name {name!r}: reserved ({', '.join(sorted(RESERVED))}); use e.g. 'train/{name}'")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"metric name {name!r}: must be valid Unicode") from None
        self._names.add(str(name))


def _number(name: str, value: Any) -> float:
    """Convert an int, a bool, or a scalar of NumPy or torch."""
    if value.__class__ is int and -MAX_STEP <= value <= MAX_STEP:
        return value  # written as an int
    try:
        scalar = value.item() if hasattr(value, "item") else value  # torch warns about float() if it needs grad
        if hasattr(scalar, "__float__"):
            return float(scalar)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except RuntimeError as error:  # torch: several elements, or an earlier failure of the GPU
        error.add_note(f"while reading metric {name!r}")
        raise
    except (TypeError, ValueError):
        pass
    raise TypeError(f"metric {name!r}: {type(value).__name__} is not one number; pass a float or a scalar tensor")
