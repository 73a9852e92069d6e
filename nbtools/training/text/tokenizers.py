"""Tokenizers: built on a corpus, loaded from a folder, or from the hub."""

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.normalizers import Lowercase, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nbtools.data import corpus
from nbtools.errors import CheckpointError, ConfigError, shown
from nbtools.recipes.built_models import SPECIAL_TOKENS
from nbtools.training.text.disk_buffer import WordCounts
from nbtools.training.text.pretrained_models import not_loadable
from nbtools.training.text.special_tokens import SpecialTokens, has_backend

EOS, UNKNOWN, MASK = "[EOS]", "[UNK]", "[MASK]"
"""Special tokens of vocabularies built here: the first two ids, and the last. [EOS] ends documents and pads answers,
and is predicted as any other token; [MASK] is never predicted."""
_NAMES = {"unk_token": UNKNOWN, "mask_token": MASK, "eos_token": EOS, "pad_token": EOS}
_BERT_NAMES = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
_MASK_TOKENS = (MASK, "<mask>", "<|mdm_mask|>", "<|mask|>")
"""Names of mask tokens in tokenizers that do not set `mask_token`; the third is LLaDA's."""
_HUB_ID = re.compile(r"\w[\w.-]{0,95}(/\w[\w.-]{0,95})?", re.ASCII)
_SPACELESS, _LETTER = r"[\p{Han}\p{Hiragana}\p{Katakana}]", r"\p{L}\p{M}"
_MERGED = (
    rf"'(?:[sdmt]|ll|ve|re)|{_SPACELESS}| ?[{_LETTER}&&[^{_SPACELESS}]]{{1,32}}| ?\p{{N}}{{1,32}}"
    rf"| ?[^\s{_LETTER}\p{{N}}]{{1,32}}|\s{{1,32}}(?!\S)|\s{{1,32}}"
)
"""Pieces that byte-level BPE merges within: GPT-2's, with marks among the letters, and of a bounded length. Ideographs
stand alone: on long pieces that never occur twice, training would take hours and gigabytes."""
_PARALLELISM, _OFF = "TOKENIZERS_PARALLELISM", "No"  # this spelling is nbtools' only; any other value is the user's
_BATCH_CHARACTERS = 2**20
Encode = Callable[[str], Sequence[int] | npt.NDArray[np.int32]]


def train_tokenizer(
    level: str,
    texts: Iterable[str],
    vocab_size: int,
    folder: Path | None = None,
    *,
    first: Sequence[str] = (EOS, UNKNOWN),
    last: Sequence[str] = (MASK,),
    names: Mapping[str, str] = _NAMES,
) -> PreTrainedTokenizerFast:
    """Build a tokenizer of the most frequent characters or words of `texts`, between special tokens.

    Args:
        level: chars, or words: lower-cased words and punctuation characters.
        vocab_size: largest number of tokens, the special ones included.
        folder: for word counts that exceed memory; the system's temporary folder when None.
        first: special tokens with the first ids; one is [UNK].
        last: special tokens with the last ids.
        names: of special tokens in `transformers`.
    """
    num_tokens = max(vocab_size - len(first) - len(last), 1)
    if level == "words":
        with WordCounts(folder) as word_counts:
            for text in texts:
                word_counts.add(corpus.words(text))
            tokens = word_counts.most_common(num_tokens)  # no word equals a special token
        # The same as corpus.words.
        sigma = ("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")
        settings = {
            "normalizer": Normalizers([Lowercase(), Replace(*sigma)]),
            "pre_tokenizer": Split(Regex(corpus.WORD_PATTERN), behavior="removed", invert=True),
        }
    else:
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        tokens = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:num_tokens])
        settings = {"pre_tokenizer": Split(Regex(r"[\s\S]"), behavior="isolated"), "decoder": decoders.Fuse()}
    ids = {token: number for number, token in enumerate([*first, *tokens, *last])}
    backend = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    for name, setting in settings.items():
        setattr(backend, name, setting)
    return _fast(backend, names)


def _fast(backend: Tokenizer, names: Mapping[str, str | AddedToken]) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **names
    )


def load_tokenizer(
    model_name: str, *, trust_remote_code: bool = False, option: str = "model_name"
) -> PreTrainedTokenizerBase:
    """Load a tokenizer, and set its mask token by known names.

    Raises:
        ConfigError: there is none, or it has no token that ends a text; the message names the `option`.
    """
    try:
        is_known = bool(_HUB_ID.fullmatch(model_name)) or Path(model_name).is_dir()
    except (OSError, ValueError):  # too long for a path, or with NUL
        is_known = False
    if not is_known:
        raise ConfigError(f"{option}={shown(model_name)}: neither a folder nor a hub id such as OWNER/NAME")
    tokenizer: PreTrainedTokenizerBase
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise not_loadable(f"{option}={model_name!r}: its tokenizer", error) from error
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is None:
        raise ConfigError(f"{option}={model_name!r}: its tokenizer has no token that ends a text; choose another model")
    if tokenizer.mask_token_id is None:
        known = tokenizer.get_vocab()
        name = next((name for name in _MASK_TOKENS if name in known), None)
        if name is not None:
            tokenizer.mask_token = name
    return tokenizer


