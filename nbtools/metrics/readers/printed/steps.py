"""The step of each printed row, from the counters in its line and in those before it."""

import collections
import math
from typing import Final, Literal

from nbtools.metrics.readers.printed.epoch_counters import LOOP, RUN, Epochs, Loops, Place
from nbtools.metrics.readers.printed.line_content import Counter, Reading
from nbtools.metrics.readers.printed.metric_words import (
    COUNTERS,
    ERRORS,
    LEADING,
    RATE,
    ROUNDED,
    SIZES,
    UNNAMED,
    is_measured,
    of_split,
    parts_of,
)
from nbtools.metrics.readers.printed.new_values import NewValues, Row, is_rounded
from nbtools.rundir.json_files import MAX_STEP

Counts = Literal["step", "epoch", "row"]
_WORDS_OF_TRAINING: Final = ("epoch", "train", "step", "iter", "|")
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")
_WORDS_OF_FILES: Final = ("data", "token", "map", "scan", "load", "cach")
_WORDS_OF_DATA: Final = (*_WORDS_OF_FILES, "valid", "eval", "test", "sanity")


class StepCount:
    """Follows the counters of a log.

    A counter that falls, or comes again with metrics that it already has, has started over in a new epoch: steps
    continue from its end. The loop of an evaluation has a counter of its own, so its rows belong to the last step of
    the training. A row without a counter belongs to the last one that was printed, or to the end of the loop behind its
    last line; where a log has none at all, rows are numbered and `counts` says so, since their numbers are not steps.
    """

    def __init__(self) -> None:
        self.counts: Counts = "row"
        """The meaning of the steps of the rows."""
        self.total: int | None = None
        """Steps of the whole run, as far as printed."""
        self.steps_per_epoch: int | None = None
        """Steps of the loop, if it is that of an epoch."""
        self.begins_at = 0
        """The steps before the first row, of a training that was resumed in a later epoch."""
        self.step: int | None = None
        self._loops, self._epochs = Loops(), Epochs()
        self._has_rows = False
        """Whether rows of metrics have been counted, so that the counters are those of the training for certain."""
        self._num_counted = 0
        """Number of rows with a counter of the training."""
        self._epoch: float | None = None
        self._first_epoch: float | None = None
        self._is_from_1 = False
        """Whether epochs are printed as `4/10`, so that the last one is 10."""
        self._resumed_in: float | None = None
        """The epoch that such a line tells."""
        self._resumed_at = 0
        """The step at which a line said that the training was resumed."""
        self._announced: int | None = None
        self._rank: int | None = None
        self._split: str | None = None
        self._has_bar_of_epochs = False
        self._split_epoch: float | None = None
        """The epoch in the heading: `Validation at epoch 5`; a row of a later one is none of that split."""
        self._subject = ""
        self._is_in_list = self._is_best = False
        self._counted: dict[str, float] = {}
        self._trained: set[str] = set()
        self._labels: dict[str, bool] = {}
        """Whether the name of a metric of the training says so: a `loss` and a `Train Loss` are two curves."""
        self._has_position: dict[str, bool] = {}
        """Whether the rows of a metric have a position in the epoch: one without is of the whole epoch."""
        self._above: str | None = None
        self._others: dict[str, float] = {}
        self._values = NewValues()
        self._lesser: set[int] = set()
        self._within: set[str] = set()
        """The metrics of rows without a counter that stood within a loop."""
        self._alone: collections.Counter[str] = collections.Counter()
        """Number of steps that had one row with a metric and no counter: a second one is of a further evaluation."""
        self._often: set[str] = set()
        """Metrics that have several such rows at a step from the beginning."""
        self._of_bars: set[str] = set()
        self._distinct: set[str] = set()
        """Metrics of which a second value at a step differed from the first: an equal one is no repetition."""
        self._waiting: Reading | None = None
        self._has_own_bar = True
        """Whether the last bar is that of the training, and not that of an evaluation."""

    @property
    def epoch_steps(self) -> tuple[int, int] | None:
        """The epoch of step 0 and the number of steps in each, as printed: `epoch 0 | step 0/32`; None if unknown."""
        first, length = self._first_epoch, self._loops.total
        return (int(first), length) if first is not None and length else None

    def rewind(self) -> None:
        """A new attempt begins: its counters start from its checkpoint or at zero."""
        counts, total, announced, epochs = self.counts, self.total, self._announced, self._epochs.count
        StepCount.__init__(self)
        self.counts, self.total, self._announced, self._epochs.count = counts, total, announced, epochs
        self.step = 0 if counts != "row" else None

    def place(self, reading: Reading, *, was_erased: bool = False) -> list[Row]:
        """Return the rows that a line completes, with their steps; most lines complete one or none.

        `was_erased` tells that a progress bar was erased before the line: it is drawn again after it, and only then
        is its count up to date.
        """
        if self._is_of_another_rank(reading):
            return []
        if reading.is_item:  # whatever its name, if the list is that of a counter or of an evaluation
            is_begun = self.step is not None or reading.epoch is not None
            is_rate = RATE in reading.metrics and (self.counts != "row" or reading.epoch is not None)
            is_of_data = not self._has_rows and all(not SIZES.isdisjoint(parts_of(name)) for name in reading.metrics)
            reading.is_measured |= is_begun and (is_rate or (self._is_in_list and not is_of_data))
            if not is_begun and [*reading.metrics] == [RATE]:
                self._values.note_first_rate(reading.metrics[RATE])
        else:
            is_counted = bool(reading.counters) or reading.epoch is not None
            self._is_in_list = reading.is_heading or (is_counted and not (reading.is_bar and not reading.is_row))
        if reading.epoch is None:  # else: saving the model (epoch 10, total_iters 10000)
            self._announced = reading.total_steps or self._announced
        self._epochs.announce(reading.num_epochs)
        if reading.resumes and reading.epoch is not None and not self._has_rows:
            self._resumed_in = reading.epoch
        self._is_from_1 |= reading.epoch is not None and reading.num_epochs is not None
        if self._is_best and (reading.is_row or reading.counters):
            self._is_best = reading.is_item
            return []  # a row or a list that was printed before
        self._is_best = reading.is_heading and reading.label == "best"
        if reading.is_heading:
            self._split, self._subject, self._split_epoch = reading.split, reading.subject, reading.epoch
        self._take_epoch(reading)
        counter = self._own(reading)
        if reading.is_bar:
            self._has_own_bar = reading.split not in ("eval", "test")
            self._has_bar_of_epochs |= reading.is_of_epochs
        is_of_ended = reading.epoch is not None and reading.epoch == self._epoch and self._loops.end is not None
        is_of_epoch = is_of_ended or (self._has_bar_of_epochs and reading.epoch is not None)
        is_waiting = was_erased and self._has_own_bar and not is_of_epoch
        if counter is not None and reading.is_bar and counter.total and not counter.value:
            waiting = None
            if counter.total == self._loops.total:
                self._loops.show_nothing(_place(reading, counter))
                waiting, self._waiting = self._waiting, None  # it is of the epoch that ends here
            return [*(self._placed(waiting) if waiting else []), *self._at_zero(reading)]
        is_evaluation = counter is not None and self._is_of_evaluation(reading)
        done = []
        if counter is not None and self._is_better(reading, counter):
            self._count(reading, counter)
            done = self._placed(self._waiting) if self._waiting else []
            self._waiting = None
            if not is_evaluation:
                self._split = None
        else:
            if reading.counters and reading.split in ("eval", "test") and not _is_of_files(reading.label):
                self._split = reading.split
            if counter is not None and reading.is_bar and counter.total == self._loops.total:
                self._go_to(max(counter.value, self.step or 0))  # the bar counts the run, too
            counter = None
            if reading.epoch is not None:
                self._note_epoch(reading)
        if not reading.is_row or self._is_of_data(reading, counter):
            return done
        if is_waiting and counter is None and not reading.is_bar and self._loops.kind != RUN:
            waiting, self._waiting = self._waiting, reading
            return [*done, *(self._placed(waiting) if waiting else [])]
        done += self._placed(reading, is_counted=counter is not None and not is_evaluation)
        if is_evaluation:
            self._split = None
        return done

    def _take_epoch(self, reading: Reading) -> None:
        """Take a number at the beginning of a line for the epoch that it is: `[ 1] loss 0.5` behind its bars."""
        if reading.is_bar or reading.epoch is not None or not self._loops.total or len(reading.counters) != 1:
            return
        counter = reading.counters[0]
        is_epoch = counter.preference == LEADING and counter.value == self._epoch
        if is_epoch and self._loops.last(_place(reading, counter)) is None:
            reading.epoch = float(counter.value)
            reading.counters.clear()

    def _at_zero(self, reading: Reading) -> list[Row]:
        """Return the row of a bar at 0: it shows values of before, or those of the first step or of an evaluation."""
        shown = {n: v for n, v in reading.metrics.items() if n != "train/epoch"}
        is_known = not self._has_rows or self._values.are_drawn(shown)
        if not (reading.is_row and self._has_own_bar and is_known) or self._values.are_shown(shown):
            return []
        step = max(self.step or 0, self._loops.end or 0) if self._has_rows else 0
        now, earlier = self._values.of(reading, shown, step)
        return [*earlier, (step, now)] if now else earlier

    # --- counters ---

    def _is_of_another_rank(self, reading: Reading) -> bool:
        """Several ranks print into one log: the lowest that prints metrics is shown."""
        if reading.rank is not None and reading.is_row and (self._rank is None or reading.rank < self._rank):
            self._rank = reading.rank
        return reading.rank is not None and self._rank is not None and reading.rank > self._rank

    def _own(self, reading: Reading) -> Counter | None:
        """Return the counter of the run in a line; None if there is none, or only that of another loop."""
        counter = reading.counter(self._lesser)
        if counter is not None and counter.preference == ROUNDED and self._loops.kind:
            return None  # step 2K: something else counts exactly, or it does again later
        if counter is None or not (reading.is_row or reading.is_bar or self._is_said(reading, counter)):
            return None
        self._lesser |= {c.preference for c in reading.counters if c.value != counter.value and not c.is_loop}
        names = [name for name in reading.metrics if name != "train/epoch"]
        split = reading.split or (names[0].split("/")[0] if names else None)
        is_evaluation = split in ("eval", "test") and not any(name[:6] == "train/" for name in names)
        has_other_total = self._has_other_total(counter)
        is_below = counter.value + self._loops.base < (self.step or 0)
        counts_evaluations = not self._trained and self._has(reading)  # the log has rows of evaluations alone
        has_own_loop = counter.is_loop or has_other_total or is_below
        if self._loops.kind and is_evaluation and not counts_evaluations and has_own_loop:
            return None
        if reading.is_bar and not reading.is_row and not _is_of_training(reading.label):
            return None  # a bar of a download, or of a data set that is mapped
        is_new = self._num_counted > 2 and self._loops.last(_place(reading, counter)) is None
        if is_new and self._loops.kind == RUN and counter.value < (self.step or 0) and not counter.is_loop:
            return None  # a text that the model wrote, of which one word is a step
        if has_other_total and counter.total != self._announced and self._has_rows:
            return self._of_another_loop(reading, counter, split)
        return counter

    def _is_of_data(self, reading: Reading, counter: Counter | None) -> bool:
        """Whether a row of errors alone stands before the training: `mean ar error: 0.02` of images that are loaded."""
        if self._has_rows or self.counts == "row" or counter is not None or {self._epoch, reading.epoch} != {None}:
            return False
        measured = [name for name in reading.metrics if is_measured(name)]
        return bool(measured) and all(not ERRORS.isdisjoint(parts_of(name)) for name in measured)

    def _is_said(self, reading: Reading, counter: Counter) -> bool:
        """Whether a line without metrics tells the step, as `[step=500]:` does and a list of settings does not."""
        is_round = counter.preference == COUNTERS["round"] and counter.total is not None
        if (counter.preference >= UNNAMED and not is_round) or (
            self._has_rows and self._loops.last(_place(reading, counter)) is None
        ):
            return False
        is_list = reading.is_indented or (reading.is_aligned and not counter.preference)
        is_setting = reading.has_settings or (is_list and not self._has_rows)
        return (not counter.is_loop or counter.total is not None) and not is_setting

    def _has_other_total(self, counter: Counter) -> bool:
        return bool(self._loops.total and counter.total) and counter.total != self._loops.total

    def _of_another_loop(self, reading: Reading, counter: Counter, split: str | None) -> Counter | None:
        """Return a counter with another total than before if it is that of a further training, else None.

        An evaluation, or a loop inside of a step, has its own total, too. A further training has the metrics of the
        first one, and is not announced as an evaluation; or its line says what it is.
        """
        is_trained = not self._trained.isdisjoint(reading.metrics)
        may_train = reading.is_row and split == "train" and is_trained and self._split not in ("eval", "test")
        if may_train and (reading.epoch is not None or self._loops.is_new_epoch(self._epoch)):
            return counter
        if reading.is_row and (counter.is_loop or not is_trained) and (counter.total or 0) < self._loops.total:
            self._split = "eval"
        return None

    def _is_of_evaluation(self, reading: Reading) -> bool:
        """Whether a row with the counter of the run is the result of the evaluation that was just announced."""
        if self._split not in ("eval", "test") or not self._trained or reading.split == "train" or reading.is_bar:
            return False
        return any(name[:6] == "train/" and is_measured(name) for name in reading.metrics.keys() - self._trained)

    def _is_better(self, reading: Reading, counter: Counter) -> bool:
        """Whether a counter is the one to follow: one of the whole run replaces one that starts over, never back."""
        if counter.is_loop and self._loops.kind == RUN:
            goes_on = bool(self._resumed_at) and not self._num_counted and counter.value >= self._resumed_at
            return goes_on or self._is_of_another_model(reading, counter)
        return reading.is_row or counter.is_loop or counter.preference < 3

    def _is_of_another_model(self, reading: Reading, counter: Counter) -> bool:
        """Whether a row is the first of a further model: `[0] train-auc:0.7` behind `Iteration 44, loss = 0.1`."""
        names = {name for name in reading.metrics if name[:6] == "train/"}
        is_first = counter.value <= 1 < self._num_counted - 1 and len(reading.counters) == 1 and reading.epoch is None
        return is_first and bool(names) and self._trained.isdisjoint(names) and counter.preference > UNNAMED

    def _count(self, reading: Reading, counter: Counter) -> None:
        kind, place = LOOP if counter.is_loop else RUN, _place(reading, counter)
        if kind == RUN and self._loops.kind == LOOP and self._loops.agrees(counter.value, self.step or 0):
            kind = LOOP  # the loop counts the run, too
        if kind != self._loops.kind or (self._has_other_total(counter) and not self._has_rows):
            self._loops.begin(kind)
            self.step = None if reading.is_bar or not self._has_rows else self.step
        epoch = reading.epoch if reading.epoch is not None else self._epoch
        if self._first_epoch is None and epoch is not None and (reading.is_row or reading.is_bar):
            self._first_epoch = epoch
            if not self._num_counted:  # else the rows before have told where the count is
                self._resume(counter, epoch)
        is_again = self._is_again(reading, counter, self._loops.last(place), epoch)
        loops = (c for c in reading.counters if c.total and not (counter.value - c.value) % c.total)
        loop = next(loops, counter)  # STEP: 75/92 -- GLOBAL_STEP: 167
        self._resumed_at = counter.value if reading.resumes else self._resumed_at
        names = frozenset(reading.metrics)
        step = self._loops.step(place, counter, loop, epoch=epoch, is_again=is_again, at=self.step or 0, names=names)
        self._epoch = epoch
        self.total = self._announced or self._total_of_loop(reading, counter, loop, epoch)
        self._has_rows |= reading.is_row
        self._num_counted += reading.is_row
        self._go_to(step if reading.is_row and not reading.is_bar else max(step, self.step or 0))
        self.counts = "step"

    def _resume(self, counter: Counter, epoch: float) -> None:
        """Begin where the first printed epoch does, if that is a later one: the training was resumed."""
        num, rest = divmod(self._resumed_at, counter.total) if counter.total else (0, 0)
        if not num or rest:
            num = int(epoch) if epoch == self._resumed_in else self._epochs_before(counter, epoch)
        self._first_epoch = epoch - num
        self.begins_at = num * (counter.total or 0)
        self._loops.resume(self.begins_at, epoch)

    def _epochs_before(self, counter: Counter, epoch: float) -> int:
        """Return how many epochs a resumed training had before the first that is printed: `Epoch: [3][ 1/626]`.

        Epochs of `4/10` are counted from 1, others from 0. A counter of the run tells its step itself: it is as far as
        the epochs are, or far from 0.
        """
        if epoch < 2 or epoch % 1 or not counter.preference or not counter.total or self._loops.base:
            return 0
        count, share = self._epochs.count, counter.value / counter.total
        num = int(epoch) - self._is_from_1
        is_of_run = share > 1 / 3 if count is None else num <= share * count <= num + 1
        return 0 if is_of_run else num

    def _is_again(self, reading: Reading, counter: Counter, last: int | None, epoch: float | None) -> bool:
        """Whether the same value is that of a new epoch, which has but one line, as the one before had."""
        if counter.value != last:
            return False
        if reading.epoch is not None and self._epoch is not None and reading.epoch > self._epoch:
            return True
        has_ended = counter.value == counter.total and self._loops.is_new_epoch(epoch, _place(reading, counter))
        return counter.is_loop and self._has(reading) and (has_ended or not reading.is_bar)

    def _total_of_loop(self, reading: Reading, counter: Counter, loop: Counter, epoch: float | None) -> int | None:
        """Return the steps of the run from those of a loop, which is an epoch's if it starts over or its line has one.

        In the first epoch of other lines, it may start over or not. Where the steps before a later first epoch are not
        known, neither is the number of those that follow.
        """
        total, count, is_whole = self._loops.total or None, self._epochs.count, epoch is not None and epoch % 1 == 0
        if total is None:  # a counter of the run, with that of an epoch beside it or none
            self.steps_per_epoch = loop.total
            return (loop.total or 0) * (count or 0) or None
        may_start_over = counter.preference > 0 and not self._loops.is_new_epoch(epoch)
        if self._loops.base or (may_start_over and is_whole and reading.epoch is not None):
            self.steps_per_epoch = total if (self._first_epoch or 0) <= 1 else None
            return (self.steps_per_epoch or 0) * (count or 0) or None
        self.steps_per_epoch = None
        return None if may_start_over and (is_whole if count is None else count > 1) else total

    def _has(self, reading: Reading) -> bool:
        """Whether this step has another value of a metric in a line, so that the line is of another step."""
        names = self._counted.keys() & reading.metrics.keys() - {"train/epoch"}
        return any(self._counted[name] != reading.metrics[name] for name in names)

    def _note_epoch(self, reading: Reading) -> None:
        """Use the epoch as a step where nothing better counts."""
        epoch = reading.epoch
        assert epoch is not None
        is_first, is_later = self._epoch is None, epoch != self._epoch
        self._epoch = epoch
        if is_later and not reading.is_row:
            self._split = reading.split
        if is_first and reading.begins_epoch and not self._has_rows and 0 < self._loops.total == self.step:
            self._loops, self.step, self.total, self.counts = Loops(), None, None, "row"  # it was of the data
        if self._has_bar_of_epochs and reading.is_row and not reading.is_bar:
            self._go_to(int(epoch))  # the bar may count from 0
        if self._loops.kind:
            return
        if self._announced and self._epochs.count:
            step = round(epoch / self._epochs.count * self._announced)
            self.counts = "step"
        elif epoch == int(epoch) and (self.counts == "epoch" or self.step is None):
            step = self._epochs.step(int(epoch), is_row=reading.is_row)
            self.counts = "epoch"
        else:
            return
        if 0 <= step <= MAX_STEP:
            self._go_to(step)

    # --- rows ---

    def _placed(self, reading: Reading, *, is_counted: bool = False) -> list[Row]:
        metrics = reading.metrics
        split = (
            None
            if is_counted
            else reading.split or self._announced_split(reading, metrics) or self._split_above(reading)
        )
        split = split or ("eval" if reading.is_of_table else None)
        if reading.index and not is_counted and self.counts != "row":
            metrics = {name.replace("/", f"/{reading.index}_", 1): value for name, value in metrics.items()}
        if is_counted:
            self._subject = ""
        elif self._subject and split in ("eval", "test"):
            metrics = {name.replace("/", f"/{self._subject}_", 1): value for name, value in metrics.items()}
        if split and split != "train":
            own = {name: metrics[name] for name in metrics.keys() & reading.of_training}
            metrics = {**_of_split({n: v for n, v in metrics.items() if n not in own}, split), **own}
        metrics = {label: value for name, value in metrics.items() if (label := self._labelled(reading, name))}
        if is_counted and not reading.is_bar:
            metrics = {self._of_further_evaluation(name, value): value for name, value in metrics.items()}
        elif not is_counted:
            metrics = self._without_counted(reading, metrics)
        names = metrics.keys() - {"train/epoch"}
        if not names:
            return []
        if is_counted:
            self._counted.update((name, metrics[name]) for name in names)
            self._of_bars |= names if reading.is_bar else set()
        else:
            self._make_room(reading, metrics.keys() - {"train/epoch"}, metrics)
        self._trained |= {name for name in names if name[:6] == "train/"}
        self._has_rows |= any(map(is_measured, names))
        splits = {name.partition("/")[0] for name in names - {RATE}}
        self._above = splits.pop() if len(splits) == 1 and not is_counted else self._above if not splits else None
        step = self.step or 0 if is_counted else self._after_loop(names)
        now, earlier = self._values.of(reading, metrics, step)
        return [*earlier, (step, {**reading.coordinates, **now})] if now.keys() - {"train/epoch"} else earlier

    def _after_loop(self, names: set[str]) -> int:
        """Return the step of a row without a counter: the end of the loop for a row behind its last line.

        An evaluation behind `[57600/60000]`, where the lines are 6,400 apart, belongs to step 60,000, unless a row of
        the same metric has stood within a loop.
        """
        if self._loops.kind and self._loops.end is None:
            self._within |= names
        is_behind = self._within.isdisjoint(names)
        return max(self.step or 0, (self._loops.end or 0) if is_behind else 0)

    def _labelled(self, reading: Reading, name: str) -> str:
        """Return the name of a metric whose printed name, `loss` or `Train Loss`, is not that of its curve so far."""
        if name[:6] != "train/" or name == "train/epoch":
            return name
        if reading.is_bar:
            self._labels.setdefault(name, name in reading.of_training)
            return name
        has_position = any(counter.is_loop for counter in reading.counters)
        if reading.counters and self._has_position.setdefault(name, has_position) and not has_position:
            is_mean = is_measured(name) or name == "train/grad_norm"
            return name if name == RATE else name.replace("/", "/mean_", 1) if is_mean else ""
        if not is_measured(name):
            return name
        says = name in reading.of_training
        if self._labels.setdefault(name, says) == says:
            return name
        return name.replace("/", "/mean_" if says else "/batch_", 1)

    def _announced_split(self, reading: Reading, metrics: dict[str, float]) -> str | None:
        """Return the split of the heading above; it ends with an epoch's mean of what the evaluation has told."""
        has_ended = self._split in ("eval", "test") and reading.epoch is not None
        is_later = (reading.epoch or 0) > (math.inf if self._split_epoch is None else self._split_epoch)
        if has_ended and (is_later or any(of_split(name, str(self._split)) in self._others for name in metrics)):
            self._split = None
        return self._split

    def _split_above(self, reading: Reading) -> str | None:
        """Return the split of the row above for `F1: 0.8` below `Val Loss: 0.5`, unless the training has an F1."""
        is_known = not self._trained or reading.is_bar or not self._trained.isdisjoint(reading.metrics)
        if self._above in (None, "train") or is_known or reading.of_training or reading.epoch is not None:
            return None
        return None if any(of_split(name, self._above) in self._others for name in reading.metrics) else self._above

    def _without_counted(self, reading: Reading, metrics: dict[str, float]) -> dict[str, float]:
        """Leave out what was said at this step before; a mean of the whole epoch gets a name of its own."""
        is_mean = reading.epoch is not None and not reading.is_bar
        may_repeat = self.counts != "row" and not reading.is_bar and not reading.counters
        kept = {}
        for name, value in metrics.items():
            before = self._counted.get(name.replace("/mean_", "/"), self._others.get(name))
            if before is not None and may_repeat:
                is_same = is_rounded(value, before) and name not in self._distinct
                if is_same and not (is_mean and name in reading.of_training and name in self._of_bars):
                    continue
                self._distinct.add(name)
            if name in self._others and self.counts != "row" and not reading.is_bar:
                if self._alone[name] < 2 or name in self._often:
                    self._often.add(name)
                elif name[:6] != "train/" or reading.epoch is None:
                    kept[name.replace("/", "/final_", 1)] = value
                    continue
            if name not in self._counted:
                split, _, plain = name.partition("/")
                kept[f"{split}/{reading.fulls.get(plain, plain)}" if name in self._others else name] = value
            elif (is_mean or name in reading.of_training) and not reading.is_bar and name != RATE:
                kept[name.replace("/", "/mean_", 1)] = value
        return kept

    def _of_further_evaluation(self, name: str, value: float) -> str:
        """Return the name of a metric of an evaluation that counts its step: a second one there has another name."""
        is_second = name[:6] != "train/" and self._counted.get(name, value) != value and self._alone[name] > 1
        return name.replace("/", "/final_", 1) if is_second else name

    def _make_room(self, reading: Reading, names: set[str], metrics: dict[str, float]) -> None:
        """Find a step for a row without a counter: the last one, unless that has one of its metrics."""
        is_taken = any(name in self._others for name in names if name[:6] == "train/")
        if not self._loops.kind and self.counts == "epoch" and is_taken and reading.epoch is None:
            self.counts = "row"  # several rows in an epoch
        if self.step is None or (is_taken and self.counts == "row"):
            is_before = self.step is None and all(name[:5] == "eval/" for name in names)  # the training begins
            self._go_to(0 if is_before else (self.step or 0) + 1)
        elif self.counts == "row" and names & self._others.keys():
            self._go_to(self.step + 1)
        if not any(counter.is_loop for counter in reading.counters):  # else: a part of an evaluation
            self._others |= metrics

    def _go_to(self, step: int) -> None:
        if step != self.step:
            self._alone.update(self._others.keys())
            self._alone.update(name for name in self._counted if name[:6] != "train/")
            self.step, self._counted, self._others = min(step, MAX_STEP), {}, {}
            self._above = None


def _is_of_files(label: str) -> bool:
    """Whether a bar with this label is of data that are read or made: `val: Scanning labels`."""
    return any(word in label.lower() for word in _WORDS_OF_FILES)


def _is_of_training(label: str) -> bool:
    """Whether a bar with this label and without metrics may be that of a training."""
    lowered = label.lower()
    return not lowered or (
        any(word in lowered for word in _WORDS_OF_TRAINING) and not any(word in lowered for word in _WORDS_OF_DATA)
    )


def _of_split(metrics: dict[str, float], split: str) -> dict[str, float]:
    """Return metrics with the names that they have in a split; a loss and its mean keep two names."""
    names = {name: of_split(name, split) for name in metrics}
    twice = {short for short in names.values() if [*names.values()].count(short) > 1}
    return {
        name.replace("train", split, 1) if (short := names[name]) in twice else short: metrics[name] for name in names
    }


def _place(reading: Reading, counter: Counter) -> Place:
    label = " ".join(reading.label.translate(_NO_DIGITS).split())
    has_epoch = reading.epoch is not None and not reading.is_bar
    return Place(reading.is_bar, label, counter.preference, has_epoch, counter.total is not None)
