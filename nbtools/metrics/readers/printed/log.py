"""Metrics from the log of a script that only prints them.

The reader accepts JSON lines, Python dicts, text with names before numbers (`step 20 loss 2.31`, `Epoch [1/10], Step
[5/100], Loss: 0.5`), progress bars with values, tables and boxes. A line counts only if it names a measured value (a
loss, an accuracy, …), since logs hold many other numbers.
"""

import bisect
import contextlib
import math
import re
import string
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from nbtools.metrics.history import History
from nbtools.metrics.readers.printed.metric_words import MEASURED, words_of
from nbtools.metrics.readers.printed.printed_tables import Tables
from nbtools.metrics.readers.printed.read_line import MAX_LINE_CHARACTERS, read_line
from nbtools.metrics.readers.printed.steps import Counts, StepCount
from nbtools.metrics.readers.printed.strip_noise import FOREIGN
from nbtools.rundir.json_files import strict_number
from nbtools.rundir.tail import Tail, terminal_text

EXAMPLE: Final = "step 20 loss 2.31 lr 0.001"  # a line that is read: a counter, and names before numbers
_PIECE_BYTES: Final = 64 << 10
_FIRST_LOOK_S: Final = 10.0
"""Processor time for the existing log: enough for gigabytes of text, or two hundred thousand rows."""
_SHARE: Final = 0.04
"""Share of a core for later output; beyond it, only the end of each block is read."""
_SAMPLE_BYTES: Final = 16 << 10
_COUNTING: Final = words_of(
    "epoch step iter round learn: batch= learning_rate lr: lr= norm valid val: test: evaluat up."
) | {"learning rate", "lr =", " lr "}
_SHAPE: Final = bytes.maketrans(
    string.ascii_uppercase.encode() + b"023456789\r", string.ascii_lowercase.encode() + b"1" * 9 + b"\n"
)
"""Maps lines that differ only in numbers to the same bytes: most output comes from one repeated statement."""
_COMMON: Final = words_of("ap ar ari kl r2 ret")  # words that are part of too many others to look for
_HINTS: Final = tuple(
    word.encode().translate(_SHAPE)
    for word in {*MEASURED, *FOREIGN, *map(str.capitalize, FOREIGN), *_COUNTING} - _COMMON
    if not any(other != word and other in word and len(other) > 2 for other in MEASURED - _COMMON)
)
"""Text without any of these, or a sign of a table or of a bar, holds nothing."""
_TABLE: Final = re.compile(
    rb"^\s*(?:\||\+?[-=]{6}|\xe2[\x94\x95]|[-+.e1]++(?:,[-+.e1]*+){1,60}\s*$|(?:\S{1,40}\s++)?(?:\[?\.?1[-\d./a-z%]*+[\],]{0,2}+\s++){2}"
    rb"|(?:[^\s\d]{1,40}\s++){1,3}[-+]?1++\.1\S*+\s++[-+]?1"
    rb"|(?:[a-z]\w*+\s{2,}){2}|(?:[a-z][\w/.]*+\s++1[\d.a-z]*+\s++){3}|[>*-][>|*\s-]*+[a-z][^:]{0,60}:\s++[-+]?1)"
    rb"|^\s*+1++\s*+\||^\[1[1:]*+\]\s(?:\[1++\]\s)?+[a-z][^:=]{0,60}[:=]\s?[-+]?1"
    rb"|^\s++['\"]?[a-z][^:=]{0,60}[:=]\s*+(?:tensor\()?[-+]?1|^[\s\[(]*+it[ :=#]++1"
    rb"|^\s{2,}[a-z][\w ./()-]{0,40}\s{2,}[-+]?1"
)
_RANK_AFTER_TEXT: Final = re.compile(r"(?<=[^\s\[])(?=\[(?:rank|RANK)[ _]?\d{1,6}\])")
_COLOUR: Final = re.compile(rb"\x1b\[[1;]*m")
_BAR_BEFORE_TEXT: Final = re.compile(r".*?\d/\d++ \[[\d:]++<[^\]]{1,200}\](?=\S|\s+\d{2,4}[-/]\d\d[-/]\d\d)")
_LOGGED: Final = re.compile(
    rb"\[?1{4}-11-11[ t]11:11:11[,.1]*+\]?[\s:|-]*+(?:\[?\s*+(?:info|debug|warning)\s*+\]?)?+ ?[:|-]?"
)
_HEADING: Final = re.compile(
    rb"(?:eval|valid|test|train|summary).*(?:[:*]|[<>=#-]{3})\s*$|(?:eval|valid|test)[a-z]*+\s?\[1++/1++\]\s*$"
    rb"|^(?:[\s>=*#|-]|\x1b\[[1;]*m)*+(?:[a-z]++\s){0,2}(?:eval|valid|test)"
    rb"[a-z]*+(?:\s[a-z]++)?(?:\x1b\[[1;]*m|\W)*+$"
    rb"|^\W*+(?:final )?(?:test|eval|evaluation|validation) (?:results?|metrics|performance|scores?|report)"
)


