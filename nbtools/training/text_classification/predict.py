"""Assigns codes to texts, for `nbtools predict`: texts of equal width share forward passes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nbtools.data.text_classification.coded_texts import UNKNOWN_LANG
from nbtools.recipes import TextClassificationConfig
from nbtools.recipes.predict import Input, TextClassificationPredict
from nbtools.training.text_classification import predictor

_AT_ONCE = 2048
"""Texts among which those of equal width are found."""


class Predictor:
    """A loaded text classifier."""

    def __init__(self, folder: Path, config: TextClassificationConfig, device: torch.device) -> None:
        self.loaded = predictor.Predictor.open(folder, device)
        self.num_parameters = self.loaded.classifier.num_parameters()

    def predict(self, inputs: Sequence[Input], settings: TextClassificationPredict) -> Iterator[dict[str, Any]]:
        """Yield for each text its `codes`, their joint `probability`, and `candidates`: codes, each by itself.

        An input is a text, or has `text` and `lang`.
        """
        given = [{"text": each} if isinstance(each, str) else each for each in inputs]
        for start in range(0, len(given), _AT_ONCE):
            window = given[start : start + _AT_ONCE]
            full = [place for place, each in enumerate(window) if not self.loaded.is_empty(each["text"])]
            langs = [self._lang(window[place].get("lang") or settings.lang) for place in full]
            texts = [window[place]["text"] for place in full]
            rows = dict(
                zip(full, self.loaded.decoded(texts, langs, settings.predict_batch_size, settings.top_k), strict=True)
            )
            for place in range(len(window)):
                if place not in rows:
                    yield {"error": "holds no text"}
                    continue
                codes, probability, alone = rows[place]
                candidates = [{"code": code, "probability": p} for code, p in alone]
                yield {"codes": list(codes), "probability": probability, "candidates": candidates}

    def _lang(self, name: str | None) -> str:
        """Return a language as the training read it."""
        name = (name or "").strip()
        return (name.lower()[:8] if self.loaded.clean == "light" else name) or UNKNOWN_LANG
