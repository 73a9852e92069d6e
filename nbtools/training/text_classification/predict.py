"""Assigns codes to texts, for `nbtools predict` and from Python, on any torch device:

    Predictor("runs/ID").predict([{"text": "smed og husmand", "lang": "da"}], TextClassificationPredict())

yields `{"codes": ["61115", "83110"], "probability": 0.93, …}`. Nothing in a checkpoint is executed.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nbtools.data.text_classification.coded_texts import UNKNOWN_LANG, clean_text, read_descriptions
from nbtools.data.text_classification.codes import generic_code, hisco_code
from nbtools.project import expanded
from nbtools.recipes import TextClassificationConfig
from nbtools.recipes.predict_settings import Input, TextClassificationPredict
from nbtools.training.engine import checkpoint
from nbtools.training.text_classification.calibration import Calibration
from nbtools.training.text_classification.dataset import encode, encoded_batches
from nbtools.training.text_classification.model import open_classifier

_AT_ONCE = 2048
"""Texts among which those of equal width are found."""


class Predictor:
    """A loaded text classifier: the newest of a run's folder, of a checkpoint's folder, or of its `model/`.

    Raises:
        CheckpointError: there is none, it is damaged, or it is of another recipe.
    """

    def __init__(
        self, folder: str | Path, config: TextClassificationConfig | None = None, device: str | torch.device = "cpu"
    ) -> None:
        self.classifier = open_classifier(checkpoint.model_folder(folder))
        self.classifier.eval()  # type: ignore[no-untyped-call]
        self.classifier.to(device)  # type: ignore[arg-type]
        self.num_parameters = self.classifier.num_parameters()
        self._calibration = Calibration.of(self.classifier.config)
        self._is_cleaned = self.classifier.config.clean == "light"

    def predict(self, inputs: Sequence[Input], settings: TextClassificationPredict) -> Iterator[dict[str, Any]]:
        """Yield for each text its `codes`, their joint `probability`, and `candidates`: codes, each by itself.

        The probability is calibrated as the last evaluation of the training fitted it, and `is_accepted` tells whether
        it reaches the threshold. With `num_sets` above 1, `sets` are the likeliest ones of a beam search, best first.

        With a file in `descriptions`, the row's `descriptions` say what its codes mean.

        An input is a text, or has `text` and `lang`. A text that is longer than the model reads is cut, as in the
        training, and its `note` says so. Other texts of a batch change the last digits of probabilities only.
        """
        given = [{"text": each} if isinstance(each, str) else each for each in inputs]
        form = hisco_code if self.classifier.system.formatter == "hisco" else generic_code
        file = settings.descriptions
        described = {} if file is None else read_descriptions(expanded(file), form)
        for start in range(0, len(given), _AT_ONCE):
            window = given[start : start + _AT_ONCE]
            cleaned = [clean_text(each["text"]) if self._is_cleaned else each["text"] for each in window]
            full = [place for place, text in enumerate(cleaned) if text.strip()]
            langs = [self._lang(window[place].get("lang") or settings.lang) for place in full]
            texts = [window[place]["text"] for place in full]
            rows = dict(zip(full, self._decoded(texts, langs, settings), strict=True))
            for row in rows.values() if file is not None else ():
                row["descriptions"] = [described.get(code, "") for code in row["codes"]]
            for place in range(len(window)):
                yield rows.get(place, {"error": "holds no text"})

    def _lang(self, name: str | None) -> str:
        """Return a language as the training read it."""
        name = (name or "").strip()
        return (name.lower()[:8] if self._is_cleaned else name) or UNKNOWN_LANG

    def _decoded(
        self, texts: Sequence[str], langs: Sequence[str], settings: TextClassificationPredict
    ) -> list[dict[str, Any]]:
        """Return what is yielded for each text; texts of equal width share forward passes."""
        found: list[Any] = [None] * len(texts)
        codes, top_k = self.classifier.system.codes, settings.top_k
        longest = self.classifier.config.sequence_length
        texts = [clean_text(text) if self._is_cleaned else text for text in texts]
        with torch.inference_mode():
            for places, inputs_BT in encoded_batches(texts, langs, longest, settings.predict_batch_size):
                memory_BTH, mask_BT, pooled_BH = self.classifier.encode(inputs_BT.to(self.classifier.device))
                classes_BWK, log_p_BW = self.classifier.search(memory_BTH, mask_BT, settings.num_sets)
                best = self.classifier.flat(pooled_BH).float().sigmoid().topk(min(top_k, len(codes)))
                rows = zip(*(each.tolist() for each in (classes_BWK, log_p_BW.double().exp(), *best)), strict=True)
                for place, (classes_WK, p_W, p_N, numbers_N) in zip(places.tolist(), rows, strict=True):
                    likeliest = zip(numbers_N, p_N, strict=True)
                    candidates = [{"code": codes[number], "probability": p} for number, p in likeliest]
                    sets = self._sets(classes_WK, p_W)
                    accepted = {"is_accepted": sets[0]["probability"] >= self._calibration.threshold}
                    found[place] = {**sets[0], **accepted, "candidates": candidates}
                    found[place] |= {"sets": sets} if settings.num_sets > 1 else {}
        for row, text, lang in zip(found, texts, langs, strict=True):
            if (room := longest - len(encode("", lang, longest))) < len(text):
                row["note"] = f"the text is cut to {room:,} of {len(text):,} characters"
        return found

    def _sets(self, classes_WK: list[list[int]], p_W: list[float]) -> list[dict[str, Any]]:
        """Return the distinct sets of codes with their calibrated probabilities, best first.

        What the first one's probability leaves is divided among the others as they were before.
        """
        sums: dict[tuple[str, ...], float] = {}
        for classes_K, p in zip(classes_WK, p_W, strict=True):
            codes = tuple(sorted(self.classifier.system.codes[each] for each in classes_K if each >= 0))
            if p or not sums:  # fewer sets exist than were searched
                sums[codes] = sums.get(codes, 0.0) + p  # the same codes in another order
        ordered = sorted(sums.items(), key=lambda item: -item[1])
        p_N = torch.tensor([p for _, p in ordered], dtype=torch.float64)
        q_N = self._calibration(p_N)
        q_N[1:] = torch.minimum(q_N[1:], p_N[1:] * (1 - q_N[0]) / (1 - p_N[0]).clamp(1e-7))  # never above the first
        return [{"codes": list(codes), "probability": q} for (codes, _), q in zip(ordered, q_N.tolist(), strict=True)]
