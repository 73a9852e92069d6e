"""The list of a form's fields, one row each: of a config or a program, of `Launch` and its records."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from nbtools.config import Launch, NotifyOn, Slurm, StopOn, TrainConfig
from nbtools.launcher.sbatch import site_defaults
from nbtools.machine.devices import devices
from nbtools.notebook.rows.field_rows import FieldRow, FormRow, GPUField, read_values
from nbtools.script.field import Field, fields_of
from nbtools.script.program import Program
from nbtools.settings import Settings, errors_by_field

Values = dict[str, Any]
"""Values by row: those of a config or a program, `where`, and the fields of `Launch`, `Slurm`, `StopOn`, `NotifyOn`."""
WHERE, HERE, SLURM = "where", "this machine", "Slurm"
"""The row of `Launch.cluster`, and its choices."""
_COMMANDS = "on_end", "notify_with", "args", "resume", "config_values"
_SHAPES: dict[str, Any] = {"preamble": {"num_lines": 4}, **{key: {"is_command": True} for key in _COMMANDS}}
"""Inputs of fields whose value is lines of text, or a command."""


class FieldList:
    """The rows of a form by field; where the processes run decides which of them count."""

    def __init__(self, cls: type[TrainConfig] | type[Program], on_edit: Callable[[object], None]) -> None:
        """Make the rows of the class of a config, or of `Program`; `on_edit` is called after every edit."""
        self.cls = cls
        told = "Where the processes run; sbatch submits a job of yours to Slurm."
        where = Field(WHERE, (), HERE, choices=(HERE, SLURM), help=told, is_basic=True)
        launch = {WHERE if name == "cluster" else name: field for name, field in fields_of(Launch).items()}
        records = fields_of(cls) | launch | {WHERE: where} | fields_of(Slurm) | fields_of(StopOn)
        records |= {row_name(NotifyOn, name): field for name, field in fields_of(NotifyOn).items()}
        del records["stop_on"], records["notify_on"]
        gpus = [(device.index, f"GPU {device.index}: {device}") for device in devices()]
        self.num_gpus = len(gpus)
        """Number of GPUs of this machine."""
        self.rows: dict[str, FormRow] = {}
        for name, field in records.items():
            is_gpus, shape = name == "gpus", _SHAPES.get(name, {})
            self.rows[name] = GPUField(field, gpus, on_edit) if is_gpus else FieldRow(field, on_edit, **shape)
        self._has_site_defaults = False

    @property
    def is_for_slurm(self) -> bool:
        """Whether the run is a Slurm job."""
        return bool(self.rows[WHERE].value == SLURM)

    @property
    def usual(self) -> set[str]:
        """Names of the rows that are shown without unfolding."""
        usual = {name for name, line in self.rows.items() if line.field.is_basic}
        return usual | {"nnodes"} if self.is_for_slurm else usual

    @property
    def unused(self) -> set[str]:
        """Names of the rows whose values do not count: those of Slurm, or with Slurm the GPUs' indices."""
        return {"gpus"} if self.is_for_slurm else {*Slurm.model_fields}

    @property
    def in_use(self) -> dict[str, FormRow]:
        """The rows whose values count."""
        unused = self.unused
        return {name: line for name, line in self.rows.items() if name not in unused}

    def read(self) -> tuple[Values, dict[str, str]]:
        """Return the valid values and the errors by row; the key "" holds errors of several fields."""
        values, mistakes = read_values(self.in_use)
        for cls in (self.cls, Slurm, StopOn, NotifyOn, Launch):
            given = _given(cls, values)
            if cls is Launch:
                valid = {name: value for name, value in values.items() if name not in mistakes}
                given = _launch_values(values if not mistakes else {**valid, WHERE: HERE})
            found = {name and row_name(cls, name): text for name, text in errors_by_field(cls, given).items()}
            wrong = {*found, *mistakes}
            if wrong - {""}:  # the others are checked together with the defaults of the wrong ones
                others = {name: value for name, value in given.items() if row_name(cls, name) not in wrong}
                found[""] = errors_by_field(cls, others).get("", "")
            several = found.pop("", "")
            if several and not any(re.search(rf"\b{name}\b", several) for name in wrong if name):
                named = [name for name in given if name in self.rows and f"{name}=" in several]
                found[min(named, key=several.index, default="")] = several
            mistakes = {**found, **mistakes}
        return values, mistakes

    def built(self, values: Values) -> tuple[TrainConfig | Program, Launch]:
        """Return the config or program, and the settings of its launch, of valid values."""
        own = {name: values[name] for name in self.cls.model_fields}
        return self.cls(**own), Launch(**_launch_values(values))

    def fill(self, values: Mapping[str, Any]) -> None:
        """Show values; those of rows that do not count are left out."""
        if WHERE in values:
            self.rows[WHERE].value = values[WHERE]
            self._has_site_defaults = self._has_site_defaults or self.is_for_slurm
        for name, line in self.in_use.items():
            if name in values:
                line.value = values[name]

    def first_values_of_slurm(self) -> Values:
        """Return the site's values for a job when Slurm is chosen for the first time; else nothing."""
        if self._has_site_defaults or not self.is_for_slurm:
            return {}
        self._has_site_defaults = True
        is_for_cpu = read_values({"gpus": self.rows["gpus"]})[0].get("gpus") == ()
        return {**dict(site_defaults()), **({"gpus_per_node": 0} if is_for_cpu else {})}


def values_of(content: TrainConfig | Program | None, launch: Launch) -> Values:
    """Return the values by row of a config or program and its launch."""
    where = HERE if launch.cluster is None else SLURM
    rows = {**dict(content or {}), **dict(launch), WHERE: where}
    del rows["stop_on"], rows["notify_on"], rows["cluster"]
    notify_on = {row_name(NotifyOn, name): value for name, value in launch.notify_on or NotifyOn()}
    return {**rows, **dict(launch.cluster or {}), **dict(launch.stop_on or StopOn()), **notify_on}


def _launch_values(values: Mapping[str, Any]) -> Values:
    """Return the values of `Launch` from those of the rows; those of its records must be valid."""
    cluster = Slurm(**_given(Slurm, values)) if values[WHERE] == SLURM else None
    records = {"stop_on": StopOn(**_given(StopOn, values)), "notify_on": NotifyOn(**_given(NotifyOn, values))}
    conditions = {name: record if any(dict(record).values()) else None for name, record in records.items()}
    return {**_given(Launch, values), "cluster": cluster, **conditions}


def row_name(cls: type[Settings], name: str) -> str:
    """Return the name of the row of a field: `NotifyOn` has fields of the names of others."""
    return f"notify_on.{name}" if cls is NotifyOn else name


def _given(cls: type[Settings], values: Mapping[str, Any]) -> Values:
    """Return the values of a class among those of the rows."""
    return {name: values[row_name(cls, name)] for name in cls.model_fields if row_name(cls, name) in values}
