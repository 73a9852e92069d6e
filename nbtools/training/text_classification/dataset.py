"""Batches of characters for CANINE: encoding, random edits, and batches of similar length.

The input is `"<lang>[SEP]<text>"`, character by character, between CANINE's own [CLS] and [SEP];
so the language is part of the text, and may be unknown ("unk"). All random numbers are a pure function of (seed, epoch,
row), and every pass of an optimizer step is as wide as the longest row of the whole step: the batch of a row does not
depend on the number of ranks or passes. (CANINE's convolutions read the padding.)

Shape suffixes: N rows, B batch, T characters, K codes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from nbtools.data.text_classification.coded_texts import UNKNOWN_LANG, CodedTexts, Lengths, Rows
from nbtools.training.engine.sampler import Order, SampleOrder, epoch_order, randoms, uniforms

BEGIN, END = 0xE000, 0xE001
"""CANINE's [CLS] and [SEP]: code points that Unicode leaves to private use."""
_BETWEEN = "[SEP]"
_NUM_EDITS = 3
_DELETE, _INSERT, _REPLACE, _SWAP, _SWAP_WORDS, _NUM_KINDS = range(6)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WINDOW = 50
_AT_ONCE = 8192

Key = tuple[int, Rows, int]
"""Epoch, rows and width of a forward pass."""


def encode(text: str, lang: str, longest: int) -> npt.NDArray[np.uint32]:
    """Return the code points of an input of at most `longest` characters, marks included; the text's end is cut."""
    characters = f"{lang}{_BETWEEN}{text}"[: longest - 2]
    return np.frombuffer(f"{chr(BEGIN)}{characters}{chr(END)}".encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def input_widths(lengths_N: Order, lang_lengths_N: Order) -> Order:
    """Return the lengths of inputs before `encode` cuts them, from those of texts and languages. Shape (N,)."""
    return lengths_N + lang_lengths_N + len(_BETWEEN) + 2


def padded(encoded: Sequence[npt.NDArray[np.uint32]], width: int) -> Tensor:
    """Return inputs as one tensor, padded with zeros. Shape (B, `width`)."""
    inputs_BT = np.zeros((len(encoded), width), dtype=np.int64)
    for row, characters in enumerate(encoded):
        inputs_BT[row, : len(characters)] = characters
    return torch.from_numpy(inputs_BT)


@dataclass(frozen=True)
class Augmentation:
    """Random edits of the training rows per epoch."""

    seed: int
    edited_share: float
    unknown_share: float

    def draws(self, epoch: int, samples_B: Rows) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Rows]:
        """Return which rows are edited, which lose their language, and the random numbers of the edits, (B, 3, 3)."""
        fate_B2 = uniforms(self.seed, "augmentation", epoch, samples_B, 2)
        draws_BK = randoms(self.seed, "edits", epoch, samples_B, 3 * _NUM_EDITS) >> np.uint64(2)
        draws_BE3 = draws_BK.astype(np.int64).reshape(-1, _NUM_EDITS, 3)
        return fate_B2[:, 0] < self.edited_share, fate_B2[:, 1] < self.unknown_share, draws_BE3

    @staticmethod
    def edit(text: str, draws_E3: Rows) -> str:
        """Delete, insert, replace or swap letters, or swap words, once per row of draws (kind, place, letter)."""
        for kind, place, letter in draws_E3.tolist():
            at = place % len(text)
            kind %= _NUM_KINDS
            if kind == _DELETE and len(text) > 1:
                text = text[:at] + text[at + 1 :]
            elif kind == _INSERT:
                text = text[:at] + _LETTERS[letter % len(_LETTERS)] + text[at:]
            elif kind == _REPLACE:
                text = text[:at] + _LETTERS[letter % len(_LETTERS)] + text[at + 1 :]
            elif kind == _SWAP:
                text = text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
            elif kind == _SWAP_WORDS and " " in text:
                words = text.split(" ")
                at = place % (len(words) - 1)
                words[at], words[at + 1] = words[at + 1], words[at]
                text = " ".join(words)
        return text


