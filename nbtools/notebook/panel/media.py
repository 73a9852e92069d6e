"""Samples and charts of a run below its curves: as widgets while a kernel runs, and as static HTML.

`html.literal` or `frames.frame_html` escapes every text. Frames have a slider and a play button, which are core widgets
and work in the browser alone.
"""

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import ipywidgets as widgets

from nbtools.notebook.panel.html import NO_FORMULAS, literal
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.plots.frames import frame_html, frames_html
from nbtools.notebook.plots.line_chart import HEIGHT, draw_series
from nbtools.notebook.subshell import answers_beside_cells
from nbtools.rundir import media
from nbtools.rundir.media import MediaItem

HEADING = "Samples and charts"
_FRAME_MS = 250
_MOST_ROWS, _MOST_COLUMNS, _LONGEST_CELL = 20, 12, 300
_LONGEST_TEXT, _LONGEST_FRAME = 5000, 2000
_NUM_STATES, _NUM_DRAWINGS = 5, 8
"""Frames of a text and of a drawing in the static HTML."""
_FONT = (
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.45;"
    "color:var(--jp-ui-font-color1,inherit);"
)
_BORDER = "1px solid var(--jp-border-color2,#d0d7de)"
_MONO = "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px;line-height:1.45;"


class MediaView:
    """The media of a run below its curves; an item is drawn again only after a newer showing."""

    def __init__(self) -> None:
        self.widget = widgets.VBox(layout=widgets.Layout(width="100%", max_width=f"{WIDTH}px", display="none"))
        self.playable = widgets.VBox(layout=widgets.Layout(width="100%"))
        """The parts with a play button, for a panel whose other parts have become static."""
        self._fold = widgets.ToggleButton(
            value=True, description=HEADING, icon="chevron-down", tooltip="Show or hide samples and charts"
        )
        self._fold.layout = widgets.Layout(width="auto", align_self="flex-start")
        self._fold.observe(lambda _: self._arrange(), "value")
        answers_beside_cells(self._fold)
        self._stamp: object = None
        self._shown: list[MediaItem] = []
        self._earlier: dict[str, list[MediaItem]] = {}
        """Earlier showings of each chart."""
        self._dark = False
        self._parts: dict[str, _Part] = {}

    def look(self, folder: Path, *, dark: bool) -> bool:
        """Draw the newer showings in a run's media folder; returns whether there were any."""
        stamp = (dark, folder, *_stamps(folder))
        if stamp == self._stamp:
            return False
        self._stamp, self._dark = stamp, dark
        self._shown = media.latest(folder)
        curves = [item.name for item in self._shown if item.kind == "series"]
        self._earlier = {name: media.read(folder, name)[:-1] for name in curves}
        names = [item.name for item in self._shown]
        for name in [name for name in self._parts if name not in names]:
            self._parts.pop(name).close()
        for item in self._shown:
            part = self._parts.get(item.name)
            if part is None or part.kind != item.kind:
                if part is not None:
                    part.close()
                part = self._parts[item.name] = _PARTS[item.kind]()
            part.show(item, dark, self._earlier.get(item.name, ()))
        self._arrange()
        return True

    def html(self) -> str:
        """Return everything as HTML without widgets, for the output of a run that has ended."""
        if not self._shown:
            return ""
        earlier = self._earlier
        body = "".join(static_html(item, dark=self._dark, earlier=earlier.get(item.name, ())) for item in self._shown)
        return (
            f"<div class='{NO_FORMULAS}' style='max-width:{WIDTH}px'><details open style='{_FONT}'>"
            f"<summary style='cursor:pointer'><b>{HEADING}</b></summary>{body}</details></div>"
        )

    def close(self) -> None:
        """Remove every widget from the page."""
        for part in self._parts.values():
            part.close()
        for widget in (self._fold, self.playable, self.widget):
            widget.close()

    def _arrange(self) -> None:
        """Order the parts by name; hide the widget without parts."""
        is_open = self._fold.value
        self._fold.icon = "chevron-down" if is_open else "chevron-right"
        parts = [self._parts[item.name].widget for item in self._shown] if is_open else []
        children = (self._fold, *parts) if self._shown else ()
        if self.widget.children != children:
            self.widget.children = children
        self.widget.layout.display = "" if children else "none"
        self.playable.children = [self._parts[item.name].widget for item in self._shown if item.kind == "frames"]


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    for name in media.names(folder):
        try:
            status = (folder / f"{name}.jsonl").stat()
        except OSError:
            continue
        found.append((name, status.st_mtime_ns, status.st_size))
    return found


