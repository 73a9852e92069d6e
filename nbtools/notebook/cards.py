"""The words around the picture, as small pieces of HTML. Every text is escaped here, and nowhere else.

A notebook trusts the output of what its user ran, so nobody behind us takes out a script.
"""

import unicodedata
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from nbtools.notebook.curves import duration

if TYPE_CHECKING:
    from nbtools.failure import Failure
    from nbtools.run import RankBeat

_FONT = "font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.45;"
_TEXT = "color:var(--jp-ui-font-color1,inherit);"
_MUTED = "color:var(--jp-ui-font-color2,#6b7280);"
_MONO = "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px;line-height:1.45;"
_BORDER = "1px solid var(--jp-border-color2,#d0d7de)"
_SURFACE = "background:rgba(127,127,127,.13);"

# Sign, colour and words: nobody has to tell two hues apart.
_STATES = {
    "QUEUED": ("○", "#717581", "Queued", "waiting for its processes to start"),
    "RUNNING": ("●", "#3f90da", "Running", ""),
    "STOPPED": ("■", "#8a6d3b", "Stopped", "on request"),
    "SUCCEEDED": ("✓", "#2e8b57", "Succeeded", ""),
    "FAILED": ("✕", "#d13a1f", "Failed", ""),
    "LOST": ("?", "#e76300", "Lost", "its processes are gone and left no record of how they ended"),
}
_LONG_PHASES = frozenset(("start", "data", "evaluation", "checkpoint", "done"))
_MAX_CHIPS = 16


def literal(text: str) -> str:
    """Escape a text for HTML, quotes included; characters that would hide or reorder others become visible."""
    shown = (
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Zl", "Zp") else ascii(c)[1:-1] for c in text
    )
    return escape("".join(shown))


def header(run_id: str, state: str, script: str, note: str = "") -> str:
    """Which run this is, and what it is doing."""
    sign, colour, word, meaning = _STATES[state]
    meaning = note or meaning
    detail = f"<span style='{_MUTED}'> · {literal(meaning)}</span>" if meaning else ""
    return (
        f"<div style='{_FONT}{_TEXT}display:flex;flex-wrap:wrap;gap:2px 14px;align-items:baseline'>"
        f"<b style='font-size:15px'>{literal(run_id)}</b>"
        f"<span role='status'><span aria-hidden='true' style='color:{colour};font-weight:700'>{sign}</span> "
        f"<b>{word}</b>{detail}</span>"
        f"<span style='{_MUTED}{_MONO}margin-left:auto'>{literal(script)}</span></div>"
    )


def progress(
    step: int,
    total_steps: int | None,
    elapsed_s: float | None,
    remaining_s: float | None,
    steps_per_s: float | None,
    state: str,
) -> str:
    """A bar and, in words, how far it is, how long it took, and how long it will take."""
    share = min(1.0, step / total_steps) if total_steps else 0.0
    parts = [f"step {step:,} of {total_steps:,}" if total_steps else f"step {step:,}"]
    if total_steps:
        parts.append(f"{100 * share:.0f}%")
    if elapsed_s is not None:
        parts.append(f"elapsed {duration(max(1.0, elapsed_s))}")
    if remaining_s is not None:
        parts.append(f"about {duration(remaining_s)} left" if remaining_s >= 1 else "nearly done")
    if steps_per_s:
        parts.append(f"{steps_per_s:.3g} steps/s" if steps_per_s >= 0.1 else f"{1 / steps_per_s:.3g} s/step")
    colour = _STATES[state][1]
    bar = (
        f"<div role='progressbar' aria-label='training progress' aria-valuemin='0' aria-valuemax='100' "
        f"aria-valuenow='{100 * share:.0f}' "
        f"style='{_SURFACE}height:6px;border-radius:3px;overflow:hidden;margin:5px 0 3px'>"
        f"<div style='width:{100 * share:.2f}%;height:100%;background:{colour}'></div></div>"
    )
    words = " · ".join(parts)
    return f"<div style='{_FONT}{_MUTED}'>{bar if total_steps else ''}<span>{literal(words)}</span></div>"


