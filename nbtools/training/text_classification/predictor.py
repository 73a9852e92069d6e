"""A trained text classifier at work: texts in, codes and their probability out.

    from nbtools.training.text_classification.predictor import Predictor

    Predictor.open("runs/ID").predict(["smed og husmand"], lang="da")    # [(("61115", "83110"), 0.93)]

It runs wherever torch does, on the CPU too. Weights are read by safetensors, and nothing in a checkpoint is executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nbtools.data.text_classification.coded_texts import UNKNOWN_LANG, clean_text
from nbtools.errors import ConfigError, shown
from nbtools.training.engine import checkpoint
from nbtools.training.text_classification.dataset import encoded_batches
from nbtools.training.text_classification.model import Mixer, open_mixer

Prediction = tuple[tuple[str, ...], float]
"""The codes of a text in ascending order, and the probability that the model gives to exactly these."""


@dataclass(frozen=True)
class Predictor:
    """A mixer that is ready to read."""

    mixer: Mixer
    device: torch.device

    @classmethod
    def open(cls, path: str | Path, device: str | torch.device = "cpu") -> "Predictor":
        """Open the newest checkpoint of a run's folder, a checkpoint's folder, or its `model/`.

        Raises:
            CheckpointError: there is none, it is damaged, or it is of another recipe.
        """
        mixer = open_mixer(checkpoint.model_folder(path))
        mixer.eval()  # type: ignore[no-untyped-call]
        mixer.to(device)  # type: ignore[arg-type]
        return cls(mixer, torch.device(device))

    def predict(
        self, texts: Sequence[str], lang: str | Sequence[str] | None = None, *, batch_size: int = 64
    ) -> list[Prediction]:
        """Return the codes of each text and their probability.

        Args:
            texts: in any language; what is longer than the model's input is cut.
            lang: language of all texts, or one for each, as the training data names it; None where it is not known.
            batch_size: texts per forward pass; changes nothing but speed and memory.

        Raises:
            ConfigError: a text is empty, or there are not as many languages as texts.
        """
        if isinstance(texts, str):
            raise ConfigError(f"texts={shown(texts)}: is one text; give a list of them")
        langs = [lang or UNKNOWN_LANG] * len(texts) if lang is None or isinstance(lang, str) else list(lang)
        if len(langs) != len(texts):
            raise ConfigError(f"lang: {len(langs)} languages for {len(texts)} texts; give one, or one for each")
        empty = [place for place, text in enumerate(texts) if not clean_text(text)]
        if empty:
            raise ConfigError(f"texts[{empty[0]}]={shown(texts[empty[0]])}: holds no text")
        found: list[Prediction] = [((), 0.0)] * len(texts)
        longest = self.mixer.config.sequence_length
        with torch.inference_mode():
            for places, inputs_BT in encoded_batches(texts, langs, longest, batch_size):
                memory_BTH, mask_BT, _ = self.mixer.read(inputs_BT.to(self.device))
                classes_BK, probability_B = self.mixer.decode(memory_BTH, mask_BT)
                for place, classes_K, probability in zip(
                    places.tolist(), classes_BK.tolist(), probability_B.tolist(), strict=True
                ):
                    codes = sorted(self.mixer.system.codes[number] for number in classes_K if number >= 0)
                    found[place] = (tuple(codes), probability)
        return found
