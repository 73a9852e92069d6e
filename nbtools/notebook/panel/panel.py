"""The live panel of a run; it reads the run directory only, so that any kernel can open it at any time.

One daemon thread checks the files about once a second and assigns widget traits; it never prints. Callbacks of
widgets may run on another thread (a subshell) beside a busy cell: one lock guards what they share.
"""

import shlex
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ipywidgets
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Image, publish_display_data

from nbtools.errors import ConfigError, NbtoolsError
from nbtools.launcher.resume import changed, config_of, read_changes, resume
from nbtools.notebook.panel import html
from nbtools.notebook.panel.controls import LATEST, Controls, view_bundle
from nbtools.notebook.panel.news import MIN_ABSENCE_S, RECORD_EVERY_S, changes_since, read_look, record_look
from nbtools.notebook.panel.snapshot import Snapshot, notes_of, stamp_of, take_snapshot
from nbtools.notebook.plots.figure import HEIGHT, UNTITLED_HEIGHT, WIDTH, RunFigure, png
from nbtools.notebook.plots.layout import X, view_of
from nbtools.notebook.subshell import answers_beside_cells
from nbtools.run.checkpoints import Checkpoint, best_of
from nbtools.run.lineage import changes_in_words, origin_in_words
from nbtools.run.records import mapping_at
from nbtools.run.run import Run
from nbtools.run.stacks import take_stacks
from nbtools.run.state import RunState, waiting_for
from nbtools.run.stragglers import Straggler, stragglers
from nbtools.rundir import media
from nbtools.script.script import differences

_SIZE: dict[str, Any] = {"image/png": {"width": WIDTH, "height": UNTITLED_HEIGHT}}
STORE_EVERY_S = 10.0
"""Least time between two renewals of the static outputs of a live panel, which a saved notebook keeps."""
_LOOKS_AT_LOST = 5
"""On a network file system the record of a run's end can arrive after its lock is free, so LOST is checked again."""


