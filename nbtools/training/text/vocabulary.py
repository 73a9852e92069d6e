"""The vocabulary that generator and discriminator share."""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
_IMPOSSIBLE = -1e9


@dataclass(frozen=True)
class Alphabet:
    """What generator and judge have to know of their tokens."""

    vocab_size: int
    pad_id: int
    eos_id: int | None
    """None where texts have no end but their length, as those of the Markov chain."""
    banned_ids: tuple[int, ...] = ()
    """Tokens that stand in no text and are never written, such as the padding."""

    def mask(self, texts_BT: torch.Tensor) -> torch.Tensor:
        """Return True for the tokens of the texts, their end included, and False behind it. Shape (B, T)."""
        if self.eos_id is None:
            return texts_BT != self.pad_id
        is_end_BT = texts_BT == self.eos_id
        ended_BT = (is_end_BT.cumsum(1) - is_end_BT.long()) > 0
        return ~ended_BT & (is_end_BT | (texts_BT != self.pad_id))

    def without_banned(self, logits_BV: torch.Tensor) -> torch.Tensor:
        """Give banned tokens a probability of 0, and of finite logarithm: entropies stay numbers. Shape (..., V).

        Rows of the embedding beyond the vocabulary, which some models have, are none that a text could use.
        """
        if not self.banned_ids and logits_BV.shape[-1] == self.vocab_size:
            return logits_BV
        return logits_BV.masked_fill(_banned(self, logits_BV.shape[-1], logits_BV.device), _IMPOSSIBLE)


@functools.lru_cache(maxsize=8)
def _banned(alphabet: Alphabet, size: int, device: torch.device) -> torch.Tensor:
    """True for what is never written; asked for at every token. Shape (V,)."""
    banned_V = torch.zeros(size, dtype=torch.bool, device=device)
    banned_V[list(alphabet.banned_ids)] = True
    banned_V[alphabet.vocab_size :] = True
    return banned_V


def padded_inputs(tokens_BT: torch.Tensor, pad_id: int) -> dict[str, torch.Tensor]:
    """Return the arguments of a causal model for rows with padding on the left: it is not seen, nor counted.

    Padding on the right needs nothing: a causal model does not look there. Nor do rows that all begin with a token.
    """
    if not bool((tokens_BT[:, 0] == pad_id).any()):
        return {"input_ids": tokens_BT}
    seen_BT = ((tokens_BT != pad_id).cumsum(1) > 0).long()
    return {"input_ids": tokens_BT, "attention_mask": seen_BT, "position_ids": (seen_BT.cumsum(1) - 1).clamp(min=0)}
