"""Fills the masks of texts with a trained masked language model.

Shape suffixes: B batch, T positions, K masks, V vocabulary.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers.decoders import ByteLevel
from transformers import AutoTokenizer

from nbtools.recipes import MLMPretrainingConfig
from nbtools.recipes.predict_settings import Input, MLMPretrainingPredict
from nbtools.training.engine.checkpoint import open_model
from nbtools.training.mlm_pretraining.train import MaskedLM

_MASK = "[MASK]"
_AT_ONCE = 1024
"""Texts among which those of equal length are found."""


class Predictor:
    """A loaded masked language model and its tokenizer."""

    def __init__(self, folder: Path, config: MLMPretrainingConfig, device: torch.device) -> None:
        self.device = device
        self.longest = config.sequence_length
        self.has_template = config.model_name is None or config.add_special_tokens
        self.tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        self.has_spaces = isinstance(self.tokenizer.backend_tokenizer.decoder, ByteLevel)
        """Whether tokens hold the space before a word, which a mask then takes in the text."""
        takes_space = self.has_spaces and self.tokenizer.added_tokens_decoder[self.tokenizer.mask_token_id].lstrip
        self.mask = re.compile(r"\s*" * takes_space + re.escape(self.tokenizer.mask_token))
        self.masked_lm = MaskedLM(open_model(folder)).to(device)
        self.masked_lm.eval()
        self.num_parameters = self.masked_lm.model.num_parameters()

    def predict(self, inputs: Sequence[Input], settings: MLMPretrainingPredict) -> Iterator[dict[str, Any]]:
        """Yield for each text its most likely completion, `text`, and the candidates for each mask, `masks`."""
        for start in range(0, len(inputs), _AT_ONCE):
            texts = [str(text).replace(_MASK, self.tokenizer.mask_token) for text in inputs[start : start + _AT_ONCE]]
            encoded = [self._encoded(text) for text in texts]
            rows: dict[int, Any] = {place: {"error": why} for place, why in enumerate(encoded) if isinstance(why, str)}
            tokens = {place: each for place, each in enumerate(encoded) if not isinstance(each, str)}
            rows |= self._filled(texts, tokens, settings.top_k, settings.predict_batch_size)
            yield from (rows[place] for place in range(len(texts)))

    def _encoded(self, text: str) -> list[int] | str:
        """Return the tokens of a text, or the reason why none can be predicted."""
        tokens: list[int] = self.tokenizer(text, add_special_tokens=self.has_template, verbose=False)["input_ids"]
        if self.tokenizer.mask_token_id not in tokens:
            return f"holds no mask; write {_MASK} for each missing token"
        if len(tokens) > self.longest:
            return f"has {len(tokens)} tokens, and the model was trained on {self.longest}; shorten it"
        return tokens

    def _filled(self, texts: list[str], tokens: dict[int, list[int]], top_k: int, size: int) -> dict[int, Any]:
        """Return the rows of texts; those of equal length share forward passes, since padding would change results."""
        mask_id, rows = self.tokenizer.mask_token_id, {}
        for length in {len(each) for each in tokens.values()}:
            places = [place for place, each in tokens.items() if len(each) == length]
            for start in range(0, len(places), size):
                batch = places[start : start + size]
                inputs_BT = torch.tensor([tokens[place] for place in batch])
                is_mask_BT = inputs_BT == mask_id
                positions_BK = is_mask_BT.long().argsort(dim=1, descending=True, stable=True)
                positions_BK = positions_BK[:, : int(is_mask_BT.sum(1).max())]
                logits_BKV = self.masked_lm.logits(inputs_BT.to(self.device), positions_BK.to(self.device))
                best = logits_BKV.float().softmax(-1).topk(min(top_k, logits_BKV.shape[-1]))
                found = best.indices.tolist(), best.values.tolist(), is_mask_BT.sum(1).tolist()
                answers = zip(batch, *found, strict=True)
                for place, ids_KN, p_KN, count in answers:
                    rows[place] = self._row(texts[place], ids_KN[:count], p_KN[:count])
        return rows

    def _row(self, text: str, ids_KN: list[list[int]], p_KN: list[list[float]]) -> dict[str, Any]:
        masks = []
        for ids_N, p_N in zip(ids_KN, p_KN, strict=True):
            words = [str(self.tokenizer.decode([number])) for number in ids_N]
            words = words if self.has_spaces else [word.strip() for word in words]
            masks.append([{"token": word, "probability": p} for word, p in zip(words, p_N, strict=True)])
            text = self.mask.sub(words[0].replace("\\", r"\\"), text, count=1)
        return {"text": text, "masks": masks}
