"""The successive states of a text or of a drawing made of characters: as HTML, and as a picture."""

import html
import io
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from IPython.display import Image
from matplotlib.font_manager import FontProperties, findfont
from PIL import Image as Picture
from PIL import ImageDraw, ImageFont

from nbtools.notebook.plots.charts import INK

MASKED = "\N{LIGHT SHADE}"
"""Character for a masked token."""

_MOST_CHARACTERS = 4000
_MOST_PICTURE_COLUMNS = 96
"""Columns of a running text; a drawing is never cut at its right edge."""
_DRAWINGS_PER_ROW = 4
_NUMBER_COLUMNS = 5
"""Columns at the left of a running text that hold the frame's number."""
_WIDTH, _HEIGHT = 9, 20
"""Size of a character cell in pixels."""
_PAPER = {"masked": f"{INK}66", "new": "#f5a62340"}
_CELL_CSS = {
    "masked": "background:#8886;color:transparent;border-radius:2px;margin:0 1px 0 0",
    "new": "background:#f5a62366;border-radius:2px",
}
_TEXT_CSS = "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:2px 0;line-height:1.5"
_PRE_CSS = "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:13px;line-height:1.25;margin:0"


def picked(frames: Sequence[str], most: int) -> list[tuple[int, str]]:
    """Return at most `most` of the frames with their numbers, the first and the last among them."""
    if len(frames) <= most:
        return list(enumerate(frames))
    numbers = [round(index * (len(frames) - 1) / (most - 1)) for index in range(most)]
    return [(number, frames[number]) for number in numbers]


def frames_html(frames: Sequence[str], most: int, *, keep_lines: bool) -> str:
    """Return at most `most` frames as HTML: masks as blocks, and marks on what differs from the one before.

    With `keep_lines` each is a drawing, side by side; otherwise one row of text per frame.
    """
    shown = picked(frames, most)
    before = ["", *(frame for _, frame in shown)]
    parts = [frame_html(number, frame, was, keep_lines) for (number, frame), was in zip(shown, before, strict=False)]
    if not keep_lines:
        return "".join(parts)
    cells = (f"<div style='padding:2px 14px 6px 0'>{part}</div>" for part in parts)
    return f"<div style='display:flex;flex-wrap:wrap'>{''.join(cells)}</div>"


def frame_html(number: int, frame: str, before: str, keep_lines: bool) -> str:
    """Return one frame as HTML, with its number, and marks where it differs from the frame before."""
    rows = [""] * len(_lines(frame, keep_lines))
    for row, _, character, kind in _cells(frame, before, keep_lines):
        text = html.escape(character)
        rows[row] += f"<span style='{_CELL_CSS[kind]}'>{text}</span>" if kind else text
    if keep_lines:
        return f"<pre style='{_PRE_CSS}'><span style='opacity:.6'>{number}</span>\n{'<br>'.join(rows)}</pre>"
    label = f"<span style='display:inline-block;width:3em;opacity:.6'>{number}</span>"
    return f"<div style='{_TEXT_CSS}'>{label}{rows[0]}</div>"


def as_picture(frames: Sequence[str], most: int = 8, *, keep_lines: bool = False) -> Image:
    """Draw what `frames_html` shows as a PNG, for a reader without a kernel; text is cut after 96 characters."""
    longest = _MOST_CHARACTERS if keep_lines else _MOST_PICTURE_COLUMNS
    shown = [(number, frame[:longest]) for number, frame in picked(frames, most)] or [(0, "")]
    across = min(len(shown), _DRAWINGS_PER_ROW) if keep_lines else 1
    every = [_lines(frame, keep_lines) for _, frame in shown]
    columns, rows = max(len(line) for lines in every for line in lines), max(map(len, every))
    columns, rows = (columns + 3, rows + 2) if keep_lines else (columns + _NUMBER_COLUMNS, rows)
    size = (_WIDTH * (columns * across + 1), _HEIGHT * (rows * -(-len(shown) // across) + 1))
    picture = Picture.new("RGBA", size, f"{INK}00")  # edges of letters blend with the ink
    draw, before, file = ImageDraw.Draw(picture), "", findfont(FontProperties(family=["DejaVu Sans Mono"]))
    font = ImageFont.truetype(file, 15, layout_engine=ImageFont.Layout.BASIC)
    for place, (number, frame) in enumerate(shown):
        column, row = 1 + columns * (place % across), 0.5 + rows * (place // across)
        draw.text((_WIDTH * column, _HEIGHT * (row + 0.5)), str(number), INK, font, anchor="lm")
        left, top = (column, row + 1) if keep_lines else (column + _NUMBER_COLUMNS - 1, row)
        for down, right, character, kind in _cells(frame, before, keep_lines):
            x, y = _WIDTH * (left + right), round(_HEIGHT * (top + down))
            if kind:
                draw.rectangle((x, y + 1, x + _WIDTH - 1, y + _HEIGHT - 2), _PAPER[kind])
            if kind != "masked":
                draw.text((x, y + _HEIGHT // 2), character, INK, font, anchor="lm")
        before = frame
    png = io.BytesIO()
    picture = picture.quantize(32, method=Picture.Quantize.FASTOCTREE, dither=Picture.Dither.NONE)
    picture.save(png, "PNG", compress_level=9)
    return Image(png.getvalue(), format="png")  # type: ignore[no-untyped-call]


def _lines(frame: str, keep_lines: bool) -> list[str]:
    """The lines of a drawing; a running text is one line, in which line breaks are arrows."""
    one_line = frame.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")
    return frame[:_MOST_CHARACTERS].split("\n") if keep_lines else [one_line]


def _cells(frame: str, before: str, keep_lines: bool) -> Iterator[tuple[int, int, str, str]]:
    """Yield row, column, character and kind of every cell: "masked", "new" if it differs from `before`, or ""."""
    lines = zip(_lines(frame, keep_lines), chain(_lines(before, keep_lines), repeat("")), strict=False)
    for row, (line, earlier) in enumerate(lines):
        was = earlier if keep_lines else _aligned(earlier, line)
        for column, character in enumerate(line):
            is_new = before and was[column : column + 1] != character and not (keep_lines and character.isspace())
            kind = "masked" if character == MASKED else "new" if is_new else ""
            # An unprintable character would change its neighbours or take no room.
            yield row, column, character if character.isprintable() else "\N{MIDDLE DOT}", kind


def _aligned(before: str, line: str) -> str:
    """Return `before` with each of its words at the place of the same word of `line`, if both have as many words.

    A word that takes the place of a mask moves all that follow it, which did not change.
    """
    words, earlier = line.split(" "), before.split(" ")
    if len(line) == len(before) or len(words) != len(earlier):
        return before
    return " ".join(word if word == was else "\0" * len(word) for word, was in zip(words, earlier, strict=True))
