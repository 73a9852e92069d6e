"""A page with the live canvas and a model that stands in for the kernel's: it keeps what the canvas sends."""

import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nbtools.notebook.plots
from nbtools.notebook.plots.canvas import PackedColumns
from nbtools.notebook.plots.charts import Trace
from nbtools.notebook.plots.decimation import decimate, log_ticks, number, smooth, ticks

CANVAS = Path(nbtools.notebook.plots.__file__).with_name("canvas.js")
ADDRESS = "http://canvas.test/"
"""Served by the page's own route: nothing listens there."""
PALETTE = {
    "light": {
        "line": "#3f90da",
        "evaluation": "#e76300",
        "other0": "#832db6",
        "other1": "#a96b59",
        "other2": "#92a4a2",
        "muted": "#6b7280",
        "alarm": "#bd1f01",
        "text": "#24292f",
    },
    "dark": {
        "line": "#5aa5ea",
        "evaluation": "#ffa90e",
        "other0": "#b98be0",
        "other1": "#c98f7d",
        "other2": "#b9ac70",
        "muted": "#9aa0a8",
        "alarm": "#c8311a",
        "text": "#e3e5e8",
    },
}
for _theme, _light in (("light", 46), ("dark", 66)):
    PALETTE[_theme] |= {f"run{index}": f"hsl({index * 137.5 % 360:.0f} 65% {_light}%)" for index in range(20)}

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
    """What a kernel sends: charts, and the bytes of their series."""

    def __init__(self, left: float, right: float, width: int = 900, **x: Any) -> None:
        limits = [float(left), float(right)]
        self.x = {"kind": "step", "label": "step", "unit": "count", "limits": limits, "full": limits}
        self.x |= {"is_zoomed": False, **x}
        self.columns = (width // 2 if width >= 640 else width) - 72
        self.charts: list[dict[str, Any]] = []
        self.traces: list[list[Trace]] = []
        self._columns = PackedColumns()

    @property
    def data(self) -> bytes:
        return self._columns.content

    def series(self, name: str, x: Sequence[float] | Any, y: Any, *, smoothing: float = 0.0, **more: Any) -> Trace:
        """Reduce a curve to columns."""
        x, y = np.asarray(x), np.asarray(y, dtype=float)
        left, right = self.x["limits"]
        curve = decimate(x, y, left, right, self.columns)
        inside = max(1, int(((x >= left) & (x <= right)).sum()))
        looks = {"label": name.partition("/")[0], "value": number(float(y[-1])), "colour": "line", **more}
        return Trace(
            **looks,
            name=name,
            x=curve.x,
            low=curve.low,
            high=curve.high,
            mean=curve.mean,
            bold=smooth(curve.mean, smoothing),
            is_smoothed=smoothing > 0,
            is_exact=curve.is_exact,
            per_column=inside / max(1, len(curve.x)),
        )

    def chart(self, title: str, *series: Trace, **more: Any) -> dict[str, Any]:
        """Append an open chart; its y limits are those of the series."""
        is_log = more.get("is_log", False)
        values = [column for trace in series for column in (trace.low, trace.high)]
        self.traces.append(list(series))
        shown = np.concatenate([*values, np.array([level["y"] for level in more.get("levels", [])])])
        with np.errstate(all="ignore"):
            shown = np.log10(shown) if is_log else shown
        shown = shown[np.isfinite(shown)]
        low, high = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)
        margin = 0.06 * (high - low) or 0.5
        low, high = low - margin, high + margin
        y_ticks = (log_ticks if is_log else ticks)(low, high, 6)
        x_ticks = ticks(*self.x["limits"], max(4, self.columns // 75), whole=True)
        self.charts.append(
            {
                "key": title,
                "title": title,
                "open": True,
                "names": len(series),
                "is_log": is_log,
                "can_log": True,
                "y": [low, high],
                "x_ticks": x_ticks,
                "y_ticks": y_ticks,
                "series": [self._columns.add(trace, is_log) for trace in series],
                "levels": [],
                "marks": [],
                "cuts": [],
                "veil": None,
                "badge": None,
                **more,
            }
        )
        return self.charts[-1]

    def folded(self, title: str, names: int = 1) -> None:
        """Append a closed chart."""
        self.charts.append({"key": title, "title": title, "open": False, "names": names, "series": []})

    def spec(self, **more: Any) -> dict[str, Any]:
        """Return the description of all charts."""
        described = {"alt": "curves of second", "message": "", "smoothing": 0.6, "columns": 2, "filter": ""}
        return {"x": self.x, **described, "charts": self.charts, **more}


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
            f"{ADDRESS}canvas.js": ("text/javascript", CANVAS.read_text(encoding="utf-8")),
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
        described = json.loads(json.dumps(spec.spec(**more)))
        version = self.page.evaluate("([spec, data]) => push(spec, data)", [described, self.encoded(spec)])
        if any(chart["open"] for chart in spec.charts):
            self.page.wait_for_function(
                "version => document.getElementById('el').dataset.version == version", arg=version
            )

    @staticmethod
    def encoded(spec: Spec) -> str:
        """The bytes of a spec as text."""
        return base64.b64encode(spec.data).decode()

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
        {"x": float(x), "y": float(y), "kind": "checkpoint", "label": f"step-{int(x):06d}"}
        for x, y in zip(at[1::2], evals[1::2], strict=True)
    ]
    marks[-1]["kind"] = "best"
    spec.chart(
        "Loss",
        spec.series("train/loss", steps, loss, smoothing=0.6),
        spec.series("eval/loss", at, evals, colour="evaluation", dots=True, width=1.4),
        levels=[{"label": "unigram", "value": "5.303", "y": 5.303, "colour": "muted", "dash": [5, 3]}],
        marks=marks,
    )
    accuracy = 0.3 * (1 - np.exp(-3 * at / num))
    spec.chart("Scores", spec.series("eval/accuracy", at, accuracy, colour="evaluation", dots=True, width=1.4))
    rate = np.minimum(steps / (num / 10), (num - steps) / (0.9 * num)) * 0.003
    spec.chart("Learning rate", spec.series("train/lr", steps, rate))
    rng = np.random.default_rng(1)
    speed = 33e3 * (1 - 0.3 * (rng.random(num) ** 9)) * (1 + math.log1p(num) * 0)
    spec.chart("Throughput", spec.series("train/tokens_per_s", steps, speed, smoothing=0.6, label="tokens/s"))
    for title, names in (("grad_norm", 3), ("weight_decay", 1), ("memory", 2)):
        spec.folded(title, names)
    return spec
