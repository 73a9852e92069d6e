"""Text as rows of token ids: read once, tokenized into a folder, and opened as memory-mapped arrays.

A folder has the format of `nbtools.data.prepared`, in the cache as from `nbtools prepare`. A text is buffered on disk,
and in memory one document at a time; the buffer takes the size of the text for a while.

Shape suffixes: N rows, T positions.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from nbtools.data import corpus, hub, prepared, split
from nbtools.data.prepared import PreparedMetadata
from nbtools.errors import DataError, Say
from nbtools.recipes import MaskedDiffusionConfig, MLMPretrainingConfig
from nbtools.rundir.atomic import new_folder
from nbtools.rundir.json_files import read_json, write_json
from nbtools.training.text import disk_buffer
from nbtools.training.text.pretrained_models import first_line
from nbtools.training.text.special_tokens import SpecialTokens
from nbtools.training.text.tokenizers import encode_all, separator_of

_CACHE_FORMAT = 3
_AS_DOWNLOADED = "the dataset is as it was downloaded on"

Tokens = npt.NDArray[Any]
Config = MLMPretrainingConfig | MaskedDiffusionConfig
Train = Callable[[disk_buffer.Spool], PreTrainedTokenizerBase]
"""Builds a tokenizer on the documents of a text."""
Rows = TypeVar("Rows")


@dataclass(frozen=True)
class TokenizedText(Generic[Rows]):
    """A tokenizer, and the rows for training, evaluation and test."""

    tokenizer: PreTrainedTokenizerBase
    train: Rows
    evaluation: Rows
    test: Rows
    commits: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Commit of each dataset of the hub by its name; empty if unknown, or for local files."""
    data: split.DataDigest | None = field(default=None, kw_only=True)


@contextmanager
def spooled(config: Config, folder: Path, root: Path | None, say: Say) -> Iterator[disk_buffer.Spool]:
    """Read the text of a config once into a buffer in `folder`; print the progress, and what is left out.

    Raises:
        DataError: the text is missing, malformed or too short, or `folder` cannot be written.
    """
    left_out = corpus.LeftOut()
    downloaded = hub.named(config.dataset)
    most = getattr(config, "max_samples", None) or (None if downloaded is None else downloaded.max_samples)
    with disk_buffer.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        streaming = getattr(config, "streaming", True)
        options: dict[str, Any] = {"clean": config.clean, "root": root, "left_out": left_out, "streaming": streaming}
        texts = islice(corpus.documents(config.dataset, config.min_words, **options), most)
        found = disk_buffer.with_progress(texts, say, "reading the text")
        with disk_buffer.Spool(found, folder, config.test_fraction) as documents:
            for remark in [*left_out.notes(config.min_words), *filter(None, [documents.repeated_note])]:
                say(f"note: {remark}")
            yield documents


def write_text(
    folder: Path, tokenizer: PreTrainedTokenizerBase, name: str, documents: disk_buffer.Spool, config: Config, say: Say
) -> PreparedMetadata:
    """Tokenize buffered documents into a new folder, with the separator behind each; return what is in it.

    Args:
        name: chars, words, byte_bpe, or the model whose tokenizer it is.
    """
    dtype = np.min_scalar_type(max(tokenizer.get_vocab().values()))
    with disk_buffer.writing(folder), new_folder(folder) as built:
        tokenizer.save_pretrained(built / prepared.TOKENIZER)
        (built / prepared.VOCABULARY).write_text(json.dumps(tokenizer.get_vocab(), ensure_ascii=True, indent=0))
        counts, lengths, separator = disk_buffer.Counts(tokenizer.unk_token_id), [], separator_of(tokenizer)
        reads = "text" if config.model_name is None else config.special_tokens
        for part, file in enumerate((prepared.TRAIN, prepared.VALIDATION, prepared.TEST)):
            texts = documents.part(part, say, "tokenizing")
            if reads == "tokens":
                texts = counts.reading(texts, SpecialTokens(tokenizer).count)
            all_ids = encode_all(texts, tokenizer, name, reads)
            pieces = counts.of(np.append(ids, separator).astype(np.int64) for ids in all_ids)
            lengths.append(disk_buffer.save_pieces(built / file, pieces, dtype))
        train, evaluation, test = lengths
        sizes = len(tokenizer), train, evaluation, counts.unknown
        metadata = PreparedMetadata(name, *sizes, config.clean, test, counts.special)
        (built / prepared.METADATA).write_text(json.dumps(asdict(metadata), indent=1))
        disk_buffer.save_digest(built, documents.digest())
    return metadata


