"""The peak of a training's GPU memory against the figure that form and preflight show of its config."""

from collections.abc import Callable

import pytest
import torch

from nbtools.config import TrainConfig
from nbtools.launcher.checks.sizes import memory_of
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir

from trainings import rows

WORKSPACE_GB = 0.1
"""What kernels take for themselves, whatever the model."""


def assert_peak_is_that_of_the_form(
    files: RunDir, config: TrainConfig, record_property: Callable[[str, object], None]
) -> None:
    """The peak of a training by one process is within a tenth of the figure; a CPU has none."""
    memory = memory_of(config, 1, (read_json(files.config) or {})["environment"]["precision"])
    assert memory is not None and memory.activations is not None
    peaks = [row["system/peak_memory_gb"] for row in rows(files) if "system/peak_memory_gb" in row]
    assert bool(peaks) == torch.cuda.is_available()
    if peaks:
        figure = memory.total / 1e9
        record_property("peak / form", f"{peaks[-1]:.2f} / {figure:.2f} GB: {peaks[-1] / figure:.2f}")
        assert peaks[-1] == pytest.approx(figure, rel=0.1, abs=WORKSPACE_GB)
