"""From text to batches: tokenizer, token files, the order of samples, masking.

Everything random here is a pure function of (seed, epoch, global sample index). So the data a model sees does not
depend on how many processes share it, and a resumed run goes on in the middle of an epoch where it stopped.

Shape suffixes: N samples, B batch, T positions, K predicted positions.
"""

import contextlib
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from nbtools import corpus
from nbtools.errors import ConfigError, DataError
from nbtools.recipes import SPECIAL_TOKENS
from nbtools.training.process import loader_worker_init

IGNORED = -100
"""Label of a position that counts neither in the loss nor in the accuracy (torch's own default)."""

_CACHE_FORMAT = 1

Tokens = npt.NDArray[np.int32]
Randoms = npt.NDArray[np.uint64]


# --- tokenizer and token files --------------------------------------------------------------------


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
    tokenizer = word_tokenizer(train, vocab_size) if model_name is None else pretrained_tokenizer(model_name)
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


def open_vocabulary(folder: Path) -> dict[str, int]:
    """Return the words and ids of the tokenizer in `folder`."""
    ids: dict[str, int] = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).get_vocab()
    return ids


def pretrained_tokenizer(model_name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a local folder or hub id.

    Raises:
        ConfigError: there is none, or it cannot be used for masked language modelling.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"model_name={model_name!r}: its tokenizer cannot be loaded ({first_line(error)}); "
            "give a folder written by save_pretrained, or a hub id"
        ) from error
    if tokenizer.mask_token_id is None:
        raise ConfigError(f"model_name={model_name!r}: its tokenizer has no mask token; choose a masked language model")
    if not tokenizer.is_fast or (tokenizer.sep_token_id is None and tokenizer.eos_token_id is None):
        raise ConfigError(f"model_name={model_name!r}: its tokenizer needs a fast version and a separator token")
    return tokenizer


