"""Shows a text as it changes, frame by frame: as HTML for the notebook, and as a picture for whoever has no kernel."""

import html
import io
import unicodedata
from collections.abc import Sequence

from IPython.display import HTML, Image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle

MASKED = "\N{LIGHT SHADE}"
"""How a training shows a token that is not known yet."""

_CSS = {
    "row": "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:2px 0;line-height:1.5",
    "step": "display:inline-block;width:3em;opacity:.6",
    "masked": "background:#8886;color:transparent;border-radius:2px;margin:0 1px 0 0",
    "new": "background:#f5a62366;border-radius:2px",
}
_LONGEST_ROW = 96


def picked(frames: Sequence[str], most: int) -> list[tuple[int, str]]:
    """Return at most so many of the frames with their numbers, the first and the last among them."""
    if len(frames) <= most:
        return list(enumerate(frames))
    numbers = [round(index * (len(frames) - 1) / (most - 1)) for index in range(most)]
    return [(number, frames[number]) for number in numbers]


def as_html(frames: Sequence[str], most: int = 12) -> HTML:
    """Show frames one below the other: what is masked as a block, and marked what has changed since the one above."""
    shown = picked(frames, most)
    before = ["", *(frame for _, frame in shown)]
    rows = [as_row(number, frame, earlier) for (number, frame), earlier in zip(shown, before, strict=False)]
    return HTML(f"<div class='mathjax_ignore tex2jax_ignore'>{''.join(rows)}</div>")  # type: ignore[no-untyped-call]


def as_row(number: int, frame: str, before: str) -> str:
    """Return one frame as HTML, with its number, and marks where it differs from the one before."""
    cells = []
    for place, character in enumerate(frame):
        changed = place >= len(before) or before[place] != character
        kind = "masked" if character == MASKED else "new" if changed and before else ""
        text = html.escape(_visible(character))
        cells.append(f"<span style='{_CSS[kind]}'>{text}</span>" if kind else text)
    step = f"<span style='{_CSS['step']}'>{number}</span>"
    return f"<div style='{_CSS['row']}'>{step}{''.join(cells)}</div>"


def as_picture(frames: Sequence[str], most: int = 12) -> Image:
    """Draw the same as a PNG: one row a frame, one cell a character; a text longer than 96 is cut."""
    shown = [(number, frame[:_LONGEST_ROW]) for number, frame in picked(frames, most)]
    num_columns = max((len(frame) for _, frame in shown), default=1)
    width, height = 0.125 * (num_columns + 6), 0.26 * (len(shown) + 1)
    figure = Figure(figsize=(width, height), dpi=110, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1), xlim=(-5.5, num_columns + 0.5), ylim=(len(shown), -0.5))
    axes.axis("off")
    font = FontProperties(family=["DejaVu Sans Mono"], size=9)
    before = ""
    for row, (number, frame) in enumerate(shown):
        axes.text(
            -1.5, row, str(number), ha="right", va="center", fontproperties=font, color="#888888", parse_math=False
        )
        for place, character in enumerate(frame):
            changed = bool(before) and before[place : place + 1] != character
            if character == MASKED or changed:
                colour = "#c9ced6" if character == MASKED else "#fbd9a0"
                axes.add_patch(Rectangle((place - 0.46, row - 0.42), 0.92, 0.84, facecolor=colour, linewidth=0))
            if character != MASKED:
                axes.text(
                    *(place, row, _visible(character)),
                    ha="center",
                    va="center",
                    fontproperties=font,
                    color="#1c1c1c",
                    parse_math=False,
                )
        before = frame
    png = io.BytesIO()
    FigureCanvasAgg(figure).print_png(png, pil_kwargs={"compress_level": 9})  # type: ignore[no-untyped-call]
    return Image(png.getvalue(), format="png")  # type: ignore[no-untyped-call]


def _visible(character: str) -> str:
    """A line break has a sign of its own here, and what would change other characters has a neutral one."""
    if character == "\n":
        return "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
    if character != " " and unicodedata.category(character)[0] in "CZ":
        return "\N{MIDDLE DOT}"
    return character
