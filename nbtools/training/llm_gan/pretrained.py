"""Pretrained models of the LLM GAN: loaded after a check that they fit each other."""

from typing import Any

from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from nbtools.errors import ConfigError, shown
from nbtools.recipes import LLMGANConfig
from nbtools.recipes.llm_gan import num_positions
from nbtools.training.text import pretrained_models, tokenizers
from nbtools.training.text.adapter import add_adapter
from nbtools.training.text.tokenizers import separator_of


def pretrained_tokenizer(config: LLMGANConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the pretrained generator; ConfigError if the judge's cannot be loaded, or differs."""
    assert config.model_name is not None
    tokenizer = tokenizers.load_tokenizer(config.model_name)
    if config.judge_name not in (None, config.model_name):
        other = tokenizers.load_tokenizer(config.judge_name or "", option="judge_name")
        if difference := _difference(tokenizer, other):
            raise ConfigError(
                f"judge_name={config.judge_name!r}: has another vocabulary than the generator {config.model_name!r} "
                f"({difference}), so it cannot read the generator's tokens; choose a judge of the same family, "
                "or judge_name=None for the generator's own model"
            )
    return tokenizer


def _difference(tokenizer: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str:
    """Say what differs between two vocabularies; an empty string if nothing does."""
    ids, other_ids = tokenizer.get_vocab(), other.get_vocab()
    if len(ids) != len(other_ids):
        return f"{len(other_ids):,} tokens, not {len(ids):,}"
    for token in sorted(ids, key=lambda token: ids[token]):
        if token not in other_ids:
            return f"it has no {shown(token, 40)}"
        if ids[token] != other_ids[token]:
            return f"{shown(token, 40)} is {other_ids[token]}, not {ids[token]}"
    if separator_of(tokenizer) != separator_of(other):
        return f"a text ends with {separator_of(other)}, not {separator_of(tokenizer)}"
    return ""


def load_generator(config: LLMGANConfig) -> PreTrainedModel:
    """Load the pretrained generator, on rank 0 first; ConfigError if it cannot be loaded or is too short."""
    assert config.model_name is not None
    _check_positions("model_name", config.model_name, config)
    kind = "a causal language model"
    dropout = None if config.keep_model_dropout else config.dropout
    model = pretrained_models.load_model(AutoModelForCausalLM, config.model_name, kind, dropout=dropout)
    add_adapter(model, config)
    return model


def load_discriminator(config: LLMGANConfig, longest_input: int | None = None) -> PreTrainedModel:
    """Load the pretrained discriminator: one score per token, or an LLM judge.

    Args:
        longest_input: of an LLM judge, in tokens; None for a token discriminator, whose inputs are the generator's.

    Raises:
        ConfigError: it cannot be loaded, is too short, or has fewer tokens than the generator.
    """
    option = "model_name" if config.judge_name is None else "judge_name"
    name = config.judge_name or config.model_name
    assert name is not None and config.model_name is not None
    _check_positions(option, name, config, longest_input)
    sizes = [num_rows("model_name", config.model_name), num_rows(option, name)]
    if sizes[1] < sizes[0]:
        raise ConfigError(
            f"{option}={name!r}: its embedding has {sizes[1]:,} rows, that of the generator {config.model_name!r} "
            f"{sizes[0]:,}: it cannot read all of the generator's tokens; choose a judge of the same family"
        )
    dropout = None if config.keep_model_dropout else config.dropout
    options: dict[str, Any] = {"option": option, "dropout": dropout}
    if config.judging == "verdicts":
        model = pretrained_models.load_model(AutoModelForCausalLM, name, "a causal language model", **options)
    else:
        kind = "a model with one score per token"
        model = pretrained_models.load_model(AutoModelForTokenClassification, name, kind, num_labels=1, **options)
        for part in model.children():
            if isinstance(part, nn.Dropout) and dropout is not None:  # the head's own
                part.p = dropout
    add_adapter(model, config, option=option, has_heads=config.judging == "scores")
    return model


def num_rows(option: str, name: str) -> int:
    """Return the vocabulary size of a pretrained model, which may exceed its tokenizer's; or raise ConfigError."""
    return int(getattr(_model_config(option, name), "vocab_size", 0))


def _model_config(option: str, name: str) -> Any:
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError) as error:
        raise pretrained_models.not_loadable(f"{option}={name!r}:", error) from error


def _check_positions(option: str, name: str, config: LLMGANConfig, longest_input: int | None = None) -> None:
    needed = longest_input or num_positions(config)
    made_of = f"prompt_length={config.prompt_length} + sequence_length={config.sequence_length}"
    if longest_input is not None:
        made_of = (
            f"prompt_length={config.prompt_length} + 2 x sequence_length={config.sequence_length} + "
            f"max_judge_tokens={config.max_judge_tokens} + the question"
        )
    longest = getattr(_model_config(option, name), "max_position_embeddings", None)
    if longest is not None and needed > longest:
        raise ConfigError(
            f"{option}={name!r}: takes at most {longest:,} tokens, and {made_of} = {needed:,}; lower them"
        )
