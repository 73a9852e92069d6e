"""Text, or prompts and answers, as sequences for a masked diffusion model; the implementation of `nbtools prepare`.

The text of prompts and answers is held in memory while it is tokenized; their tokens are in flat files.

Shape suffixes: N samples, T positions.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from nbtools.data import corpus, data_files, prepared, split
from nbtools.data.hub import split_options
from nbtools.data.masked_diffusion import pairs
from nbtools.data.masked_diffusion.pairs import Pair
from nbtools.data.prepared import PreparedMetadata
from nbtools.data.tables import Source
from nbtools.errors import DataError, Say, plural, shown
from nbtools.recipes import MaskedDiffusionConfig
from nbtools.rundir.atomic import new_folder
from nbtools.rundir.json_files import read_json, write_json
from nbtools.training.masked_diffusion.chat_template import always_written, read_as, render_pair
from nbtools.training.masked_diffusion.sequences import RaggedPairs, Sequences
from nbtools.training.text import disk_buffer, tokenized
from nbtools.training.text.tokenizers import encode_all, load_tokenizer, separator_of, train_tokenizer

_PAIRS_FORMAT = 5
_REQUEST = (
    "dataset", "tokenizer", "model_name", "vocab_size", "sequence_length", "min_words", "clean", "test_fraction",
    "special_tokens",
)  # fmt: skip
_NOTES = "notes.json"


@dataclass(frozen=True)
class DiffusionText(tokenized.TokenizedText[Sequences | RaggedPairs]):
    """A tokenizer, and the sequences for training, evaluation and test."""

    @property
    def has_pairs(self) -> bool:
        """Whether the data are prompts and answers, not text."""
        return isinstance(self.train, RaggedPairs)

    @property
    def eos_id(self) -> int:
        """The token after documents and answers."""
        return separator_of(self.tokenizer)


# --- text -----------------------------------------------------------------------------------------


def prepare(
    dataset: str | None,
    folder: Path,
    tokenizer: str = "chars",
    *,
    vocab_size: int,
    min_words: int = 1,
    clean: corpus.Clean = "none",
    say: Say = print,
) -> PreparedMetadata:
    """Tokenize a text into a folder, as described in `nbtools.data.prepared`.

    Args:
        dataset: a text file or a folder of them; None for the English text that ships with Python.
        folder: folder to write; it must not exist, or be empty.
        tokenizer: chars, words, or the folder or hub id of a model.
        vocab_size: of a vocabulary built here, at most.
        min_words: files with fewer words are left out.
        clean: see `corpus.documents`.
        say: prints what is left out.

    Raises:
        DataError: the text is missing, malformed or too short, or the folder exists or cannot be written.
        ConfigError: there is no such tokenizer.
    """
    made = None if tokenizer in ("chars", "words") else load_tokenizer(tokenizer, option="tokenizer")  # before reading
    try:
        if "\0" in str(folder) or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise DataError(f"{shown(str(folder))}: exists, or is not a folder; name a new folder with --out")
    except OSError as error:
        raise DataError(f"{shown(str(folder))}: {error.strerror}; name another folder with --out") from None
    values: dict[str, Any] = {"dataset": dataset, "vocab_size": vocab_size, "min_words": min_words, "clean": clean}
    config = MaskedDiffusionConfig(**values, **({"tokenizer": tokenizer} if made is None else {}))
    with tokenized.spooled(config, folder.parent, None, say) as documents:
        made = trained_tokenizer(config, folder.parent, documents) if made is None else made
        metadata = tokenized.write_text(folder, made, tokenizer, documents, config, say)
    tokenized.say_notes(metadata, say)
    return metadata


def trained_tokenizer(
    config: MaskedDiffusionConfig, folder: Path, documents: disk_buffer.Spool
) -> PreTrainedTokenizerBase:
    """Build a tokenizer on a text: on all of it for characters of a text that must come back unchanged."""
    is_lossless = config.tokenizer == "chars" and config.dataset is not None and config.clean == "none"
    known = chain.from_iterable(map(documents.part, range(3 if is_lossless else 1)))
    return train_tokenizer(config.tokenizer, known, config.vocab_size, folder)


def open_sequences(folder: Path, sequence_length: int) -> DiffusionText:
    """Open a folder of a text as memory-mapped rows of `sequence_length` tokens; DataError if it is damaged."""
    text = tokenized.open_text(folder)
    rows = (disk_buffer.rows_of(part, sequence_length) for part in (text.train, text.evaluation, text.test))
    parts = (Sequences(rows_NT, np.broadcast_to(np.int64(0), len(rows_NT))) for rows_NT in rows)  # takes no memory
    return DiffusionText(text.tokenizer, *parts, data=text.data)


def _pretrained_tokenizer(config: MaskedDiffusionConfig) -> PreTrainedTokenizerBase | None:
    if config.model_name is None:
        return None
    return load_tokenizer(config.model_name, trust_remote_code=config.trust_remote_code)


# --- prompts and answers --------------------------------------------------------------------------


def cached_data(
    cache: Path, config: MaskedDiffusionConfig, root: Path | None = None, say: Say = print
) -> disk_buffer.Tokenized:
    """Tokenize what `config.dataset` names, pairs or text, into a folder that later runs reuse; on rank 0 only.

    Raises:
        DataError: see `cached_pairs` and `cached_text`.
        ConfigError: there is no such tokenizer.
    """
    data_files.hub_dataset(config.dataset, root)  # unless a file is called like it
    sources = [] if config.dataset is None else data_files.tables_in(config.dataset, root)
    column = split_options(config.dataset or "")[1].get("column")

    def make(tell: Say) -> Path:
        if not sources or not pairs.has_pairs(sources, column):
            given = _pretrained_tokenizer(config)  # an error before the text is read
            return tokenized.cached_text(cache, config, given, partial(trained_tokenizer, config, cache), root, tell)
        folder, remark = cached_pairs(cache, sources, config, tell)
        if remark:
            tell(f"note: {remark}")
        return folder

    return tokenized.cached_once(cache, config, _REQUEST, partial(_pretrained_tokenizer, config), make, say)


def cached_pairs(
    cache: Path, sources: Sequence[Source], config: MaskedDiffusionConfig, say: Say = print
) -> tuple[Path, str]:
    """Tokenize prompts and answers into a folder named after a hash of the content; on rank 0 only.

    A prompt goes through the tokenizer's chat template if it has one; otherwise the answer follows it directly. Special
    tokens of the template are ids; those in a user's text are too if the config says so. One end-of-text token follows
    the answer. The template writes whole conversations, and what it writes behind an answer, such as an end-of-turn
    token, is part of it.

    Returns:
        The folder, and a note on malformed rows of the hub, pairs that the template refuses or that are too long,
        repeated prompts and unknown tokens; or an empty string.

    Raises:
        DataError: a row is malformed (file and line are named), the template refuses all pairs, none fits, or messages
            have no chat template.
        ConfigError: there is no such tokenizer.
    """
    unread = pairs.LeftOutPairs()
    found, origin = list(pairs.read_pairs(*sources, left_out=unread)), str(sources[0])
    if not found:
        empty = f"{origin}: empty; write a line {{'prompt': ..., 'answer': ...}} for each pair, as JSON"
        raise DataError((unread.malformed or [f"{origin}: {note}" for note in unread.notes()] or [empty])[0])
    tokenizer, sequence_length = config.model_name or config.tokenizer, config.sequence_length
    made = _pretrained_tokenizer(config)
    if any(pair.turns for pair in found) and (made is None or made.chat_template is None):
        raise pairs.no_template(origin)
    if made is None:
        is_lossless = tokenizer == "chars" and config.clean == "none"  # all characters are known
        known = found if is_lossless else pairs.split_pairs(found, 1, lambda _: 0)[0]
        texts = chain.from_iterable((pair.prompt, pair.answer) for pair in known)
        made = train_tokenizer(tokenizer, texts, config.vocab_size)
    settings = [_PAIRS_FORMAT, split.RULE, tokenizer, sequence_length, tokenized.fingerprint(made), made.chat_template]
    digest = disk_buffer.content_name((pair.prompt, pair.answer, pair.turns) for pair in found)
    folder = cache / disk_buffer.content_name([*settings, config.test_fraction, config.special_tokens, digest])
    if not folder.is_dir():
        with disk_buffer.writing(folder), new_folder(folder) as built:
            made.save_pretrained(built / prepared.TOKENIZER)
            notes = _write_pairs(built, found, made, config, say)
            write_json(built / _NOTES, {"notes": [*notes, *filter(None, [pairs.repeated_prompts(found)])]})
            size = f"{plural(len(found), 'pair')} of prompt and answer"
            disk_buffer.save_digest(built, split.DataDigest(digest, size))
    return folder, "; ".join([*unread.notes(), *(read_json(folder / _NOTES) or {"notes": []})["notes"]])


_PARTS = ("train", "eval", "test")


def _write_pairs(
    folder: Path, found: list[Pair], tokenizer: PreTrainedTokenizerBase, config: MaskedDiffusionConfig, say: Say
) -> list[str]:
    """Tokenize each pair once into a flat file, and copy the parts for training, evaluation and test from it.

    Returns:
        A sentence each on pairs that are refused or too long, and on unknown and special tokens, if there are any.
    """
    dtype, eos_id = np.min_scalar_type(max(tokenizer.get_vocab().values())), separator_of(tokenizer)
    starts, lengths, counts = array("q"), array("q"), disk_buffer.Counts(tokenizer.unk_token_id)
    special, reads = read_as(found, tokenizer, config, counts)

    kept: list[Pair] = []
    refused: list[str] = []

    def texts_of_pairs() -> Iterator[tuple[str, str]]:
        always = always_written(tokenizer) if any(pair.turns for pair in found) else ""
        for pair in found:
            try:
                texts = render_pair(tokenizer, pair, always, special)
            except DataError as error:
                refused.append(str(error))
            else:
                kept.append(pair)
                yield texts

    def all_tokens() -> Iterator[npt.NDArray[np.int64]]:
        texts = chain.from_iterable(texts_of_pairs())
        total = sum(len(pair.prompt) + len(pair.answer) for pair in found)
        level = config.model_name or config.tokenizer
        ids = encode_all(disk_buffer.with_progress(texts, say, "tokenizing", total), tokenizer, level, reads)
        for prompt, answer in zip(ids, ids, strict=True):
            starts.append(len(prompt))
            lengths.append(len(prompt) + len(answer) + 1)
            yield np.concatenate([prompt, answer, [eos_id]]).astype(np.int64)

    everything = folder / "all.npy"
    disk_buffer.save_pieces(everything, counts.of(all_tokens()), dtype)
    if not kept:
        raise DataError(f"all of {plural(len(found), 'pair')} refused, the first: {refused[0]}")
    flat, ends = np.load(everything, mmap_mode="r"), np.cumsum(lengths)
    numbers = {id(pair): number for number, pair in enumerate(kept)}
    parts = pairs.split_pairs(kept, config.sequence_length, lambda p: lengths[numbers[id(p)]] - 1, config.test_fraction)
    for name, part in zip(_PARTS, parts, strict=True):
        rows_N = np.array([numbers[id(pair)] for pair in part], dtype=np.int64)
        pieces = (flat[ends[row] - lengths[row] : ends[row]] for row in rows_N)
        disk_buffer.save_pieces(folder / f"{name}.npy", pieces, dtype)
        np.save(folder / f"{name}_starts.npy", np.asarray(starts)[rows_N])
        np.save(folder / f"{name}_offsets.npy", np.append(0, np.cumsum(np.asarray(lengths)[rows_N])))
    everything.unlink()
    notes = [f"{len(refused):,} of {len(found):,} pairs left out, the first: {refused[0]}"] if refused else []
    if too_long := len(kept) - sum(map(len, parts)):
        longest = config.sequence_length
        notes.append(f"{too_long:,} of {len(found):,} pairs are longer than {longest} tokens and left out")
    unknown = disk_buffer.unknown_note(counts.unknown, counts.tokens)
    return [*notes, *unknown, *disk_buffer.special_note(counts.special)]


def open_cached(folder: Path, config: MaskedDiffusionConfig) -> DiffusionText:
    """Open the folder that `cached_data` wrote; pairs with the padding of the config."""
    if (folder / prepared.TRAIN).is_file():
        return open_sequences(folder, config.sequence_length)
    tokenizer = tokenized.saved_tokenizer(folder)
    padded_to = config.sequence_length if config.pad_to == "sequence_length" else None
    parts = []
    for name in _PARTS:
        names = (f"{name}.npy", f"{name}_offsets.npy", f"{name}_starts.npy")
        tokens, offsets, starts_N = (np.load(folder / file, mmap_mode="r") for file in names)
        parts.append(RaggedPairs(tokens, offsets, starts_N, separator_of(tokenizer), padded_to))
    return DiffusionText(tokenizer, *parts, data=disk_buffer.digest_in(folder))
