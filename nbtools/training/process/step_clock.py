"""Phases, time and FLOPs of the steps of this process: throughput, waiting for data and for other ranks, GPU use."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from nbtools.run.checkpoints import Progress
from nbtools.training.process.heartbeat_writer import HeartbeatWriter
from nbtools.training.process.phase_writer import PhaseWriter
from nbtools.training.process.ranks import Ranks

_PASSES = 3
"""Matrix products per weight: one forward, two backward (gradients of inputs and of weights)."""
_OF_FROZEN = 2 / 3
"""Share of `_PASSES` for a frozen weight, which has no gradient."""
_MOST_ARRIVALS = 1000
"""Arrivals that are timed between two laps, so that their number is bounded."""


def training_flops(model: PreTrainedModel, num_tokens: float, num_predicted: float) -> float:
    """Return the FLOPs of the matrix products in a training step on one sequence, forward and backward.

    6 per weight in a product and token, and 12 x layers x tokens^2 x width for attention's products of queries with
    keys and of shares with values (Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B). Tables of embeddings are
    looked up, not multiplied, unless they are the output projection, too. Norms, biases, and the second forward pass of
    gradient checkpointing are left out. Attention counts in full where a causal mask hides half of it.

    Args:
        num_predicted: positions of the sequence that the head runs at, which is all of the model behind its encoder.
    """
    encoder, outputs = {*model.base_model.modules()}, model.get_output_embeddings()  # type: ignore[no-untyped-call]
    weights_of_encoder = weights_of_head = 0.0
    for part in model.modules():
        if isinstance(part, nn.Embedding) and part is not outputs:
            continue
        matrices = [weight for weight in part.parameters(recurse=False) if weight.ndim > 1]
        count = sum(weight.numel() * (1 if weight.requires_grad else _OF_FROZEN) for weight in matrices)
        if part in encoder and part is not outputs:
            weights_of_encoder += count
        else:
            weights_of_head += count
    config = model.config
    layers, width = getattr(config, "num_hidden_layers", 0), getattr(config, "hidden_size", 0)
    attention = 2 * layers * num_tokens**2 * width
    return 2.0 * _PASSES * (num_tokens * weights_of_encoder + num_predicted * weights_of_head + attention)


class StepClock:
    """Measures the steps of this rank without the phases aside, such as evaluations and checkpoints.

    Every change of phase passes here, and on to the heartbeat and the seconds in each phase.

    It also measures the time from each all-reduce of gradients to the arrival at the next: the start of that backward
    pass. The ranks leave an all-reduce at the same time, so a rank that arrives early waits for the last one. On a GPU
    these times are those of its stream, which the host runs ahead of. The first step starts the loader and compiles: it
    is `other` among the phases.
    """

    def __init__(
        self, heartbeat: HeartbeatWriter, phases: PhaseWriter, ranks: Ranks, progress: Progress, num_passes: int
    ) -> None:
        """Expect an all-reduce in each `num_passes`-th backward pass; in none if that is 0."""
        self.peak_samples_per_s = 0.0
        """Samples of all ranks per second if their FLOPs ran at the rate of a large matrix product; 0 if unknown."""
        self.heartbeat, self.phases = heartbeat, phases
        self._ranks, self._progress = ranks, progress
        self._num_passes, self._num_left = num_passes, num_passes
        self._aside_s = self._waited_s = 0.0
        self._left: Any = None
        self._arrivals: list[tuple[Any, Any]] = []
        self._num_arrivals = 0
        self._first: float = math.inf

    def start(self) -> None:
        """Begin to measure."""
        self._first = min(self._first, self._progress.step)
        self._since, self._samples = time.monotonic() - self._aside_s, self._progress.samples
        self._waited_s = 0.0
        self._left = self.phases.now()

    def enter(self, phase: str) -> None:
        """Note that a phase begins; "backward" is a backward pass."""
        self.heartbeat.enter(phase, self._progress.step)
        border = self.phases.enter("other" if self._progress.step <= self._first else phase)
        if phase != "backward":
            self._left = self._left or border
            return
        self._num_left -= 1
        if not self._num_left:
            self._num_arrivals += 1
            if len(self._arrivals) < _MOST_ARRIVALS:
                self._arrivals.append((self._left, border))
            self._left, self._num_left = None, self._num_passes

    @contextmanager
    def _inside(self, phase: str) -> Iterator[None]:
        """Run a phase at whose end the ranks leave together, within the phase before."""
        before = self.phases.current
        self.enter(phase)
        try:
            yield
        finally:
            with suppress(RuntimeError):  # of a GPU that has failed, which the next call raises again
                self._left = self.phases.enter(before)

    @contextmanager
    def aside(self, phase: str) -> Iterator[None]:
        """Run a phase other than training, whose time is excluded from the measurement."""
        started = time.monotonic()
        try:
            with self._inside(phase):
                yield
        finally:
            self._aside_s += time.monotonic() - started

    @contextmanager
    def data(self) -> Iterator[None]:
        """Wait for data."""
        self.enter("data")
        started = time.monotonic()
        yield
        self._waited_s += time.monotonic() - started

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Wait for the other ranks, if there are any."""
        with self._inside("collective") if self._ranks.world_size > 1 else nullcontext():
            yield

    def lap(self) -> tuple[float, dict[str, float]]:
        """Return what was measured since the start, which is now again, and record the phases; every rank calls it.

        Returns:
            Samples of all ranks per second, and a row with the waits and the peak memory of the slowest rank, and the
            share of the peak rate.
        """
        seconds = max(time.monotonic() - self._aside_s - self._since, 1e-9)
        rate, data_wait = (self._progress.samples - self._samples) / seconds, self._waited_s / seconds
        own_s = self._arrivals_s()
        self.start()
        device, world_size = self._ranks.device, self._ranks.world_size
        peak_memory = torch.cuda.max_memory_allocated(device) / 1e9 if self.phases.on_gpu else 0.0
        sums_s = [sum(own_s) if rank == self._ranks.rank else 0.0 for rank in range(world_size)]
        with self.collective():
            data_wait, peak_memory, *latest_s = self._ranks.max([data_wait, peak_memory, *sums_s, *own_s])
        row, first = {"train/data_wait": data_wait}, int(self._first >= 0)
        if own_s:
            sums_s, latest_s = latest_s[:world_size], latest_s[world_size:]
            row["train/peer_wait"] = min(1.0, (sum(latest_s) - sum(sums_s) / world_size) / seconds)
        self.phases.enter("other")  # what is written and printed now
        # The first step's waiting is `other`, like all of it.
        self.phases.write(self._progress.step, sum(latest_s[first:]) - sum(own_s[first:]) if own_s else 0.0)
        self._first = -1
        if self.peak_samples_per_s:
            row["train/mfu"] = rate / self.peak_samples_per_s
        return rate, {**row, "system/peak_memory_gb": peak_memory} if peak_memory else row

    def _arrivals_s(self) -> list[float]:
        """Return the seconds before each arrival since the last call, of which all ranks have as many.

        Of very many they are those of the first ones, and stand for all.
        """
        arrivals, number = self._arrivals, self._num_arrivals
        self._arrivals, self._num_arrivals = [], 0
        if arrivals and self.phases.on_gpu:
            arrivals[-1][1].synchronize()  # returns at once: the loss has been read, which the GPU computes later
        return [self.phases.seconds(left, end) * number / len(arrivals) for left, end in arrivals]
