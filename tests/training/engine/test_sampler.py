"""Data: tokenizer and token files, an order that no number of processes changes, masking by sample index."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from split_corpus import num_sequences, read_documents, split_documents
from transformers import AutoTokenizer

from nbtools.errors import ConfigError, DataError
from nbtools.recipes import MLMPretrainingConfig
from nbtools.training.engine.sampler import (
    IGNORED,
    SampleOrder,
    batches_of_rank,
    epoch_order,
    grouped_by_length,
    load,
    spread,
)
from nbtools.training.mlm_pretraining.dataset import MLMText, open_tokenized, tokenize
from nbtools.training.mlm_pretraining.masking import MaskedTraining, Masking, unigram_log_probabilities
from nbtools.training.text import disk_buffer
from nbtools.training.text.tokenizers import EOS, train_tokenizer, word_tokenizer

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A folder of 40 documents."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(40):
        words = [WORDS[(number * step + step * step) % 10] for step in range(60)]
        (folder / f"{number:02}.txt").write_text(" ".join(words) + ".")
    return folder


@pytest.fixture
def text(dataset: Path, tmp_path: Path) -> MLMText:
    return open_tokenized(tokenized(dataset, tmp_path), 16)


def tokenized(dataset: Path, tmp_path: Path, vocab_size: int = 50, model_name: str | None = None) -> Path:
    return tokenize(tmp_path / "cache", mlm_config(dataset, vocab_size=vocab_size, model_name=model_name)).folder


def mlm_config(dataset: Path, **changes: Any) -> MLMPretrainingConfig:
    """Unchecked, since the vocabulary is smaller than a config allows."""
    return MLMPretrainingConfig(dataset=str(dataset), min_words=1, vocab_size=50, test_fraction=0.0).model_copy(
        update=changes
    )


# --- tokenizer ------------------------------------------------------------------------------------


def test_the_saved_tokenizer_gives_the_ids_that_were_trained_on(dataset: Path, tmp_path: Path) -> None:
    folder = tokenized(dataset, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    train, _ = split_documents(read_documents(str(dataset), 1))
    ids = [token for document in train for token in tokenizer(document)["input_ids"]]
    assert ids == np.load(folder / "train_data.npy").tolist()
    assert tokenizer.decode(tokenizer("one two")["input_ids"], skip_special_tokens=True) == "one two"


def test_vocabulary_has_the_special_tokens_first_and_then_the_most_frequent_words() -> None:
    tokenizer = word_tokenizer(["b b b a a c", "d"], 7)
    ids = tokenizer.get_vocab()
    assert sorted(ids, key=ids.__getitem__) == ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "b", "a"]
    assert tokenizer("a zebra")["input_ids"] == [6, 3, 2]


def test_rows_are_as_many_as_the_form_counted(dataset: Path, text: MLMText) -> None:
    train, evaluation = split_documents(read_documents(str(dataset), 1))
    assert len(text.train) == num_sequences(train, 16)
    assert len(text.evaluation) == num_sequences(evaluation, 16)


def test_a_text_is_tokenized_once_and_found_again(dataset: Path, tmp_path: Path) -> None:
    first = tokenized(dataset, tmp_path)
    before = (first / "train_data.npy").stat().st_mtime_ns
    assert tokenized(dataset, tmp_path) == first
    assert (first / "train_data.npy").stat().st_mtime_ns == before
    assert tokenized(dataset, tmp_path, vocab_size=9) != first
    (dataset / "00.txt").write_text("something else entirely")
    assert tokenized(dataset, tmp_path) not in (first, None)
    assert not list((tmp_path / "cache").glob(".*.tmp"))


def test_a_long_reading_says_how_far_it_is(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenized(dataset, tmp_path)
    assert "reading the text" not in capsys.readouterr().out, "a short one says nothing of it"
    monkeypatch.setattr(disk_buffer, "_SAY_EVERY_S", 0.0)
    said: list[str] = []
    tokenize(tmp_path / "other", mlm_config(dataset), say=said.append)
    reading = [line for line in said if line.startswith("reading the text: ")]
    assert re.fullmatch(r"reading the text: 40 documents so far, \d+\.\d\d million characters/s", reading[-1])
    tokenizing = [line for line in said if line.startswith("tokenizing: ")]
    form = r"tokenizing: \d+% of [\d,]+ characters, \d+\.\d\d million characters/s, \d+:\d\d:\d\d left"
    assert len(tokenizing) == 40
    assert all(re.fullmatch(form, line) for line in tokenizing)


def test_an_unwritable_cache_is_a_data_error(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cannot be written"):
        tokenized(dataset, tmp_path)


def test_a_tokenizer_without_a_mask_token_is_refused(dataset: Path, tmp_path: Path) -> None:
    train_tokenizer("words", ["a b"], 10, last=(), names={"eos_token": EOS}).save_pretrained(tmp_path / "gpt")
    with pytest.raises(ConfigError, match="no mask token"):
        tokenized(dataset, tmp_path, model_name=str(tmp_path / "gpt"))


# --- order ----------------------------------------------------------------------------------------


def steps(
    num_steps: int, world_size: int, accumulation: int, batch_size: int, num_samples: int = 50, **more: Any
) -> list[list[int]]:
    """Samples of each optimizer step, over all ranks and passes."""
    result: list[list[int]] = [[] for _ in range(num_steps)]
    for rank in range(world_size):
        of_rank: dict[str, Any] = {"rank": rank, "world_size": world_size, "seed": 3, **more}
        order = iter(SampleOrder(num_samples, batch_size, gradient_accumulation_steps=accumulation, **of_rank))
        for step in range(num_steps):
            for _ in range(accumulation):
                result[step] += next(order)[1].tolist()
    return [sorted(samples) for samples in result]


@pytest.mark.promise("guide-L8", "guide-G5")
def test_an_epoch_shows_every_sample_at_most_once_and_the_next_one_shuffles_anew() -> None:
    both = steps(12, 2, 1, 4)
    first, second = ([sample for step in part for sample in step] for part in (both[:6], both[6:]))
    assert len(set(first)) == len(first) == 48
    assert len(set(second)) == 48
    assert both[0] != both[6]


@pytest.mark.promise("guide-L1", "guide-O9")
@pytest.mark.parametrize("done", [0, 1, 3, 4, 6])  # four steps of twelve make an epoch
@pytest.mark.parametrize("after", [(1, 2, 6), (2, 1, 6), (2, 3, 2), (3, 4, 1), (6, 1, 2)])
@pytest.mark.parametrize("before", [(1, 1, 12), (2, 3, 2), (3, 1, 4)])
def test_a_step_has_the_same_samples_however_they_are_divided_and_wherever_it_resumes(
    before: tuple[int, int, int], after: tuple[int, int, int], done: int
) -> None:
    straight = steps(10, *before)
    assert straight[done:] == steps(10 - done, *after, epoch=done // 4, position=done % 4 * 12)


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_another_number_of_samples_per_step_skips_and_repeats_none(before: int, after: int) -> None:
    used = [sample for step in steps(2, before, 1, 4) for sample in step]
    rest = steps((50 - len(used)) // (4 * after), after, 1, 4, epoch=0, position=len(used))
    order = epoch_order(3, 0, 50).tolist()
    assert sorted(used) == sorted(order[: len(used)])
    for number, step in enumerate(rest):
        start = len(used) + number * 4 * after
        assert step == sorted(order[start : start + 4 * after])
    assert 50 - len(used) - sum(map(len, rest)) < 4 * after, "only what is too little for a step is left out"


def test_reading_ahead_in_processes_changes_nothing_and_no_global_random_number_is_used(text: MLMText) -> None:
    dataset = MaskedTraining(text.train, Masking.of(text, 0.2, seed=1))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    alone = load(dataset, SampleOrder(len(text.train), 4))
    ahead = load(dataset, SampleOrder(len(text.train), 4), num_workers=1)
    for _ in range(40):
        for here, there in zip(next(alone), next(ahead), strict=True):
            assert torch.equal(here, there)
    assert torch.equal(before, torch.get_rng_state())
    del ahead


# --- masking --------------------------------------------------------------------------------------


@pytest.fixture
def masking(text: MLMText) -> Masking:
    return Masking.of(text, 0.25, seed=0)


def test_every_sequence_predicts_the_same_number_of_ordinary_words(text: MLMText, masking: Masking) -> None:
    samples = np.arange(len(text.train))
    _, positions_BK, labels_BK = masking.for_training(text.train, samples, epoch=0)
    assert positions_BK.shape == (len(text.train), 4)
    assert (positions_BK.diff(dim=1) > 0).all()
    assert not set(labels_BK.unique().tolist()) & set(text.tokenizer.all_special_ids)
    assert torch.equal(torch.from_numpy(text.train.astype(np.int64)).gather(1, positions_BK), labels_BK)


def test_masking_depends_on_the_sample_and_the_epoch_but_not_on_the_batch(text: MLMText, masking: Masking) -> None:
    together = masking.for_training(text.train[:8], np.arange(8), epoch=2)
    alone = masking.for_training(text.train[5:6], np.array([5]), epoch=2)
    for whole, part in zip(together, alone, strict=True):
        assert torch.equal(whole[5:6], part)
    assert not torch.equal(together[1], masking.for_training(text.train[:8], np.arange(8), epoch=3)[1])
    other_seed = Masking.of(text, 0.25, seed=1)
    assert not torch.equal(together[1], other_seed.for_training(text.train[:8], np.arange(8), epoch=2)[1])


def test_eighty_ten_ten_and_all_positions_alike(text: MLMText, masking: Masking) -> None:
    num_masked = num_kept = num_changed = 0
    hits_T = torch.zeros(16)
    samples = np.arange(len(text.train))
    for epoch in range(60):
        inputs_BT, positions_BK, labels_BK = masking.for_training(text.train, samples, epoch)
        shown_BK = inputs_BT.gather(1, positions_BK)
        num_masked += int((shown_BK == masking.mask_id).sum())
        num_kept += int((shown_BK == labels_BK).sum())
        num_changed += int(((shown_BK != labels_BK) & (shown_BK != masking.mask_id)).sum())
        hits_T += torch.bincount(positions_BK.flatten(), minlength=16)
        untouched = torch.ones_like(inputs_BT, dtype=torch.bool).scatter(1, positions_BK, False)
        assert torch.equal(inputs_BT[untouched], torch.from_numpy(text.train.astype(np.int64))[untouched])
    total = num_masked + num_kept + num_changed
    words = len(masking.maskable_ids)
    assert num_masked / total == pytest.approx(0.8, abs=0.01)
    assert num_kept / total == pytest.approx(0.1 + 0.1 / words, abs=0.01)  # a random word may be the right one
    assert hits_T.min() / hits_T.max() > 0.85


def test_evaluation_shows_none_of_the_words_and_never_changes(text: MLMText, masking: Masking) -> None:
    samples = np.arange(len(text.evaluation))
    first = masking.for_evaluation(text.evaluation, samples)
    again = masking.for_evaluation(text.evaluation, samples)
    inputs_BT, positions_BK, _ = first
    assert (inputs_BT.gather(1, positions_BK) == masking.mask_id).all()
    assert all(torch.equal(here, there) for here, there in zip(first, again, strict=True))


def test_a_sequence_with_too_few_ordinary_words_predicts_those_and_keeps_the_rest() -> None:
    masking = Masking(4, mask_id=4, maskable_ids=np.arange(5, 10), vocab_size=10, seed=0)
    tokens_BT = np.array([[5, 2, 2, 2, 6, 2, 2, 2]], dtype=np.int32)
    inputs_BT, positions_BK, labels_BK = masking.for_evaluation(tokens_BT, np.array([0]))
    assert sorted(labels_BK[0].tolist()) == [IGNORED, IGNORED, 5, 6]
    assert inputs_BT.tolist() == [[4, 2, 2, 2, 4, 2, 2, 2]]
    assert positions_BK.shape == (1, 4)


@pytest.mark.promise("safety-evaluation")
@pytest.mark.parametrize(("num_samples", "count"), [(11_250, 100), (7, 3), (2001, 2000), (10**9, 50)])
def test_an_evaluation_measures_one_sample_of_each_of_equal_parts(num_samples: int, count: int) -> None:
    rows = spread(num_samples, count)
    assert len(rows) == count
    assert (np.diff(rows) > 0).all()
    assert (rows == spread(num_samples, count)).all()
    edges = np.arange(count + 1) * num_samples // count
    assert ((edges[:-1] <= rows) & (rows < edges[1:])).all()
    if num_samples > 100 * count:
        assert len(set(np.diff(rows).tolist())) > 1  # not every n-th, which may follow an order of the data
    assert spread(count, num_samples).tolist() == list(range(count)) if num_samples < 10**6 else True


@pytest.mark.parametrize("num_samples", [0, 1, 2, 3, 7, 8, 9, 24, 25])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 3, 30])
def test_all_ranks_have_equally_many_batches_and_each_sample_is_of_one(
    num_samples: int, world_size: int, batch_size: int
) -> None:
    parts = [list(batches_of_rank(num_samples, batch_size, rank, world_size)) for rank in range(world_size)]
    assert len({len(part) for part in parts}) == 1
    own = [[batch_B for batch_B, is_own in part if is_own] for part in parts]
    assert sorted(int(sample) for part in own for batch_B in part for sample in batch_B) == list(range(num_samples))
    assert all(batch_B.tolist() == [0] for part in parts for batch_B, is_own in part if not is_own)
    assert all(is_own for _, is_own in parts[0]), "rank 0 shows what it computes"


def test_unigram_probabilities_are_smoothed_counts_of_ordinary_words() -> None:
    tokens = np.array([[5, 5, 6, 2, 3]], dtype=np.int32)
    p_V = unigram_log_probabilities(tokens, np.array([5, 6, 7]), 8).exp()
    assert p_V.tolist() == pytest.approx([0, 0, 0, 0, 0, 3 / 6, 2 / 6, 1 / 6])


# --- samples of different lengths -----------------------------------------------------------------

LENGTHS = np.random.default_rng(0).geometric(0.01, 1000) + 3


def test_an_epoch_by_length_is_a_permutation_with_similar_lengths_together() -> None:
    order_N = grouped_by_length(epoch_order(1, 0, 1000), LENGTHS, 1, 0)
    assert sorted(order_N.tolist()) == list(range(1000))
    runs = LENGTHS[order_N[:992]].reshape(31, 32)
    shuffled = LENGTHS[epoch_order(1, 0, 1000)[:992]].reshape(31, 32)
    padded, without = (32 * part.max(1).sum() / part.sum() for part in (runs, shuffled))
    assert padded < 1.25 < 3 < without
    assert np.abs(np.corrcoef(np.arange(31), runs.mean(1))[0, 1]) < 0.5, "short and long ones in random order"
    assert not np.array_equal(order_N, grouped_by_length(epoch_order(1, 1, 1000), LENGTHS, 1, 1))


def test_the_order_by_length_does_not_depend_on_how_a_step_is_divided_or_where_it_resumes() -> None:
    by_length: dict[str, Any] = {"num_samples": 1000, "lengths": lambda epoch: LENGTHS + epoch}
    whole = steps(80, 1, 1, 16, **by_length)
    assert whole == steps(80, 2, 2, 4, **by_length) == steps(80, 4, 2, 2, **by_length)
    assert whole[31:] == steps(49, 1, 4, 4, position=16 * 31, **by_length)


class Unsendable(torch.utils.data.Dataset[Any]):
    def __getitem__(self, index: object) -> object:
        return lambda: index


@pytest.mark.promise("safety-shared-memory")
def test_a_batch_that_a_loader_worker_cannot_send_is_an_error_and_no_endless_wait() -> None:
    batches = load(Unsendable(), SampleOrder(8, 4), num_workers=1)
    with pytest.raises(Exception, match=r"in DataLoader worker process 0"):
        next(batches)
    batches._shutdown_workers()  # type: ignore[attr-defined]  # it would hold the pipes of this process open
