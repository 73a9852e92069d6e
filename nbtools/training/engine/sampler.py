"""The order of samples, and random numbers per sample.

All randomness here is a pure function of (seed, epoch, global sample index). The data of a training therefore does not
depend on the number of processes, and a resumed run continues in the middle of an epoch.

Shape suffixes: N samples, B batch.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from nbtools.training.process.memory_maps import send_by_path
from nbtools.training.process.signals import loader_worker_init

_SPREAD_SEED = 0
"""Independent of the config: runs with different seeds are evaluated on the same samples."""
IGNORED = -100
"""Label of a position that counts neither in the loss nor in the accuracy (torch's default)."""

_RUN = 32

Randoms = npt.NDArray[np.uint64]
Samples = npt.NDArray[np.int64]
Order = npt.NDArray[np.integer[Any]]


def randoms(seed: int, purpose: str, epoch: int, samples_B: Samples, count: int) -> Randoms:
    """Return uint64 random numbers of shape (B, count) that depend only on the arguments.

    Args:
        purpose: one word per use, such as "position", so that two uses never share numbers.
        epoch: counted from 0.
    """
    key = hashlib.blake2b(f"{seed} {epoch} {purpose}".encode(), digest_size=8).digest()
    with np.errstate(over="ignore"):
        start_B1 = _mixed(np.uint64(int.from_bytes(key, "big")) ^ _mixed(samples_B.astype(np.uint64)))[:, None]
        return _mixed(start_B1 + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)


def uniforms(seed: int, purpose: str, epoch: int, samples_B: Samples, count: int) -> npt.NDArray[np.float64]:
    """Return random numbers in [0, 1) of shape (B, count) that depend only on the arguments of `randoms`."""
    return (randoms(seed, purpose, epoch, samples_B, count) >> np.uint64(11)) / 2.0**53


def numbers_of(texts: Iterable[str]) -> Samples:
    """Return for each text a number that depends on it alone: a seed, or a sample of `randoms`."""
    digests = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype="<i8")


def told_apart(texts: Iterable[str]) -> list[str]:
    """Return prompts, with a number for each further empty one: rows without a prompt are samples of their own."""
    num_empty = itertools.count()
    return [text if text.strip() or not (number := next(num_empty)) else f"\0{number}" for text in texts]


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: Randoms) -> Randoms:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a counter in, a random number out."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(eq=False)
class SampleOrder(Sampler[tuple[int, npt.NDArray[np.int64]]]):
    """This rank's endless sequence of (epoch, global sample indices), one entry per forward pass.

    Every epoch is one permutation of all samples. An optimizer step takes the next `batch_size * accumulation *
    world_size` of them, so ranks never share a sample and the samples of a step do not depend on how many ranks divide
    them. Samples at an epoch's end that do not fill a step are left out; the next epoch has a new permutation. There
    are enough for a step: `Schedule.of` refuses fewer.
    """

    num_samples: int
    batch_size: int
    _: KW_ONLY
    gradient_accumulation_steps: int = 1
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    epoch: int = 0
    position: int = 0
    """Samples of `epoch` that all ranks together have already used."""
    lengths: Callable[[int], Samples] | None = None
    """Returns the length of every sample in an epoch, for batches of similar lengths; None for equal lengths."""

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step, over all ranks."""
        return self.batch_size * self.gradient_accumulation_steps * self.world_size

    def __iter__(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        epoch, position = self.epoch, self.position
        while True:
            order_N = epoch_order(self.seed, epoch, self.num_samples)
            if self.lengths is not None:
                order_N = grouped_by_length(order_N, self.lengths(epoch), self.seed, epoch)
            while position + self.effective_batch <= self.num_samples:
                for micro_step in range(self.gradient_accumulation_steps):
                    start = position + (micro_step * self.world_size + self.rank) * self.batch_size
                    yield epoch, order_N[start : start + self.batch_size].astype(np.int64)
                position += self.effective_batch
            epoch, position = epoch + 1, 0


def epoch_order(seed: int, epoch: int, num_samples: int) -> Order:
    """Return the permutation of the samples in `epoch`, as int32 where that suffices.

    The values equal those of `Generator.permutation`, which takes eight bytes each: a gigabyte of characters has
    15 million sequences.
    """
    dtype: type[np.integer[Any]] = np.int32 if num_samples < 2**31 else np.int64
    order_N = np.arange(num_samples, dtype=dtype)
    np.random.default_rng([seed, epoch]).shuffle(order_N)
    return order_N


def grouped_by_length(order_N: Order, lengths_N: Samples, seed: int, epoch: int) -> Order:
    """Return an epoch's permutation with samples of similar length in runs of 32, which follow in random order.

    Lengths of a run differ by less than a tenth, except between two groups of lengths. The size of a run is fixed, so
    that the order does not depend on the batch size.
    """
    num_in_runs = len(order_N) // _RUN * _RUN
    grouped_N = order_N[:num_in_runs]
    groups_N = np.floor(8 * np.log2(lengths_N[grouped_N]))
    runs_NR = grouped_N[np.argsort(groups_N, kind="stable")].reshape(-1, _RUN)
    np.random.default_rng([seed, epoch, 1]).shuffle(runs_NR)
    return np.concatenate([runs_NR.reshape(-1), order_N[num_in_runs:]])


def spread(num_samples: int, count: int) -> Samples:
    """Return `count` of the samples in ascending order, one at random of each of as many equal parts; always the same.

    All of them if there are no more; a sample's number does not depend on the number of ranks.
    """
    if count >= num_samples:
        return np.arange(num_samples)
    edges_N = np.arange(count + 1) * num_samples // count
    drawn_N = randoms(_SPREAD_SEED, "spread", 0, np.arange(count), 1)[:, 0] % (edges_N[1:] - edges_N[:-1]).astype(
        np.uint64
    )
    return edges_N[:-1] + drawn_N.astype(np.int64)


def batches_of_rank(num_samples: int, batch_size: int, rank: int, world_size: int) -> Iterator[tuple[Samples, bool]]:
    """Yield the numbers of this rank's samples in batches, with True: each is of one rank alone.

    All ranks yield equally often, because each pass of a sharded model is a collective. A rank without samples for
    another batch yields sample 0, with False: it is not its own, and does not count.
    """
    own_N = np.arange(rank, num_samples, world_size)
    for first in range(0, -(-num_samples // world_size), batch_size):
        own_B = own_N[first : first + batch_size]
        yield (own_B, True) if len(own_B) else (np.zeros(1, np.int64), False)


def load(
    dataset: Dataset[Any], order: Sampler[Any], num_workers: int = 0, *, pin_memory: bool = False
) -> Iterator[Any]:
    """Iterate over `dataset[epoch, indices]` in the given order, read ahead by `num_workers` processes."""
    send_by_path()
    loader = DataLoader(
        dataset,
        sampler=order,
        batch_size=None,  # the dataset returns whole batches
        num_workers=num_workers,
        pin_memory=pin_memory,
        worker_init_fn=loader_worker_init() if num_workers else None,
        generator=torch.Generator().manual_seed(0),  # otherwise each iterator draws from the global generator
    )
    return iter(loader)