class LogMetrics:
    """The metrics in a growing log, as a history. May be used from several threads."""

    def __init__(self, path: str | Path, times: str | Path | None = None) -> None:
        """Store the paths of the log and of the supervisor's record of its growth, which gives its lines a time."""
        self._history = History()
        self._times = _LineTimes(times)
        self._tail = Tail(path, carriage_returns=True)
        self._lock = threading.Lock()
        self._credit_s, self._looked = 0.0, -math.inf
        self._generation, self._was_erased, self._attempt = 0, False, 1
        self._count, self._tables = StepCount(), Tables()
        self.note = ""
        """Why the log cannot be read; empty if it can."""

    @property
    def counts(self) -> Counts:
        """The meaning of the steps; `row`: the log has no counter, so its rows have only an order and a time."""
        return self._count.counts

    def total_steps(self, num_epochs: int | None = None) -> int | None:
        """Return the steps of the whole run as printed, `17/250`, or those of an epoch times the number of epochs."""
        total = self._count.total or (self._count.steps_per_epoch or 0) * (num_epochs or 0)
        return (total or None) if self._count.counts == "step" and total >= (self._count.step or 0) else None

    @property
    def epoch_steps(self) -> tuple[int, int] | None:
        """The epoch of step 0 and the number of steps in each; None if the log does not print both."""
        return self._count.epoch_steps

    @property
    def begins_at(self) -> int:
        """The steps before the first row, of a training that was resumed in a later epoch."""
        return self._count.begins_at

    def times_around(self, when: float) -> tuple[float, float]:
        """Return the recorded times of the log's growth before and after a Unix time; infinite where there is none."""
        with self._lock:
            times = [-math.inf, *self._times.times, math.inf]
        after = bisect.bisect_left(times, when)
        return times[after - 1], times[after]

    @property
    def history(self) -> History:
        """The history up to the end of the log. Reads only new output, and only samples of it if it is too much."""
        with self._lock:
            now = time.monotonic()
            self._credit_s = min(self._credit_s, 0) + min(_FIRST_LOOK_S, _SHARE * (now - self._looked))
            self._looked = now
            while block := self._new_lines():
                if self._tail.generation != self._generation:
                    self._generation, self._count, self._tables = self._tail.generation, StepCount(), Tables()
                self._times.read()
                if self._credit_s <= 0:
                    block = self._sampled(block)
                began = time.thread_time()
                rows = bytearray()  # not a list of rows: orjson allocates kilobytes per bytes object
                for row in self._rows(block, self._tail.position - len(block)):
                    strict = {key: strict_number(value) for key, value in row.items()}
                    rows += orjson.dumps(strict, option=orjson.OPT_APPEND_NEWLINE)
                if rows:
                    self._history.extend(bytes(rows), self._generation)
                self._credit_s -= time.thread_time() - began
            self._history.has_steps = self._count.counts != "row"
            return self._history

    def _new_lines(self) -> bytes:
        self.note = ""
        try:
            return self._tail.read()
        except OSError as error:  # the next look reads them
            self.note = str(error.strerror)
            return b""

    def _sampled(self, block: bytes) -> bytes:
        """Return the last lines of a block; skipped bytes are counted."""
        start = max(block.rfind(end, 0, max(0, len(block) - _SAMPLE_BYTES)) for end in (b"\n", b"\r")) + 1
        self._history.num_unread_bytes += start
        return block[start:]

    def _rows(self, block: bytes, offset: int) -> Iterator[dict[str, float]]:
        for start, line, was_erased in _candidates(block, self._was_erased):
            for text in _texts(terminal_text(line.rstrip(b"\b"), MAX_LINE_CHARACTERS)):
                reading, is_table = self._tables.read(text)
                if reading is None and not is_table:
                    reading = read_line(text)
                if reading is None:
                    continue
                when, attempt = self._times.at(offset + start + len(line) + 1)
                if attempt > self._attempt:
                    self._attempt = attempt
                    self._count.rewind()
                for step, row in self._count.place(reading, was_erased=was_erased):
                    mark = {"attempt": attempt} if attempt > 1 else {}
                    yield {"step": step, **({} if when is None else {"time": when}), **mark, **row}
        last = max(block.rfind(b"\n", 0, -1), block.rfind(b"\r", 0, -1)) + 1
        self._was_erased = block[last:-1].isspace()


