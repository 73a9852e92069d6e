"""Results of a trained model as HTML that needs no kernel; the keys of a row decide how it is drawn."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from nbtools.data.text_classification.codes import SEPARATOR
from nbtools.errors import literal
from nbtools.notebook.html_parts import BORDER, MUTED, NO_FORMULAS, table_html
from nbtools.notebook.plots.media_html import cut, static_html
from nbtools.rundir import media

_MOST_ROWS, _MOST_TEXTS, _LONGEST_TEXT = 50, 50, 5000
_CELL = "padding:2px 12px 2px 0;text-align:left;vertical-align:middle"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.5"
_BAR = "display:inline-block;height:9px;border-radius:2px;background:#3f90da"
_COLUMN = "margin-right:1px;border-radius:2px 2px 0 0;background:#3f90da"
_CHART = (
    "display:flex;align-items:flex-end;width:max-content;max-width:100%;margin:6px 0 2px;border-top:1px dashed #8888"
)
_BARS_PX, _COLUMN_PX = 120, 48


def answers_html(inputs: Sequence[str], rows: Sequence[dict[str, Any]], step: int | None = None) -> str:
    """Return the results for some inputs, in order; with the checkpoint's `step`, also the intermediate states."""
    answers = [_answer(given, row) for given, row in zip(inputs, rows, strict=False)][:_MOST_ROWS]
    parts = [f"<div style='border-top:{BORDER};padding:8px 2px'>{answer}</div>" for answer in answers]
    if len(rows) > _MOST_ROWS:
        parts.append(f"<div style='{MUTED}'>… and {len(rows) - _MOST_ROWS:,} more: in <code>.results</code></div>")
    if step is not None and (item := frames_of(rows, step)) is not None:
        parts.append(static_html(item))
    return f"<div class='{NO_FORMULAS} nbtools-answers'>{''.join(parts)}</div>"


def frames_of(rows: Sequence[dict[str, Any]], step: int) -> media.MediaItem | None:
    """Return the states on the way of the first answer that has some, with the checkpoint's step."""
    row = next((row for row in rows if row.get("frames")), None)
    if row is None:
        return None
    keep_lines = bool(row.get("keep_lines"))
    title = "Episode by episode" if keep_lines else "Unmasking, step by step"
    return dataclasses.replace(media.frames(title, row["frames"], keep_lines=keep_lines), step=step)


def _answer(given: str, row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{_given(given)}<div class='nbtools-error'>{literal(str(row['error']))}</div>"
    if "masks" in row:
        return _filled(given, row)
    if "candidates" in row:
        return _given(given) + _codes(row)
    if "returns" in row:
        return _episodes(row)
    texts = [str(text) for text in row.get("texts") or [row.get("text", "")]][:_MOST_TEXTS]
    shown = [literal(cut(text, _LONGEST_TEXT)) or f"<i style='{MUTED}'>an empty text</i>" for text in texts]
    before = f"<span style='{MUTED}'>{literal(cut(given, _LONGEST_TEXT))}</span>"
    if "texts" not in row:  # the continuation follows the beginning of the text
        return f"<div style='{_TEXT}'>{before}{shown[0]}</div>"
    items = "".join(f"<div style='{_TEXT};padding:3px 0'>{text}</div>" for text in shown)
    return (f"<div style='{_TEXT}'>{before}</div>" if given else "") + items


def _filled(given: str, row: dict[str, Any]) -> str:
    """Return a text with its masks filled in bold, and a table of the candidates of each."""
    pieces = given.split("[MASK]")
    words = [candidates[0]["token"] for candidates in row["masks"]]
    without_spaces = [*map(str.rstrip, pieces[:-1]), pieces[-1]]
    if sum(map(len, without_spaces + words)) == len(row["text"]):  # tokens that hold the space before them
        pieces = without_spaces
    text = literal(pieces[0])
    for word, piece in zip(words, pieces[1:], strict=False):
        text += f"<b style='border-bottom:2px solid #3f90da'>{literal(word)}</b>{literal(piece)}"
    tables = ""
    for number, candidates in enumerate(row["masks"], start=1):
        chances = [(each["token"], each["probability"]) for each in candidates]
        table = _table(chances, f"mask {number}" if len(words) > 1 else "")
        tables += f"<div style='padding-right:24px'>{table}</div>"
    return f"<div style='{_TEXT};font-size:15px'>{text}</div><div style='display:flex;flex-wrap:wrap'>{tables}</div>"


def _codes(row: dict[str, Any]) -> str:
    """Return the codes of a text and their probability, and a table of the likeliest codes by themselves."""
    frame = f"border:{BORDER};border-radius:4px;padding:1px 7px"
    described = zip(row["codes"], row.get("descriptions") or [""] * len(row["codes"]), strict=True)
    codes = " ".join(f"<b style='{frame}'>{literal(str(code))}</b> {literal(text)}" for code, text in described)
    below = "" if row.get("is_accepted", True) else ", below the threshold"
    chance = f"<span style='{MUTED}'>probability {row['probability']:.2f}{below}</span>"
    note = f"<div class='nbtools-error'>{literal(row['note'])}</div>" if "note" in row else ""
    sets = _table([(SEPARATOR.join(each["codes"]), each["probability"]) for each in row.get("sets", ())], "sets")
    table = _table([(str(each["code"]), each["probability"]) for each in row["candidates"]], "alone" * ("sets" in row))
    return f"<div style='margin:4px 0'>{codes or 'no code'} {chance}</div>{note}{sets * ('sets' in row)}{table}"


def _episodes(row: dict[str, Any]) -> str:
    """Return the mean return of each episode as columns below the best possible one, and the drawing."""
    returns, best = row["returns"], max(row["best"], *row["returns"], 1)
    width = max(min(600 // len(returns), 16), 2)
    columns = "".join(
        f"<span title='episode {number}: {value:g}' style='{_COLUMN};flex:0 0 {width - 1}px;"
        f"height:{max(_COLUMN_PX * value / best, 1):.0f}px'></span>"
        for number, value in enumerate(returns, start=1)
    )
    kind = "a goal that the training left out" if row["is_unseen"] else "a goal of the training"
    return (
        f"<div><b>Goal {literal(row['goal'])}</b> <span style='{MUTED}'>{kind}; best possible return {row['best']}"
        f"</span></div><div style='{_CHART};height:{_COLUMN_PX}px;border-bottom:{BORDER}'>{columns}</div>"
        f"<div style='{MUTED};font-size:12px'>mean return of episodes 1 to {len(returns)}: "
        f"{returns[0]:g} at first, {returns[-1]:g} at last</div>"
    )


def _table(values: Sequence[tuple[str, float]], heading: str = "") -> str:
    """Return names with their probabilities as bars."""
    bars = (f"<span style='{_BAR};width:{max(_BARS_PX * chance, 1):.0f}px'></span>" for _, chance in values)
    rows = [(literal(name), bar, f"{chance:.3f}") for (name, chance), bar in zip(values, bars, strict=True)]
    caption = f"<div style='{MUTED};font-size:12px;margin-top:4px'>{literal(heading)}</div>" if heading else ""
    return f"{caption}{table_html(rows, cell=_CELL, style='margin:4px 0')}"


def _given(text: str) -> str:
    return f"<div style='{_TEXT};{MUTED}'>{literal(cut(text, _LONGEST_TEXT))}</div>"
