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


def test_self_bleu_is_the_one_computed_by_hand() -> None:
    # Three of four tokens, two of three pairs, one of two triples, and 0.1 for the missing four.
    alike = (3 / 4 * 2 / 3 * 1 / 2 * 0.1) ** 0.25
    assert of_texts([2, 3, 4, 5], [2, 3, 4, 6], [7, 8]) == pytest.approx((2 * alike + 0) / 3)
    # A repeated token counts as often as one other text has it; [2, 2, 3, 4] has (2,) and (2, 2), each at its most.
    repeated = (2 / 4 * 1 / 3 * 0.1 / 2 * 0.1 / 1) ** 0.25
    back = (2 / 4 * 1 / 3 * 0.1 / 2 * 0.1 / 1) ** 0.25
    assert of_texts([2, 2, 2, 2], [2, 2, 3, 4]) == pytest.approx((repeated + back) / 2)
    # A text half as long as the other one is penalized by e^(1 - 4/2).
    short, long = math.exp(-1) * (0.1 * 0.1) ** 0.25, (2 / 4 * 1 / 3 * 0.1 / 2 * 0.1 / 1) ** 0.25
    assert of_texts([2, 3], [2, 3, 4, 5]) == pytest.approx((short + long) / 2)


def test_equal_texts_have_a_self_bleu_of_1_and_different_ones_of_0() -> None:
    assert of_texts(*[[2, 3, 4, 5, 6]] * 3) == pytest.approx(1)
    assert of_texts([2, 3, 4], [5, 6, 7], []) == 0


@given(st.lists(st.lists(st.integers(2, 5), max_size=8), min_size=2, max_size=6))
def test_self_bleu_is_the_mean_bleu_with_the_others_as_references(texts: list[list[int]]) -> None:
    expected = [bleu_by_definition(text, texts[:at] + texts[at + 1 :]) for at, text in enumerate(texts)]
    assert of_texts(*texts) == pytest.approx(sum(expected) / len(expected))
