"""`report`: runs as one HTML file to send, with curves to hover and zoom, that requests nothing."""

import base64
import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

import orjson

from nbtools import __version__
from nbtools.errors import ConfigError, literal, plural
from nbtools.machine.on_end import sentence_on_end
from nbtools.notebook.comparison.overlay import overlay
from nbtools.notebook.comparison.tables_html import tables_html
from nbtools.notebook.plots import canvas
from nbtools.notebook.plots.charts import PALETTE, Charts, Size, charts_of
from nbtools.notebook.plots.media_html import static_html
from nbtools.notebook.plots.metric_names import grouped
from nbtools.notebook.plots.view import Options, view_of, x_ticks
from nbtools.notebook.run_html import plain_table, recorded_values, uncommitted
from nbtools.run import facts
from nbtools.run.compare import Comparison, compare_runs, parting
from nbtools.run.curves import read_curves
from nbtools.run.run import Run
from nbtools.rundir import media

_HERE = Path(__file__).parent
_MOST_BYTES = 1_000_000
_CURVE_BYTES = 600_000
_COLUMN_BYTES = 54
"""Bytes of a column in base64: x, low, high, mean and bold."""
_LEAST_COLUMNS, _MOST_COLUMNS = 100, 1000
"""Columns of a curve; up to 2,000 points are kept as they are."""
_NUM_OPEN, _NUM_TICKS = 6, 6
_OF_MACHINE = "machine.host", "variables."


def report(*refs: object, path: str | Path, details: bool = False, **options: Any) -> Path:
    """Write runs as one HTML file below 1 MB: curves, what differs, samples, and the command to repeat each.

    Args:
        refs: runs, ids, names, or patterns such as `"lr_*"` for names and ids; lists of these.
        path: the file to write, `report.html`.
        details: also the uncommitted changes and the scripts' differences, paths, and names of hosts.
        options: `x`, `log`, `smoothing`, and for several runs `split`, as of `compare`.

    Raises:
        RunNotFoundError: a reference or pattern fits no run.
        ConfigError: the path does not end in `.html`.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{path}: the report is HTML, so the name must end in .html")
    path.write_text(report_html(*refs, details=details, **options), encoding="utf-8")
    return path


def report_html(*refs: object, details: bool = False, **options: Any) -> str:
    """Return the text of the file that `report` writes."""
    compared = compare_runs(*refs, least=1)
    compared, runs = (compared if details else _public(compared)).with_curves(read_curves), compared.runs
    charts = _charts(compared, {"metrics": ("*",), **options})
    spec, data = canvas.packed(charts)
    spec["x"]["kinds"] = [charts.x]
    spec["charts"] = [chart for chart in spec["charts"] if chart["open"]]  # the others lack a place on this axis
    for chart in spec["charts"][_NUM_OPEN:]:
        chart["open"] = False
    spec |= {"alt": "curves", "filter": ""}
    kept = {"spec": spec, "palette": PALETTE, "data": base64.b64encode(data).decode()}
    named = {one.label: one.run for one in compared.members}
    lead = [sentence_on_end(run.files, name, run.state, run.records.exit or {}) for name, run in named.items()]
    lead += [_parting(name, run, *next(iter(named.items()))) for name, run in [*named.items()][1:]]
    lead = lead if details else [facts.without_folders(line) for line in lead]
    tables = [tables_html(compared)] * (len(runs) > 1)
    parts = {
        "title": literal(", ".join(dict.fromkeys(run.name for run in runs))),
        "lead": "".join(f"<p>{literal(line)}</p>" for line in lead),
        "footer": f"nbtools {__version__}, {time.strftime('%Y-%m-%d %H:%M')}",
        "css": Path(canvas.__file__).with_name("canvas.css").read_text(encoding="utf-8"),
        "charts": orjson.dumps(kept).decode().replace("<", "\\u003c"),
        "script": canvas.SCRIPT + (_HERE / "report.js").read_text(encoding="utf-8"),
    }
    room = _MOST_BYTES - sum(map(len, parts.values())) - sum(map(len, tables))
    tables += [_part(name, run, room // len(runs), details=details) for name, run in named.items()]
    parts["body"] = "".join(tables)
    return Template((_HERE / "report.html").read_text(encoding="utf-8")).substitute(parts)


def _charts(compared: Comparison, options: Mapping[str, Any]) -> Charts:
    """Return all charts, open, with as many columns of each curve as the file has room for."""
    first, *others = compared.members
    columns = _CURVE_BYTES // (_COLUMN_BYTES * max(1, sum(len(one.curves) for one in compared.members)))
    size = min(_MOST_COLUMNS, max(_LEAST_COLUMNS, columns)), 200

    def sizes(num_open: int) -> list[Size]:
        return [size] * num_open

    if others:
        found = overlay(compared.split_by(options.get("split", "")), Options(**options), sizes)
    else:
        shown = {name: first.curves[name] for _, names in grouped(first.curves) for name in names}
        found = charts_of(view_of(first.run, shown, **options), sizes)
    ticks = x_ticks(found.x, *found.limits, _NUM_TICKS)  # those of a plot area as wide as the columns are too many
    return replace(found, charts=[replace(chart, x_ticks=ticks) for chart in found.charts])


def _parting(name: str, run: Run, first: str, other: Run) -> str:
    """Return from where on a run has not the values of the first one."""
    last, parted = parting(run, other, is_repeat=False)
    same = f"has the values of {first} up to step {last:,}" if last else f"has no steps in common with {first}"
    return f"{name} {f'differs from {first} from {parted}' if parted else same}"


def _public(compared: Comparison) -> Comparison:
    """Return a comparison without hosts, variables and sources, and without the folders of paths."""
    shown = [one for one in compared.differences if not one.name.startswith(_OF_MACHINE)]
    shown = [replace(one, values=tuple(map(facts.without_folders, one.values))) for one in shown]
    members = [replace(run, facts={**run.facts, "code.script": ""}) for run in compared.members]
    return replace(compared, differences=shown, members=members)


def _part(name: str, run: Run, room: int, *, details: bool) -> str:
    """Return the values of a run, its samples within the room that is left, and how to repeat it."""
    own, _ = recorded_values(run)
    events = run.events if details else [replace(event, by="") for event in run.events]  # user and host
    how = [("run", run.id), ("repeat", f"nbtools launch --again {run.id}")]
    how += [("commit", facts.commit(run.info)), ("origin", facts.origin(run.info))]
    started = facts.how_started({"script": run.info.get("script"), **facts.started_as(run.info)})
    how += [pair for pair in started if details or pair[0] == "arguments"]
    tables = ([row for row in how if row[1]], ()), (own, ("field", "value", "default", "")), (facts.steered(events), ())
    shown = str if details else facts.without_folders
    parts = [plain_table([[*map(shown, row)] for row in rows], head) for rows, head in tables if rows]
    parts += [uncommitted(run)] * details
    samples = [static_html(item) for item in media.latest(run.files.media)]
    fitting = [one for one, end in zip(samples, itertools.accumulate(map(len, samples)), strict=True) if end < room]
    left = f"<p>{plural(len(samples) - len(fitting), 'more sample')} left out</p>" * (len(fitting) < len(samples))
    return f"<h2>{literal(name)}</h2>{''.join([*parts, *fitting])}{left}"
