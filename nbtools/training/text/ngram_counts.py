"""Counts of n-grams, and the probability of a token after a context, smoothed by the method of Witten and Bell (1991).

p(w | h) = (c(hw) + k(h) p(w | h')) / (c(h) + k(h)), where k(h) is how many different tokens followed the context h, and
h' is h without its first token (Chen and Goodman 1999, section 2.5): the more different tokens follow a context, the
larger the weight of the shorter one. No table of all pairs is made: of 50,000 words it would be 20 GB.

Shape suffixes: K counted n-grams, C contexts.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nbtools.training.text.vocabulary import Floats

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NGramCounts:
    """Counts of each token after each context, numbers; the empty context is 0."""

    keys_K: Keys
    """context * vocab_size + token, ascending."""
    counts_K: Keys
    contexts_C: Keys
    """Contexts, ascending."""
    totals_C: Keys
    """Number of tokens that followed each context."""
    kinds_C: Keys
    """Number of distinct tokens that followed each context."""

    @classmethod
    def of(cls, keys: Keys, vocab_size: int) -> "NGramCounts":
        """Count the n-grams of a text."""
        keys_K, counts_K = np.unique(keys, return_counts=True)
        contexts_C, first_C, kinds_C = np.unique(keys_K // vocab_size, return_index=True, return_counts=True)
        return cls(keys_K, counts_K, contexts_C, np.add.reduceat(counts_K, first_C), kinds_C)

    def interpolated(self, keys: Keys, shorter: Floats, vocab_size: int) -> Floats:
        """Return p(token | context) of these n-grams from `shorter`, their estimates by the shorter context."""
        counts = _found(self.keys_K, self.counts_K, keys)
        totals = _found(self.contexts_C, self.totals_C, keys // vocab_size)
        kinds = _found(self.contexts_C, self.kinds_C, keys // vocab_size)
        mixed: Floats = np.where(totals > 0, (counts + kinds * shorter) / np.maximum(totals + kinds, 1), shorter)
        return mixed


def _found(sorted_K: Keys, values_K: Keys, wanted: Keys) -> Keys:
    """Return the value of each wanted key, 0 for a missing key."""
    if not len(sorted_K):
        return np.zeros_like(wanted)
    at = np.minimum(np.searchsorted(sorted_K, wanted), len(sorted_K) - 1)
    found: Keys = np.where(sorted_K[at] == wanted, values_K[at], 0)
    return found
