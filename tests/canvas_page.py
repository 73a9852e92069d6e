"""A page with the live canvas and a model that stands in for the kernel's: it keeps what the canvas sends."""

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import nbtools.notebook.plots
from nbtools.metrics.columns import Series
from nbtools.notebook.plots.canvas import SCRIPT, packed
from nbtools.notebook.plots.charts import PALETTE, Chart, Charts, Mark, Trace, chart_of, page_sizes
from nbtools.notebook.plots.decimation import decimate, number, smooth

CANVAS = Path(nbtools.notebook.plots.__file__).with_name("canvas.js")
ADDRESS = "http://canvas.test/"
"""Served by the page's own route: nothing listens there."""
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="canvas.css">
<body style="margin:0; background:BACKGROUND"><div id="el"></div>
<script type="module">
import canvas from "./canvas.js";
const listeners = new Map();
window.sent = [];
window.state = {};
window.model = {
  get: name => window.state[name],
  on: (name, action) => listeners.set(name, [...(listeners.get(name) ?? []), action]),
  off: (name, action) => listeners.set(name, (listeners.get(name) ?? []).filter(other => other !== action)),
  send: message => { window.sent.push(message); },
  listeners,
};
window.push = (spec, encoded) => {
  const bytes = Uint8Array.from(atob(encoded), c => c.charCodeAt(0)), shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);  // a model's bytes begin anywhere in their buffer
  Object.assign(window.state, {spec, data: new DataView(shifted.buffer, 3, bytes.length)});
  window.state.version = (window.state.version ?? 0) + 1;
  for (const action of listeners.get("change:version") ?? []) action();
  return window.state.version;
};
window.start = palette => {
  window.state.palette = palette;
  window.stop = canvas.render({model: window.model, el: document.getElementById("el")});
};
</script>"""


class Spec:
    """Charts as a kernel sends them; `x` are further entries of the description of the axis."""

    def __init__(self, left: float, right: float, width: int = 900, **x: Any) -> None:
        self.limits = float(left), float(right)
        self.x = {"full": self.limits, "is_zoomed": False, **x}
        self.columns = page_sizes(4, width)[0][0]
        self.charts: list[Chart] = []

    def series(self, name: str, x: Sequence[float] | Any, y: Any, *, smoothing: float = 0.0, **more: Any) -> Trace:
        """Reduce a curve to columns."""
        x, y = np.asarray(x), np.asarray(y, dtype=float)
        curve = decimate(Series(x, y, x, x), x, self.limits, self.columns)
        looks = {"label": name.partition("/")[0], "value": number(float(y[-1])), "colour": "line", **more}
        return Trace(**vars(curve), **looks, name=name, bold=smooth(curve.mean, smoothing), is_smoothed=smoothing > 0)

    def chart(self, title: str, *series: Trace, y: tuple[float, float] | None = None, **more: Any) -> Chart:
        """Append an open chart; its y limits are those of the series, unless `y` has others."""
        chart = Chart(title, title, [trace.name for trace in series], can_log=True, series=series, **more)
        chart = chart_of(chart, self.limits, "step", (self.columns, 190))
        self.charts.append(replace(chart, y=y or chart.y))
        return self.charts[-1]

    def folded(self, title: str, names: int = 1) -> None:
        """Append a closed chart."""
        self.charts.append(Chart(title, title, [title] * names))

    def packed(self, **more: Any) -> tuple[dict[str, Any], bytes]:
        """Return the description of all charts, and the bytes of their series."""
        spec, data = packed(Charts("step", self.limits, charts=self.charts))
        spec["x"] |= self.x
        return {**spec, "alt": "curves of second", "filter": "", **more}, data


class CanvasPage:
    """The page under test."""

    def __init__(self, page: Any, background: str = "#ffffff") -> None:
        self.page = page
        self.mistakes: list[str] = []
        self.requests: list[str] = []
        page.on("pageerror", lambda error: self.mistakes.append(str(error)))
        page.on("console", lambda message: self.mistakes.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        files = {
            ADDRESS: ("text/html", PAGE.replace("BACKGROUND", background)),
            f"{ADDRESS}canvas.js": ("text/javascript", SCRIPT),
            f"{ADDRESS}canvas.css": ("text/css", CANVAS.with_suffix(".css").read_text(encoding="utf-8")),
        }

        def answer(route: Any) -> None:
            kind, body = files.get(route.request.url, ("text/plain", ""))
            route.fulfill(status=200 if body else 404, content_type=kind, body=body)

        page.route("**/*", answer)
        page.goto(ADDRESS)
        page.wait_for_function("typeof window.start == 'function'")

    def push(self, spec: Spec, **more: Any) -> None:
        """Send a spec as the kernel does, and wait until it is drawn."""
        version = self.page.evaluate("([spec, data]) => push(spec, data)", self.encoded(spec, **more))
        if any(chart.is_open for chart in spec.charts):
            self.page.wait_for_function(
                "version => document.getElementById('el').dataset.version == version", arg=version
            )

    @staticmethod
    def encoded(spec: Spec, **more: Any) -> list[Any]:
        """Return a spec as the page takes it."""
        described, data = spec.packed(**more)
        return [json.loads(json.dumps(described)), base64.b64encode(data).decode()]

    def start(self, spec: Spec, **more: Any) -> "CanvasPage":
        """Show a first spec."""
        self.page.evaluate("palette => start(palette)", PALETTE)
        self.push(spec, **more)
        return self

    def sent(self, key: str) -> list[Any]:
        """What the canvas sent under a key."""
        return [message[key] for message in self.page.evaluate("window.sent") if key in message]

    def data(self, name: str) -> str:
        """An entry of the canvas's data set."""
        return str(self.page.evaluate("name => document.getElementById('el').dataset[name] ?? ''", name))

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def loss_curve(num: int, seed: int = 0, scale: float = 7.5) -> tuple[Any, Any]:
    """Steps and values that look like a training loss."""
    rng = np.random.default_rng(seed)
    steps = np.arange(num)
    return steps, scale * (0.25 + 0.75 * np.exp(-5 * steps / num)) * np.exp(0.06 * rng.standard_normal(num))


