"""Text, or prompts and answers, as sequences for a masked diffusion model; the implementation of `nbtools prepare`.

A text is buffered on disk and held in memory one document at a time; the buffer takes the size of the text for a while.
Prompts and answers are held in memory.

Shape suffixes: N samples, T positions.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from nbtools.data import corpus
from nbtools.data.masked_diffusion import prepared
from nbtools.data.masked_diffusion.pairs import Pair, read_pairs, split_pairs
from nbtools.data.masked_diffusion.prepared import PreparedMetadata
from nbtools.errors import DataError, shown
from nbtools.rundir.atomic import new_folder
from nbtools.training.masked_diffusion.forward_process import Sequences
from nbtools.training.text.disk_buffer import Selection, Spool, save_pieces
from nbtools.training.text.pretrained import first_line
from nbtools.training.text.tokenizers import (
    Encode,
    _saved_tokenizer,
    encoder,
    load_tokenizer,
    separator_of,
    train_tokenizer,
)

_CACHE_FORMAT = 1

T = TypeVar("T")


@dataclass(frozen=True)
class DiffusionText:
    """A tokenizer, and the sequences for training and evaluation."""

    tokenizer: PreTrainedTokenizerBase
    train: Sequences
    evaluation: Sequences

    @property
    def eos_id(self) -> int:
        """The token after documents and answers."""
        return separator_of(self.tokenizer)


# --- text -----------------------------------------------------------------------------------------


def prepare(
    dataset: str | None, folder: Path, tokenizer: str = "chars", *, vocab_size: int, min_words: int = 1
) -> PreparedMetadata:
    """Tokenize a text into a folder, as described in `nbtools.data.masked_diffusion.prepared`.

    Args:
        dataset: a text file or a folder of them; None for the English text that ships with Python.
        folder: folder to write; it must not exist, or be empty.
        tokenizer: chars, words, or the folder or hub id of a model.
        vocab_size: of a vocabulary built here, at most.
        min_words: documents with fewer words are left out.

    Raises:
        DataError: the text is missing, malformed or too short, or the folder exists or cannot be written.
        ConfigError: there is no such tokenizer.
    """
    made = None if tokenizer in ("chars", "words") else load_tokenizer(tokenizer)  # an error before the text is read
    try:
        if "\0" in str(folder) or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise DataError(f"{shown(str(folder))}: exists, or is not a folder; name a new folder with --out")
    except OSError as error:
        raise DataError(f"{shown(str(folder))}: {error.strerror}; name another folder with --out") from None
    with _spooled(dataset, min_words, folder.parent) as documents:
        made = made or train_tokenizer(tokenizer, documents.train(), vocab_size, folder.parent)
        return _write(folder, made, tokenizer, documents)


def cached_text(
    cache: Path,
    dataset: str | None,
    tokenizer: str,
    *,
    vocab_size: int,
    min_words: int,
    root: Path | None = None,
    trust_remote_code: bool = False,
) -> Path:
    """As `prepare`, into a folder named after a hash of the content, which later runs reuse; on rank 0 only."""
    made: PreTrainedTokenizerBase | None = None
    if tokenizer not in ("chars", "words"):  # an error before the text is read
        made = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    with _spooled(dataset, min_words, cache, root) as documents:
        made = made or train_tokenizer(tokenizer, documents.train(), vocab_size, cache)
        settings = [_CACHE_FORMAT, tokenizer, _fingerprint(made), documents.digest()]
        folder = cache / hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]
        if not folder.is_dir():
            _write(folder, made, tokenizer, documents)
    return folder


class Documents(Spool):
    """A text buffered on disk, split by documents into training and evaluation."""

    @functools.cached_property
    def held_out_N(self) -> Selection:
        """Which documents are evaluated on; DataError if there is only one."""
        return corpus.held_out_documents(self.lengths_N)

    def train(self) -> Iterator[str]:
        """Yield the documents for training."""
        return self.texts(~self.held_out_N)

    def evaluation(self) -> Iterator[str]:
        """Yield the documents for evaluation."""
        return self.texts(self.held_out_N)

    def digest(self) -> str:
        """Return a hash of the content."""
        digest = hashlib.sha256()
        for document in self.raw(np.ones(len(self.lengths_N), dtype=np.bool_)):
            digest.update(hashlib.sha256(document).digest())
        return digest.hexdigest()


@contextmanager
def _spooled(dataset: str | None, min_words: int, folder: Path, root: Path | None = None) -> Iterator[Documents]:
    """Read a text once into a buffer in `folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Documents(corpus.documents(dataset, min_words, root=root), folder) as documents:
            yield documents
    except OSError as error:
        raise DataError(f"{folder}: the tokenized text cannot be written there: {error}") from error


def open_text(folder: Path, sequence_length: int) -> DiffusionText:
    """Open a prepared folder as memory-mapped rows of `sequence_length` tokens.

    Raises:
        DataError: `nbtools prepare` did not write it, or it is damaged.
    """
    metadata = prepared.read_prepared_metadata(folder)
    tokenizer = _saved_tokenizer(folder)
    counts = {prepared.TRAIN: metadata.num_train_tokens, prepared.VALIDATION: metadata.num_val_tokens}
    parts = []
    for name, num_tokens in counts.items():
        try:
            flat = np.load(folder / name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{folder / name}: cannot be read ({first_line(error)}); prepare the text again") from error
        if flat.shape != (num_tokens,) or flat.dtype.kind not in "iu" or len(tokenizer) != metadata.vocab_size:
            raise DataError(f"{folder / name}: does not match {prepared.METADATA}; prepare the text again")
        num_rows = len(flat) // sequence_length
        rows_NT = flat[: num_rows * sequence_length].reshape(num_rows, sequence_length)
        parts.append(Sequences(rows_NT, np.broadcast_to(np.int64(0), num_rows)))  # which takes no memory
    return DiffusionText(tokenizer, *parts)


def _fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else str(backend.to_str())


def _write(folder: Path, tokenizer: PreTrainedTokenizerBase, name: str, documents: Documents) -> PreparedMetadata:
    encode, separator = encoder(tokenizer, name), separator_of(tokenizer)
    dtype = np.min_scalar_type(max(len(tokenizer) - 1, 1))

    def fill(built: Path) -> PreparedMetadata:
        tokenizer.save_pretrained(built / prepared.TOKENIZER)
        (built / prepared.VOCABULARY).write_text(json.dumps(tokenizer.get_vocab(), ensure_ascii=True, indent=0))
        counts = []
        for file, texts in ((prepared.TRAIN, documents.train()), (prepared.VALIDATION, documents.evaluation())):
            pieces = (np.append(encode(text), separator).astype(dtype) for text in texts)
            counts.append(save_pieces(built / file, pieces, dtype))
        metadata = PreparedMetadata(name, len(tokenizer), counts[0], counts[1])
        (built / prepared.METADATA).write_text(json.dumps(asdict(metadata), indent=1))
        return metadata

    return _in_place(folder, fill)


def _in_place(folder: Path, fill: Callable[[Path], T]) -> T:
    """Build a folder beside its place and put it there by one rename."""
    try:
        with new_folder(folder) as built:
            return fill(built)
    except OSError as error:
        raise DataError(f"{folder}: the tokenized text cannot be written there: {error}") from error


# --- prompts and answers --------------------------------------------------------------------------


def cached_pairs(
    cache: Path, file: Path, tokenizer: str, *, vocab_size: int, sequence_length: int, trust_remote_code: bool = False
) -> tuple[Path, str]:
    """Tokenize prompts and answers into a folder named after a hash of the content; on rank 0 only.

    A prompt goes through the tokenizer's chat template if it has one; otherwise the answer follows it directly. [EOS]
    pads the sequence after the answer: the model learns where answers end.

    Returns:
        The folder, and a note on pairs that are too long, or an empty string.

    Raises:
        DataError: a line is malformed (file and line are named), or no pair fits.
        ConfigError: there is no such tokenizer.
    """
    found = list(read_pairs(file))
    if not found:
        raise DataError(f"{file}: empty; write a line {{'prompt': ..., 'answer': ...}} for each pair, as JSON")
    if tokenizer in ("chars", "words"):
        known, _ = split_pairs(found, 1, lambda _: 0)
        texts = chain.from_iterable((pair.prompt, pair.answer) for pair in known)
        made: PreTrainedTokenizerBase = train_tokenizer(tokenizer, texts, vocab_size)
    else:
        made = load_tokenizer(tokenizer, trust_remote_code=trust_remote_code)
    encode = encoder(made, tokenizer)
    ids = {pair.prompt: _prompt_ids(made, encode, pair.prompt) for pair in found}

    train, evaluation = split_pairs(
        found, sequence_length, lambda pair: len(ids[pair.prompt]) + len(encode(pair.answer))
    )
    left_out = len(found) - len(train) - len(evaluation)
    remark = f"{left_out:,} of {len(found):,} pairs are longer than {sequence_length} tokens and left out"
    settings = [_CACHE_FORMAT, tokenizer, sequence_length, _fingerprint(made), made.chat_template]
    digest = hashlib.sha256(json.dumps([*settings, *((pair.prompt, pair.answer) for pair in found)]).encode())
    folder = cache / digest.hexdigest()[:32]

    def fill(built: Path) -> None:
        made.save_pretrained(built / prepared.TOKENIZER)
        for name, part in (("train", train), ("eval", evaluation)):
            rows_NT, starts_N = _rows(part, ids, encode, separator_of(made), sequence_length)
            np.save(built / f"{name}.npy", rows_NT)
            np.save(built / f"{name}_starts.npy", starts_N)

    if not folder.is_dir():
        _in_place(folder, fill)
    return folder, remark if left_out else ""


def open_pairs(folder: Path) -> DiffusionText:
    """Open the folder that `cached_pairs` wrote."""
    parts = [
        Sequences(np.load(folder / f"{name}.npy", mmap_mode="r"), np.load(folder / f"{name}_starts.npy"))
        for name in ("train", "eval")
    ]
    return DiffusionText(_saved_tokenizer(folder), *parts)


def _prompt_ids(tokenizer: PreTrainedTokenizerBase, encode: Encode, prompt: str) -> Sequence[int]:
    if tokenizer.chat_template is None:
        return encode(prompt)  # type: ignore[return-value]
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(  # type: ignore[return-value]
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )


def _rows(
    pairs: Sequence[Pair], prompts: dict[str, Sequence[int]], encode: Encode, eos_id: int, sequence_length: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    rows_NT = np.full((len(pairs), sequence_length), eos_id, dtype=np.int32)
    starts_N = np.zeros(len(pairs), dtype=np.int64)
    for row, pair in enumerate(pairs):
        tokens = [*prompts[pair.prompt], *encode(pair.answer)]
        rows_NT[row, : len(tokens)] = tokens
        starts_N[row] = len(prompts[pair.prompt])
    return rows_NT, starts_N
