"""The result of a trial: time, memory, the largest batch that fits, and the estimated duration of the training."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from nbtools.config import TrainConfig
from nbtools.errors import DataError, plural
from nbtools.launcher.checks.findings import Finding, Findings, ok, size, warn
from nbtools.launcher.checks.step_count import Schedule
from nbtools.recipes import recipe_of


@dataclass(frozen=True)
class TrialResult:
    """Measurements of one process that trained a few steps, or the error that ended it."""

    error: str = ""
    """Why the trial failed, was refused or cancelled, in one sentence."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """The answer of the trial's process, by name; empty if there is an `error`."""
    figures: tuple[Finding, ...] = ()

    @classmethod
    def of(
        cls, answer: Mapping[str, Any], config: TrainConfig, world_size: int, device: str, total_bytes: int | None
    ) -> Self:
        """Derive the figures of a launch on `world_size` processes from the answer of the trial's process.

        Args:
            device: name of the GPU; empty on the CPU.
            total_bytes: its memory; None on the CPU.
        """
        if "error" in answer:
            return cls(str(answer["error"]))
        counts = (int(answer[f"num_{part}_samples"]) for part in ("train", "eval", "test"))
        try:
            total_steps = Schedule.of(config, world_size, *counts).total_steps
        except DataError as error:
            return cls(str(error))
        first_s, *later_s = map(float, answer["step_s"])
        step_s, batch_size = sum(later_s) / len(later_s), int(answer["batch_size"])
        where = device or f"CPU, {plural(int(answer['threads']), 'thread')}"
        later = f"{plural(len(later_s), 'step')} after the first, which took {_seconds(first_s)}"
        rate = batch_size * config.gradient_accumulation_steps / step_s
        is_measured = batch_size == config.batch_size
        found = [
            ok("trial", f"one process on {where}, {answer['num_parameters']:,} parameters, in {answer['precision']}"),
            ok("step time", f"{_seconds(step_s)} (mean of {later}): {rate:,.4g} samples/s"),
            _memory(answer, total_bytes, is_measured),
        ]
        if is_measured:
            duration = timedelta(seconds=max(1, round(total_steps * step_s)))
            text = f"about {duration} for {plural(total_steps, 'step')}; {_assumption(config, world_size)}"
            found.append(ok("duration", text))
        return cls(measured=answer, figures=tuple(found))

    @property
    def findings(self) -> Findings:
        """The figures, or the error, as lines or as a table."""
        return Findings([warn("trial", self.error)] if self.error else self.figures)


def _memory(answer: Mapping[str, Any], total_bytes: int | None, is_measured: bool) -> Finding:
    """Report the peak of the process, and the largest batch, which was measured if the config's own does not fit."""
    peak, largest, note = answer["peak_bytes"], answer["largest_batch"], answer["largest_note"]
    used = "not known" if peak is None else size(peak)
    if total_bytes is None:
        return ok("peak memory", f"{used} without the imports; the largest batch: {note}")
    text = f"{used} allocated, {size(answer['reserved_bytes'] or 0)} reserved of {size(total_bytes)}"
    text += f"; largest batch_size that fits: {largest} ({note})"
    if is_measured:
        return ok("peak memory", text)
    step = f"set batch_size={largest} with more gradient_accumulation_steps; the figures are for it"
    return warn("peak memory", text, step)


def _assumption(config: TrainConfig, world_size: int) -> str:
    left_out = "evaluations and checkpoints are not included"
    if world_size > 1:
        left_out = f"one of {world_size} processes was measured alone; their communication, {left_out}"
    if config.strategy == "fsdp" and world_size > 1:
        left_out += "; that process held the whole model, which fsdp divides among the processes"
    if recipe_of(config).costliest(config) != config:
        left_out += "; all steps count as those of the costliest stage"
    return left_out


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
