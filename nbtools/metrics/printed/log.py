"""Metrics from the log of a program that only prints them."""

import contextlib
import math
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from nbtools.errors import ConfigError
from nbtools.metrics.history import History
from nbtools.metrics.printed.line_times import LineTimes
from nbtools.metrics.printed.measured_curves import PrintedCurves
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.plans import LineKind, LinePlan, LinePlans
from nbtools.metrics.printed.shapes import ANSI, DIGITS
from nbtools.metrics.printed.steps import StepCounters
from nbtools.rundir.tail import Tail

EXAMPLE: Final = "step 20 loss 2.31 lr 0.001"  # a line that is read: a counter, and names before numbers
_FIRST_LOOK_S: Final = 10.0
"""Processor time for the existing log; what is left is read at the next looks."""
_LOOK_S: Final = 0.05
_ENOUGH: Final = 4
"""Numbers that have to rise evenly, but for the first one, to count."""
_MOST_UNCOUNTED: Final = 200
_SHARE: Final = 0.04
"""Share of a core for later output; beyond it, the rest waits for the next look."""
_BREAK: Final = re.compile(rb"[\r\x08]")


_Line = tuple[LinePlan, Sequence[float], int]


class LogMetrics:
    """The metrics in a growing log, as a history. May be used from several threads."""

    def __init__(
        self,
        path: str | Path,
        times: str | Path | None = None,
        *,
        patterns: Iterable[str] = (),
        templates: Iterable[str] = (),
    ) -> None:
        """Store the paths of the log and of the supervisor's record of its growth, which gives its lines a time.

        Args:
            path: The log.
            times: The record of its growth.
            patterns: Texts of patterns of the user; they come before everything else.
            templates: Texts of patterns from the program's source; they read what no grammar reads.
        """
        self._bad: list[str] = []
        self._patterns = [*self._compiled(patterns, "pattern"), *self._compiled(templates, "template")]
        self._tail = Tail(path, carriage_returns=True)
        self._times = LineTimes(times)
        self._history = History()
        self._lock = threading.Lock()
        self._looked, self._credit_s = -math.inf, 0.0
        self._error = ""
        self._rows = PrintedRows(self._patterns)

    def _compiled(self, texts: Iterable[str], source: str) -> list[tuple[Pattern, str]]:
        found = []
        for text in texts:
            try:
                found.append((Pattern(text), source))
            except ConfigError as error:
                self._bad.append(str(error))
        return found

    def poll(self, *, is_complete: bool = False) -> History:
        """Read new lines: for a share of the time, or all of a log that `is_complete`; what a look leaves is read at
        the next one. Returns the history of the log as far as it is read."""
        with self._lock:
            now = time.monotonic()
            self._credit_s = min(self._credit_s, 0) + max(_LOOK_S, min(_FIRST_LOOK_S, _SHARE * (now - self._looked)))
            self._credit_s = math.inf if is_complete else self._credit_s
            self._looked = now
            while self._credit_s > 0 and (block := self._new_lines()):
                began = time.thread_time()
                if self._tail.generation != self._rows.generation:
                    self._draw()
                    self._rows = PrintedRows(self._patterns, self._tail.generation)
                self._times.read()
                self._rows.read(block, self._tail.position - len(block), self._times)
                self._credit_s -= time.thread_time() - began
            if is_complete:
                self._rows.finish(is_complete=True)
            self._draw()
            with contextlib.suppress(OSError):
                left = self._tail.path.stat().st_size - self._tail.position - len(self._tail.partial)
                self._history.num_unread_bytes = max(left, 0) if self._credit_s <= 0 else 0
            return self._history

    def _draw(self) -> None:
        rows = self._rows
        rows.curves.draw(self._history, self._times, rows.generation, has_counter=rows.steps.has_counter)

    @property
    def note(self) -> str:
        """Why the log or a pattern is not read; empty if they are."""
        own = [pattern.text for pattern, source in self._patterns if source == "pattern" and self._tail.position]
        unused = [f"pattern {text!r} matches no line" for text in own if text not in self._rows.plans.used]
        return "; ".join([*([self._error] if self._error else []), *self._bad, *unused])

    @property
    def again(self) -> str:
        """Why a step is not what one training counts: epochs that start over, or whose length is unknown; else ""."""
        if n := self._rows.steps.num_trials:
            return f"the epochs start over {n} times, part after part"
        is_estimate = self._rows.steps.is_estimate
        return "the length of an epoch is not printed, so later steps are estimates" if is_estimate else ""

    @property
    def kinds(self) -> list[LineKind]:
        """The kinds of lines, the most frequent first."""
        with self._lock:
            return sorted(self._rows.plans.kinds.values(), key=lambda kind: -kind.count)

    def total_steps(self, num_epochs: int | None = None) -> int | None:
        """Return the steps of the whole run as printed, `17/250`, or those of an epoch times the number of epochs."""
        return self._rows.steps.total_steps(num_epochs)

    def _new_lines(self) -> bytes:
        self._error = ""
        try:
            return self._tail.read()
        except OSError as error:  # the next look reads them
            self._error = str(error.strerror)
            return b""


