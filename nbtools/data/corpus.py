"""Text corpora: reading, cleaning, splitting and counting. No torch.

The form, the schedule and the training count sequences with these functions, so the numbers agree.

Memory: `documents` reads a megabyte at a time and holds one document; the split needs no more than the lengths of all
of them. A gigabyte is cleaned in about a minute.
"""

import codecs
import io
import random
import re
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nbtools.errors import DataError
from nbtools.project import expanded, find_project

# Spelled out character by character, because Python's and the tokenizer's idea of \w and \s differ (combining marks,
# Roman numerals): both engines must cut every text at the same places.
_SPACE = "\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
_PUNCTUATION = (
    "!-/:-@\\[-\\^`{-~"  # ASCII, without the underscore of identifiers
    "\xa1-\xa9\xab-\xb1\xb4\xb6-\xb8\xbb\xbf\xd7\xf7"  # Latin-1
    "\u2010-\u2027\u2030-\u205e\u20a0-\u20bf\u2190-\u2bff"  # dashes, quotes, currencies, arrows, boxes, symbols
    "\u3001-\u3003\u3008-\u3020\u3030\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65"  # of East Asian scripts
)
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # written without spaces: one word each

WORD_PATTERN = f"[{_PUNCTUATION}{_IDEOGRAPHS}]|[^{_SPACE}{_PUNCTUATION}{_IDEOGRAPHS}]+"
"""One word or one punctuation character of lower-cased text; means the same to `re` and to `tokenizers.Regex`."""

_WORD = re.compile(WORD_PATTERN)
_REPEATED_PUNCTUATION = re.compile(f"([{_PUNCTUATION}])\\1+")
_SPACES = re.compile(f"[{_SPACE}]+")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n")

FEWEST_DOCUMENTS = 20
"""A dataset of fewer files than this is cut into sections, so that a held-out tenth exists."""
_LONGEST_DOCUMENT = 1_000_000
_NUM_SECTIONS = 50
_SHORTEST_SECTION, _LONGEST_SECTION = 200, _LONGEST_DOCUMENT // _NUM_SECTIONS
_READ_BYTES = 2**20
_EVALUATION_SHARE = 0.1


def documents(dataset: str | None, min_words: int = 1, *, root: str | Path | None = None) -> Iterator[str]:
    """Read, clean and cut the text that `dataset` names, one document after the other.

    A folder gives one document per `.txt` file, in the order of their paths. One file, fewer than 20, or one larger
    than a megabyte is cut into sections of consecutive paragraphs (else lines, else words), each a document.

    Args:
        dataset: a text file or a folder of `.txt` files (searched recursively; UTF-8), relative to the project root;
            None for the English text that ships with Python.
        min_words: documents with fewer words are left out.
        root: what a relative `dataset` starts from; the project of the working directory when None.

    Raises:
        DataError: there is no such path, no text in it, or it is not UTF-8.
    """
    if dataset is None:
        return with_words((text for _, text in python_topics()), min_words, "the text that ships with Python")
    path = dataset_path(dataset, root)
    return with_words(clean_documents(_texts_in(path), f"dataset {str(path)!r}"), min_words, str(path))


def clean_documents(texts: Iterable[str], origin: str) -> Iterator[str]:
    """Clean texts and leave out those without a letter; what is longer than a megabyte is cut into sections.

    Raises:
        DataError: nothing is left.
    """
    is_empty = True
    for text in texts:
        for section in _sections([text], _LONGEST_SECTION) if len(text) > _LONGEST_DOCUMENT else [text]:
            if document := clean_document(section):
                is_empty = False
                yield document
    if is_empty:
        raise DataError(f"{origin}: empty, no line of it has a letter; choose another dataset")


def with_words(documents: Iterable[str], min_words: int, origin: str) -> Iterator[str]:
    """Leave out documents with fewer words.

    Raises:
        DataError: none is left.
    """
    num_documents, is_empty = 0, True
    for document in documents:
        num_documents += 1
        if _has_words(document, min_words):
            is_empty = False
            yield document
    if is_empty:
        raise DataError(
            f"{origin}: none of its {num_documents} documents has {min_words} words (min_words); "
            "lower min_words or choose another dataset"
        )


def dataset_path(dataset: str | Path, root: str | Path | None = None) -> Path:
    """Return the absolute path of a dataset; a relative one starts from the project root, not from the caller's cwd."""
    path = expanded(dataset)
    if not path.is_absolute():
        path = Path(root if root is not None else find_project().root) / path
    return path


def files_in(path: Path) -> list[Path]:
    """Return the text files of a dataset: itself, or every `.txt` below it in the order of their paths.

    Raises:
        DataError: there is no such path, or a folder without a `.txt` file.
    """
    files: list[Path] | None = None
    try:
        kind = path.stat().st_mode
        if stat.S_ISREG(kind):
            return [path]
        if stat.S_ISDIR(kind):
            files = sorted(file for file in path.rglob("*.txt") if file.is_file())
        why = "neither a file nor a folder"
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        why = "no such file or folder" if isinstance(error, FileNotFoundError) else str(error)[:60]
    if files is None:
        raise DataError(f"dataset {str(path)[:200]!r}: {why}; give a text file or a folder of .txt files")
    if not files:
        raise DataError(f"dataset {str(path)!r}: no .txt file in this folder or below; rename the text files to *.txt")
    return files


def clean_document(text: str) -> str:
    """Drop lines without a letter, and collapse runs of one punctuation character and of spaces.

    Table rules would otherwise be a third of all words in Python's own documentation, and easy to predict.
    """
    lines = []
    for line in text.splitlines():
        line = _SPACES.sub(" ", _REPEATED_PUNCTUATION.sub(r"\1", line)).strip()
        if any(character.isalpha() for character in line):
            lines.append(line)
        elif not line and lines and lines[-1]:
            lines.append("")  # one blank line keeps paragraphs apart
    return "\n".join(lines).strip()


