"""The Markov chain: its own sequences, their true likelihood, and what that is in expectation."""

import itertools
import math

import numpy as np
import pytest

from nbtools.data.llm_gan.markov import MarkovChain, random_chain


@pytest.fixture
def small() -> MarkovChain:
    followers_SS = np.array([[0.1, 0.6, 0.3], [0.25, 0.25, 0.5], [0.9, 0.05, 0.05]])
    return MarkovChain(np.array([0.2, 0.7, 0.1]), followers_SS)


def test_the_loss_is_the_likelihood_symbol_by_symbol(small: MarkovChain) -> None:
    losses_N = small.losses(np.array([[1, 2, 0, 0], [0, 0, 0, 0]], np.int32))
    expected = [-math.log(0.7 * 0.5 * 0.9 * 0.1) / 4, -math.log(0.2 * 0.1**3) / 4]
    assert losses_N == pytest.approx(expected)


def test_the_likelihoods_of_all_sequences_add_up_to_one_and_their_mean_loss_is_the_entropy(small: MarkovChain) -> None:
    every = np.array(list(itertools.product(range(3), repeat=5)), np.int32)
    losses_N = small.losses(every)
    probabilities_N = np.exp(-5 * losses_N)
    assert probabilities_N.sum() == pytest.approx(1)
    assert small.entropy(5) == pytest.approx(float(probabilities_N @ losses_N))


def test_sequences_are_drawn_with_the_chains_probabilities(small: MarkovChain) -> None:
    drawn_NT = small.sample(60_000, 4, seed=1)
    assert drawn_NT.dtype == np.int32
    assert np.bincount(drawn_NT[:, 0]) / len(drawn_NT) == pytest.approx(small.first_S, abs=0.01)
    for before in range(3):
        followers = drawn_NT[:, 1:][drawn_NT[:, :-1] == before]
        shares = np.bincount(followers, minlength=3) / len(followers)
        assert shares == pytest.approx(small.followers_SS[before], abs=0.01)


def test_the_first_sequences_do_not_depend_on_how_many_are_drawn() -> None:
    chain = random_chain(7)
    many = chain.sample(70_000, 5, seed=3)
    assert (chain.sample(50, 5, seed=3) == many[:50]).all()
    assert (chain.sample(66_000, 5, seed=3) == many[:66_000]).all()
    assert not (chain.sample(50, 5, seed=4) == many[:50]).all()


@pytest.mark.parametrize("num_symbols", [2, 30, 1000])
def test_the_chain_is_always_the_same_and_possible_everywhere(num_symbols: int) -> None:
    chain = random_chain(num_symbols)
    assert chain.first_S.sum() == pytest.approx(1)
    assert chain.followers_SS.sum(axis=1) == pytest.approx(np.ones(num_symbols))
    assert chain.followers_SS.min() > 0, "or what a generator writes could be infinitely wrong"
    random_chain.cache_clear()
    assert (random_chain(num_symbols).followers_SS == chain.followers_SS).all()
    drawn_NT = chain.sample(2000, 12, seed=0)
    assert drawn_NT.min() >= 0
    assert drawn_NT.max() < num_symbols
    assert chain.losses(drawn_NT).mean() == pytest.approx(chain.entropy(12), abs=0.1)


def test_thirty_symbols_are_far_from_random() -> None:
    chain = random_chain(30)
    assert 1.8 < chain.entropy(12) < 2.1
    evenly_NT = np.random.default_rng(0).integers(0, 30, (5000, 12), dtype=np.int32)
    assert chain.losses(evenly_NT).mean() > 5
