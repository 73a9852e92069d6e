"""Text as rows of token ids, with a cache on disk."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from nbtools.data import corpus
from nbtools.data.hub import named
from nbtools.errors import DataError
from nbtools.rundir.atomic import new_folder
from nbtools.rundir.json_files import read_json, write_json
from nbtools.training.text import hub
from nbtools.training.text.disk_buffer import Selection, Spool, save_pieces
from nbtools.training.text.pretrained import masking_tokenizer
from nbtools.training.text.tokenizers import encoder, word_tokenizer

_CACHE_FORMAT = 1
_SAY_EVERY_S = 30.0

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TokenizedText:
    """A tokenizer, and the training and evaluation text as rows of token ids."""

    tokenizer: PreTrainedTokenizerBase
    train_NT: Tokens
    eval_NT: Tokens

    @property
    def maskable_ids(self) -> npt.NDArray[np.int64]:
        """Ids of all tokens but the special ones: those that are predicted, and drawn as random replacements."""
        special = set(self.tokenizer.all_special_ids)
        return np.array([token for token in range(len(self.tokenizer)) if token not in special], dtype=np.int64)


def tokenize(
    cache: Path,
    *,
    dataset: str | None,
    min_words: int,
    vocab_size: int,
    model_name: str | None = None,
    root: Path | None = None,
    max_samples: int | None = None,
    streaming: bool = True,
    say: Callable[[str], None] = print,
) -> Path:
    """Tokenize a text once and return the folder that holds the result; call it on rank 0 only.

    Named after a hash of the content, the folder is put in place by one rename and reused by later runs. It holds
    `tokenizer/` (for `AutoTokenizer.from_pretrained`), `train.npy` and `eval.npy` (flat int32, documents separated
    by one separator token). A hub dataset is downloaded once: a file in `cache` maps the request to its folder.

    Memory does not grow with the text; the disk holds a temporary copy of it.

    Args:
        dataset: see `corpus.documents` and `hub.named`.
        min_words: documents with fewer words are left out.
        vocab_size: largest size of the word-level vocabulary; special tokens count.
        model_name: use this model's tokenizer instead of a word-level one.
        root: start of a relative `dataset`.
        max_samples: number of documents from the beginning; None for all, or for the number of `hub.named`.
        streaming: see `training.hub.texts`.
        say: prints progress while a long text is read.

    Raises:
        DataError: the text is missing, malformed or too short, or the cache cannot be written.
        ConfigError: `model_name` has no loadable tokenizer, or no mask token.
    """
    downloaded = named(dataset)
    note = None
    if downloaded is None:
        documents = corpus.documents(dataset, min_words, root=root)
    else:
        max_samples = max_samples or downloaded.max_samples
        request = [_CACHE_FORMAT, downloaded.path, downloaded.config, max_samples, min_words, vocab_size, model_name]
        note = cache / f"hub-{hashlib.sha256(json.dumps(request).encode()).hexdigest()[:32]}.json"
        known = read_json(note)
        if known is not None and (cache / str(known.get("folder"))).is_dir():
            return cache / str(known["folder"])
        origin = f"dataset={dataset!r}"
        texts = hub.texts(downloaded, streaming=streaming)
        documents = corpus.with_words(corpus.clean_documents(texts, origin), min_words, origin)
    given = None if model_name is None else masking_tokenizer(model_name)  # before a long reading
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with Spool(_with_progress(islice(documents, max_samples), say), cache) as spool:
            held_out_N = corpus.held_out_documents(spool.lengths_N)
            parts = {"train": ~held_out_N, "eval": held_out_N}
            train = spool.texts(parts["train"])
            tokenizer = word_tokenizer(train, vocab_size, cache) if given is None else given
            folder = cache / _digest(tokenizer, spool, parts)
            if not folder.is_dir():
                _build(folder, tokenizer, spool, parts, words=model_name is None)
        if note is not None:
            write_json(note, {"folder": folder.name, "request": request})
    except OSError as error:
        raise DataError(f"{cache}: the tokenized text cannot be written there: {error}") from error
    return folder


def _with_progress(documents: Iterable[str], say: Callable[[str], None]) -> Iterator[str]:
    shown_at = time.monotonic()
    for number, document in enumerate(documents, start=1):
        yield document
        if (now := time.monotonic()) - shown_at >= _SAY_EVERY_S:
            say(f"reading the text: {number:,} documents so far")
            shown_at = now


def _digest(tokenizer: PreTrainedTokenizerBase, spool: Spool, parts: Mapping[str, Selection]) -> str:
    digest = hashlib.sha256(json.dumps([_CACHE_FORMAT, tokenizer.backend_tokenizer.to_str()]).encode())
    for document in chain(spool.raw(parts["train"]), [b"\0"], spool.raw(parts["eval"])):
        digest.update(hashlib.sha256(document).digest())
    return digest.hexdigest()[:32]


def _build(
    folder: Path, tokenizer: PreTrainedTokenizerBase, spool: Spool, parts: Mapping[str, Selection], *, words: bool
) -> None:
    encode = encoder(tokenizer, "words" if words else "model")
    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    with new_folder(folder) as built:
        tokenizer.save_pretrained(built / "tokenizer")
        for name, part in parts.items():
            pieces = (np.array([*encode(text), separator], dtype=np.int32) for text in spool.texts(part))
            save_pieces(built / f"{name}.npy", pieces, np.int32)


def open_tokenized(folder: Path, sequence_length: int) -> TokenizedText:
    """Open the folder that `tokenize` wrote, as memory-mapped rows of `sequence_length` tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False)
    tokenizer.model_max_length = sequence_length
    rows = [_rows(folder / f"{name}.npy", sequence_length) for name in ("train", "eval")]
    return TokenizedText(tokenizer, *rows)


def _rows(path: Path, sequence_length: int) -> Tokens:
    flat = np.load(path, mmap_mode="r")
    num_rows = len(flat) // sequence_length
    rows: Tokens = flat[: num_rows * sequence_length].reshape(num_rows, sequence_length)
    return rows