class _LineTimes:
    """The time and the attempt in which each byte of a log was written, from the sizes that the supervisor saw."""

    def __init__(self, path: str | Path | None) -> None:
        self._tail = Tail(path) if path is not None else None
        self._sizes: list[int] = []
        self.times: list[float] = []
        self._attempts: list[int] = []

    def read(self) -> None:
        """Read new lines of the record."""
        with contextlib.suppress(OSError):  # the log has its rows even so
            while self._tail is not None and (block := self._tail.read()):
                for line in block.split(b"\n"):
                    with contextlib.suppress(ValueError, TypeError):
                        size, when, attempt = orjson.loads(line)
                        if not self._sizes or size >= self._sizes[-1]:
                            self._sizes.append(int(size))
                            self.times.append(float(when))
                            self._attempts.append(int(attempt))

    def at(self, offset: int) -> tuple[float | None, int]:
        """Return the Unix time at which the log grew to `offset` bytes, and the attempt; now for what came last."""
        sizes, times = self._sizes, self.times
        if not sizes:
            return None, 1
        after = bisect.bisect_left(sizes, offset)
        attempt = self._attempts[max(after - 1, 0)]
        if after == len(sizes):
            return round(time.time(), 2), self._attempts[-1]
        if not after or sizes[after] == sizes[after - 1]:
            return times[after], attempt
        share = (offset - sizes[after - 1]) / (sizes[after] - sizes[after - 1])
        return times[after - 1] + share * (times[after] - times[after - 1]), attempt


def _texts(line: str) -> tuple[str, ...]:
    """Return the texts of a line: a logger's message behind a progress bar, or the lines of two ranks in one."""
    if ("[RANK" in line or "[rank" in line) and (second := _RANK_AFTER_TEXT.search(line)):
        return line[: second.start()], line[second.start() :]
    found = _BAR_BEFORE_TEXT.match(line) if "it/s" in line or "s/it" in line else None
    return (line,) if found is None else (found[0], line[found.end() :])


def _candidates(block: bytes, was_erased: bool = False) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the lines that may hold a row, with their offsets, and whether a bar was erased before each."""
    start, end = 0, len(block)
    while start < end:
        stop = start + _PIECE_BYTES
        stop = end if stop >= end else (block.find(b"\n", stop) + 1 or end)
        piece, at = block[start:stop], start
        start = stop
        shapes = piece.translate(_SHAPE).split(b"\n")
        promising = {shape for shape in set(shapes) if _may_hold_row(shape)}
        if promising:
            for shape, line in zip(shapes, piece.replace(b"\r", b"\n").split(b"\n"), strict=True):
                if shape in promising and 4 < len(line) <= MAX_LINE_CHARACTERS:
                    yield at, line, was_erased
                at += len(line) + 1
                was_erased = line.isspace()
        else:
            was_erased = False


def _may_hold_row(shape: bytes) -> bool:
    """Whether a line, with all digits as 1, may hold metrics, a counter, or part of a table."""
    if b"\x1b" in shape:
        shape = _COLOUR.sub(b"", shape)
    if any(hint in shape for hint in _HINTS):
        return True
    is_bar = b"%|" in shape or b"% \xe2" in shape
    if is_bar or _TABLE.match(shape) is not None or _HEADING.search(shape[-200:]) is not None:
        return True
    logged = _LOGGED.match(shape)
    return logged is not None and _TABLE.match(shape[logged.end() :]) is not None
