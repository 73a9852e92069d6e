"""The checkpoints of a run as a list, and the controls that continue from one of them."""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from nbtools.errors import CheckpointError, ConfigError, NbtoolsError, literal, plural
from nbtools.launcher.checks.findings import size
from nbtools.launcher.programs.program_resume import planned_resume, remember, said_in_words, why_not_resumable
from nbtools.launcher.resume import changed, config_of, read_changes
from nbtools.notebook.background import Filling
from nbtools.notebook.html_parts import BORDER, FONT, MUTED, WARN, copy_button, note, table_html
from nbtools.notebook.widgets import html_widget, in_column, in_row, make_control, offer, words_of
from nbtools.run import facts
from nbtools.run.checkpoints import BEST_BY, AnyCheckpoint, Checkpoint, best_of
from nbtools.run.records import local_time, mapping_at
from nbtools.run.run import Run, why_no_checkpoints
from nbtools.run.state import RunState
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint
from nbtools.rundir.rundir import has_recipe
from nbtools.rundir.secret_values import MASK
from nbtools.script.script import differences

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
        none, tip = [("no checkpoint", LATEST)], "Checkpoint that the new run starts from"
        self.choice = make_control(widgets.Dropdown, "Continue from", width=350, label=100, tooltip=tip, options=none)
        tooltip = "field=value pairs, separated by spaces; the new run gets its own script with them"
        self.changes = make_control(widgets.Text, "Changes", width=320, label=62, tooltip=tooltip)
        self.changes.placeholder = "learning_rate=1e-4 seed=1"
        self.start = make_control(widgets.Button, "Start", width=92, icon="play", tooltip=START)
        tooltip = "Compare the files of the listed checkpoints with their checksums"
        self.verify = make_control(widgets.Button, "Verify", width=92, icon="check", tooltip=tooltip)
        self.program, self.table, self.copies, self.changing = ProgramRow(), *(html_widget() for _ in range(3))
        self.choice.disabled = self.changes.disabled = self.start.disabled = True
        form = in_row(self.choice, self.changes, self.start, self.verify)
        self.widget = in_column(self.table, self.program.widget, form, self.copies, self.changing)
        for control in (self.choice, self.changes):
            control.observe(changed, "value")
        self.choice.observe(self._offer_copies, "value")
        self.found: list[AnyCheckpoint] = []
        self._said: dict[Path, str] = {}
        self._why_none = ""
        self._key: object = None

    def offer(self, found: Sequence[AnyCheckpoint], *, is_resumed: bool, is_program: bool, why_none: str) -> bool:
        """Offer checkpoints, newest first; returns whether there is one, or the run that this one resumed may have.

        Those of a program have names instead of measured values, and a fork of it has arguments instead of changes.
        `why_none` says why none is listed.
        """
        self._why_none = why_none
        self.found, best = list(found), best_of(found)
        if is_program:
            self.changes.description, self.changes.placeholder = "Arguments", "--lr 1e-4"
            self.changes.style.description_width = "76px"
            self.changes.tooltip = "arguments that are appended to the program's"
            self.verify.tooltip = "Check that the files of the listed checkpoints are unchanged and complete"
        latest = "latest verified" if found else "latest of the parent" if is_resumed else "no checkpoint"
        listed = [(checkpoint_label(one) + " · best" * (one in best), one) for one in reversed(self.found)]
        offer(self.choice, [(latest, LATEST), *listed], LATEST)
        self.choice.disabled = self.changes.disabled = not (self.found or is_resumed)
        return bool(self.found) or is_resumed

    def choose(self, step: int) -> None:
        """Choose the checkpoint of a step, if it is offered: continue from it, copy its path, or try its model."""
        self.choice.value = next((one for one in self.found if one.step == step), self.choice.value)

    def _offer_copies(self, *_: object) -> None:
        chosen = self.choice.value
        copies = "" if chosen == LATEST else copy_button("Copy path", str(chosen.path))
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
        table = _table(shown, self._said, len(self.found) - len(shown), best_of(self.found))
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


