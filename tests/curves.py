"""Histories of metric rows, and the charts of a view as the page shows them."""

import json
from collections.abc import Iterable
from typing import Any

from nbtools.metrics.history import History
from nbtools.notebook.plots.charts import Charts, charts_of, page_sizes
from nbtools.notebook.plots.view import View


def history(rows: Iterable[dict[str, Any]]) -> History:
    """Read rows as from a file."""
    made = History()
    made.extend(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return made


def repeated(num_rows: int = 2, **row: Any) -> History:
    """Read the same values at each of some steps, which are 1, 2 and so on."""
    return history({"step": i, "time": i, **row} for i in range(1, num_rows + 1))


def charts(view: View, width: float = 900) -> Charts:
    """Return the charts of a view in a page of a width."""
    return charts_of(view, lambda num_open: page_sizes(num_open, width))
