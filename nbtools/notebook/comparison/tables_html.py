"""The tables of a comparison as HTML: scaling; and state, differences, best and last values of each run."""

from collections.abc import Iterator, Sequence
from difflib import unified_diff
from functools import lru_cache

import numpy as np

from nbtools.errors import literal, plural
from nbtools.metrics.direction import direction_of
from nbtools.notebook.comparison.overlay import role
from nbtools.notebook.html_parts import BORDER, FONT, MONO, MUTED, NO_FORMULAS, TEXT, diff, table_html
from nbtools.notebook.plots.charts import PALETTE
from nbtools.notebook.plots.decimation import number
from nbtools.notebook.plots.metric_names import kind_of
from nbtools.run import facts
from nbtools.run.compare import MOST_RUNS, Comparison
from nbtools.run.curves import Curves

_MOST_METRICS = 8
_CELL = f"padding:2px 10px 2px 0;text-align:left;vertical-align:top;white-space:nowrap;border-bottom:{BORDER}"


def tables_html(comparison: Comparison, curves: Sequence[Curves]) -> str:
    """Return all tables of a comparison; names and values are escaped."""
    rows, note = scaling_rows(_run_cells(comparison), comparison.nproc, curves)
    scaling = _table("Scaling", rows, note) if rows else ""
    parts = [_notes(comparison), scaling, _table_of(comparison, curves) if comparison.runs else ""]
    return f"<div class='{NO_FORMULAS}' style='{FONT}{TEXT}max-width:100%'>{''.join(parts)}</div>"


def _notes(comparison: Comparison) -> str:
    parents = [", ".join(f"{name} up to step {step:,}" for name, step in sources) for sources in comparison.sources]
    begun = zip(comparison.labels, parents, strict=True)
    lines = [*comparison.notes, *(f"{label}: its curves begin with those of {told}" for label, told in begun if told)]
    return "".join(f"<div style='{MUTED}'>{literal(line)}</div>" for line in lines)


def swatch(index: int) -> str:
    """Return a sample of the line of a run as HTML."""
    colour, dash = role(index)
    dashes = f" stroke-dasharray='{' '.join(f'{2 * part:g}' for part in dash)}'" if dash else ""
    return (
        "<svg width='24' height='8' aria-hidden='true' style='max-width:none;vertical-align:middle;margin-right:6px'>"
        f"<path d='M0 4H24' stroke='{PALETTE[colour]}' stroke-width='2.5'{dashes}/></svg>"
    )


def _run_cells(comparison: Comparison) -> list[str]:
    named = zip(comparison.runs, comparison.labels, comparison.slots, strict=True)
    return [f"<span title='{literal(run.id)}'>{swatch(slot)}{literal(label)}</span>" for run, label, slot in named]


def _table(title: str, rows: Sequence[Sequence[str]], note: str = "") -> str:
    """Return a table of escaped cells; the first row and the first column are headings."""
    body = [[cells[0], *(f"<span style='{MONO}'>{cell}</span>" for cell in cells[1:])] for cells in rows[1:]]
    table = table_html(body, rows[0], cell=_CELL)
    below = f"<div style='{MUTED}'>{note}</div>" if note else ""
    return f"<div style='margin:12px 0 2px'><b>{title}</b></div><div style='overflow-x:auto'>{table}</div>{below}"


def _table_of(comparison: Comparison, curves: Sequence[Curves]) -> str:
    """Return state, differing fields, and best and last values of the runs as one table, and how scripts differ."""
    every = [name for one in curves for name in one if kind_of(name) != "baseline" and not name.endswith("epoch")]
    metrics = sorted(dict.fromkeys(every), key=lambda name: (direction_of(name) is None, name.endswith("_per_s")))
    states = [str(run.state) for run in comparison.runs]
    steps = [facts.steps(run.step, run.total_steps) for run in comparison.runs]
    rows = [["field", *_run_cells(comparison)], ["state", *states], ["step", *steps]]
    rows += [[*map(literal, (one.name, *one.values))] for one in comparison.differences]
    rows += [[literal(name), *_end_cells(name, curves)] for name in metrics[:_MOST_METRICS]]
    notes = ["No recorded field, version or line of code differs"] * (not comparison.differences)
    notes += ["best (at its step) → last; the best of all runs is bold"] * bool(metrics)
    notes += [plural(len(metrics) - _MOST_METRICS, "more metric")] * (len(metrics) > _MOST_METRICS)
    scripts = [facts.get("code.script", "") for facts in comparison.facts]
    codes = [
        diff(f"Script of {label} against that of {comparison.labels[0]}", lines, "script.py in the run's directory")
        for label, script in zip(comparison.labels, scripts, strict=True)
        if scripts[0] and script and (lines := _diff(scripts[0], script))
    ]
    return _table("What differs", rows, "; ".join(notes)) + "".join(codes)


