"""N-grams of the LLM GAN's texts: a reference model where the true likelihood is unknown, copies, and repetitions.

The n-grams of the reference model are counted on held-out human texts. Neither network is trained on these, so a
generator that only exploits its discriminator does not score better here.

Shape suffixes: N texts, T positions, K n-grams.
"""

import numpy as np
import numpy.typing as npt

from nbtools.training.text.ngram_counts import Keys, NGramCounts
from nbtools.training.text.vocabulary import Alphabet, Floats, Tokens

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no token is lost from a hash."""
_ORDER = 3
"""Length of the longest n-gram: a vocabulary of a million words to the power of four exceeds 64 bits."""


class NGrams:
    """Interpolated n-grams with the smoothing of Witten and Bell; the recursion ends with 1 / vocabulary.

    Texts are padded on the left with a begin token up to the length of a context. Each ends with its end of text or its
    last position; later positions are ignored.
    """

    def __init__(self, texts_NT: Tokens, alphabet: Alphabet) -> None:
        self._alphabet = alphabet
        self.vocab_size = alphabet.vocab_size
        is_token_NT = alphabet.mask(texts_NT)
        self._counts = [NGramCounts.of(keys_NT[is_token_NT], self.vocab_size) for keys_NT in self._keys(texts_NT)]

    def losses(self, texts_NT: Tokens) -> Floats:
        """Return the negative log-likelihood of every text in nats per token, its end included. Shape (N,)."""
        estimate_NT: Floats = np.full(texts_NT.shape, 1 / self.vocab_size)
        for counts, keys_NT in zip(self._counts, self._keys(texts_NT), strict=True):
            estimate_NT = counts.interpolated(keys_NT, estimate_NT, self.vocab_size)
        is_token_NT = self._alphabet.mask(texts_NT)
        sums_N = np.where(is_token_NT, -np.log(estimate_NT), 0.0).sum(1)
        losses_N: Floats = sums_N / np.maximum(is_token_NT.sum(1), 1)
        return losses_N

    def _keys(self, texts_NT: Tokens) -> list[Keys]:
        """Return the numbers of the n-grams that end at each position, for n = 1, 2, … Shape (N, T) each."""
        num_texts, length = texts_NT.shape
        before, base = _ORDER - 1, self.vocab_size + 1
        padded = np.full((num_texts, before + length), self.vocab_size, dtype=np.int64)
        padded[:, before:] = texts_NT
        keys, context = [], np.zeros((num_texts, length), dtype=np.int64)
        for n in range(1, _ORDER + 1):
            keys.append(context * self.vocab_size + padded[:, before:])
            if n < _ORDER:
                context = context + base ** (n - 1) * padded[:, before - n : before - n + length]
        return keys


class Copies:
    """Search for n-grams of a text in the training texts.

    Their share is the copy rate, one minus the novelty of McCoy et al. (2023, arXiv 2111.09509), who compare it with
    that of held-out human texts. N-grams are compared by 64-bit hashes; those of the training texts take at most 8
    bytes per token.
    """

    LENGTH = 5
    """Tokens of an n-gram, unless `sequence_length` is less; a text with fewer has none."""

    def __init__(self, texts_NT: Tokens, alphabet: Alphabet) -> None:
        self._alphabet = alphabet
        self._length = min(self.LENGTH, texts_NT.shape[1])
        self._known_K = np.unique(self._hashes(texts_NT))

    def count(self, texts_NT: Tokens) -> tuple[int, int]:
        """Return how many n-grams of some texts occur in the training texts, and how many there are."""
        hashes = self._hashes(texts_NT)
        at = np.minimum(np.searchsorted(self._known_K, hashes), len(self._known_K) - 1)
        return int((self._known_K[at] == hashes).sum()) if len(self._known_K) else 0, len(hashes)

    def _hashes(self, texts_NT: Tokens) -> npt.NDArray[np.uint64]:
        """Return a hash of each n-gram that is inside a text, its end included."""
        is_inside_NK = self._alphabet.mask(texts_NT)[:, self._length - 1 :]
        inside: npt.NDArray[np.uint64] = _hashes(texts_NT, self._length)[is_inside_NK]
        return inside


def _hashes(texts_NT: Tokens, length: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each n-gram of `length` tokens, K = T - length + 1 of each text. Shape (N, K)."""
    num_ngrams = texts_NT.shape[1] - length + 1
    hashes_NK = np.zeros((len(texts_NT), num_ngrams), dtype=np.uint64)
    for place in range(length):
        hashes_NK = hashes_NK * _FACTOR + texts_NT[:, place : place + num_ngrams].astype(np.uint64)
    return hashes_NK


