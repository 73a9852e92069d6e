"""Text as rows of token ids, with a cache on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from nbtools.data import corpus, split
from nbtools.data.hub import named, split_options
from nbtools.errors import DataError
from nbtools.recipes import MLMPretrainingConfig
from nbtools.rundir.atomic import new_folder
from nbtools.training.text import disk_buffer
from nbtools.training.text.tokenizers import encode_parts, masking_tokenizer, template_of, word_tokenizer

_CACHE_FORMAT = 2

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TokenizedText:
    """A tokenizer, and the text for training, evaluation and test as rows of token ids."""

    tokenizer: PreTrainedTokenizerBase
    train_NT: "Tokens | TemplateRows"
    eval_NT: "Tokens | TemplateRows"
    test_NT: "Tokens | TemplateRows"
    commits: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Commit of each dataset of the hub by its name; empty if unknown, or for local files."""
    data: split.DataDigest | None = field(default=None, kw_only=True)

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
) -> disk_buffer.Tokenized:
    """Tokenize the text of a config once and return the folder that holds the result; call it on rank 0 only.

    Named after a hash of the content, the folder is put in place by one rename and reused by later runs. It holds
    `tokenizer/` (for `AutoTokenizer.from_pretrained`), `train.npy`, `eval.npy` and `test.npy` (flat int32, documents
    separated by one separator token). A hub dataset is downloaded once: a file in `cache` maps the request to its
    folder.

    Memory does not grow with the text, unless that is one list in a `.json` file; the disk holds a temporary copy.

    Args:
        root: start of a relative `dataset`; the project of the working directory when None.
        say: prints progress while a long text is read, and what is left out of it.

    Raises:
        DataError: the text is missing, malformed or too short, or the cache cannot be written.
        ConfigError: `model_name` has no loadable tokenizer, or no mask token.
    """
    if (downloaded := named(config.dataset)) is None:
        return disk_buffer.Tokenized(_tokenized(cache, config, config.max_samples, root, say))
    max_samples = config.max_samples or downloaded.max_samples
    request = [_CACHE_FORMAT, downloaded.path, downloaded.config, max_samples, config.min_words, config.vocab_size]
    request += [config.model_name, config.clean, split.RULE, config.test_fraction, config.special_tokens]
    request += filter(None, [split_options(downloaded.dataset)[1]])
    if config.model_name is not None:  # the tokenizer of a local model may change
        made = masking_tokenizer(config.model_name)
        request.append(
            disk_buffer.content_name([made.backend_tokenizer.to_str(), made.sep_token_id, made.eos_token_id])
        )
    return disk_buffer.downloaded_once(
        cache, config.dataset, request, lambda tell: _tokenized(cache, config, max_samples, root, tell), say
    )


def _tokenized(
    cache: Path, config: MLMPretrainingConfig, max_samples: int | None, root: Path | None, say: Callable[[str], None]
) -> Path:
    min_words, model_name = config.min_words, config.model_name
    left_out = corpus.LeftOut()
    documents = corpus.documents(
        config.dataset, min_words, clean=config.clean, root=root, left_out=left_out, streaming=config.streaming
    )
    given = None if model_name is None else masking_tokenizer(model_name)  # before a long reading
    with disk_buffer.writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        documents = disk_buffer.with_progress(islice(documents, max_samples), say, "reading the text")
        with disk_buffer.Spool(documents, cache, config.test_fraction) as spool:
            counted = spool.part(split.TRAIN, say, "counting words")
            tokenizer = word_tokenizer(counted, config.vocab_size, cache) if given is None else given
            content = [_CACHE_FORMAT, split.RULE, tokenizer.backend_tokenizer.to_str(), spool.digest().digest]
            content += [config.test_fraction, config.special_tokens]
            folder = cache / disk_buffer.content_name(content)
            if not folder.is_dir():
                level = "words" if model_name is None else "model"
                _build(folder, tokenizer, spool, level, config.special_tokens, say)
    for remark in [*left_out.notes(min_words), *filter(None, [spool.repeated_note]), *disk_buffer.notes_in(folder)]:
        say(f"note: {remark}")
    return folder


def _build(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    spool: disk_buffer.Spool,
    level: str,
    special_tokens: corpus.SpecialTokens,
    say: Callable[[str], None],
) -> None:
    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    with new_folder(folder) as built:
        tokenizer.save_pretrained(built / "tokenizer")
        counts = disk_buffer.Counts(tokenizer.unk_token_id)
        parts = encode_parts(spool, tokenizer, level, separator, counts, say, special_tokens)
        for name, pieces in zip(("train", "eval", "test"), parts, strict=True):
            disk_buffer.save_pieces(built / f"{name}.npy", pieces, np.int32)
        counts.save(built)
        disk_buffer.save_digest(built, spool.digest())


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
    parts = [
        disk_buffer.rows_of(disk_buffer.mapped(folder / f"{name}.npy"), room) for name in ("train", "eval", "test")
    ]
    data = disk_buffer.digest_in(folder)
    if before or after:
        return TokenizedText(tokenizer, *(TemplateRows(part, before, after) for part in parts), data=data)
    return TokenizedText(tokenizer, *parts, data=data)