def say_notes(metadata: PreparedMetadata, say: Say) -> None:
    """Print how many tokens are unknown, and how many special tokens were read from the text, if there are any."""
    num_tokens = metadata.num_train_tokens + metadata.num_val_tokens + metadata.num_test_tokens
    unknown = disk_buffer.unknown_note(metadata.num_unknown_tokens, num_tokens)
    for remark in (*unknown, *disk_buffer.special_note(metadata.num_special_tokens)):
        say(f"note: {remark}")


def cached_text(
    cache: Path, config: Config, given: PreTrainedTokenizerBase | None, train: Train, root: Path | None, say: Say
) -> Path:
    """Tokenize the text of a config into a folder named after a hash of the content, which later runs reuse.

    Memory does not grow with the text, unless that is one list in a `.json` file. On rank 0 only.

    Args:
        given: the tokenizer of a model; None for one that `train` builds.
        root: start of a relative `dataset`; the project of the working directory when None.

    Raises:
        DataError: see `spooled`.
    """
    name = config.model_name or config.tokenizer
    with spooled(config, cache, root, say) as documents:
        vocabulary = config.vocab_size if given is None else fingerprint(given)
        content = [_CACHE_FORMAT, split.RULE, name, vocabulary, documents.digest().digest]
        folder = cache / disk_buffer.content_name([*content, config.test_fraction, config.special_tokens])
        if not folder.is_dir():
            write_text(folder, train(documents) if given is None else given, name, documents, config, say)
    say_notes(prepared.read_prepared_metadata(folder), say)
    return folder


def cached_once(
    cache: Path,
    config: Config,
    request: Sequence[str],
    load: Callable[[], PreTrainedTokenizerBase | None],
    make: Callable[[Say], Path],
    say: Say,
) -> disk_buffer.Tokenized:
    """Return the folder that `make(say)` writes; of a dataset of the hub, one that the same request wrote before.

    A file in `cache` maps the request to the folder, and holds the notes on it, which are said again, with the day of
    the download: the request decides, not the content on the hub.

    Args:
        request: fields that the folder depends on.
        load: loads the tokenizer of the model, if one is named: that of a local model may change.
    """
    if hub.named(config.dataset) is None:
        return disk_buffer.Tokenized(make(say))
    key = [_CACHE_FORMAT, split.RULE, *(getattr(config, name) for name in request)]
    if (given := load()) is not None:
        key.append(disk_buffer.content_name([fingerprint(given), given.chat_template, separator_of(given)]))
    note = cache / f"hub-{disk_buffer.content_name(key)}.json"
    known = read_json(note)
    if known is not None and (cache / str(known.get("folder"))).is_dir():
        day = datetime.fromtimestamp(note.stat().st_mtime, UTC).date()
        for remark in (*map(str, known.get("remarks", ())), f"{_AS_DOWNLOADED} {day}; ,revision= pins a version"):
            say(f"note: {remark}")
        return disk_buffer.Tokenized(cache / str(known["folder"]), known.get("commits", {}))
    remarks: list[str] = []

    def record(text: str) -> None:
        remarks.extend([text.removeprefix("note: ")] if text.startswith("note: ") else [])
        say(text)

    made = disk_buffer.Tokenized(make(record), hub.commits_of(config.dataset))
    write_json(note, {"folder": made.folder.name, "request": key, "remarks": remarks, "commits": made.commits})
    return made


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a text that tokenizers of other ids do not share."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return json.dumps(tokenizer.get_vocab(), sort_keys=True) if backend is None else str(backend.to_str())


def open_text(folder: Path) -> TokenizedText[Tokens]:
    """Open a folder of `write_text` or `nbtools prepare`, its parts as flat arrays; DataError if it is damaged."""
    metadata = prepared.read_prepared_metadata(folder)
    tokenizer = saved_tokenizer(folder)
    counts = {prepared.TRAIN: metadata.num_train_tokens, prepared.VALIDATION: metadata.num_val_tokens}
    counts[prepared.TEST] = metadata.num_test_tokens
    parts = []
    for name, num_tokens in counts.items():
        try:
            flat = np.load(folder / name, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{folder / name}: cannot be read ({first_line(error)}); prepare the text again") from error
        if flat.shape != (num_tokens,) or flat.dtype.kind not in "iu" or len(tokenizer) != metadata.vocab_size:
            raise DataError(f"{folder / name}: does not match {prepared.METADATA}; prepare the text again")
        parts.append(flat)
    return TokenizedText(tokenizer, *parts, data=disk_buffer.digest_in(folder))


def saved_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder of tokens; DataError if it is damaged."""
    path = folder / prepared.TOKENIZER
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise DataError(f"{path}: cannot be read ({first_line(error)}); prepare again") from error
    tokenizer.model_max_length = 10**9  # the model's own limit is checked elsewhere
    return tokenizer
