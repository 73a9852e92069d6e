"""The widgets of a panel and their layout; `panel` connects them to the run."""

from typing import Any

import ipywidgets as widgets

from nbtools.notebook.panel.html import LIVE
from nbtools.notebook.panel.media import MediaView, close_tree, html_widget
from nbtools.notebook.plots.figure import UNTITLED_HEIGHT, WIDTH
from nbtools.notebook.plots.layout import X

LATEST = ""
"""Value of the choice "latest verified"; a drop-down uses None for "nothing chosen"."""
_CONTROLS = {
    "Log scale": ("Logarithmic y axes for loss and gradient norm", 90, 0),
    "Smoothing": ("Weight of earlier values in the bold lines; the thin lines are the raw values", 260, 76),
    "x axis": ("Unit of the x axis", 145, 45),
    "Range %": ("Share of the x axis to show", 275, 60),
    "Dark": ("Dark background for a dark notebook", 64, 0),
    "Stop": ("Save a checkpoint, then end every process of this run", 92, 0),
    "Stacks": ("Show the Python stack of every rank; the training continues", 92, 0),
    "Checkpoint": ("Checkpoint that Resume starts from", 290, 80),
    "Changes": ("field=value pairs, separated by spaces; the new run gets its own script with them", 300, 62),
    "Resume": ("Start a new run from this checkpoint, with these changes, and show it in this panel", 100, 0),
}
"""Tooltip of each control, its width, and the width of its label if that is in front, in pixels."""


class Controls:
    """Core widgets only, each with a description and a tooltip, styled by the notebook's theme."""

    def __init__(self, dark: bool, log: bool, smoothing: float, x: X) -> None:
        self.header, self.progress, self.news, self.failure, self.ranks = (html_widget() for _ in range(5))
        self.tail, self.losses, self.trouble, self.note, self.changing, self.taken = (html_widget() for _ in range(6))
        # Explicit width and height keep the page from jumping; hidden until the first drawing.
        layout = widgets.Layout(max_width="100%", height="auto", visibility="hidden")
        self.image = widgets.Image(format="png", width=WIDTH, height=UNTITLED_HEIGHT, layout=layout)
        self.log = _control(widgets.ToggleButton, "Log scale", value=log)
        self.smoothing = _control(widgets.FloatSlider, "Smoothing", value=smoothing, max=0.99, step=0.01)
        self.x = _control(widgets.Dropdown, "x axis", options=["step", "samples", "time"], value=x)
        self.span = _control(widgets.FloatRangeSlider, "Range %", value=(0, 100), step=0.5, readout_format=".0f")
        self.smoothing.continuous_update = self.span.continuous_update = False
        self.dark = _control(widgets.ToggleButton, "Dark", value=dark)
        self.stop = _control(widgets.Button, "Stop", icon="stop", button_style="warning")
        self.stacks = _control(widgets.Button, "Stacks", icon="list")
        self.checkpoint = _control(widgets.Dropdown, "Checkpoint", options=[("no checkpoint", LATEST)])
        self.changes = _control(widgets.Text, "Changes", placeholder="learning_rate=1e-4 seed=1")
        self.resume = _control(widgets.Button, "Resume", icon="play")
        self.checkpoint.disabled = self.changes.disabled = self.resume.disabled = True
        self.options = (self.log, self.smoothing, self.x, self.span, self.dark)
        self.actions = (self.stop, self.stacks, self.checkpoint, self.changes, self.resume)
        row, actions = _row(*self.options), _row(*self.actions)
        self.upper = _column(self.header, self.progress, self.news, self.ranks, self.failure)
        self.shown = MediaView()
        self.lower = _column(row, actions, self.changing, self.note, self.taken, self.losses, self.trouble, self.tail)
        self.whole = _column(self.upper, self.image, self.shown.widget, self.lower)

        for box in (self.lower, self.whole):
            box.add_class(LIVE)

    def show_playable(self, is_shown: bool) -> None:
        """Show the parts with a play button above the controls, for media that have become static, or hide them."""
        others = tuple(child for child in self.lower.children if child is not self.shown.playable)
        is_shown = is_shown and bool(self.shown.playable.children)
        self.lower.children = (self.shown.playable, *others) if is_shown else others

    def close(self) -> None:
        """Remove every widget from the page."""
        self.shown.close()
        close_tree(self.whole)


def view_bundle(widget: widgets.Widget, text: str) -> dict[str, Any]:
    """Return the output that shows a widget, with `text` for a front end without widgets."""
    return {**widget._repr_mimebundle_(), "text/plain": text}


def _control(kind: type[widgets.DOMWidget], description: str, **traits: Any) -> Any:
    """Make a control with the tooltip and the widths in `_CONTROLS`."""
    tooltip, width, label_width = _CONTROLS[description]
    if label_width:
        traits["style"] = {"description_width": f"{label_width}px"}
    return kind(description=description, tooltip=tooltip, layout={"width": f"{width}px"}, **traits)


def _row(*children: widgets.Widget) -> widgets.Box:
    return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap", align_items="center", width="100%"))


def _column(*children: widgets.Widget) -> widgets.Box:
    return widgets.VBox(children, layout=widgets.Layout(width="100%", max_width=f"{WIDTH}px"))