@dataclass(eq=False)
class CharacterDataset(Dataset[tuple[Tensor, Tensor]]):
    """Batches for training: `dataset[epoch, rows, width]` gives inputs_BT and labels_BK, padded with -1."""

    table: CodedTexts
    rows_N: Rows
    augmentation: Augmentation
    longest: int
    max_codes: int

    def __post_init__(self) -> None:
        self._lengths_N = self.table.lengths()[self.rows_N]
        self._lang_lengths_N = self.table.lang_lengths()[self.rows_N]

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        epoch, samples_B, widest = key
        is_edited_B, is_unknown_B, draws_BE3 = self.augmentation.draws(epoch, samples_B)
        encoded = []
        for place, row in enumerate(self.rows_N[samples_B].tolist()):
            text = self.table.text(row)
            if is_edited_B[place]:
                text = self.augmentation.edit(text, draws_BE3[place])
            encoded.append(encode(text, UNKNOWN_LANG if is_unknown_B[place] else self.table.lang(row), self.longest))
        return padded(encoded, widest), labels(self.table, self.rows_N[samples_B], self.max_codes)

    @property
    def num_cut(self) -> int:
        """Number of texts longer than an input."""
        return int((input_widths(self._lengths_N, self._lang_lengths_N) > self.longest).sum())

    def widths(self, epoch: int) -> Lengths:
        """Return the maximum length of each sample in `epoch`; deletions are not counted. Shape (N,)."""
        num_samples = len(self.rows_N)
        widths_N = np.empty(num_samples, dtype=np.int32)
        for start in range(0, num_samples, _AT_ONCE):
            samples_B = np.arange(start, min(start + _AT_ONCE, num_samples))
            is_edited_B, is_unknown_B, draws_BE3 = self.augmentation.draws(epoch, samples_B)
            inserted_B = (draws_BE3[:, :, 0] % _NUM_KINDS == _INSERT).sum(1) * is_edited_B
            lang_B = np.where(is_unknown_B, len(UNKNOWN_LANG), self._lang_lengths_N[samples_B])
            widths_N[samples_B] = input_widths(self._lengths_N[samples_B] + inserted_B, lang_B)
        return np.minimum(widths_N, self.longest, out=widths_N)


def labels(table: CodedTexts, rows_B: Rows, max_codes: int) -> Tensor:
    """Return the classes of rows, padded with -1. Shape (B, `max_codes`)."""
    labels_BK = np.full((len(rows_B), max_codes), -1, dtype=np.int64)
    for place, row in enumerate(rows_B.tolist()):
        classes = table.codes(row)
        labels_BK[place, : len(classes)] = classes
    return torch.from_numpy(labels_BK)


class LengthOrder(Sampler[Key]):
    """A `SampleOrder` in which the samples of a step have similar lengths, to reduce padding.

    Every epoch is one permutation of all samples, cut into windows of 50 steps; each window is sorted by length and cut
    into chunks, and all chunks are shuffled. The chunk size of an epoch is the effective batch at its start (`chunk`):
    a run resumed with another batch size continues with exactly the remaining samples.
    """

    def __init__(self, order: SampleOrder, dataset: CharacterDataset, chunk: int | None = None) -> None:
        self.order = order
        self.dataset = dataset
        self.chunk = chunk or order.effective_batch

    def chunk_of(self, epoch: int) -> int:
        """Return the chunk size of an epoch, for the checkpoint."""
        return self.chunk if epoch == self.order.epoch else self.order.effective_batch

    def __iter__(self) -> Iterator[Key]:
        order, epoch, position = self.order, self.order.epoch, self.order.position
        size, batch_size = order.effective_batch, order.batch_size
        while True:
            widths_N = self.dataset.widths(epoch)
            order_N = by_length(widths_N, epoch_order(order.seed, epoch, order.num_samples), self.chunk_of(epoch))
            while position + size <= order.num_samples:
                step = order_N[position : position + size].astype(np.int64)
                for micro_step in range(order.gradient_accumulation_steps):
                    start = (micro_step * order.world_size + order.rank) * batch_size
                    yield epoch, step[start : start + batch_size], int(widths_N[step].max())
                position += size
            epoch, position = epoch + 1, 0


def by_length(widths_N: Order, order_N: Order, chunk: int) -> Order:
    """Group samples of similar width into shuffled chunks; an incomplete chunk stays at the end."""
    num_chunks = len(order_N) // chunk
    if not num_chunks:
        return order_N
    sorted_N = order_N.copy()
    whole = sorted_N[: num_chunks * chunk]
    for start in range(0, len(whole), _WINDOW * chunk):
        window = whole[start : start + _WINDOW * chunk]
        window[:] = window[np.argsort(widths_N[window], kind="stable")]
    shuffled = np.random.default_rng(order_N[:4]).permutation(num_chunks)
    whole[:] = whole.reshape(-1, chunk)[shuffled].reshape(-1)
    return sorted_N


def equal_widths(widths_N: Order, batch_size: int) -> list[tuple[Rows, int]]:
    """Divide samples into batches of one width each, rounded up to CANINE's multiple of four.

    For evaluation and prediction: the output for a text then does not depend on the other texts.
    """
    rounded_N = -(-widths_N // 4) * 4
    batches = []
    for each in np.unique(rounded_N):
        members = np.flatnonzero(rounded_N == each)
        batches += [(members[start : start + batch_size], int(each)) for start in range(0, len(members), batch_size)]
    return batches


def encoded_batches(
    texts: Sequence[str], langs: Sequence[str], longest: int, batch_size: int
) -> Iterator[tuple[Rows, Tensor]]:
    """Yield batches of texts of equal width: their indices, and inputs_BT."""
    encoded = [encode(text, lang, longest) for text, lang in zip(texts, langs, strict=True)]
    widths_N = np.array([len(characters) for characters in encoded], dtype=np.int64)
    for members, widest in equal_widths(widths_N, batch_size):
        yield members, padded([encoded[place] for place in members], widest)
