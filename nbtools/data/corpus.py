"""Text corpora: reading, cleaning, cutting, splitting and counting. No torch.

The form, the schedule and the training count sequences with these functions, so the numbers agree.

Memory: `documents` reads half a million characters at a time and holds one document; the split needs no more than the
lengths and hashes of all of them. A gigabyte is cleaned in about a minute.
"""

import io
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Literal

import numpy as np

from nbtools.data import data_files, hub, split, tables
from nbtools.errors import DataError, plural

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
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n")  # with the carriage return of a line end between the two
_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"

Clean = Literal["none", "light"]
"""Whether a text stays as it is, or loses lines without a letter and repeated punctuation and spaces."""
SpecialTokens = Literal["text", "tokens"]
"""Whether special tokens of a pretrained tokenizer that are written in a text are characters of it, or their ids."""

FEWEST_DOCUMENTS = 20
"""A dataset of fewer files than this is cut into sections, so that a held-out tenth exists."""
_LONGEST_DOCUMENT = 1_000_000
_NUM_SECTIONS = 50
_SHORTEST_SECTION, _LONGEST_SECTION = 200, _LONGEST_DOCUMENT // _NUM_SECTIONS
_READ_CHARACTERS = 2**19


@dataclass
class LeftOut:
    """Counts of what was left out when a dataset was read."""

    num_documents: int = 0
    """All documents that were read."""
    num_missing: int = 0
    """Rows of a table without a text."""
    num_short: int = 0
    """Documents with too few words."""
    num_marks: int = 0
    """Byte order marks at the start of files."""
    num_characters: int = 0
    """Characters that cleaning dropped."""
    is_empty: bool = True
    """Whether no document has a word."""
    remarks: list[str] = field(default_factory=list)
    """Notes on files that are not read, and on a first line that may not be a column name."""

    def notes(self, min_words: int) -> list[str]:
        """Return a sentence for each kind of omission."""
        rows, documents = plural(self.num_documents + self.num_missing, "row"), plural(self.num_documents, "document")
        few = f"fewer than {plural(min_words, 'word')} (min_words)"
        sentences = (
            (self.num_missing, f"{self.num_missing:,} of {rows} left out: no text in the column"),
            (self.num_short, f"{self.num_short:,} of {documents} left out: {few}"),
            (self.num_marks, f"the byte order mark of {plural(self.num_marks, 'file')} is left out"),
            (self.num_characters, f"clean='light' left out {plural(self.num_characters, 'character')} of the text"),
        )
        return [*self.remarks, *(sentence for count, sentence in sentences if count)]


def documents(
    dataset: str | None,
    min_words: int = 1,
    *,
    clean: Clean = "none",
    root: str | Path | None = None,
    left_out: LeftOut | None = None,
    streaming: bool = True,
) -> Iterator[str]:
    """Read and cut the text that `dataset` names, one document after the other.

    A table, or a dataset of the hub, gives one document per row (see `tables.texts_of`), or its sections if the text is
    longer than a megabyte.

    A folder gives one document per `.txt` file, in the order of their paths. One file, fewer than 20, or one larger
    than a megabyte is cut into sections of consecutive paragraphs (else lines, else words), each a document; together
    they hold every character of the file.

    Args:
        dataset: a text file or a folder of `.txt` files (searched recursively; UTF-8), or of tables, relative to the
            project root; or a name of the hub (`hub.named`); None for the English text that ships with Python, which is
            always cleaned.
        min_words: files or rows with fewer words are left out.
        clean: none keeps the text as it is; light cleans each section (see `clean_document`), reads every line end as
            a line feed, and leaves out sections with fewer than `min_words`.
        root: what a relative `dataset` starts from; the project of the working directory when None.
        left_out: counts what is left out.
        streaming: download a dataset of the hub while it is read.

    Raises:
        DataError: there is no such path, no text in it, or it is not UTF-8; a download fails.
    """
    counts = LeftOut() if left_out is None else left_out
    if dataset is None:
        topics = ([text] for _, text in python_topics())
        return chosen_documents(topics, "none", min_words, "the text that ships with Python", counts)
    column = hub.split_options(dataset)[1].get("column")
    found = data_files.tables_in(dataset, root)
    if hub.named(dataset) is None:
        counts.remarks += data_files.not_read(data_files.dataset_path(dataset, root))
    if found:
        if column is None:
            counts.remarks += data_files.only_name(found[0])
        read = (tables.rows_of_tables([each], streaming=streaming, only=column) for each in found)
        texts = tables.texts_of(read, column)
        return chosen_documents(_present(texts, counts), clean, min_words, f"dataset={dataset!r}", counts)
    path = data_files.dataset_path(dataset, root)
    if column is not None:
        raise DataError(f"dataset={dataset!r}: {path.name} is text without columns; leave out ,column={column}")
    return chosen_documents(_texts_in(path, clean, counts), clean, min_words, f"dataset {str(path)!r}", counts)


def chosen_documents(
    texts: Iterable[Iterable[str]], clean: Clean, min_words: int, origin: str, left_out: LeftOut
) -> Iterator[str]:
    """Yield the sections of texts that have enough words, cleaned if `clean` is light; DataError if nothing is left."""
    num_kept = 0
    for sections in texts:
        for document in _cleaned(sections, left_out) if clean == "light" else [sections]:
            for section in _with_words(document, min_words, left_out):
                num_kept += 1
                yield section
    if left_out.is_empty:
        why = "no line of it has a letter" if clean == "light" else "it has no text"
        raise DataError(f"{origin}: empty, {why}; choose another dataset")
    if not num_kept:
        raise DataError(
            f"{origin}: none of its {plural(left_out.num_documents, 'document')} has {min_words} words (min_words); "
            "lower min_words or choose another dataset"
        )


