"""The HTML of the tabs that are text alone: config and machine of a run; every text is escaped."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nbtools.errors import literal, plural, shown
from nbtools.notebook.html_parts import FONT, MONO, MUTED, TEXT, details_html, diff, sparkline, table_html
from nbtools.recipes import RECIPES
from nbtools.run import facts
from nbtools.run.compare import reproduced
from nbtools.run.records import mapping_at
from nbtools.run.run import Run
from nbtools.rundir.git_source import recorded_diff
from nbtools.rundir.json_files import whole

_NUM_MEASURED = 120
"""Points of the small curves of the machine; each is the mean of a part of the run."""


def recorded_values(run: Run) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the values of a recipe's run that differ from the defaults, with these, and the others."""
    known = run.config or {}
    values, flags = mapping_at(known, "config"), mapping_at(known, "overridden")
    key = str(known.get("recipe") or run.info.get("recipe") or "")
    own: list[tuple[str, ...]] = []
    usual: list[tuple[str, ...]] = []
    fields = RECIPES[key].config_class.model_fields if key in RECIPES else {}
    for name, value in values.items():
        is_known = name in fields and not fields[name].is_required()
        default = _plain(fields[name].get_default(call_default_factory=True)) if is_known else None
        if is_known and default == _plain(value):
            usual.append((name, shown(value, 200)))
        else:
            own.append((name, shown(value, 200), shown(default, 100) if is_known else "", "flag" * (name in flags)))
    return own, usual


def config(run: Run) -> str:
    """Return the values of a run: those that differ from the recipe's defaults first, the others folded."""
    own, usual = recorded_values(run)
    launch = {**mapping_at(run.info, "launch"), **mapping_at(run.config or {}, "derived")}
    launched = facts.how_started({"script": run.info.get("script"), **facts.started_as(run.info)})
    launched += [(name, shown(value, 200)) for name, value in launch.items() if value not in (None, [], {})]
    head = f"<div style='{FONT}{TEXT}margin:0 0 2px'><b>Differs from the default ({len(own)})</b></div>"
    notes = [(f"weights ({field})", note) for field, note in facts.weights(run.config).items()]
    notes += [("repeats", verdict.removeprefix("repeats "))] if (verdict := reproduced(run)) else []
    launched.append(("again", f"nbtools launch --again {run.id}"))
    parts = [plain_table(notes)] * bool(notes)
    for title, rows in (("Steered", facts.steered(run.events)), ("Notices", facts.notices(run.files))):
        parts += [details_html(f"{title} ({len(rows)})", plain_table(rows), is_open=True)] * bool(rows)
    parts += [head, plain_table(own, ("field", "value", "default", ""))] * bool(own)
    parts += [details_html(f"As by default ({len(usual)})", plain_table(usual))] * bool(usual)
    parts += [details_html("Launch", plain_table(launched), is_open=not own + usual), uncommitted(run)]
    return "".join(parts)


def uncommitted(run: Run, of: str = "") -> str:
    """Return the changes of tracked files that a run started with, folded; empty without."""
    try:
        lines = recorded_diff(run.files).decode(errors="replace").splitlines()
    except OSError as error:
        lines = [str(error)]
    num_lines = whole(mapping_at(run.info, "code").get("lines")) or 0
    return diff(f"Uncommitted changes{of} ({plural(num_lines, 'line')})", lines, f"nbtools show {run.id} --diff")


def machine(measured: Mapping[str, Sequence[float]]) -> str:
    """Return the last value of each quantity of the machine, with a small curve of the whole run."""
    rows = []
    for name, values in measured.items():
        title, *label = name.split("/", 1)
        title, _, unit = title.rpartition(" ")
        top = 100.0 if unit == "%" else 0.0
        known = values[-1], max(values)
        said, most = (f"{one:.0f}%" if unit == "%" else f"{one:.3g} {literal(unit)}" for one in known)
        of = f" <span style='{MUTED}'>{literal(label[0])}</span>" if label else ""
        means = [float(part.mean()) for part in np.array_split(values, min(len(values), _NUM_MEASURED))]
        curve = sparkline(means, (0.0, max(top, *values)), (160, 20))
        rows.append((f"{literal(title)}{of}", f"<b>{said}</b>", curve, f"<span style='{MUTED}'>most {most}</span>"))
    if not rows:
        return f"<div style='{FONT}{MUTED}'>Nothing has been measured yet.</div>"
    return table_html(rows)


def plain_table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Return rows of plain text as a table."""
    every = (map(literal, row) for row in rows)
    cells = ([first, *(f"<span style='{MONO}'>{cell}</span>" for cell in rest)] for first, *rest in every)
    titles = [f"<span style='{MUTED}'>{literal(cell)}</span>" for cell in head]
    return table_html(cells, titles, style="margin:0 0 8px")


def _plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return getattr(value, "value", value)
