"""Code systems: how a set of codes becomes a sequence of symbols of fixed length, and back.

A sequence is BOS, one block of symbols per code, blocks of PAD up to the largest number of codes, EOS. Codes stay
strings all the way: "04217" is not 4217. For HISCO (five digits, or -1, -2, -3 for no title, no work, no occupation) a
special code is one symbol that fills its block, so that five codes always make 27 symbols.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from nbtools.errors import DataError, shown

Formatter = Literal["hisco", "generic"]

PAD, BOS, EOS, SEP = 1, 2, 3, 4
"""Ids of the marks; 0 is unused, as in OccCANINE's files."""
_FIRST_SYMBOL = 5
_HISCO_SYMBOLS = ("-3", "-2", "-1", *"0123456789")
HISCO_SPECIAL = ("-1", "-2", "-3")
HISCO_BLOCK = 5
SEPARATOR = "&"
"""Between the HISCO codes of one cell, and between predicted codes."""
MISSING = ("?", "NA", "NaN", "nan", "N/A", "#N/A", "<NA>", "None", "null")
"""Cells without a HISCO code, like empty ones: the spellings of OccCANINE, R, pandas and spreadsheets."""
_LONGEST_CODE = 64

Array = npt.NDArray[np.int64]


def hisco_code(cell: str) -> str:
    """Return a HISCO code as it is written: five digits, or -1, -2, -3.

    Spreadsheets turn "04217" into 4217 and, in columns with gaps, 61110 into 61110.0; both are put right.

    Raises:
        ValueError: the cell is not a HISCO code; the message states the format.
    """
    text = cell.strip().removesuffix(".0")
    if text in HISCO_SPECIAL:
        return text
    if text.isascii() and text.isdecimal() and HISCO_BLOCK - 1 <= len(text) <= HISCO_BLOCK:
        return text.zfill(HISCO_BLOCK)
    raise ValueError(f"{shown(cell)} is not a HISCO code; a code has five digits, or is -1, -2 or -3")


def generic_code(cell: str) -> str:
    """Return a code of any other system as it is written, without the spaces around it.

    Raises:
        ValueError: it is too long, or not printable.
    """
    text = cell.strip()
    if len(text) > _LONGEST_CODE or not text.isprintable():
        raise ValueError(f"{shown(cell)} is not a code; a code has at most {_LONGEST_CODE} printable characters")
    return text


@dataclass(frozen=True)
class CodeSystem:
    """The codes that are a model's classes, and their spelling as symbols. Shapes: C classes, S block, L all.

    Attributes:
        formatter: how codes are written.
        codes: in the order of their classes, without duplicates: sorted, unless a published model has another order.
        symbols: in the order of their ids, which begin at 5.
        block_size: symbols of a code.
        max_codes: blocks of a sequence.
        filler: the mark behind a code that is shorter than a block: PAD, or EOS in OccCANINE's files.
    """

    formatter: Formatter
    codes: tuple[str, ...]
    symbols: tuple[str, ...]
    block_size: int
    max_codes: int
    filler: int = PAD

    @classmethod
    def of(cls, formatter: Formatter, codes: Iterable[str], max_codes: int) -> "CodeSystem":
        """Make the system of the codes that the data has; a generic one takes symbols and block size from them."""
        known = tuple(sorted(set(codes)))
        if not known:
            raise DataError("the data has no code; name the columns that hold codes with target_cols")
        if formatter == "hisco":
            return cls("hisco", known, _HISCO_SYMBOLS, HISCO_BLOCK, max_codes)
        return cls("generic", known, tuple(sorted(set("".join(known)))), max(map(len, known)), max_codes)

    @property
    def num_symbols(self) -> int:
        """Ids that a symbol can have, marks included."""
        return _FIRST_SYMBOL + len(self.symbols)

    @property
    def sequence_length(self) -> int:
        """Symbols of a sequence, BOS and EOS included."""
        return self.max_codes * self.block_size + 2

    @cached_property
    def classes(self) -> Mapping[str, int]:
        """Class index of each code."""
        return {code: number for number, code in enumerate(self.codes)}

    @cached_property
    def blocks_CS(self) -> Array:
        """The symbols of every code; one more row at the end is all PAD, so that class -1 means no code."""
        ids = {symbol: number for number, symbol in enumerate(self.symbols, start=_FIRST_SYMBOL)}
        blocks_CS = np.full((len(self.codes) + 1, self.block_size), PAD, dtype=np.int64)
        for block_S, code in zip(blocks_CS, self.codes, strict=False):
            if self.formatter == "hisco" and code in HISCO_SPECIAL:
                block_S[:] = ids[code]
            else:
                block_S[: len(code)] = [ids[symbol] for symbol in code]
                block_S[len(code) :] = self.filler
        return blocks_CS

    @cached_property
    def trie(self) -> tuple[Array, Array]:
        """The trie of the codes' symbols, with the block of PAD as one more code; node 0 is the root.

        Returns:
            The child of each node N by symbol V, -1 for none, shape (N, V), and each code's nodes, shape (C + 1, S).
        """
        nodes_CL = np.zeros((len(self.blocks_CS), self.block_size + 1), dtype=np.int64)  # first the root
        for length in range(1, self.block_size + 1):
            _, prefixes_C = np.unique(self.blocks_CS[:, :length], axis=0, return_inverse=True)
            nodes_CL[:, length] = nodes_CL.max() + 1 + prefixes_C
        children_NV = np.full((nodes_CL.max() + 1, self.num_symbols), -1)
        children_NV[nodes_CL[:, :-1], self.blocks_CS] = nodes_CL[:, 1:]
        return children_NV, nodes_CL[:, 1:]

    def to_json(self) -> dict[str, Any]:
        """Return the system as plain values."""
        return {"format": 1, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "CodeSystem":
        """Return the system that `to_json` described; DataError if something is missing or makes no sense."""
        try:
            system = TypeAdapter(cls).validate_python(content)
            if len(system.blocks_CS) != len(set(system.codes)) + 1:
                raise ValueError("the codes are not unique")
        except (KeyError, ValueError) as error:
            raise DataError(f"this is not a code system: {str(error)[:200]}") from error
        return system

    def difference(self, other: "CodeSystem") -> str:
        """Say what sets `other` apart from this system, or nothing where they are equal."""
        for name in ("formatter", "max_codes"):
            if getattr(self, name) != getattr(other, name):
                return f"{name} is {getattr(other, name)}, not {getattr(self, name)}"
        if self.codes != other.codes:
            apart = sorted(set(self.codes) ^ set(other.codes))
            return f"it has {len(other.codes)} codes, not {len(self.codes)}; they differ in {', '.join(apart[:5])}"
        return "" if self == other else "its symbols differ"
