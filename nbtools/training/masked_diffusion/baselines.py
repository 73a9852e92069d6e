"""Baselines of a masked diffusion model: losses of unigram and bigram models, in nats per token.

A model without context cannot be better than the unigram frequencies. The bigram model predicts each token from the one
before it.

Shape suffixes: N samples, D draws, T positions, V vocabulary, P pairs of neighbours.
"""

import numpy as np
import numpy.typing as npt

from nbtools.training.masked_diffusion.forward_process import EvaluationMasks, Sequences

_MOST_COUNTED_TOKENS = 2**21
"""Largest number of training tokens that are counted."""
_TOKENS_AT_ONCE = 2**16


class Frequencies:
    """Counts of tokens and of pairs of neighbours, over the parts of the sequences that can be masked."""

    def __init__(self, sequences: Sequences, vocab_size: int) -> None:
        length = sequences.tokens_NT.shape[1]
        num_rows = min(max(_MOST_COUNTED_TOKENS // length, 1), len(sequences))
        counts_V = np.ones(vocab_size)
        pairs_P, num_pairs = np.empty(num_rows * (length - 1), dtype=np.int64), 0
        rows_at_once = max(_TOKENS_AT_ONCE // length, 1)
        for first in range(0, num_rows, rows_at_once):
            rows = slice(first, min(first + rows_at_once, num_rows))
            tokens_NT = sequences.tokens_NT[rows].astype(np.int64)
            answers_NT = np.arange(length) >= sequences.starts_N[rows, None]
            counts_V += np.bincount(tokens_NT[answers_NT], minlength=vocab_size)
            pairs = (tokens_NT[:, :-1] * vocab_size + tokens_NT[:, 1:])[answers_NT[:, 1:]]
            pairs_P[num_pairs : num_pairs + len(pairs)] = pairs
            num_pairs += len(pairs)
        self.unigram_V: npt.NDArray[np.float64] = counts_V / counts_V.sum()
        self._vocab_size = vocab_size
        # Sparse: a table of all pairs of 50,000 words would be 20 GB. Sorted in place, as `np.unique` does not.
        pairs_P = pairs_P[:num_pairs]
        pairs_P.sort()
        is_last_P = np.ones(num_pairs, dtype=np.bool_)
        np.not_equal(pairs_P[1:], pairs_P[:-1], out=is_last_P[:-1])
        self._pairs = pairs_P[is_last_P]
        del pairs_P
        ends = np.append(0, np.flatnonzero(is_last_P) + 1).astype(np.int32)  # at most _MOST_COUNTED_TOKENS
        self._pair_counts = np.diff(ends)
        at_V = np.searchsorted(self._pairs, np.arange(vocab_size + 1) * vocab_size)
        self._num_after_V = np.diff(ends[at_V])
        self._kinds_after_V = np.diff(at_V)

    def bigram(self, before: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return p(token | the one before), smoothed by the method of Witten and Bell (1991).

        The more different tokens follow `before`, the larger the weight of the unigram frequencies.
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


def losses(train: Sequences, evaluation: Sequences, draws: EvaluationMasks, vocab_size: int) -> tuple[float, float]:
    """Return the unigram and the bigram loss at the masked positions of all draws, weighted as the model's loss.

    The bigram model sees the true token before each position; at the first position of a sequence it uses the unigram
    frequency.
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
