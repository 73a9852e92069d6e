"""The board: the list of runs, the charts of those that are drawn, what differs between these, and actions on runs.

Its thread reads the runs on the page of the list, then the curves, and looks at active runs every two seconds.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nbtools.errors import NbtoolsError, plural
from nbtools.launcher.resume import resume
from nbtools.notebook.board.actions import BoardControls, Removal
from nbtools.notebook.board.curve_reader import CurveReader
from nbtools.notebook.board.group_curves import joined
from nbtools.notebook.board.run_lines import FILE, RunLines, read_layout
from nbtools.notebook.comparison.overlay import overlay, run_legend, title_of_runs
from nbtools.notebook.comparison.tables_html import tables_html
from nbtools.notebook.html_parts import note
from nbtools.notebook.panel.page import STYLE
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.plots.chart_view import ChartView
from nbtools.notebook.plots.charts import Charts, Sizes
from nbtools.notebook.plots.figure import RunFigure
from nbtools.notebook.plots.view import Options, X
from nbtools.notebook.run_html import uncommitted
from nbtools.notebook.widgets import answers_beside_cells
from nbtools.run.compare import MOST_RUNS, Comparison, compare_runs
from nbtools.run.listing import Rows, RunList, RunRow
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.names import label
from nbtools.rundir.rundir import RunDir

REFRESH_S, _READING_S = 2.0, 0.3
"""Between two looks at the runs, and while the rows of long ones are read."""
NUM_DRAWN = 10
"""Newest runs that are drawn at first: each has a hue of its own."""


class Board(ChartView):
    """The runs of a project, side by side.

    Args:
        lists: The runs to list, of one folder or of several. Default: those in the folders of the drawn ones.
        drawn: The runs that are drawn, and alone listed at first; by default, the newest are drawn and all are listed.
        options: Those of `Options`: what the charts show until the page chooses otherwise.

    Attributes:
        comparison: What is drawn and what differs.
        widget: The widgets, to place into others.
    """

    def __init__(self, lists: Sequence[RunList] = (), drawn: Comparison | None = None, **options: Any) -> None:
        text = "a board of runs" if drawn is None else f"<comparison of {plural(len(drawn.runs), 'run')}>"
        super().__init__("board", text, Options(**options))
        self.comparison = drawn or compare_runs(least=0)
        folders = dict.fromkeys(run.dir.parent.resolve() for run in self.comparison.runs)
        lists = lists or [RunList(Rows(folder)) for folder in folders]
        self._runs = lists[0].rows.runs
        self._drawn_parts: object = None
        self._drawn = self.comparison.members
        self._kept, wrong = read_layout(self._runs)
        if not self._choices.given.metrics:
            self._choices.options = replace(self._choices.options, opened=self._kept.charts)
        for key, limits in self._kept.y.items():
            self._choices.take({"y": key, "limits": limits})
        lines = self._lines = RunLines(lists, self._kept.model_copy(), is_whole=drawn is not None)
        self._reader = CurveReader()
        names = list(lines.rows)[:NUM_DRAWN] if drawn is None else [run.id for run in drawn.runs]
        lines.slots = {name: slot for slot, name in enumerate(names)}
        self._removal = Removal(lambda: [lines.run(row.id).dir for row in lines.chosen], self._act, self._tell)
        acts: dict[str, Callable[..., None]] = {"stop": self._stop_runs, "resume": self._resume_run}
        acts |= {"save": self._save_label, "fill": self._search_changed}
        acts["open"] = lambda: self._open(lines.run(lines.chosen[0].id))
        acts["compare"] = lambda: self._take({"act": "compare"})
        curves = self._image, self._box, self._smoothing
        self._controls = BoardControls(acts, self._kept, "drawn" if drawn else "", self._removal, curves)
        for page in (self._controls.page, self._controls.scatter):
            page.on_msg(lambda _, told, __: self._take(told))
        self.widget = self._controls.whole
        self._removal.forget(wrong)
        self._fill()
        if drawn is not None:
            with self._controls.filling:
                self._controls.choices["split"].value = self._choices.given.split
            self.refresh()  # raises ConfigError for a wrong split
        answers_beside_cells(self.widget)
        self._start()

    def __repr__(self) -> str:
        return self._text

    # --- the list ---

    def _fill(self) -> None:
        """Filter and sort the runs, and show the current page."""
        self._lines.fill(self._controls.text.value)
        self._controls.show(self._lines.html(), self._lines.scatter(), is_ready=self._choices.is_ready)
        names = {one.name for one in self.comparison.differences} - {"code.script"} | {self._choices.given.split} - {""}
        self._controls.offer(self._lines.offered, self._lines.fields, names)
        self._offer()
        self._keep_layout()

    def _offer(self) -> None:
        """Enable the buttons that apply to the ticked runs."""
        chosen, is_idle = self._lines.chosen, not self._is_acting
        one = chosen[0] if len(chosen) == 1 else None
        fits: dict[str, Any] = {"open": one, "compare": 0 < len(chosen) <= MOST_RUNS, "delete": is_idle and chosen}
        fits["resume"] = is_idle and one is not None and one.is_final
        fits["stop"] = is_idle and any(not row.is_final for row in chosen)
        for name, each in self._controls.buttons.items():
            each.disabled = not fits[name]
        self._controls.labels.show(one.id if one else "", lambda: self._lines.run(chosen[0].id).records.labels)

    def _search_changed(self) -> None:
        layout, controls = self._lines.layout, self._controls
        with self._lock:
            layout.columns, self._lines.page = controls.columns.value, 0
            layout.group, _, layout.of, layout.over = (choice.value for choice in controls.choices.values())
            self._fill()
        self._start()

    def _take(self, told: Mapping[str, Any]) -> None:
        """Act on a control of the list in the page, perhaps on another thread."""
        with self._lock:
            if self._is_closed or "act" not in told:
                return
            if wrong := self._lines.take(told["act"], told.get("key")):
                self._tell(wrong, is_wrong=True)
            if told["act"] == "tick":
                self._removal.forget()
            self._fill()
        self._start()

    def _keep_layout(self) -> None:
        """Write the layout if it has changed."""
        options = self._choices.options
        charts = {} if self._choices.given.metrics else dict(options.opened)
        limits = {key: [*ends] for key, ends in options.y.items()}
        if (layout := self._lines.layout.model_copy(update={"charts": charts, "y": limits})) != self._kept:
            self._kept = layout
            try:
                write_json(self._runs / FILE, layout.model_dump())
            except (OSError, ValueError) as error:  # another user's folder, or a full disk
                self._tell(f"The layout is not kept: {error}", is_wrong=True)

    def _look_again(self) -> None:
        self._take({"act": "turn", "key": "0"})

    # --- what the thread reads ---

    def refresh(self) -> None:
        """Read new rows of the runs that are drawn now, each in its colour, and draw them."""
        with self._lock:
            slots, known = self._lines.slots, {one.run.id: one for one in self.comparison.members}
            names = sorted(slots, key=lambda name: slots[name])
            runs = [known[name].run if name in known else self._lines.run(name) for name in names]
            parts = self._parts
            if self._is_closed or not (self._reader.look(runs) or names != [*known] or parts != self._drawn_parts):
                return
            # An active run adds to its records.
            now = compare_runs(runs, least=0).with_curves(lambda run: self._reader.curves[run.id])
            self._lines.slots = {run.id: slots[run.id] for run in now.runs}  # the others cannot be read
            members = [replace(one, slot=slots[one.run.id]) for one in now.members]
            if now.runs == self.comparison.runs:
                members = [replace(one, label=known[one.run.id].label) for one in members]
                now = replace(now, notes=self.comparison.notes)
            self.comparison, self._drawn_parts = replace(now, members=members), parts
            self._draw()
            self._fill()
            is_changed = any(one.name == "code.uncommitted" for one in now.differences)
            told = members if is_changed else ()
            # In a widget, since a saved notebook is not for the user alone.
            self._controls.code.value = "".join(uncommitted(one.run, f" of {one.label}") for one in told)
            self._controls.tables.value = tables_html(self.comparison)
            remark = f"{plural(len(self._reader.unread), 'run')} with first and last rows only: the rest is being read"
            self._controls.note.value = note(remark if self._reader.unread else "")
            self._is_stored = False

    def wait(self, timeout_s: float | None = None) -> "Board":
        """Wait until all drawn runs have ended and their curves are read and drawn; returns this board.

        Raises:
            TimeoutError: a run has not ended after `timeout_s`; it continues.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for run in self.comparison.runs:
            run.wait(None if deadline is None else max(0.0, deadline - time.monotonic()), check=False)
        while (thread := self._thread) is not None:
            self.refresh()  # raises what the thread shows: a run was removed
            self._wake.set()
            thread.join(_READING_S)
        return self

    def close(self) -> None:
        """End the thread and remove the widgets; the runs continue."""
        super().close()
        with self._lock:
            self._controls.below.close()
            self._reader.close()

    def _work(self) -> None:
        """Read the runs on the page, the curves, and what the order needs; repeat while a shown run is active."""
        while True:
            self._wake.clear()
            self._read_each(self._lines.watched)
            was_reading, is_drawn = self._reader.is_reading, True
            try:
                self.refresh()
            except (NbtoolsError, OSError) as error:  # a run was removed, or its disk is away
                is_drawn, self._controls.note.value = False, note(str(error), is_warning=True)
            self._list_others()
            self._read_each(self._lines.unread)
            self._reader.read(map(self._lines.run, self._lines.long))
            self._lines.save()
            with self._lock:
                is_idle = is_drawn and all(row.is_final for row in self._lines.watched) and not self._lines.unread
                is_reading = self._reader.is_reading or self._parts != self._drawn_parts
                is_idle &= not (was_reading or is_reading or self._wake.is_set())
                if not self._is_closed:
                    self._store(at_once=is_idle)
                if self._is_closed or is_idle:
                    self._thread = None
                    return
            self._wake.wait(_READING_S if is_reading else REFRESH_S)

    def _list_others(self) -> None:
        """List all runs where there are more than those that were shown at first."""
        if not self._lines.is_whole:
            others = self._lines.others()
            with self._lock:
                self._lines.add(others)
                self._fill()

    def _read_each(self, rows: Sequence[RunRow]) -> None:
        """Read rows until there is something else to do."""
        due = time.monotonic() + REFRESH_S
        for number, row in enumerate(rows, 1):
            if self._wake.is_set():
                break
            with contextlib.suppress(OSError):  # removed
                self._lines.read(row)
            if number in (1, len(rows)) or time.monotonic() > due:
                due = time.monotonic() + REFRESH_S
                with self._lock:
                    self._fill()

    # --- what is drawn ---

    def _receive(self, message: Mapping[str, Any]) -> None:
        super()._receive(message)
        with self._lock:
            self._fill()

    def _changed(self, *_: object) -> None:
        with self._lock:
            if not self._is_closed:
                self._draw()
                self._is_stored = False
                self._store()

    @property
    def _parts(self) -> tuple[dict[str, str], str]:
        """The name of the folded group of runs, by id, and the field by which charts are split."""
        return self._lines.folded, self._controls.choices["split"].value

    def _draw(self) -> None:
        groups, field = self._parts
        self._drawn = joined(self.comparison.split_by(field), groups)
        self._new_figure = partial(RunFigure, titled=False, runs=run_legend(self._drawn))
        super()._draw()

    @property
    def _alt(self) -> str:
        return f"curves of {title_of_runs(self.comparison.runs)}"

    def _static(self) -> tuple[str, str, str]:
        listed = f"<style>{STYLE}</style><div class='nbt-stored'>{self._controls.page.list}</div>"
        scatter = f"<div class='nbt-stored'>{self._controls.scatter.list}</div>"
        return "", "", f"{listed}{self._controls.tables.value}{scatter}"

    def _made(self, sizes: Sizes) -> Charts:
        return overlay(self._drawn, replace(self._options(), split=self._parts[1]), sizes)

    # --- actions ---

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        self._controls.said.value = note(text, is_warning=is_wrong)

    def _open(self, run: Run) -> None:
        with self._lock:
            if not self._is_closed:  # while an action ran
                self._controls.below.show(opened := LivePlot(run))
                opened.scroll_to()

    def _stop_runs(self) -> None:
        chosen = [row for row in self._lines.chosen if not row.is_final]
        self._act("Stopping…", lambda: "\n".join(f"{row.name}: {self._lines.run(row.id).stop()}" for row in chosen))

    def _resume_run(self) -> None:
        parent = self._lines.run(self._lines.chosen[0].id)

        def start() -> str:
            self._open(child := resume(parent))
            return f"Resumed {parent.id} as {child.id}"

        self._act("Resuming…", start)

    def _save_label(self, name: str, field: str, typed: str) -> None:
        if not name:  # the fields are being filled
            return
        words = [word for each in typed.split(",") if (word := each.strip())]
        try:
            change: dict[str, Any] = {field: words if field == "tags" else typed.strip()}
            label(RunDir(self._lines.run(name).dir), **change)
            self._look_again()
            self._tell(f"Saved: the {field} of {name}")
        except (NbtoolsError, OSError) as error:
            self._tell(str(error), is_wrong=True)


def compare(
    *runs: object,
    x: X = "step",
    log: bool = False,
    smoothing: float = 0.6,
    split: str = "",
    metrics: Sequence[str] = (),
) -> Board:
    """Show the board with some runs: their curves over each other, what differs, best and last values.

    The runs may be of any script and in any state; active ones are followed. At most 20 are drawn, one colour each.
    Without the word `drawn` in its filter, the list shows the other runs of the project, too.
    Runs that differ in the number of processes get a card on how training scales.

    Args:
        runs: runs, ids, names, or patterns such as `"lr_*"` for names and ids; lists of these.
        x: unit of the x axis: step, samples, relative (time since the start) or time (of the clock).
        log: logarithmic y axes.
        smoothing: weight of earlier values in the bold lines of training metrics, 0 to below 1.
        split: a field, such as `"learning_rate"`: each of its values has charts of its own.
        metrics: patterns of the metrics to show first, such as `("eval/*",)`; the usual ones by default.

    Raises:
        RunNotFoundError: a reference or pattern fits no run.
        ConfigError: fewer than two runs can be read, or no run has the field of `split`.
    """
    return Board(drawn=compare_runs(*runs), x=x, log=log, smoothing=smoothing, split=split, metrics=tuple(metrics))
