"""Samples and charts of a run below its curves, as widgets; frames have a slider and a play button.

Both are core widgets and work in the browser alone.
"""

from collections.abc import Sequence
from pathlib import Path

import ipywidgets as widgets

from nbtools.notebook.html_parts import FONT, MUTED, NO_FORMULAS, details_html
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.plots.media_html import state_html, static_html, title_html
from nbtools.notebook.widgets import answers_beside_cells, close_tree, html_widget, in_column, make_control
from nbtools.rundir import media
from nbtools.rundir.json_files import file_stamp

_FRAME_MS = 250


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

    def html(self) -> str:
        """Return everything as HTML without widgets, for the output of a run that has ended."""
        if not self._parts:
            return ""
        parts = "".join(part.html for part in self._parts.values())
        body = details_html("<b>Samples and charts</b>", parts, is_open=True)
        return f"<div class='{NO_FORMULAS}' style='max-width:{WIDTH}px'>{body}</div>"


# --- parts ----------------------------------------------------------------------------------------


class _Part:
    """Widget of one media item."""

    def __init__(self) -> None:
        self.html = ""
        """HTML of the item for a page without a kernel."""
        self._content = html_widget()
        self.widget: widgets.Widget = self._content
        self._shown: media.MediaItem | None = None

    def show(self, item: media.MediaItem, earlier: Sequence[media.MediaItem]) -> None:
        """Show a newer showing; a chart draws the earlier ones behind it."""
        if self._shown != item:
            self._shown = item
            self.html = static_html(item, earlier=earlier)
            self._update(item)

    def _update(self, item: media.MediaItem) -> None:
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
        self.widget = in_column(self._heading, row, self._content)

    def _update(self, item: media.MediaItem) -> None:
        was_at_end = self._slider.value >= self._slider.max
        self._heading.value = title_html(item)
        self._play.max = self._slider.max = len(item.frames) - 1
        if was_at_end:  # a frame that the user chose in the middle stays
            self._play.value = self._slider.value = self._slider.max
        self._draw()

    def close(self) -> None:
        self._link.close()
        super().close()

    def _draw(self) -> None:
        if (item := self._shown) is not None:
            self._content.value = state_html(item, min(self._slider.value, len(item.frames) - 1))
