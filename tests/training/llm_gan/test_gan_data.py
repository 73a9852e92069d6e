"""What generator and judge read: draws that depend on nothing but seed, epoch and sample, and where a text ends."""

import numpy as np
import pytest
import torch

from nbtools.recipes import LLMGANConfig
from nbtools.training.llm_gan.gan_data import TextDataset, Texts, markov_data
from nbtools.training.text.vocabulary import Alphabet, padded_inputs

CONFIG = LLMGANConfig(num_sequences=100, eval_samples=40, num_symbols=7, sequence_length=5)


def test_the_markov_chains_sequences_have_its_truth_and_no_other_tokens() -> None:
    data = markov_data(CONFIG)
    assert (len(data.train), len(data.evaluation)) == (100, 40)
    assert data.alphabet.vocab_size == 10
    assert set(data.train.texts_NT.flatten()) == set(range(3, 10))
    assert data.alphabet.mask(torch.from_numpy(data.train.texts_NT)).all()
    logits_V = data.alphabet.without_banned(torch.zeros(10))
    assert logits_V.softmax(0).tolist() == pytest.approx([0] * 3 + [1 / 7] * 7)
    truth = data.reference(data.evaluation.texts_NT).mean()
    shuffled = np.random.default_rng(0).permuted(data.evaluation.texts_NT, axis=1)
    assert truth < data.reference(shuffled).mean() - 0.3
    assert not (data.train.texts_NT[:40] == data.evaluation.texts_NT).all(1).any()
    # The data stay when a training's seed changes: what is measured is the same.
    assert (markov_data(CONFIG.replace(seed=5)).train.texts_NT == data.train.texts_NT).all()


def test_a_draw_is_a_function_of_seed_epoch_and_sample() -> None:
    draws = TextDataset(markov_data(CONFIG).train, 3, 7, seed=1)
    whole = draws[2, np.array([5, 9, 11])]
    assert [tuple(part.shape) for part in whole] == [(3, 3, 1), (3, 3, 5), (3, 3, 7)]
    parts = [draws[2, np.array([sample])] for sample in (5, 9, 11)]
    for number, part in enumerate(whole):
        assert torch.cat([one[number] for one in parts]).equal(part)
    assert whole[1][:, 0].numpy().tolist() == draws.texts.texts_NT[[5, 9, 11]].tolist(), "the first is the sample"
    for other in (TextDataset(draws.texts, 3, 7, seed=2)[2, np.array([5])], draws[3, np.array([5])]):
        assert not other[2].equal(whole[2][:1])
    assert whole[2].flatten().unique().numel() == 63, "no number is used twice"
    rows = {tuple(row) for row in draws.texts.texts_NT.tolist()}
    assert {tuple(row) for row in whole[1].flatten(0, 1).tolist()} <= rows


def test_the_other_draws_are_of_all_texts() -> None:
    texts = Texts(np.zeros((8, 1), np.int32), np.arange(8, dtype=np.int32)[:, None])
    drawn = TextDataset(texts, 41, 1, seed=0)[0, np.arange(8)][1][:, 1:]
    counts = torch.bincount(drawn.flatten(), minlength=8)
    assert counts.min() > 20
    assert counts.sum() == 320


def test_a_text_reaches_to_its_end_or_to_where_it_was_cut() -> None:
    alphabet = Alphabet(9, 0, 2)
    texts_BT = torch.tensor([[3, 2, 0, 0], [3, 4, 5, 6], [3, 4, 0, 0], [2, 0, 0, 0]])
    assert alphabet.mask(texts_BT).long().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]
    # Where a model's end of text is its padding, too, the first one counts.
    same = Alphabet(9, 2, 2)
    assert same.mask(torch.tensor([[3, 2, 2, 2], [3, 4, 5, 6]])).long().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_padding_on_the_left_is_not_seen_nor_counted() -> None:
    inputs = padded_inputs(torch.tensor([[0, 0, 5, 0, 6], [4, 4, 4, 4, 0]]), 0)
    assert inputs["attention_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    assert inputs["position_ids"].tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]
