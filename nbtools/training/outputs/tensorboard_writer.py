"""Metric rows as TensorBoard events, for `tensorboard --logdir runs`."""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbtools.errors import ConfigError, needs_package

_FLUSH_S = 5


class Events:
    """Mirrors metric rows into a folder; opens the file at the first row.

    `purge_step` lets TensorBoard hide rows that an earlier attempt wrote beyond the first step of this one.
    """

    def __init__(self, folder: Path) -> None:
        """Mirror into `folder`; ConfigError if the package is missing."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError(needs_package("report_to='tensorboard':", "tensorboard") + "; or set report_to='none'")
        self._folder = folder
        self._writer: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # silences tensorflow where it is installed
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=_FLUSH_S)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, *, failed: bool) -> None:
        """Write the remaining rows; events do not say whether the training failed."""
        if self._writer is not None:
            self._writer.close()

    def lost(self, error: Exception) -> str:
        """Return a sentence on an error, after which nothing more is written."""
        return f"TensorBoard events are no longer written: {error}"
