"""The conditions of `stop_on` and `notify_on`, checked on a run's new metric rows with the standard library alone.

The supervisor of a script without a recipe starts `nbtools.metrics.readers.print_rows`, which reads what the script
prints and the files that it writes, in a process of its own.
"""

import contextlib
import math
import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping
from statistics import median_high
from typing import Any

from nbtools.machine.on_end import start_beside
from nbtools.rundir.json_files import content_of, file_stamp, finite, strict_number, whole
from nbtools.rundir.requests.conditions import limits_in
from nbtools.rundir.requests.events import held, paused_s, read_events
from nbtools.rundir.rundir import RunDir, has_recipe
from nbtools.rundir.tail import Tail, objects_in, one_line

LOOK_EVERY_S = 1.0
_LOSS = re.compile(r"(?:.*[^a-z])?loss(?:es)?\d*", re.IGNORECASE)
_EVALUATION = re.compile(r"(?:eval|val|valid|validation|test|dev)[/_. ].*loss", re.IGNORECASE)
_TRAIN_LOSS = "train/loss"
_NUM_CONFIRMED = 5
"""Number of rows whose median must be above the limit: one or two spikes are not a divergence."""
_WITHOUT_ROWS = ("time_budget_h", "ended", "failed")
"""Conditions for which no row is read."""
_LAST_LOOK_WITHIN_S = 120.0
_FEWEST_ROWS, _MOST_ROWS = 20, 1000
"""Least and greatest number of rows for the median of the loss."""


