"""The conditions of `Launch.stop_on`, checked on a run's new metric rows with the standard library alone.

The supervisor of a script without a recipe starts `nbtools.metrics.readers.print_rows`, which reads what the script
prints and the files that it writes, in a process of its own.
"""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from nbtools.rundir.json_files import finite, strict_number, whole
from nbtools.rundir.requests.events import paused_s, read_events
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir, has_recipe
from nbtools.rundir.tail import Tail, one_line

LOOK_EVERY_S = 1.0
_LOSS = re.compile(r"(?:.*[^a-z])?loss(?:es)?\d*", re.IGNORECASE)
_EVALUATION = re.compile(r"(?:eval|val|valid|validation|test|dev)[/_. ].*loss", re.IGNORECASE)
_TRAIN_LOSS = "train/loss"
_NUM_CONFIRMED = 5
"""Number of rows whose median must be above the limit: one or two spikes are not a divergence."""
_FEWEST_ROWS, _MOST_ROWS = 20, 1000
"""Least and greatest number of rows for the median of the loss."""


class StopConditions:
    """Checks the rows of a run as they are written; `settings` is `stop_on` as launch.json has it."""

    def __init__(self, run: RunDir, settings: Mapping[str, Any], best_by: str = "", *, lower: bool = True) -> None:
        """Begin with the first row; `best_by` is the metric that evaluations are compared by, `lower` whether less is
        better; without it, it is the first loss of an evaluation that a row has."""
        self._run, self._settings = run, settings
        self._reads_rows = any(value for name, value in settings.items() if name != "time_budget_h")
        self._rows = NewRows(run)
        self._ends_at = time.monotonic() + 3600 * (finite(settings.get("time_budget_h")) or math.inf)
        self._loss = ""
        self._losses: deque[float] = deque(maxlen=_MOST_ROWS)
        self._is_other_stage = False
        self._best_by, self._sign = best_by, 1 if lower else -1
        self._best, self._best_step, self._last_evaluation, self._num_worse = math.inf, 0, -1, 0
        self._finite_step = 0

    def look(self) -> dict[str, Any] | None:
        """Return what holds in the new rows: `condition`, `step`, `metric`, `value`, `sentence`; None if nothing."""
        if time.monotonic() >= self._ends_at and time.monotonic() - paused_s(read_events(self._run)) >= self._ends_at:
            hours = self._settings["time_budget_h"]
            return {"condition": "time_budget_h", "value": hours, "sentence": f"the time budget of {hours:g} h is over"}
        for row in self._rows.read() if self._reads_rows else ():
            if (found := self._check(row)) is not None:
                return found
        return None

    def close(self) -> None:
        """End the process that reads the metrics."""
        self._rows.close()

    def _check(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        step = whole(row.get("step")) or 0
        losses = {name: value for name, value in row.items() if _LOSS.fullmatch(name)}
        for name, value in losses.items():
            if self._settings.get("nan") and value in ("NaN", "Infinity", "-Infinity"):
                return self._found("nan", step, name, value, f"is {value} at step {step:,}")
        self._finite_step = step
        return self._above(step, losses) or self._worse(step, row)

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
        median, least = _median(self._losses), min(self._losses)
        recent = _median(list(self._losses)[-_NUM_CONFIRMED:])
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
        number = finite(value)
        return {
            "condition": condition,
            "step": step,
            "metric": metric,
            "value": str(value) if number is None else strict_number(number),
            "finite_step": self._finite_step,
            "sentence": f"{one_line(metric, 100)} {said}",
        }


class NewRows:
    """The metric rows that are added to a run: of a recipe its own, of a program those that another process reads."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._tail = run, Tail(run.metrics)
        self._reader: subprocess.Popen[bytes] | None = None
        self._rest = b""

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
            block = b""
            with contextlib.suppress(OSError):  # the next look reads it
                block = self._tail.read()
        else:
            block = self._read_by_reader()
        for line in block.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row

    def _read_by_reader(self) -> bytes:
        """Return the new lines of the process that reads the script's own output; start it at the first call."""
        if self._reader is None:
            unmarked = {name: value for name, value in os.environ.items() if name != RUN_ID_VARIABLE}
            self._reader = subprocess.Popen(
                [sys.executable, "-P", "-m", "nbtools.metrics.readers.print_rows", str(self._run.path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                # It is no process of the run: those are counted, and ended with it.
                env={**unmarked, RUN_DIR_VARIABLE: os.devnull},
                process_group=0,
            )
        assert self._reader.stdout is not None
        os.set_blocking(self._reader.stdout.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            self._rest += os.read(self._reader.stdout.fileno(), 1 << 20)
        block, end, self._rest = self._rest.rpartition(b"\n")
        return block + end


def _median(values: "deque[float] | list[float]") -> float:
    return sorted(values)[len(values) // 2]
