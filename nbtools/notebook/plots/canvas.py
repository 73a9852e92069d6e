"""The live canvas: a widget that draws charts in the page; canvas.js draws, and sends the user's actions."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from nbtools.notebook.plots.charts import NONE_OPEN, PALETTE, Chart, Charts, Trace
from nbtools.notebook.plots.metric_names import section_of
from nbtools.rundir.json_files import finite

_HERE = Path(__file__).parent
SCRIPT = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("formats.js", "canvas.js"))
_UNITS = {"time": "clock", "relative": "seconds"}


class Canvas(anywidget.AnyWidget):
    """Draws `Charts` in the page; `receive` is called with each message of it, perhaps on another thread."""

    # As text: anywidget keeps a widget alive for each path, to reload it when the file changes.
    _esm = SCRIPT
    _css = (_HERE / "canvas.css").read_text(encoding="utf-8")
    spec = traitlets.Dict({}).tag(sync=True)
    data = traitlets.Bytes(b"").tag(sync=True)
    version = traitlets.Int(0).tag(sync=True)
    """Changes after `spec` and `data`."""
    palette = traitlets.Dict(PALETTE).tag(sync=True)

    def __init__(self, receive: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self.on_msg(lambda _, content, buffers: receive(content) if isinstance(content, dict) else None)

    def show(self, charts: Charts, *, alt: str, filter: str = "", only: str = "") -> None:
        """Send charts to the page, in one message; `only` is the key of the one that is shown in full size."""
        spec, data = packed(charts)
        if not (charts.shown or charts.message):
            spec["message"] = NONE_OPEN + (f": the filter is {filter}" if filter else "")
        with self.hold_sync():
            self.spec = {**spec, "alt": alt, "filter": filter, "only": only}
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
    return {"x": x, "charts": every, "message": charts.message or charts.note}, bytes(columns.content)


class PackedColumns:
    """Columns of curves as bytes of float64, one after the other; equal ones are there once. A zoom sends new ones."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, trace: Trace) -> dict[str, Any]:
        """Add the columns of a curve; returns its description, which has their offsets as `at`."""
        columns = trace.x, trace.low, trace.high, trace.mean, trace.bold
        at = [self._place(column.astype("<f8").tobytes()) for column in columns]
        described = {name: value for name, value in vars(trace).items() if not isinstance(value, np.ndarray)}
        return {**described, "is_exact": trace.is_exact, "n": len(trace.x), "at": at}

    def _place(self, content: bytes) -> int:
        """Return the offset of a column, which is added unless it is there."""
        if content not in self._places:
            self._places[content] = len(self.content)
            self.content += content
        return self._places[content]


def _chart(chart: Chart, columns: PackedColumns) -> dict[str, Any]:
    described = {"key": chart.key, "title": chart.title, "open": chart.is_open, "names": len(chart.names)}
    described["section"] = section_of(chart.names[0]) if chart.names else ""
    if chart.is_open:
        described = {**vars(chart), **described, "series": [columns.add(trace) for trace in chart.series]}
        described["marks"] = [{**asdict(mark), "y": finite(mark.y)} for mark in chart.marks]
        described["badge"] = asdict(chart.badge) if chart.badge else None
    return described
