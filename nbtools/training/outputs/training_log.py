"""The log of a training while it runs: lines, metric rows and media, from rank 0."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nbtools.errors import plural
from nbtools.metrics.writer import MetricWriter
from nbtools.run.checkpoints import Checkpoint, Progress
from nbtools.rundir import media
from nbtools.rundir.media import MediaItem
from nbtools.rundir.rundir import RunDir
from nbtools.training.outputs.profiler import Profile

_PROGRESS_EVERY_S = 5.0


@dataclass(eq=False)
class TrainingLog:
    """Writes and prints on rank 0 what a training reports; every rank keeps the last values of the metrics."""

    files: RunDir
    progress: Progress
    writer: MetricWriter | None
    """The writer of metric rows; None on the other ranks, which write and print nothing."""
    mirror: Callable[[int, Mapping[str, float]], None] | None = None
    """Takes every row, too."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Last value of every metric."""
    beside: dict[str, float] = field(default_factory=dict)
    """Values measured beside those of the recipe, for the next row."""
    profile: Profile | None = None
    """The profile of this rank's steps that is taken."""
    _measured: tuple[int, Mapping[str, float]] = (-1, {})
    _compiled: tuple[int, int, float] = (0, 0, 0.0)
    _said: float = 0.0
    _tested: list[Checkpoint | None] = field(default_factory=list)
    """The checkpoint whose test is measured, None for the last weights; empty outside a test."""

    def say(self, text: str) -> None:
        """Print; a full disk loses the line, not the training."""
        if self.writer is not None:
            with contextlib.suppress(OSError):
                print(text, flush=True)

    def say_compiled(self, graphs: int, breaks: int, spent_s: float) -> None:
        """Print what torch.compile has made, if that is more than before."""
        if (graphs, breaks, spent_s) != self._compiled:
            self._compiled = graphs, breaks, spent_s
            counts = f"{plural(graphs, 'graph')}, {plural(breaks, 'graph break')}"
            self.say(f"compiled by step {self.progress.step} in {spent_s:.1f} s: {counts}")

    def show(self, name: str, item: MediaItem) -> None:
        """Append a media item to the run directory; a test shows only its table."""
        if self.writer is not None and not self._tested:
            with contextlib.suppress(OSError):  # a full disk does not end the training
                media.append(self.files.media, name, self.progress.step, item)

    def add_row(self, values: Mapping[str, float], total_steps: int) -> None:
        """Append the metric row of a step; print it every few seconds, and if it has an evaluation."""
        step = self.progress.step
        values, self.beside = {**values, **self.beside}, {}
        broken = [name for name, value in values.items() if not math.isfinite(value)]
        if broken and all(math.isfinite(value) for value in self.metrics.values()):
            self.say(f"warning: {', '.join(broken)} is not finite at step {step}; training continues")
        self._measured = step, values
        self._write(values)
        now = time.monotonic()
        if now - self._said >= _PROGRESS_EVERY_S or any("eval/" in name for name in values):
            self.say(f"step {step}/{total_steps}  {_numbers(values)}")
            self._said = now

    def measured(self) -> Mapping[str, float]:
        """Return the row of the current step; empty without one."""
        step, values = self._measured
        return values if step == self.progress.step else {}

    def begin_test(self, best: Checkpoint | None) -> None:
        """Show nothing until `end_test`; None if the last weights are tested."""
        self._tested = [best]

    def end_test(self, values: Mapping[str, float]) -> None:
        """Record the `eval/…` values of the test as `test/…`, and show them beside those of the evaluation."""
        best = self._tested.pop()
        tested = {name.replace("eval/", "test/", 1): value for name, value in values.items()}
        self._write(tested)
        before = self.metrics if best is None else best.metrics
        rows = [(name[5:], f"{before.get(name, math.nan):.4g}", f"{value:.4g}") for name, value in values.items()]
        what = "the last weights"
        if best is not None:
            what = f"{best.name}, the best by {best.manifest.get('best_by')}"
            what += f" (outputs/model is that of step {self.progress.step})" * (best.step != self.progress.step)
        self.show("test", media.table(f"Test of {what}", ("metric", "evaluation", "test"), rows))
        self.say(f"test of {what}: {_numbers(tested)}")

    def close(self) -> None:
        """Close the file of the rows."""
        if self.writer is not None:
            self.writer.close()

    def _write(self, values: Mapping[str, float]) -> None:
        self.metrics.update(values)
        if self.writer is not None:
            self.writer.write(self.progress.step, values, samples=self.progress.samples)
        if self.mirror is not None:
            self.mirror(self.progress.step, values)


def _numbers(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())
