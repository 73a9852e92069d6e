"""`Reading`: the metrics, counters and split of one line, before its step is known."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nbtools.metrics.readers.printed.metric_words import (
    COUNTERS,
    EPOCHS,
    ERRORS,
    ROUNDED,
    SPLITS,
    is_count,
    is_measured,
    is_setting,
    metric_of,
    parts_of,
)
from nbtools.rundir.json_files import MAX_STEP

MAX_METRICS: Final = 200
_NUMBERED: Final = re.compile(r"(?<=[a-z])_(?:no|nr|num|number|idx|index)\.?$")
"""The end of a counter's name: `batch no`."""


class Counter(NamedTuple):
    """A number that counts steps, with the number of steps of the run or of the loop if the line has it."""

    preference: int
    value: int
    total: int | None = None

    @property
    def is_loop(self) -> bool:
        """Whether it may start over in every epoch: its name does not say that it counts the whole run."""
        return self.preference > 3


@dataclass(slots=True)
class Reading:
    """The content of one line."""

    metrics: dict[str, float] = field(default_factory=dict)
    integers: set[str] = field(default_factory=set)
    """Names without split that are printed as whole numbers, and not those of measures: settings, if they stay."""
    counters: list[Counter] = field(default_factory=list)
    epoch: float | None = None
    num_epochs: int | None = None
    split: str | None = None
    """Split that the line names before its metrics."""
    rank: int | None = None
    label: str = ""
    """Words before a progress bar."""
    total_steps: int | None = None
    """Steps of the run, where a line only announces them."""
    is_bar: bool = False
    is_measured: bool = False
    has_settings: bool = False
    """Whether it names other values than counters and metrics: `image_size=32, timesteps=1000`."""
    subject: str = ""
    """The task of the rows below a heading: `Evaluation results for bbox:`."""
    is_indented: bool = False
    """Whether the line is one of an indented list."""
    is_aligned: bool = False
    """Whether it is a name and a value of a list in two columns: `    total_timesteps   1000000`."""
    resumes: bool = False
    """Whether it says that a training is resumed."""
    is_of_epochs: bool = False
    """Whether it is a bar of epochs: `3/60 [00:20<02:00,  2.8epoch/s]`."""
    index: str = ""
    """Name and number of a table's first column, if it counts no steps: `k_10` of Recall@10."""
    is_of_table: bool = False
    """Whether it is a row with a label of a table, of an evaluation unless a heading says another split."""
    is_heading: bool = False
    begins_epoch: bool = False
    """Whether the line has an epoch alone, and does not say that it ended."""
    is_item: bool = False
    """Whether the line is one of a list, or only a learning rate: `| > grad_norm: 1.2`, `Learning rate: 0.001`."""
    fulls: dict[str, str] = field(default_factory=dict)
    """The name of each without its split by all words before its number, where those are more: `OOF auc: 0.9`."""
    of_training: set[str] = field(default_factory=set)
    """Metrics whose own name says that they are of the training: `Train Loss`."""
    coordinates: dict[str, float] = field(default_factory=dict)
    _named: list[tuple[str, str, str | None, float, bool]] = field(default_factory=list)

    def counter(self, lesser: Collection[int] = ()) -> Counter | None:
        """Return the counter that tells most; one at 0 beside one that is not counts something rarer than this line.

        Args:
            lesser: preferences of counters that count something else than steps.
        """
        known = [counter for counter in self.counters if counter.preference not in lesser]
        if any(counter.preference == COUNTERS["episode"] for counter in known):  # steps beside it are those of one
            known = [counter for counter in known if counter.preference != COUNTERS["steps"]]
        begun = [counter for counter in known if counter.value] or known
        return min(begun, key=lambda counter: counter.preference, default=None)

    @property
    def is_row(self) -> bool:
        """Whether the line holds metrics."""
        return bool(self.metrics) and self.is_measured

    def count(self, name: str, value: float, total: int | None, *, unit: str = "") -> bool:
        """Take a number as a counter if its name is that of one; return whether it is. `2k` is a rounded one."""
        lowered = _NUMBERED.sub("", name.lower())
        if lowered in EPOCHS and lowered != "epochs":
            if math.isfinite(value) and unit != "k":
                self.epoch, self.num_epochs = value, total or self.num_epochs
            return True
        if (preference := COUNTERS.get(lowered)) is None:
            return False
        if 0 <= value <= MAX_STEP and value == int(value):
            self.counters.append(Counter(ROUNDED if unit == "k" else preference, int(value), total))
            return True
        return preference < 7  # the loss of a cycle is none

    def add(self, name: str, value: float, split: str | None = None, *, full: str = "", is_whole: bool = False) -> None:
        """Add a number; of several with the same short name in a line each gets its full name."""
        if is_whole and not ERRORS.isdisjoint(parts_of(name)):
            return
        self._named.append((name, full or name, split, value, is_whole))
        self.is_measured |= is_measured(name)

    def _is_configuration(self) -> bool:
        """Whether nothing is measured yet, among settings: `{'best_loss': inf, 'log_interval': 50}`."""
        if self.epoch is not None or any(counter.preference != COUNTERS["steps"] for counter in self.counters):
            return False
        values = [value for name, _, _, value, _ in self._named if is_measured(name)]
        num_settings = sum(is_setting(name) for name, *_ in self._named)
        if self.counters:  # iterations:3000 warmup_steps:20
            return num_settings > 0 and not values
        return num_settings > 4 or (0 < len(values) <= num_settings and not any(map(math.isfinite, values)))

    @property
    def named(self) -> set[str]:
        """The metrics that have a number so far."""
        return {metric_of(name, split) for name, _, split, _, _ in self._named}

    def finish(self) -> "Reading":
        """Name the metrics, now that all are known."""
        fulls: dict[str, set[str]] = {}
        for name, full, split, _, _ in self._named:
            fulls.setdefault(metric_of(name, split), set()).add(full)
        for name, full, split, value, is_whole in self._named[:MAX_METRICS]:
            if is_count(name, is_whole):
                continue
            metric = metric_of(name, split)
            if len(fulls[metric]) > 1:
                metric = metric_of(full, split, is_full=True)
            elif full != name and not self.is_bar:
                self.fulls[metric.partition("/")[2]] = metric_of(full, split, is_full=True).partition("/")[2]
            self.metrics[metric] = value
            if is_whole and not is_measured(name):
                self.integers.add(metric.partition("/")[2])
            if (is_measured(name) or "/" in name) and SPLITS.get(parts_of(name)[0]) == "train":
                self.of_training.add(metric)
        if self._is_configuration():
            self.is_measured = False
            self.counters.clear()
        if self.epoch is not None and (self.metrics or self.is_measured):
            self.metrics["train/epoch"] = self.epoch
        return self
