"""The text to train on: where it comes from, how it is cleaned, split and counted. No torch.

Everybody who needs a number of sequences (the form, the schedule, the training) asks here, so the numbers agree.

Memory: a file is read whole and cut into documents, which takes about three times its size for a moment and its size
afterwards; words are made one document at a time. One gigabyte of text is fine, and is cleaned in about a minute.
"""

import random
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

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
_EVALUATION_SHARE = 0.1


def read_documents(dataset: str | None, min_words: int = 1, *, root: str | Path | None = None) -> list[str]:
    """Read, clean and cut the text that `dataset` names.

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
        documents, origin = _python_topics(), "the text that ships with Python"
    else:
        path = resolve(dataset, root)
        documents, origin = _documents_in(path), str(path)
    kept = [document for document in documents if _has_words(document, min_words)]
    if not kept:
        raise DataError(
            f"{origin}: none of its {len(documents)} documents has {min_words} words (min_words); "
            "lower min_words or choose another dataset"
        )
    return kept


def resolve(dataset: str | Path, root: str | Path | None = None) -> Path:
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


def clean(text: str) -> str:
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


def split(documents: Sequence[str], seed: int = 0) -> tuple[list[str], list[str]]:
    """Divide whole documents into about 90% for training and 10% for evaluation, by length.

    The same documents and seed always give the same split, on every machine.

    Raises:
        DataError: there is only one document, so nothing can be held out.
    """
    if len(documents) < 2:
        raise DataError(
            f"{len(documents)} document: at least two are needed, one of them to evaluate on; "
            "give a longer text or a lower min_words"
        )
    order = list(range(len(documents)))
    random.Random(seed).shuffle(order)
    budget = _EVALUATION_SHARE * sum(len(document) for document in documents)
    held_out: set[int] = set()
    for index in order:
        if len(documents[index]) <= budget:
            held_out.add(index)
            budget -= len(documents[index])
    if not held_out:
        held_out = {min(order, key=lambda index: len(documents[index]))}
    train = [document for index, document in enumerate(documents) if index not in held_out]
    return train, [documents[index] for index in sorted(held_out)]


def words(text: str) -> list[str]:
    """Cut text into lower-cased words and punctuation characters, exactly as the word-level tokenizer does."""
    return _WORD.findall(lowered(text))


def lowered(text: str) -> str:
    """Lower-case character by character: the tokenizer knows no final sigma either."""
    return text.lower().replace("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")


def num_words(text: str) -> int:
    """Return `len(words(text))` without keeping the words."""
    return sum(1 for _ in _WORD.finditer(lowered(text)))


def num_sequences(documents: Iterable[str], sequence_length: int) -> int:
    """Return how many full sequences the documents fill when each is followed by one separator token.

    The documents are joined into one stream of tokens that is cut every `sequence_length`; the rest is left out.
    """
    return sum(num_words(document) + 1 for document in documents) // sequence_length


def _has_words(document: str, least: int) -> bool:
    return any(number >= least for number, _ in enumerate(_WORD.finditer(document), start=1))


def _documents_in(path: Path) -> list[str]:
    files = files_in(path)
    documents = []
    for file in files:
        text = _read(file)
        if len(files) < FEWEST_DOCUMENTS or len(text) > _LONGEST_DOCUMENT:
            documents += [clean(section) for section in _sections(text)]
        else:
            documents.append(clean(text))
    documents = [document for document in documents if document]
    if not documents:
        raise DataError(f"dataset {str(path)!r}: empty, no line of it has a letter; choose another dataset")
    return documents


def _read(file: Path) -> str:
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: byte {error.start} (0x{error.object[error.start]:02x}) is not UTF-8; "
            f"convert the file, for instance with: iconv -f latin1 -t utf-8 {file.name}"
        ) from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _sections(text: str) -> list[str]:
    """Cut text into about 50 sections of 200 to 20,000 characters: at blank lines, else at lines, else at spaces."""
    size = min(max(len(text) // 50, 200), 20_000)
    sections = []
    start = 0
    while len(text) - start > size:
        end = start + size
        blank = _BLANK_LINES.search(text, end - 1, end + size)
        if blank:
            end = blank.end()
        else:
            for mark in ("\n", " "):
                found = text.find(mark, end, end + size)
                if found >= 0:
                    end = found + 1
                    break
        sections.append(text[start:end])
        start = end
    sections.append(text[start:])
    return sections


def _python_topics() -> list[str]:
    """Python's language reference by topic, longest first, without the paragraphs that an earlier topic has.

    Some topics are parts of others ("if" of "compound", a fifth of all words): left in, they would be trained on and
    held out at once. The text differs between Python versions.
    """
    from pydoc_data.topics import topics  # half a megabyte: only when asked for

    seen: set[str] = set()
    documents = []
    for _, text in sorted(topics.items(), key=lambda item: (-len(item[1]), item[0])):
        paragraphs = []
        for paragraph in clean(text).split("\n\n"):
            key = " ".join(paragraph.split())
            if key not in seen:
                seen.add(key)
                paragraphs.append(paragraph)
        if paragraphs:
            documents.append("\n\n".join(paragraphs))
    return documents
