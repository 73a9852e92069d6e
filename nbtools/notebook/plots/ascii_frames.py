"""Shows a drawing made of characters as it changes: as HTML, as a picture, and moving."""

import base64
import html
import io
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from IPython.display import HTML, Image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont
from PIL import Image as Picture
from PIL import ImageColor, ImageDraw, ImageFont

from nbtools.notebook.plots.text_frames import picked

_LARGEST = 4000
"""Characters of a drawing that are shown."""
_NUM_COLUMNS = 4
_INK = "#1c1c1c"
_NEW = "#c2410c"
_PRE = "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:13px;line-height:1.25;margin:0;"
_NEW_CSS = "background:#f5a62366;border-radius:2px"


def as_html(frames: Sequence[str], most: int = 8) -> HTML:
    """Show drawings side by side, and marked what has changed since the one before."""
    return HTML(f"<div class='mathjax_ignore tex2jax_ignore'>{row_html(frames, most)}</div>")  # type: ignore[no-untyped-call]


def row_html(frames: Sequence[str], most: int) -> str:
    """Return at most so many of the drawings as HTML, side by side, each with its number."""
    shown = picked(frames, most)
    before = ["", *(frame for _, frame in shown)]
    cells = [
        f"<div style='padding:2px 14px 6px 0'>{as_block(number, frame, was)}</div>"
        for (number, frame), was in zip(shown, before, strict=False)
    ]
    return f"<div style='display:flex;flex-wrap:wrap'>{''.join(cells)}</div>"


def as_block(number: int, frame: str, before: str) -> str:
    """Return one drawing as HTML, with its number, and marks where it differs from the one before."""
    lines = frame[:_LARGEST].split("\n")
    rows = [""] * len(lines)
    for row, _, character, changed in _cells(lines, before.split("\n") if before else []):
        text = html.escape(character)
        rows[row] += f"<span style='{_NEW_CSS}'>{text}</span>" if changed and text.strip() else text
    label = f"<span style='opacity:.6'>{number}</span>"
    return f"<pre style='{_PRE}'>{label}\n{'<br>'.join(rows)}</pre>"


def as_picture(frames: Sequence[str], most: int = 8) -> Image:
    """Draw the same as a PNG, four drawings in a row."""
    shown = [(number, frame[:_LARGEST].split("\n")) for number, frame in picked(frames, most)]
    num_rows = -(-len(shown) // _NUM_COLUMNS) or 1
    wide = 3 + max((len(line) for _, lines in shown for line in lines), default=1)
    high = 3 + max((len(lines) for _, lines in shown), default=1)
    across = min(len(shown), _NUM_COLUMNS) or 1
    figure = Figure(figsize=(0.115 * wide * across, 0.19 * high * num_rows), dpi=110, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, wide * across - 1), ylim=(high * num_rows - 0.5, -1))
    axes.axis("off")
    font = FontProperties(family=["DejaVu Sans Mono"], size=9)
    before: list[str] = []
    for place, (number, lines) in enumerate(shown):
        left, top = wide * (place % _NUM_COLUMNS), high * (place // _NUM_COLUMNS)
        placed: dict[str, Any] = {"ha": "left", "va": "center", "fontproperties": font, "parse_math": False}
        axes.text(left, top, str(number), color="#888888", **placed)
        for row, column, character, changed in _cells(lines, before):
            axes.text(left + column, top + 1 + row, character, color=_NEW if changed else _INK, **placed)
        before = lines
    png = io.BytesIO()
    FigureCanvasAgg(figure).print_png(png, pil_kwargs={"compress_level": 9})  # type: ignore[no-untyped-call]
    return Image(png.getvalue(), format="png")  # type: ignore[no-untyped-call]


def as_animation(frames: Sequence[str], frame_ms: int = 120) -> HTML:
    """Show drawings one after the other, again and again, in a picture that moves without a kernel."""
    font = ImageFont.truetype(findfont(FontProperties(family=["DejaVu Sans Mono"])), 15)
    wide, high = round(font.getlength("m")), 20
    shown = [frame[:_LARGEST].split("\n") for frame in frames] or [[""]]
    size = (wide * (2 + max(len(line) for lines in shown for line in lines)), high * (1 + max(map(len, shown))))
    palette = Picture.new("P", (1, 1))
    palette.putpalette([value for ink in (_INK, _NEW) for share in range(8) for value in _on_white(ink, share / 7)])
    pictures = []
    before: list[str] = []
    for lines in shown:
        picture = Picture.new("RGB", size, "white")
        draw = ImageDraw.Draw(picture)
        for row, column, character, changed in _cells(lines, before):
            place = (wide * (1 + column), high * row + high // 2)
            draw.text(place, character, fill=_NEW if changed else _INK, font=font)
        pictures.append(picture.quantize(palette=palette, dither=Picture.Dither.NONE))
        before = lines
    gif = io.BytesIO()
    durations = [frame_ms] * (len(pictures) - 1) + [max(frame_ms, 1500)]  # the end stays a while
    pictures[0].save(gif, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0)
    data = base64.b64encode(gif.getvalue()).decode()
    return HTML(  # type: ignore[no-untyped-call]
        f"<img src='data:image/gif;base64,{data}' width='{size[0]}' height='{size[1]}' "
        f"style='max-width:100%;height:auto' alt='{len(frames)} drawings, one after the other'>"
    )


def _on_white(colour: str, share: float) -> list[int]:
    """Return red, green and blue of a colour that covers this share of white paper, as at the edge of a letter."""
    return [round(255 - share * (255 - value)) for value in ImageColor.getrgb(colour)]


def _cells(lines: Sequence[str], before: Sequence[str]) -> Iterator[tuple[int, int, str, bool]]:
    """Yield row, column, character as it may be shown, and whether it differs from the drawing before, if any."""
    for row, line in enumerate(lines):
        was = before[row] if row < len(before) else ""
        for column, character in enumerate(line):
            yield row, column, _visible(character), bool(before) and was[column : column + 1] != character


def _visible(character: str) -> str:
    """Return a character as it may be shown: what would change others, or take no room, is a dot."""
    return "\N{MIDDLE DOT}" if character != " " and unicodedata.category(character)[0] in "CZ" else character
