"""The row of `Launch.gpus`, with a tick box per GPU of this machine."""

from collections.abc import Callable, Sequence

import ipywidgets as widgets

from nbtools.notebook.rows.field_rows import INPUT_SHAPE, LABEL_WIDTH, FormRow
from nbtools.script.field import Field


class GPUField(FormRow):
    """The row of `Launch.gpus`: CPU only, the first GPUs, or GPUs chosen by index."""

    def __init__(self, field: Field, gpus: Sequence[tuple[int, str]], on_edit: Callable[[object], None]) -> None:
        """Offer `gpus`, pairs of an index and a label; `on_edit` is called as by `FieldRow`."""
        self._gpus = dict(gpus)
        modes, tooltip = [("CPU only", "cpu"), ("first GPUs, or the CPU", "auto")], f"gpus: {field.help}"
        self._mode = widgets.Dropdown(description="gpus", options=modes, tooltip=tooltip, **INPUT_SHAPE)
        self._boxes: dict[int, widgets.Checkbox] = {}
        self._choice = widgets.VBox(layout={"margin": f"0 0 0 calc({LABEL_WIDTH} + 12px)", "display": "none"})
        self._on_edit = on_edit
        self._given: tuple[int, ...] = ()
        there = f"{len(gpus)} on this machine" if gpus else "none on this machine: the CPU is used"
        super().__init__(field.replace(help=there), self._mode)
        self.widget = widgets.VBox([self._line, self._choice], layout={"overflow": "visible"})
        for index, label in self._gpus.items():
            self._add_box(index, label)
        self._mode.observe(self._fold, names="value")
        self._mode.observe(on_edit, names="value")

    def _add_box(self, index: int, label: str) -> None:
        box = widgets.Checkbox(description=label, indent=False, layout={"width": "auto"})
        box.observe(self._on_edit, names="value")
        self._boxes[index] = box
        self._choice.children = tuple(self._boxes.values())
        if len(self._boxes) == 1:
            self._mode.options = [*self._mode.options, ("the GPUs ticked below", "chosen")]

    def _fold(self, _: object) -> None:
        self._choice.layout.display = "" if self._mode.value == "chosen" else "none"

    @property
    def is_for_cpu(self) -> bool:
        """Whether the choice is the CPU."""
        return bool(self._mode.value == "cpu")

    @property
    def value(self) -> tuple[int, ...] | None:
        """GPU indices, including absent GPUs; () for CPU only; None for the first GPUs, or the CPU without GPUs;
        ValueError if no GPU is ticked."""
        if self._mode.value != "chosen":
            return () if self._mode.value == "cpu" else None
        chosen = {index for index, box in self._boxes.items() if box.value}
        if not chosen:
            raise ValueError("tick at least one GPU, or choose CPU only")
        return self._given if chosen == {*self._given} else tuple(sorted(chosen))  # their order is that of the ranks

    @value.setter
    def value(self, value: tuple[int, ...] | None) -> None:
        self._given = value or ()
        for index in value or ():
            if index not in self._boxes:
                self._add_box(index, f"GPU {index}: not on this machine")
        for index, box in self._boxes.items():
            box.value = index in (value or ())
        self._mode.value = "chosen" if value else "auto" if value is None else "cpu"
