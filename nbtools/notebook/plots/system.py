"""System metrics of a run: CPU, memory and GPUs, read from system.jsonl."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from nbtools.rundir.json_files import finite
from nbtools.rundir.tail import Tail

_GPU = {"use_percent": ("GPU %", 1.0), "memory_bytes": ("GPU memory GB", 1e9), "power_w": ("GPU power W", 1.0)}
_MOST_GPUS = 4
"""Most GPUs shown one by one; of more, the mean, the least and the greatest value are shown."""


class SystemReader:
    """Follows a system.jsonl.

    Attributes:
        values: The values of each quantity, such as `CPU %` or `GPU memory GB/GPU 0`.
        num_rows: The number of rows.
    """

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self.values: dict[str, list[float]] = defaultdict(list)
        self.num_rows = 0

    def read(self) -> bool:
        """Read new rows; returns whether there were any."""
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
        if not isinstance(row, dict) or finite(row.get("time")) is None:
            return
        self.num_rows += 1
        for name, value in _values_of(row).items():
            self.values[name].append(value)


def _values_of(row: Mapping[str, Any]) -> dict[str, float]:
    found = {"CPU %": finite(row.get("cpu_percent"))}
    if (rss := finite(row.get("rss_bytes"))) is not None:
        found["Memory GB"] = rss / 1e9
    gpus = [gpu for gpu in row.get("gpus") or () if isinstance(gpu, dict)]
    for key, (title, scale) in _GPU.items():
        read = {f"GPU {finite(gpu.get('index')) or 0:.0f}": finite(gpu.get(key)) for gpu in gpus}
        known = {label: value / scale for label, value in read.items() if value is not None}
        if len(known) > _MOST_GPUS:
            each = list(known.values())
            known = {"mean": sum(each) / len(each), "least": min(each), "greatest": max(each)}
        found |= {f"{title}/{label}": value for label, value in known.items()}
    return {name: value for name, value in found.items() if value is not None}
