"""Samples and charts of a run below its curves, and anywhere else: as widgets while a kernel runs, and as static HTML.

`html.literal` or `frames.frame_html` escapes every text. Frames have a slider and a play button, which are core widgets
and work in the browser alone.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.errors import literal
from nbtools.notebook.html_parts import BORDER, FONT, MONO, MUTED, NO_FORMULAS, TEXT, details_html, table_html
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.plots.frames import as_picture, frame_html, frames_html
from nbtools.notebook.plots.line_chart import HEIGHT, draw_series
from nbtools.notebook.widgets import answers_beside_cells, close_tree, html_widget, make_control
from nbtools.rundir import media
from nbtools.rundir.json_files import file_stamp
from nbtools.rundir.media import MediaItem

_FRAME_MS = 250
_MOST_ROWS, _MOST_COLUMNS, _LONGEST_CELL = 20, 12, 300
_LONGEST_TEXT, _LONGEST_FRAME = 5000, 2000
_NUM_STATES, _NUM_DRAWINGS = 5, 8
"""Frames of a text and of a drawing in the static HTML."""
_FONT = FONT + TEXT


class MediaView:
    """The media of a run below its curves; an item is drawn again only after a newer showing."""

    def __init__(self) -> None:
        self._none = html_widget()
        self._none.value = f"<div style='{FONT}{MUTED}'>No samples yet: they appear with an evaluation.</div>"
        self.widget = widgets.VBox([self._none], layout=widgets.Layout(width="100%", max_width=f"{WIDTH}px"))
        self._stamp: object = None
        self._parts: dict[tuple[str, str], _Part] = {}

    def look(self, folder: Path) -> bool:
        """Draw the newer showings in a run's media folder; returns whether there were any."""
        stamp = (folder, [(name, file_stamp(folder / f"{name}.jsonl")) for name in media.names(folder)])
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        parts: dict[tuple[str, str], _Part] = {}
        for item in media.latest(folder):
            key = item.name, item.kind
            parts[key] = self._parts.get(key) or (FramesPart() if item.kind == "frames" else _Part())
            parts[key].show(item, media.read(folder, item.name)[:-1] if item.kind == "series" else ())
        for gone in self._parts.keys() - parts.keys():
            self._parts[gone].close()
        self._parts = parts
        self.widget.children = [part.widget for part in parts.values()] or [self._none]
        return True

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def html(self) -> str:
        """Return everything as HTML without widgets, for the output of a run that has ended."""
        if not self._parts:
            return ""
        parts = "".join(part.html for part in self._parts.values())
        body = details_html("<b>Samples and charts</b>", parts, is_open=True)
        return f"<div class='{NO_FORMULAS}' style='max-width:{WIDTH}px'>{body}</div>"