def masking_tokenizer(model_name: str) -> PreTrainedTokenizerBase:
    """Load a masked language model's tokenizer, as `load_tokenizer`; ConfigError also if it has no mask, or is slow."""
    tokenizer = load_tokenizer(model_name)
    if tokenizer.mask_token_id is None:
        raise ConfigError(f"model_name={model_name!r}: its tokenizer has no mask token; choose a masked language model")
    if not tokenizer.is_fast:
        raise ConfigError(f"model_name={model_name!r}: its tokenizer must have a fast version")
    return tokenizer


def separator_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id of the end-of-text token."""
    separator = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    return int(separator)


def template_of(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a tokenizer puts before and after a sequence, such as those of [CLS] and [SEP]."""
    plain, full = (tokenizer("a", add_special_tokens=added, verbose=False)["input_ids"] for added in (False, True))
    if not plain:
        return (), ()
    start = next(place for place in range(len(full)) if full[place : place + len(plain)] == plain)
    return tuple(full[:start]), tuple(full[start + len(plain) :])


def encoder(tokenizer: PreTrainedTokenizerBase, level: str, special_tokens: corpus.SpecialTokens = "text") -> Encode:
    """Return a function from one text to ids; for characters a table, with the tokenizer's result.

    A vocabulary built here has no special token that a text can hold.
    """
    if level == "chars":
        ids, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
        table = np.full(0x110000, unknown, dtype=np.int32)
        for token, number in ids.items():
            if len(token) == 1:
                table[ord(token)] = number
        return lambda text: table[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")]
    if level == "words":  # corpus.words, as in the form's counts
        ids, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
        return lambda text: [ids.get(word, unknown) for word in corpus.words(text)]
    options = {"split_special_tokens": True} if special_tokens == "text" else {}
    return lambda text: tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"]


def encode_all(
    texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, level: str, special_tokens: corpus.SpecialTokens = "text"
) -> Iterator[Sequence[int] | npt.NDArray[np.int32]]:
    """Yield the ids of texts, those of `encoder`; a fast tokenizer encodes a million characters at a time on all cores.

    RAYON_NUM_THREADS limits the threads, and TOKENIZERS_PARALLELISM=false turns them off.
    """
    if level in ("chars", "words") or not has_backend(tokenizer):
        yield from map(encoder(tokenizer, level, special_tokens), texts)
        return
    if special_tokens == "text":
        backend = SpecialTokens(tokenizer).text_backend()
    else:
        encoder(tokenizer, level, special_tokens)("a")  # sets truncation, padding and special tokens of the backend
        backend = tokenizer.backend_tokenizer
    for batch in _batches(texts):
        with _threads():
            encodings = backend.encode_batch_fast(batch, add_special_tokens=False)
        yield from (encoding.ids for encoding in encodings)


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text) + 1
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    """Let the tokenizer use threads unless the user forbids it; off afterwards, as a forked process has none."""
    is_free = os.environ.get(_PARALLELISM) in (None, _OFF)
    if is_free:
        os.environ[_PARALLELISM] = "true"
    try:
        yield
    finally:
        if is_free:
            os.environ[_PARALLELISM] = _OFF


def word_tokenizer(documents: Iterable[str], vocab_size: int, folder: Path | None = None) -> PreTrainedTokenizerFast:
    """Build a tokenizer of words, as `train_tokenizer` does, with BERT's special tokens; [SEP] ends each document."""
    return _ended(
        train_tokenizer("words", documents, vocab_size, folder, first=SPECIAL_TOKENS, last=(), names=_BERT_NAMES)
    )


def byte_tokenizer(documents: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train byte-level BPE (Radford et al. 2019) with BERT's special tokens but [UNK]: every text comes back unchanged.

    [MASK] takes the space before it, as in RoBERTa: the token that it stands for begins with one.
    """
    known = {name: token for name, token in _BERT_NAMES.items() if token != UNKNOWN}
    names = {name: AddedToken(token, special=True, lstrip=token == MASK) for name, token in known.items()}
    backend = Tokenizer(BPE())
    to_bytes = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = PreTokenizers([Split(Regex(_MERGED), behavior="isolated"), to_bytes])
    backend.decoder = decoders.ByteLevel()
    options: dict[str, Any] = {
        "special_tokens": [*names.values()],
        "initial_alphabet": ByteLevel.alphabet(),
        "show_progress": False,
    }
    with _threads():
        backend.train_from_iterator(documents, BpeTrainer(vocab_size=vocab_size, min_frequency=2, **options))
    return _ended(_fast(backend, names))


def _ended(made: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Let a tokenizer end each text with [SEP]."""
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B [SEP]", special_tokens=[("[SEP]", made.sep_token_id)]
    )
    return made


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, model: Path) -> None:
    """Raise CheckpointError if a checkpoint has other token ids: its weights would load, but not fit the data."""
    if AutoTokenizer.from_pretrained(model, trust_remote_code=False).get_vocab() != tokenizer.get_vocab():
        raise CheckpointError(f"{model}: its vocabulary is that of another text; resume with the dataset of its run")