# --- parts ----------------------------------------------------------------------------------------


class _Part(ABC):
    """One item as a widget."""

    kind = ""

    def __init__(self) -> None:
        self._content = widgets.HTML(layout=widgets.Layout(width="100%", margin="0"))
        for name in NO_FORMULAS.split():
            self._content.add_class(name)
        self.widget: widgets.Widget = self._content

    @abstractmethod
    def show(self, item: MediaItem, dark: bool, earlier: Sequence[MediaItem] = ()) -> None:
        """Show a newer showing; a chart draws the earlier ones behind it."""

    def _put(self, value: str) -> None:
        if self._content.value != value:
            self._content.value = value

    def close(self) -> None:
        """Remove it from the page."""
        for child in getattr(self.widget, "children", ()):
            for inner in getattr(child, "children", ()):
                inner.close()
            child.close()
        self.widget.close()


class _Text(_Part):
    kind = "text"

    def show(self, item: MediaItem, dark: bool, earlier: Sequence[MediaItem] = ()) -> None:
        self._put(_title(item) + text_html(item))


class _Table(_Part):
    kind = "table"

    def show(self, item: MediaItem, dark: bool, earlier: Sequence[MediaItem] = ()) -> None:
        self._put(_title(item) + table_html(item))


class _Frames(_Part):
    """The frames of a text or drawing, with a play button and a slider."""

    kind = "frames"

    def __init__(self) -> None:
        super().__init__()
        shape = {"min": 0, "max": 0, "value": 0}
        self._play = widgets.Play(interval=_FRAME_MS, tooltip="Play the frames in order", **shape)
        self._slider = widgets.IntSlider(
            description="Frame",
            tooltip="Frame to show",
            style={"description_width": "46px"},
            layout=widgets.Layout(width="420px", max_width="100%"),
            **shape,
        )
        self._link = widgets.jslink((self._play, "value"), (self._slider, "value"))
        self._slider.observe(lambda _: self._draw(), "value")
        answers_beside_cells(self._slider)
        answers_beside_cells(self._play)
        self._heading = widgets.HTML(layout=widgets.Layout(width="100%", margin="0"))
        for name in NO_FORMULAS.split():
            self._heading.add_class(name)
        row = widgets.HBox([self._play, self._slider], layout=widgets.Layout(flex_flow="row wrap"))
        self.widget = widgets.VBox([self._heading, row, self._content], layout=widgets.Layout(width="100%"))
        self._item: MediaItem | None = None

    def show(self, item: MediaItem, dark: bool, earlier: Sequence[MediaItem] = ()) -> None:
        if item == self._item:
            return
        was_at_end = self._item is None or self._slider.value >= self._slider.max
        self._item = item
        self._heading.value = _title(item)
        last = len(item.frames) - 1
        for control in (self._play, self._slider):
            control.max = last
        if was_at_end:  # a frame that the user chose in the middle stays
            self._play.value = self._slider.value = last
        self._draw()

    def close(self) -> None:
        self._link.close()
        super().close()

    def _draw(self) -> None:
        if self._item is not None:
            self._put(state_html(self._item, min(self._slider.value, len(self._item.frames) - 1)))


