"""From text to rows of token ids: tokenizers, and the cache of what they made of a text."""

import contextlib
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nbtools import corpus
from nbtools.errors import CheckpointError, DataError
from nbtools.recipes.modernbert import SPECIAL_TOKENS
from nbtools.training.pretrained import masking_tokenizer

_CACHE_FORMAT = 1

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class TokenizedText:
    """A tokenizer, and the training and evaluation text as rows of token ids."""

    tokenizer: PreTrainedTokenizerBase
    train_NT: Tokens
    eval_NT: Tokens

    @property
    def maskable_ids(self) -> npt.NDArray[np.int64]:
        """Ids of the ordinary words: those that may be predicted, and drawn as random replacements."""
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
) -> Path:
    """Tokenize a text once and return the folder that holds the result; call it on rank 0 only.

    The folder is named after the content, is put in place by one rename, and is found again by later runs. It holds
    `tokenizer/` (for `AutoTokenizer.from_pretrained`), `train.npy` and `eval.npy` (flat int32, documents separated
    by one separator token).

    Args:
        cache: where such folders are kept.
        dataset: see `corpus.read_documents`.
        min_words: documents with fewer words are left out.
        vocab_size: largest size of the word-level vocabulary; special tokens count.
        model_name: take this model's own tokenizer instead of a word-level one.
        root: what a relative `dataset` starts from.

    Raises:
        DataError: the text is missing, malformed or too short, or the cache cannot be written.
        ConfigError: `model_name` has no tokenizer that could be loaded, or it knows no mask token.
    """
    train, evaluation = corpus.split(corpus.read_documents(dataset, min_words, root=root))
    tokenizer = word_tokenizer(train, vocab_size) if model_name is None else masking_tokenizer(model_name)
    digest = hashlib.sha256(json.dumps([_CACHE_FORMAT, tokenizer.backend_tokenizer.to_str()]).encode())
    for document in chain(train, ["\0"], evaluation):
        digest.update(hashlib.sha256(document.encode("utf-8", "surrogatepass")).digest())
    folder = cache / digest.hexdigest()[:32]
    if folder.is_dir():
        return folder
    separator = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=cache, ignore_cleanup_errors=True) as temporary:
            built = Path(temporary) / "built"
            tokenizer.save_pretrained(built / "tokenizer")
            for name, documents in (("train", train), ("eval", evaluation)):
                np.save(built / f"{name}.npy", _encode(tokenizer, documents, separator, words=model_name is None))
            with contextlib.suppress(OSError):  # another run was faster: its folder has the same content
                built.rename(folder)
        if not folder.is_dir():
            raise OSError(f"{folder} could not be put in place")
    except OSError as error:
        raise DataError(f"{cache}: the tokenized text cannot be written there: {error}") from error
    return folder


def open_tokenized(folder: Path, sequence_length: int) -> TokenizedText:
    """Open what `tokenize` wrote; rows of `sequence_length` tokens that stay on disk until they are read."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False)
    tokenizer.model_max_length = sequence_length
    rows = [_rows(folder / f"{name}.npy", sequence_length) for name in ("train", "eval")]
    return TokenizedText(tokenizer, *rows)


def word_tokenizer(documents: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Build a tokenizer of the most frequent lower-cased words and punctuation characters of `documents`."""
    counts = Counter(chain.from_iterable(corpus.words(document) for document in documents))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))  # ties in an order that every machine agrees on
    words = [word for word in ranked if word not in SPECIAL_TOKENS][: max(vocab_size - len(SPECIAL_TOKENS), 1)]
    ids = {word: number for number, word in enumerate([*SPECIAL_TOKENS, *words])}
    backend = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    # As corpus.lowered and corpus.words do it.
    sigma = ("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")
    backend.normalizer = Normalizers([Lowercase(), Replace(*sigma)])
    backend.pre_tokenizer = Split(Regex(corpus.WORD_PATTERN), behavior="removed", invert=True)
    backend.post_processor = TemplateProcessing(  # documents end with a separator, as in training
        single="$A [SEP]", pair="$A [SEP] $B [SEP]", special_tokens=[("[SEP]", ids["[SEP]"])]
    )
    names = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **names
    )


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, model: Path) -> None:
    """Refuse a checkpoint's model whose tokens have other numbers: its weights would load and mean nothing.

    Raises:
        CheckpointError: its vocabulary is another one.
    """
    if AutoTokenizer.from_pretrained(model, trust_remote_code=False).get_vocab() != tokenizer.get_vocab():
        raise CheckpointError(f"{model}: its vocabulary is of another text; resume with the dataset of its run")


def writer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Callable[[Path], None]:
    """Return what writes model and tokenizer into a folder that `from_pretrained` loads."""

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return write


def _encode(tokenizer: PreTrainedTokenizerBase, documents: Sequence[str], separator: int, *, words: bool) -> Tokens:
    pieces = []
    if words:  # through corpus.words, whose counts the form showed; the saved tokenizer cuts at the same places
        ids, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
        for document in documents:
            pieces.append([ids.get(word, unknown) for word in corpus.words(document)])
    else:
        for document in documents:
            pieces.append(tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"])
    return np.concatenate([np.array([*piece, separator], dtype=np.int32) for piece in pieces])


def _rows(path: Path, sequence_length: int) -> Tokens:
    flat = np.load(path, mmap_mode="r")
    num_rows = len(flat) // sequence_length
    rows: Tokens = flat[: num_rows * sequence_length].reshape(num_rows, sequence_length)
    return rows