def run_of(num: int = 600_000, width: int = 900, left: float = 0, right: float | None = None) -> Spec:
    """A run as the panel shows it: a loss with evaluations, checkpoints and a baseline, and three further charts."""
    right = float(num if right is None else right)
    spec = Spec(left, right, width, full=[0.0, float(num)], is_zoomed=(left, right) != (0, num))
    steps, loss = loss_curve(num)
    at = np.linspace(num / 10, num, 10).round()
    evals = 7.5 * (0.3 + 0.7 * np.exp(-5 * at / num))
    marks = [
        Mark(float(x), float(y), int(x), "best" if x == at[-1] else "checkpoint", f"step-{int(x):06d}")
        for x, y in zip(at[1::2], evals[1::2], strict=True)
    ]
    spec.chart(
        "Loss",
        spec.series("train/loss", steps, loss, smoothing=0.6),
        spec.series("eval/loss", at, evals, colour="evaluation", dots=True, width=1.4),
        spec.series("eval/unigram_loss", steps, np.full(num, 5.303), label="unigram", colour="muted", dash=(5, 3)),
        marks=marks,
    )
    accuracy = 0.3 * (1 - np.exp(-3 * at / num))
    spec.chart("Scores", spec.series("eval/accuracy", at, accuracy, colour="evaluation", dots=True, width=1.4))
    rate = np.minimum(steps / (num / 10), (num - steps) / (0.9 * num)) * 0.003
    spec.chart("Learning rate", spec.series("train/lr", steps, rate))
    speed = 33e3 * (1 - 0.3 * (np.random.default_rng(1).random(num) ** 9))
    spec.chart("Throughput", spec.series("train/tokens_per_s", steps, speed, smoothing=0.6, label="tokens/s"))
    for title, names in (("grad_norm", 3), ("weight_decay", 1), ("memory", 2)):
        spec.folded(title, names)
    return spec
