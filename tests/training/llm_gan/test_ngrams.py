"""Counted n-grams: probabilities that add up, smoothing as its paper has it, and a measure that tells good from bad."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.training.llm_gan.ngrams import Copies, NGrams, self_bleu
from nbtools.training.text.vocabulary import Alphabet

PAD, EOS, V = 0, 1, 6


def rows(*texts: list[int], length: int = 5) -> npt.NDArray[np.int32]:
    return np.array([[*text, *[PAD] * (length - len(text))] for text in texts], dtype=np.int32)


TEXT = st.lists(st.integers(2, V - 1), max_size=4).map(lambda tokens: [*tokens, EOS])


def by_hand(texts: list[list[int]], text: list[int], order: int = 3) -> float:
    """The same by counting in plain Python."""

    def probability(context: tuple[int, ...], token: int, n: int) -> float:
        if n == 0:
            return 1 / V
        followed = Counter(
            (*[V] * order, *other)[place + order]
            for other in texts
            for place in range(len(other))
            if (*[V] * order, *other)[place + order - n + 1 : place + order] == context[len(context) - n + 1 :]
        )
        shorter = probability(context, token, n - 1)
        if not followed:
            return shorter
        return (followed[token] + len(followed) * shorter) / (followed.total() + len(followed))

    padded = (*[V] * order, *text)
    terms = [-np.log(probability(padded[place + 1 : place + order], token, order)) for place, token in enumerate(text)]
    return float(np.mean(terms))


@given(texts=st.lists(TEXT, min_size=1, max_size=8), text=TEXT)
def test_every_loss_is_that_of_counting_by_hand(texts: list[list[int]], text: list[int]) -> None:
    model = NGrams(rows(*texts), Alphabet(V, PAD, EOS))
    assert model.losses(rows(text))[0] == pytest.approx(by_hand(texts, text))


def test_nothing_behind_the_end_counts_and_a_cut_text_needs_none() -> None:
    texts = rows([2, 3, EOS], [3, 2, 4, 5, 2])
    model = NGrams(texts, Alphabet(V, PAD, EOS))
    noisy = texts.copy()
    noisy[0, 3:] = [5, EOS]
    assert np.array_equal(model.losses(noisy), model.losses(texts))
    assert np.array_equal(NGrams(noisy, Alphabet(V, PAD, EOS)).losses(texts), model.losses(texts))
    assert model.losses(rows([EOS]))[0] > 0


def test_a_vocabulary_of_a_million_words_overflows_nothing() -> None:
    vocab_size = 1_000_000
    texts = np.array([[vocab_size - 1, vocab_size - 2, vocab_size - 3, EOS]], dtype=np.int32)
    model = NGrams(texts, Alphabet(vocab_size, PAD, EOS))
    again, other = model.losses(texts)[0], model.losses(texts - np.int32([0, 0, 1, 0]))[0]
    assert 0 < again < 1 < other


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.promise("safety-copies")
@given(
    texts=st.lists(st.lists(st.integers(2, 4), max_size=8), min_size=1, max_size=6),
    text=st.lists(st.integers(2, 4), max_size=8),
)
def test_copies_are_those_found_by_hand_and_padding_is_none(texts: list[list[int]], text: list[int]) -> None:
    def ngrams(tokens: list[int]) -> list[tuple[int, ...]]:
        ended = [*tokens, EOS]
        return [tuple(ended[place : place + 5]) for place in range(len(ended) - 4)]

    known = {ngram for each in texts for ngram in ngrams(each)}
    copies = Copies(rows(*([*each, EOS] for each in texts), length=9), Alphabet(5, PAD, EOS))
    expected = sum(ngram in known for ngram in ngrams(text)), len(ngrams(text))
    assert copies.count(rows([*text, EOS], length=9)) == expected


def test_short_sequences_are_compared_whole() -> None:
    copies = Copies(np.array([[2, 3], [3, 4]], dtype=np.int32), Alphabet(6, PAD, None))
    assert copies.count(np.array([[2, 3], [4, 3]], dtype=np.int32)) == (1, 2)


# --- self-BLEU ------------------------------------------------------------------------------------


def bleu_by_definition(text: list[int], references: list[list[int]]) -> float:
    """BLEU-4 of Papineni et al. 2002, with the brevity penalty of the closest reference and 0.1 for no match."""
    if not set(text) & {token for reference in references for token in reference}:
        return 0.0
    _, closest = min((abs(len(reference) - len(text)), len(reference)) for reference in references)
    log = min(0.0, 1 - closest / len(text))
    for n in range(1, 5):
        counts, *others = (
            Counter(tuple(each[place : place + n]) for place in range(len(each) - n + 1))
            for each in (text, *references)
        )
        matches = sum(min(count, max(other[gram] for other in others)) for gram, count in counts.items())
        log += math.log((matches or 0.1) / max(len(text) - n + 1, 1)) / 4
    return math.exp(log)


def of_texts(*texts: list[int]) -> float:
    return self_bleu(rows(*([*each, EOS] for each in texts), length=9), Alphabet(12, PAD, EOS))


@given(st.lists(st.lists(st.integers(2, 5), max_size=8), min_size=2, max_size=6))
def test_self_bleu_is_the_mean_bleu_with_the_others_as_references(texts: list[list[int]]) -> None:
    expected = [bleu_by_definition(text, texts[:at] + texts[at + 1 :]) for at, text in enumerate(texts)]
    assert of_texts(*texts) == pytest.approx(sum(expected) / len(expected))