def self_bleu(texts_NT: Tokens, alphabet: Alphabet, longest: int = 4) -> float:
    """Return the mean BLEU of each text with all others as its references, its end of text left out.

    0 for texts without a common token, 1 for equal ones. Self-BLEU: Zhu et al. 2018, arXiv 1802.01886; BLEU: Papineni
    et al. 2002, here of tokens, with n-grams up to `longest`, or `sequence_length` if that is less. Where no n-gram
    matches, 0.1 does: smoothing 1 of Chen and Cherry 2014.
    """
    is_word_NT = alphabet.mask(texts_NT)
    if alphabet.eos_id is not None:
        is_word_NT = is_word_NT & (texts_NT != alphabet.eos_id)
    lengths_N, longest = is_word_NT.sum(1), min(longest, texts_NT.shape[1])
    log_bleu_N: Floats = np.minimum(1 - _closest(lengths_N) / np.maximum(lengths_N, 1), 0)
    for length in range(1, longest + 1):
        matches_N = _matches(_hashes(texts_NT, length), is_word_NT[:, length - 1 :])
        if length == 1:
            log_bleu_N[matches_N == 0] = -np.inf
        totals_N = np.maximum(lengths_N - length + 1, 1)
        log_bleu_N += np.log(np.where(matches_N > 0, matches_N, 0.1) / totals_N) / longest
    return float(np.exp(log_bleu_N).mean())


def _matches(hashes_NK: npt.NDArray[np.uint64], is_inside_NK: npt.NDArray[np.bool_]) -> Keys:
    """Return how many n-grams of each text are in another one, each at most as often as in any other. Shape (N,)."""
    grams, numbers = np.unique(hashes_NK[is_inside_NK], return_inverse=True)
    pairs, counts = np.unique(np.nonzero(is_inside_NK)[0] * len(grams) + numbers, return_counts=True)
    texts, numbers = np.divmod(pairs, max(len(grams), 1))
    # Of each n-gram the largest count, the text that has it, and the largest count in another text.
    order = np.lexsort((-counts, numbers))
    firsts = np.searchsorted(numbers[order], np.arange(len(grams)))
    seconds = np.minimum(firsts + 1, len(order) - 1)
    has_second = numbers[order][seconds] == np.arange(len(grams))
    has_second &= seconds > firsts
    second = np.where(has_second, counts[order][seconds], 0)
    is_most = texts == texts[order][firsts][numbers]
    most = np.where(is_most, second[numbers], counts[order][firsts][numbers])
    matches: Keys = np.bincount(texts, np.minimum(counts, most), len(hashes_NK)).astype(np.int64)
    return matches


def _closest(lengths_N: Keys) -> Keys:
    """Return for each length that of another text which is closest, the shorter one of two. Shape (N,)."""
    kinds, numbers_N, counts = np.unique(lengths_N, return_inverse=True, return_counts=True)
    closest = [
        min(kinds if count > 1 else kinds[kinds != own], key=lambda other: (abs(other - own), other))
        for own, count in zip(kinds.tolist(), counts, strict=True)
    ]
    found: Keys = np.array(closest, dtype=np.int64)[numbers_N]
    return found
