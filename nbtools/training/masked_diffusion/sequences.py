"""Token ids for masked diffusion: rows of equal length, and pairs of a prompt and an answer of any length.

Shape suffixes: N samples, B batch, T positions.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[Any]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sequences:
    """Token ids in rows of equal length; the first `starts_N` tokens of each are a prompt, which is never masked."""

    tokens_NT: Tokens
    starts_N: Integers

    def __len__(self) -> int:
        return len(self.tokens_NT)

    @property
    def lengths_N(self) -> Integers:
        """Tokens of each sequence; takes no memory."""
        return np.broadcast_to(np.int64(self.tokens_NT.shape[1]), len(self))

    def rows(self, samples_B: Integers) -> Integers:
        """Return the tokens of some sequences. Shape (B, T)."""
        rows_BT: Integers = self.tokens_NT[samples_B].astype(np.int64)
        return rows_BT


@dataclass(frozen=True)
class RaggedPairs:
    """Prompts and answers behind one another, each with one end-of-text token behind its answer."""

    tokens: Tokens
    """Tokens of all pairs, concatenated in one flat file."""
    offsets: Integers
    """Start of each pair in `tokens`, and the end of the last one; shape (N + 1,)."""
    starts_N: Integers
    """Number of tokens of each prompt."""
    eos_id: int
    padded_to: int | None = None
    """Length of all rows, filled up with end-of-text tokens that count in the loss; None for lengths of their own."""

    def __len__(self) -> int:
        return len(self.starts_N)

    @functools.cached_property
    def lengths_N(self) -> Integers:
        """Tokens of each pair, with the end-of-text token, or those that fill it up."""
        if self.padded_to is not None:
            return np.broadcast_to(np.int64(self.padded_to), len(self))
        return np.diff(self.offsets)

    def rows(self, samples_B: Integers, length: int | None = None) -> Integers:
        """Return some pairs with end-of-text tokens up to `length`, by default that of the longest. Shape (B, T)."""
        lengths_B = self.offsets[samples_B + 1] - self.offsets[samples_B]
        length = length or self.padded_to or int(lengths_B.max())
        rows_BT = np.full((len(samples_B), length), self.eos_id, dtype=np.int64)
        for row_T, first, size in zip(rows_BT, self.offsets[samples_B], lengths_B, strict=True):
            row_T[:size] = self.tokens[first : first + size]
        return rows_BT


def pack(lengths_B: Integers, width: int) -> tuple[Integers, Integers]:
    """Return row and first column of sequences of at most `width` tokens that share rows, the longest placed first."""
    rows_B, firsts_B = np.zeros_like(lengths_B), np.zeros_like(lengths_B)
    filled: list[int] = []
    for number in np.argsort(-lengths_B, kind="stable"):
        length = int(lengths_B[number])
        row = next((row for row, used in enumerate(filled) if used + length <= width), len(filled))
        filled += [0] * (row == len(filled))
        rows_B[number], firsts_B[number] = row, filled[row]
        filled[row] += length
    return rows_B, firsts_B
