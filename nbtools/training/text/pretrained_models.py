"""Pretrained models, loaded from a folder or a hub id.

Python code that comes with a model runs only if the user allowed it for that model.
"""

import contextlib
import functools
import pickle
from collections.abc import Callable
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging
from transformers.utils.hub import cached_file

from nbtools.errors import ConfigError
from nbtools.project import expanded
from nbtools.training.sharding.fsdp import leaves_out_weights
from nbtools.training.text.weights import Renaming, WeightsReport

_DROPOUTS = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),  # BERT, RoBERTa, ESM and models derived from them
    *("attention_dropout", "mlp_dropout", "embedding_dropout", "hidden_dropout", "dropout"),  # ModernBERT, DistilBERT
    *("residual_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"),  # LLaDA, GPT-2
)
"""Names of the dropout of an encoder in the configs of `transformers`; not those of heads for other tasks."""
ADD_ROWS = (
    "add the rows of new tokens in Python, with the model's own class: model.resize_token_embeddings(len(tokenizer)); "
    "model.save_pretrained(FOLDER); tokenizer.save_pretrained(FOLDER); then give that folder"
)
"""The next step for a tokenizer with more tokens than its model."""


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

    Returns:
        The model; its `weights_report` says which weights its files have. Where weights are left out, because rank 0
        has them, it has neither.

    Raises:
        ConfigError: it cannot be loaded, its files lack weights of the pretrained part, its weights are a pickle that
            could run code, or it is an adapter alone.
    """
    an_adapter = ConfigError(
        f"{option}={model_name!r}: holds an adapter without its model; nbtools export RUN -o DIR merges the two into a "
        "folder to start from"
    )
    if (expanded(model_name) / "adapter_config.json").is_file():
        raise an_adapter
    try:
        if dropout is not None:
            own = AutoConfig.from_pretrained(model_name, trust_remote_code=trust_remote_code)
            settings |= dict.fromkeys((name for name in _DROPOUTS if getattr(own, name, None) is not None), dropout)
        if leaves_out_weights():
            return _without_values(auto_class, model_name, trust_remote_code, settings)
        read = functools.partial(_read, auto_class, model_name, trust_remote_code, **settings)
        model, report = read()
        if (renaming := report.fitting_names(model)) is not None:
            del model
            model, report = read(renaming=renaming, stored=report.unexpected)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{option}={model_name!r}: its weights are a pickle that holds more than tensors, which could run "
            "code: refused; give a folder with model.safetensors"
        ) from error
    except (OSError, ValueError, ImportError, RuntimeError, EOFError, SafetensorError) as error:
        raise ConfigError(f"{option}={model_name!r}: cannot be loaded as {kind} ({first_line(error)})") from error
    if hasattr(model, "peft_config"):  # of the hub
        raise an_adapter
    report.check(model, option, has_new_head="num_labels" in settings)
    model.weights_report = report  # type: ignore[assignment]
    return model


def _read(
    auto_class: Any,
    model_name: str,
    trust_remote_code: bool,
    *,
    renaming: Renaming | None = None,
    stored: tuple[str, ...] = (),
    **settings: Any,
) -> tuple[PreTrainedModel, WeightsReport]:
    """Load the weights that fit, under other names in the files if a renaming is given."""
    settings |= {"weights_only": True, "output_loading_info": True, "dtype": torch.float32}
    renaming = renaming or Renaming()
    key_mapping = renaming.patterns(stored) or None
    settings |= {"ignore_mismatched_sizes": True, "key_mapping": key_mapping}  # `check` refuses other shapes
    model, found = auto_class.from_pretrained(model_name, trust_remote_code=trust_remote_code, **settings)
    model.loading_info = found
    used = getattr(model, "_weight_conversions", None) or ()  # which saving would revert
    model._weight_conversions = [each for each in used if {*each.source_patterns}.isdisjoint(key_mapping or ())]
    return model, WeightsReport.of(model, model_name, found, renaming=renaming)


def _without_values(
    auto_class: Any, model_name: str, trust_remote_code: bool, settings: dict[str, Any]
) -> PreTrainedModel:
    """Build a model without values in its weights, which come from rank 0."""
    options = {name: value for name, value in settings.items() if name != "config"}
    config = settings.get("config")
    if config is None:
        config_class = getattr(auto_class, "config_class", AutoConfig)  # files can name a kind that is not registered
        config = config_class.from_pretrained(model_name, trust_remote_code=trust_remote_code, **options)
    if not hasattr(auto_class, "from_config"):
        return auto_class(config)  # type: ignore[no-any-return]
    more = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    return auto_class.from_config(config, **more)  # type: ignore[no-any-return]


def stored_file(model_name: str, *names: str) -> str | None:
    """Return the path of the first of some files that a folder or a repository of the hub has; None without any."""
    has_files = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    with contextlib.suppress(OSError):  # no such folder or repository: loading the model says so
        found = (cached_file(model_name, name, **has_files) for name in names)
        return next((path for path in found if path is not None), None)
    return None


def check_vocabulary_size(model_name: str, num_tokens: int, num_rows: int) -> None:
    """Raise ConfigError if a tokenizer has tokens without a row in the model's table."""
    if num_tokens > num_rows:
        raise ConfigError(
            f"model_name={model_name!r}: its tokenizer has {num_tokens:,} words, more than the model, whose table has "
            f"{num_rows:,} rows; {ADD_ROWS}"
        )


def check_length(model: PreTrainedModel, model_name: str, sequence_length: int) -> None:
    """Raise ConfigError unless a model takes sequences of this length."""
    names = ("max_position_embeddings", "max_sequence_length")  # the second is LLaDA's
    longest = min(getattr(model.config, name, sequence_length) for name in names)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings") and module.padding_idx is not None:
            longest = min(longest, module.num_embeddings - module.padding_idx - 1)  # RoBERTa counts from there
    if sequence_length > longest:
        raise ConfigError(f"sequence_length={sequence_length}: {model_name} takes at most {longest}")


def has_unused_weights(module: nn.Module, loss_of: Callable[[Tensor], Tensor]) -> bool:
    """Whether a loss does not depend on some of the trainable weights, such as a pooler's, which DDP has to know.

    `loss_of` computes it from a row of eight tokens.
    """
    was_training = module.training
    module.eval()  # draws no random numbers
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(loss_of(torch.ones(1, 8, dtype=torch.long)), weights, allow_unused=True)
    module.train(was_training)
    return any(gradient is None for gradient in gradients)


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return the first line of an error's text, or its type if the text is empty."""
    lines = str(error).strip().splitlines()
    return lines[0][:limit] if lines else type(error).__name__


def not_loadable(what: str, error: Exception) -> ConfigError:
    """Return the error that names a model or tokenizer which cannot be loaded, the reason and the next step."""
    reason = first_line(error)
    return ConfigError(f"{what} cannot be loaded ({reason}); give a folder written by save_pretrained, or a hub id")


def be_quiet() -> None:
    """Keep progress bars and hints of `transformers` out of the log."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
