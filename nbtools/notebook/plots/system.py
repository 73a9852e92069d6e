"""System metrics of a run: CPU, memory and GPUs, read from system.jsonl as series like other metrics."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nbtools.metrics.columns import Series
from nbtools.run.curves import Sketch
from nbtools.rundir.json_files import finite
from nbtools.rundir.tail import Tail

NEWEST_BYTES = 64 << 10
_GPU = {"use_percent": ("GPU %", 1.0), "memory_bytes": ("GPU memory GB", 1e9), "power_w": ("GPU power W", 1.0)}
_MOST_GPUS = 4
"""Most GPUs shown one by one; of more, the mean, the least and the greatest value are shown."""


class SystemReader:
    """Follows a system.jsonl: all of it, or what is written from the last rows on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start(is_whole=None)

    def _start(self, *, is_whole: bool | None) -> None:
        self._tail, self._is_whole = Tail(self._path), is_whole
        if is_whole is False:
            self._tail.skip_to_end(NEWEST_BYTES)
        self._times: dict[str, list[float]] = defaultdict(list)
        self._values: dict[str, list[float]] = defaultdict(list)
        self.num_rows = 0

    def read(self, *, is_whole: bool = True) -> bool:
        """Read new rows, all again if `is_whole` differs from before; returns whether there were any."""
        if is_whole is not self._is_whole:
            self._start(is_whole=is_whole)
        before = self.num_rows
        while block := self._tail.read():
            for line in block.splitlines():
                self._add(line)
        return self.num_rows > before

    def _add(self, line: bytes) -> None:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        time = finite(row.get("time")) if isinstance(row, dict) else None
        if time is None:
            return
        self.num_rows += 1
        for name, value in _values_of(row).items():
            self._times[name].append(time)
            self._values[name].append(value)

    def newest(self, num_values: int) -> dict[str, list[float]]:
        """Return the last values of each quantity."""
        return {name: values[-num_values:] for name, values in self._values.items()}

    def series(self, history: Mapping[str, Series | Sketch]) -> dict[str, Series]:
        """Return the series, with the steps and samples of the rows of metrics around them in time."""
        main = max((history[name] for name in history), key=len, default=None)
        if main is None or not self._times:
            return {}
        first = min(times[0] for times in self._times.values())
        near = slice(max(int(np.searchsorted(main.times, first)) - 1, 0), None)  # the newest rows need no more
        clock, placed = np.maximum.accumulate(main.times[near]), {}
        if not len(clock) or not np.isfinite(clock).all():
            return {}
        for name, values in self._values.items():
            times = np.maximum.accumulate(self._times[name])
            inside = (times >= clock[0]) & (times <= clock[-1])
            if inside.any():
                columns = main.steps[near], main.samples[near]
                steps, samples = (np.interp(times[inside], clock, column) for column in columns)
                placed[name] = Series(
                    steps.astype(np.int64), np.array(values)[inside], times[inside], samples, unit=main.unit
                )
        return placed


def _values_of(row: Mapping[str, Any]) -> dict[str, float]:
    found = {"system/CPU %": finite(row.get("cpu_percent"))}
    if (rss := finite(row.get("rss_bytes"))) is not None:
        found["system/Memory GB"] = rss / 1e9
    gpus = [gpu for gpu in row.get("gpus") or () if isinstance(gpu, dict)]
    for key, (title, scale) in _GPU.items():
        read = {f"GPU {finite(gpu.get('index')) or 0:.0f}": finite(gpu.get(key)) for gpu in gpus}
        known = {label: value / scale for label, value in read.items() if value is not None}
        if len(known) > _MOST_GPUS:
            each = list(known.values())
            known = {"mean": sum(each) / len(each), "least": min(each), "greatest": max(each)}
        found |= {f"system/{title}/{label}": value for label, value in known.items()}
    return {name: value for name, value in found.items() if value is not None}
