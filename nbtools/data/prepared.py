"""A text that `nbtools prepare` turned into token ids: the folder's file names, and its metadata.

    train_data.npy, val_data.npy    token ids in a row, an end-of-text token behind every document
    test_data.npy                   the same, if a part of the held-out documents is for the test
    metadata.json                   which tokenizer, and how many tokens
    vocab.json                      token -> id
    tokenizer/                      the same for `AutoTokenizer.from_pretrained`

Training, validation and test never share a document. Sequences are cut from the rows side by side, so none overlap.
"""

from dataclasses import dataclass
from pathlib import Path

from nbtools.data.metadata import FORMAT, Count, checked, read_object
from nbtools.data.split import DataDigest, digest_of
from nbtools.errors import DataError
from nbtools.project import file_digest

TRAIN, VALIDATION, TEST = "train_data.npy", "val_data.npy", "test_data.npy"
METADATA, VOCABULARY, TOKENIZER = "metadata.json", "vocab.json", "tokenizer"
_MADE_BY = "nbtools prepare"


@dataclass(frozen=True)
class PreparedMetadata:
    """Content of metadata.json."""

    tokenizer: str
    """chars, words, byte_bpe, or the model whose tokenizer it is."""
    vocab_size: Count
    """Number of tokens with the mask, which is the last one if the tokenizer was built here."""
    num_train_tokens: Count
    num_val_tokens: Count
    num_unknown_tokens: int = 0
    """Tokens of all parts that are not in the vocabulary."""
    clean: str = "light"
    """Cleaning of the text; older folders have no value and were cleaned with `light`."""
    num_test_tokens: int = 0
    num_special_tokens: int = 0
    """Control tokens of the model that were read from the text."""
    made_by: str = _MADE_BY
    format: int = FORMAT


def is_prepared(path: Path) -> bool:
    """Whether a folder holds token ids rather than text."""
    return (path / METADATA).is_file() or (path / TRAIN).is_file()


def read_prepared_metadata(folder: Path) -> PreparedMetadata:
    """Read the metadata of a prepared folder; DataError if it was not made by `nbtools prepare`, or is damaged."""
    again = f"make a new one: nbtools prepare TEXT --out {folder.name}_new"
    for name in (TRAIN, VALIDATION, METADATA):
        if not (folder / name).is_file():
            raise DataError(f"dataset {str(folder)!r}: has no {name}; {again}")
    path = folder / METADATA
    content = read_object(path, again)
    if content.get("made_by") != _MADE_BY:
        raise DataError(
            f"{path}: was not made by nbtools prepare. The windows of older programs overlap and were divided at "
            f"random, so that training text is in the validation; {again}"
        )
    return checked(PreparedMetadata, content, path, again)


def digest_of_prepared(folder: Path) -> DataDigest:
    """Return a hash of the token ids of a prepared folder, which is divided already."""
    names = [name for name in (TRAIN, VALIDATION, TEST) if (folder / name).is_file()]
    digest = digest_of(file_digest(folder / name).encode() for name in names)
    return DataDigest(digest, f"{len(names)} files of tokens", rule="")
