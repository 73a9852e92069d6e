"""Pretrained models and tokenizers, loaded from a folder or a hub id.

Python code that comes with a model runs only if the user allowed it for that model.
"""

import pickle
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from nbtools.errors import ConfigError


def load_model(
    auto_class: Any,
    model_name: str,
    kind: str,
    *,
    option: str = "model_name",
    trust_remote_code: bool = False,
    **settings: Any,
) -> PreTrainedModel:
    """Load a model with fp32 weights.

    Args:
        option: the config's field that names it, for the message.
        **settings: changes to the model's own config, such as `num_labels=1`.

    Raises:
        ConfigError: it cannot be loaded, or its weights are a pickle that could run code.
    """
    try:
        model: PreTrainedModel = auto_class.from_pretrained(
            model_name, dtype=torch.float32, trust_remote_code=trust_remote_code, weights_only=True, **settings
        )
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{option}={model_name!r}: its weights are a pickle that holds more than tensors, which could run "
            "code: refused; give a folder with model.safetensors"
        ) from error
    except (OSError, ValueError, ImportError, RuntimeError, EOFError, SafetensorError) as error:
        raise ConfigError(f"{option}={model_name!r}: cannot be loaded as {kind} ({first_line(error)})") from error
    return model


def check_length(model: PreTrainedModel, model_name: str, sequence_length: int) -> None:
    """Raise ConfigError unless a model takes sequences of this length."""
    longest = getattr(model.config, "max_position_embeddings", sequence_length)
    if sequence_length > longest:
        raise ConfigError(f"sequence_length={sequence_length}: {model_name} takes at most {longest}")


def masking_tokenizer(model_name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local folder or hub id, which must have a mask token.

    Raises:
        ConfigError: there is none, or it has no mask token, no separator or no fast version.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"model_name={model_name!r}: its tokenizer cannot be loaded ({first_line(error)}); "
            "give a folder written by save_pretrained, or a hub id"
        ) from error
    if tokenizer.mask_token_id is None:
        raise ConfigError(f"model_name={model_name!r}: its tokenizer has no mask token; choose a masked language model")
    if not tokenizer.is_fast or (tokenizer.sep_token_id is None and tokenizer.eos_token_id is None):
        raise ConfigError(f"model_name={model_name!r}: its tokenizer must have a fast version and a separator token")
    return tokenizer


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return the first line of an error's text, or its type if the text is empty."""
    lines = str(error).strip().splitlines()
    return lines[0][:limit] if lines else type(error).__name__


def be_quiet() -> None:
    """Keep progress bars and hints of `transformers` out of the log."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
