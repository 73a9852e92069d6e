"""Small ipywidgets that all views share, the outputs of cells that show them, and what the kernel tells of a cell."""

import shlex
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ipywidgets as widgets
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import publish_display_data

from nbtools.errors import ConfigError, shown
from nbtools.notebook.html_parts import NO_FORMULAS

Output = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A bundle of MIME types, and its metadata."""
_publish: Any = publish_display_data  # IPython's own has no types


class Displays(list[tuple[str, ...]]):
    """The cells that show something: the ids of each cell's outputs, which can be replaced."""

    def show(self, outputs: Sequence[Output]) -> None:
        """Add outputs to the current cell."""
        self.append(tuple(uuid.uuid4().hex for _ in outputs))
        for (bundle, metadata), display_id in zip(outputs, self[-1], strict=True):
            _publish(bundle, metadata, transient={"display_id": display_id})

    def replace(self, outputs: Sequence[Output], which: Iterable[int]) -> None:
        """Replace the outputs with these numbers in all cells."""
        for index in which:
            for ids in self:
                _publish(*outputs[index], transient={"display_id": ids[index]}, update=True)


def button(
    text: str, icon: str, tooltip: str, act: Callable[[], object] | None = None, *, style: str = ""
) -> widgets.Button:
    """Make a button as wide as its text; a click calls `act`; see `on_press`."""
    layout = {"width": "auto", "flex": "0 0 auto"}
    made = widgets.Button(description=text, icon=icon, tooltip=tooltip, button_style=style, layout=layout)
    if act is not None:
        on_press(made, act)
    return made


def on_press(pressed: widgets.Button, act: Callable[[], object]) -> None:
    """Call `act` after each click, but not after one on its way while the button was disabled."""
    pressed.on_click(lambda _: None if pressed.disabled else act())


def make_control(kind: type[widgets.DOMWidget], description: str, *, width: int, label: int = 0, **traits: Any) -> Any:
    """Make a control of a width in pixels, with a label of another one in front of it."""
    style = {"description_width": f"{label}px"} if label else {}
    return kind(description=description, layout={"width": f"{width}px"}, style=style, **traits)


def offer(choice: widgets.Dropdown, options: Sequence[tuple[str, Any]], otherwise: Any) -> None:
    """Offer options of a drop-down if their labels differ; a choice that is none of them becomes `otherwise`."""
    if [label for label, _ in options] != [label for label, _ in choice.options]:
        before = choice.value
        with choice.hold_sync():  # else the page shows the first option in between
            choice.options = options
            choice.value = before if before in [value for _, value in options] else otherwise


def html_widget() -> widgets.HTML:
    """Make a text as wide as the panel, whose dollar signs are no formulas."""
    return widgets.HTML(layout={"width": "100%", "margin": "0"}, _dom_classes=tuple(NO_FORMULAS.split()))


def in_row(*children: widgets.Widget) -> widgets.Box:
    """Put widgets side by side in the whole width."""
    return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap", align_items="center", width="100%"))


def in_column(*children: widgets.Widget) -> widgets.VBox:
    """Put widgets below each other in the whole width."""
    return widgets.VBox(children, layout={"width": "100%"})


def note_widget() -> widgets.HTML:
    """Make the text beside an input."""
    return widgets.HTML(layout={"flex": "1 1 220px", "min_width": "0"}).add_class("nbtools-note")


def row(*children: widgets.DOMWidget) -> widgets.HBox:
    """Put an input and its note side by side; on a narrow page the note wraps below the input."""
    layout = {"flex_flow": "row wrap", "align_items": "center", "overflow": "visible"}
    return widgets.HBox(children, layout=layout).add_class("nbtools-row")


def view_bundle(widget: widgets.Widget, text: str | None = None) -> dict[str, Any]:
    """Return the output that shows a widget; without a `text` for other front ends, a stored notebook is without it."""
    bundle = {**widget._repr_mimebundle_(), "text/plain": text}
    return {kind: data for kind, data in bundle.items() if data is not None}


class Below:
    """The place below some controls for one view at a time, such as the panel of a run."""

    def __init__(self) -> None:
        self.widget = widgets.VBox()
        self.view: Any = None

    def show(self, view: Any) -> None:
        """Show a view in place of the one before, which is closed."""
        self.close()
        self.view, self.widget.children = view, (view.widget,)

    def close(self) -> None:
        """Close the view."""
        if self.view is not None:
            self.widget.children = ()
            self.view.close()
            self.view = None


def words_of(text: str) -> list[str]:
    """Return the words of a typed text, in which quotes keep spaces; ConfigError if one is not closed."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{shown(text)}: {error}; close it, or remove it") from error


def close_tree(widget: widgets.Widget) -> None:
    """Remove a widget and those inside it from the page."""
    for child in getattr(widget, "children", ()):
        close_tree(child)
    widget.close()
    for part in (getattr(widget, "layout", None), getattr(widget, "style", None)):
        if isinstance(part, widgets.Widget):  # the kernel keeps a model of each
            part.close()


def answers_beside_cells(control: widgets.Widget) -> bool:
    """Reply to a control's messages in the subshell that received them; returns whether it answers while a cell runs.

    ipykernel 7.4 replies in the shell that used the comm last, which a running cell may block; this undoes it for one
    comm, and for those of the controls inside. The API is private: without it the control answers after the cell.
    """
    for child in getattr(control, "children", ()):
        answers_beside_cells(child)
    comm = control.comm
    if not hasattr(comm, "_reply_subshell_for"):
        return not InteractiveShell.initialized()
    comm._reply_subshell_for = lambda data, default: default
    return True


def is_attended() -> bool:
    """Whether the cell was started in a page, which shows later changes of its outputs; nbclient allows no input."""
    return parent_message().get("content", {}).get("allow_stdin") is True


def parent_message() -> dict[str, Any]:
    """Return the message that started the cell; empty outside of a kernel."""
    kernel: Any = getattr(InteractiveShell.instance(), "kernel", None) if InteractiveShell.initialized() else None
    found: dict[str, Any] = kernel.get_parent() if hasattr(kernel, "get_parent") else {}
    return found