class _Series(_Part):
    """A chart whose x axis is not the step."""

    kind = "series"

    def __init__(self) -> None:
        super().__init__()
        layout = widgets.Layout(max_width="100%", height="auto")
        self._image = widgets.Image(format="png", width=WIDTH, height=HEIGHT, layout=layout)
        self.widget = widgets.VBox([self._content, self._image], layout=widgets.Layout(width="100%"))
        self._drawn: tuple[MediaItem, bool] | None = None

    def show(self, item: MediaItem, dark: bool, earlier: Sequence[MediaItem] = ()) -> None:
        if self._drawn != (item, dark):
            self._put(_title(item))
            self._image.value = draw_series(item, dark=dark, earlier=earlier)
            self._drawn = (item, dark)


_PARTS: dict[str, Callable[[], _Part]] = {part.kind: part for part in (_Text, _Table, _Frames, _Series)}


# --- HTML -----------------------------------------------------------------------------------------


def _title(item: MediaItem) -> str:
    return (
        f"<div style='{_FONT}margin:8px 0 3px'><b>{literal(item.title)}</b> "
        f"<span style='color:var(--jp-ui-font-color2,#6b7280)'>step {item.step:,}</span></div>"
    )


def text_html(item: MediaItem) -> str:
    """Return a text, cut after 5,000 characters."""
    return _boxed(literal(_cut(item.text, _LONGEST_TEXT)))


def state_html(item: MediaItem, number: int) -> str:
    """Return one frame, with marks on what differs from the one before, in the height of the longest frame."""
    frame, before = (_cut(item.frames[at], _LONGEST_FRAME) if at >= 0 else "" for at in (number, number - 1))
    body = frame_html(number, frame, before, item.keeps_lines)
    lines = 0 if item.keeps_lines else min(max(map(_num_lines, item.frames)), 12)
    return f"<div style='{_FONT}min-height:{1.6 * lines:.1f}em'>{body}</div>"


def _num_lines(frame: str) -> int:
    return 1 + len(frame) // 100


def table_html(item: MediaItem) -> str:
    """Return a table of the first 20 rows and the number of the others."""
    style = f"border-bottom:{_BORDER};padding:2px 10px 2px 0;text-align:left;vertical-align:top;overflow-wrap:anywhere"

    def row(cells: Sequence[str], tag: str) -> str:
        shown = [_cut(cell, _LONGEST_CELL) for cell in cells[:_MOST_COLUMNS]]
        return "<tr>" + "".join(f"<{tag} style='{style}'>{literal(cell)}</{tag}>" for cell in shown) + "</tr>"

    head = row(item.columns, "th")
    body = "".join(row(cells, "td") for cells in item.rows[:_MOST_ROWS])
    more = len(item.rows) - _MOST_ROWS
    note = f"<div style='{_FONT}'>… and {more:,} more rows: nbtools show RUN --media</div>" if more > 0 else ""
    table = f"<table style='{_FONT}{_MONO}border-collapse:collapse;margin:0'>{head}{body}</table>"
    return f"<div tabindex='0' style='overflow:auto;max-height:340px'>{table}</div>{note}"


def static_html(item: MediaItem, *, dark: bool, earlier: Sequence[MediaItem] = ()) -> str:
    """Return an item as HTML that needs no kernel; a chart has the earlier showings behind it."""
    if item.kind == "text":
        content = text_html(item)
    elif item.kind == "table":
        content = table_html(item)
    elif item.kind == "frames":
        frames = [_cut(frame, _LONGEST_FRAME) for frame in item.frames]
        content = frames_html(frames, _NUM_DRAWINGS if item.keeps_lines else _NUM_STATES, keep_lines=item.keeps_lines)
    else:
        data = base64.b64encode(draw_series(item, dark=dark, earlier=earlier)).decode()
        content = (
            f"<img src='data:image/png;base64,{data}' width='{WIDTH}' height='{HEIGHT}' "
            f"style='max-width:100%;height:auto' alt='{literal(item.title)}'>"
        )
    return _title(item) + content


def _boxed(text: str) -> str:
    style = f"{_FONT}{_MONO}border:{_BORDER};margin:0;padding:6px 8px;max-height:280px;overflow:auto"
    return f"<pre tabindex='0' style='{style};white-space:pre-wrap;overflow-wrap:anywhere'>{text}</pre>"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"
