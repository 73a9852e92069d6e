"""ModernBERT models built from a config: arguments of `transformers.ModernBertConfig`, and the number of weights."""

import math
from typing import Any

from nbtools.recipes import named_model
from nbtools.settings import setting

SPECIAL_TOKENS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
"""The first tokens of every vocabulary built here; their positions are their ids."""

# Fields of the recipes that train an encoder on text.
MODEL_NAME: Any = setting(
    None,
    "A local folder or hub id to start from (`from_pretrained`); None builds a ModernBERT of the size below.",
    shapes=True,
)
KEEP_MODEL_DROPOUT: Any = setting(
    False, "Keep the dropout that the config of `model_name` sets; otherwise `dropout` replaces it.", before=True
)
CLEAN: Any = setting(
    "none",
    "none keeps every character of your text; light drops lines without a letter, and repeated punctuation and "
    "spaces. The text that ships with Python is always cleaned.",
    before="light",
)
SPECIAL_TOKENS_IN_TEXT: Any = setting(
    "text",
    "Special tokens of `model_name` that are written in your text, such as </s>: text reads them as characters; "
    "tokens gives them their ids, for texts that a template wrote before.",
    before="tokens",
)


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


def num_parameters_of(config: Any, vocab_size: int | None) -> int | None:
    """Return the number of weights of the model that a config names, else of the one that it builds."""
    if config.model_name is not None:
        return named_model.num_parameters(config)
    return num_modernbert_parameters(config, config.vocab_size if vocab_size is None else vocab_size)


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
