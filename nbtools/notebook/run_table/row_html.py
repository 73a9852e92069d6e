"""A row of the table of runs: what it shows beside the records, and its HTML, in which every text is escaped."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbtools.errors import RunNotFoundError, literal, shown
from nbtools.metrics.direction import direction_of
from nbtools.notebook.html_parts import BORDER, CUT, FONT, MUTED, NO_FORMULAS, STATES, TEXT, sparkline
from nbtools.notebook.plots.decimation import duration
from nbtools.recipes import RECIPES
from nbtools.run.curves import SMALL_BYTES, Curves, num_bytes, quick_curves, read_curves
from nbtools.run.listing import Rows, RunRow
from nbtools.run.records import local_time, mapping_at

_COLUMNS = "minmax(0,5fr) 96px 84px 58px 58px 62px 54px 66px minmax(0,5fr)"
_TITLES = ("Run", "State", "", "Best", "Last", "Steps", "Took", "{age}", "Recipe, and what differs")
_RIGHT = frozenset({3, 4, 5, 6, 7})
"""Columns of numbers."""
# width:0 with min-width:100%: a long text is cut instead of widening the table.
_LINE = (
    f"{FONT}{TEXT}display:grid;grid-template-columns:{_COLUMNS};column-gap:10px;align-items:center;line-height:1.3;"
    "width:0;min-width:100%;box-sizing:border-box"
)
_CLASSES = f"{NO_FORMULAS} nbtools-runs-line"
_TWO_LINES = (
    f"{MUTED}font-size:12px;overflow:hidden;display:-webkit-box;-webkit-line-clamp:2;-webkit-box-orient:vertical;"
    "overflow-wrap:anywhere"
)


@dataclass(frozen=True)
class Details:
    """Values of a run that the list of runs lacks, read from its other files."""

    metric: str = ""
    """The metric of the sparkline, of the best and of the last value."""
    best: float | None = None
    last: float | None = None
    points: Sequence[float] = ()
    preset: str = ""
    """The nearest preset of the recipe."""
    differs: str = ""
    """The fields that differ from it."""


def head(age: str = "Age") -> str:
    """Return the titles of the columns."""
    cells = _cells([title.format(age=age) for title in _TITLES])
    return f"<div class='{_CLASSES}' style='{_LINE};{MUTED}font-size:12px;padding:2px 0'>{cells}</div>"


def _cells(values: Sequence[str]) -> str:
    aligned = (f"{'text-align:right;' * (number in _RIGHT)}min-width:0" for number in range(len(values)))
    return "".join(f"<div style='{style}'>{value}</div>" for value, style in zip(values, aligned, strict=True))


def line(row: RunRow, details: Details | None, *, is_stored: bool = False) -> str:
    """Return the row of one run; if `is_stored`, with the date of the launch instead of the age, which changes."""
    sign, colour, word, _ = STATES.get(row.state, ("!", "#d13a1f", "Unreadable", ""))
    state = f"<span aria-hidden='true' style='color:{colour};font-weight:700'>{sign}</span> {word}"
    chips = "".join(
        f" <span style='border:{BORDER};border-radius:8px;padding:0 6px;"
        f"font-size:11px;font-weight:400'>{literal(tag)}</span>"
        for tag in row.tags
    )
    remark = " · ".join(part for part in (row.problem, row.note) if part)
    name = (
        f"<div style='{CUT}' title='{literal(row.name)}'><b>{literal(row.name)}</b></div>"
        f"<div style='{CUT}{MUTED}font-size:11px' title='{literal(row.id)}'>{literal(row.id)}</div>"
    )
    if remark or chips:
        name += f"<div style='{CUT}font-size:12px' title='{literal(remark)}'>{chips} {literal(remark[:300])}</div>"
    steps = "" if row.step is None else f"{row.step:,}"
    of_all = f"<div style='{MUTED}font-size:11px'>of {row.total_steps:,}</div>" if row.total_steps else ""
    started = local_time(row.started_at)
    age = started[:10] if is_stored else "" if row.started_at is None else _age(time.time() - row.started_at)
    waiting = "…" if details is None and not is_stored else ""
    shown = details or Details()
    points, metric = shown.points, shown.metric
    label = f"{metric} from {points[0]:.4g} to {points[-1]:.4g}" if len(points) > 1 else ""
    what = f"{row.recipe} {shown.preset}" if row.recipe else row.script
    differs = f"<div style='{CUT}font-size:12px' title='{literal(what)}'>{literal(what)}</div>"
    if shown.differs:
        differs += f"<div style='{_TWO_LINES}' title='{literal(shown.differs)}'>{literal(shown.differs)}</div>"
    values = (
        name,
        state,
        sparkline(points, (min(points), max(points)), label=label) if label else "",
        _value(shown.best) or waiting,
        _value(shown.last) or waiting,
        f"{steps}{of_all}",
        "" if row.duration_s is None else _age(row.duration_s),
        f"<span title='{started}' style='white-space:nowrap{';font-size:11px' * is_stored}'>{age}</span>",
        differs,
    )
    style = f"{_LINE};border-top:{BORDER};padding:4px 0;min-height:38px"
    return f"<div class='{_CLASSES}' style='{style}'>{_cells(values)}</div>"


def stored_table(rows: Sequence[tuple[RunRow, Details | None]], num_more: int) -> str:
    """Return the table that a notebook stores."""
    lines = "".join(line(row, details, is_stored=True) for row, details in rows)
    more = f"<div style='{FONT}{MUTED}padding:4px 0'>and {num_more:,} earlier</div>" if num_more else ""
    nothing = "" if rows else f"<div style='{FONT}{MUTED}padding:4px 0'>no runs</div>"
    classes = "nbtools-runs-stored nbtools-runs-page"
    return f"<div class='{classes}' style='max-width:1100px'>{head('Started')}{lines}{more}{nothing}</div>"


def _value(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _age(seconds: float) -> str:
    return duration(max(0.0, seconds) if seconds < 3600 else seconds // 60 * 60)


_NUM_FIELDS = 4
_NUM_POINTS = 42
"""Number of points in a sparkline."""


def details_of(rows: Rows, row: RunRow) -> Details:
    """Read the details of a run; the curves of an ended one come from the cache, or fill it.

    Of a long active run, which is read every few seconds, only the first and last rows are read.
    """
    with suppress(OSError, RunNotFoundError):
        run = rows.run(row.id)
        curves = read_curves(run) if row.is_final else quick_curves(run)[0]
        name, config = _chosen(curves), run.config or {}
        preset, differs = _differs(str(config.get("recipe") or row.recipe), mapping_at(config, "config"))
        if name:
            found = curves[name]
            cuts = np.linspace(0, len(found), min(_NUM_POINTS, len(found)) + 1).astype(int)
            points = [float(mean) for mean in found.reduced(cuts).mean if np.isfinite(mean)]
            return Details(name, found.ends.best, found.ends.last, points, preset, differs)
        return Details(preset=preset, differs=differs)
    return Details()


def takes_long(rows: Rows, row: RunRow) -> bool:
    """Whether the details of a run are not read in milliseconds."""
    with suppress(OSError, RunNotFoundError):
        return num_bytes(rows.run(row.id)) > SMALL_BYTES
    return False


def _chosen(curves: Curves) -> str:
    """Return the metric to show: an evaluation's loss, else a loss, else one with a best value."""

    def rank(name: str) -> tuple[bool, ...]:
        is_loss, is_eval = name.endswith("loss"), name.startswith(("eval", "val"))
        return direction_of(name) is None, name != "eval/loss", not (is_loss and is_eval), not is_loss, not is_eval

    return min(curves, key=rank, default="")


def _differs(key: str, values: dict[str, Any]) -> tuple[str, str]:
    """Return the name of the preset that is nearest to a config, and the fields that differ from it."""
    if key not in RECIPES or not values:
        return "", ""
    found: list[tuple[int, str, list[str]]] = []
    for name in RECIPES[key].presets:
        preset = RECIPES[key].preset(name)[0].model_dump(mode="json")
        changed = {field: values[field] for field in preset if field in values and values[field] != preset[field]}
        other = [f"{field} {_short(value)}" for field, value in changed.items()]
        found.append((len(other), name, other))
    _, name, other = min(found, key=lambda one: one[0])
    more = f", and {len(other) - _NUM_FIELDS} more" if len(other) > _NUM_FIELDS else ""
    return name, f"{', '.join(other[:_NUM_FIELDS])}{more}"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value, 24)
