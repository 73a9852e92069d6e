"""A random Markov chain: sequences whose true likelihood is known, so that their generator can be measured.

The logarithms of its transition probabilities are normal numbers of a standard deviation of 2.1 (up to a constant per
row), which makes some followers of a symbol frequent and most of them rare: with 30 symbols about 1.95 nats per symbol,
where evenly random ones have 3.4. The chain depends on the number of its symbols alone, and its sequences on
that and their length, not on a training's seed.

Shape suffixes: S symbols, N sequences, T positions.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Symbols = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_LOG_SCALE = 2.1
_CHUNK = 65_536
"""Sequences that are drawn at a time, so that memory stays small."""


@dataclass(frozen=True)
class MarkovChain:
    """Probabilities of the first symbol and of each symbol after another."""

    first_S: Floats
    followers_SS: Floats
    """Row: the previous symbol; column: the probability of the next one."""

    def sample(self, num_sequences: int, length: int, seed: int) -> Symbols:
        """Draw sequences; the first ones do not depend on how many are drawn. Shape (N, T)."""
        sequences_NT = np.empty((num_sequences, length), np.int32)
        for start in range(0, num_sequences, _CHUNK):
            count = min(_CHUNK, num_sequences - start)
            uniforms_NT = np.random.default_rng([seed, start]).random((_CHUNK, length))[:count]
            sequences_NT[start : start + count] = self._walked(uniforms_NT)
        return sequences_NT

    def _walked(self, uniforms_NT: Floats) -> Symbols:
        """Turn numbers in [0, 1) into sequences by inverting the cumulative probabilities."""
        walked_NT = np.empty(uniforms_NT.shape, np.int32)
        num_symbols = len(self.first_S)
        before_N = np.searchsorted(np.cumsum(self.first_S)[:-1], uniforms_NT[:, 0], side="right")
        walked_NT[:, 0] = before_N
        # The rows one after the other, each lifted by its number, are a single sorted list to search.
        lifted = (np.cumsum(self.followers_SS, axis=1)[:, :-1] + np.arange(num_symbols)[:, None]).reshape(-1)
        for place in range(1, uniforms_NT.shape[1]):
            found_N = np.searchsorted(lifted, before_N + uniforms_NT[:, place], side="right")
            # Rounding of the sum may push a number over the edge of its row.
            before_N = np.clip(found_N - before_N * (num_symbols - 1), 0, num_symbols - 1)
            walked_NT[:, place] = before_N
        return walked_NT

    def losses(self, sequences_NT: Symbols) -> Floats:
        """Return the negative log-likelihood of every sequence in nats per symbol. Shape (N,)."""
        logs_N = np.log(self.first_S)[sequences_NT[:, 0]]
        logs_N = logs_N + np.log(self.followers_SS)[sequences_NT[:, :-1], sequences_NT[:, 1:]].sum(axis=1)
        losses_N: Floats = -logs_N / sequences_NT.shape[1]
        return losses_N

    def entropy(self, length: int) -> float:
        """Return the entropy of the chain's sequences of this length, in nats per symbol: their expected loss."""
        before_S = self.first_S
        total = -float(before_S @ np.log(before_S))
        entropies_S = -(self.followers_SS * np.log(self.followers_SS)).sum(axis=1)
        for _ in range(1, length):
            total += float(before_S @ entropies_S)
            before_S = before_S @ self.followers_SS
        return total / length


@functools.lru_cache(maxsize=4)
def random_chain(num_symbols: int) -> MarkovChain:
    """Return the Markov chain with `num_symbols` symbols; it is always the same one."""
    generator = np.random.default_rng([num_symbols, 1])
    logits = generator.normal(scale=_LOG_SCALE, size=(num_symbols + 1, num_symbols))
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = weights / weights.sum(axis=1, keepdims=True)
    return MarkovChain(probabilities[0], probabilities[1:])
