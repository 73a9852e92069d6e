"""The step of each printed row: a counter that falls starts over, and a line without one stands at the last line."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from nbtools.metrics.columns import Unit
from nbtools.rundir.json_files import MAX_STEP

Position = tuple[Unit, int]


@dataclass
class Loop:
    """A counter with one name, over all lines that print it."""

    base: int = 0
    """The count before it last started over."""
    first: int = 0
    """The lowest value that it had."""
    last: int = -1
    interval: int = 0
    total: int | None = None
    epoch: float = math.nan
    num_falls: int = 0
    has_rows: bool = False


@dataclass
class Statement:
    """The counter in the lines of one statement of the program."""

    counter: str | None
    unit: Unit
    is_given: bool = False
    """Whether the user has named its numbers, so that nothing contradicts them."""
    is_evaluation: bool = False
    leads: bool = False
    """Whether its lines stand before the line that counts for them, as the first one does."""
    is_bar: bool = False
    is_plain: bool = True
    """Whether its lines have no metrics."""
    is_whole_run: bool = False
    """Whether its counter counts the whole run, as `global_step`."""
    has_fractions: bool = False
    """Whether it prints epochs as 0.25."""
    first: int = MAX_STEP
    """The lowest value that its counter had in a loop of an evaluation."""
    last: int = -1
    interval: int = MAX_STEP
    num_falls: int = -1
    num_rows: int = 0
    num_epochs: int | None = None
    """The number of epochs in the log when it was last printed."""
    is_frequent: bool = False
    """Whether its lines also stand in the middle of an epoch."""
    attempt: int = 0
    total: int | None = None
    epoch: float = math.inf
    """The epoch of the log when it was last printed."""
    behind: Position | None = None
    """Where its last row stands, if it is behind an earlier one: the best one again, or the first after a rollback."""
    is_unsure: bool = False
    """Whether its counter has contradicted itself or that of other lines, so that its lines have no step."""


class StepCounters:
    """Follows the counters of a log."""

    def __init__(self) -> None:
        self.loops: dict[str, Loop] = {}
        self.position: Position | None = None
        """Where a line without a counter stands."""
        self._last_row: Position | None = None
        """Where the last line with a counter stands, also if it was the last one of its epoch."""
        self.main: Loop | None = None
        """The loop of the training."""
        self.total: int | None = None
        self._epochs = Loop()
        self._epoch = math.nan
        self._num_epochs: int | None = None
        self._attempt = 0
        self.is_estimate = False
        """Whether an epoch has ended whose number of steps is not printed, so that later steps are estimates."""
        self.num_trials = 0
        """How often the epochs have started over: for another fold, or with another setting."""

    def total_steps(self, num_epochs: int | None) -> int | None:
        """Return the steps of the whole run as printed, or those of an epoch times the number of epochs."""
        per_epoch = self.main.total if self.main is not None and self.main.total else 0
        total = self.total or per_epoch * (num_epochs or self._num_epochs or 0)
        is_step = self.position is not None and self.position[0] == "step"
        return (total or None) if is_step and self.position and total >= self.position[1] else None

    @property
    def has_counter(self) -> bool:
        """Whether a line has counted."""
        return self.main is not None or self._epochs.last >= 0

    @property
    def is_counting(self) -> bool:
        """Whether a counter has risen, or an epoch was printed: `batch 64` alone may be a setting."""
        return self._epochs.last >= 0 or (self.main is not None and self.main.interval > 0)

    def rewind(self) -> None:
        """A new attempt begins: its counters start from its checkpoint or at zero."""
        self.loops, self.main, self._epochs, self._epoch = {}, None, Loop(), math.nan
        self._attempt += 1
        self.position = self._last_row = (self.position[0], 0) if self.position else None

    def place(self, line: Statement, found: Mapping[str, float]) -> Position | None:
        """Return unit and step of a row; None if it belongs nowhere, as the middle of an evaluation's loop.

        Args:
            line: The statement that printed the row.
            found: Its `counter`, what it is `of`, the `epoch`, and `num_epochs`, as far as they are printed.
        """
        counter, of, epoch = (found.get(role) for role in ("counter", "of", "epoch"))
        line.num_rows += 1
        if line.attempt != self._attempt:
            line.attempt, line.last, line.num_falls = self._attempt, -1, -1
        n, total = None if counter is None else int(counter), None if of is None else int(of)
        line.is_unsure = line.is_unsure or (not line.is_given and self._is_contradicted(line, n, total, epoch))
        if line.is_unsure:
            return None
        before = self._epoch
        if epoch is not None and not line.has_fractions and not (line.is_evaluation and n is not None):
            self._epoch = epoch
            self._num_epochs = int(found.get("num_epochs", 0)) or self._num_epochs
        line.epoch = max(self._epoch, before)
        if n is None:
            if epoch is None or line.has_fractions:
                line.is_frequent |= self._last_row == self.position
                return (self._last_row if line.is_frequent else self.position) or ("row", line.num_rows)
            return self._at_epoch(line, int(epoch))
        if line.unit == "epoch":
            return self._at_epoch(line, n)
        name = f"{line.counter}|" if line.is_bar and line.counter == "n/N" else line.counter or ""
        loop, main = self.loops.setdefault(name, Loop()), self.main
        is_other = bool(main and total and main.total and total != main.total)
        is_next = loop is main and total is None and 0 <= n - loop.last <= loop.interval
        is_inner = (line.is_evaluation and not is_next) or (is_other and (loop is main or line.is_plain))
        if main is not None and not line.is_whole_run and is_inner:
            line.first = min(line.first, n)
            if (total is not None and n < total - (line.first == 0)) or (line.last >= 0 and not line.is_evaluation):
                return None  # the middle of a loop, or a loop of something else by the statement of the training
            return self.position if epoch is None else self._at_epoch(line, int(epoch))
        return self._in_loop(line, loop, n, total)

    def _is_contradicted(self, line: Statement, n: int | None, total: int | None, epoch: float | None) -> bool:
        """Whether the counter of a line cannot be what it seems: 3/20 behind 3/10, or the epoch of another line."""
        if n is not None and total is not None and not line.is_whole_run and not line.is_bar:
            before, line.total = line.total, total
            if n > total or (before not in (None, total) and n >= line.last >= 0):
                return True
        is_repeated = n is None and epoch == line.last and not line.has_fractions and not line.is_plain
        return is_repeated and self._epoch > line.epoch

    def _at_epoch(self, line: Statement, epoch: int) -> Position:
        if self.main is not None and self.main.has_rows and self.main.interval and self.position is not None:
            return self.position  # steps are counted, too
        loop = self._epochs
        is_stage = epoch == line.last and line.num_epochs not in (None, self._num_epochs)
        if (epoch < line.last or is_stage) and line.num_falls == loop.num_falls:  # a further fold or stage
            loop.base, loop.num_falls = loop.base + loop.last + (0 if epoch else 1), loop.num_falls + 1
            loop.last = -1
            self.num_trials += 1
        line.last, line.num_falls, line.num_epochs = epoch, loop.num_falls, self._num_epochs
        loop.last = max(loop.last, epoch)
        if self.main is None or not self.main.interval or not (line.is_plain or line.is_evaluation):
            self.position = self._last_row = ("epoch", min(loop.base + epoch, MAX_STEP))
        return "epoch", min(loop.base + epoch, MAX_STEP)

    def _in_loop(self, line: Statement, loop: Loop, n: int, total: int | None) -> Position | None:
        near = loop.last + max(loop.interval, 1)
        is_next = loop.base <= n <= loop.base + near or n == line.last + line.interval
        if line.num_falls < loop.num_falls and near < n and line.last < n and is_next:
            line.last = n  # others of its name have started over, this one counts on
            return line.unit, n
        is_new = loop.last < 0
        if is_new:
            loop.total, loop.epoch, loop.first, line.num_falls = total, self._epoch, n, 0
            if total and not line.is_whole_run and self._epoch > 1 and n < total:  # it was resumed in a later epoch
                if n > 1 and not self._num_epochs and not line.is_given:  # the first epoch may be 0 or 1
                    line.is_unsure = True
                    return None
                loop.base = int(self._epoch - bool(self._num_epochs)) * total
        elif not line.is_whole_run:
            has_fallen = n < line.last and line.num_falls == loop.num_falls and n <= loop.first + loop.interval
            is_later = self._epoch > loop.epoch
            loop.first = min(loop.first, n)
            # a bar of epochs is drawn again in its middle
            is_over = not line.is_bar or n + max(loop.interval, 1) > (total or 0)
            is_behind = n < loop.last or (n == line.last and is_over)  # another statement may print the same step
            if has_fallen or (is_later and is_behind and line.num_falls != loop.num_falls + 1 and line.last >= 0):
                size = total or loop.total
                self.is_estimate |= not size and loop.interval > 1
                ends = loop if loop.last - line.last < line.interval else line  # another line has the running total
                loop.base += size if size else ends.last + max(ends.interval, n, 1) - n
                loop.num_falls += 1
                loop.last = n
            loop.epoch = self._epoch
        before, line.behind = line.behind, None
        is_late = line.last < 0 and n + loop.interval < loop.last and not is_new  # the best one again, by another line
        if is_late or (line.num_falls == loop.num_falls and (n < line.last or (before and n == line.last))):
            line.behind = line.unit, min(loop.base + n, MAX_STEP)
            return line.behind if before is not None and before[1] < line.behind[1] else None
        if n > loop.last:
            loop.interval = n - loop.last if loop.last >= 0 and not is_new else loop.interval
        line.interval = n - line.last if n > line.last >= 0 else line.interval
        line.last, line.num_falls = n, loop.num_falls
        loop.last, loop.total = max(n, loop.last), total or loop.total
        if self.main is None or (not self.main.has_rows and not line.is_plain):
            self.main = loop
        loop.has_rows |= not line.is_plain
        step = min(loop.base + n, MAX_STEP)
        if total and not line.is_whole_run and loop is self.main and math.isnan(self._epoch):
            self.total = total
        is_last_line = bool(total) and n + loop.interval + (loop.first == 0 and loop.interval > 1) > (total or 0)
        self.position = (line.unit, min(loop.base + max(total or 0, n), MAX_STEP) if is_last_line else step)
        self._last_row = line.unit, step
        return self._last_row
