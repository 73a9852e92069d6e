"""Baselines of a masked diffusion model: losses of unigram and bigram models, in nats per token.

A model without context cannot be better than the unigram frequencies. The bigram model predicts each token from the one
before it.

Shape suffixes: N samples, D draws, T positions, V vocabulary, P pairs of neighbours.
"""

import numpy as np
import numpy.typing as npt

from nbtools.training.masked_diffusion.forward_process import EvaluationMasks
from nbtools.training.masked_diffusion.sequences import RaggedPairs, Sequences
from nbtools.training.text.ngram_counts import NGramCounts

_MOST_COUNTED_TOKENS = 2**21
"""Largest number of training tokens that are counted."""
_TOKENS_AT_ONCE = 2**16


class Frequencies:
    """Counts of tokens and of pairs of neighbours, over the parts of the sequences that can be masked."""

    def __init__(self, sequences: Sequences | RaggedPairs, vocab_size: int) -> None:
        lengths_N = sequences.lengths_N
        num_rows = min(max(int(_MOST_COUNTED_TOKENS // lengths_N.mean()), 1), len(sequences))
        counts_V = np.ones(vocab_size)
        pairs_P, num_pairs = np.empty((lengths_N[:num_rows] - 1).sum(), dtype=np.int64), 0
        rows_at_once = max(int(_TOKENS_AT_ONCE // lengths_N.max()), 1)
        for first in range(0, num_rows, rows_at_once):
            rows = np.arange(first, min(first + rows_at_once, num_rows))
            tokens_NT = sequences.rows(rows)
            positions_T = np.arange(tokens_NT.shape[1])
            answers_NT = (positions_T >= sequences.starts_N[rows, None]) & (positions_T < lengths_N[rows, None])
            counts_V += np.bincount(tokens_NT[answers_NT], minlength=vocab_size)
            pairs = (tokens_NT[:, :-1] * vocab_size + tokens_NT[:, 1:])[answers_NT[:, 1:]]
            pairs_P[num_pairs : num_pairs + len(pairs)] = pairs
            num_pairs += len(pairs)
        self.unigram_V: npt.NDArray[np.float64] = counts_V / counts_V.sum()
        self._vocab_size = vocab_size
        self._pairs = NGramCounts.of(pairs_P[:num_pairs], vocab_size)

    def bigram(self, before: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return p(token | the one before), smoothed by the unigram frequencies."""
        return self._pairs.interpolated(before * self._vocab_size + tokens, self.unigram_V[tokens], self._vocab_size)


def losses(
    train: Sequences | RaggedPairs, evaluation: Sequences | RaggedPairs, draws: EvaluationMasks, vocab_size: int
) -> tuple[float, float]:
    """Return the unigram and the bigram loss at the masked positions of all draws, weighted as the model's loss.

    The bigram model sees the true token before each position; at the first position of a sequence it uses the unigram
    frequency.
    """
    frequencies = Frequencies(train, vocab_size)
    sums = np.zeros(2)
    for draws_B, tokens_BT, masked_BT, _ in draws.batches(evaluation, 256):
        unigram_BT = frequencies.unigram_V[tokens_BT]
        bigram_BT = unigram_BT.copy()
        bigram_BT[:, 1:] = frequencies.bigram(tokens_BT[:, :-1], tokens_BT[:, 1:])
        weights_BT = masked_BT / draws.counts_D[draws_B][:, None]
        sums -= [(weights_BT * np.log(unigram_BT)).sum(), (weights_BT * np.log(bigram_BT)).sum()]
    unigram, bigram = sums / len(draws.rows_D)
    return float(unigram), float(bigram)
