"""Samples and charts of a run as static HTML: in the output of a cell, in a saved notebook, and in a report.

`html.literal` or `frames.frame_html` escapes every text.
"""

import base64
from collections.abc import Sequence
from typing import Any

from nbtools.errors import literal
from nbtools.notebook.html_parts import BORDER, FONT, MONO, MUTED, NO_FORMULAS, TEXT, table_html
from nbtools.notebook.plots.figure import WIDTH
from nbtools.notebook.plots.frames import as_picture, frame_html, frames_html
from nbtools.notebook.plots.line_chart import HEIGHT, draw_series
from nbtools.rundir.media import MediaItem

_MOST_ROWS, _MOST_COLUMNS, _LONGEST_CELL = 20, 12, 300
_LONGEST_TEXT, _LONGEST_FRAME = 5000, 2000
_NUM_STATES, _NUM_DRAWINGS = 5, 8
"""Frames of a text and of a drawing in the static HTML."""
_FONT = FONT + TEXT


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
        most, keeps = _NUM_DRAWINGS if picture.keeps_lines else _NUM_STATES, picture.keeps_lines
        is_chart = picture.kind == "series"
        png = draw_series(picture) if is_chart else as_picture(picture.frames, most, keep_lines=keeps).data
        return {**bundle, "image/png": base64.b64encode(png).decode()}


def show_media(*items: MediaItem) -> ShownMedia:
    """Show samples and charts of a run, or of your own, in the output of a cell.

    Args:
        items: what `nbtools.media.read` returned, or `media.text`, `table`, `frames` and `series` made.
    """
    return ShownMedia(items)


def title_html(item: MediaItem) -> str:
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
    shown = (cells[:_MOST_COLUMNS] for cells in (item.columns, *item.rows[:_MOST_ROWS]))
    head, *body = ([literal(cut(cell, _LONGEST_CELL)) for cell in cells] for cells in shown)
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
    return title_html(item) + content


def cut(text: str, longest: int) -> str:
    """Return a text, or its beginning and its length."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"
