"""The forward process of masked diffusion: which tokens are masked, and the weight of each prediction.

Training draws a time t for every sequence and masks each token with probability p(t). A cross-entropy divided by p and
by the number of tokens that could have been masked is, in expectation, a bound on the negative log-likelihood per token
(Nie et al. 2025, arXiv 2502.09992, equation 3; Ou et al. 2024, arXiv 2406.03736). The divisor must not depend on the
number of tokens that happened to be masked: otherwise the loss is not the bound.

Evaluation estimates the same bound with less variance: it draws the number k of masked tokens, masks exactly k, and
averages over them (ibid., equation 6). Its draws are evenly spread over all k, and the same at each evaluation.

A pair of a prompt and an answer is a sequence that ends with one end-of-text token; what pads it to the longest of its
batch is neither attended to nor masked. With nothing else, the number of masks would tell a model where the answer
ends, and it could not end one in a longer space. Half of the pairs therefore get more end-of-text tokens in training,
which are masked and learnt as LLaDA's are. Evaluation adds none: it bounds the answer and one end-of-text token.

Everything here is a pure function of (seed, epoch, global sample index).

Shape suffixes: N samples, D draws, B batch, T positions, K masked positions of a whole batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from nbtools.training.engine import sampler
from nbtools.training.engine.sampler import Samples
from nbtools.training.masked_diffusion.sequences import Integers, RaggedPairs, Sequences, Tokens, pack

EPSILON = 1e-3
"""Least probability that a token is masked: p = (1 - EPSILON) t + EPSILON, so that 1 / p stays bounded."""

Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_MULTIPLE = 8
"""Batches of pairs are padded to a multiple of this, which suits the matrix units of GPUs."""
_MOST_MEASURED = 1000
"""Number of batches whose share of padding is measured."""
_EVALUATION_SEED = 0
"""Independent of the config: runs with different seeds are evaluated on the same masks."""


@dataclass(frozen=True)
class Noise:
    """The masking of sequences in training."""

    mask_id: int
    pad_id: int
    """Token after the end of a sequence that is cut, where nothing is attended to or predicted."""
    seed: int
    random_length_share: float = 0.0
    """Share of the sequences that are cut to a random length, so that the model learns short texts, too."""

    def masks(
        self, tokens_BT: Tokens, starts_B: Integers, samples_B: Samples, epoch: int
    ) -> tuple[Booleans, Floats, Integers]:
        """Choose the masked positions.

        Returns:
            masked_BT; weight_B1, the weight of the cross-entropy of each masked token of a sequence: 1 / p / number of
            its maskable tokens; lengths_B, the length of each sequence after cutting.
        """
        length = tokens_BT.shape[1]
        numbers = sampler.uniforms(self.seed, "mask", epoch, samples_B, length + 3)  # in one call, which is faster
        uniforms_BT, (time_B, cut_B, where_B) = numbers[:, :length], numbers[:, length:].T
        shorter_B = starts_B + 1 + (where_B * (length - starts_B)).astype(np.int64)
        lengths_B = np.where(cut_B < self.random_length_share, shorter_B, length)
        return *_masked(uniforms_BT, time_B, starts_B, lengths_B), lengths_B

    def pair_masks(
        self, starts_B: Integers, lengths_B: Integers, samples_B: Samples, epoch: int, length: int
    ) -> tuple[Booleans, Floats]:
        """Return the masks and weights of `masks` for sequences of any length in rows of `length` tokens."""
        uniforms_BT = sampler.uniforms(self.seed, "mask", epoch, samples_B, length)
        time_B = sampler.uniforms(self.seed, "time", epoch, samples_B, 1)[:, 0]
        return _masked(uniforms_BT, time_B, starts_B, lengths_B)


def _masked(uniforms_BT: Floats, time_B: Floats, starts_B: Integers, lengths_B: Integers) -> tuple[Booleans, Floats]:
    probability_B1 = (1 - EPSILON) * time_B[:, None] + EPSILON
    masked_BT = (uniforms_BT < probability_B1) & _between(starts_B, lengths_B, uniforms_BT.shape[1])
    return masked_BT, 1 / probability_B1 / (lengths_B - starts_B)[:, None]


def _between(starts_B: Integers, lengths_B: Integers, length: int) -> Booleans:
    """Return which positions are behind the prompt and before the end. Shape (B, T)."""
    positions_T = np.arange(length)
    inside_BT: Booleans = (positions_T >= starts_B[:, None]) & (positions_T < lengths_B[:, None])
    return inside_BT


class NoisedTraining(Dataset[Any]):
    """Masked training batches, indexed by (epoch, global sample indices)."""

    def __init__(self, sequences: Sequences | RaggedPairs, noise: Noise) -> None:
        self.sequences = sequences
        self.noise = noise

    def __getitem__(self, key: tuple[int, Samples]) -> tuple[Tensor, ...]:
        """Return inputs_BT, positions_K (row x T + column, ascending), labels_K, weights_K, lengths_B.

        lengths_B is empty if no sequence is cut: the model needs no attention mask then, and no check on the GPU.
        """
        epoch, samples_B = key
        tokens_BT = self.sequences.rows(samples_B)
        starts_B = self.sequences.starts_N[samples_B]
        return _batch(tokens_BT, *self.noise.masks(tokens_BT, starts_B, samples_B, epoch), self.noise)


class NoisedPairs(Dataset[Any]):
    """A dataset of noised batches like `NoisedTraining`, for pairs; each batch is as long as its longest pair.

    Args:
        longest: largest number of tokens of a pair with its padding.
        packs: whether pairs share rows: masks and weights stay those of each pair, in fewer rows.
    """

    def __init__(self, pairs: RaggedPairs, noise: Noise, longest: int, *, packs: bool = False) -> None:
        self.pairs = pairs
        self.noise = noise
        self.longest = longest
        self.packs = packs

    def lengths(self, epoch: int, samples_N: Samples | None = None) -> Integers:
        """Return the tokens of pairs, by default of all, with the end-of-text tokens that half of them get.

        Those leave as much space as the answer of another pair takes, and up to seven tokens more.
        """
        samples_N = np.arange(len(self.pairs)) if samples_N is None else samples_N
        whether_N, which_N, more_N = sampler.uniforms(self.noise.seed, "space", epoch, samples_N, 3).T
        others_N = (which_N * len(self.pairs)).astype(np.int64)
        space_N = (self.pairs.lengths_N - self.pairs.starts_N)[others_N] + (more_N * 8).astype(np.int64)
        own_N = self.pairs.lengths_N[samples_N]
        longer_N = np.maximum(own_N, np.minimum(self.pairs.starts_N[samples_N] + space_N, self.longest))
        return np.where(whether_N < 0.5, own_N, longer_N)

    def padding_note(self, order: sampler.SampleOrder) -> str:
        """Return a sentence on the share of padding in the first epoch's batches, and in rows of equal length."""
        lengths_N, order_N = self.lengths(0), sampler.epoch_order(order.seed, 0, len(self.pairs))
        if not self.packs:
            order_N = sampler.grouped_by_length(order_N, lengths_N, order.seed, 0)
        num_whole = len(order_N) // order.batch_size * order.batch_size
        lengths_MB = lengths_N[order_N[:num_whole]].reshape(-1, order.batch_size)[:_MOST_MEASURED]
        widths_M = self._padded(lengths_MB.max(axis=1))
        num_rows_M = np.full(len(widths_M), order.batch_size)
        if self.packs:
            packed = zip(lengths_MB, widths_M.tolist(), strict=True)
            num_rows_M = np.array([pack(lengths_B, width)[0].max() + 1 for lengths_B, width in packed])
        share, pad_to = 1 - lengths_MB.sum() / (widths_M @ num_rows_M), "packed" if self.packs else "longest"
        filled = f"{1 - lengths_N.mean() / self.longest:.0%} in rows of sequence_length"
        return f"padding: {share:.0%} of the tokens (pad_to={pad_to!r}); {filled}"

    def _padded(self, lengths: Integers) -> Integers:
        return np.minimum(-(-lengths // _MULTIPLE) * _MULTIPLE, self.longest)

    def __getitem__(self, key: tuple[int, Samples]) -> tuple[Tensor, ...]:
        """Return what `NoisedTraining` does; lengths_B is empty if all pairs of the batch are equally long.

        Packed, it is the number of the pair at each position of the rows, 0 for padding.
        """
        epoch, samples_B = key
        lengths_B = self.lengths(epoch, samples_B)
        length = int(self._padded(lengths_B.max()))
        masks = self.noise.pair_masks(self.pairs.starts_N[samples_B], lengths_B, samples_B, epoch, length)
        tokens_BT = self.pairs.rows(samples_B, length)
        if self.packs:
            return _packed_batch(tokens_BT, *masks, lengths_B, self.noise)
        return _batch(tokens_BT, *masks, lengths_B, self.noise)


def _batch(
    tokens_BT: Integers, masked_BT: Booleans, weight_B1: Floats, lengths_B: Integers, noise: Noise
) -> tuple[Tensor, ...]:
    inputs_BT = np.where(masked_BT, noise.mask_id, tokens_BT)
    length = inputs_BT.shape[1]
    if lengths_B.min() < length:
        inputs_BT[np.arange(length) >= lengths_B[:, None]] = noise.pad_id
    else:
        lengths_B = lengths_B[:0]
    positions_K = np.flatnonzero(masked_BT)
    weights_K = weight_B1[positions_K // length, 0].astype(np.float32)
    parts = (inputs_BT, positions_K, tokens_BT.reshape(-1)[positions_K], weights_K, lengths_B)
    return tuple(torch.from_numpy(part) for part in parts)


def _packed_batch(
    tokens_BT: Integers, masked_BT: Booleans, weight_B1: Floats, lengths_B: Integers, noise: Noise
) -> tuple[Tensor, ...]:
    width = tokens_BT.shape[1]
    rows_B, firsts_B = pack(lengths_B, width)
    places_BT = (rows_B * width + firsts_B)[:, None] + np.arange(width)
    within_BT = np.arange(width) < lengths_B[:, None]
    inputs_RT = np.full((int(rows_B.max()) + 1, width), noise.pad_id, dtype=np.int64)
    pairs_RT = np.zeros_like(inputs_RT)
    inputs_RT.flat[places_BT[within_BT]] = np.where(masked_BT, noise.mask_id, tokens_BT)[within_BT]
    pairs_RT.flat[places_BT[within_BT]] = np.repeat(np.arange(1, len(lengths_B) + 1), lengths_B)
    order_K = places_BT[masked_BT].argsort()
    weights_BT = np.broadcast_to(weight_B1.astype(np.float32), masked_BT.shape)
    masked = (each_BT[masked_BT][order_K] for each_BT in (places_BT, tokens_BT, weights_BT))
    return tuple(torch.from_numpy(part) for part in (inputs_RT, *masked, pairs_RT))


@dataclass(frozen=True)
class EvaluationMasks:
    """Held-out sequences with a fixed number of masked tokens each, spread over all numbers that are possible."""

    rows_D: Integers
    """Index of the sequence of each draw; with fewer sequences than draws, sequences repeat."""
    counts_D: Integers
    """Number of masked tokens of each draw."""
    shares_D: Floats
    """`counts_D` as a share of the maskable tokens."""

    @classmethod
    def of(cls, sequences: Sequences | RaggedPairs, num_draws: int) -> "EvaluationMasks":
        """Spread `num_draws` draws over the sequences and over all counts."""
        draws_D = np.arange(num_draws)
        rows_D = draws_D * len(sequences) // num_draws if num_draws <= len(sequences) else draws_D % len(sequences)
        order_D = np.argsort(sampler.randoms(_EVALUATION_SEED, "draw", 0, draws_D, 1)[:, 0])
        within_D = sampler.uniforms(_EVALUATION_SEED, "count", 0, draws_D, 1)[:, 0]
        sizes_D = sequences.lengths_N[rows_D] - sequences.starts_N[rows_D]
        counts_D = 1 + ((order_D + within_D) / num_draws * sizes_D).astype(np.int64)
        return cls(rows_D, counts_D, counts_D / sizes_D)

    def masks(self, sequences: Sequences | RaggedPairs, draws_B: Samples) -> Booleans:
        """Return the masked positions of some of the draws. Shape (B, T)."""
        rows_B = self.rows_D[draws_B]
        lengths_B = sequences.lengths_N[rows_B]
        length = int(lengths_B.max())
        order_BT = sampler.randoms(_EVALUATION_SEED, "evaluation", 0, draws_B, length) >> np.uint64(1)
        order_BT[~_between(sequences.starts_N[rows_B], lengths_B, length)] = np.uint64(2**64 - 1)
        ranks_BT = order_BT.argsort(axis=1).argsort(axis=1)
        chosen_BT: Booleans = ranks_BT < self.counts_D[draws_B][:, None]
        return chosen_BT

    def batches(
        self, sequences: Sequences | RaggedPairs, batch_size: int, *, rank: int = 0, world_size: int = 1
    ) -> Iterator[tuple[Samples, Tokens, Booleans, bool]]:
        """Yield draws_B, tokens_BT, masked_BT, and whether they are of this rank alone (see `batches_of_rank`)."""
        for draws_B, is_own in sampler.batches_of_rank(len(self.rows_D), batch_size, rank, world_size):
            yield draws_B, sequences.rows(self.rows_D[draws_B]), self.masks(sequences, draws_B), is_own
