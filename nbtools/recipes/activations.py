"""About how much memory the activations of a training step take: tensors that the forward pass keeps for the backward.

Both kinds of layers built here keep 16 tensors of `hidden_size` values per token: queries, keys, values and their
result, the inputs of four products, two sums of the residual stream, and the wide inner ones of the feed-forward part.
Attention keeps no table of all pairs of tokens, as its kernels do not, except CANINE's. Counted from the models,
without dropout; what a product takes for a moment is not counted.
"""

from nbtools.config import TrainConfig
from nbtools.recipes.gpt2 import TransformerSize

_PER_LAYER, _IN_RESIDUAL_STREAM, _OUTSIDE = 16, 2, 3


def transformer_bytes(
    config: TrainConfig, size: TransformerSize, precision: str, num_tokens: float, num_logits: float = 0
) -> float:
    """Return the bytes that a pass over `num_tokens` tokens of a batch keeps, `num_logits` scores among them.

    The residual stream and the scores are fp32 at every precision. With activation checkpointing, every layer keeps
    its input, and one layer at a time the rest, and half as much in gradients.
    """
    layer = layer_bytes(precision)
    layers = 4 * size.num_layers + 1.5 * layer if config.gradient_checkpointing else layer * size.num_layers
    return num_tokens * size.hidden_size * (layers + 4 * _OUTSIDE) + 4 * num_logits


def layer_bytes(precision: str) -> int:
    """Return the bytes that a layer keeps per token and dimension."""
    inner = 2 if precision in ("bf16", "fp16") else 4
    return 4 * _IN_RESIDUAL_STREAM + inner * (_PER_LAYER - _IN_RESIDUAL_STREAM)