class StopConditions:
    """Checks the rows of a run as they are written; `settings` is `stop_on` or `notify_on` as launch.json has it."""

    def __init__(
        self, run: RunDir, settings: Mapping[str, Any], best_by: str = "", *, lower: bool = True, began: float = 0.0
    ) -> None:
        """Begin with the first row; `best_by` is the metric that evaluations are compared by, `lower` whether less is
        better; without it, it is the first loss of an evaluation that a row has. `began`: the time budget's start."""
        self._run, self._settings = run, settings
        self._limits = limits_in(settings)
        self._rows = NewRows(run, *(name for name, *_ in self._limits))
        self._ends_at = (began or time.monotonic()) + 3600 * (finite(settings.get("time_budget_h")) or math.inf)
        self._loss = ""
        self._losses: deque[float] = deque(maxlen=_MOST_ROWS)
        self._is_other_stage = False
        self._best_by, self._sign = best_by, 1 if lower else -1
        self._best, self._best_step, self._last_evaluation, self._num_worse = math.inf, 0, -1, 0
        self._finite_step = 0

    @property
    def _reads_rows(self) -> bool:
        return any(value for name, value in self._settings.items() if name not in _WITHOUT_ROWS)

    def look(self) -> dict[str, Any] | None:
        """Return the first condition that holds, as `found` has it; None if none does."""
        return next(self.found(), None)

    def found(self) -> Iterator[dict[str, Any]]:
        """Yield what holds now and in the new rows: `condition`, `step`, `metric`, `value`, `sentence`."""
        if time.monotonic() >= self._ends_at and time.monotonic() - paused_s(read_events(self._run)) >= self._ends_at:
            hours = self._settings["time_budget_h"]
            yield {"condition": "time_budget_h", "value": hours, "sentence": f"the time budget of {hours:g} h is over"}
        for row in self._rows.read() if self._reads_rows else ():
            yield from self._check(row)

    def finish(self) -> None:
        """Wait until all rows of a run that has ended can be read."""
        if self._reads_rows:
            self._rows.finish()

    def close(self) -> None:
        """End the process that reads the metrics."""
        self._rows.close()

    def _check(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        step = whole(row.get("step")) or 0
        losses = {name: value for name, value in row.items() if _LOSS.fullmatch(name)}
        for name, value in losses.items():
            if self._settings.get("nan") and value in ("NaN", "Infinity", "-Infinity"):
                yield self._found("nan", step, name, value, f"is {value} at step {step:,}")
                break
        else:
            self._finite_step = step
        yield from filter(None, (self._above(step, losses), self._worse(step, row)))

    def _above(self, step: int, losses: Mapping[str, Any]) -> dict[str, Any] | None:
        trained = [name for name in losses if not _EVALUATION.match(name)]
        self._loss = self._loss or (_TRAIN_LOSS if _TRAIN_LOSS in trained else next(iter(trained), ""))
        self._is_other_stage = self._loss not in trained if trained else self._is_other_stage
        factor, value = finite(self._settings.get("loss_above")), finite(losses.get(self._loss))
        if factor is None or value is None:
            return None
        self._losses.append(value)
        if len(self._losses) < _FEWEST_ROWS:
            return None
        median, least = median_high(self._losses), min(self._losses)
        recent = median_high(list(self._losses)[-_NUM_CONFIRMED:])
        if least <= 0 or recent <= factor * median:  # a loss around zero has no meaningful median
            return None
        said = f"is above {factor:g} x {median:.4g}, its median, at step {step:,}"
        return self._found("loss_above", step, self._loss, value, said)

    def _worse(self, step: int, row: Mapping[str, Any]) -> dict[str, Any] | None:
        patience = whole(self._settings.get("no_improvement"))
        self._best_by = self._best_by or next(filter(_EVALUATION.fullmatch, row), "")
        if patience is None or self._best_by not in row or self._is_other_stage or step <= self._last_evaluation:
            return None  # a restarted attempt repeats steps
        self._last_evaluation = step
        value = finite(row[self._best_by])
        if value is not None and self._sign * value < self._best:
            self._best, self._best_step, self._num_worse = self._sign * value, step, 0
            return None
        self._num_worse += 1
        if self._num_worse < patience:
            return None
        best = f"best {self._sign * self._best:.4g} at step {self._best_step:,}"
        said = f"has not improved in {patience} evaluations ({best})"
        return self._found("no_improvement", step, self._best_by, row[self._best_by], said)

    def _found(self, condition: str, step: int, metric: str, value: object, said: str) -> dict[str, Any]:
        number, sentence = finite(value), f"{one_line(metric, 100)} {said}"
        found = {"condition": condition, "step": step, "metric": metric, "finite_step": self._finite_step}
        return {**found, "value": str(value) if number is None else strict_number(number), "sentence": sentence}


class NoticeConditions(StopConditions):
    """Checks the conditions of `notify_on`, which has further ones: limits of values, and steps that do not come."""

    def __init__(self, run: RunDir, settings: Mapping[str, Any], *best: Any, since: float = 0, **options: Any) -> None:
        """Begin with the first row; what is found in rows before `since`, a Unix time, is left out. The others are
        the arguments of `StopConditions`."""
        super().__init__(run, settings, *best, **options)
        self._since, self._moved_at, self._row_step, self.last_step = since, 0.0, 0, 0
        self._progress = tuple[object, ...]()
        self.unseen = {name for name, *_ in self._limits}
        """Metrics of `values` that no row has had."""

    def found(self) -> Iterator[dict[str, Any]]:
        """Yield what holds now and in the new rows, as `StopConditions` does."""
        yield from super().found()
        minutes, beaten = finite(self._settings.get("stalled_min")), content_of(self._run.heartbeat(0)).get("step")
        self.last_step = last = max(self._row_step, whole(beaten) or 0)
        # A program whose steps are not known prints something at least.
        progress = self._row_step, beaten, None if last else file_stamp(self._run.log)
        if minutes is None or progress != self._progress or held(read_events(self._run)):
            self._progress, self._moved_at = progress, time.monotonic()
        elif time.monotonic() - self._moved_at >= 60 * minutes:
            said = f"no new step for {minutes:g} min{f', after step {last:,}' if last else ''}"
            yield {"condition": "stalled_min", "step": last, "value": minutes, "sentence": said}

    def _check(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        step = self._row_step = whole(row.get("step")) or 0
        self.unseen -= row.keys()
        found = list(super()._check(row))
        for name, sign, number in self._limits:
            value = finite(row.get(name))
            if value is not None and (value < float(number) if sign == "<" else value > float(number)):
                said = f"is {value:.4g} at step {step:,}, {'below' if sign == '<' else 'above'} {number}"
                found.append(self._found(f"{name} {sign} {number}", step, name, value, said))
        yield from found if (finite(row.get("time")) or math.inf) >= self._since else ()


class NewRows:
    """The metric rows that are added to a run: of a recipe its own, of a program those that another process reads."""

    def __init__(self, run: RunDir, *names: str) -> None:
        """Begin with the first row; of a program the rows have its losses, and the metrics of these names."""
        self._run, self._tail, self._names = run, Tail(run.metrics), names
        self._reader: subprocess.Popen[bytes] | None = None
        self._rest, self._is_whole = b"", False

    def finish(self) -> None:
        """Have the process that reads the metrics take its last look, so that the next read has all rows."""
        if not has_recipe(self._run):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._rest += self._started().communicate(timeout=_LAST_LOOK_WITHIN_S)[0]
                self._is_whole = True

    def close(self) -> None:
        """End the process that reads the metrics."""
        if self._reader is not None:
            with self._reader:
                self._reader.kill()
            self._reader = None

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the rows since the last read."""
        if has_recipe(self._run):
            self.close()
            with contextlib.suppress(OSError):  # the next look reads it
                self._rest = self._tail.read()
        elif not self._is_whole and (output := self._started().stdout):
            os.set_blocking(output.fileno(), False)
            with contextlib.suppress(BlockingIOError):
                self._rest += os.read(output.fileno(), 1 << 20)
        block, _, self._rest = self._rest.rpartition(b"\n")
        yield from objects_in(block)

    def _started(self) -> "subprocess.Popen[bytes]":
        """Return the process that reads the script's own output; the first call starts it."""
        if self._reader is None:
            module, streams = "nbtools.metrics.readers.print_rows", {"stdin": subprocess.PIPE}
            self._reader = start_beside(self._run, module, *self._names, stdout=subprocess.PIPE, **streams)
        return self._reader