class LivePlot:
    """Curves, progress, ranks, log and controls of a run; live while it runs, a picture once it has ended.

    The last expression of a cell shows it. It reads the run directory only: `nt.LivePlot("latest")` in a fresh
    kernel shows the same.

    Args:
        run: a run, its id, a unique prefix of it, `"latest"`, or the path of its directory.
        refresh_s: seconds between two checks of the files.
        dark: dark picture; the kernel does not know the notebook's theme.
        log: logarithmic y axes.
        smoothing: weight of earlier values in the bold lines, 0 to 0.99.
        x: x axis: `step`, `samples` or `time`.

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
    ) -> None:
        self.run = run if isinstance(run, Run) else Run(run)
        self.refresh_s = refresh_s
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._displays: list[tuple[str, ...]] = []
        self._forget()
        self._is_acting = False
        self._is_static = False
        self._is_change_wrong = False
        self._has_checkpoint = False
        """Of this run, or of the one that it resumed."""
        self._widgets = Controls(dark, log, smoothing, x)
        for option in self._widgets.options:
            option.observe(self._changed, "value")
        self._widgets.stop.on_click(lambda _: self._act("Stopping…", lambda: self.run.stop()))
        self._widgets.stacks.on_click(lambda _: self._act("Asking the ranks…", self._take_stacks))
        self._widgets.changes.observe(self._check_changes, "value")
        self._widgets.resume.on_click(lambda _: self._act("Resuming…", self._resume_run))
        if not answers_beside_cells(self._widgets.lower):
            self._widgets.note.value = html.note(f"While a cell runs, stop with: nbtools stop {self.run.id}")
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

        The first three are static and show without a kernel: on GitHub, or after a restart. While it is active, they
        are renewed now and then, and hidden as long as the widgets, which then show the whole panel, have a kernel.
        """
        _close_earlier(self)
        with self._lock:
            if self.run.state.is_final:
                self.refresh()
            ids = tuple(uuid.uuid4().hex for _ in range(4))
            self._displays.append(ids)
            for bundle, metadata, display_id in self._outputs(ids):
                _publish(bundle, metadata, transient={"display_id": display_id})

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = view_bundle(self.widget, repr(self))
        if not self.run.state.is_final:
            return bundle, {}
        self.refresh()
        return {**bundle, "text/html": self._words() + self._widgets.shown.html(), "image/png": self._png}, _SIZE

    def picture(self) -> Image:
        """Return the current picture as a static image, which needs no kernel."""
        with self._lock:
            data = png(self.run, dark=self._widgets.dark.value, **self._options())
        alt = f"curves of {self.run.id}"
        return Image(data, format="png", width=WIDTH, height=HEIGHT, alt=alt)  # type: ignore[no-untyped-call]

    def _words(self, note: str = "") -> str:
        words = "".join(part.value for part in self._widgets.upper.children)
        return f"<div class='{html.NO_FORMULAS}' style='max-width:{WIDTH}px'>{words}{note}</div>"

    def _outputs(self, ids: tuple[str, ...]) -> list[tuple[dict[str, Any], dict[str, Any], str]]:
        widgets, state = self._widgets, self._drawn_state
        is_live = state is None or not state.is_final
        note = html.without_kernel(time.time() if is_live else None)
        words = {"text/html": self._words(note), "text/plain": repr(self)}
        below = widgets.shown.html()
        shown = {"text/html": below, "text/plain": ""} if below else {"text/plain": ""}
        picture = {"image/png": self._png, "text/plain": ""} if self._png else {"text/plain": ""}
        controls = view_bundle(widgets.whole if is_live else widgets.lower, "")
        size = _SIZE if self._png else {}
        return [(words, {}, ids[0]), (picture, size, ids[1]), (shown, {}, ids[2]), (controls, {}, ids[3])]

    def _update_displays(self, *, is_static: bool = False) -> None:
        """Replace the outputs; with `is_static`, all but the widgets."""
        if not InteractiveShell.initialized():
            return
        for ids in self._displays:
            for bundle, metadata, display_id in self._outputs(ids)[: 3 if is_static else None]:
                _publish(bundle, metadata, transient={"display_id": display_id}, update=True)

    # --- keeping it up to date ---

    def refresh(self) -> None:
        """Check the run directory now, and draw what changed."""
        with self._lock:
            if not self._is_closed:
                self._look()

    def close(self) -> None:
        """End the thread and remove the widgets; the run continues."""
        with self._lock:
            self._is_closed, thread = True, self._thread
            record_look(self.run.files, time.time())
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)
        self._widgets.close()
        with self._lock:
            self._release()
            self._displays, self._snapshot, self._png = [], Snapshot(), b""

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._keep_looking, name=f"panel {self.run.id}", daemon=True)
                self._thread.start()

    def _keep_looking(self) -> None:
        looks_at_lost = 0
        while True:
            self._wake.clear()
            with self._lock:
                if self._is_closed:
                    self._thread = None
                    return
                self._look_guarded()
                looks_at_lost = looks_at_lost + 1 if self._drawn_state is RunState.LOST else 0
                ended = self._drawn_state is not None and self._drawn_state.is_final
                if ended and not 0 < looks_at_lost < _LOOKS_AT_LOST and not self._wake.is_set():
                    self._thread = None
                    return
            self._wake.wait(self.refresh_s)

    def _changed(self, *_: object) -> None:
        """Draw after an option changed: in the thread, or in this call if the thread has ended."""
        with self._lock:
            if self._thread is None:
                self._look_guarded()
            else:
                self._wake.set()

    def _look_guarded(self) -> None:
        if not self._is_closed and self._guarded(self._look, self._widgets.trouble):
            self._widgets.trouble.value = ""

    def _guarded(self, action: Callable[[], None], place: ipywidgets.HTML) -> bool:
        # An exception that leaves a thread is lost or printed into an unrelated cell. The panel shows it, and the
        # next check may succeed (a stale file handle, a directory that is being moved).
        try:
            action()
        except Exception as error:  # noqa: BLE001
            if not self._is_closed:
                kind = "" if isinstance(error, NbtoolsError) else f"{type(error).__name__}: "
                place.value = html.note(f"{kind}{error}", is_warning=True)
            return False
        return True

    def _forget(self) -> None:
        self._stamp: object = None
        self._snapshot = Snapshot()
        self._wanted: tuple[object, ...] = ()
        self._png = b""
        self._figure: RunFigure | None = None
        self._drawn_state: RunState | None = None
        self._earlier, self._recorded_at, self._news = read_look(self.run.files), 0.0, ""
        self._stragglers: list[Straggler] = []
        self._stored_at, self._is_stored = 0.0, True

    def _look(self) -> None:
        now, state, widgets = time.time(), self.run.state, self._widgets
        stamp = (state, *stamp_of(self.run))
        if stamp != self._stamp:
            self._snapshot, self._stamp = take_snapshot(self.run, state), stamp
            self._offer_checkpoints()
        earlier, self._earlier = self._earlier, None
        if earlier is not None and now - earlier.time >= MIN_ABSENCE_S:
            self._news = html.news(changes_since(self.run, earlier), now - earlier.time)
        if state.is_final or not 0 <= now - self._recorded_at < RECORD_EVERY_S:
            self._recorded_at = now
            record_look(self.run.files, now)
        self._say(state, now)
        wanted = (widgets.dark.value, self._snapshot.version, state, *self._options().items())
        shows_more = widgets.shown.look(media.folder_of(self.run.files), dark=widgets.dark.value)
        if wanted == self._wanted and not shows_more:
            self._store(now)
            return
        if wanted != self._wanted:
            if self._figure is None or wanted[0] != self._wanted[0]:
                self._figure = RunFigure(dark=widgets.dark.value, titled=False)
            self._figure.update(view_of(self.run, **self._options()))
            self._png = widgets.image.value = self._figure.png()
            widgets.image.layout.visibility = "visible"
        self._wanted, self._drawn_state = wanted, state
        if state.is_final or self._is_static:
            widgets.show_playable(state.is_final and bool(self._displays))
            self._is_static = state.is_final
            self._update_displays()
        else:
            self._is_stored = False
            self._store(now)
        if state.is_final:
            self._release()

    def _store(self, now: float) -> None:
        """Renew the static outputs of a live panel, which a saved notebook keeps, if it is time."""
        if self._displays and not self._is_stored and not 0 <= now - self._stored_at < STORE_EVERY_S:
            self._stored_at, self._is_stored = now, True
            self._update_displays(is_static=True)

    def _release(self) -> None:
        """Drop the figure and what was read of the curves: an option that changes reads and draws them again."""
        if self._figure is not None:
            self._figure.close()
            self._figure = None
        with suppress(NbtoolsError):  # the directory was removed
            self.run = Run(self.run.dir)

    def _say(self, state: RunState, now: float) -> None:
        """Update the text at each check: ages and the remaining time change although no file does."""
        facts, widgets = self._snapshot, self._widgets
        remaining = facts.remaining_s(now) if state is RunState.RUNNING else None
        started, ended = self.run.records.started_at, self.run.records.ended_at or facts.last_row
        end = ended if state.is_final else now
        if (elapsed := self.run.records.duration_s) is None and end and started:
            elapsed = end - started
        script, notes = Path(str(self.run.info.get("script") or "")).name, notes_of(self.run, facts.restarts)
        blocker = waiting_for(self.run.records) if state is RunState.QUEUED else ""
        widgets.header.value = html.header(self.run.id, state, script, notes, blocker)
        widgets.progress.value = html.progress(facts, elapsed, remaining, state)
        widgets.news.value = self._news
        widgets.failure.value = html.failure(facts.failure, str(self.run.files.log)) if facts.failure else ""
        is_running = state is RunState.RUNNING
        self._stragglers = stragglers(facts.ranks, now, facts.seconds_per_step) if is_running else []
        widgets.ranks.value = html.ranks(facts.ranks, self._stragglers, now, is_running)
        widgets.tail.value = html.log(facts.log)
        widgets.losses.value = html.note("\n".join(facts.warnings), is_warning=True)
        if not self._is_acting:
            widgets.stop.disabled, widgets.stop.button_style = state.is_final, "" if state.is_final else "warning"
            widgets.stop.description = "Cancel" if blocker else "Stop"
            widgets.stacks.disabled = not is_running
            widgets.resume.disabled = not self._may_resume(state)

    # --- controls ---

    def _options(self) -> dict[str, Any]:
        widgets, (first, last) = self._widgets, self._widgets.span.value
        options = {"x": widgets.x.value, "log": widgets.log.value, "smoothing": widgets.smoothing.value}
        return {**options, "span": (first / 100, last / 100)}

    def _offer_checkpoints(self) -> None:
        found, choice = self._snapshot.checkpoints, self._widgets.checkpoint
        best = best_of(found)
        offered: list[tuple[str, Checkpoint | str]] = []
        for checkpoint in reversed(found):
            loss = checkpoint.metrics.get("eval/loss")
            label = f"step {checkpoint.step:,}" + ("" if loss is None else f" · eval loss {loss:.4g}")
            label += " · best" if checkpoint in best else ""
            offered.append((label, checkpoint))
        is_resumed = bool(mapping_at(self.run.info, "resumed_from"))
        latest = "latest verified" if found else "latest of the parent" if is_resumed else "no checkpoint"
        offered.insert(0, (latest, LATEST))
        if [label for label, _ in offered] != [label for label, _ in choice.options]:
            chosen = choice.value
            choice.options = offered
            choice.value = chosen if chosen in found else LATEST
        self._has_checkpoint = bool(found) or is_resumed
        choice.disabled = self._widgets.changes.disabled = not self._has_checkpoint

    def _changes(self) -> dict[str, Any]:
        """Return the values to change in the new run, as typed.

        Raises:
            ConfigError: they cannot be read.
        """
        try:
            return read_changes(self.run, shlex.split(text)) if (text := self._widgets.changes.value) else {}
        except ValueError as error:  # an unclosed quotation
            raise ConfigError(str(error)) from error

    def _check_changes(self, *_: object) -> None:
        """Show below the field the error in the typed changes, or their effect."""
        with self._lock:
            widgets, said = self._widgets, ""
            try:
                if changes := self._changes():
                    differing = differences(config_of(self.run), changed(self.run, changes))
                    pairs = {name: [old, new] for name, old, new in differing}
                    said = f"Resume writes a new script: {changes_in_words(pairs)}" if pairs else "No value differs."
                self._is_change_wrong = False
            except NbtoolsError as error:
                said, self._is_change_wrong = str(error), True
            widgets.changing.value = html.note(said, is_warning=self._is_change_wrong)
            if not self._is_acting:
                widgets.resume.disabled = not self._may_resume(self.run.state)

    def _may_resume(self, state: RunState) -> bool:
        return state.is_final and self._has_checkpoint and not self._is_change_wrong

    def _act(self, doing: str, action: Callable[[], str]) -> None:
        """Show `doing` at once and run `action` in a thread: it may take as long as saving a checkpoint."""
        widgets = self._widgets
        with self._lock:
            if self._is_acting:
                return
            self._is_acting = widgets.stop.disabled = widgets.stacks.disabled = widgets.resume.disabled = True
            widgets.note.value = html.note(doing)

        def work() -> None:
            self._guarded(lambda: setattr(widgets.note, "value", html.note(action())), widgets.note)
            with self._lock:
                self._is_acting = False
                self._changed()

        threading.Thread(target=work, name=doing, daemon=True).start()

    def _take_stacks(self) -> str:
        found, behind = take_stacks(self.run.files), {straggler.beat.rank for straggler in self._stragglers}
        self._widgets.taken.value = html.stacks(found, behind) if found else ""
        taken = sum(item.has_stacks for item in found)
        return f"Stacks of {taken} of {len(found)} ranks at {time.strftime('%X')}" if found else "No rank has started"

    def _resume_run(self) -> str:
        chosen = self._widgets.checkpoint.value
        with warnings.catch_warnings(record=True) as said:  # a thread must not print them
            warnings.simplefilter("always")
            child = resume(self.run, None if chosen == LATEST else chosen, changes=self._changes())
        with self._lock:
            self.run = child
            self._widgets.changes.value = self._widgets.taken.value = ""
            self._forget()
            self._start()
        origin = origin_in_words(child.info.get("resumed_from"))
        return "\n".join([f"{origin.capitalize()}, as {child.id}", *(str(warning.message) for warning in said)])


_publish: Any = publish_display_data  # IPython's own has no types
_by_cell: dict[str, tuple[str, "weakref.ref[LivePlot]"]] = {}


def _close_earlier(panel: LivePlot) -> None:
    """Close the panel that the same cell showed in an earlier execution, whose thread would continue."""
    kernel: Any = getattr(InteractiveShell.instance(), "kernel", None)
    parent = kernel.get_parent() if hasattr(kernel, "get_parent") else {}
    cell, execution = parent.get("metadata", {}).get("cellId"), parent.get("header", {}).get("msg_id", "")
    if not cell:
        return
    before, known = _by_cell.get(cell, ("", None))
    earlier = None if known is None else known()
    if before != execution and earlier is not None and earlier is not panel and len(earlier._displays) == 1:
        earlier.close()
    _by_cell[cell] = (execution, weakref.ref(panel))
