"""The live panel of a run; it reads the run directory only, so that any kernel can open it at any time.

Its thread checks the files about once a second.
"""

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from nbtools.errors import RunNotFoundError, message_of, plural
from nbtools.launcher.programs.program_resume import remember
from nbtools.launcher.resume import launch_again, resume, steered_changes
from nbtools.machine.processes import removed_in_words
from nbtools.metrics.readers.sources import set_file_choice
from nbtools.notebook.comparison.report import report_html
from nbtools.notebook.html_parts import note
from nbtools.notebook.panel import html
from nbtools.notebook.panel.checkpoint_list import LATEST, ResumeOffer
from nbtools.notebook.panel.controls import Controls, SteerRow
from nbtools.notebook.panel.snapshot import ShownRun
from nbtools.notebook.panel.tabs import SAMPLES
from nbtools.notebook.plots.chart_view import ChartView
from nbtools.notebook.plots.charts import Charts, Sizes, charts_of
from nbtools.notebook.plots.view import Options, X
from nbtools.notebook.widgets import Displays, answers_beside_cells, is_attended, on_press, parent_message, words_of
from nbtools.run import facts as run_facts
from nbtools.run.checkpoints import AnyCheckpoint
from nbtools.run.ranks.stacks import take_stacks
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir import media
from nbtools.rundir.json_files import whole
from nbtools.rundir.requests.steer import controls_of
from nbtools.rundir.rundir import foreign_owner, is_removed

_TEXT = "a panel of a run"
"""Plain text of a cell's output, the same in each execution."""
_LOOKS_AT_LOST = 5
"""Number of checks of a LOST run: on a network file system exit.json can arrive after the lock is free."""


