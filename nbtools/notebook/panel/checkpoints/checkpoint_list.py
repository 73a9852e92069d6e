"""The checkpoints of a run as a list, and the controls that continue from one of them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ipywidgets as widgets

from nbtools.errors import CheckpointError, literal, plural
from nbtools.launcher.checks.findings import size
from nbtools.notebook.background import Filling
from nbtools.notebook.html_parts import BORDER, FONT, MUTED, WARN, copy_button, table_html
from nbtools.notebook.widgets import html_widget, in_row, make_control
from nbtools.run.checkpoints import BEST_BY, AnyCheckpoint, Checkpoint, best_of
from nbtools.run.records import local_time
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint

LATEST = ""
"""Value of the choice "latest verified"; a drop-down uses None for "nothing chosen"."""
START = "Start a new run from this checkpoint, with these changes, and show it in this panel"
_MOST_ROWS = 20


class ProgramRow:
    """The pattern of a program's checkpoints, and the words with which it resumes."""

    def __init__(self) -> None:
        tooltip = "Files or folders that are checkpoints, from the working directory on; each * is in one name"
        self.pattern = make_control(widgets.Text, "Checkpoints are", width=350, label=100, tooltip=tooltip)
        tooltip = "Words with which the program resumes; {checkpoint} stands for the path"
        self.words = make_control(widgets.Text, "Resume with", width=320, label=76, tooltip=tooltip)
        self.pattern.placeholder, self.words.placeholder = "out/*.ckpt", "--resume {checkpoint}"
        self.pattern.continuous_update = self.words.continuous_update = False
        self.filling, self.origin = Filling(), html_widget()
        self.widget = in_row(self.pattern, self.words, self.origin)
        self.widget.layout.display = "none"

    def show(self, pattern: str, words: str, note: str) -> None:
        """Show both, and where they come from."""
        with self.filling:
            self.pattern.value, self.words.value = pattern, words
        self.origin.value = f"<div style='{FONT}{MUTED}'>{literal(note)}An edit is remembered.</div>"
        self.widget.layout.display = ""


class CheckpointList:
    """A table of the newest checkpoints, above the choice of one of them, the changes, and the start.

    `changed` is called after another checkpoint was chosen, or the typed changes differ.
    """

    def __init__(self, changed: Callable[[object], None]) -> None:
        none = [("no checkpoint", LATEST)]
        tooltip = "Checkpoint that the new run starts from"
        self.choice = make_control(
            widgets.Dropdown, "Continue from", width=350, label=100, tooltip=tooltip, options=none
        )
        tooltip = "field=value pairs, separated by spaces; the new run gets its own script with them"
        self.changes = make_control(widgets.Text, "Changes", width=320, label=62, tooltip=tooltip)
        self.changes.placeholder = "learning_rate=1e-4 seed=1"
        self.start = make_control(widgets.Button, "Start", width=92, icon="play", tooltip=START)
        tooltip = "Compare the files of the listed checkpoints with their checksums"
        self.verify = make_control(widgets.Button, "Verify", width=92, icon="check", tooltip=tooltip)
        self.program, self.table, self.copies, self.changing = ProgramRow(), *(html_widget() for _ in range(3))
        self.choice.disabled = self.changes.disabled = self.start.disabled = True
        form = in_row(self.choice, self.changes, self.start, self.verify)
        parts = [self.table, self.program.widget, form, self.copies, self.changing]
        self.widget = widgets.VBox(parts, layout={"width": "100%"})
        for control in (self.choice, self.changes):
            control.observe(changed, "value")
        self.choice.observe(self._offer_copies, "value")
        self.found: list[AnyCheckpoint] = []
        self._said: dict[Path, str] = {}
        self._why_none = ""
        self._key: object = None

    def offer(
        self, found: Sequence[AnyCheckpoint], *, is_resumed: bool, is_program: bool = False, why_none: str = ""
    ) -> bool:
        """Offer checkpoints, newest first; returns whether there is one, or the run that this one resumed may have.

        Those of a program have names instead of measured values, and a fork of it has arguments instead of changes.
        `why_none` says why none is listed.
        """
        self._why_none = why_none
        self.found, best = list(found), _best_of(found)
        offered: list[tuple[str, AnyCheckpoint | str]] = []
        for checkpoint in reversed(self.found):
            loss = checkpoint.metrics.get("eval/loss")
            label = _step_of(checkpoint)
            label += "" if loss is None else f" · eval loss {loss:.4g}"
            label += "" if isinstance(checkpoint, Checkpoint) else f" · {checkpoint.name}"
            offered.append((label + (" · best" if checkpoint in best else ""), checkpoint))
        if is_program:
            self.changes.description, self.changes.placeholder = "Arguments", "--lr 1e-4"
            self.changes.style.description_width = "76px"
            self.changes.tooltip = "arguments that are appended to the program's"
            self.verify.tooltip = "Check that the files of the listed checkpoints are unchanged and complete"
        latest = "latest verified" if found else "latest of the parent" if is_resumed else "no checkpoint"
        offered.insert(0, (latest, LATEST))
        if [label for label, _ in offered] != [label for label, _ in self.choice.options]:
            chosen = self.choice.value
            self.choice.options = offered
            self.choice.value = chosen if chosen in self.found else LATEST
        self.choice.disabled = self.changes.disabled = not (self.found or is_resumed)
        return bool(self.found) or is_resumed

    def choose(self, step: int) -> None:
        """Choose the checkpoint of a step, if it is offered: continue from it, copy its path, or try its model."""
        self.choice.value = next((one for one in self.found if one.step == step), self.choice.value)

    def _offer_copies(self, *_: object) -> None:
        chosen, copies = self.choice.value, ""
        if chosen != LATEST:
            copies = copy_button("Copy path", str(chosen.path))
        if isinstance(chosen, Checkpoint):
            call = f"nt.Playground({str(chosen.path.parent.parent)!r}, checkpoint={chosen.name!r})"
            copies += " " + copy_button("Copy the call that tries its model", call)
        self.copies.value = f"<div style='{FONT}'>{copies}</div>"

    def look(self) -> None:
        """Draw the table if it differs; called while it is shown."""
        key = [checkpoint.path for checkpoint in self.found], dict(self._said), self._why_none
        if key == self._key:
            return
        shown = self.found[-_MOST_ROWS:][::-1]
        self._key = key
        self.verify.disabled = not shown
        found = f"found: {self._why_none}" if self._why_none else "saved yet"
        table = _table(shown, self._said, len(self.found) - len(shown), _best_of(self.found))
        self.table.value = table or f"<div style='{FONT}{MUTED}'>No checkpoint has been {literal(found)}.</div>"

    def check(self) -> str:
        """Compare the files of the checkpoints in the list with their checksums; returns the result in words."""
        shown = self.found[-_MOST_ROWS:][::-1]
        for checkpoint in shown:
            try:
                checkpoint.verify()
                self._said[checkpoint.path] = ""
            except CheckpointError as error:
                self._said[checkpoint.path] = str(error)
        damaged = sum(bool(self._said[checkpoint.path]) for checkpoint in shown)
        return f"Verified at {time.strftime('%X')}: {len(shown) - damaged} of {plural(len(shown), 'checkpoint')} whole"


