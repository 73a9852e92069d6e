"""The row of `Launch.cluster`: this machine or Slurm; each field of `Slurm` has a row of its own."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.config import Launch, Slurm, StopOn, TrainConfig
from nbtools.errors import ConfigError, LaunchError
from nbtools.launcher.sbatch import check_site, place_job
from nbtools.machine import slurm
from nbtools.notebook.background import Background
from nbtools.notebook.form.field_rows import INPUT_SHAPE
from nbtools.script.program import Program

HERE, SLURM = "this machine", "Slurm"
WHERE = "Where the processes run; sbatch submits a job of yours to Slurm."
NO_SLURM = (
    "sbatch is not on the path of this kernel: write the script here, and launch it on a machine with Slurm's commands"
)
IN_A_JOB = {
    "nproc_per_node": ("processes per node", "Processes on each node, one per GPU when it has any."),
    "nnodes": ("nodes", "Nodes of the job, with nproc_per_node processes each."),
}
"""Unit and help of the fields of `Launch` that are per node with Slurm."""


def where_choice() -> widgets.Dropdown:
    """Make the choice of `Launch.cluster`: this machine, or Slurm."""
    job = SLURM if slurm.is_available() else f"{SLURM}: needs sbatch, not on the path"
    return widgets.Dropdown(
        description="where",
        options=[(HERE, HERE), (job, SLURM)],
        tooltip="where: machine of the processes",
        **INPUT_SHAPE,
    )


class JobCheck:
    """Asks Slurm in a thread whether it would accept a job, and when that would start."""

    def __init__(self, folder: Path, on_answer: Callable[[], None]) -> None:
        """Call `on_answer` from the thread after each answer; the nodes must see `folder`."""
        self._folder = folder
        self._answers = Background(self._ask, on_answer, settle_s=0.5)

    def look(self, settings: Launch) -> tuple[str, dict[str, str]]:
        """Return a line for the summary, and by row why the job cannot be submitted; nothing for a run here."""
        if settings.cluster is None:
            return "", {}
        if not slurm.is_available():
            return "", {"cluster": NO_SLURM}
        if (found := self._answers.answer(settings)) is None:
            return "sbatch: asked for the expected start", {}
        row, words = found[0]
        return ("", {row: words}) if row else (f"sbatch: {words}", {})

    def _ask(self, settings: Launch) -> tuple[str, str]:
        """Return the row that Slurm refuses, empty if it accepts the job, and Slurm's message."""
        try:
            place_job(settings)
            *_, start = check_site(settings, self._folder)
            return "", start.sentence
        except (ConfigError, LaunchError, OSError) as error:
            named = re.match(r"(\w+)=", str(error)) or re.match(r"(preamble):", str(error))
            return named[1] if named and named[1] in (*Slurm.model_fields, "nnodes") else "cluster", str(error)


def values_of_rows(content: TrainConfig | Program | None, launch: Launch) -> dict[str, Any]:
    """Return the values by row: `cluster` is `HERE` or `SLURM`, and the fields of `Slurm` and `StopOn` are rows."""
    where = HERE if launch.cluster is None else SLURM
    rows = {**dict(content or {}), **dict(launch), "cluster": where}
    del rows["stop_on"]
    return {**rows, **dict(launch.cluster or {}), **dict(launch.stop_on or StopOn())}


def launch_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `Launch` from those of the rows; those of `Slurm` and `StopOn` must be valid."""
    found = {name: values[name] for name in Launch.model_fields if name in values}
    asked = {name: values[name] for name in Slurm.model_fields if name in values}
    stop_on = StopOn(**{name: values[name] for name in StopOn.model_fields if name in values})
    cluster = Slurm(**asked) if values["cluster"] == SLURM else None
    return {**found, "cluster": cluster, "stop_on": None if stop_on == StopOn() else stop_on}
