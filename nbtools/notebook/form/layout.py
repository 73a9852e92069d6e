"""The form's widgets and their layout; `form` connects them to the config."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.config import Launch, Slurm, StopOn, TrainConfig
from nbtools.data import project_files
from nbtools.errors import InvalidNameError, plural
from nbtools.machine.devices import Device, devices
from nbtools.notebook.background import Guarded
from nbtools.notebook.form.argument_rows import ArgumentRows
from nbtools.notebook.form.chooser import FileList
from nbtools.notebook.form.cluster_row import IN_A_JOB, SLURM, WHERE, where_choice
from nbtools.notebook.form.data_picker import COLUMN, DataPicker
from nbtools.notebook.form.field_rows import INPUT_SHAPE, NONE, STYLE, FieldRow, FormRow, GPUField
from nbtools.notebook.form.launch_bar import LaunchBar
from nbtools.notebook.form.sections import Section, Sections
from nbtools.notebook.kernel import answers_beside_cells
from nbtools.notebook.widgets import button
from nbtools.project import check_name, plain_name
from nbtools.recipes import Preset, Recipe
from nbtools.script.field import Field, fields_of
from nbtools.script.program import Program


class FormLayout:
    """The rows, tiles and buttons of one recipe's form: the data first, then columns of sections."""

    def __init__(
        self,
        recipe: Recipe | None,
        root: Path,
        name: str,
        preset: str | None,
        on_edit: Callable[[object], None],
        guarded: Guarded,
        fill: Callable[[dict[str, Any]], None],
    ) -> None:
        """Make the widgets; `on_edit` is called after an edit of a field or of the script's `name`.

        Rows of arguments call `fill` with values by field. Data files are listed below the project's `root`.
        """
        gpus = devices()
        needs = {key: _need(preset, len(gpus)) for key, preset in (recipe.presets if recipe else {}).items()}
        self.out_of_reach = {key: need for key, need in needs.items() if need}
        """Why presets cannot be launched on this machine, by name."""
        presets = [("none", NONE), *((f"{key}: {need}" if need else key, key) for key, need in needs.items())]
        self.preset = widgets.Dropdown(description="preset", options=presets, value=preset or NONE, **INPUT_SHAPE)
        self.reset = button("Reset", "undo", "Restore the values of the preset")
        self._preset_row = FormRow(Field("preset"), self.preset, self.reset)
        self.preset_note = self._preset_row.note
        label = "script" if recipe else "name"
        self.name = widgets.Text(value=name, description=label, placeholder="name of the script", **INPUT_SHAPE)
        self.name.observe(on_edit, names="value")
        self.name_row = FormRow(Field(label), self.name)
        self._launch = fields_of(Launch)
        self._own = fields_of(recipe.config_class if recipe else Program)
        records = self._own | self._launch | fields_of(Slurm) | fields_of(StopOn)
        self.gpus = GPUField(records["gpus"], [(device.index, _described(device)) for device in gpus], on_edit)
        where = where_choice()
        where.observe(lambda change: self._follow_where(), names="value")
        where.observe(on_edit, names="value")
        self.cluster = FormRow(records["cluster"].replace(help=WHERE), where)
        self._rows: dict[str, FormRow] = {"gpus": self.gpus, "cluster": self.cluster}
        self._rows |= {
            name: FieldRow(field, on_edit, **_SHAPES.get(name, {}))
            for name, field in records.items()
            if name not in (*self._rows, "stop_on")
        }
        is_data = recipe is not None and recipe.guess_columns is not None
        self.data = DataPicker(root, recipe, partial(on_edit, None), guarded) if recipe and is_data else None
        self._has_table = False
        self._usual = {name for name, field in records.items() if field.is_basic}
        self.write = button("Write script", "pencil", "Write scripts/NAME.py")
        self.launch = button("Launch", "play", "Write the script if its values differ, then launch it", style="primary")
        self.load = button("Load from script", "upload", "Load the values of scripts/NAME.py into the form")
        self.panel = widgets.VBox()
        title, summary = (recipe.title, recipe.summary) if recipe else PROGRAM
        self._title = widgets.HTML(f"{STYLE}<h3>{escape(title)}</h3><p>{escape(summary)}</p>")
        self._has_presets = recipe is not None
        self.sections = self._arranged(recipe, root)
        on_read = partial(on_edit, None)
        self.arguments = None if recipe else ArgumentRows(root, guarded, self.sections, fill, on_read)
        self.bar = LaunchBar(self._go_to, self.write, self.launch, self.load)
        self._follow_where()

    def _arranged(self, recipe: Recipe | None, root: Path) -> Sections:
        def section(title: str, names: Iterable[str], *above: widgets.DOMWidget) -> Section:
            return Section(title, [self._rows[name] for name in names], *above)

        processes = ["cluster", *(name for name in self._launch if name not in ("cluster", "stop_on", "on_end"))]
        of_launch = [
            section("Processes and devices", processes),
            section("Slurm job", Slurm.model_fields),
            section("Stop on", StopOn.model_fields),
            section("At the end", ["on_end"]),
        ]
        if recipe is None:
            listed = FileList(
                "the path below",
                partial(project_files.find_programs, root),
                self._choose_program,
                hint=lambda _: "Files with a main part or a parser.",
            ).widget.add_class("nbtools-data")
            listed.layout.max_width = "620px"
            return Sections([section("Program", self._own, listed)], [of_launch[:1], of_launch[1:]], self._usual)
        own = [name for name in self._own if name not in TrainConfig.model_fields]
        data = section("Data", [name for name in recipe.data_fields if name in own])
        if self.data is not None:
            rows = [*data.rows[:1], *([] if self.data.column_fields else [self.data.row]), *data.rows[1:]]
            data = Section("Data", rows, self.data.widget)
        model = section("Model", [name for name in own if name not in recipe.data_fields])
        return Sections([data], [[model], [section("Training", TrainConfig.model_fields)], of_launch], self._usual)

    def arrange(self, summary: widgets.DOMWidget, question: widgets.DOMWidget) -> widgets.VBox:
        """Return the whole form."""
        preset = [self._preset_row.widget] if self._has_presets else []
        head = widgets.GridBox([*preset, self.name_row.widget]).add_class("nbtools-columns")
        self.bar.question.children = (question,)
        arguments = [self.arguments.widget] if self.arguments else []
        sections = (self.sections.first, self.sections.bar, *arguments, self.sections.columns)
        form = widgets.VBox([self._title, head, *sections, summary, self.bar.widget, self.panel])
        form.layout.overflow = "visible"
        form.add_class("nbtools-form")
        answers_beside_cells(form)  # without support in ipykernel a click waits for the running cell
        return form

    @property
    def preset_name(self) -> str | None:
        """The chosen preset; None without one."""
        return self.preset.value or None

    @property
    def fields(self) -> dict[str, FormRow]:
        """The rows in use, by field: with Slurm, the rows of its settings instead of the GPUs' indices."""
        unused = self._unused
        return {name: field for name, field in self._rows.items() if name not in unused}

    def show_data(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Show the first rows of the data that `values` name; return the values from a choice of data."""
        if self.data is None or self.data.chosen:
            return self.data.take() if self.data else {}
        named = {name: values.get(name) for name in self.data.column_fields}
        found = self.data.show(values.get("dataset"), named)
        for name in self.data.column_fields:
            line = self._rows[name]
            assert isinstance(line, FieldRow)
            line.offer(tuple(column for column in found.columns if column) if found else None)
        if self._has_table is not (found is not None):
            self._has_table = found is not None
            self._follow_where()
        return self.data.take()

    @property
    def _unused(self) -> set[str]:
        return {"gpus"} if self.is_for_slurm else {*Slurm.model_fields}

    @property
    def is_for_slurm(self) -> bool:
        """Whether the run is a Slurm job."""
        return bool(self.cluster.value == SLURM)

    def _follow_where(self) -> None:
        for name, (unit, help) in IN_A_JOB.items():
            line = self._rows[name]
            line.field = self._launch[name].replace(unit=unit, help=help) if self.is_for_slurm else self._launch[name]
            line.mark()
        columns = {COLUMN, *(self.data.column_fields if self.data else ())} if self._has_table else set()
        usual = self._usual | columns | ({"nnodes"} if self.is_for_slurm else set())
        self.sections.use(usual, self._unused | (set() if self._has_table else {COLUMN}))

    def _choose_program(self, path: str) -> None:
        """Fill in the path of a program, and a name after it."""
        if not path:
            return
        script = self._rows["script"]
        assert isinstance(script, FieldRow)
        script.type_in(path)
        with suppress(InvalidNameError):
            self.name.value = check_name(f"run_{plain_name(Path(path).stem).replace('-', '_')}")

    def _go_to(self, name: str) -> None:
        if name == self.name.description:
            self.name.focus()
        elif not (self.arguments and self.arguments.go_to(name)):
            self.sections.go_to(name)


PROGRAM = "A program of yours", "Train with a script or module of this project, unchanged, with its arguments."
"""Title and summary of the form of a program."""
_COMMANDS = "on_end", "args", "resume", "config_values"
_SHAPES: dict[str, Any] = {"preamble": {"num_lines": 4}, **{key: {"is_command": True} for key in _COMMANDS}}
"""Inputs of fields whose value is lines of text, or a command."""


def _need(preset: Preset, num_gpus: int) -> str:
    """Return why a preset is out of reach of this machine; empty if it is not."""
    wanted = 0 if preset.gpus == () else preset.nproc_per_node or 1
    return f"needs {plural(wanted, 'GPU')}, this machine has {num_gpus or 'none'}" if wanted > num_gpus else ""


def _described(device: Device) -> str:
    free = (device.memory_total_bytes - device.memory_used_bytes) / 2**30
    held = f", used by {', '.join(map(str, device.holders))}" if device.holders else ""
    return f"GPU {device.index}: {device.name}, {free:.0f} of {device.memory_total_bytes / 2**30:.0f} GiB free{held}"
