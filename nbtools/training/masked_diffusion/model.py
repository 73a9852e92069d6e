"""The model of masked diffusion: any bidirectional transformer, which predicts all masked tokens at once.

The time is no input: the share of masked tokens shows it. The token [MASK] is never predicted.

Shape suffixes: B batch, T positions, K masked positions of a whole batch, H width, V vocabulary.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from nbtools.errors import ConfigError
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.built_models import modernbert_settings
from nbtools.recipes.masked_diffusion import is_llada, remote_code_refused
from nbtools.training.engine.checkpoint import open_model
from nbtools.training.masked_diffusion.llada import LLaDAModelLM, load_llada
from nbtools.training.process.step_clock import training_flops
from nbtools.training.text import pretrained_models
from nbtools.training.text.adapter import add_adapter
from nbtools.training.text.chunked_logits import head_of, in_chunks
from nbtools.training.text.tokenizers import MASK, separator_of

_LLADA_MASK_ID = 126336


class Denoiser(nn.Module):
    """A bidirectional model, with its head at the masked positions only.

    Args:
        num_tokens: rows of the table of tokens from this one on are no tokens and never predicted; None for none.
    """

    forward_methods = ("losses", "logits")

    def __init__(self, model: PreTrainedModel, mask_id: int, num_tokens: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.mask_id = mask_id
        self.num_tokens = num_tokens

    def forward(
        self, inputs_BT: Tensor, positions_K: Tensor, labels_K: Tensor, weights_K: Tensor, lengths_B: Tensor
    ) -> Tensor:
        """Return the weighted sum of the cross-entropies at the masked positions, in nats.

        Args:
            positions_K: row x T + column of the masked positions.
            lengths_B: length of each sequence for attention; empty for no mask. Of packed rows, the number of the
                sequence at each position, of shape (B, T): a position attends to those with its own number.
        """
        return (self.losses(inputs_BT, positions_K, labels_K, lengths_B) * weights_K).sum()

    def losses(self, inputs_BT: Tensor, positions_K: Tensor, labels_K: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the cross-entropy at each masked position. Shape (K,)."""
        options: dict[str, Any] = {"input_ids": inputs_BT}
        if lengths_B.ndim == 2:
            options["attention_mask"] = self._within_sequences(lengths_B)
        elif len(lengths_B):
            positions_T = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)
            options["attention_mask"] = (positions_T < lengths_B[:, None]).long()
        if isinstance(self.model, LLaDAModelLM):
            all_BTH = self.model.hidden(**options)
        else:
            all_BTH = (self.model if self._head is None else self.model.base_model)(**options)[0]
        parts = all_BTH.flatten(0, 1)[positions_K], labels_K
        return torch.cat(in_chunks(self._chunk_losses, self.model.config.vocab_size, *parts))

    @property
    def _head(self) -> Callable[[Tensor], Tensor] | None:
        return self.model.head if isinstance(self.model, LLaDAModelLM) else head_of(self.model)

    def _chunk_losses(self, chosen_KH: Tensor, labels_K: Tensor) -> Tensor:
        logits_KV = chosen_KH if self._head is None else self._head(chosen_KH)
        logits_KV = logits_KV[:, : self.num_tokens].float()
        logits_KV[:, self.mask_id] = -torch.inf
        return nn.functional.cross_entropy(logits_KV, labels_K, reduction="none")

    def _within_sequences(self, numbers_BT: Tensor) -> Any:
        """Return a mask of attention within sequences. Both kinds of models know positions by their distance only."""
        same_BTT = numbers_BT[:, :, None] == numbers_BT[:, None]
        if isinstance(self.model, LLaDAModelLM):
            return same_BTT
        positions_T = torch.arange(numbers_BT.shape[1], device=numbers_BT.device)
        near_TT = (positions_T[:, None] - positions_T).abs() <= self.model.config.sliding_window
        return {"full_attention": same_BTT[:, None], "sliding_attention": (same_BTT & near_TT)[:, None]}

    def has_unused_weights(self) -> bool:
        """Whether the loss does not depend on some of the weights, such as a pooler's or another head's."""
        if isinstance(self.model, ModernBertForMaskedLM | LLaDAModelLM):
            return False
        label_K = torch.tensor([0 if self.mask_id else 1])
        return pretrained_models.has_unused_weights(
            self, lambda ones: self.losses(ones, ones[0, :1], label_K, ones[0, :0]).sum()
        )

    def flops(self, num_tokens: float, num_maskable: float) -> float:
        """Return the FLOPs of a training step on one sequence, half of whose maskable tokens are masked on average."""
        return training_flops(self.model, num_tokens, num_tokens if self._head is None else num_maskable / 2)

    def logits(self, inputs_BT: Tensor) -> Tensor:
        """Return the scores of all tokens at all positions, those of [MASK] included. Shape (B, T, V)."""
        logits_BTV: Tensor = self.model(input_ids=inputs_BT).logits
        return logits_BTV[..., : self.num_tokens]

    def write_tokenizer(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write the tokenizer into the model's folder, a LLaDA's as its own code loads it.

        LLaDA's code needs a transformers that cannot read a tokenizer_config.json of a newer one.
        """
        tokenizer.save_pretrained(folder)
        for name, content in getattr(self.model, "companions", {}).items():
            (folder / name).write_bytes(content)


def build_denoiser(config: MaskedDiffusionConfig, tokenizer: PreTrainedTokenizerBase) -> Denoiser:
    """Build a ModernBERT of the config's size, or load the pretrained model that the config names.

    Raises:
        ConfigError: the named model cannot be loaded, has no mask token, or does not fit tokenizer or sequences.
    """
    if config.model_name is None:
        if tokenizer.mask_token_id is None:  # tokenizer of a causal model: add one token, the last
            tokenizer.add_special_tokens({"mask_token": MASK})
        settings = modernbert_settings(config, len(tokenizer))
        # No token is padding: [EOS] pads answers and is learnt, so its embedding must be trained.
        settings |= dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id", "sep_token_id"))
        settings["eos_token_id"] = separator_of(tokenizer)
        return Denoiser(ModernBertForMaskedLM(ModernBertConfig(**settings)), int(tokenizer.mask_token_id))
    model = load_pretrained(
        config.model_name,
        trust_remote_code=config.trust_remote_code,
        dropout=None if config.keep_model_dropout else config.dropout,
    )
    pretrained_models.check_length(model, config.model_name, config.sequence_length)
    if config.pad_to == "packed" and not isinstance(model, ModernBertForMaskedLM | LLaDAModelLM):
        raise ConfigError(
            f"pad_to='packed': {config.model_name} is a {type(model).__name__}, which may let pairs of a row attend "
            "to each other, or count positions from the row's start; ModernBERT and LLaDA do neither; use "
            "pad_to='longest'"
        )
    denoiser = _pretrained_denoiser(model, config.model_name, tokenizer)
    add_adapter(model, config)
    return denoiser


def open_denoiser(folder: Path, config: MaskedDiffusionConfig, tokenizer: PreTrainedTokenizerBase) -> Denoiser:
    """Load the model of a checkpoint, and an adapter with its base.

    Raises:
        CheckpointError: the folder is damaged.
        ConfigError: the weights cannot be loaded.
    """
    load = functools.partial(load_pretrained, trust_remote_code=config.trust_remote_code, dropout=None)
    return _pretrained_denoiser(open_model(folder, load), str(folder), tokenizer)


def _pretrained_denoiser(model: PreTrainedModel, name: str, tokenizer: PreTrainedTokenizerBase) -> Denoiser:
    rows = next(model.get_input_embeddings().parameters()).shape[0]
    own, named = getattr(model.config, "mask_token_id", None), tokenizer.mask_token_id
    known = (own, named, _LLADA_MASK_ID) if isinstance(model, LLaDAModelLM) else (named, own)
    mask_id = next((number for number in known if number is not None), None)
    if mask_id is None:
        raise ConfigError(
            f"model_name={name!r}: its tokenizer has no mask token; choose a masked language model, or "
            "one trained by masked diffusion"
        )
    pretrained_models.check_vocabulary_size(name, len(tokenizer), rows)
    if mask_id >= rows:
        raise ConfigError(
            f"model_name={name!r}: has {rows:,} tokens, and the mask is number {mask_id:,}; choose a model and a "
            "tokenizer that belong together"
        )
    num_tokens = max(getattr(model.config, "vocab_size", rows), len(tokenizer), mask_id + 1)
    return Denoiser(model, mask_id, num_tokens)


def load_pretrained(model_name: str, *, trust_remote_code: bool, dropout: float | None) -> PreTrainedModel:
    try:
        known = is_llada(PretrainedConfig.get_config_dict(model_name)[0])
        config = None if known else AutoConfig.from_pretrained(model_name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        if "trust_remote_code" in str(error) and not trust_remote_code:
            raise ConfigError(remote_code_refused(model_name)) from None
        raise pretrained_models.not_loadable(f"model_name={model_name!r}:", error) from error
    if known:
        return load_llada(model_name, dropout=dropout)
    brought = getattr(config, "auto_map", None) or {}
    has_own_class = trust_remote_code and brought and "AutoModelForMaskedLM" not in brought
    auto_class = AutoModel if has_own_class else AutoModelForMaskedLM
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code, "dropout": dropout}
    return pretrained_models.load_model(auto_class, model_name, "a masked language model", **options)
