"""A text that `nbtools prepare` turned into token ids: the folder's file names, and its metadata.

    train_data.npy, val_data.npy    token ids in a row, an end-of-text token behind every document
    test_data.npy                   the same, if a part of the held-out documents is for the test
    metadata.json                   which tokenizer, and how many tokens
    vocab.json                      token -> id
    tokenizer/                      the same for `AutoTokenizer.from_pretrained`

Training, validation and test never share a document. Sequences are cut from the rows side by side, so none overlap.
"""

import json
from dataclasses import dataclass
from pathlib import Path

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
    """chars, words, or the model whose tokenizer it is."""
    vocab_size: int
    """Number of tokens with the mask, which is the last one if the tokenizer was built here."""
    num_train_tokens: int
    num_val_tokens: int
    num_unknown_tokens: int = 0
    """Tokens of all parts that are not in the vocabulary."""
    clean: str = "light"
    """Cleaning of the text; older folders have no value and were cleaned with `light`."""
    num_test_tokens: int = 0
    num_special_tokens: int = 0
    """Control tokens of the model that were read from the text."""
    made_by: str = _MADE_BY
    format: int = 1


def is_prepared(path: Path) -> bool:
    """Whether a folder holds token ids rather than text."""
    return (path / METADATA).is_file() or (path / TRAIN).is_file()


def read_prepared_metadata(folder: Path) -> PreparedMetadata:
    """Read the metadata of a prepared folder; DataError if it was not made by `nbtools prepare`, or is damaged."""
    again = f"make a new one: nbtools prepare TEXT --out {folder.name}_new"
    for name in (TRAIN, VALIDATION, METADATA):
        if not (folder / name).is_file():
            raise DataError(f"dataset {str(folder)!r}: has no {name}; {again}")
    try:
        content = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / METADATA}: cannot be read ({error}); {again}") from None
    if not isinstance(content, dict) or content.get("made_by") != _MADE_BY:
        raise DataError(
            f"{folder / METADATA}: was not made by nbtools prepare. The windows of older programs overlap and were "
            "divided at random, so that training text is in the validation; "
            f"prepare the text itself again: nbtools prepare TEXT --out {folder.name}_new"
        )
    names = ("vocab_size", "num_train_tokens", "num_val_tokens", "format")
    numbers = [int(content[name]) for name in names if type(content.get(name)) is int and content[name] > 0]
    if not isinstance(content.get("tokenizer"), str) or len(numbers) < len(names) or numbers[-1] != 1:
        raise DataError(f"{folder / METADATA}: is damaged, or of a newer nbtools; {again}")
    later = (content.get(name, 0) for name in ("num_unknown_tokens", "num_test_tokens", "num_special_tokens"))
    num_unknown, num_test, num_special = (number if type(number) is int else 0 for number in later)
    sizes, clean = (numbers[0], numbers[1], numbers[2]), str(content.get("clean", "light"))
    return PreparedMetadata(content["tokenizer"], *sizes, num_unknown, clean, num_test, num_special)


def digest_of_prepared(folder: Path) -> DataDigest:
    """Return a hash of the token ids of a prepared folder, which is divided already."""
    names = [name for name in (TRAIN, VALIDATION, TEST) if (folder / name).is_file()]
    digest = digest_of(file_digest(folder / name).encode() for name in names)
    return DataDigest(digest, f"{len(names)} files of tokens", rule="")
