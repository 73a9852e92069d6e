"""The result of a trial: time, memory, the largest batch that fits, and the estimated duration of the training."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from nbtools.config import TrainConfig
from nbtools.errors import DataError, plural
from nbtools.launcher.checks.findings import Finding, Findings, ok, size, warn
from nbtools.launcher.checks.step_count import Schedule
from nbtools.recipes import recipe_of


@dataclass(frozen=True)
class TrialResult:
    """Figures of one process that trained a few steps; they are None if there is an `error`."""

    error: str = ""
    """Why the trial failed, was refused or cancelled, in one sentence."""
    device: str = ""
    """Measured device, such as `GPU 0 (NVIDIA H100)` or `CPU, 2 threads`."""
    precision: str = ""
    num_parameters: int | None = None
    """Number of all weights, including frozen ones."""
    batch_size: int | None = None
    """Batch size of the measured steps: the config's, or the largest that fits if that one does not."""
    num_steps: int = 0
    """Optimizer steps that were taken, the first one included."""
    first_step_s: float | None = None
    """Duration of the first step, which contains the warm-up."""
    step_s: float | None = None
    """Mean duration of the steps after the first."""
    samples_per_s: float | None = None
    """Samples per second of one process."""
    peak_bytes: int | None = None
    """Peak of torch's allocations on a GPU; on the CPU, peak of the process without the memory of the imports."""
    reserved_bytes: int | None = None
    """GPU memory reserved by torch; None on the CPU."""
    total_bytes: int | None = None
    """Memory of the GPU; None on the CPU."""
    largest_batch: int | None = None
    """Largest batch size per process that fits, known to an eighth; None on the CPU."""
    largest_note: str = ""
    """Limit behind `largest_batch`, or the reason why it is unknown."""
    total_steps: int | None = None
    """Steps of the whole training on the processes of the launch."""
    duration_s: float | None = None
    """Estimated duration of these steps; see `assumption`."""
    assumption: str = ""
    """Assumptions of the estimate."""

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
            return cls(error=str(answer["error"]))
        counts = (int(answer[f"num_{part}_samples"]) for part in ("train", "eval", "test"))
        try:
            total_steps = Schedule.of(config, world_size, *counts).total_steps
        except DataError as error:
            return cls(error=str(error))
        first_step_s, *later_s = map(float, answer["step_s"])
        step_s, batch_size = sum(later_s) / len(later_s), int(answer["batch_size"])
        is_measured = batch_size == config.batch_size
        on_cpu = str(answer["device"]) == "cpu"
        return cls(
            device=f"CPU, {plural(int(answer['threads']), 'thread')}" if on_cpu else device,
            precision=str(answer["precision"]),
            num_parameters=int(answer["num_parameters"]),
            batch_size=batch_size,
            num_steps=1 + len(later_s),
            first_step_s=first_step_s,
            step_s=step_s,
            samples_per_s=batch_size * config.gradient_accumulation_steps / step_s,
            **{name: answer[name] for name in ("peak_bytes", "reserved_bytes", "largest_batch")},
            total_bytes=total_bytes,
            largest_note=str(answer["largest_note"]),
            total_steps=total_steps if is_measured else None,
            duration_s=total_steps * step_s if is_measured else None,
            assumption=_assumption(config, world_size),
        )

    @property
    def findings(self) -> Findings:
        """The figures as lines or as a table."""
        if self.step_s is None or self.first_step_s is None or self.batch_size is None:
            return Findings([warn("trial", self.error)])
        later = f"{plural(self.num_steps - 1, 'step')} after the first, which took {_seconds(self.first_step_s)}"
        found = [
            ok("trial", f"one process on {self.device}, {self.num_parameters:,} parameters, in {self.precision}"),
            ok("step time", f"{_seconds(self.step_s)} (mean of {later}): {self.samples_per_s:,.4g} samples/s"),
            self._memory(),
        ]
        if self.duration_s is not None:
            duration = timedelta(seconds=max(1, round(self.duration_s)))
            found.append(
                ok("duration", f"about {duration} for {plural(self.total_steps or 0, 'step')}; {self.assumption}")
            )
        return Findings(found)

    def _memory(self) -> Finding:
        used = "not known" if self.peak_bytes is None else size(self.peak_bytes)
        if self.total_bytes is None:
            return ok("peak memory", f"{used} without the imports; the largest batch: {self.largest_note}")
        text = f"{used} allocated, {size(self.reserved_bytes or 0)} reserved of {size(self.total_bytes)}"
        text += f"; largest batch_size that fits: {self.largest_batch} ({self.largest_note})"
        if self.duration_s is not None:
            return ok("peak memory", text)
        step = f"set batch_size={self.largest_batch} with more gradient_accumulation_steps; the figures are for it"
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
