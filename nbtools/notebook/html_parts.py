"""Parts of HTML and CSS that all views of a notebook share: fonts, colours, notes, tables, small curves.

Every text is escaped here, but for the cells of `table_html` and what `details_html` takes, which are HTML.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nbtools.errors import literal

THEME = Path(__file__).with_name("theme.css").read_text(encoding="utf-8")
NO_FORMULAS = "mathjax_ignore tex2jax_ignore"
"""Classes of elements whose dollar signs JupyterLab's MathJax, and the older one of exported pages, leave alone."""
LIVE = "nbtools-live"
"""Class of the widgets of a panel."""
FONT = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.45;"
TEXT = "color:var(--jp-ui-font-color1,inherit);"
MUTED = "color:var(--jp-ui-font-color2,#6b7280);"
MONO = "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px;line-height:1.45;"
BORDER = "1px solid var(--jp-border-color2,#d0d7de)"
STRONG = "var(--jp-ui-font-color0,currentColor)"
"""Black or white: a colour of text that is mixed with it has a contrast of 4.5 in both themes."""
WARN = f"color:color-mix(in srgb,var(--jp-warn-color0,#b35900) 80%,{STRONG});"
AMBER = "#c77700"
CELL = f"padding:1px 18px 1px 0;text-align:left;vertical-align:top;border-bottom:{BORDER};overflow-wrap:anywhere"
"""CSS of a cell of a table."""
SURFACE = "background:rgba(127,127,127,.13);"
CUT = "min-width:0;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;"

# A sign and a word beside each colour, for readers who cannot distinguish two hues.
STATES = {
    "QUEUED": ("○", "#717581", "Queued", "waiting for its processes to start"),
    "RUNNING": ("●", "#3f90da", "Running", ""),
    "STOPPED": ("■", "#8a6d3b", "Stopped", "on request"),
    "SUCCEEDED": ("✓", "#2e8b57", "Succeeded", ""),
    "FAILED": ("✕", "#d13a1f", "Failed", ""),
    "LOST": ("?", "#e76300", "Lost", "its processes ended without a record"),
}
_MAX_DIFF_LINES, _LONGEST_LINE = 2000, 500


def note(text: str, *, is_warning: bool = False) -> str:
    """Return a status line for the buttons, or a warning."""
    if not text:
        return ""
    colour = WARN if is_warning else TEXT
    role = "alert" if is_warning else "status"
    return f"<div role='{role}' style='{FONT}{colour}white-space:pre-wrap;overflow-wrap:anywhere'>{literal(text)}</div>"


def act_button(act: str, key: str, html: str, label: str, more: str = "") -> str:
    """Return a button of a `Page`, which sends `act` and `key` when it is pressed; `more` are further attributes."""
    told = f"data-act='{act}' data-key='{literal(key)}' title='{literal(label)}' aria-label='{literal(label)}'"
    return f"<button type='button' {told} {more}>{html}</button>"


def eye(act: str, key: str, label: str, more: str = "", *, is_drawn: bool) -> str:
    """Return a button of a `Page` that shows and hides curves."""
    return act_button(act, key, "", label, f"aria-pressed='{str(is_drawn).lower()}' {more}")


def copy_button(text: str, content: str) -> str:
    """Return a button that copies `content`; hidden in a page that cannot."""
    return f"<button type='button' data-copy='{literal(content)}' style='display:none'>{literal(text)}</button>"


def table_html(rows: Iterable[Sequence[str]], head: Sequence[str] = (), *, cell: str = CELL, style: str = "") -> str:
    """Return rows of HTML as a table as wide as its content; `cell` and `style` are further CSS."""
    every = [*([("th", head)] if head else []), *(("td", row) for row in rows)]
    lines = ("".join(f"<{tag} style='{cell}'>{text}</{tag}>" for text in row) for tag, row in every)
    body = "".join(f"<tr style='background:none'>{line}</tr>" for line in lines)
    return f"<table style='{FONT}{TEXT}border-collapse:collapse;margin:0;background:none;{style}'>{body}</table>"


def details_html(title: str, body: str, *, is_open: bool = False, style: str = "") -> str:
    """Return a part that unfolds under a title."""
    style = f"{FONT}{TEXT}cursor:pointer;{style}"
    return f"<details{' open' * is_open}><summary style='{style}'>{title}</summary>{body}</details>"


def folded_lines(title: str, lines: Sequence[str], is_open: bool = False, *, colours: Mapping[str, str] = {}) -> str:
    """Return lines, cut if they are long, that unfold under a title, with `colours` by their first character.

    It is empty without lines.
    """
    if not lines:
        return ""
    box = f"{MONO}{TEXT}{SURFACE}margin:4px 0;padding:6px 8px;max-height:260px;overflow:auto;white-space:pre"
    shown = [literal(line[:_LONGEST_LINE]) for line in lines]
    if colours:
        inks = [f"color-mix(in srgb,{colours.get(line[:1], 'currentColor')} 70%,{STRONG})" for line in shown]
        shown = [f"<span style='color:{ink}'>{line}</span>" for ink, line in zip(inks, shown, strict=True)]
    body = f"<pre tabindex='0' aria-label='{literal(title)}' style='{box}'>{chr(10).join(shown)}</pre>"
    return details_html(literal(title), body, is_open=is_open, style=MUTED)


def diff(title: str, lines: Sequence[str], rest: str) -> str:
    """Return a unified diff, folded; `rest` says where those of its lines are that are left out."""
    shown = [*lines[:_MAX_DIFF_LINES]]
    if len(lines) > len(shown):
        shown.append(f"… {len(lines) - len(shown):,} more lines: {rest}")
    return folded_lines(title, shown, colours={"+": "#2e8b57", "-": "#d13a1f", "@": "#3f90da"})


def sparkline(
    values: Sequence[float], limits: tuple[float, float], size: tuple[int, int] = (84, 22), label: str = ""
) -> str:
    """Return values as a small curve between two limits, with a dot at its end; `label` is read out."""
    (low, high), (width, height) = limits, size
    pace, scale = (width - 5) / max(len(values) - 1, 1), (height - 6) / ((high - low) or 1.0)
    places = [f"{1.5 + pace * i:.1f},{height - 3 - scale * (value - low):.1f}" for i, value in enumerate(values)]
    x, _, y = places[-1].partition(",")
    told = f"role='img' aria-label='{literal(label)}'" if label else "aria-hidden='true'"
    return (
        f"<svg width='{width}' height='{height}' {told} style='vertical-align:middle'><title>{literal(label)}</title>"
        f"<polyline points='{' '.join(places)}' fill='none' stroke='#3f90da' stroke-width='1.4' "
        f"stroke-linejoin='round'/><circle cx='{x}' cy='{y}' r='2' fill='#3f90da'/></svg>"
    )
