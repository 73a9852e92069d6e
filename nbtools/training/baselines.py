"""What simple models of a text would reach: the yardsticks of a masked diffusion model, in nats per token.

A model that ignores all context can do no better than the word frequencies (unigram). One that reads from left to right
and knows one token back (bigram) is a first real model of the language.

Shape suffixes: N samples, D draws, T positions, V vocabulary.
"""

import numpy as np
import numpy.typing as npt

from nbtools.training.forward_process import Draws, Sequences

_MOST_COUNTED_TOKENS = 2**21
"""Frequencies are counted on so many training tokens at most."""


class Frequencies:
    """Counts of tokens and of pairs of neighbours, over the parts of the sequences that can be masked."""

    def __init__(self, sequences: Sequences, vocab_size: int) -> None:
        num_rows = max(_MOST_COUNTED_TOKENS // sequences.tokens_NT.shape[1], 1)
        tokens_NT = sequences.tokens_NT[:num_rows].astype(np.int64)
        answers_NT = np.arange(tokens_NT.shape[1]) >= sequences.starts_N[:num_rows, None]
        counts_V = np.bincount(tokens_NT[answers_NT], minlength=vocab_size) + 1.0
        self.unigram_V: npt.NDArray[np.float64] = counts_V / counts_V.sum()
        pairs = (tokens_NT[:, :-1] * vocab_size + tokens_NT[:, 1:])[answers_NT[:, 1:]]
        self._vocab_size = vocab_size
        self._pairs, self._pair_counts = np.unique(pairs, return_counts=True)
        before = self._pairs // vocab_size
        self._num_after_V = np.bincount(before, self._pair_counts, minlength=vocab_size)
        self._kinds_after_V = np.bincount(before, minlength=vocab_size)

    def bigram(self, before: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return p(token | the one before), smoothed by the method of Witten and Bell (1991).

        The more different tokens have followed, the more is left to the unigram frequencies.
        """
        wanted = before * self._vocab_size + tokens
        at = np.minimum(np.searchsorted(self._pairs, wanted), max(len(self._pairs) - 1, 0))
        found = self._pairs[at] == wanted if len(self._pairs) else np.zeros(wanted.shape, bool)
        counts = np.where(found, self._pair_counts[at] if len(self._pairs) else 0, 0)
        kinds = np.maximum(self._kinds_after_V[before], 1)
        smoothed: npt.NDArray[np.float64] = (counts + kinds * self.unigram_V[tokens]) / (
            self._num_after_V[before] + kinds
        )
        return smoothed


def losses(train: Sequences, evaluation: Sequences, draws: Draws, vocab_size: int) -> tuple[float, float]:
    """Return the unigram's and the bigram's loss at the masked positions of all draws, weighted as the model's.

    The bigram sees the true token before each one, as it would when it reads the text from left to right; at the first
    position of a sequence there is none, and it takes the unigram frequency.
    """
    frequencies = Frequencies(train, vocab_size)
    sums = np.zeros(2)
    for draws_B, tokens_BT, masked_BT in draws.batches(evaluation, 256):
        unigram_BT = frequencies.unigram_V[tokens_BT]
        bigram_BT = unigram_BT.copy()
        bigram_BT[:, 1:] = frequencies.bigram(tokens_BT[:, :-1], tokens_BT[:, 1:])
        weights_BT = masked_BT / draws.counts_D[draws_B][:, None]
        sums -= [(weights_BT * np.log(unigram_BT)).sum(), (weights_BT * np.log(bigram_BT)).sum()]
    unigram, bigram = sums / len(draws.rows_D)
    return float(unigram), float(bigram)
