"""Time, memory and FLOPs of the steps of this process: throughput, waiting for data and for other ranks, GPU use."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

_PASSES = 3
"""Matrix products per weight: one forward, two backward (gradients of inputs and of weights)."""
_OF_FROZEN = 2 / 3
"""Share of `_PASSES` for a frozen weight, which has no gradient."""


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

    It also measures the time from each all-reduce of gradients to the arrival at the next: the start of that backward
    pass. The ranks leave an all-reduce at the same time, so a rank that arrives early waits for the last one. On a GPU
    these times are those of its stream, which the host runs ahead of.
    """

    def __init__(self, device: torch.device, num_passes: int) -> None:
        """Expect an all-reduce in each `num_passes`-th backward pass; in none if that is 0."""
        self._on_gpu, self._num_passes, self._num_left = device.type == "cuda", num_passes, num_passes
        self._aside_s = self._waited_s = 0.0
        self._left: Any = None
        self._arrivals: list[tuple[Any, Any]] = []

    def start(self, samples: int) -> None:
        """Begin to measure after `samples` samples of all ranks."""
        self._since, self._samples, self._waited_s = time.monotonic() - self._aside_s, samples, 0.0
        self.leave()

    def enter(self, phase: str) -> None:
        """Note that a phase begins; "backward" is a backward pass."""
        if phase != "backward":
            self._left = self._left or self._now()
            return
        self._num_left -= 1
        if not self._num_left:
            self._arrivals.append((self._left, self._now()))
            self._left, self._num_left = None, self._num_passes

    def leave(self) -> None:
        """Note the end of another collective, or of what is aside, which the ranks leave together."""
        self._left = self._now()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude the time of a `with` block from the measurement."""
        started = time.monotonic()
        yield
        self._aside_s += time.monotonic() - started
        self.leave()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of a `with` block as waiting for data."""
        started = time.monotonic()
        yield
        self._waited_s += time.monotonic() - started

    def lap(self, samples: int) -> tuple[float, float, float, list[float]]:
        """Return what was measured since the start, which is now again.

        Args:
            samples: their total number until now.

        Returns:
            Samples of all ranks per second, share of waiting for data, seconds, and those before each arrival, of which
            all ranks have as many.
        """
        seconds = max(time.monotonic() - self._aside_s - self._since, 1e-9)
        measured = (samples - self._samples) / seconds, self._waited_s / seconds, seconds
        arrivals, self._arrivals = self._arrivals, []
        self.start(samples)
        if not self._on_gpu:
            return *measured, [end - left for left, end in arrivals]
        for _, end in arrivals[-1:]:
            end.synchronize()  # returns at once: the loss has been read, which the GPU computes later
        return *measured, [left.elapsed_time(end) / 1000 for left, end in arrivals]

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
