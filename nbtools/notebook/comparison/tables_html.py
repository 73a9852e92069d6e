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
from nbtools.run.compare import MOST_RUNS, ComparedRun, Comparison
from nbtools.run.curves import Curves

_MOST_METRICS = 8
_CELL = f"padding:2px 10px 2px 0;text-align:left;vertical-align:top;white-space:nowrap;border-bottom:{BORDER}"


def tables_html(comparison: Comparison) -> str:
    """Return all tables of a comparison; names and values are escaped."""
    rows, note = scaling_rows(comparison.members)
    scaling = _table("Scaling", rows, note) if rows else ""
    parts = [_notes(comparison), scaling, _table_of(comparison) if comparison.members else ""]
    return f"<div class='{NO_FORMULAS}' style='{FONT}{TEXT}max-width:100%'>{''.join(parts)}</div>"


def _notes(comparison: Comparison) -> str:
    lines = [*comparison.notes]
    for run in comparison.members:
        parents = ", ".join(f"{name} up to step {step:,}" for name, step in run.sources)
        lines += [f"{run.label}: its curves begin with those of {parents}"] * bool(parents)
    return "".join(f"<div style='{MUTED}'>{literal(line)}</div>" for line in lines)


def swatch(index: int) -> str:
    """Return a sample of the line of a run as HTML."""
    colour, dash = role(index)
    dashes = f" stroke-dasharray='{' '.join(f'{2 * part:g}' for part in dash)}'" if dash else ""
    return (
        "<svg width='24' height='8' aria-hidden='true' style='max-width:none;vertical-align:middle;margin-right:6px'>"
        f"<path d='M0 4H24' stroke='{PALETTE[colour]}' stroke-width='2.5'{dashes}/></svg>"
    )


def _run_cell(run: ComparedRun) -> str:
    return f"<span title='{literal(run.run.id)}'>{swatch(run.slot)}{literal(run.label)}</span>"


def _table(title: str, rows: Sequence[Sequence[str]], note: str = "") -> str:
    """Return a table of escaped cells; the first row and the first column are headings."""
    body = [[cells[0], *(f"<span style='{MONO}'>{cell}</span>" for cell in cells[1:])] for cells in rows[1:]]
    table = table_html(body, rows[0], cell=_CELL)
    below = f"<div style='{MUTED}'>{note}</div>" if note else ""
    return f"<div style='margin:12px 0 2px'><b>{title}</b></div><div style='overflow-x:auto'>{table}</div>{below}"


def _table_of(comparison: Comparison) -> str:
    """Return state, differing fields, and best and last values of the runs as one table, and how scripts differ."""
    first, *others = runs = comparison.members
    every = [name for run in runs for name in run.curves if kind_of(name) != "baseline" and not name.endswith("epoch")]
    metrics = sorted(dict.fromkeys(every), key=lambda name: (direction_of(name) is None, name.endswith("_per_s")))
    states = [str(run.state) for run in comparison.runs]
    steps = [facts.steps(run.step, run.total_steps) for run in comparison.runs]
    rows = [["field", *map(_run_cell, runs)], ["state", *states], ["step", *steps]]
    rows += [[*map(literal, (one.name, *one.values))] for one in comparison.differences]
    rows += [[literal(name), *_end_cells(name, runs)] for name in metrics[:_MOST_METRICS]]
    notes = ["No recorded field, version or line of code differs"] * (not comparison.differences)
    notes += ["best (at its step) → last; the best of all runs is bold"] * bool(metrics)
    notes += [plural(len(metrics) - _MOST_METRICS, "more metric")] * (len(metrics) > _MOST_METRICS)
    codes = [
        diff(f"Script of {run.label} against that of {first.label}", lines, "script.py in the run's directory")
        for run in others
        if (lines := _diff(*(one.facts.get("code.script", "") for one in (first, run))))
    ]
    return _table("What differs", rows, "; ".join(notes)) + "".join(codes)


def _end_cells(name: str, runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield best and last value of a metric in each run."""
    ends = [run.curves[name].ends if name in run.curves else None for run in runs]
    known = {one.best for one in ends if one and one.best is not None}
    best = (max if direction_of(name) == "higher" else min)(known) if len(known) > 1 else None
    for one in ends:
        told = f"{literal(number(one.best))} ({one.best_step:,})" if one and one.best is not None else ""
        told = f"<b>{told}</b> → " if told and one and one.best == best else f"{told} → " if told else ""
        yield told + literal(number(one.last)) if one else "–"


@lru_cache(maxsize=MOST_RUNS)  # the tables are made again while rows arrive
def _diff(first: str, other: str) -> Sequence[str]:
    both = first.splitlines(), other.splitlines()
    return [*unified_diff(*both, lineterm="")][2:] if all(both) else []


_HEAD = ["run", "processes", "throughput", "efficiency", "waiting for data", "for other processes"]
_WAITS = "data_wait", "peer_wait"


def scaling_rows(runs: Sequence[ComparedRun]) -> tuple[list[list[str]], str]:
    """Return the rows of the card as HTML, the heading first, and a note; no rows unless two runs can be compared.

    Throughput is that of all processes; efficiency, the throughput per process against that of the fewest processes.
    """
    known = [(run.nproc, run) for run in runs if run.nproc]
    if len({count for count, _ in known}) < 2:
        return [], ""
    has_samples = all(_pace(run.curves, "samples") is not None for _, run in known if run.curves)
    unit = "samples" if has_samples else "steps"
    paced = [(count, run, _pace(run.curves, unit)) for count, run in known]
    _, least = min(((count, rate / count) for count, _, rate in paced if rate), default=(0, 0.0))
    rows = [_HEAD]
    for count, run, rate in paced:
        efficiency = rate / count / least if rate else None
        # The slowest process's wait for data, and the mean wait of all for the last one.
        waits = ["not recorded" if (wait := _mean(run.curves, name)) is None else f"{wait:.0%}" for name in _WAITS]
        waits[1] = "–" if count == 1 else waits[1]
        told = f"{number(rate)} {unit}/s" if rate else "not yet known"
        share = "not yet known" if efficiency is None else f"{efficiency:.0%}"
        rows.append([_run_cell(run), str(count), told, share, *waits])
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
