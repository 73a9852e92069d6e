"""The live panel of a run; it reads the run directory only, so that any kernel can open it at any time.

Its thread checks the files about once a second.
"""

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ipywidgets
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Image

from nbtools.errors import NbtoolsError, RunNotFoundError, message_of, plural
from nbtools.launcher.programs.program_resume import remember
from nbtools.launcher.resume import launch_again, resume
from nbtools.machine.processes import removed_in_words
from nbtools.metrics.readers.sources import choose_counter
from nbtools.notebook.html_parts import note
from nbtools.notebook.kernel import answers_beside_cells, is_attended, parent_message
from nbtools.notebook.live_view import LiveView
from nbtools.notebook.panel import html
from nbtools.notebook.panel.changes import Absence, record_look
from nbtools.notebook.panel.checkpoints.checkpoint_list import LATEST
from nbtools.notebook.panel.checkpoints.resume_offer import ResumeOffer
from nbtools.notebook.panel.controls import CANCEL, STOP, Controls
from nbtools.notebook.panel.snapshot import Snapshot, alarms_of, notes_of, stamp_of, take_snapshot, waits_of
from nbtools.notebook.panel.tabs import SAMPLES, SYSTEM
from nbtools.notebook.plots.charts import charts_of
from nbtools.notebook.plots.figure import HEIGHT, UNTITLED_HEIGHT, WIDTH, picture_of
from nbtools.notebook.plots.live import LiveCharts
from nbtools.notebook.plots.system import SystemReader
from nbtools.notebook.plots.view import View, X, view_of
from nbtools.notebook.theme import NO_FORMULAS
from nbtools.notebook.widgets import Displays, Output, view_bundle
from nbtools.run import facts as run_facts
from nbtools.run.checkpoints import AnyCheckpoint
from nbtools.run.curves import Curves, first_curves, read_rows
from nbtools.run.ranks.stacks import take_stacks
from nbtools.run.ranks.stragglers import Straggler, stragglers
from nbtools.run.run import Run
from nbtools.run.slurm_job import time_left_s
from nbtools.run.state import RunState, waiting_for, why_stopped
from nbtools.rundir import media
from nbtools.rundir.rundir import foreign_owner, is_removed

_SIZE: dict[str, Any] = {"image/png": {"width": WIDTH, "height": UNTITLED_HEIGHT}}
_TEXT = "a panel of a run"
"""Plain text of a cell's output, the same in each execution."""
STORE_EVERY_S = 10.0
"""Least time between two updates of the static outputs of a live panel, which a saved notebook keeps."""
RENDER_EVERY_S = 60.0
"""Least time between two updates while the page draws the curves: only a saved notebook needs the picture then."""
_LOOKS_AT_LOST = 5
"""Number of checks of a LOST run: on a network file system exit.json can arrive after the lock is free."""