def _present(texts: Iterable[str | None], left_out: LeftOut) -> Iterator[Iterable[str]]:
    """Yield texts that are there, in sections if they are longer than a megabyte."""
    for text in texts:
        if text is None:
            left_out.num_missing += 1
        else:
            yield _sections([text], _LONGEST_SECTION) if len(text) > _LONGEST_DOCUMENT else [text]


def _cleaned(sections: Iterable[str], left_out: LeftOut) -> Iterator[list[str]]:
    """Clean each section and yield it as a document of its own, unless nothing is left."""
    for section in sections:
        document = clean_document(section)
        left_out.num_characters += len(section) - len(document)
        if document:
            yield [document]


def _with_words(sections: Iterable[str], min_words: int, left_out: LeftOut) -> Iterator[str]:
    """Yield the sections of a document if they have `min_words` together."""
    waiting: list[str] = []
    num_words = 0
    for section in sections:
        if num_words < min_words:  # counting stops at the word that suffices
            num_words += sum(1 for _ in islice(_WORD.finditer(section), min_words))
            waiting.append(section)
            section = ""
        if num_words >= min_words:
            yield from filter(None, [*waiting, section])
            waiting.clear()
    left_out.num_documents += 1
    left_out.num_short += num_words < min_words
    left_out.is_empty &= num_words == 0


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


def words(text: str) -> list[str]:
    """Cut text into lower-cased words and punctuation characters, exactly as the word-level tokenizer does."""
    # The tokenizer lower-cases character by character, so it knows no final sigma.
    lowered = text.lower().replace("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")
    return _WORD.findall(lowered)


def num_words(text: str) -> int:
    """Return the number of words and punctuation characters."""
    return len(words(text))


def count_tokens(
    documents: Iterable[str], num_tokens: Callable[[str], int] = num_words, test_fraction: float = 0.0
) -> tuple[int, int, int, str]:
    """Return the tokens of the training, evaluation and test documents, each with its separator, in one pass.

    The last value is a sentence on documents that occur more than once, or empty.

    Raises:
        DataError: all documents are equal, so nothing can be held out.
    """
    lengths_N, counts_N, keys_N = array("q"), array("q"), array("Q")
    for document in documents:
        keys_N.append(split.key_of(document))
        lengths_N.append(len(document))
        counts_N.append(num_tokens(document) + 1)
    parts_N, counts = split.divide(keys_N, lengths_N, test_fraction), np.frombuffer(counts_N, dtype=np.int64)
    train, evaluation, test = (int(counts[parts_N == part].sum()) for part in range(3))
    return train, evaluation, test, split.repeated_note(keys_N)


def _texts_in(path: Path, clean: Clean, left_out: LeftOut) -> Iterator[Iterable[str]]:
    """Yield the files of a dataset, each in sections."""
    found = data_files.files_in(path)
    for file in found:
        pieces = _pieces(file, None if clean == "light" else "", left_out)
        beginning = ""
        for piece in pieces:
            beginning += piece
            if len(beginning) > _LONGEST_DOCUMENT:
                yield _sections(chain([beginning], pieces), _LONGEST_SECTION)
                break
        else:
            size = min(max(len(beginning) // _NUM_SECTIONS, _SHORTEST_SECTION), _LONGEST_SECTION)
            yield _sections([beginning], size) if len(found) < FEWEST_DOCUMENTS else [beginning]


def _pieces(file: Path, newline: str | None, left_out: LeftOut) -> Iterator[str]:
    """Read a file piece by piece, without a byte order mark; `newline` as in `open`: an empty text keeps line ends."""
    try:
        with tables.open_bytes(file) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline=newline) as opened:
            is_first = True
            try:
                while piece := opened.read(_READ_CHARACTERS):
                    if is_first and piece.startswith(_MARK):
                        left_out.num_marks += 1
                        piece = piece.removeprefix(_MARK)
                    is_first = False
                    yield piece
            except UnicodeDecodeError as error:
                start = raw.tell() - len(error.object)  # it was decoding the last bytes read
                raise tables.not_utf8(str(file), error, start, file.name) from None
    except tables.UNREADABLE as error:
        raise tables.unreadable(file, error) from error


def _sections(pieces: Iterable[str], size: int) -> Iterator[str]:
    """Cut text into sections of `size` to twice as many characters: at blank lines, else at lines, else at spaces."""
    text, start = "", 0
    # Where to cut depends on the next 2 * size characters; at the end there are no more.
    for piece, needed in chain(zip(pieces, repeat(2 * size)), [("", size)]):
        text, start = text[start:] + piece, 0
        while len(text) - start > needed:
            end = _end_of_section(text, start, size)
            yield text[start:end]
            start = end
    yield text[start:]


def _end_of_section(text: str, start: int, size: int) -> int:
    end = start + size
    if blank := _BLANK_LINES.search(text, end - 1, end + size):
        return blank.end()
    for mark in ("\n", " "):
        if (found := text.find(mark, end, end + size)) >= 0:
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
