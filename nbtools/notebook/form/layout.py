"""The form's widgets and their layout; `form` connects them to the config."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from nbtools.config import Launch, Settings, Slurm, StopOn, TrainConfig
from nbtools.machine.devices import Device, devices
from nbtools.notebook.form.cluster import IN_A_JOB, SLURM, ClusterField
from nbtools.notebook.form.fields import INPUT_SHAPE, NONE, STYLE, FieldRow, GPUField, note_widget, row
from nbtools.notebook.form.overwrite import button
from nbtools.notebook.subshell import answers_beside_cells
from nbtools.recipes import Recipe
from nbtools.script.field import fields_of


class FormLayout:
    """The rows, tiles and buttons of one recipe's form, basic fields first, the rest behind a toggle.

    The toggle shows and hides a box: Accordion and Tab do not work everywhere (Colab).
    """

    def __init__(self, recipe: Recipe, name: str, preset: str | None, on_edit: Callable[[object], None]) -> None:
        """Make the widgets; `on_edit` is called after every edit of a field or of the script's `name`."""
        presets = [("none", NONE), *((key, key) for key in recipe.presets)]
        self.preset = widgets.Dropdown(description="preset", options=presets, value=preset or NONE, **INPUT_SHAPE)
        self.preset_note = note_widget()
        self.reset = button("Reset", "undo", "Restore the values of the preset")
        self.name = widgets.Text(value=name, description="script", placeholder="name of the script", **INPUT_SHAPE)
        self.name.observe(on_edit, names="value")
        self.name_row = row(self.name, note_widget())
        self.gpus = GPUField([(device.index, _described(device)) for device in devices()], on_edit)
        self.cluster = ClusterField(lambda change: self._follow_where(), on_edit)
        self._rows: dict[str, FieldRow | GPUField | ClusterField] = {"gpus": self.gpus, "cluster": self.cluster}
        for cls in (recipe.config_class, Launch, Slurm, StopOn):
            self._rows |= {
                name: FieldRow(field, on_edit, **_SHAPES.get(name, {}))
                for name, field in fields_of(cls).items()
                if name not in (*self._rows, "stop_on")
            }
        self.write = button("Write script", "pencil", "Write scripts/NAME.py")
        self.launch = button("Launch", "play", "Write the script if its values differ, then launch it", style="primary")
        self.load = button("Load from script", "upload", "Load the values of scripts/NAME.py into the form")
        self.reason = note_widget()
        self.message = widgets.HTML()
        self.panel = widgets.VBox()
        self._more = widgets.ToggleButton(tooltip="Settings that rarely change", layout={"width": "auto"})
        self._more.add_class("nbtools-more")
        self._here: list[widgets.Box] = []
        self._of_jobs: list[widgets.Box] = []
        self._basic = self._sections(recipe, basic=True)
        self._folded = widgets.VBox(self._sections(recipe, basic=False))
        self._more.observe(lambda change: self._fold(), names="value")
        self._fold()
        self._title = widgets.HTML(f"{STYLE}<h3>{escape(recipe.title)}</h3><p>{escape(recipe.summary)}</p>")
        self._follow_where()

    def arrange(self, summary: widgets.DOMWidget, question: widgets.DOMWidget) -> widgets.VBox:
        """Return the whole form."""
        values = [self._title, row(self.preset, self.preset_note, self.reset), self.name_row, *self._basic]
        buttons = row(self.write, self.launch, self.load, self.reason)
        below = [summary, buttons, question, self.message, self.panel]
        form = widgets.VBox([*values, self._more, self._folded, *below])
        form.add_class("nbtools-form")
        answers_beside_cells(form)  # without support in ipykernel a click waits for the running cell
        return form

    def _sections(self, recipe: Recipe, *, basic: bool) -> list[widgets.DOMWidget]:
        """Return the rows under their headings; those of one choice of `where` are in boxes."""
        cls = recipe.config_class
        own = [name for name in cls.model_fields if name not in TrainConfig.model_fields]
        groups: list[tuple[str, type[Settings], Sequence[str]]] = [
            ("Data and model", cls, own),
            ("Training", cls, list(TrainConfig.model_fields)),
            (
                "Processes and devices",
                Launch,
                ["cluster", *(name for name in Launch.model_fields if name not in ("cluster", "stop_on", "on_end"))],
            ),
            ("Stop on", StopOn, list(StopOn.model_fields)),
            ("At the end", Launch, ["on_end"]),
            ("Slurm job", Slurm, list(Slurm.model_fields)),
        ]
        sections: list[widgets.DOMWidget] = []
        for heading, settings, names in groups:
            rows = [
                self._box(self._here, [self._rows[name].widget]) if name in _ONLY_HERE else self._rows[name].widget
                for name in names
                if settings.is_basic(name) is basic
            ]
            if not rows:
                continue
            title = widgets.HTML(f"<h4>{escape(heading)}</h4>")
            if settings is Slurm:
                nodes = [self._rows["nnodes"].widget] if basic else []
                sections.append(self._box(self._of_jobs, [title, *nodes, *rows]))
            else:
                sections += [title, *rows]
        return sections

    @staticmethod
    def _box(boxes: list[widgets.Box], children: Sequence[widgets.DOMWidget]) -> widgets.Box:
        boxes.append(widgets.VBox(children, layout={"overflow": "visible"}))
        return boxes[-1]

    @property
    def preset_name(self) -> str | None:
        """The chosen preset; None without one."""
        return self.preset.value or None

    @property
    def fields(self) -> dict[str, FieldRow | GPUField | ClusterField]:
        """The rows that apply where the run runs, by field: with Slurm, its own instead of the GPUs' indices."""
        unused = {"gpus"} if self.is_for_slurm else {*Slurm.model_fields}
        return {name: field for name, field in self._rows.items() if name not in unused}

    @property
    def is_for_slurm(self) -> bool:
        """Whether the run is to be a job."""
        return self.cluster.value == SLURM

    def _follow_where(self) -> None:
        for boxes, is_shown in ((self._here, not self.is_for_slurm), (self._of_jobs, self.is_for_slurm)):
            for box in boxes:
                box.layout.display = "" if is_shown else "none"
        for name, words in IN_A_JOB.items():
            line, field = self._rows[name], fields_of(Launch)[name]
            assert isinstance(line, FieldRow)
            line.field = field.replace(unit=words[0], help=words[1]) if self.is_for_slurm else field
            line.mark()

    def _fold(self) -> None:
        self._folded.layout.display = "" if self._more.value else "none"
        self._more.icon = "chevron-up" if self._more.value else "chevron-down"
        self._more.description = "Fewer settings" if self._more.value else "More settings"


_SHAPES: dict[str, dict[str, Any]] = {"preamble": {"num_lines": 4}, "on_end": {"is_command": True}}
"""Inputs of fields whose value is lines of text, or a command."""
_ONLY_HERE = ("gpus", "nnodes")
"""Rows of `Launch` that have no place there with Slurm, whose section shows the number of nodes itself."""


def _described(device: Device) -> str:
    free = (device.memory_total_bytes - device.memory_used_bytes) / 2**30
    held = f", used by {', '.join(map(str, device.holders))}" if device.holders else ""
    return f"GPU {device.index}: {device.name}, {free:.0f} of {device.memory_total_bytes / 2**30:.0f} GiB free{held}"