def first_line(error: BaseException, limit: int = 200) -> str:
    """Return the first line of an error's text, or its type when it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:limit] if lines else type(error).__name__


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


# --- the order of samples -------------------------------------------------------------------------


class SampleOrder(Sampler[tuple[int, npt.NDArray[np.int64]]]):
    """This rank's endless sequence of (epoch, global sample indices), one entry per forward pass.

    Every epoch is one permutation of all samples. An optimizer step takes the next `batch_size * accumulation *
    world_size` of them, so ranks never share a sample and the samples of a step do not depend on how many ranks divide
    them. What is left at an epoch's end is too little for a step and is left out; the next epoch shuffles anew.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        gradient_accumulation_steps: int = 1,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        epoch: int = 0,
        position: int = 0,
    ) -> None:
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = epoch
        self.position = position
        """Samples of `epoch` that were used up before, by all ranks together."""
        if self.effective_batch > num_samples:
            raise DataError(f"{num_samples} training samples do not fill one step of {self.effective_batch}")

    @property
    def effective_batch(self) -> int:
        """Samples per optimizer step, over all ranks."""
        return self.batch_size * self.gradient_accumulation_steps * self.world_size

    def __iter__(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        epoch, position = self.epoch, self.position
        while True:
            order_N = epoch_order(self.seed, epoch, self.num_samples)
            while position + self.effective_batch <= self.num_samples:
                for micro_step in range(self.gradient_accumulation_steps):
                    start = position + (micro_step * self.world_size + self.rank) * self.batch_size
                    yield epoch, order_N[start : start + self.batch_size]
                position += self.effective_batch
            epoch, position = epoch + 1, 0


def epoch_order(seed: int, epoch: int, num_samples: int) -> npt.NDArray[np.int64]:
    """Return the permutation in which `epoch` visits the samples."""
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


def load(dataset: Dataset[Any], order: SampleOrder, num_workers: int = 0, *, pin_memory: bool = False) -> Iterator[Any]:
    """Iterate over `dataset[epoch, indices]` in the given order, read ahead by `num_workers` processes."""
    loader = DataLoader(
        dataset,
        sampler=order,
        batch_size=None,  # the dataset builds whole batches
        num_workers=num_workers,
        pin_memory=pin_memory,
        worker_init_fn=loader_worker_init() if num_workers else None,
        generator=torch.Generator().manual_seed(0),  # or each iterator would take a number from the model's stream
    )
    return iter(loader)


# --- masking --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masking:
    """BERT's masking: exactly `num_predicted` positions per sequence, chosen among the ordinary tokens.

    A fixed number keeps shapes static and makes every average over equal batches the average over all of them: two
    ranks, or four accumulated passes, give the gradient of one large batch. Only a sequence with fewer ordinary
    tokens than that predicts less; the labels left over are `IGNORED`.
    """

    num_predicted: int
    mask_id: int
    maskable_ids: npt.NDArray[np.int64]
    vocab_size: int
    seed: int

    @classmethod
    def of(cls, text: TokenizedText, mask_probability: float, seed: int) -> "Masking":
        """Masking for the sequences of `text`."""
        num_predicted = max(1, round(mask_probability * text.train_NT.shape[1]))
        return cls(num_predicted, text.tokenizer.mask_token_id, text.maskable_ids, len(text.tokenizer), seed)

    def for_training(
        self, tokens_BT: Tokens, samples_B: npt.NDArray[np.int64], epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mask 80% of the chosen positions, replace 10% by random words, keep 10%.

        Returns:
            inputs_BT, positions_BK (ascending), labels_BK.
        """
        chosen_BT = self._randoms("position", epoch, samples_B, tokens_BT.shape[1])
        positions_BK, labels_BK = self._choose(tokens_BT, chosen_BT)
        fate_BK = self._randoms("fate", epoch, samples_B, self.num_predicted) / 2.0**64
        word_BK = self._randoms("word", epoch, samples_B, self.num_predicted)
        random_BK = self.maskable_ids[word_BK % np.uint64(len(self.maskable_ids))]
        shown_BK = np.where(fate_BK < 0.8, self.mask_id, np.where(fate_BK < 0.9, random_BK, labels_BK))
        return self._tensors(tokens_BT, positions_BK, labels_BK, shown_BK)

    def for_evaluation(
        self, tokens_BT: Tokens, samples_B: npt.NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mask all of the chosen positions, always the same ones.

        A visible token would let a model without any context look good.
        """
        chosen_BT = self._randoms("evaluation", 0, samples_B, tokens_BT.shape[1])
        positions_BK, labels_BK = self._choose(tokens_BT, chosen_BT)
        return self._tensors(tokens_BT, positions_BK, labels_BK, np.full_like(labels_BK, self.mask_id))

    def _choose(self, tokens_BT: Tokens, randoms_BT: Randoms) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        ordinary = np.zeros(max(self.vocab_size, int(tokens_BT.max(initial=0)) + 1), dtype=bool)
        ordinary[self.maskable_ids] = True
        ordinary_BT = ordinary[tokens_BT]
        ranked_BT = np.where(ordinary_BT, randoms_BT >> np.uint64(1), np.uint64(2**64 - 1))
        count = min(self.num_predicted, tokens_BT.shape[1])
        positions_BK = np.sort(np.argpartition(ranked_BT, count - 1, axis=1)[:, :count], axis=1)
        labels_BK = np.take_along_axis(tokens_BT, positions_BK, axis=1).astype(np.int64)
        labels_BK[~np.take_along_axis(ordinary_BT, positions_BK, axis=1)] = IGNORED
        return positions_BK, labels_BK

    def _tensors(
        self,
        tokens_BT: Tokens,
        positions_BK: npt.NDArray[np.int64],
        labels_BK: npt.NDArray[np.int64],
        shown_BK: npt.NDArray[np.int64],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inputs_BT = tokens_BT.astype(np.int64)
        kept_BK = np.take_along_axis(inputs_BT, positions_BK, axis=1)
        np.put_along_axis(inputs_BT, positions_BK, np.where(labels_BK == IGNORED, kept_BK, shown_BK), axis=1)
        return torch.from_numpy(inputs_BT), torch.from_numpy(positions_BK), torch.from_numpy(labels_BK)

    def _randoms(self, purpose: str, epoch: int, samples_B: npt.NDArray[np.int64], count: int) -> Randoms:
        """Return uint64 random numbers of shape (B, count) that depend on nothing but the arguments."""
        key = hashlib.blake2b(f"{self.seed} {epoch} {purpose}".encode(), digest_size=8).digest()
        with np.errstate(over="ignore"):
            start_B1 = _mixed(np.uint64(int.from_bytes(key, "big")) ^ _mixed(samples_B.astype(np.uint64)))[:, None]
            return _mixed(start_B1 + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(values: Randoms) -> Randoms:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a counter in, a random number out."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class MaskedTraining(Dataset[Any]):
    """Masked training batches, indexed by (epoch, global sample indices)."""

    def __init__(self, tokens_NT: Tokens, masking: Masking) -> None:
        self.tokens_NT = tokens_NT
        self.masking = masking

    def __getitem__(self, key: tuple[int, npt.NDArray[np.int64]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        epoch, samples_B = key
        return self.masking.for_training(self.tokens_NT[samples_B], samples_B, epoch)


def evaluation_batches(
    tokens_NT: Tokens, masking: Masking, batch_size: int, *, rank: int = 0, world_size: int = 1
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield this rank's share of the evaluation samples; every sample belongs to exactly one rank."""
    samples_N = np.arange(rank, len(tokens_NT), world_size)
    for start in range(0, len(samples_N), batch_size):
        samples_B = samples_N[start : start + batch_size]
        yield masking.for_evaluation(tokens_NT[samples_B], samples_B)


def unigram_log_probabilities(tokens_NT: Tokens, maskable_ids: npt.NDArray[np.int64], vocab_size: int) -> torch.Tensor:
    """Return log p(word) from add-one smoothed training counts over the ordinary words; -inf elsewhere. Shape (V,)."""
    counts_V = np.bincount(tokens_NT.reshape(-1), minlength=vocab_size)[maskable_ids] + 1.0
    log_p_V = np.full(vocab_size, -np.inf)
    log_p_V[maskable_ids] = np.log(counts_V / counts_V.sum())
    return torch.from_numpy(log_p_V)
