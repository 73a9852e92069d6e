"""Prediction with a trained text classifier: texts in, codes and their probability out.

    from nbtools.training.text_classification.predictor import Predictor

    Predictor.open("runs/ID").predict(["smed og husmand"], lang="da")    # [(("61115", "83110"), 0.93)]

It runs on any torch device. Weights are read by safetensors; nothing in a checkpoint is executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
        was_clean = getattr(self.classifier.config, "clean", "light")  # in training; models from before have no value
        clean: Clean = "none" if was_clean == "none" else "light"
        empty = [
            place for place, text in enumerate(texts) if not text.strip() or (clean == "light" and not clean_text(text))
        ]
        if empty:
            raise ConfigError(f"texts[{empty[0]}]={shown(texts[empty[0]])}: holds no text")
        found: list[Prediction] = [((), 0.0)] * len(texts)
        longest = self.classifier.config.sequence_length
        with torch.inference_mode():
            for places, inputs_BT in encoded_batches(texts, langs, longest, batch_size, clean):
                memory_BTH, mask_BT, _ = self.classifier.encode(inputs_BT.to(self.classifier.device))
                classes_BK, probability_B = self.classifier.decode(memory_BTH, mask_BT)
                for place, classes_K, probability in zip(
                    places.tolist(), classes_BK.tolist(), probability_B.tolist(), strict=True
                ):
                    codes = sorted(self.classifier.system.codes[number] for number in classes_K if number >= 0)
                    found[place] = (tuple(codes), probability)
        return found
