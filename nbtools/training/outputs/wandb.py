"""Metric rows in Weights & Biases; with `WANDB_MODE=offline` in files of the run directory, for `wandb sync`."""

import importlib
import os
from collections.abc import Mapping
from typing import Any

from nbtools.config import TrainConfig
from nbtools.run.lineage import parent_folder
from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir

RECORD = "run.json"
"""File with the id and the name in W&B, beside W&B's own files."""
_STEP = "train/global_step"
"""The metric that W&B draws the others over, as the Trainer of transformers calls it; its own steps only go up."""
_SETTINGS = {
    "WANDB_PROJECT": "nbtools",
    "WANDB_CONSOLE": "off",  # rank0.log has the output
    "WANDB_SYMLINK": "false",
    "WANDB_INIT_TIMEOUT": "60",
    "WANDB_FINISH_TIMEOUT": "20",  # what is not uploaded by then stays in the run directory
}
"""W&B's own variables, where the user sets none."""
_LENGTH = {"max_steps", "epochs"}


class WandbRun:
    """Mirrors metric rows into a W&B run; a resumed training continues that of its parent, a fork has a new one."""

    def __init__(self) -> None:
        self._run: Any = None

    def start(self, files: RunDir, config: TrainConfig) -> None:
        """Start or continue the W&B run of a run directory; raises what W&B raises, as do the other methods."""
        for variable, value in _SETTINGS.items():
            os.environ.setdefault(variable, value)
        wandb: Any = importlib.import_module("wandb")
        known = _known(files)
        run_id = os.environ.get("WANDB_RUN_ID") or known.get("id")
        name = os.environ.get("WANDB_NAME") or known.get("name") or files.id
        named = {"dir": str(files.path), "id": run_id, "name": name}
        self._run = wandb.init(**named, config=config.model_dump(), resume="allow", allow_val_change=True)
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)
        if not self._run.disabled:
            write_json(files.wandb / RECORD, {"id": self._run.id, "name": self._run.name})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, _STEP: step})

    def close(self, *, failed: bool) -> None:
        """Upload the remaining rows, and mark the W&B run as finished or failed."""
        self._run.finish(exit_code=int(failed))
        importlib.import_module("wandb").teardown()  # until its process has written what it was given

    def lost(self, error: Exception) -> str:
        """Return a sentence on an error, after which nothing more is written."""
        why = " ".join(str(error).split())[:300] or type(error).__name__
        step = "pip install wandb" if isinstance(error, ImportError) else "WANDB_MODE=offline writes them to files"
        return f"metrics are no longer sent to Weights & Biases: {why}; next time: {step}"


def _known(files: RunDir) -> Mapping[str, Any]:
    """Return the id and name of the W&B run of an earlier attempt, or of the run that this one resumes.

    A fork, which changes more than the length of the training, continues none.
    """
    if found := read_json(files.wandb / RECORD):
        return found
    launch = read_json(files.launch) or {}
    parent = parent_folder(files.path, launch)
    is_fork = not mapping_at(mapping_at(launch, "resumed_from"), "changes").keys() <= _LENGTH
    return {} if parent is None or is_fork else read_json(RunDir(parent).wandb / RECORD) or {}
