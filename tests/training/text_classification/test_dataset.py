"""Characters: CANINE's own encoding, random edits that belong to a row, and batches that are the same for any ranks."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import CanineTokenizer

from nbtools.data.text_classification.coded_texts import CodedTexts, clean_text
from nbtools.recipes import TextClassificationConfig
from nbtools.recipes.text_classification import load_samples
from nbtools.training.engine.sampler import SampleOrder, epoch_order
from nbtools.training.text_classification.dataset import (
    Augmentation,
    CharacterDataset,
    LengthOrder,
    by_length,
    encode,
    equal_widths,
    input_widths,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


def a_dataset(num_rows: int = 300, seed: int = 0, edited: float = 0.5, longest: int = 40) -> CharacterDataset:
    lengths = np.random.default_rng(0).integers(1, 30, num_rows)
    table = CodedTexts()
    for number, length in enumerate(lengths):
        table.append(f"{number:03}" + "x y" * int(length // 3) + "z", "en" if number % 2 else "danish", [number % 5])
    return CharacterDataset(table, np.arange(num_rows), Augmentation(seed, edited, 0.25), longest, 2)


def test_an_input_is_what_canine_s_own_tokenizer_makes_of_language_and_text() -> None:
    tokenizer = CanineTokenizer()  # takes its time to make
    for lang, text in (("en", "smith, and farmer"), ("unk", "gård & mølle"), ("ja", "農民 \U0001f33e"), ("da", "")):
        expected = tokenizer(f"{lang}[SEP]{text}")["input_ids"]
        assert encode(text, lang, 128).tolist() == expected
        assert input_widths(np.array([len(text)]), np.array([len(lang)])) == len(expected)


def test_a_long_text_is_cut_at_its_end_and_keeps_the_last_mark() -> None:
    encoded = encode("x" * 100, "en", 16)
    assert len(encoded) == 16
    assert encoded[-1] == 0xE001


def test_texts_that_are_cut_are_counted() -> None:
    table = CodedTexts()
    for length in (5, 8, 9, 30):
        table.append("x" * length, "en", [0])
    augmentation = Augmentation(0, 0, 0)
    counts = [CharacterDataset(table, np.arange(4), augmentation, longest, 1).num_cut for longest in (17, 16, 64)]
    assert counts == [2, 3, 0]  # as encoded they are 14, 17, 18 and 39 characters long


@given(text=TEXT.map(clean_text).filter(bool), draws=st.lists(st.integers(0, 2**62 - 1), min_size=9, max_size=9))
def test_edits_leave_some_text_and_lengthen_it_by_their_insertions_at_most(text: str, draws: list[int]) -> None:
    draws_E3 = np.array(draws, dtype=np.int64).reshape(3, 3)
    edited = Augmentation.edit(text, draws_E3)
    assert edited
    assert len(text) - 3 <= len(edited) <= len(text) + int((draws_E3[:, 0] % 5 == 1).sum())


def test_what_happens_to_a_row_is_a_function_of_seed_epoch_and_row() -> None:
    dataset, again, other = a_dataset(), a_dataset(), a_dataset(seed=1)
    samples_B = np.arange(300)
    first, _ = dataset[3, samples_B, 40]
    assert torch.equal(first, again[3, samples_B, 40][0])
    reversed_, _ = again[3, samples_B[::-1], 40]
    assert torch.equal(first, reversed_.flip(0))
    assert torch.equal(first[17:20], again[3, np.array([17, 18, 19]), 40][0])
    assert not torch.equal(first, dataset[4, samples_B, 40][0])
    assert not torch.equal(first, other[3, samples_B, 40][0])


def test_the_asked_share_of_rows_is_edited_and_loses_its_language() -> None:
    dataset = a_dataset(3000, edited=0.3, longest=128)
    plain, _ = a_dataset(3000, edited=0.0, longest=128)[0, np.arange(3000), 128]
    inputs, labels_BK = dataset[0, np.arange(3000), 128]
    is_unknown = (inputs[:, 1:4] == torch.tensor([ord(letter) for letter in "unk"])).all(1)
    assert 0.22 < is_unknown.double().mean() < 0.28
    assert 0.25 < (inputs != plain).any(1).double().mean() < 0.33  # an edit may change nothing
    assert labels_BK[:3].tolist() == [[0, -1], [1, -1], [2, -1]]


@pytest.mark.parametrize("edited", [0.0, 1.0])
def test_widths_bound_every_row_and_are_exact_without_edits(edited: float) -> None:
    dataset = a_dataset(edited=edited)
    inputs_BT, _ = dataset[2, np.arange(300), 40]
    lengths = (inputs_BT != 0).sum(1).numpy()
    assert (lengths <= dataset.widths(2)).all()
    if not edited:
        assert (lengths == dataset.widths(2)).all()


def steps(world_size: int, accumulation: int, batch_size: int, count: int) -> list[list[tuple[int, list[int], int]]]:
    """The passes of every rank, as (epoch, rows, width), step by step."""
    dataset = a_dataset()
    passes = []
    for rank in range(world_size):
        order = SampleOrder(
            300, batch_size, gradient_accumulation_steps=accumulation, rank=rank, world_size=world_size, seed=5
        )
        found = itertools.islice(LengthOrder(order, dataset), count * accumulation)
        passes.append([(epoch, rows.tolist(), widest) for epoch, rows, widest in found])
    return [
        [one for rank in passes for one in rank[step * accumulation : (step + 1) * accumulation]]
        for step in range(count)
    ]


def test_the_samples_and_the_width_of_a_step_do_not_depend_on_who_shares_it() -> None:
    whole = steps(1, 1, 24, 30)
    for divided in (steps(2, 1, 12, 30), steps(1, 4, 6, 30), steps(2, 3, 4, 30)):
        for one, many in zip(whole, divided, strict=True):
            (epoch, rows, widest), *_ = one
            assert {each[0] for each in many} == {epoch}
            assert {each[2] for each in many} == {widest}
            assert sorted(row for each in many for row in each[1]) == sorted(rows)


def test_an_epoch_visits_every_row_at_most_once_and_leaves_out_others_each_time() -> None:
    left_out = []
    for epoch in range(3):
        seen = [row for step in steps(2, 1, 8, 54) for each in step if each[0] == epoch for row in each[1]]
        assert len(seen) == len(set(seen)) == 300 // 16 * 16
        left_out.append(set(range(300)) - set(seen))
    assert left_out[0] != left_out[1] != left_out[2]


@pytest.mark.parametrize("batch", [16, 20])
def test_a_resumed_order_goes_on_with_the_rows_that_are_left(batch: int) -> None:
    dataset = a_dataset()
    straight = itertools.islice(LengthOrder(SampleOrder(300, 16, seed=1), dataset), 18)
    rows = [row for _, members, _ in straight for row in members.tolist()]
    resumed = LengthOrder(SampleOrder(300, batch, seed=1, epoch=0, position=16 * 8), dataset, 16)
    later = [row for _, members, _ in itertools.islice(resumed, 160 // batch) for row in members.tolist()]
    assert later == rows[16 * 8 : 16 * 8 + 160]
    assert (resumed.chunk_of(0), resumed.chunk_of(1)) == (16, batch)


@given(st.integers(1, 200), st.integers(1, 50), st.integers(0, 1000))
def test_sorting_by_length_loses_no_row(num_rows: int, chunk: int, seed: int) -> None:
    widths_N = np.random.default_rng(seed).integers(5, 60, num_rows)
    assert sorted(by_length(widths_N, epoch_order(seed, 0, num_rows), chunk).tolist()) == list(range(num_rows))


@pytest.mark.parametrize("batch_size", [16, 64, 128])
def test_less_than_a_tenth_of_the_positions_is_padding(batch_size: int) -> None:
    config = TextClassificationConfig()
    samples = load_samples(config)
    augmentation = Augmentation(0, config.augmentation, config.unknown_lang)
    dataset = CharacterDataset(samples.train, samples.train_rows, augmentation, 64, 5)
    order = LengthOrder(SampleOrder(len(samples.train_rows), batch_size), dataset)
    taken = [dataset[key][0] for key in itertools.islice(order, len(samples.train_rows) // batch_size)]
    padding = sum(int((inputs_BT == 0).sum()) for inputs_BT in taken)
    assert padding / sum(inputs_BT.numel() for inputs_BT in taken) < 0.10
    shuffled = epoch_order(0, 0, len(samples.train_rows))[:batch_size]
    unsorted, _ = dataset[0, shuffled, 64]
    widest = int((unsorted != 0).sum(1).max())
    assert (unsorted[:, :widest] == 0).double().mean() > 0.15, "without the order it would be more"


def test_evaluation_gives_a_row_one_width_whoever_is_in_its_batch() -> None:
    widths_N = np.array([5, 8, 9, 4, 12, 7])
    alone = {(row, widest) for members, widest in equal_widths(widths_N, 1) for row in members.tolist()}
    together = {(row, widest) for members, widest in equal_widths(widths_N, 10) for row in members.tolist()}
    assert alone == together == {(0, 8), (1, 8), (2, 12), (3, 4), (4, 12), (5, 8)}
