"""The form's widgets and their layout; `form` connects them to the config."""

from collections.abc import Callable, Sequence
from html import escape

import ipywidgets as widgets

from nbtools.config import Launch, Settings, TrainConfig
from nbtools.machine.devices import Device, devices
from nbtools.notebook.form.fields import INPUT_SHAPE, STYLE, Field, GPUField, note_widget, row
from nbtools.notebook.form.overwrite import button
from nbtools.notebook.subshell import answers_beside_cells
from nbtools.recipes import Recipe


class FormLayout:
    """The rows, tiles and buttons of one recipe's form, basic fields first, the rest behind a toggle.

    The toggle shows and hides a box: Accordion and Tab do not work everywhere (Colab).
    """

    def __init__(self, recipe: Recipe, name: str, preset: str | None, on_edit: Callable[[object], None]) -> None:
        """Make the widgets; `on_edit` is called after every edit of a field or of the script's `name`."""
        presets = [("none", None), *((key, key) for key in recipe.presets)]
        self.preset = widgets.Dropdown(description="preset", options=presets, value=preset, **INPUT_SHAPE)
        self.preset_note = note_widget()
        self.reset = button("Reset", "undo", "Restore the values of the preset")
        self.name = widgets.Text(value=name, description="script", placeholder="name of the script", **INPUT_SHAPE)
        self.name.observe(on_edit, names="value")
        self.name_row = row(self.name, note_widget())
        self.fields: dict[str, Field | GPUField] = {}
        gpus = [(device.index, _described(device)) for device in devices()]
        for cls in (recipe.config_class, Launch):
            for field in cls.model_fields:
                self.fields[field] = GPUField(gpus, on_edit) if field == "gpus" else Field(cls, field, on_edit)
        self.write = button("Write script", "pencil", "Write scripts/NAME.py")
        self.launch = button("Launch", "play", "Write the script if its values differ, then launch it", style="primary")
        self.load = button("Load from script", "upload", "Load the values of scripts/NAME.py into the form")
        self.reason = note_widget()
        self.message = widgets.HTML()
        self.panel = widgets.VBox()
        self._more = widgets.ToggleButton(tooltip="Settings that rarely change", layout={"width": "auto"})
        self._more.add_class("nbtools-more")
        self._folded = widgets.VBox(self._sections(recipe, basic=False))
        self._more.observe(lambda change: self._fold(), names="value")
        self._fold()
        self._title = widgets.HTML(f"{STYLE}<h3>{escape(recipe.title)}</h3><p>{escape(recipe.summary)}</p>")
        self._basic = self._sections(recipe, basic=True)

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
        cls = recipe.config_class
        own = [name for name in cls.model_fields if name not in TrainConfig.model_fields]
        groups: list[tuple[str, type[Settings], Sequence[str]]] = [
            ("Data and model", cls, own),
            ("Training", cls, list(TrainConfig.model_fields)),
            ("Processes and devices", Launch, list(Launch.model_fields)),
        ]
        sections: list[widgets.DOMWidget] = []
        for heading, settings, names in groups:
            rows = [self.fields[name].widget for name in names if settings.is_basic(name) is basic]
            if rows:
                sections += [widgets.HTML(f"<h4>{escape(heading)}</h4>"), *rows]
        return sections

    def _fold(self) -> None:
        self._folded.layout.display = "" if self._more.value else "none"
        self._more.icon = "chevron-up" if self._more.value else "chevron-down"
        self._more.description = "Fewer settings" if self._more.value else "More settings"


def _described(device: Device) -> str:
    free = (device.memory_total_bytes - device.memory_used_bytes) / 2**30
    held = f", used by {', '.join(map(str, device.holders))}" if device.holders else ""
    return f"GPU {device.index}: {device.name}, {free:.0f} of {device.memory_total_bytes / 2**30:.0f} GiB free{held}"
