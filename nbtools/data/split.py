"""Division of texts for training, evaluation and test, with equal texts in one part; digests of what is divided.

Two texts are equal if they differ in nothing but case, white space, line ends and composed characters. Equal texts are
a group; the groups are ordered by a hash of their text, and fill the held-out part to its share of all characters. The
result depends neither on the order of the texts nor on the process. Eight bytes are held per text.

Shape suffixes: N texts, G groups of equal texts, H held-out texts.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nbtools.errors import DataError, plural

RULE = 2
"""Version of the rule below: checkpoints of another version are of another division. The first saw no equal texts."""
TRAIN, EVALUATION, TEST = range(3)
"""Indices of the parts of a dataset."""
HELD_OUT = 0.1
_BLANKS = bytes(range(33))

Keys = npt.NDArray[np.uint64]
Chosen = npt.NDArray[np.bool_]


def key_of(text: str) -> int:
    """Return a hash of 64 bits that equal texts share."""
    folded = text.strip().casefold()
    folded = folded if folded.isascii() else unicodedata.normalize("NFC", folded)
    letters = folded.encode("utf-8", "surrogatepass").translate(None, _BLANKS)
    return int.from_bytes(hashlib.blake2b(letters, digest_size=8).digest(), "little")


def keys_of(texts: Iterable[str]) -> Keys:
    """Return the hash of each text. Shape (N,)."""
    return np.fromiter(map(key_of, texts), dtype=np.uint64)


def divide(
    keys_N: Sequence[int] | Keys,
    lengths_N: Sequence[int] | npt.NDArray[Any],
    test_fraction: float = 0.0,
    origin: str = "",
    what: str = "different document",
    step: str = "give a longer text or a lower min_words",
) -> npt.NDArray[np.int8]:
    """Return the part of each text: a tenth of the text is held out, and `test_fraction` of that is for the test.

    The training part is the same with and without a test: of three texts or more at least two are held out.

    Raises:
        DataError: all texts are equal; the message says `what` is too few, and the next `step`.
    """
    keys_N, lengths_N = np.asarray(keys_N, dtype=np.uint64), np.asarray(lengths_N)
    held_out_N = choose(keys_N, lengths_N, HELD_OUT, fewest=2)
    if not held_out_N.any():
        found = plural(len(np.unique(keys_N)), what)
        raise DataError(f"{origin}{found}; at least two are needed, one of them to evaluate on: {step}")
    return with_test(held_out_N, keys_N, lengths_N, test_fraction)


def with_test(
    held_out_N: Chosen, keys_N: Keys, lengths_N: npt.NDArray[Any], test_fraction: float
) -> npt.NDArray[np.int8]:
    """Return the part of each text, with `test_fraction` of the held-out text for the test if it has two groups."""
    parts_N = np.where(held_out_N, EVALUATION, TRAIN).astype(np.int8)
    if test_fraction:
        for_test_H = choose(keys_N[held_out_N], lengths_N[held_out_N], test_fraction)
        parts_N[np.flatnonzero(held_out_N)[for_test_H]] = TEST
    return parts_N


def choose(keys_N: Keys, lengths_N: npt.NDArray[Any], share: float, fewest: int = 1) -> Chosen:
    """Choose whole groups, in the order of their keys, that together have at most `share` of the characters.

    Larger groups than that are passed over. If too few fit, the shortest are taken: `fewest` of them, but not all.
    """
    _, groups_N = np.unique(keys_N, return_inverse=True)
    sizes_G = np.bincount(groups_N, lengths_N + 1.0)  # at least one character each
    chosen_G, budget = np.zeros(len(sizes_G), dtype=np.bool_), share * float(sizes_G.sum())
    for group, size in enumerate(sizes_G.data):  # a list of five million numbers would take 200 MB
        if size <= budget:
            chosen_G[group] = True
            budget -= size
            if budget < 1:
                break
    missing = min(fewest, len(sizes_G) - 1) - int(chosen_G.sum())
    if missing > 0:
        by_size_G = np.argsort(sizes_G, kind="stable")
        chosen_G[by_size_G[~chosen_G[by_size_G]][:missing]] = True
    chosen_N: Chosen = chosen_G[groups_N]
    return chosen_N


def repeated_note(keys_N: Sequence[int] | Keys, what: str = "document") -> str:
    """Return a sentence on the texts that have an equal one; empty without any."""
    counts_G = np.unique(np.asarray(keys_N, dtype=np.uint64), return_counts=True)[1]
    repeated = int(counts_G[counts_G > 1].sum())
    return f"{repeated:,} of {plural(len(keys_N), what)} occur more than once; each is in one part" if repeated else ""


@dataclass(frozen=True)
class DataDigest:
    """A hash of the data of a training, to compare with that of an earlier one."""

    digest: str
    """Hash of the texts with what belongs to them, in their order."""
    size: str
    """Number of texts, for a message."""
    rule: str = f"{RULE}"
    """Version and share of the split; empty if the data is not divided here."""


def digest_of(pieces: Iterable[bytes | memoryview]) -> str:
    """Return a hash of pieces in their order; each has an end, so that two in one differ from one."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(hashlib.sha256(piece).digest())
    return digest.hexdigest()
