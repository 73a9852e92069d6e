"""Counted n-grams: probabilities that add up, smoothing as its paper has it, and a measure that tells good from bad."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.training.llm_gan.ngrams import Copies, NGrams
from nbtools.training.text.vocabulary import Alphabet

PAD, EOS, V = 0, 1, 6


def rows(*texts: list[int], length: int = 5) -> npt.NDArray[np.int32]:
    return np.array([[*text, *[PAD] * (length - len(text))] for text in texts], dtype=np.int32)


TEXT = st.lists(st.integers(2, V - 1), max_size=4).map(lambda tokens: [*tokens, EOS])


def by_hand(texts: list[list[int]], text: list[int], order: int) -> float:
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


@given(texts=st.lists(TEXT, min_size=1, max_size=8), text=TEXT, order=st.integers(1, 3))
def test_every_loss_is_that_of_counting_by_hand(texts: list[list[int]], text: list[int], order: int) -> None:
    model = NGrams(rows(*texts), Alphabet(V, PAD, EOS), order)
    assert model.losses(rows(text))[0] == pytest.approx(by_hand(texts, text, order))


@given(texts=st.lists(TEXT, min_size=1, max_size=8), context=st.lists(st.integers(2, V - 1), max_size=3))
def test_the_probabilities_of_what_may_follow_add_up_to_one(texts: list[list[int]], context: list[int]) -> None:
    model = NGrams(rows(*texts), Alphabet(V, -1, None))  # without an end, every token is one like the others
    following = np.array([[*context, token] for token in range(V)], dtype=np.int32)
    before = model.losses(np.array([context], dtype=np.int32))[0] * len(context) if context else 0.0
    assert np.exp(before - model.losses(following) * (len(context) + 1)).sum() == pytest.approx(1)


def test_nothing_behind_the_end_counts_and_a_cut_text_needs_none() -> None:
    texts = rows([2, 3, EOS], [3, 2, 4, 5, 2])
    model = NGrams(texts, Alphabet(V, PAD, EOS))
    noisy = texts.copy()
    noisy[0, 3:] = [5, EOS]
    assert np.array_equal(model.losses(noisy), model.losses(texts))
    assert np.array_equal(NGrams(noisy, Alphabet(V, PAD, EOS)).losses(texts), model.losses(texts))
    assert model.losses(rows([EOS]))[0] > 0


def test_the_longer_the_context_the_better_texts_of_the_same_kind_and_the_worse_random_ones_are_told() -> None:
    generator = np.random.default_rng(0)
    transitions = generator.dirichlet(np.full(20, 0.1), size=20)

    def sample(count: int) -> npt.NDArray[np.int32]:
        texts = np.zeros((count, 12), dtype=np.int32)
        for text in texts:
            state = generator.integers(20)
            for place in range(12):
                state = generator.choice(20, p=transitions[state])
                text[place] = state
        return texts

    counted, same = sample(1000), sample(200)
    random = generator.integers(0, 20, (200, 12), dtype=np.int32)
    losses = [NGrams(counted, Alphabet(20, -1, None), order).losses(same).mean() for order in (1, 2)]
    assert losses[1] < losses[0] - 0.5
    model = NGrams(counted, Alphabet(20, -1, None))
    assert model.losses(same).mean() < losses[0] - 0.5
    assert model.losses(random).mean() > model.losses(same).mean() + 2


def test_a_vocabulary_of_a_million_words_overflows_nothing() -> None:
    vocab_size = 1_000_000
    texts = np.array([[vocab_size - 1, vocab_size - 2, vocab_size - 3, EOS]], dtype=np.int32)
    model = NGrams(texts, Alphabet(vocab_size, PAD, EOS))
    again, other = model.losses(texts)[0], model.losses(texts - np.int32([0, 0, 1, 0]))[0]
    assert 0 < again < 1 < other


# --- copies ---------------------------------------------------------------------------------------


@pytest.mark.promise("safety-copies")
def test_a_copied_text_has_known_n_grams_and_another_one_has_none() -> None:
    rng = np.random.default_rng(0)
    train, other = (rng.integers(2, 1000, (50, 20)).astype(np.int32) for _ in range(2))
    copies = Copies(train, Alphabet(1000, PAD, EOS))
    assert copies.count(train[:10]) == (10 * 16, 10 * 16)
    assert copies.count(other) == (0, 50 * 16)
    half = np.concatenate([train[:1, 3:13], other[:1, :10]], axis=1)
    assert copies.count(half) == (6, 16), "the order of the tokens counts, their place does not"
    assert copies.count(train[:1, ::-1].copy()) == (0, 16)


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
