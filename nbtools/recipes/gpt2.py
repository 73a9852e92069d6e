"""GPT-2 models built from a config: arguments of `transformers.GPT2Config`, and the number of weights."""

from typing import Any, Protocol


class TransformerSize(Protocol):
    """The fields of a config that set the size of its transformer."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def dropout(self) -> float: ...


def check_gpt2_width(hidden_size: int, num_heads: int) -> None:
    """Check that the width is a multiple of the number of heads.

    Raises:
        ValueError: what was given and what is allowed.
    """
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size={hidden_size} with num_heads={num_heads}: must be a multiple of num_heads")


def gpt2_settings(size: TransformerSize, vocab_size: int, num_positions: int) -> dict[str, Any]:
    """Return the arguments of `transformers.GPT2Config` for a model of this size, vocabulary and longest input."""
    return {
        "vocab_size": vocab_size,
        "n_positions": num_positions,
        "n_embd": size.hidden_size,
        "n_layer": size.num_layers,
        "n_head": size.num_heads,
        # GPT-2's gelu_new as one kernel: a quarter less time for small models.
        "activation_function": "gelu_pytorch_tanh",
        "resid_pdrop": size.dropout,
        "embd_pdrop": size.dropout,
        "attn_pdrop": size.dropout,
        "classifier_dropout": size.dropout,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def num_gpt2_parameters(size: TransformerSize, vocab_size: int, num_positions: int, num_labels: int = 0) -> int:
    """Return the number of weights; the language modelling head shares those of the embedding.

    Args:
        size: layers, heads and width.
        vocab_size: rows of the embedding.
        num_positions: longest input.
        num_labels: outputs per position of a classification head, in place of the language modelling head.
    """
    width = size.hidden_size
    head = num_labels * (width + 1)
    return (vocab_size + num_positions) * width + size.num_layers * _num_layer(width) + 2 * width + head


def num_gathered_gpt2(size: TransformerSize, num_parameters: int, num_models: int = 1) -> tuple[int, int]:
    """Return the number of weights outside the layers of all models, and of a layer."""
    layer = _num_layer(size.hidden_size)
    return num_parameters - num_models * size.num_layers * layer, layer


def _num_layer(width: int) -> int:
    attention, feed_forward, norm = 4 * width * width + 4 * width, 8 * width * width + 5 * width, 2 * width
    return attention + feed_forward + 2 * norm
