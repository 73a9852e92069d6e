"""Buffers on disk for text that is larger than memory: documents and word counts; the names of cached results.

Shape suffix: N documents.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import sqlite3
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbtools.data import split
from nbtools.data.split import DataDigest
from nbtools.errors import DataError, Say, plural
from nbtools.rundir.json_files import read_json, write_json

_MOST_WORDS = 2**18
"""Words that are counted in memory, which takes about 40 MB."""
_COUNTED_ON_DISK = """
    PRAGMA journal_mode = OFF;
    PRAGMA cache_size = -16384;
    CREATE TABLE counts (word BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID;
    BEGIN;
"""
"""A database that is thrown away, with 16 MB of it in memory."""
_ADD = "INSERT INTO counts VALUES (?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
_MOST_COMMON = "SELECT word FROM counts ORDER BY count DESC, word LIMIT ?"

_SAY_EVERY_S = 10.0
_NO_LIMIT = 2**63
_DIGEST = "data.json"

Selection = npt.NDArray[np.bool_]


@contextlib.contextmanager
def writing(folder: Path, what: str = "tokenized text", step: str = "") -> Iterator[None]:
    """Turn an error of the file system, such as a full disk, into a DataError that names `folder`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{folder}: the {what} cannot be written there: {error}{step}") from error


def content_name(content: Iterable[object]) -> str:
    """Return a hash of JSON values, that of their list, as the name of what was made from them."""
    digest = hashlib.sha256(b"[")
    for number, item in enumerate(content):
        digest.update(f"{', ' if number else ''}{json.dumps(item)}".encode())
    digest.update(b"]")
    return digest.hexdigest()[:32]


def with_progress(texts: Iterable[str], say: Say, what: str, total: int | None = None) -> Iterator[str]:
    """Yield texts, and print every ten seconds the progress, the rate, and with `total` the remaining time.

    Args:
        what: such as "tokenizing".
        total: characters of all texts; 0 if unknown.
    """
    done, start = 0, time.monotonic()
    said = start
    for number, text in enumerate(texts, start=1):
        yield text
        done += len(text)
        if (now := time.monotonic()) - said >= _SAY_EVERY_S:
            said, rate = now, done / (now - start)
            share = f"{done / total:.0%} of {total:,} characters" if total else f"{number:,} documents so far"
            left = f", {timedelta(seconds=round((total - done) / rate))} left" if total and rate else ""
            say(f"{what}: {share}, {rate / 1e6:.2f} million characters/s{left}")


class Tokenized(NamedTuple):
    """A folder of token ids for a training."""

    folder: Path
    commits: Mapping[str, str] = {}
    """Commit of each dataset of the hub in the folder, by its name; empty if unknown, or for local files."""


class Spool(contextlib.AbstractContextManager["Spool"]):
    """Documents in an unnamed temporary file, for several passes with one document in memory.

    Whole documents are held out for evaluation and test, as in `split.divide`. The source may change
    between two passes, or need another download.
    """

    def __init__(self, documents: Iterable[str], folder: Path, test_fraction: float = 0.0) -> None:
        self._test_fraction = test_fraction
        self.lengths_N = array("q")
        """Length of each document in characters."""
        self._keys_N = array("Q")
        self._digest = hashlib.sha256()
        self._sizes_N = array("q")  # in bytes
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `__exit__`
        with contextlib.ExitStack() as stack:
            stack.callback(self._file.close)
            for document in documents:
                data = document.encode("utf-8", "surrogatepass")
                self._file.write(data)
                self._digest.update(hashlib.sha256(data).digest())
                self._keys_N.append(split.key_of(document))
                self.lengths_N.append(len(document))
                self._sizes_N.append(len(data))
            stack.pop_all()  # success: the file stays open

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def texts(self, selected_N: Selection) -> Iterator[str]:
        """Yield the selected documents in their order."""
        self._file.flush()
        with os.fdopen(os.dup(self._file.fileno()), "rb") as file:
            file.seek(0)
            for size, is_selected in zip(self._sizes_N, selected_N, strict=True):
                if is_selected:
                    yield file.read(size).decode("utf-8", "surrogatepass")
                else:
                    file.seek(size, os.SEEK_CUR)

    @functools.cached_property
    def parts_N(self) -> npt.NDArray[np.int8]:
        """The part of each document; DataError if all are equal."""
        return split.divide(self._keys_N, self.lengths_N, self._test_fraction)

    def part(self, part: int, say: Say | None = None, what: str = "", most: int = _NO_LIMIT) -> Iterator[str]:
        """Yield the documents of a part, such as `split.TRAIN`; `say` reports the progress of `what`.

        Of a part of more than `most` characters, every second, third, ... document.
        """
        selected_N, lengths_N = self.parts_N == part, np.asarray(self.lengths_N)
        every = 1 + int(lengths_N[selected_N].sum()) // (most + 1)
        selected_N &= selected_N.cumsum() % every == 0
        texts = self.texts(selected_N)
        return texts if say is None else with_progress(texts, say, what, int(lengths_N[selected_N].sum()))

    @property
    def repeated_note(self) -> str:
        """A sentence on documents that occur more than once; empty without any."""
        return split.repeated_note(self._keys_N)

    def digest(self) -> DataDigest:
        """Return a hash of all documents, taken while they were read."""
        size = f"{plural(len(self.lengths_N), 'document')} of {sum(self.lengths_N):,} characters"
        return DataDigest(self._digest.hexdigest(), size)


class WordCounts(contextlib.AbstractContextManager["WordCounts"]):
    """Exact counts of any number of different words: in memory, and beyond a limit in a database on disk."""

    def __init__(self, folder: Path | None = None) -> None:
        """Count in memory, and in a file without a name in `folder`."""
        self._counts: Counter[str] = Counter()
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            # No other process opens it, and some file systems have no locks.
            self._on_disk = sqlite3.connect(f"{Path(file.name).as_uri()}?nolock=1", uri=True, isolation_level=None)
            self._on_disk.executescript(_COUNTED_ON_DISK)

    def __exit__(self, *_: object) -> None:
        self._on_disk.close()

    def add(self, words: Iterable[str]) -> None:
        """Add words to the counts."""
        self._counts.update(words)
        if len(self._counts) > _MOST_WORDS:
            self._move_to_disk()

    def most_common(self, num_words: int) -> list[str]:
        """Return the most frequent words; words of equal frequency are sorted."""
        self._move_to_disk()
        found = self._on_disk.execute(_MOST_COMMON, (num_words,))
        return [word.decode("utf-8", "surrogatepass") for (word,) in found]

    def _move_to_disk(self) -> None:
        encoded = ((word.encode("utf-8", "surrogatepass"), count) for word, count in sorted(self._counts.items()))
        try:
            self._on_disk.executemany(_ADD, encoded)
        except sqlite3.OperationalError as error:  # such as a full disk
            raise OSError(str(error)) from error
        self._counts.clear()


def rows_of(flat: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """Return a long array as rows of `length` values, without the rest at its end."""
    return flat[: len(flat) // length * length].reshape(-1, length)


class Counts:
    """Counts of all tokens, the unknown ones, and special tokens read from a text that is tokenized piece by piece."""

    def __init__(self, unknown_id: int | None) -> None:
        self.unknown_id = unknown_id
        self.tokens = 0
        self.unknown = 0
        self.special = 0

    def reading(self, texts: Iterable[str], special_in: Callable[[str], int]) -> Iterator[str]:
        """Yield the texts; `special_in` counts the special tokens in each."""
        for text in texts:
            self.special += special_in(text)
            yield text

    def of(self, pieces: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        """Yield the pieces, and count their tokens and unknown tokens."""
        for piece in pieces:
            self.tokens += len(piece)
            self.unknown += 0 if self.unknown_id is None else int(np.count_nonzero(piece == self.unknown_id))
            yield piece


def save_digest(folder: Path, digest: DataDigest) -> None:
    """Write the digest of the data into a folder of its tokens, for `digest_in`."""
    write_json(folder / _DIGEST, dataclasses.asdict(digest))


def digest_in(folder: Path) -> DataDigest | None:
    """Return the digest of the data of a folder of tokens; None for a folder of an older version."""
    known = read_json(folder / _DIGEST)
    return None if known is None else DataDigest(known["digest"], known["size"])


def unknown_note(unknown: int, tokens: int) -> list[str]:
    """Return a sentence on unknown tokens, if there are any."""
    share = f"{unknown:,} of {tokens:,} tokens ({unknown / max(tokens, 1):.2%})"
    why = "are not in the vocabulary and become its unknown token; raise vocab_size to keep more"
    return [f"{share} {why}"] * bool(unknown)


def special_note(special: int) -> list[str]:
    """Return a sentence on special tokens that were read from a text, if there are any."""
    read = f"{plural(special, 'special token')} written in the text became control tokens of the model"
    return [f"{read}; special_tokens='text' reads them as characters"] * bool(special)


def save_pieces(path: Path, pieces: Iterable[npt.NDArray[Any]], dtype: npt.DTypeLike) -> int:
    """Write one long array piece by piece, in the format of `np.save`, and return its length."""

    def write_header(length: int) -> int:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(file, header)
        return file.tell()

    length = 0
    with path.open("wb") as file:
        start = write_header(0)
        for piece in pieces:
            file.write(piece.astype(dtype, copy=False).tobytes())
            length += len(piece)
        file.seek(0)
        assert write_header(length) == start, "NumPy leaves room in the header for a growing array"
    return length
