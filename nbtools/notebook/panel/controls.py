"""The widgets of a panel and their layout; `panel` connects them to the run."""

from typing import Any

import ipywidgets as widgets

from nbtools.notebook.panel import html
from nbtools.notebook.panel.media import MediaView
from nbtools.notebook.plots.figure import UNTITLED_HEIGHT, WIDTH
from nbtools.notebook.plots.layout import X
from nbtools.notebook.subshell import answers_beside_cells

LATEST = ""
"""Value of the choice "latest verified"; a drop-down uses None for "nothing chosen"."""
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Controls:
    """Core widgets only, each with a description and a tooltip, styled by the notebook's theme."""

    def __init__(self, dark: bool, log: bool, smoothing: float, x: X) -> None:
        self.header, self.progress, self.news, self.failure, self.ranks = (_text() for _ in range(5))
        self.tail, self.losses, self.trouble, self.note, self.changing, self.taken = (_text() for _ in range(6))
        # Explicit width and height keep the page from jumping; hidden until the first drawing.
        layout = widgets.Layout(max_width="100%", height="auto", visibility="hidden")
        self.image = widgets.Image(format="png", width=WIDTH, height=UNTITLED_HEIGHT, layout=layout)
        self.log = widgets.ToggleButton(
            value=log,
            description="Log scale",
            tooltip="Logarithmic y axes for loss and gradient norm",
            layout=_width(90),
        )
        self.smoothing = widgets.FloatSlider(
            value=smoothing,
            max=0.99,
            step=0.01,
            description="Smoothing",
            tooltip="Weight of earlier values in the bold lines; the thin lines are the raw values",
            continuous_update=False,
            style={"description_width": "76px"},
            layout=_width(260),
        )
        self.x = widgets.Dropdown(
            options=["step", "samples", "time"],
            value=x,
            description="x axis",
            tooltip="Unit of the x axis",
            style={"description_width": "45px"},
            layout=_width(145),
        )
        self.span = widgets.FloatRangeSlider(
            value=(0, 100),
            step=0.5,
            description="Range %",
            tooltip="Share of the x axis to show",
            continuous_update=False,
            readout_format=".0f",
            style={"description_width": "60px"},
            layout=_width(275),
        )
        self.dark = widgets.ToggleButton(
            value=dark, description="Dark", tooltip="Dark background for a dark notebook", layout=_width(64)
        )
        self.stop = widgets.Button(
            description="Stop",
            icon="stop",
            button_style="warning",
            tooltip="Save a checkpoint, then end every process of this run",
            layout=_width(92),
        )
        self.stacks = widgets.Button(
            description="Stacks",
            icon="list",
            tooltip="Show the Python stack of every rank; the training continues",
            layout=_width(92),
        )
        self.checkpoint = widgets.Dropdown(
            options=[("no checkpoint yet", LATEST)],
            description="Checkpoint",
            tooltip="Checkpoint that Resume starts from",
            disabled=True,
            style={"description_width": "80px"},
            layout=_width(290),
        )
        self.changes = widgets.Text(
            placeholder="learning_rate=1e-4 seed=1",
            description="Changes",
            tooltip="field=value pairs, separated by spaces; the new run gets its own script with them",
            disabled=True,
            style={"description_width": "62px"},
            layout=_width(300),
        )
        self.resume = widgets.Button(
            description="Resume",
            icon="play",
            disabled=True,
            tooltip="Start a new run from this checkpoint, with these changes, and show it in this panel",
            layout=_width(100),
        )
        self.options = (self.log, self.smoothing, self.x, self.span, self.dark)
        self.actions = (self.stop, self.stacks, self.checkpoint, self.changes, self.resume)
        row, actions = _row(*self.options), _row(*self.actions)
        self.upper = _column(self.header, self.progress, self.news, self.ranks, self.failure)
        self.shown = MediaView()
        self.lower = _column(row, actions, self.changing, self.note, self.taken, self.losses, self.trouble, self.tail)
        self.whole = _column(self.upper, self.image, self.shown.widget, self.lower)

    def answer_beside_cells(self) -> bool:
        """Let every control answer while a cell runs; returns False if this ipykernel cannot."""
        return all([answers_beside_cells(w) for w in (*self.options, *self.actions)])  # noqa: C419 - every one

    def show_playable(self, is_shown: bool) -> None:
        """Show the parts with a play button above the controls, for media that have become static, or hide them."""
        others = tuple(child for child in self.lower.children if child is not self.shown.playable)
        is_shown = is_shown and bool(self.shown.playable.children)
        self.lower.children = (self.shown.playable, *others) if is_shown else others

    def close(self) -> None:
        """Remove every widget from the page."""
        self.shown.close()
        for box in (*self.lower.children, *self.upper.children, *self.whole.children, self.whole):
            for child in getattr(box, "children", ()):
                child.close()
            box.close()


def view_bundle(widget: widgets.Widget, text: str) -> dict[str, Any]:
    """Return the output that shows a widget, with `text` for a front end without widgets."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {WIDGET_VIEW: view, "text/plain": text}


def put(widget: widgets.HTML, value: str) -> None:
    """Assign a text if it differs; an equal one sends no message."""
    if widget.value != value:
        widget.value = value


def _text() -> widgets.HTML:
    text = widgets.HTML(layout=widgets.Layout(width="100%", margin="0"))
    for name in html.NO_FORMULAS.split():
        text.add_class(name)
    return text


def _width(pixels: int) -> widgets.Layout:
    return widgets.Layout(width=f"{pixels}px")


def _row(*children: widgets.Widget) -> widgets.Box:
    return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap", align_items="center", width="100%"))


def _column(*children: widgets.Widget) -> widgets.Box:
    return widgets.VBox(children, layout=widgets.Layout(width="100%", max_width=f"{WIDTH}px"))