class LivePlot(ChartView):
    """Curves, progress, ranks, log and controls of a run; live while it runs, a picture once it has ended.

    The last expression of a cell shows it. It reads the run directory only: `nt.LivePlot("latest")` in a fresh
    kernel shows the same.

    Args:
        run: a run, its id, a unique prefix of it, its name, `"latest"`, or the path of its directory.
        refresh_s: seconds between two checks of the files.
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
        log: bool = False,
        smoothing: float = 0.6,
        x: X = "step",
        metrics: Sequence[str] = (),
    ) -> None:
        run = run if isinstance(run, Run) else Run(run)
        if is_removed(run.files):
            raise RunNotFoundError(f"{run.id}: {removed_in_words(run.files)}")
        self.refresh_s, self._shown = refresh_s, ShownRun(run)
        metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        options = Options(x=x, log=log, smoothing=smoothing, metrics=metrics)
        super().__init__(f"LivePlot({run.id!r})", _TEXT, options)
        self._wanted: tuple[object, ...] = ()
        self._drawn_state: RunState | None = None
        curves, steer = (self._image, self._box), SteerRow(self._steer)
        self._widgets = Controls(curves, self._smoothing, steer, self._changed, self._check_changes)
        self.widget = self._widgets.whole
        self._resume = ResumeOffer(self._widgets.tabs.checkpoints)
        self._widgets.name_run(run)
        with suppress(OSError):  # which the first look shows
            self._look_at_samples(run.state)  # chooses the tab before the page has it
        buttons, checkpoints = self._widgets.buttons, self._widgets.tabs.checkpoints
        for button, doing, action in (
            (buttons.stop, "Stopping…", lambda: self.run.stop()),
            (buttons.stacks, "Asking the ranks…", self._take_stacks),
            (buttons.report, "Writing…", self._save_report),
            (buttons.fork, "Resuming…", self._resume_chosen),
            (buttons.onward, "Resuming…", lambda: self._follow(resume)),
            (buttons.again, "Launching…", lambda: self._follow(launch_again)),
            (checkpoints.verify, "Comparing checksums…", checkpoints.check),
        ):
            on_press(button, partial(self._act, doing, action))
        self._widgets.tabs.log.editor.keep = lambda curves: self._act("Keeping…", lambda: self.keep_curves(*curves))
        self._widgets.files.choose = lambda *given: self._act("Choosing…", lambda: self.choose(*given))
        for text in (checkpoints.program.pattern, checkpoints.program.words):
            text.observe(self._remember, "value")
        self._widgets.page.on_msg(lambda _, said, *__: self._hear_page(said))
        asked = "The page is asked; without its script it shows no notifications"
        self._widgets.notices.begin.on_click(lambda _: self._tell(asked))
        if not answers_beside_cells(self._widgets.whole):
            self._widgets.note.value = note(f"While a cell runs, stop with: nbtools stop {run.id}")
        self._start()

    def __repr__(self) -> str:
        return f"LivePlot({self.run.id!r}, {self.run.state})"

    @property
    def run(self) -> Run:
        """The run; after a resume or a launch in the panel the new one."""
        return self._shown.run

    # --- showing it ---

    def _ipython_display_(self) -> None:
        _close_earlier(self)
        with self._lock:
            if self.run.state.is_final and is_attended():
                self._look()
            elif self.run.state.is_final:
                self.refresh()
            elif self._drawn_state is None:  # the thread has not looked yet
                self._look_guarded()
            self._displays.show(self._outputs())

    def _static(self) -> tuple[str, str, str]:
        samples, state = self._widgets.tabs.samples, self._drawn_state
        is_live = state is None or not state.is_final
        samples.look(self.run.files.media)
        without_kernel = html.without_kernel(self.run.id, time.time() if is_live else None)
        return self._widgets.words.static(), without_kernel, samples.html()

    # --- keeping it up to date ---

    def refresh(self) -> None:
        """Check the run directory now, read all rows, and draw what changed."""
        if not self._is_closed:
            self._shown.read_rows()
        with self._lock:
            if not self._is_closed:
                self._look()

    def scroll_to(self) -> None:
        """Have the page scroll to the panel once it shows the widget."""
        self._widgets.page.is_sought = True

    def close(self) -> None:
        """End the thread and remove the widgets; the run continues."""
        super().close()
        with self._lock:
            self._release()
            self._displays, self._png = Displays(), b""

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
                ended, is_whole = self._drawn_state is not None and self._drawn_state.is_final, self._shown.is_whole
                if ended and is_whole and not 0 < looks_at_lost < _LOOKS_AT_LOST and not self._wake.is_set():
                    self._thread = None
                    return
            # All rows are read beside the page's requests.
            if is_whole or not self._shown.read_rows():
                self._wake.wait(self.refresh_s)

    def _changed(self, *_: object) -> None:
        """Draw after an option changed: in the thread, or in this call if the thread has ended."""
        with self._lock:
            if self._thread is None:
                self._look_guarded()
                if not self._shown.is_whole:
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

    def _look(self) -> None:
        now, shown, widgets = time.time(), self._shown, self._widgets
        if is_removed(shown.run.files):
            self._say_removed()
            return
        state = shown.run.state
        if shown.look(state, now):
            self._offer_checkpoints()
        self._say(state, now)
        choices, options, drawn = self._choices, self._options(), (shown.snapshot.version, state)
        wanted = (*drawn, choices.is_ready, choices.is_hidden, choices.width, options)
        shows_more = self._look_at_samples(state)
        is_stopped = state is RunState.STOPPED or any(restart.why for restart in shown.snapshot.restarts)
        steps = options.span if options.x == "step" else None
        widgets.tabs.look(shown, is_stopped=is_stopped, steps=steps)
        if wanted == self._wanted and not shows_more:
            self._store()
            return
        has_ended = state.is_final and drawn != self._wanted[: len(drawn)]
        if wanted != self._wanted:
            self._draw()
        self._wanted, self._drawn_state, self._is_stored = wanted, state, state.is_final
        if has_ended:
            self._check_changes()
        self._store(at_once=has_ended or (state.is_final and (shows_more or not choices.is_ready)))
        if state.is_final and shown.is_whole:
            self._release()

    def _receive(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            super()._receive(message)
            if (step := whole(message.get("mark"))) is not None:  # of a checkpoint that was clicked
                self._widgets.tabs.choose(step)

    def _look_at_samples(self, state: RunState) -> bool:
        """Draw new samples if they are shown, or stay as those of the end; returns whether there were any."""
        tabs, folder = self._widgets.tabs, self.run.files.media
        if media.names(folder):
            tabs.show_samples()
        is_shown = tabs.index == SAMPLES or state.is_final
        return is_shown and tabs.samples.look(folder)

    @property
    def _alt(self) -> str:
        return f"curves of {self.run.id}"

    def _made(self, sizes: Sizes) -> Charts:
        return charts_of(self._shown.view(self._options()), sizes)

    def _release(self) -> None:
        """Drop what was read of the curves: an option that changes reads and draws them again.

        A page that draws the curves asks for parts of them, so they stay while it shows them, or may soon.
        """
        if self._choices.is_hidden or not (self._choices.is_ready or self._displays):
            self._shown.drop_rows()

    def _say(self, state: RunState, now: float) -> None:
        """Update the text and the buttons at each check."""
        widgets = self._widgets
        if not self._is_acting:
            widgets.buttons.show(state, self._resume, may_launch=foreign_owner(self.run.dir) is None)
        widgets.words.show(self._shown, state, now)
        widgets.notices.look(self.run, state, widgets.words.alarms)
        is_own = state is RunState.RUNNING and foreign_owner(self.run.dir) is None
        widgets.steer.show(controls_of(self.run.files) if is_own else None, is_acting=self._is_acting)
        widgets.files.look(self.run.rows.sources)

    def _say_removed(self) -> None:
        """Say that the run directory was removed; the curves stay, and Stop ends the processes that still run."""
        buttons = self._widgets.buttons
        self._widgets.words.show_removed(self._shown)
        if not self._is_acting:
            buttons.show(RunState.RUNNING, self._resume, may_launch=False)
            buttons.stacks.disabled = True
        self._drawn_state = RunState.LOST

    # --- controls ---

    def _hear_page(self, said: Mapping[str, Any]) -> None:
        """Act on a message of the page: it is saved, or a number of the log was clicked."""
        with self._lock:
            if "permission" in said:
                self._act("The page has answered", lambda: self._widgets.notices.answer(said))
            elif "number" in said:
                self._widgets.tabs.log.pick(str(said.get("line") or ""), int(said["number"]))
            else:
                self._stored_at = -math.inf
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
            self._shown.drop_rows()  # so that its lines are read again
            self._choices.hidden.clear()  # the page is in use, and may take the empty chart for one out of sight
            self._look_again()
        return f"{plural(len(patterns), 'pattern')} {said}"

    def choose(self, name: str, choice: Mapping[str, str | bool]) -> str:
        """Choose what is drawn of the program's files of a name, in all runs of the project.

        Args:
            name: Name of the file.
            choice: For "" the column that counts the rows, "" for their order; for a metric whether it is drawn.

        Returns:
            What was chosen.

        Raises:
            ConfigError: the user's configuration cannot be written.
        """
        set_file_choice(self.run.dir, name, choice)
        self._look_again()
        counter = [f"{choice[''] or 'the order'} counts its rows"] if "" in choice else []
        drawn = (f"{metric} is {'drawn' if choice[metric] else 'not drawn'}" for metric in choice if metric)
        return f"{name}: {', '.join([*counter, *drawn])}"

    def _offer_checkpoints(self) -> None:
        facts = self._shown.snapshot
        self._resume.look(self.run, facts.checkpoints, facts.step, facts.total_steps)
        if self._resume.is_program:
            self._check_changes()

    def _remember(self, change: Any) -> None:
        """Remember what the user says of the checkpoints or the resume of a program, and look again."""
        if not self._widgets.tabs.checkpoints.program.filling.is_on:
            self._act("Remembering…", lambda: self._resume.remembered(self.run, change))

    def _check_changes(self, *_: object) -> None:
        with self._lock:
            self._resume.check(self.run)
            if not self._is_acting:
                self._widgets.buttons.fork.disabled = not self._resume.may_start(self.run.state)

    def _tell(self, text: str, *, is_wrong: bool = False) -> None:
        self._widgets.note.value = note(text, is_warning=is_wrong)

    def _offer(self) -> None:
        self._widgets.buttons.disable()

    def _look_again(self) -> None:
        """Look at the run, also where what has changed is in no file that is compared."""
        with self._lock:
            self._shown.stamp = None
            self._changed()

    def _steer(self, *actions: str, text: str = "") -> None:
        steered = partial(self.run.steer, *actions)
        self._act("Asking the training…", lambda: steered(**steered_changes(self.run, words_of(text))))

    def _take_stacks(self) -> str:
        found, behind = take_stacks(self.run.files), {straggler.beat.rank for straggler in self._shown.stragglers}
        self._widgets.taken.value = html.stacks(found, behind) if found else ""
        taken = sum(item.has_stacks for item in found)
        return f"Stacks of {taken} of {len(found)} ranks at {time.strftime('%X')}" if found else "No rank has started"

    def _save_report(self) -> str:
        self._canvas.send({"file": f"{self.run.id}.html", "text": report_html(self.run)})
        return f"The browser saves {self.run.id}.html; nbtools plot {self.run.id} -o report.html writes it here"

    def _resume_chosen(self) -> str:
        chosen, (changes, args) = self._widgets.tabs.checkpoints.choice.value, self._resume.typed(self.run)
        checkpoint: AnyCheckpoint | None = None if chosen == LATEST else chosen
        return self._follow(lambda run: resume(run, checkpoint, changes=changes, args=args))

    def _follow(self, start: Callable[[Run], Run]) -> str:
        """Show a new run in the place of this one; returns where it comes from."""
        parent, child = self.run.id, start(self.run)
        with self._lock:
            self._shown, self._drawn_state, self._wanted = ShownRun(child), None, ()
            self._png, self._stored_at = b"", -math.inf
            self._choices.take({"zoom": None})
            self._widgets.tabs.checkpoints.changes.value = self._widgets.taken.value = ""
            self._widgets.name_run(child)
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
