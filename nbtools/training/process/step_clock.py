"""Time, memory and FLOPs of the steps of this process: throughput, waiting for data, use of the GPU."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

_GB = 1e9
_PASSES = 3
_OF_FROZEN = 2 / 3
"""Share of these passes that a frozen weight takes part in: it has no gradient."""
"""Forward, and backward for inputs and for weights: three times the products of the forward pass."""


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
    """Measures steps without the phases aside, such as evaluations and checkpoints."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._aside_s = self._waited_s = 0.0
        self._last_row: tuple[float, float] | None = None
        self.start(0)

    def start(self, samples: int) -> None:
        """Begin to measure, where so many samples of all ranks are done."""
        self._since, self._samples, self._waited_s = time.monotonic() - self._aside_s, samples, 0.0

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave out what runs within."""
        started = time.monotonic()
        yield
        self._aside_s += time.monotonic() - started

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count what runs within as waiting for data."""
        started = time.monotonic()
        yield
        self._waited_s += time.monotonic() - started

    def samples_per_s(self, samples: int) -> float:
        """Return the samples of all ranks per second since the last call, where so many are done."""
        seconds = max(time.monotonic() - self._aside_s - self._since, 1e-9)
        rate = (samples - self._samples) / seconds
        self._last_row = self._waited_s / seconds, rate
        self.start(samples)
        return rate

    def take(self) -> tuple[float, float, float] | None:
        """Return what `samples_per_s` measured last, once: share of waiting, samples per second, peak memory in GB.

        The peak is that of torch's allocations since the start of the process, 0 on a CPU.
        """
        last, self._last_row = self._last_row, None
        peak = torch.cuda.max_memory_allocated(self._device) / _GB if self._device.type == "cuda" else 0.0
        return None if last is None else (*last, peak)
