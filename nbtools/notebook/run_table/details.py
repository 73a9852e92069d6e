"""Details of a run in the table, beside its records: one metric's curve, and the fields that differ from a preset."""

from contextlib import suppress
from typing import Any

import numpy as np

from nbtools.errors import RunNotFoundError, shown
from nbtools.metrics.direction import direction_of
from nbtools.notebook.run_table.row_html import Details
from nbtools.recipes import RECIPES
from nbtools.run.curves import SMALL_BYTES, Curves, num_bytes, quick_curves, read_curves
from nbtools.run.listing import Rows, RunRow
from nbtools.run.records import mapping_at

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
