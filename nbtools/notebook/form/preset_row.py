"""The row of a recipe's presets: the chosen one, why it may be out of reach, and a button that restores its values."""

from html import escape

import ipywidgets as widgets

from nbtools.errors import plural
from nbtools.notebook.background import Callback
from nbtools.notebook.form.field_list import Values, values_of
from nbtools.notebook.rows.field_rows import INPUT_SHAPE, NONE, FormRow
from nbtools.notebook.widgets import button
from nbtools.recipes import Preset, Recipe
from nbtools.script.field import Field


class PresetRow:
    """The choice of a preset."""

    def __init__(
        self, recipe: Recipe, chosen: str | None, num_gpus: int, on_choice: Callback, on_reset: Callback
    ) -> None:
        """Offer the presets of `recipe` on a machine with `num_gpus`; the callbacks take what a widget gives them."""
        self._recipe = recipe
        self._needs = {key: _need(preset, num_gpus) for key, preset in recipe.presets.items()}
        options = [("none", NONE), *((f"{key}: {need}" if need else key, key) for key, need in self._needs.items())]
        self._choice = widgets.Dropdown(description="preset", options=options, value=chosen or NONE, **INPUT_SHAPE)
        self._reset = button("Reset", "undo", "Restore the values of the preset", on_reset)
        self._row = FormRow(Field("preset"), self._choice, self._reset)
        self.widget = self._row.widget
        self._choice.observe(on_choice, names="value")

    @property
    def name(self) -> str | None:
        """The chosen preset; None without one."""
        return self._choice.value or None

    @property
    def need(self) -> str:
        """Why the chosen preset cannot be launched on this machine; empty if it can."""
        return self._needs.get(self._choice.value, "")

    @property
    def has_data(self) -> bool:
        """Whether the preset names its data."""
        return self.name is not None and "dataset" in self._recipe.presets[self.name].values

    @property
    def values(self) -> Values | None:
        """The values of the chosen preset by row."""
        return None if self.name is None else values_of(*self._recipe.preset(self.name))

    def show(self, num_changes: int) -> None:
        """Show what the preset is for, and how many values differ from it."""
        plus = f"<mark>+ {plural(num_changes, 'change')}</mark> " if num_changes else ""
        told = "choose a preset to start from" if self.name is None else self._recipe.presets[self.name].description
        self._row.note.value = plus + escape(told)
        self._reset.layout.display = "" if num_changes else "none"


def _need(preset: Preset, num_gpus: int) -> str:
    """Return why a preset is out of reach of this machine; empty if it is not."""
    wanted = 0 if preset.gpus == [] else preset.nproc_per_node or 1
    return f"needs {plural(wanted, 'GPU')}, this machine has {num_gpus or 'none'}" if wanted > num_gpus else ""