def _best_of(found: Sequence[AnyCheckpoint]) -> list[Checkpoint]:
    return best_of(one for one in found if isinstance(one, Checkpoint))


def _step_of(checkpoint: AnyCheckpoint) -> str:
    return checkpoint.about if isinstance(checkpoint, ForeignCheckpoint) else f"step {checkpoint.step:,}"


def _table(shown: Sequence[AnyCheckpoint], said: dict[Path, str], num_more: int, best: Sequence[Checkpoint]) -> str:
    if not shown:
        return ""
    newest = shown[0]
    metric = str(newest.manifest.get("best_by", BEST_BY)) if isinstance(newest, Checkpoint) else "file"
    cell = f"border-bottom:{BORDER};padding:4px 14px 4px 0;text-align:left;white-space:nowrap"
    rows = []
    for checkpoint in shown:
        value = checkpoint.metrics.get(metric)
        is_best = " <b>best</b>" if checkpoint in best else ""
        step = f"<b>{_step_of(checkpoint).replace('step ', '')}</b>"
        measured = "–" if value is None else f"{value:.4g}{is_best}"
        if not isinstance(checkpoint, Checkpoint):
            measured = literal(checkpoint.name)
        saved, checked = local_time(checkpoint.time), _checked(checkpoint, said)
        rows.append([step, measured, size(checkpoint.num_bytes), saved, checked])
    head = ["step", literal(metric), "size", "saved", "files"]
    more = f"<div style='{FONT}{MUTED}'>and {num_more} older, in the choice below</div>" if num_more > 0 else ""
    listed = table_html(rows, head, cell=cell, style="width:100%;table-layout:auto")
    return f"<div style='overflow-x:auto'>{listed}</div>{more}"


def _checked(checkpoint: AnyCheckpoint, said: dict[Path, str]) -> str:
    wrong = said.get(checkpoint.path)
    if wrong is None:
        return f"<span style='{MUTED}'>not checked</span>"
    whole = "✓ verified" if isinstance(checkpoint, Checkpoint) else "✓ whole"
    return f"<b style='{WARN}' title='{literal(wrong)}'>✕ damaged</b>" if wrong else whole
