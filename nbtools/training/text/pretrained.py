"""Pretrained models, loaded from a folder or a hub id.

Python code that comes with a model runs only if the user allowed it for that model.
"""

import pickle
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from nbtools.errors import ConfigError

_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),  # BERT, RoBERTa, ESM and models derived from them
    *("attention_dropout", "mlp_dropout", "embedding_dropout", "hidden_dropout", "dropout"),  # ModernBERT, DistilBERT
    *("residual_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),  # LLaDA, GPT-2
)
"""Names of the dropout of an encoder in the configs of `transformers`; not those of heads for other tasks."""


def load_model(
    auto_class: Any,
    model_name: str,
    kind: str,
    *,
    option: str = "model_name",
    trust_remote_code: bool = False,
    dropout: float | None = None,
    **settings: Any,
) -> PreTrainedModel:
    """Load a model with fp32 weights.

    Args:
        option: the config's field that names it, for the message.
        dropout: replaces every dropout of the encoder in the model's own config; None keeps them.
        **settings: changes to the model's own config, such as `num_labels=1`.

    Raises:
        ConfigError: it cannot be loaded, or its weights are a pickle that could run code.
    """
    try:
        if dropout is not None:
            own = AutoConfig.from_pretrained(model_name, trust_remote_code=trust_remote_code)
            settings |= dict.fromkeys((name for name in _DROPOUTS if getattr(own, name, None) is not None), dropout)
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
    names = ("max_position_embeddings", "max_sequence_length")  # the second is LLaDA's
    longest = min(getattr(model.config, name, sequence_length) for name in names)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings") and module.padding_idx is not None:
            longest = min(longest, module.num_embeddings - module.padding_idx - 1)  # RoBERTa counts from there
    if sequence_length > longest:
        raise ConfigError(f"sequence_length={sequence_length}: {model_name} takes at most {longest}")


def reaches_all_weights(loss: torch.Tensor, module: nn.Module) -> bool:
    """Whether a loss depends on every trainable weight, as DDP expects; a pooler or another head may be unused."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    return all(gradient is not None for gradient in torch.autograd.grad(loss, weights, allow_unused=True))


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return the first line of an error's text, or its type if the text is empty."""
    lines = str(error).strip().splitlines()
    return lines[0][:limit] if lines else type(error).__name__


def be_quiet() -> None:
    """Keep progress bars and hints of `transformers` out of the log."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
