"""The step of the run from counters that start over: those of the batches in an epoch, and those of epochs."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from nbtools.metrics.readers.printed.line_content import Counter
from nbtools.rundir.json_files import MAX_STEP

RUN: Final = "run"  # kind of a counter that counts the whole run
LOOP: Final = "loop"  # kind of a counter that may start over in every epoch


class Place(NamedTuple):
    """Where a counter stands: the lines of one statement have the same place."""

    is_bar: bool
    label: str
    """Words before the bar, without digits."""
    preference: int
    """The rank of the counter's name."""
    has_epoch: bool
    has_total: bool


@dataclass(slots=True)
class _Counted:
    """One counter of the training."""

    value: int
    base: int
    """The step at which it last started over."""
    stride: int = 0
    """Difference of its last two values in a loop; 0 if unknown."""
    is_regular: bool = False
    """Whether the difference is the same as the one before."""
    is_from_0: bool = False
    epoch: float | None = None
    is_over: bool = False
    """Whether it was shown at 0 again."""
    names: frozenset[str] = frozenset()
    """The metrics beside its last value."""


class Loops:
    """Follows the counters of a training, of which several may count the same loop: a bar and the lines above it.

    A counter that falls has started over in a new epoch: steps continue from the end of the loop, whose length is
    its total, if it has one. Each counter starts over by itself; only the first that does makes the epoch end.
    """

    def __init__(self) -> None:
        self.kind = ""
        """RUN, LOOP, or empty as long as nothing counts."""
        self.total = 0
        """Steps of the loop; 0 if unknown."""
        self.base = 0
        """The step at which the loop last started over."""
        self.end: int | None = None
        """The end of the loop, if its counter starts over before it is shown again; None if not, or not known."""
        self._counted: dict[Place, _Counted] = {}
        self._base_epoch: float | None = None

    def begin(self, kind: str) -> None:
        """Forget the counters: another one counts the training."""
        Loops.__init__(self)
        self.kind = kind

    def resume(self, base: int, epoch: float) -> None:
        """Begin at a step: a training is resumed in this epoch."""
        self.base, self._base_epoch = base, epoch

    def show_nothing(self, place: Place) -> None:
        """A bar is at 0: if it was further, it starts over, even if its next value is above its last one."""
        if place in self._counted:
            self._counted[place].is_over = True
            self.end = self.base + self.total

    def agrees(self, value: int, at: int) -> bool:
        """Whether a counter of the whole run may count the same as the loop, which is at the step `at`."""
        return abs(value - at) <= max(1, at // 5) and value >= self.base

    def last(self, place: Place) -> int | None:
        """Return the last value of a counter."""
        return self._counted[place].value if place in self._counted else None

    def is_new_epoch(self, epoch: float | None, place: Place | None = None) -> bool:
        """Whether an epoch is later than that in which the loop started over last, or of a counter's last value."""
        last = self._counted[place].epoch if place in self._counted else self._base_epoch
        return epoch is not None and last is not None and int(epoch) > int(last)

    def step(
        self,
        place: Place,
        counter: Counter,
        loop: Counter,
        *,
        epoch: float | None,
        is_again: bool,
        at: int,
        names: frozenset[str],
    ) -> int:
        """Return the step of a counter's value.

        Args:
            place: the counter.
            counter: its value, and its last value in this loop if the line has it.
            loop: the counter of the loop, which may stand beside that of the run, or else the same.
            epoch: the epoch of the line, or the last one before it.
            is_again: whether its value, the same as before, is of another epoch.
            at: the step so far.
            names: the metrics of the line.
        """
        if self._base_epoch is None:
            self._base_epoch = epoch
        value = counter.value
        known = self._counted.get(place, _Counted(0, -1, is_from_0=not value))
        base = self._base_of(place, value, epoch, is_again=is_again, at=at, names=names)
        stride = value - known.value if base == known.base else known.stride
        is_regular = stride == known.stride
        self._counted[place] = _Counted(value, base, stride, is_regular, known.is_from_0, epoch, names=names)
        self.total = counter.total or self.total
        is_last = 0 < stride <= (loop.total or 0) < loop.value + stride + known.is_from_0
        self.end = base + value + (loop.total or 0) - loop.value if is_last else None
        return min(base + value, MAX_STEP)

    def _base_of(
        self, place: Place, value: int, epoch: float | None, *, is_again: bool, at: int, names: frozenset[str]
    ) -> int:
        known = self._counted.get(place)
        if known is None:
            return 0 if self._counted and self.base and value >= at else self.base
        if value < known.value or known.is_over or is_again:
            if known.base >= self.base:  # else another counter of this loop has started over before
                is_within = not self.total and known.is_regular and 0 < value < known.stride and names == known.names
                if is_within and known.value % known.stride != value:  # each 100th of the run: 900, 1000, 33, 133
                    self.total = known.value + known.stride - value
                self._start_over(known.value, value, epoch)
            return self.base
        return known.base if known.base + value >= self.base else self.base

    def _start_over(self, last: int, value: int, epoch: float | None) -> None:
        """Continue from the end of the loop, which was at `last`, with its next round."""
        num = 1
        if self.total and epoch is not None and self._base_epoch is not None:
            num = max(1, round(epoch - self._base_epoch))
        length = max(self.total, last) if self.total else last + (value == 0)
        self.base, self._base_epoch = min(self.base + num * length, MAX_STEP), epoch


class Epochs:
    """Follows printed epochs where they are the steps; they begin again in a further fold or stage of the training."""

    def __init__(self) -> None:
        self.count: int | None = None
        """Number of epochs, as printed."""
        self._stage = 0
        self._last: dict[bool, tuple[int, int, int]] = {}
        """The last epoch, its step and its stage, of rows and of other lines: one of the two may count from 0."""

    def announce(self, count: int | None) -> None:
        """Take the number of epochs that a line tells: another one than before is that of a further stage."""
        self._stage += bool(count and self.count and count != self.count)
        self.count = count or self.count

    def step(self, epoch: int, *, is_row: bool) -> int:
        """Return the step of an epoch in a row of metrics, or in a line without."""
        if not is_row and self._last.get(True, (None,))[0] == epoch:
            return self._last[True][1]  # early stop at epoch 20, behind the row of that epoch
        last, step, stage = self._last.get(is_row, (epoch, epoch, self._stage))
        begins_again = epoch <= 1 and (epoch < last or stage != self._stage)
        step += 1 if begins_again else epoch - last
        self._last[is_row] = epoch, step, self._stage
        return step
