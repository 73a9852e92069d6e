"""Text as rows of token ids for a masked language model, with the special tokens of a tokenizer's template.

Shape suffixes: N rows, B batch, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from nbtools.data import split
from nbtools.errors import DataError, Say
from nbtools.recipes import MLMPretrainingConfig
from nbtools.training.text import disk_buffer
from nbtools.training.text.tokenized import TokenizedText, Tokens, cached_once, cached_text, open_text
from nbtools.training.text.tokenizers import byte_tokenizer, masking_tokenizer, template_of, word_tokenizer

_REQUEST = (
    "dataset", "max_samples", "min_words", "tokenizer", "vocab_size", "model_name", "clean", "test_fraction",
    "special_tokens",
)  # fmt: skip
_MOST_MERGED = 2**25
"""Characters that byte-level BPE is trained on: most merges are known by then, and rank 0 is waited for."""


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
        ends = [np.tile(np.array(ids, dtype=np.int32), (len(text_BT), 1)) for ids in (self.before, self.after)]
        return np.concatenate([ends[0], text_BT, ends[1]], axis=1)


Rows = Tokens | TemplateRows
MLMText = TokenizedText[Rows]


def tokenize(
    cache: Path, config: MLMPretrainingConfig, root: Path | None = None, say: Say = print
) -> disk_buffer.Tokenized:
    """Tokenize the text of a config into a folder that later runs reuse; on rank 0 only.

    Raises:
        DataError: the text is missing, malformed or too short, or the cache cannot be written.
        ConfigError: `model_name` has no loadable tokenizer, or no mask token.
    """

    def load() -> PreTrainedTokenizerBase | None:
        return None if config.model_name is None else masking_tokenizer(config.model_name)

    def train(documents: disk_buffer.Spool) -> PreTrainedTokenizerBase:
        if config.tokenizer == "words":
            return word_tokenizer(documents.part(split.TRAIN, say, "counting words"), config.vocab_size, cache)
        texts = documents.part(split.TRAIN, say, "counting pairs of bytes", _MOST_MERGED)
        return byte_tokenizer(texts, config.vocab_size)

    def make(tell: Say) -> Path:
        return cached_text(cache, config, load(), train, root, tell)

    return cached_once(cache, config, _REQUEST, load, make, say)


def open_tokenized(folder: Path, sequence_length: int, *, with_template: bool = False) -> MLMText:
    """Open the folder that `tokenize` wrote, as memory-mapped rows of `sequence_length` tokens.

    With the tokenizer's template, the special tokens that it puts around a sequence count in that length.

    Raises:
        DataError: the template leaves no room for text.
    """
    text = open_text(folder)
    before, after = template_of(text.tokenizer) if with_template else ((), ())
    room = sequence_length - len(before) - len(after)
    if room < 1:
        raise DataError(
            f"sequence_length={sequence_length}: the tokenizer's template leaves no room for text; raise it"
        )
    text.tokenizer.model_max_length = sequence_length
    rows = (disk_buffer.rows_of(part, room) for part in (text.train, text.evaluation, text.test))
    parts: list[Rows] = [TemplateRows(part, before, after) if before or after else part for part in rows]
    return TokenizedText(text.tokenizer, *parts, data=text.data)
