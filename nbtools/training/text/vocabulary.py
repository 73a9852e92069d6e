"""The vocabulary that generator and discriminator share."""

import functools
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
A = TypeVar("A", Tensor, npt.NDArray[Any])
_IMPOSSIBLE = -1e9


@dataclass(frozen=True)
class Alphabet:
    """Size and special tokens of the vocabulary."""

    vocab_size: int
    pad_id: int
    eos_id: int | None
    """None where all texts have the same length, as those of the Markov chain."""
    banned_ids: tuple[int, ...] = ()
    """Tokens that no text contains and that are never sampled, such as the padding."""

    def mask(self, texts_BT: A) -> A:
        """Return True for the tokens of the texts, their end included, and False after it. Shape (B, T)."""
        is_token_BT: A = texts_BT != self.pad_id
        if self.eos_id is not None:
            is_end_BT = texts_BT == self.eos_id
            has_ended_BT = is_end_BT.cumsum(1) > is_end_BT
            is_token_BT = ~has_ended_BT & (is_end_BT | is_token_BT)
        return is_token_BT

    def without_banned(self, logits_BV: Tensor) -> Tensor:
        """Set the logits of banned tokens to a large negative, finite value: entropies stay finite. Shape (..., V).

        Rows of the embedding beyond the vocabulary, which some models have, are banned, too.
        """
        if not self.banned_ids and logits_BV.shape[-1] == self.vocab_size:
            return logits_BV
        return logits_BV.masked_fill(_banned(self, logits_BV.shape[-1], logits_BV.device), _IMPOSSIBLE)


@functools.lru_cache(maxsize=8)
def _banned(alphabet: Alphabet, size: int, device: torch.device) -> Tensor:
    """Return True for banned tokens; cached, since it is needed for every token. Shape (V,)."""
    banned_V = torch.zeros(size, dtype=torch.bool, device=device)
    banned_V[list(alphabet.banned_ids)] = True
    banned_V[alphabet.vocab_size :] = True
    return banned_V


def padded_inputs(tokens_BT: Tensor, pad_id: int) -> dict[str, Tensor]:
    """Return the arguments of a causal model for rows with padding on the left, which is masked and has no position.

    Padding on the right needs no mask in a causal model.
    """
    if not bool((tokens_BT[:, 0] == pad_id).any()):
        return {"input_ids": tokens_BT}
    seen_BT = ((tokens_BT != pad_id).cumsum(1) > 0).long()
    return {"input_ids": tokens_BT, "attention_mask": seen_BT, "position_ids": (seen_BT.cumsum(1) - 1).clamp(min=0)}
