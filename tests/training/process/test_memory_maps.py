"""What loader workers that start afresh get: the path of a memory map, not its content."""

import multiprocessing
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import Dataset

from nbtools.training.algorithm_distillation.dataset import Windows
from nbtools.training.engine.sampler import SampleOrder, load
from nbtools.training.masked_diffusion.dataset import open_sequences, prepare
from nbtools.training.masked_diffusion.forward_process import Noise, NoisedTraining
from nbtools.training.mlm_pretraining.masking import MaskedTraining, Masking
from nbtools.training.process.memory_maps import send_by_path

NUM_BYTES = 4_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "numbers.npy", np.random.default_rng(0).integers(0, 50, NUM_BYTES // 4, dtype=np.int32))
    return tmp_path / "numbers.npy"


def dataset(recipe: str, path: Path) -> tuple[Dataset[Any], int]:
    """A training dataset of a memory-mapped file, and its length."""
    flat = np.load(path, mmap_mode="r")
    if recipe == "mlm_pretraining":
        masking = Masking(2, 0, np.arange(1, 50), 50, 0)
        return MaskedTraining(flat.reshape(-1, 20)[5:], masking), len(flat) // 20 - 5
    if recipe == "algorithm_distillation":
        steps_HL4 = (flat.view(np.uint8)).reshape(10, -1, 4).view(np.ndarray)
        windows = Windows(steps_HL4, 20, 60)
        return windows, len(windows)
    (path.parent / "text.txt").write_text("A text of characters, which repeats.\n\n" * 30_000)
    prepare(str(path.parent / "text.txt"), path.parent / "made", vocab_size=100)
    sequences = open_sequences(path.parent / "made", 32).train
    return NoisedTraining(sequences, Noise(1, 0, 0)), len(sequences)


RECIPES = ["mlm_pretraining", "masked_diffusion", "algorithm_distillation"]


@pytest.mark.promise("safety-workers")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_dataset_is_sent_to_a_worker_by_path_and_gives_the_same_batches(recipe: str, path: Path) -> None:
    made, num_samples = dataset(recipe, path)
    send_by_path()
    sent = bytes(ForkingPickler.dumps(made))
    assert len(sent) < 10_000
    opened = pickle.loads(sent)
    key = 0, np.array([0, 3, num_samples - 1])
    for expected, found in zip(made[key], opened[key], strict=True):
        assert (expected == found).all()


@pytest.fixture
def forkserver() -> Iterator[None]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.slow
@pytest.mark.promise("safety-workers")
def test_a_worker_of_a_forkserver_gives_the_batches_of_the_rank_itself(path: Path, forkserver: None) -> None:
    made, num_samples = dataset("mlm_pretraining", path)
    order = SampleOrder(num_samples, 16)
    by_worker, here = load(made, order, num_workers=1), load(made, order)
    for _ in range(3):
        for expected, found in zip(next(here), next(by_worker), strict=True):
            assert (expected == found).all()


@pytest.mark.parametrize("mode", ["r", "c"])
def test_any_part_of_a_map_comes_back_and_a_changed_one_is_copied(path: Path, mode: Any) -> None:
    send_by_path()
    flat = np.load(path, mmap_mode=mode)
    if mode == "c":
        flat[7] = 1000
    block = flat[10:210].reshape(10, 20)[2:, ::3]
    for part in (flat, flat[3:1000], flat[::-2], block, flat[:0], flat[5], flat[[7, 7]]):
        assert (pickle.loads(bytes(ForkingPickler.dumps(part))) == part).all()


def test_a_repeated_value_is_sent_once() -> None:
    send_by_path()
    zeros = np.broadcast_to(np.int64(0), 10**6)
    rows = np.broadcast_to(np.arange(3)[:, None], (3, 10**6))
    for array in (zeros, rows):
        sent = bytes(ForkingPickler.dumps(array))
        assert len(sent) < 1000
        assert (pickle.loads(sent) == array).all()