class PrintedRows:
    """The rows in the lines of a log since it began, or began again."""

    def __init__(self, patterns: Sequence[tuple[Pattern, str]], generation: int = 0) -> None:
        self.generation = generation
        self.curves, self.steps = PrintedCurves(), StepCounters()
        self.plans = LinePlans(patterns, self.curves)
        self._attempt = 1
        self._rank: float | None = None
        self._box: list[_Line] = []
        self._waiting: list[_Line] = []
        """Lines for which a bar was erased, which belong to its next drawing."""
        self._is_erased = False
        self._leading: list[_Line] = []
        """Lines that stand before the one that counts for them."""
        self._uncounted: list[tuple[_Line, bool]] = []
        """Lines, with whether a bar was erased for them, for which it is open what counts."""
        self._firsts: dict[str, list[float] | None] = {}
        """Word -> the first numbers of its first lines; None if they do not count."""
        self._behind: _Line | None = None
        """The last line, if it repeats an earlier step: it counts as soon as the next one continues from there."""

    def read(self, block: bytes, offset: int, times: LineTimes) -> None:
        """Read whole lines: first understand the shapes that are new, then take the numbers of each shape at once."""
        raw = _BREAK.sub(b"\n", block)
        sizes = np.fromiter(map(len, raw.split(b"\n")), np.int64)
        text = raw.decode(errors="replace").replace("\0", " ")
        if "\x1b" in text:
            text = ANSI.sub("", text)
        lines = text.split("\n")
        keys = DIGITS.sub("\0", text).split("\n")
        ends = offset + np.cumsum(sizes + 1)
        places: defaultdict[LinePlan, list[int]] = defaultdict(list)
        plans = [*self.plans.of(lines, keys)]
        for i, plan in enumerate(plans):
            places[plan].append(i)
        rows: dict[int, Sequence[float]] = {}
        for plan, own in places.items():
            plan.kind.count += len(own)
            if plan.is_read:
                with contextlib.suppress(ValueError):  # digits of other scripts, which are no numbers here
                    rows.update(zip(own, plan.numbers([lines[i] for i in own]), strict=True))
        attempts = times.attempts(ends)
        for i in sorted(rows):
            if attempts[i] > self._attempt:
                self._attempt = attempts[i]
                self.steps.rewind()
            is_erased = lines[i - 1].isspace() if i else self._is_erased
            is_clear = self.steps.has_counter and not plans[i].word and not self._uncounted
            take = self._take if is_clear else self._take_when_counted
            take(plans[i], rows[i], int(ends[i]), is_erased=is_erased)
        self._is_erased = lines[-2].isspace() if len(lines) > 1 else False

    def _take_when_counted(self, plan: LinePlan, numbers: Sequence[float], end: int, *, is_erased: bool) -> None:
        """Take a line, or keep it until it is known whether the first number of such lines counts."""
        self._uncounted.append(((plan, numbers, end), is_erased))
        if not self._is_open(plan, numbers) or len(self._uncounted) > _MOST_UNCOUNTED:
            self.finish()

    def _is_open(self, plan: LinePlan, numbers: Sequence[float]) -> bool:
        """Whether a first number may count: if nothing does by its name, and it rises evenly over the first lines."""
        if self.steps.is_counting or "counter" in plan.places or "epoch" in plan.places:
            return False
        if len(self._firsts) > _MOST_UNCOUNTED:  # a log without counters has any number of words
            self._firsts.clear()
        seen = self._firsts.setdefault(plan.word, []) if plan.word else None
        if seen is not None and len(seen) < _ENOUGH:
            value = numbers[plan.places["first"]]
            seen += [value] if value not in seen[-1:] else []
            steps = np.diff(seen)
            if (steps <= 0).any() or (steps[1:-1] != steps[2:]).any():
                self._firsts[plan.word] = None
        nums = [len(seen) for seen in self._firsts.values() if seen is not None]
        return bool(nums) and max(nums) < _ENOUGH

    def finish(self, *, is_complete: bool = False) -> None:
        """Take the lines for which it was open what counts; of a log that `is_complete`, all lines."""
        for line, is_erased in self._uncounted:
            if line[0].word and len(self._firsts.get(line[0].word) or ()) == _ENOUGH:
                line[0].count()
            self._take(*line, is_erased=is_erased)
        self._uncounted.clear()
        while self._leading and is_complete:
            self._place(*self._leading.pop(0))

    def _take(self, plan: LinePlan, numbers: Sequence[float], end: int, *, is_erased: bool) -> None:
        """Place a line, or keep it: one of a box, whose counter may follow, or one for which a bar was erased."""
        if plan.is_cell:
            self._box.append((plan, numbers, end))
            return
        if self._box:
            self._close_box()
        statement = plan.statement
        if statement is None:
            return
        if "rank" in plan.places and self._is_of_another_rank(plan, numbers[plan.places["rank"]]):
            return
        has_step = "counter" in plan.places or ("epoch" in plan.places and not statement.has_fractions)
        is_other = statement.num_rows or statement.is_evaluation or statement.is_given or is_erased
        statement.leads |= not (has_step or is_other or self.steps.has_counter)
        if not has_step and statement.leads:
            again = [line for line in self._leading if line[0].statement is statement]
            statement.leads = not again
            for line in again:  # two without what counts them between: they do not stand before it
                self._leading.remove(line)
                self._place(*line)
        if not has_step and statement.leads:
            self._leading.append((plan, numbers, end))
            return
        if not has_step and (is_erased or self._waiting):
            self._waiting.append((plan, numbers, end))
            return
        waiting, self._waiting = self._waiting, []
        leading, self._leading = self._leading, []
        own = (plan, numbers, end)
        for line in [own, *waiting] if statement.is_bar else [*waiting, own]:
            self._place(*line)
        for line in leading:
            self._place(*line)

    def _place(self, plan: LinePlan, numbers: Sequence[float], end: int) -> None:
        assert plan.statement is not None
        before = plan.statement.behind
        place = self.steps.place(plan.statement, {role: numbers[group] for role, group in plan.places.items()})
        if place is not None:
            first, self._behind = self._behind, None
            if before and plan.statement.behind and first and first[0].statement is plan.statement:
                first[0].add(first[1], before, first[2], self._attempt, self.steps.num_trials)
            plan.add(numbers, place, end, self._attempt, self.steps.num_trials)
        elif plan.statement.behind:
            self._behind = plan, numbers, end
        elif plan.statement.is_unsure:
            for _, curve in plan.curves:
                curve.is_unsure = True

    def _close_box(self) -> None:
        """Place the lines of a box, which are one row: at its counter of the whole run, else at any, else as others."""
        box, self._box = self._box, []
        counted = [(own, plan, numbers) for plan, numbers, _ in box if (own := plan.statement) and own.counter]
        for statement, plan, numbers in sorted(counted, key=lambda each: each[0].is_whole_run)[-1:]:
            statement.is_plain = False
            self.steps.place(statement, {role: numbers[group] for role, group in plan.places.items()})
        for plan, numbers, end in box:
            for _, curve in plan.curves:
                curve.is_counted |= bool(counted)
            if plan.curves:
                self._place(plan, numbers, end)

    def _is_of_another_rank(self, plan: LinePlan, rank: float) -> bool:
        """Several ranks print into one log: the lowest that prints metrics is shown."""
        if plan.curves and (self._rank is None or rank < self._rank):
            self._rank = rank
            for _, curve in plan.curves:
                curve.restart()
        return self._rank is not None and rank > self._rank
