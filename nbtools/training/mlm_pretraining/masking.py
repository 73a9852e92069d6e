"""BERT's masking (Devlin et al. 2018, arXiv 1810.04805), independent of the number of ranks.

Shape suffixes: N samples, B batch, T positions, K predicted positions, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from nbtools.training.engine.sampler import IGNORED, Randoms, randoms
from nbtools.training.mlm_pretraining.dataset import MLMText, Rows
from nbtools.training.text.tokenized import Tokens

Integers = npt.NDArray[np.int64]
Batch = tuple[Tensor, Tensor, Tensor]
"""inputs_BT, positions_BK (ascending), labels_BK."""

_MOST_COUNTED_TOKENS = 2**21


@dataclass(frozen=True)
class Masking:
    """BERT's masking of exactly `num_predicted` positions per sequence, chosen among the ordinary tokens.

    A fixed number keeps shapes static, and the mean over equal batches is the mean over their union: two ranks, or four
    accumulated passes, give the gradient of one large batch. A sequence with fewer ordinary tokens predicts fewer; its
    remaining labels are `IGNORED`.
    """

    num_predicted: int
    mask_id: int
    maskable_ids: Integers
    """All tokens but the special ones: those that are predicted, and drawn as random replacements."""
    vocab_size: int
    seed: int

    @classmethod
    def of(cls, text: MLMText, mask_probability: float, seed: int) -> "Masking":
        """Return the masking for the sequences of `text`."""
        num_predicted = max(1, round(mask_probability * text.train.shape[1]))
        special, size = set(text.tokenizer.all_special_ids), len(text.tokenizer)
        maskable_ids = np.array([token for token in range(size) if token not in special], dtype=np.int64)
        return cls(num_predicted, text.tokenizer.mask_token_id, maskable_ids, size, seed)

    def for_training(self, tokens_BT: Tokens, samples_B: Integers, epoch: int) -> Batch:
        """Mask 80% of the chosen positions, replace 10% by random words, keep 10%."""
        chosen_BT = randoms(self.seed, "position", epoch, samples_B, tokens_BT.shape[1])
        positions_BK, labels_BK = self._choose(tokens_BT, chosen_BT)
        fate_BK = randoms(self.seed, "fate", epoch, samples_B, self.num_predicted) / 2.0**64
        word_BK = randoms(self.seed, "word", epoch, samples_B, self.num_predicted)
        random_BK = self.maskable_ids[word_BK % np.uint64(len(self.maskable_ids))]
        shown_BK = np.where(fate_BK < 0.8, self.mask_id, np.where(fate_BK < 0.9, random_BK, labels_BK))
        return self._tensors(tokens_BT, positions_BK, labels_BK, shown_BK)

    def for_evaluation(self, tokens_BT: Tokens, samples_B: Integers) -> Batch:
        """Mask all of the chosen positions, which are the same at each evaluation.

        A visible token would give a model without context a low loss.
        """
        chosen_BT = randoms(self.seed, "evaluation", 0, samples_B, tokens_BT.shape[1])
        positions_BK, labels_BK = self._choose(tokens_BT, chosen_BT)
        return self._tensors(tokens_BT, positions_BK, labels_BK, np.full_like(labels_BK, self.mask_id))

    def _choose(self, tokens_BT: Tokens, randoms_BT: Randoms) -> tuple[Integers, Integers]:
        ordinary_BT = np.isin(tokens_BT, self.maskable_ids)
        ranked_BT = np.where(ordinary_BT, randoms_BT >> np.uint64(1), np.uint64(2**64 - 1))
        chosen_BK = np.argpartition(ranked_BT, self.num_predicted - 1, axis=1)[:, : self.num_predicted]
        positions_BK = np.sort(chosen_BK, axis=1)
        labels_BK = np.take_along_axis(tokens_BT, positions_BK, axis=1).astype(np.int64)
        labels_BK[~np.take_along_axis(ordinary_BT, positions_BK, axis=1)] = IGNORED
        return positions_BK, labels_BK

    def _tensors(self, tokens_BT: Tokens, positions_BK: Integers, labels_BK: Integers, shown_BK: Integers) -> Batch:
        inputs_BT = tokens_BT.astype(np.int64)
        kept_BK = np.take_along_axis(inputs_BT, positions_BK, axis=1)
        np.put_along_axis(inputs_BT, positions_BK, np.where(labels_BK == IGNORED, kept_BK, shown_BK), axis=1)
        return torch.from_numpy(inputs_BT), torch.from_numpy(positions_BK), torch.from_numpy(labels_BK)


class MaskedTraining(Dataset[Any]):
    """Masked training batches, indexed by (epoch, global sample indices)."""

    def __init__(self, tokens_NT: Rows, masking: Masking) -> None:
        self.tokens_NT = tokens_NT
        self.masking = masking

    def __getitem__(self, key: tuple[int, Integers]) -> Batch:
        epoch, samples_B = key
        return self.masking.for_training(self.tokens_NT[samples_B], samples_B, epoch)


def unigram_log_probabilities(tokens_NT: Rows, maskable_ids: Integers, vocab_size: int) -> Tensor:
    """Return log p(word) from add-one smoothed training counts over the ordinary words; -inf elsewhere. Shape (V,).

    The first two million tokens are counted.
    """
    counted_BT = tokens_NT[: max(_MOST_COUNTED_TOKENS // tokens_NT.shape[1], 1)]
    counts_V = np.bincount(counted_BT.reshape(-1), minlength=vocab_size)[maskable_ids] + 1.0
    log_p_V = np.full(vocab_size, -np.inf)
    log_p_V[maskable_ids] = np.log(counts_V / counts_V.sum())
    return torch.from_numpy(log_p_V)
