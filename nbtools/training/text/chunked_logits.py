"""Losses over a large vocabulary without the logits of all positions at once.

The logits of N positions are N x V numbers, and a loss takes three times their memory with its gradient: 6 GB for 4,096
positions and the 126,464 tokens of LLaDA. Above `LARGEST_CHUNK` logits, a loss is therefore computed for one chunk of
positions after the other, and once more in the backward pass (Chen et al. 2016, arXiv 1604.06174). The price is a
second product with the head.

Shape suffixes: N positions of a whole batch.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import ModernBertForMaskedLM, PreTrainedModel

from nbtools.recipes.activations import LARGEST_CHUNK

_HEADS = "cls", "lm_head"
"""Names of the head in BERT, RoBERTa, and models derived from them; the second in causal models, too."""
PLAIN_CAUSAL_MODELS = {"gpt2", "gpt_neox", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"}
"""Types of causal models whose logits are the head's output; others scale or cap them afterwards."""


def head_of(model: PreTrainedModel) -> Callable[[Tensor], Tensor] | None:
    """Return the part of a language model after its `base_model`; None if the architecture is unknown."""
    if isinstance(model, ModernBertForMaskedLM):
        return lambda hidden: model.decoder(model.head(hidden))
    is_known = type(model).__name__.endswith("ForMaskedLM") or model.config.model_type in PLAIN_CAUSAL_MODELS
    heads = [head for name in (*_HEADS, "embed_out") if isinstance(head := getattr(model, name, None), nn.Module)]
    return heads[0] if is_known and heads else None


def in_chunks(compute: Callable[..., Tensor], vocab_size: int, *parts: Tensor) -> list[Tensor]:
    """Return the results of `compute(*parts)` for as many chunks of positions as their logits need; mostly one.

    Args:
        compute: computes the logits of its positions and, without random numbers, what is left of them.
        parts: tensors of the same length N.
    """
    num_chunks = -(-len(parts[0]) * vocab_size // LARGEST_CHUNK)
    return [compute(*parts)] if num_chunks <= 1 else _chunked(compute, num_chunks, parts)


@torch.compiler.disable  # type: ignore[untyped-decorator] # else each number of chunks is a graph of its own
def _chunked(compute: Callable[..., Tensor], num_chunks: int, parts: tuple[Tensor, ...]) -> list[Tensor]:
    if torch.is_grad_enabled():
        compute = functools.partial(checkpoint, compute, use_reentrant=False, preserve_rng_state=False)
    return [compute(*chunk) for chunk in zip(*(part.tensor_split(num_chunks) for part in parts), strict=True)]
