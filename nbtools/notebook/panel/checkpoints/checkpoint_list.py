"""The checkpoints of a run as a list, and the controls that continue from one of them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import ipywidgets as widgets

from nbtools.errors import CheckpointError, literal, plural
from nbtools.launcher.checks.findings import size
from nbtools.notebook.background import Filling
from nbtools.notebook.html_parts import BORDER, FONT, MUTED, WARN, table_html
from nbtools.notebook.kernel import answers_beside_cells
from nbtools.notebook.widgets import html_widget, make_control
from nbtools.run.checkpoints import BEST_BY, AnyCheckpoint, Checkpoint, best_of
from nbtools.run.records import local_time
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint

LATEST = ""
"""Value of the choice "latest verified"; a drop-down uses None for "nothing chosen"."""
START = "Start a new run from this checkpoint, with these changes, and show it in this panel"
_MOST_ROWS = 20
_ROW_PX = 30


class CheckpointList:
    """A table of the newest checkpoints with a button in each row, above the choice, the changes, and the start.

    `changed` is called after another checkpoint was chosen, or the typed changes differ. Of a program, `pattern` and
    `words` say what its checkpoints are and how it resumes.
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
        self.changing = html_widget()
        tooltip = "Files or folders that are checkpoints, from the working directory on; each * is in one name"
        self.pattern = make_control(widgets.Text, "Checkpoints are", width=350, label=100, tooltip=tooltip)
        tooltip = "Words with which the program resumes; {checkpoint} stands for the path"
        self.words = make_control(widgets.Text, "Resume with", width=320, label=76, tooltip=tooltip)
        self.pattern.placeholder, self.words.placeholder = "out/*.ckpt", "--resume {checkpoint}"
        self.pattern.continuous_update = self.words.continuous_update = False
        self.filling, self._said_of_program = Filling(), html_widget()
        self._why_none = self._why_not = ""
        self.choice.disabled = self.changes.disabled = self.start.disabled = True
        self._table, self._buttons = html_widget(), widgets.VBox(layout=widgets.Layout(width="170px", flex="0 0 auto"))
        self._table.layout.flex, self._table.layout.width = "1 1 auto", "0"
        rows = widgets.HBox([self._table, self._buttons], layout=widgets.Layout(width="100%"))
        wrapped = widgets.Layout(flex_flow="row wrap", align_items="center", margin="6px 0 0")
        self._form = widgets.HBox([self.choice, self.changes, self.start, self.verify], layout=wrapped)
        hidden = widgets.Layout(flex_flow="row wrap", align_items="center", margin="6px 0 0", display="none")
        self._program = widgets.HBox([self.pattern, self.words, self._said_of_program], layout=hidden)
        shown = [rows, self._program, self._form, self.changing]
        self.widget = widgets.VBox(shown, layout=widgets.Layout(width="100%"))
        for control in (self.choice, self.changes):
            control.observe(changed, "value")
        self.found: list[AnyCheckpoint] = []
        self._said: dict[Path, str] = {}
        self._key: object = None

    def show_program(self, pattern: str, words: str, note: str) -> None:
        """Show what the checkpoints of a program are and how it resumes, and where that comes from."""
        with self.filling:
            self.pattern.value, self.words.value = pattern, words
        self._said_of_program.value = f"<div style='{FONT}{MUTED}'>{literal(note)}An edit is remembered.</div>"
        self._program.layout.display = ""

    def offer(
        self,
        found: Sequence[AnyCheckpoint],
        *,
        is_resumed: bool,
        is_program: bool = False,
        why_none: str = "",
        why_not: str = "",
    ) -> bool:
        """Offer checkpoints, newest first; returns whether there is one, or the run that this one resumed may have.

        Those of a program have names instead of measured values, and a fork of it has arguments instead of changes.
        `why_none` says why none is listed, and `why_not` why none can be continued from.
        """
        self._why_none, self._why_not = why_none, why_not
        self._mark_buttons()
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

    def look(self) -> None:
        """Draw the table if it differs; called while it is shown."""
        key = [checkpoint.path for checkpoint in self.found], dict(self._said), self._why_none
        if key == self._key:
            return
        shown = self.found[-_MOST_ROWS:][::-1]
        if self._key is None or [button.name for button in self._buttons.children[1:]] != [c.name for c in shown]:
            self._make_buttons(shown)
        self._key = key
        self.verify.disabled = not shown
        found = f"found: {self._why_none}" if self._why_none else "saved yet"
        table = _table(shown, self._said, len(self.found) - len(shown), _best_of(self.found))
        self._table.value = table or f"<div style='{FONT}{MUTED}'>No checkpoint has been {literal(found)}.</div>"

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

    def _make_buttons(self, shown: Sequence[AnyCheckpoint]) -> None:
        for button in self._buttons.children:
            button.close()
        head = widgets.Box(layout=widgets.Layout(height=f"{_ROW_PX}px", flex="0 0 auto"))
        self._buttons.children = (head, *(self._button(checkpoint) for checkpoint in shown))
        self._mark_buttons()

    def _mark_buttons(self) -> None:
        """Disable the buttons of the rows with the reason, if no checkpoint can be continued from."""
        for button in self._buttons.children[1:]:
            button.disabled = bool(self._why_not)
            usual = f"Choose {button.name} below"
            button.tooltip = f"Cannot resume: {self._why_not}" if self._why_not else usual

    def _button(self, checkpoint: AnyCheckpoint) -> widgets.Button:
        layout = widgets.Layout(width="164px", height="26px", margin="2px", flex="0 0 auto")
        text = "Continue from here…"
        button = widgets.Button(description=text, layout=layout)
        button.name = checkpoint.name

        def choose(_: object) -> None:
            if checkpoint in self.found:
                self.choice.value = checkpoint
                self.changes.focus()

        button.on_click(choose)
        answers_beside_cells(button)
        return button


def _best_of(found: Sequence[AnyCheckpoint]) -> list[Checkpoint]:
    return best_of(one for one in found if isinstance(one, Checkpoint))


def _step_of(checkpoint: AnyCheckpoint) -> str:
    return checkpoint.about if isinstance(checkpoint, ForeignCheckpoint) else f"step {checkpoint.step:,}"


def _table(shown: Sequence[AnyCheckpoint], said: dict[Path, str], num_more: int, best: Sequence[Checkpoint]) -> str:
    if not shown:
        return ""
    newest = shown[0]
    metric = str(newest.manifest.get("best_by", BEST_BY)) if isinstance(newest, Checkpoint) else "file"
    # With its border a row is as high as its button.
    cell = f"box-sizing:content-box;height:{_ROW_PX - 1}px;line-height:{_ROW_PX - 1}px;border-bottom:{BORDER};"
    cell += "padding:0 14px 0 0;text-align:left;white-space:nowrap"

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
