"""Text as rows of token ids, with a cache on disk."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from nbtools.data import corpus
from nbtools.data.hub import named
from nbtools.errors import DataError
from nbtools.recipes import MLMPretrainingConfig
from nbtools.rundir.atomic import new_folder
from nbtools.rundir.json_files import read_json, write_json
from nbtools.training.text import disk_buffer, hub
from nbtools.training.text.disk_buffer import Counts, Spool, content_name, rows_of, save_pieces, unknown_in, writing
from nbtools.training.text.tokenizers import encoder, masking_tokenizer, template_of, word_tokenizer

_CACHE_FORMAT = 1
_SAY_EVERY_S = 30.0

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TokenizedText:
    """A tokenizer, and the text for training, evaluation and test as rows of token ids."""

    tokenizer: PreTrainedTokenizerBase
    train_NT: "Tokens | TemplateRows"
    eval_NT: "Tokens | TemplateRows"
    test_NT: "Tokens | TemplateRows"

    @property
    def maskable_ids(self) -> npt.NDArray[np.int64]:
        """Ids of all tokens but the special ones: those that are predicted, and drawn as random replacements."""
        special = set(self.tokenizer.all_special_ids)
        return np.array([token for token in range(len(self.tokenizer)) if token not in special], dtype=np.int64)


@dataclass(frozen=True)
class TemplateRows:
    """Rows of a text between the special tokens of a tokenizer's template, which are added where rows are read."""

    text_NT: Tokens
    before: Sequence[int]
    after: Sequence[int]

    @property
    def shape(self) -> tuple[int, int]:
        """Number and length of the rows."""
        return len(self.text_NT), len(self.before) + self.text_NT.shape[1] + len(self.after)

    def __len__(self) -> int:
        return len(self.text_NT)

    def __getitem__(self, index: slice | npt.NDArray[np.int64]) -> Tokens:
        text_BT = np.asarray(self.text_NT[index])
        ends = (np.tile(np.array(ids, dtype=np.int32), (len(text_BT), 1)) for ids in (self.before, self.after))
        before_BT, after_BT = ends
        return np.concatenate([before_BT, text_BT, after_BT], axis=1)


def tokenize(
    cache: Path, config: MLMPretrainingConfig, root: Path | None = None, say: Callable[[str], None] = print
) -> Path:
    """Tokenize the text of a config once and return the folder that holds the result; call it on rank 0 only.

    Named after a hash of the content, the folder is put in place by one rename and reused by later runs. It holds
    `tokenizer/` (for `AutoTokenizer.from_pretrained`), `train.npy`, `eval.npy` and `test.npy` (flat int32, documents
    separated by one separator token). A hub dataset is downloaded once: a file in `cache` maps the request to its
    folder.

    Memory does not grow with the text; the disk holds a temporary copy of it.

    Args:
        root: start of a relative `dataset`; the project of the working directory when None.
        say: prints progress while a long text is read, and what is left out of it.

    Raises:
        DataError: the text is missing, malformed or too short, or the cache cannot be written.
        ConfigError: `model_name` has no loadable tokenizer, or no mask token.
    """
    downloaded = named(config.dataset)
    min_words, max_samples, model_name = config.min_words, config.max_samples, config.model_name
    left_out = corpus.LeftOut()
    note = None
    third = [config.test_fraction] if config.test_fraction else []  # names from before there was a test stay
    if downloaded is None:
        documents = corpus.documents(config.dataset, min_words, clean=config.clean, root=root, left_out=left_out)
    else:
        max_samples = max_samples or downloaded.max_samples
        source = [downloaded.path, downloaded.config, max_samples]
        cleaning = [] if config.clean == "light" else [config.clean]  # the only one before there was a choice
        request = [_CACHE_FORMAT, *source, min_words, config.vocab_size, model_name, *cleaning, *third]
        note = cache / f"hub-{content_name(request)}.json"
        known = read_json(note)
        if known is not None and (cache / str(known.get("folder"))).is_dir():
            for remark in map(str, known.get("remarks", ())):
                say(f"note: {remark}")
            return cache / str(known["folder"])
        origin = f"dataset={config.dataset!r}"
        texts = hub.texts(downloaded, streaming=config.streaming)
        documents = corpus.chosen_documents(map(corpus.sections_of, texts), config.clean, min_words, origin, left_out)
    given = None if model_name is None else masking_tokenizer(model_name)  # before a long reading
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with Spool(_with_progress(islice(documents, max_samples), say), cache, config.test_fraction) as spool:
            tokenizer = word_tokenizer(spool.part(corpus.TRAIN), config.vocab_size, cache) if given is None else given
            folder = cache / content_name([_CACHE_FORMAT, tokenizer.backend_tokenizer.to_str(), spool.digest(), *third])
            if not folder.is_dir():
                _build(folder, tokenizer, spool, level="words" if model_name is None else "model")
        remarks = [*left_out.notes(min_words), *unknown_in(folder)]
        for remark in remarks:
            say(f"note: {remark}")
        if note is not None:
            write_json(note, {"folder": folder.name, "request": request, "remarks": remarks})
    return folder


def _with_progress(documents: Iterable[str], say: Callable[[str], None]) -> Iterator[str]:
    shown_at = time.monotonic()
    for number, document in enumerate(documents, start=1):
        yield document
        if (now := time.monotonic()) - shown_at >= _SAY_EVERY_S:
            say(f"reading the text: {number:,} documents so far")
            shown_at = now


def _build(folder: Path, tokenizer: PreTrainedTokenizerBase, spool: Spool, level: str) -> None:
    encode = encoder(tokenizer, level)
    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    with new_folder(folder) as built:
        tokenizer.save_pretrained(built / "tokenizer")
        counts = Counts(tokenizer.unk_token_id)
        for part, name in enumerate(("train", "eval", "test")):
            pieces = (np.array([*encode(text), separator], dtype=np.int32) for text in spool.part(part))
            save_pieces(built / f"{name}.npy", counts.of(pieces), np.int32)
        counts.save(built)


def open_tokenized(folder: Path, sequence_length: int, *, with_template: bool = False) -> TokenizedText:
    """Open the folder that `tokenize` wrote, as memory-mapped rows of `sequence_length` tokens.

    With the tokenizer's template, the special tokens that it puts around a sequence count in that length.

    Raises:
        DataError: the template leaves no room for text.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False)
    tokenizer.model_max_length = sequence_length
    before, after = template_of(tokenizer) if with_template else ((), ())
    room = sequence_length - len(before) - len(after)
    if room < 1:
        raise DataError(
            f"sequence_length={sequence_length}: the tokenizer's template leaves no room for text; raise it"
        )
    parts = [rows_of(disk_buffer.mapped(folder / f"{name}.npy"), room) for name in ("train", "eval", "test")]
    if before or after:
        return TokenizedText(tokenizer, *(TemplateRows(part, before, after) for part in parts))
    return TokenizedText(tokenizer, *parts)
