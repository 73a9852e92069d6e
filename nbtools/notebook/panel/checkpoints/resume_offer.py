"""Whether and from what a run can be continued, and what the typed changes would do; below the Checkpoints tab."""

import shlex
from collections.abc import Sequence
from typing import Any

from nbtools.errors import ConfigError, NbtoolsError
from nbtools.launcher.programs.program_resume import planned_resume, remember, said_in_words, why_not_resumable
from nbtools.launcher.resume import changed, config_of, read_changes
from nbtools.notebook.html_parts import note
from nbtools.notebook.panel.checkpoints.checkpoint_list import LATEST, CheckpointList
from nbtools.notebook.widgets import words_of
from nbtools.run import facts
from nbtools.run.checkpoints import AnyCheckpoint
from nbtools.run.records import mapping_at
from nbtools.run.run import Run, why_no_checkpoints
from nbtools.run.state import RunState
from nbtools.rundir.rundir import has_recipe
from nbtools.rundir.secret_values import MASK
from nbtools.script.script import differences


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
        is_resumed, why_none = bool(mapping_at(run.info, "resumed_from")), why_no_checkpoints(run)
        self.has_checkpoint = self._list.offer(
            found, is_resumed=is_resumed, is_program=self.is_program, why_none=why_none
        )
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