def failure(found: "Failure", log_path: str) -> str:
    """Who failed first, of what, and the end of its traceback."""
    lines = (found.traceback or "").rstrip().splitlines()
    cut = [f"… {len(lines) - 16} more lines above", *lines[-16:]] if len(lines) > 17 else lines
    trace = "\n".join(line[:500] for line in cut)
    box = f"{_MONO}{_TEXT}{_SURFACE}margin:6px 0 4px;padding:6px 8px;max-height:260px;overflow:auto;white-space:pre"
    return (
        f"<div role='alert' style='{_FONT}{_TEXT}box-sizing:border-box;width:0;min-width:100%;"
        f"border-left:4px solid #d13a1f;padding:2px 0 2px 10px;margin:6px 0'>"
        f"<b>{literal(found.headline[:2000])}</b>"
        + (f"<pre style='{box}'>{literal(trace)}</pre>" if trace else "")
        + f"<div style='{_MUTED}font-size:12px'>log: {literal(log_path)}</div></div>"
    )


def ranks(beats: "Sequence[RankBeat]", now: float, usual_step_s: float | None, is_running: bool) -> str:
    """One chip per rank: where it is, and for how long it has not been heard of."""
    if not beats:
        return ""
    ahead = max(beat.step for beat in beats)
    patience_s = 5 + 2 * (usual_step_s or 5)
    late = {beat.rank for beat in beats if is_running and _is_late(beat, ahead, now, patience_s)}
    shown = sorted(beats, key=lambda beat: (beat.rank not in late, beat.rank))[:_MAX_CHIPS]
    chips = []
    for beat in sorted(shown, key=lambda beat: beat.rank):
        age = now - beat.time
        silent = f" · <b>silent for {duration(age)}</b>" if beat.rank in late else ""
        seen = f" · {duration(age)} ago" if is_running and not silent and age >= 3 else ""
        edge = "1px solid #c77700;background:rgba(255,169,14,.16)" if beat.rank in late else f"{_BORDER}"
        chips.append(
            f"<span style='border:{edge};border-radius:10px;padding:0 8px;white-space:nowrap'>"
            f"rank {beat.rank} · step {beat.step:,} · {literal(beat.phase[:40])}{seen}{silent}</span>"
        )
    if len(beats) > len(shown):
        behind = min(beat.step for beat in beats)
        where = f"all at step {ahead:,}" if behind == ahead else f"steps {behind:,} to {ahead:,}"
        chips.append(f"<span>and {len(beats) - len(shown)} more ranks, {where}</span>")
    return (
        f"<div style='{_FONT}{_MUTED}font-size:12px;display:flex;flex-wrap:wrap;gap:4px 6px;margin:5px 0'>"
        f"{''.join(chips)}</div>"
    )


def log(lines: Sequence[str]) -> str:
    """The end of rank 0's output, in a box of fixed height."""
    body = "\n".join(line[:500] for line in lines) or "(no output yet)"
    style = f"{_MONO}{_TEXT}border:{_BORDER};margin:0;padding:6px 8px;height:212px;overflow:auto;white-space:pre"
    # No width of its own: a long line would widen the whole panel instead of scrolling in its box.
    return (
        f"<div style='{_FONT}width:0;min-width:100%'>"
        f"<div style='{_MUTED}font-size:12px;margin:4px 0 2px'>rank 0's output</div>"
        f"<pre tabindex='0' aria-label='end of the log of rank 0' style='{style}'>{literal(body)}</pre></div>"
    )


def note(text: str, *, is_warning: bool = False) -> str:
    """A sentence beside the buttons."""
    if not text:
        return ""
    colour = "color:var(--jp-warn-color0,#b35900);" if is_warning else _TEXT
    return (
        f"<div role='status' style='{_FONT}{colour}white-space:pre-wrap;overflow-wrap:anywhere'>{literal(text)}</div>"
    )


def _is_late(beat: "RankBeat", ahead: int, now: float, patience_s: float) -> bool:
    """A rank that waits in a collective is not the one to blame, unless it is behind."""
    if now - beat.time <= patience_s or beat.phase in _LONG_PHASES:
        return False
    return beat.phase != "collective" or beat.step < ahead