def held_out_documents(lengths_N: Sequence[int], seed: int = 0) -> npt.NDArray[np.bool_]:
    """Choose whole documents to hold out, about 10% of the text, by their lengths in characters and the seed alone.

    Raises:
        DataError: there is only one document.
    """
    if len(lengths_N) < 2:
        raise DataError(
            f"{len(lengths_N)} document: at least two are needed, one of them to evaluate on; "
            "give a longer text or a lower min_words"
        )
    order = array("q", range(len(lengths_N)))  # a list of five million numbers would take 200 MB
    random.Random(seed).shuffle(order)
    budget = _EVALUATION_SHARE * sum(lengths_N)
    held_out_N = np.zeros(len(lengths_N), dtype=np.bool_)
    for index in order:
        if lengths_N[index] <= budget:
            held_out_N[index] = True
            budget -= lengths_N[index]
    if not held_out_N.any():
        held_out_N[min(order, key=lambda index: lengths_N[index])] = True
    return held_out_N


def words(text: str) -> list[str]:
    """Cut text into lower-cased words and punctuation characters, exactly as the word-level tokenizer does."""
    return _WORD.findall(lowered(text))


def lowered(text: str) -> str:
    """Lower-case character by character: the tokenizer knows no final sigma either."""
    return text.lower().replace("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")


def num_words(text: str) -> int:
    """Return `len(words(text))` without keeping the words."""
    return sum(1 for _ in _WORD.finditer(lowered(text)))


def count_tokens(documents: Iterable[str], num_tokens: Callable[[str], int] = num_words) -> tuple[int, int]:
    """Return the tokens of the training and of the evaluation documents, each with its separator, in one pass.

    Raises:
        DataError: there is only one document, so nothing can be held out.
    """
    lengths_N, counts_N = array("q"), array("q")
    for document in documents:
        lengths_N.append(len(document))
        counts_N.append(num_tokens(document) + 1)
    held_out_N = held_out_documents(lengths_N)
    counts = np.frombuffer(counts_N, dtype=np.int64)
    return int(counts[~held_out_N].sum()), int(counts[held_out_N].sum())


def _has_words(document: str, least: int) -> bool:
    return any(number >= least for number, _ in enumerate(_WORD.finditer(document), start=1))


def _texts_in(path: Path) -> Iterator[str]:
    files = files_in(path)
    for file in files:
        pieces = _pieces(file)
        beginning = ""
        for piece in pieces:
            beginning += piece
            if len(beginning) > _LONGEST_DOCUMENT:
                yield from _sections(chain([beginning], pieces), _LONGEST_SECTION)
                break
        else:
            size = min(max(len(beginning) // _NUM_SECTIONS, _SHORTEST_SECTION), _LONGEST_SECTION)
            yield from _sections([beginning], size) if len(files) < FEWEST_DOCUMENTS else [beginning]


def _pieces(file: Path) -> Iterator[str]:
    """Read a file a megabyte at a time: without a byte order mark, every line end as one line feed."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line_ends = io.IncrementalNewlineDecoder(None, translate=True)
    num_bytes, is_first = 0, True
    try:
        with file.open("rb") as opened:
            while True:
                data = opened.read(_READ_BYTES)
                num_undecoded = len(decoder.getstate()[0])  # of a character that the last piece cut in two
                text = decoder.decode(data, final=not data)
                num_bytes += len(data)
                yield line_ends.decode(text.removeprefix("\ufeff") if is_first else text, final=not data)
                is_first = is_first and not text
                if not data:
                    return
    except UnicodeDecodeError as error:
        position = num_bytes - num_undecoded + error.start
        raise DataError(
            f"{file}: byte {position} (0x{error.object[error.start]:02x}) is not UTF-8; "
            f"convert the file, for instance with: iconv -f latin1 -t utf-8 {file.name}"
        ) from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error


def _sections(pieces: Iterable[str], size: int) -> Iterator[str]:
    """Cut text into sections of `size` to twice as many characters: at blank lines, else at lines, else at spaces."""
    text, start = "", 0
    for piece in pieces:
        text, start = text[start:] + piece, 0
        while len(text) - start > 2 * size:  # where to cut depends on so many characters
            end = _end_of_section(text, start, size)
            yield text[start:end]
            start = end
    while len(text) - start > size:
        end = _end_of_section(text, start, size)
        yield text[start:end]
        start = end
    yield text[start:]


def _end_of_section(text: str, start: int, size: int) -> int:
    end = start + size
    blank = _BLANK_LINES.search(text, end - 1, end + size)
    if blank:
        return blank.end()
    for mark in ("\n", " "):
        found = text.find(mark, end, end + size)
        if found >= 0:
            return found + 1
    return end


def python_topics() -> list[tuple[str, str]]:
    """Name and text of Python's language reference by topic, longest first, each paragraph in its first topic only.

    Some topics are parts of others ("if" of "compound", a fifth of all words): left in, they would be trained on and
    held out at once. The text differs between Python versions.
    """
    from pydoc_data.topics import topics  # half a megabyte: only when asked for

    seen: set[str] = set()
    documents = []
    for name, text in sorted(topics.items(), key=lambda item: (-len(item[1]), item[0])):
        paragraphs = []
        for paragraph in clean_document(text).split("\n\n"):
            key = " ".join(paragraph.split())
            if key not in seen:
                seen.add(key)
                paragraphs.append(paragraph)
        if paragraphs:
            documents.append((name, "\n\n".join(paragraphs)))
    return documents
