"""What the LLM GAN reads and writes: prompts, human texts as token ids, and a likelihood that neither model knows.

Shape suffixes: N samples, B batch, P positions of a prompt, T positions of a text, K draws of a step.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


class Outside(Protocol):
    """A likelihood of texts that neither generator nor judge is trained on: the truth, or counts of held-out texts."""

    def losses(self, texts_NT: Tokens) -> Floats:
        """Return the negative log-likelihood of every text in nats per token, its end included. Shape (N,)."""
        ...


@dataclass(frozen=True)
class Texts:
    """Prompts and the human texts to them; a text has no more positions than `sequence_length`."""

    prompts_NP: Tokens
    """Padded on the left; the last token of every prompt stands right before the text."""
    texts_NT: Tokens
    """Every text ends with the end of text, unless it was cut; behind it is padding."""

    def __len__(self) -> int:
        return len(self.texts_NT)


@dataclass(frozen=True)
class Passages:
    """Everything that a training against a judge knows of its data."""

    train: Texts
    evaluation: Texts
    """No text of these is among the others."""
    vocab_size: int
    pad_id: int
    eos_id: int | None
    """None where texts have no end but their length, as those of the Markov chain."""
    outside: Outside
    outside_name: str
    """Of that likelihood, such as `oracle`; its metric is eval/NAME_loss."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """None where tokens stand for no words."""