def checkpoint_label(checkpoint: AnyCheckpoint) -> str:
    """Return the step of a checkpoint, its evaluation loss, and the name of a program's."""
    loss = checkpoint.metrics.get("eval/loss")
    name = "" if isinstance(checkpoint, Checkpoint) else checkpoint.name
    return " · ".join(filter(None, (_step_of(checkpoint), "" if loss is None else f"eval loss {loss:.4g}", name)))


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


class ResumeOffer:
    """Offers to continue a run in a list of checkpoints. The caller holds the panel's lock.

    Attributes:
        is_program: Whether the run is one of a user's program, which takes further arguments instead of changes.
        has_checkpoint: Whether the run, or the one that it resumed, has a checkpoint.
        why_not: Why a program cannot be resumed; empty if it can.
        nothing_left: Why a run that is resumed without changes would do nothing, or "".
    """

    def __init__(self, checkpoints: CheckpointList) -> None:
        self._list = checkpoints
        self.is_program = self.has_checkpoint = self._is_change_wrong = False
        self.why_not = self.nothing_left = ""

    def look(self, run: Run, found: Sequence[AnyCheckpoint], step: int, total: int | None) -> None:
        """Offer checkpoints, oldest first."""
        self.is_program = not has_recipe(run.files)
        self.why_not = why_not_resumable(run) if self.is_program else ""
        about: dict[str, Any] = {"is_program": self.is_program, "why_none": why_no_checkpoints(run)}
        self.has_checkpoint = self._list.offer(found, is_resumed=bool(mapping_at(run.info, "resumed_from")), **about)
        if self.is_program:
            self._list.program.show(*said_in_words(run))
        self.nothing_left = ""
        if not self.is_program and total and step >= total and run.state is RunState.SUCCEEDED:
            more = f"enter max_steps={2 * total} as Changes below Checkpoints"
            self.nothing_left = f"all {total:,} steps are done; for more, {more}"

    def may_start(self, state: RunState) -> bool:
        """Whether a run in this state can be continued with what is chosen and typed."""
        return state.is_final and self.has_checkpoint and not (self._is_change_wrong or self.why_not)

    def typed(self, run: Run) -> tuple[dict[str, Any], list[str]]:
        """Return as typed the values to change in the new run, or the further arguments of a program.

        Raises:
            ConfigError: they cannot be read.
        """
        words = words_of(self._list.changes.value)
        return ({}, words) if self.is_program or not words else (read_changes(run, words), [])

    def check(self, run: Run) -> None:
        """Show below the field the error in the typed changes, or their effect."""
        chosen, said = self._list.choice.value, f"Cannot resume: {self.why_not}" if self.why_not else ""
        try:
            changes, arguments = self.typed(run)
            if arguments:
                said = f"Resume adds the arguments {shlex.join(arguments)}"
            if self.is_program and self.has_checkpoint and not self.why_not:
                planned = planned_resume(run, None if chosen == LATEST else chosen, args=arguments)
                said = "\n".join([*filter(None, [said]), f"Continues from {planned.sentence}", *planned.notes])
            if changes:
                pairs = {name: [old, new] for name, old, new in differences(config_of(run), changed(run, changes))}
                said = f"Resume writes a new script: {facts.changes(pairs)}" if pairs else "No value differs."
            self._is_change_wrong = False
            if not run.state.is_final and (changes or arguments or chosen != LATEST):
                said = f"{said}\nIt can start once this run has ended.".lstrip()
        except NbtoolsError as error:
            said, self._is_change_wrong = str(error), True
        self._list.changing.value = note(said, is_warning=self._is_change_wrong)

    def remembered(self, run: Run, edit: Any) -> str:
        """Remember what an edit says of the checkpoints or the resume of a program; returns where.

        Raises:
            ConfigError: it contains a masked secret, or words that say nothing.
        """
        if MASK in edit.new:
            raise ConfigError(f"{MASK} stands for a secret; write the words into a launcher script")
        if edit.owner is self._list.program.pattern:
            return f"Checkpoints: {remember(run, checkpoints=edit.new or None)}"
        return f"Resume: {remember(run, resume=tuple(words_of(edit.new)))}"