class ShownMedia:
    """Samples and charts in the output of a cell; it needs no kernel to stay there."""

    def __init__(self, items: Sequence[MediaItem]) -> None:
        self.items = tuple(items)

    def __repr__(self) -> str:
        return "\n".join(f"{item.kind}: {item.title}" for item in self.items)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return HTML, and a picture of the first chart or drawing for pages that show no HTML of a notebook."""
        body = "".join(static_html(item) for item in self.items)
        bundle = {"text/html": f"<div class='{NO_FORMULAS}'>{body}</div>", "text/plain": repr(self)}
        picture = next((item for item in self.items if item.kind in ("frames", "series")), None)
        if picture is None:
            return bundle
        if picture.kind == "series":
            png = draw_series(picture)
        else:
            most = _NUM_DRAWINGS if picture.keeps_lines else _NUM_STATES
            png = as_picture(picture.frames, most, keep_lines=picture.keeps_lines).data
        return {**bundle, "image/png": base64.b64encode(png).decode()}


def show_media(*items: MediaItem) -> ShownMedia:
    """Show samples and charts of a run, or of your own, in the output of a cell.

    Args:
        items: what `nbtools.media.read` returned, or `media.text`, `table`, `frames` and `series` made.
    """
    return ShownMedia(items)


# --- parts ----------------------------------------------------------------------------------------


class _Part:
    """Widget of one media item."""

    def __init__(self) -> None:
        self.html = ""
        """HTML of the item for a page without a kernel."""
        self._content = html_widget()
        self.widget: widgets.Widget = self._content
        self._shown: MediaItem | None = None

    def show(self, item: MediaItem, earlier: Sequence[MediaItem]) -> None:
        """Show a newer showing; a chart draws the earlier ones behind it."""
        if self._shown != item:
            self._shown = item
            self.html = static_html(item, earlier=earlier)
            self._update(item)

    def _update(self, item: MediaItem) -> None:
        self._content.value = self.html

    def close(self) -> None:
        close_tree(self.widget)


class FramesPart(_Part):
    """The frames of a text or drawing, with a play button and a slider."""

    def __init__(self) -> None:
        super().__init__()
        shape = {"min": 0, "max": 0, "value": 0}
        self._play = widgets.Play(interval=_FRAME_MS, tooltip="Play the frames in order", **shape)
        self._slider = make_control(widgets.IntSlider, "Frame", width=420, label=46, tooltip="Frame to show", **shape)
        self._slider.layout.max_width = "100%"
        self._link = widgets.jslink((self._play, "value"), (self._slider, "value"))
        self._slider.observe(lambda _: self._draw(), "value")
        self._heading = html_widget()
        row = widgets.HBox([self._play, self._slider], layout=widgets.Layout(flex_flow="row wrap"))
        answers_beside_cells(row)
        self.widget = widgets.VBox([self._heading, row, self._content], layout=widgets.Layout(width="100%"))

    def _update(self, item: MediaItem) -> None:
        was_at_end = self._slider.value >= self._slider.max
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
        if (item := self._shown) is not None:
            self._content.value = state_html(item, min(self._slider.value, len(item.frames) - 1))


# --- HTML -----------------------------------------------------------------------------------------


def _title(item: MediaItem) -> str:
    step = f" <span style='{MUTED}'>step {item.step:,}</span>" if item.step or item.name else ""
    return f"<div style='{_FONT}margin:8px 0 3px'><b>{literal(item.title)}</b>{step}</div>"


def state_html(item: MediaItem, number: int) -> str:
    """Return one frame, with marks on what differs from the one before, in the height of the longest frame."""
    frame, before = (cut(item.frames[at], _LONGEST_FRAME) if at >= 0 else "" for at in (number, number - 1))
    body = frame_html(number, frame, before, item.keeps_lines)
    lines = 0 if item.keeps_lines else min(1 + max(map(len, item.frames)) // 100, 12)
    return f"<div style='{_FONT}min-height:{1.6 * lines:.1f}em'>{body}</div>"


def _table_html(item: MediaItem) -> str:
    """Return a table of the first 20 rows and the number of the others."""
    head, *body = (
        [literal(cut(cell, _LONGEST_CELL)) for cell in cells[:_MOST_COLUMNS]]
        for cells in (item.columns, *item.rows[:_MOST_ROWS])
    )
    more = len(item.rows) - _MOST_ROWS
    note = f"<div style='{_FONT}'>… and {more:,} more rows: nbtools show RUN --media</div>" if more > 0 else ""
    return f"<div tabindex='0' style='overflow:auto;max-height:340px'>{table_html(body, head, style=MONO)}</div>{note}"


def static_html(item: MediaItem, *, earlier: Sequence[MediaItem] = ()) -> str:
    """Return an item as HTML that needs no kernel; a chart has the earlier showings behind it."""
    if item.kind == "text":
        style = f"{_FONT}{MONO}border:{BORDER};margin:0;padding:6px 8px;max-height:280px;overflow:auto"
        text = literal(cut(item.text, _LONGEST_TEXT))
        content = f"<pre tabindex='0' style='{style};white-space:pre-wrap;overflow-wrap:anywhere'>{text}</pre>"
    elif item.kind == "table":
        content = _table_html(item)
    elif item.kind == "frames":
        frames = [cut(frame, _LONGEST_FRAME) for frame in item.frames]
        content = frames_html(frames, _NUM_DRAWINGS if item.keeps_lines else _NUM_STATES, keep_lines=item.keeps_lines)
    else:
        data = base64.b64encode(draw_series(item, earlier=earlier)).decode()
        content = (
            f"<img src='data:image/png;base64,{data}' width='{WIDTH}' height='{HEIGHT}' "
            f"style='max-width:100%;height:auto' alt='{literal(item.title)}'>"
        )
    return _title(item) + content


def cut(text: str, longest: int) -> str:
    """Return a text, or its beginning and its length."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"