class LivePlot(LiveView):
    """Curves, progress, ranks, log and controls of a run; live while it runs, a picture once it has ended.

    The last expression of a cell shows it. It reads the run directory only: `nt.LivePlot("latest")` in a fresh
    kernel shows the same.

    Args:
        run: a run, its id, a unique prefix of it, its name, `"latest"`, or the path of its directory.
        refresh_s: seconds between two checks of the files.
        dark: dark picture for a saved notebook; the curves in the page follow its theme.
        log: logarithmic y axes; the page switches each chart.
        smoothing: weight of earlier values in the bold lines, 0 to 0.99.
        metrics: patterns such as `grad*`; charts with a metric that matches one are open. By default, the usual ones.
        x: x axis: `step`, `samples`, `time` (of the clock) or `relative` (since the first row).

    Raises:
        RunNotFoundError: no run matches.
    """

    def __init__(
        self,
        run: Run | str | Path = "latest",
        refresh_s: float = 1.0,
        *,
        dark: bool = False,
        log: bool = False,
        smoothing: float = 0.6,
        x: X = "step",
        metrics: Sequence[str] = (),
    ) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        if is_removed(self.run.files):
            raise RunNotFoundError(f"{self.run.id}: {removed_in_words(self.run.files)}")
        self.refresh_s = refresh_s
        super().__init__(f"LivePlot({self.run.id!r})")
        self._charts = LiveCharts(self._lock, self._hear, x, UNTITLED_HEIGHT)
        self._choices = self._charts.choices
        self._forget()
        self._dark, self._log = dark, log
        self._metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        self._widgets = Controls(smoothing, self._charts, self._changed, self._check_changes)
        self._resume = ResumeOffer(self._widgets.tabs.checkpoints)
        self._widgets.name_run(self.run)
        with suppress(OSError):  # which the first look shows
            self._look_at_samples(self.run.state)  # chooses the tab before the page has it
        self._widgets.smoothing.observe(self._changed, "value")
        self._widgets.stop.on_click(lambda _: self._act("Stopping…", lambda: self.run.stop()))
        self._widgets.stacks.on_click(lambda _: self._act("Asking the ranks…", self._take_stacks))
        self._widgets.tabs.checkpoints.start.on_click(lambda _: self._act("Resuming…", self._resume_chosen))
        self._widgets.onward.on_click(lambda _: self._act("Resuming…", lambda: self._follow(resume)))
        self._widgets.again.on_click(lambda _: self._act("Launching…", lambda: self._follow(launch_again)))
        self._widgets.tabs.log.editor.keep = lambda curves: self._act("Keeping…", lambda: self.keep_curves(*curves))
        self._widgets.counters.choose = lambda *chosen: self._act("Reading…", lambda: self.count_rows(*chosen))
        checkpoints = self._widgets.tabs.checkpoints
        checkpoints.verify.on_click(lambda _: self._act("Comparing checksums…", checkpoints.check))
        for text in (checkpoints.pattern, checkpoints.words):
            text.observe(self._remember, "value")
        self._widgets.page.on_msg(lambda _, said, *__: self._hear_page(said))
        if not answers_beside_cells(self._widgets.whole):
            self._widgets.note.value = note(f"While a cell runs, stop with: nbtools stop {self.run.id}")
        self._start()

    def __repr__(self) -> str:
        return f"LivePlot({self.run.id!r}, {self.run.state})"

    # --- showing it ---

    @property
    def widget(self) -> ipywidgets.Widget:
        """The whole panel as one widget, to place into another."""
        return self._widgets.whole

    def _ipython_display_(self) -> None:
        """Display four outputs: text, picture, samples and charts, and the widgets.

        The first three are static and show without a kernel: on GitHub, or after a restart. They are hidden as long as
        the widgets, which show the whole panel, have a kernel, and are renewed now and then while the run is active.
        """
        _close_earlier(self)
        with self._lock:
            if self.run.state.is_final and is_attended():
                self._look()
            elif self.run.state.is_final:
                self.refresh()
            elif self._drawn_state is None:  # the thread has not looked yet
                self._look_guarded()
            self._displays.show(self._outputs())

    def picture(self) -> Image:
        """Return the current picture as a static image, which needs no kernel."""
        with self._lock:
            data, _ = picture_of(view_of(self.run, **self._options()), dark=self._dark)
        alt = f"curves of {self.run.id}"
        return Image(data, format="png", width=WIDTH, height=HEIGHT, alt=alt)  # type: ignore[no-untyped-call]

    def _words(self, note: str = "") -> str:
        words = "".join(part.value for part in self._widgets.words)
        return f"<div class='{NO_FORMULAS}' style='max-width:{WIDTH}px'>{words}{note}</div>"

    def _outputs(self) -> list[Output]:
        samples, state = self._widgets.tabs.samples, self._drawn_state
        is_live = state is None or not state.is_final
        note = html.without_kernel(self.run.id, time.time() if is_live else None)
        words = {"text/html": self._words(note), "text/plain": _TEXT}
        samples.look(self.run.files.media, dark=self._is_dark)
        below = samples.html()
        shown = {"text/html": below, "text/plain": ""} if below else {"text/plain": ""}
        picture = {"image/png": self._png, "text/plain": ""} if self._png else {"text/plain": ""}
        size = _SIZE if self._png else {}
        return [(words, {}), (picture, size), (shown, {}), (view_bundle(self.widget, ""), {})]

    def _update_displays(self) -> None:
        """Replace the static outputs."""
        if self._displays and InteractiveShell.initialized():
            self._displays.replace(self._outputs(), which=range(3))

    # --- keeping it up to date ---

    def refresh(self) -> None:
        """Check the run directory now, read all rows, and draw what changed."""
        if not self._is_closed:
            self._read()
        with self._lock:
            if not self._is_closed:
                self._look()

    def scroll_to(self) -> None:
        """Have the page scroll to the panel once it shows the widget."""
        self._widgets.page.is_sought = True

    def close(self) -> None:
        """End the thread and remove the widgets; the run continues."""
        self._end()
        record_look(self.run.files, time.time())
        self._widgets.close()
        with self._lock:
            self._release()
            self._displays, self._snapshot, self._png = Displays(), Snapshot(), b""

    def _work(self) -> None:
        looks_at_lost = 0
        while True:
            self._wake.clear()
            with self._lock:
                if self._is_closed:
                    self._thread = None
                    return
                self._look_guarded()
                looks_at_lost = looks_at_lost + 1 if self._drawn_state is RunState.LOST else 0
                ended, is_whole = self._drawn_state is not None and self._drawn_state.is_final, self._first is None
                if ended and is_whole and not 0 < looks_at_lost < _LOOKS_AT_LOST and not self._wake.is_set():
                    self._thread = None
                    return
            if is_whole or not self._read():
                self._wake.wait(self.refresh_s)

    def _read(self) -> bool:
        """Read all rows, in a thread beside the page's requests; return whether that was possible."""
        try:
            read_rows(self.run)
        except (NbtoolsError, OSError):  # the next look shows it
            return False
        return True

    def _changed(self, *_: object) -> None:
        """Draw after an option changed: in the thread, or in this call if the thread has ended."""
        with self._lock:
            if self._thread is None:
                self._look_guarded()
                if self._first is not None:
                    self._start()
            else:
                self._wake.set()

    def _look_guarded(self) -> None:
        # An exception that leaves a thread is lost or printed into an unrelated cell. The panel shows it, and the
        # next check may succeed (a stale file handle, a directory that is being moved).
        said = ""
        try:
            if not self._is_closed:
                self._look()
        except Exception as error:  # noqa: BLE001
            said = note(message_of(error), is_warning=True)
        if not self._is_closed:
            self._widgets.trouble.value = said

    def _forget(self) -> None:
        self._stamp: object = None
        self._first: tuple[Curves, str] | None = None
        """Curves to show until all rows are read, and a sentence on the missing rows."""
        self._snapshot, self._choices.span = Snapshot(), None
        self._wanted: tuple[object, ...] = ()
        self._png = b""
        self._drawn_state: RunState | None = None
        self._absence, self._system = Absence(self.run.files), SystemReader(self.run.files.system)
        self._was_active = False
        self._stragglers: list[Straggler] = []
        self._stored_at, self._is_stored = 0.0, True

    def _look(self) -> None:
        now, state, widgets = time.time(), self.run.state, self._widgets
        if is_removed(self.run.files):
            self._say_removed()
            return
        stamp = (state, *stamp_of(self.run))
        if stamp != self._stamp or (self._first is not None and self.run.rows.is_read):
            self._first = first_curves(self.run)
            self._snapshot = take_snapshot(self.run, state, self._first and self._first[0])
            self._stamp = stamp
            self._offer_checkpoints()
        self._absence.look(self.run, now, is_read=self._first is None, is_final=state.is_final)
        self._say(state, now)
        measured, choices, options = self._measured(), self._choices, self._options()
        is_live_page = choices.is_ready
        drawn = (self._snapshot.version, state)
        wanted = (*drawn, measured, choices.is_ready, choices.is_hidden, choices.width, *options.items())
        shows_more = self._look_at_samples(state)
        is_stopped = state is RunState.STOPPED or any(restart.why for restart in self._snapshot.restarts)
        widgets.tabs.look(self.run, now, is_stopped=is_stopped, system=self._system)
        if wanted == self._wanted and not shows_more:
            self._store(now)
            return
        if wanted != self._wanted:
            if is_live_page and (not choices.is_hidden or self._charts.is_empty):
                self._send()
            if not is_live_page or (state.is_final and drawn != self._wanted[: len(drawn)]):
                self._render()
        was_final = self._drawn_state is not None and self._drawn_state.is_final
        self._wanted, self._drawn_state = wanted, state
        if state.is_final and not was_final:
            self._check_changes()
        if not state.is_final:
            self._is_stored = False
            self._store(now)
        elif shows_more or not was_final or not is_live_page:
            self._update_displays()
        if state.is_final and self._first is None:
            self._release()

    @property
    def _is_dark(self) -> bool:
        return self._choices.is_dark if self._choices.is_ready else self._dark

    def _look_at_samples(self, state: RunState) -> bool:
        """Draw new samples if they are shown, or stay as those of the end; returns whether there were any."""
        tabs, folder = self._widgets.tabs, self.run.files.media
        if tabs.samples.is_empty and media.names(folder):
            tabs.show_samples()
        is_shown = tabs.index == SAMPLES or state.is_final
        return is_shown and tabs.samples.look(folder, dark=self._is_dark)

    def _measured(self) -> int:
        """Read the system metrics while they are shown, all rows if a chart is open; returns the rows in charts."""
        is_open = any(key.startswith("system/") and value for key, value in self._choices.opened.items())
        if is_open or self._widgets.tabs.index == SYSTEM:
            self._system.read(is_whole=is_open)
        return self._system.num_rows if is_open else 0

    def _view(self) -> View:
        curves, reading = self._first or (self.run.history, "")
        return view_of(self.run, curves, system=self._system.series(curves), reading=reading, **self._options())

    def _send(self) -> None:
        """Draw the charts in the page."""
        charts = charts_of(self._view(), self._charts.sizes)
        self._charts.show(charts, f"curves of {self.run.id}")

    def _render(self) -> None:
        picture, charts = picture_of(self._view(), dark=self._dark, titled=False)
        self._png = picture if charts.shown else b""  # a page keeps no picture without a curve
        self._charts.show_picture(picture)

    def _store(self, now: float) -> None:
        """Renew the static outputs of a live panel, which a saved notebook keeps, if it is time."""
        every_s = RENDER_EVERY_S if self._choices.is_ready else STORE_EVERY_S
        if self._displays and not self._is_stored and not 0 <= now - self._stored_at < every_s:
            if self._choices.is_ready:
                self._render()
            self._update_displays()
            self._stored_at, self._is_stored = now, True

    def _release(self) -> None:
        """Drop what was read of the curves: an option that changes reads and draws them again.

        A page that draws the curves asks for parts of them, so they stay while it shows them, or may soon.
        """
        if self._choices.is_hidden or not (self._choices.is_ready or self._displays):
            with suppress(NbtoolsError):  # the directory was removed
                self.run = Run(self.run.dir)

    def _say(self, state: RunState, now: float) -> None:
        """Update the text at each check: ages and the remaining time change although no file does."""
        facts, widgets = self._snapshot, self._widgets
        remaining = facts.remaining_s(now) if state is RunState.RUNNING else None
        started, ended = self.run.records.began_at, self.run.records.ended_at or facts.last_row
        end = ended if state.is_final else now
        if state is RunState.QUEUED and facts.restarts:
            started = facts.restarts[-1].time  # since it is queued again
        if (elapsed := self.run.records.duration_s) is None and end and started:
            elapsed = end - started
        script, notes = Path(str(self.run.info.get("script") or "")), notes_of(self.run, facts.restarts)
        notes = notes if self.run.name.endswith(script.stem) else [script.name, *notes]  # below the name
        notes += [self._first[1]] if self._first is not None and self._first[1] else []
        why = why_stopped(self.run.records) if state is RunState.STOPPED else ""
        blocker = f"by stop_on: {why}" if why else "" if state.is_final else waiting_for(self.run.records)
        is_running, job_s = state is RunState.RUNNING, time_left_s(self.run.records)
        self._stragglers = stragglers(facts.ranks, now, facts.seconds_per_step) if is_running else []
        alarms = alarms_of(facts, self._stragglers, job_s, now) if is_running else []
        widgets.header.value = html.header(self.run.name, self.run.id, state, notes, blocker, alarms)
        widgets.progress.value = html.progress(facts, elapsed, remaining, state, job_s)
        widgets.waiting.value = html.waiting(waits_of(self.run, state, facts))
        widgets.since_look.value = html.changes_card(*self._absence.changes)
        widgets.failure.value = html.failure(facts.failure, str(self.run.files.log)) if facts.failure else ""
        widgets.ranks.value = html.ranks(facts.ranks, self._stragglers, now, is_running, facts.nproc_per_node)
        widgets.sources.value = html.sources(facts.sources)
        widgets.counters.look(self.run.rows.sources)
        widgets.losses.value = note("\n".join(facts.warnings), is_warning=True)
        if not self._is_acting:
            widgets.stop.description, widgets.stop.tooltip = CANCEL if state is RunState.QUEUED else STOP
            may_launch = foreign_owner(self.run.dir) is None
            may_resume = self._resume.has_checkpoint
            widgets.offer(is_final=state.is_final, is_running=is_running, may_launch=may_launch, may_resume=may_resume)
            widgets.tabs.checkpoints.start.disabled = not self._resume.may_start(state)
        self._was_active |= not state.is_final
        if self._was_active:
            widgets.page.title = html.title(self.run.name, state, facts, is_alarming=bool(alarms))

    def _say_removed(self) -> None:
        """Say that the run directory was removed; the curves stay, and Stop ends the processes that still run."""
        widgets, why = self._widgets, f"since {removed_in_words(self.run.files)}"
        widgets.header.value = html.header(self.run.name, self.run.id, RunState.LOST, waiting_for=why)
        widgets.progress.value = html.progress(self._snapshot, None, None, RunState.LOST)
        widgets.failure.value = widgets.ranks.value = widgets.waiting.value = ""
        if not self._is_acting:
            widgets.offer(is_final=False, is_running=False, may_launch=False, may_resume=False)
        self._drawn_state = RunState.LOST
        self._update_displays()

    # --- controls ---

    def _options(self) -> dict[str, Any]:
        options = self._choices.options(self._metrics)
        return {**options, "log": self._log, "smoothing": self._widgets.smoothing.value}

    def _hear_page(self, said: Mapping[str, Any]) -> None:
        """Act on a message of the page: it is saved, or a number of the log was clicked."""
        with self._lock:
            if "number" in said:
                self._widgets.tabs.log.pick(str(said.get("line") or ""), int(said["number"]))
            else:
                self._stored_at = 0.0
                self._changed()

    def keep_curves(self, *patterns: str) -> str:
        """Draw what these patterns of printed lines find, `iter {step}: loss {train/loss}`, as Keep in the Log tab.

        They replace the earlier ones, and stand in the launcher script, else in the user's configuration.

        Returns:
            Where they are kept.

        Raises:
            ConfigError: a text is no pattern.
        """
        said = remember(self.run, "curves", curves=patterns)
        with self._lock:
            self.run, self._stamp = Run(self.run.dir), None  # which reads its lines again
            self._choices.hidden.clear()  # the page is in use, and may take the empty chart for one out of sight
            self._changed()
        return f"{plural(len(patterns), 'pattern')} {said}"

    def count_rows(self, name: str, column: str) -> str:
        """Place the rows of the program's files of a name by a column, in all runs of the project; "" for their order.

        Returns:
            What is counted now.

        Raises:
            ConfigError: the user's configuration cannot be written.
        """
        choose_counter(self.run.dir, name, column)
        with self._lock:
            self._stamp = None
            self._changed()
        return f"{name}: {column or 'the order'} counts its rows"

    def _hear(self) -> None:
        """Act on a message of the canvas."""
        if self._choices.is_hidden:  # a page that is left is often saved next
            self._stored_at = 0.0
        self._changed()

    def _offer_checkpoints(self) -> None:
        left = self._resume.look(self.run, self._snapshot.checkpoints, self._snapshot.step, self._snapshot.total_steps)
        self._widgets.explain_resume(self._resume.why_not, left)
        if self._resume.is_program:
            self._check_changes()

    def _remember(self, change: Any) -> None:
        """Remember what the user says of the checkpoints or the resume of a program, and look again."""
        if not self._widgets.tabs.checkpoints.filling.is_on:
            self._act("Remembering…", lambda: self._resume.remembered(self.run, change))

    def _check_changes(self, *_: object) -> None:
        with self._lock:
            self._resume.check(self.run)
            if not self._is_acting:
                self._widgets.tabs.checkpoints.start.disabled = not self._resume.may_start(self.run.state)

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        self._widgets.note.value = note(text, is_warning=is_wrong)

    def _offer(self) -> None:
        widgets = self._widgets
        for button in (widgets.stop, widgets.stacks, widgets.tabs.checkpoints.start, widgets.again, widgets.onward):
            button.disabled = True

    def _look_again(self) -> None:
        self._stamp = None  # what the action has changed may be in no file that is compared
        self._changed()

    def _take_stacks(self) -> str:
        found, behind = take_stacks(self.run.files), {straggler.beat.rank for straggler in self._stragglers}
        self._widgets.taken.value = html.stacks(found, behind) if found else ""
        taken = sum(item.has_stacks for item in found)
        return f"Stacks of {taken} of {len(found)} ranks at {time.strftime('%X')}" if found else "No rank has started"

    def _resume_chosen(self) -> str:
        chosen, (changes, args) = self._widgets.tabs.checkpoints.choice.value, self._resume.typed(self.run)
        checkpoint: AnyCheckpoint | None = None if chosen == LATEST else chosen
        return self._follow(lambda run: resume(run, checkpoint, changes=changes, args=args))

    def _follow(self, start: Callable[[Run], Run]) -> str:
        """Show a new run in the place of this one; returns where it comes from."""
        parent, child = self.run.id, start(self.run)
        with self._lock:
            self.run = child
            self._widgets.tabs.checkpoints.changes.value = self._widgets.taken.value = ""
            self._widgets.name_run(child)
            self._forget()
            self._start()
        origin = run_facts.origin(child.info) or f"launched again after {parent}"
        return f"{origin.capitalize()}, as {child.id}"


_by_cell: dict[str, tuple[str, "weakref.ref[LivePlot]"]] = {}


def _close_earlier(panel: LivePlot) -> None:
    """Close the panel that the same cell showed in an earlier execution, whose thread would continue."""
    parent = parent_message()
    cell, execution = parent.get("metadata", {}).get("cellId"), parent.get("header", {}).get("msg_id", "")
    if not cell:
        return
    before, known = _by_cell.get(cell, ("", None))
    earlier = None if known is None else known()
    if before != execution and earlier is not None and earlier is not panel and len(earlier._displays) == 1:
        earlier.close()
    _by_cell[cell] = (execution, weakref.ref(panel))
