"""The successive states of a text or of a drawing made of characters, as HTML."""

import html
from collections.abc import Sequence
from itertools import chain, repeat

MASKED = "\N{LIGHT SHADE}"
"""Character for a masked token."""

_MOST_CHARACTERS = 4000
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
    earlier = chain(_lines(before, keep_lines), repeat(""))
    pairs = zip(_lines(frame, keep_lines), earlier, strict=False)
    rows = [_row_html(line, was, is_first=not before, keep_lines=keep_lines) for line, was in pairs]
    if keep_lines:
        return f"<pre style='{_PRE_CSS}'><span style='opacity:.6'>{number}</span>\n{'<br>'.join(rows)}</pre>"
    label = f"<span style='display:inline-block;width:3em;opacity:.6'>{number}</span>"
    return f"<div style='{_TEXT_CSS}'>{label}{rows[0]}</div>"


def _lines(frame: str, keep_lines: bool) -> list[str]:
    """The lines of a drawing; a running text is one line, in which line breaks are arrows."""
    if keep_lines:
        return frame[:_MOST_CHARACTERS].split("\n")
    return [frame.replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")]


def _row_html(line: str, was: str, *, is_first: bool, keep_lines: bool) -> str:
    """Return a line with marks on its masks, and unless it is of the first frame, on what is not as it `was`."""
    row, was = "", was if keep_lines else _aligned(was, line)
    for column, character in enumerate(line):
        is_new = not is_first and was[column : column + 1] != character and not (keep_lines and character.isspace())
        kind = "masked" if character == MASKED else "new" if is_new else ""
        # An unprintable character would change its neighbours or take no room.
        text = html.escape(character if character.isprintable() else "\N{MIDDLE DOT}")
        row += f"<span style='{_CELL_CSS[kind]}'>{text}</span>" if kind else text
    return row


def _aligned(before: str, line: str) -> str:
    """Return `before` with each of its words at the place of the same word of `line`, if both have as many words.

    A word that takes the place of a mask moves all that follow it, which did not change.
    """
    words, earlier = line.split(" "), before.split(" ")
    if len(line) == len(before) or len(words) != len(earlier):
        return before
    return " ".join(word if word == was else "\0" * len(word) for word, was in zip(words, earlier, strict=True))
