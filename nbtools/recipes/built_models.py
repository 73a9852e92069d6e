"""ModernBERT and GPT-2 models built from a config: arguments of their `transformers` configs and numbers of weights."""

import math
from typing import Any

from nbtools.settings import setting

SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
"""The first tokens of every vocabulary built here; their positions are their ids."""

# Fields of the recipes whose models are built here.
DROPOUT: Any = setting(0.0, "Dropout in all layers.", ge=0, lt=1)
NUM_LAYERS: Any = setting(2, "Transformer layers.", "layers", ge=1, le=128, basic=True, shapes=True)
NUM_HEADS: Any = setting(4, "Attention heads per layer.", "heads", ge=1, le=128, basic=True, shapes=True)


def width(default: int, least: int, multiple_of: str) -> Any:
    """Declare the width of a model."""
    text = f"Width of the model; a multiple of {multiple_of}."
    return setting(default, text, "dimensions", ge=least, le=16_384, basic=True, shapes=True)


def vocabulary(default: int, text: str, unit: str) -> Any:
    """Declare the size of a vocabulary that is built on the data."""
    return setting(default, text, unit, ge=16, le=1_000_000, shapes=True)


def check_modernbert_width(hidden_size: int, num_heads: int) -> None:
    """Check that rotary positions can divide the width by 2 x the number of heads, or raise ValueError."""
    if hidden_size % (2 * num_heads):
        raise ValueError(
            f"hidden_size={hidden_size} with num_heads={num_heads}: rotary positions need "
            f"hidden_size to be a multiple of 2 x num_heads = {2 * num_heads}"
        )


def modernbert_settings(size: Any, vocab_size: int) -> dict[str, Any]:
    """Return the arguments of `transformers.ModernBertConfig` for a config's size and a vocabulary."""
    ids = {token: number for number, token in enumerate(SPECIAL_TOKENS)}
    return {
        "vocab_size": vocab_size,
        "hidden_size": size.hidden_size,
        "intermediate_size": 3 * size.hidden_size // 2,  # ModernBERT's ratio; the gated layer has two of these
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "max_position_embeddings": size.sequence_length,
        "global_attn_every_n_layers": 1,  # full attention everywhere: sequences are short
        # RoFormer's base. ModernBERT's 160,000 is for 8,192 tokens and costs 0.6 nats here (64 tokens, 600 steps).
        "global_rope_theta": 10_000.0,
        # Wide enough for narrow models: 0.05 at width 64, ModernBERT's own 0.02 at 400. With 0.02 at width 64, learning
        # any context took twice as many steps.
        "initializer_range": 0.4 / math.sqrt(size.hidden_size),
        **dict.fromkeys(("attention_dropout", "mlp_dropout", "embedding_dropout"), size.dropout),
        "tie_word_embeddings": True,
        "pad_token_id": ids["[PAD]"],
        **dict.fromkeys(("cls_token_id", "bos_token_id"), ids["[CLS]"]),
        **dict.fromkeys(("sep_token_id", "eos_token_id"), ids["[SEP]"]),
    }


def num_modernbert_parameters(size: Any, vocab_size: int) -> int:
    """Return the number of weights, with the masked language modelling head."""
    settings = modernbert_settings(size, vocab_size)
    width, inner = int(settings["hidden_size"]), int(settings["intermediate_size"])
    attention = 4 * width * width  # queries, keys, values and the output projection, without biases
    feed_forward = 3 * width * inner  # two halves in (one of them the gate), one out
    # Norms have a scale and no shift: two in each layer but one in the first, one after the embedding, one at the end.
    layers: int = size.num_layers * (attention + feed_forward + 2 * width) - width
    embedding = vocab_size * width + width  # the decoder shares these weights and adds a bias per word
    head = width * width + width
    return embedding + layers + width + head + vocab_size


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
