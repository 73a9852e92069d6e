"""The live canvas: a widget that draws charts in the page; canvas.js draws, and sends the user's actions."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from nbtools.notebook.plots.charts import NONE_OPEN, PALETTE, Chart, Charts, Trace, num_columns
from nbtools.notebook.plots.decimation import Floats

DEFAULT_WIDTH = 900
"""Width in CSS pixels until the page has sent its own."""
_HERE = Path(__file__).parent
_FIELDS = (
    *("name", "label", "run", "value", "colour", "dash", "width", "dots", "is_smoothed", "is_exact", "per_column"),
)
"""Fields of a `Trace` that are sent besides its columns."""
_UNITS = {"time": "clock", "relative": "seconds"}
_GAP = 65535
_NUM_STEPS = _GAP - 2


class Canvas(anywidget.AnyWidget):
    """Draws `Charts` in the page; `receive` is called with each message of it, perhaps on another thread."""

    # As text: anywidget keeps a widget alive for each path, to reload it when the file changes.
    _esm = (_HERE / "canvas.js").read_text(encoding="utf-8")
    _css = (_HERE / "canvas.css").read_text(encoding="utf-8")
    spec = traitlets.Dict({}).tag(sync=True)
    data = traitlets.Bytes(b"").tag(sync=True)
    version = traitlets.Int(0).tag(sync=True)
    """Changes after `spec` and `data`."""
    palette = traitlets.Dict(PALETTE).tag(sync=True)

    def __init__(self, receive: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self.on_msg(lambda _, content, buffers: receive(content) if isinstance(content, dict) else None)

    def show(self, charts: Charts, *, alt: str, smoothing: float = 0.0, filter: str = "", width: float = 0.0) -> None:
        """Send charts to the page, in one message; `width` is that of the page, 0 if it is not known."""
        spec, data = packed(charts)
        columns = num_columns(len(charts.shown), width or DEFAULT_WIDTH)
        if not (charts.shown or charts.message):
            spec["message"] = NONE_OPEN + (f": the filter is {filter}" if filter else "")
        with self.hold_sync():
            self.spec = {**spec, "alt": alt, "smoothing": smoothing, "columns": columns, "filter": filter}
            self.data = data
            self.version += 1


def packed(charts: Charts) -> tuple[dict[str, Any], bytes]:
    """Return the description of charts as JSON, and the columns of their curves as bytes; see `PackedColumns`."""
    columns = PackedColumns()
    x: dict[str, Any] = {"kind": charts.x, "label": charts.x_label, "unit": _UNITS.get(charts.x, "count")}
    x["step"] = charts.unit
    x["ahead"] = time.localtime(charts.limits[1]).tm_gmtoff if charts.x == "time" else 0
    x |= {"kinds": charts.kinds, "limits": charts.limits, "full": charts.full, "is_zoomed": charts.is_zoomed}
    every = [_chart(chart, columns) for chart in charts.charts]
    return {"x": x, "charts": every, "message": charts.message or charts.note}, columns.content


class PackedColumns:
    """PackedColumns of curves as bytes, one after the other, each at a multiple of 8; equal ones are there once.

    `x` is float64. What is drawn (low, high, bold) is uint16: 1 to 65534 are equal steps of the curve's own range on
    the y axis (exponents of 10 on a logarithmic one), finer than a pixel of any zoom, since a zoom sends new columns;
    0 has no logarithm, 65535 is a gap. The mean is a value, for reading: float32, or float64 (`is_wide`) where float32
    is coarser than those steps or overflows. So the value of an exact curve is shown as it was recorded, to 6 digits,
    and the ends of a column's range only to the digits that a step leaves, at most 4.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._end = 0

    @property
    def content(self) -> bytes:
        return b"".join(self._parts)

    def add(self, trace: Trace, is_log: bool) -> dict[str, Any]:
        """Add the columns of a curve; returns its description, which has their offsets as `at`."""
        low, high, bold = (_positions(column, is_log) for column in (trace.low, trace.high, trace.bold))
        known = np.concatenate((low, high, bold))
        known = known[np.isfinite(known)]
        start, end = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        step = (end - start) / _NUM_STEPS
        is_wide = _is_wide(trace.mean)
        columns = (trace.x, _codes(low, start, step), _codes(high, start, step), trace.mean, _codes(bold, start, step))
        kinds = ("<f8", "<u2", "<u2", "<f8" if is_wide else "<f4", "<u2")
        at = [self._place(np.ascontiguousarray(*each).tobytes()) for each in zip(columns, kinds, strict=True)]
        described = {name: getattr(trace, name) for name in _FIELDS}
        return {**described, "n": len(trace.x), "at": at, "from": start, "step": step, "is_wide": is_wide}

    def _place(self, content: bytes) -> int:
        """Return the offset of a column, which is added unless it is there."""
        if content not in self._places:
            self._places[content] = self._end
            self._parts.append(content + bytes(-len(content) % 8))
            self._end += len(self._parts[-1])
        return self._places[content]


def _positions(values: Floats, is_log: bool) -> Floats:
    """Return the positions of values on the y axis: NaN is a gap, -inf has no logarithm."""
    if not is_log:
        return np.where(np.isfinite(values), np.clip(values, -1e300, 1e300), np.nan)
    with np.errstate(divide="ignore"):
        return np.where(np.isfinite(values), np.log10(np.maximum(values, 0.0)), np.nan)


def _codes(positions: Floats, start: float, step: float) -> Floats:
    codes = np.rint((positions - start) / (step or 1.0)) + 1
    return np.where(np.isnan(positions), _GAP, np.maximum(codes, 0.0))


def _is_wide(values: Floats) -> bool:
    """Whether float32 lacks the precision or the range for the values."""
    known = values[np.isfinite(values)]
    if not len(known):
        return False
    with np.errstate(over="ignore"):
        error = float(np.abs(known.astype(np.float32) - known).max())
        return error == np.inf or 0.0 < float(np.ptp(known)) / _NUM_STEPS < error


def _chart(chart: Chart, columns: PackedColumns) -> dict[str, Any]:
    described = {"key": chart.key, "title": chart.title, "open": chart.is_open, "names": len(chart.names)}
    if not chart.is_open:
        return described
    described |= {name: getattr(chart, name) for name in ("is_log", "can_log", "y", "x_ticks", "y_ticks", "veil")}
    return {
        **described,
        "series": [columns.add(trace, chart.is_log) for trace in chart.series],
        "levels": [asdict(level) for level in chart.levels if _known(level.y) is not None],
        "marks": [{**asdict(mark), "y": _known(mark.y)} for mark in chart.marks],
        "cuts": [{"x": x, "label": label} for x, label in chart.cuts],
        "badge": asdict(chart.badge) if chart.badge else None,
    }


def _known(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
