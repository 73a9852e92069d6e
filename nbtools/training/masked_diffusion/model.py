"""The model of masked diffusion: any bidirectional transformer, which predicts all masked tokens at once.

The time is no input: the share of masked tokens shows it. The token [MASK] is never predicted.

Shape suffixes: B batch, T positions, K masked positions of a whole batch, H width, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from nbtools.errors import ConfigError
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.modernbert import modernbert_settings
from nbtools.training.text import pretrained
from nbtools.training.text.tokenizers import MASK, separator_of

_LLADA_MASK_ID = 126336


class Denoiser(nn.Module):
    """A bidirectional model, with its head at the masked positions only."""

    def __init__(self, model: PreTrainedModel, mask_id: int) -> None:
        super().__init__()
        self.model = model
        self.mask_id = mask_id

    def forward(
        self,
        inputs_BT: torch.Tensor,
        positions_K: torch.Tensor,
        labels_K: torch.Tensor,
        weights_K: torch.Tensor,
        lengths_B: torch.Tensor,
    ) -> torch.Tensor:
        """Return the weighted sum of the cross-entropies at the masked positions, in nats.

        Args:
            positions_K: row x T + column of the masked positions.
            lengths_B: length of each sequence for attention; empty for no mask.
        """
        return (self.losses(inputs_BT, positions_K, labels_K, lengths_B) * weights_K).sum()

    def losses(
        self, inputs_BT: torch.Tensor, positions_K: torch.Tensor, labels_K: torch.Tensor, lengths_B: torch.Tensor
    ) -> torch.Tensor:
        """Return the cross-entropy at each masked position. Shape (K,)."""
        options: dict[str, Any] = {"input_ids": inputs_BT}
        if len(lengths_B):
            positions_T = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)
            options["attention_mask"] = (positions_T < lengths_B[:, None]).long()
        if isinstance(self.model, ModernBertForMaskedLM):
            hidden_BTH = self.model.model(**options)[0]
            logits_KV = self.model.decoder(self.model.head(hidden_BTH.flatten(0, 1)[positions_K]))
        else:
            logits_KV = self.model(**options).logits.flatten(0, 1)[positions_K]
        logits_KV = logits_KV.float()
        logits_KV[:, self.mask_id] = -torch.inf
        return nn.functional.cross_entropy(logits_KV, labels_K, reduction="none")

    def logits(self, inputs_BT: torch.Tensor) -> torch.Tensor:
        """Return the scores of all tokens at all positions, those of [MASK] included. Shape (B, T, V)."""
        logits_BTV: torch.Tensor = self.model(input_ids=inputs_BT).logits
        return logits_BTV


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
    model = _load(config.model_name, trust_remote_code=config.trust_remote_code)
    pretrained.check_length(model, config.model_name, config.sequence_length)
    longest = getattr(model.config, "max_sequence_length", config.sequence_length)  # LLaDA's name for it
    if config.sequence_length > longest:
        raise ConfigError(f"sequence_length={config.sequence_length}: {config.model_name} takes at most {longest}")
    rows = next(model.get_input_embeddings().parameters()).shape[0]
    mask_id = _mask_id(model, tokenizer)
    if mask_id is None:
        raise ConfigError(
            f"model_name={config.model_name!r}: its tokenizer has no mask token; choose a masked language model, or "
            "one trained by masked diffusion"
        )
    if max(mask_id, len(tokenizer) - 1) >= rows:
        raise ConfigError(
            f"model_name={config.model_name!r}: has {rows:,} tokens, but its tokenizer {len(tokenizer):,} and the "
            f"mask is number {mask_id:,}; choose a model and a tokenizer that belong together"
        )
    return Denoiser(model, mask_id)


def _load(model_name: str, *, trust_remote_code: bool) -> PreTrainedModel:
    try:
        config = AutoConfig.from_pretrained(model_name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        if "trust_remote_code" in str(error) and not trust_remote_code:
            raise ConfigError(
                f"model_name={model_name!r}: comes with Python code that would run on this machine; if you trust "
                "it, set trust_remote_code=True in the script, or pass --trust-remote-code"
            ) from None
        raise ConfigError(
            f"model_name={model_name!r}: cannot be loaded ({pretrained.first_line(error)}); give a folder written by "
            "save_pretrained, or a hub id"
        ) from error
    brought = getattr(config, "auto_map", None) or {}
    auto_class = AutoModel if trust_remote_code and "AutoModelForMaskedLM" not in brought and brought else None
    kind = "a masked language model"
    return pretrained.load_model(
        auto_class or AutoModelForMaskedLM, model_name, kind, trust_remote_code=trust_remote_code
    )


def _mask_id(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int | None:
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    own = getattr(model.config, "mask_token_id", None)
    if own is None and model.config.model_type == "llada":
        return _LLADA_MASK_ID
    return None if own is None else int(own)