def _end_cells(name: str, curves: Sequence[Curves]) -> Iterator[str]:
    """Yield best and last value of a metric in each run."""
    ends = [one[name].ends if name in one else None for one in curves]
    known = {one.best for one in ends if one and one.best is not None}
    best = (max if direction_of(name) == "higher" else min)(known) if len(known) > 1 else None
    for one in ends:
        told = f"{literal(number(one.best))} ({one.best_step:,})" if one and one.best is not None else ""
        told = f"<b>{told}</b> → " if told and one and one.best == best else f"{told} → " if told else ""
        yield told + literal(number(one.last)) if one else "–"


@lru_cache(maxsize=MOST_RUNS)  # the tables are made again while rows arrive
def _diff(first: str, other: str) -> Sequence[str]:
    return [*unified_diff(first.splitlines(), other.splitlines(), lineterm="")][2:]


_HEAD = ["run", "processes", "throughput", "efficiency", "waiting for data", "for other processes"]
_WAITS = "data_wait", "peer_wait"


def scaling_rows(
    names: Sequence[str], nproc: Sequence[int | None], curves: Sequence[Curves]
) -> tuple[list[list[str]], str]:
    """Return the rows of the card as HTML, the heading first, and a note; no rows unless two runs can be compared.

    Throughput is that of all processes; efficiency, the throughput per process against that of the fewest processes.

    Args:
        names: HTML of each run's name.
        nproc: processes of each run; None if not recorded.
        curves: the metrics of each run.
    """
    known = [(count, index) for index, count in enumerate(nproc) if count]
    if len({count for count, _ in known}) < 2:
        return [], ""
    has_samples = all(_pace(curves[index], "samples") is not None for _, index in known if curves[index])
    unit = "samples" if has_samples else "steps"
    rates = {index: _pace(curves[index], unit) for _, index in known}
    _, least = min(((count, rate / count) for count, index in known if (rate := rates[index])), default=(0, 0.0))
    rows = [_HEAD]
    for count, index in known:
        rate, own = rates[index], curves[index]
        efficiency = rate / count / least if rate else None
        # The slowest process's wait for data, and the mean wait of all for the last one.
        waits = ["not recorded" if (wait := _mean(own, name)) is None else f"{wait:.0%}" for name in _WAITS]
        waits[1] = "–" if count == 1 else waits[1]
        told = f"{number(rate)} {unit}/s" if rate else "not yet known"
        share = "not yet known" if efficiency is None else f"{efficiency:.0%}"
        rows.append([names[index], str(count), told, share, *waits])
    fewest = plural(min(count for count, _ in known), "process")
    return rows, f"efficiency: throughput per process against the run on {fewest}; 100% is linear scaling"


def _pace(curves: Curves, unit: str) -> float | None:
    """Return the median pace between successive rows of the longest metric, so that pauses do not count."""
    if not curves:
        return None
    sketch = max(curves.values(), key=lambda one: one.counts.sum())
    work = np.diff(sketch.samples if unit == "samples" else sketch.steps)
    taken = np.diff(sketch.times)
    used = np.isfinite(work) & (taken > 0) & (work > 0)
    return float(np.median(work[used] / taken[used])) if used.any() else None


def _mean(curves: Curves, ending: str) -> float | None:
    for name, sketch in curves.items():
        known = np.isfinite(sketch.mean)
        if name.endswith(ending) and known.any():
            return float(np.average(sketch.mean[known], weights=sketch.counts[known]))
    return None
