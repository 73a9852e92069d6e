"""About how much memory the activations of a training step take: tensors that the forward pass keeps for the backward.

Both kinds of layers built here keep 16 tensors of `hidden_size` values per token: queries, keys, values and their
result, the inputs of four products, two sums of the residual stream, and the wide inner ones of the feed-forward part;
those of a pretrained model as many as its shape says.
Attention keeps no table of all pairs of tokens, as its kernels do not, except CANINE's. Counted from the models,
without dropout; what a product takes for a moment is not counted.
"""

from typing import Any

from nbtools.config import TrainConfig
from nbtools.recipes import named_model

_PER_LAYER, _IN_RESIDUAL_STREAM, _OUTSIDE = 16, 2, 3
LARGEST_CHUNK = 2**25
"""Number of logits that a loss over a vocabulary computes at once: 128 MiB in fp32."""


def transformer_bytes(
    config: TrainConfig, size: Any, precision: str, num_tokens: float, num_logits: float = 0
) -> float:
    """Return the bytes that a pass over `num_tokens` tokens of a batch keeps, `num_logits` scores among them.

    The scores and, but for FSDP, the residual stream are fp32 at every precision. Of more scores than `LARGEST_CHUNK`
    no more are kept, or all if the model has an unknown head. With activation checkpointing, every layer keeps its
    input, and one layer at a time the rest, and half as much in gradients.
    """
    is_wide = config.strategy == "ddp" or precision not in ("bf16", "fp16")
    num_wide = getattr(size, "num_wide", _IN_RESIDUAL_STREAM) * is_wide
    layer = layer_bytes(precision, getattr(size, "kept_per_layer", _PER_LAYER), num_wide)
    layers: float = layer * size.num_layers
    if config.gradient_checkpointing:
        layers = (4 if is_wide else 2) * size.num_layers + 1.5 * layer
    width: int = size.hidden_size
    return num_tokens * width * (layers + 4 * _OUTSIDE) + 4 * min(num_logits, LARGEST_CHUNK)


def text_bytes(config: Any, precision: str, share: float) -> float | None:
    """Return the bytes of a pass over a batch, with scores for a `share` of its tokens; None if a size is unknown."""
    if (size := named_model.size_of(config)) is None:
        return None
    num_tokens = config.batch_size * config.sequence_length
    return transformer_bytes(config, size, precision, num_tokens, share * num_tokens * size.vocab_size)


def layer_bytes(precision: str, num_kept: float = _PER_LAYER, num_wide: int = _IN_RESIDUAL_STREAM) -> float:
    """Return the bytes that a layer keeps per token and dimension."""
    inner = 2 if precision in ("bf16", "fp16") else 4
    return 4 * num_wide + inner * (num_kept - num_wide)
