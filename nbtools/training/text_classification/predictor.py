"""Prediction with a trained text classifier: texts in, codes and their probability out.

    from nbtools.training.text_classification.predictor import Predictor

    Predictor.open("runs/ID").predict(["smed og husmand"], lang="da")    # [(("61115", "83110"), 0.93)]

It runs on any torch device. Weights are read by safetensors; nothing in a checkpoint is executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nbtools.data.corpus import Clean
from nbtools.data.text_classification.coded_texts import UNKNOWN_LANG, clean_text
from nbtools.errors import ConfigError, shown
from nbtools.training.engine import checkpoint
from nbtools.training.text_classification.dataset import encoded_batches
from nbtools.training.text_classification.model import TextClassifier, open_classifier

Prediction = tuple[tuple[str, ...], float]
"""The codes of a text in ascending order, and the probability that the model gives to exactly these."""


@dataclass(frozen=True)
class Predictor:
    """A loaded text classifier."""

    classifier: TextClassifier

    @classmethod
    def open(cls, path: str | Path, device: str | torch.device = "cpu") -> "Predictor":
        """Open the newest checkpoint of a run's folder, a checkpoint's folder, or its `model/`.

        Raises:
            CheckpointError: there is none, it is damaged, or it is of another recipe.
        """
        classifier = open_classifier(checkpoint.model_folder(path))
        classifier.eval()  # type: ignore[no-untyped-call]
        classifier.to(device)  # type: ignore[arg-type]
        return cls(classifier)

    def predict(
        self, texts: Sequence[str], lang: str | Sequence[str] | None = None, *, batch_size: int = 64
    ) -> list[Prediction]:
        """Return the codes of each text and their probability.

        Args:
            texts: in any language; longer ones are cut.
            lang: language of all texts, or one for each, as the training data names it; None if unknown.
            batch_size: texts per forward pass; affects only speed and memory.

        Raises:
            ConfigError: a text is empty, or there are not as many languages as texts.
        """
        if isinstance(texts, str):
            raise ConfigError(f"texts={shown(texts)}: is one text; give a list of them")
        langs = [lang or UNKNOWN_LANG] * len(texts) if lang is None or isinstance(lang, str) else list(lang)
        if len(langs) != len(texts):
            raise ConfigError(f"lang: {len(langs)} languages for {len(texts)} texts; give one, or one for each")
        empty = [place for place, text in enumerate(texts) if self.is_empty(text)]
        if empty:
            raise ConfigError(f"texts[{empty[0]}]={shown(texts[empty[0]])}: holds no text")
        return [(codes, probability) for codes, probability, _ in self.decoded(texts, langs, batch_size)]

    @property
    def clean(self) -> Clean:
        """How the training read texts; models from before that setting have no value."""
        return "none" if getattr(self.classifier.config, "clean", "light") == "none" else "light"

    def is_empty(self, text: str) -> bool:
        """Whether nothing of a text is left to read."""
        return not text.strip() or (self.clean == "light" and not clean_text(text))

    def decoded(
        self, texts: Sequence[str], langs: Sequence[str], batch_size: int, top_k: int = 0
    ) -> list[tuple[tuple[str, ...], float, list[tuple[str, float]]]]:
        """Return codes and probability of each text, and the `top_k` codes with the probability of each alone.

        Texts of equal width share forward passes.
        """
        found: list[Any] = [None] * len(texts)
        codes = self.classifier.system.codes
        longest = self.classifier.config.sequence_length
        with torch.inference_mode():
            for places, inputs_BT in encoded_batches(texts, langs, longest, batch_size, self.clean):
                memory_BTH, mask_BT, pooled_BH = self.classifier.encode(inputs_BT.to(self.classifier.device))
                classes_BK, probability_B = self.classifier.decode(memory_BTH, mask_BT)
                best = self.classifier.flat(pooled_BH).float().sigmoid().topk(min(top_k, len(codes)))
                rows = zip(classes_BK.tolist(), probability_B.tolist(), *(each.tolist() for each in best), strict=True)
                for place, (classes_K, probability, p_N, numbers_N) in zip(places.tolist(), rows, strict=True):
                    alone = [(codes[number], p) for number, p in zip(numbers_N, p_N, strict=True)]
                    found[place] = tuple(sorted(codes[each] for each in classes_K if each >= 0)), probability, alone
        return found
