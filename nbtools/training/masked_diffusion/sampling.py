"""Sampling from a masked diffusion model: start from masks only, and unmask a few tokens at each step.

At every step the model predicts all masked tokens at once; the most confident predictions are kept, and the rest is
masked again (low-confidence remasking). Blocks are completed from left to right; within a block the order is free.
See Nie et al. 2025, "Large Language Diffusion Models", arXiv 2502.09992, section 2.4.

Shape suffixes: B batch, P prompt, L sampled positions, T = P + L positions, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from nbtools.recipes import MaskedDiffusionConfig
from nbtools.recipes.masked_diffusion import check_sampling
from nbtools.recipes.predict_settings import MaskedDiffusionPredict
from nbtools.training.text.tokenizers import separator_of

Predict = Callable[[Tensor], Tensor]
"""Token ids of shape (B, T) in, logits of shape (B, T, V) out."""
Generators = torch.Generator | Sequence[torch.Generator] | None
"""Source of random numbers, on the device of the tensors: one for all rows, or one for each."""


@dataclass(frozen=True)
class Unmasking:
    """Settings of sampling; the constructor raises ConfigError for invalid combinations."""

    length: int
    steps: int
    """Evaluations of the model, over all blocks (twice as many with guidance)."""
    block_length: int
    """Tokens of a block; `length` for one block."""
    temperature: float = 0.0
    """Softmax temperature; 0 takes the most likely token."""
    guidance: float = 0.0
    """Scale s of classifier-free guidance; 0 for none."""
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    """Choice of the predictions that are kept: the most confident ones, or random ones."""
    suppressed_ids: tuple[int, ...] = ()
    """Tokens that are never sampled, such as EOS, which instruction-tuned models predict too often."""
    last_ids: tuple[int, ...] = ()
    """Tokens that a step keeps only where it has no others, such as EOS: `confidence_eos_eot_inf` of LLaDA's reference
    (Nie et al. 2025, appendix B.4)."""

    def __post_init__(self) -> None:
        check_sampling(self.length, self.steps, self.block_length)

    @property
    def num_blocks(self) -> int:
        return self.length // self.block_length

    @property
    def revealed_per_step(self) -> list[int]:
        """Tokens that each step of a block unmasks; the first steps take the remainder of the division."""
        steps = self.steps // self.num_blocks
        least, rest = divmod(self.block_length, steps)
        return [least + (step < rest) for step in range(steps)]


@torch.no_grad()
def unmask(
    predict: Predict, prompt_BP: Tensor, unmasking: Unmasking, *, mask_id: int, generator: Generators = None
) -> Iterator[Tensor]:
    """Sample the tokens that follow a prompt, and yield every intermediate state.

    Args:
        prompt_BP: token ids that do not change; P may be 0.
        generator: with one for each row, a row's random numbers do not depend on the other rows.

    Yields:
        tokens_BT, first with all L positions masked, then after each step: `unmasking.steps` + 1 states.
    """
    prompt_length = prompt_BP.shape[1]
    masked_BL = prompt_BP.new_full((len(prompt_BP), unmasking.length), mask_id)
    tokens_BT = torch.cat([prompt_BP, masked_BL], dim=1)
    yield tokens_BT.clone()
    for block in range(unmasking.num_blocks):
        start = prompt_length + block * unmasking.block_length
        inside = slice(start, start + unmasking.block_length)
        for count in unmasking.revealed_per_step:
            logits_BTV = _logits(predict, tokens_BT, prompt_length, unmasking, mask_id)
            logits_BLV = logits_BTV[:, inside].double()
            logits_BLV[..., [mask_id, *unmasking.suppressed_ids]] = -torch.inf
            sampled_BL = sample(logits_BLV, unmasking.temperature, generator)
            if unmasking.remasking == "random":
                confidence_BL = _uniforms(logits_BLV[..., 0], generator)
            else:
                confidence_BL = logits_BLV.softmax(-1).gather(-1, sampled_BL[..., None])[..., 0]
            is_last_BL = torch.isin(sampled_BL, sampled_BL.new_tensor(unmasking.last_ids))
            confidence_BL = confidence_BL - is_last_BL.double()  # below 0, and in order among themselves
            known_BL = tokens_BT[:, inside] != mask_id
            confidence_BL = confidence_BL.masked_fill(known_BL, -torch.inf)
            kept_BK = confidence_BL.topk(count, dim=1).indices
            tokens_BT[:, inside] = tokens_BT[:, inside].scatter(1, kept_BK, sampled_BL.gather(1, kept_BK))
            yield tokens_BT.clone()


def sample(logits_V: Tensor, temperature: float, generator: Generators = None) -> Tensor:
    """Draw from softmax(logits / temperature) along the last dimension by the Gumbel-max trick, in double precision.

    In lower precision the noise is truncated, which acts as a lower temperature (Zheng et al. 2024, "Masked
    Diffusion Models are Secretly Time-Agnostic Masked Models", arXiv 2409.02908).
    """
    if temperature == 0:
        return logits_V.argmax(-1)
    gumbel_V = -torch.log(-torch.log(_uniforms(logits_V, generator).clamp_min(1e-300)))
    return (logits_V.double() + temperature * gumbel_V).argmax(-1)


def _uniforms(like: Tensor, generator: Generators) -> Tensor:
    """Return random numbers in [0, 1) in the shape of a tensor, whose rows may have generators of their own."""
    if isinstance(generator, Sequence):
        return torch.stack([_uniforms(row, own) for row, own in zip(like, generator, strict=True)])
    return torch.rand(like.shape, dtype=torch.float64, device=like.device, generator=generator)


def _logits(predict: Predict, tokens_BT: Tensor, prompt_length: int, unmasking: Unmasking, mask_id: int) -> Tensor:
    """Return the logits with classifier-free guidance: extrapolated away from those without the prompt.

    guided = without + (s + 1) (with - without), see Nie et al. 2025.
    """
    if unmasking.guidance == 0 or prompt_length == 0:
        return predict(tokens_BT)
    without_BT = tokens_BT.clone()
    without_BT[:, :prompt_length] = mask_id
    with_BTV, without_BTV = predict(torch.cat([tokens_BT, without_BT])).chunk(2)
    return without_BTV + (unmasking.guidance + 1) * (with_BTV - without_BTV)


MASKED, ENDED = "░", "¶"
"""Characters for a masked token and an end of text."""
_END_OF_TURN = "<|eot_id|>"
"""Token that ends an answer of LLaDA-8B-Instruct before its end-of-text tokens."""


def end_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the tokens that end a text and a turn; the same one twice without turns."""
    eos_id = separator_of(tokenizer)
    return eos_id, tokenizer.get_vocab().get(_END_OF_TURN, eos_id)


def unmasking_of(
    settings: MaskedDiffusionConfig | MaskedDiffusionPredict,
    tokenizer: PreTrainedTokenizerBase,
    shape: tuple[int, int, int],
) -> Unmasking:
    """Return the sampling that a config, or the settings of a prediction, ask for; `shape` as in `sampled_shape`."""
    ends = end_ids(tokenizer)
    suppressed_ids, last_ids = ends[:1] if settings.suppress_eos else (), ends if settings.eos_last else ()
    how = settings.temperature, settings.guidance, settings.remasking
    return Unmasking(*shape, *how, suppressed_ids, last_ids)


def rendered(tokenizer: PreTrainedTokenizerBase, tokens_T: Tensor, mask_id: int | None = None) -> str:
    """Return tokens as text with visible masks and ends."""
    eos_id = separator_of(tokenizer)
    between = "" if tokenizer.decode([eos_id, eos_id]).count(" ") == 0 else " "
    visible = {tokenizer.convert_tokens_to_ids(_END_OF_TURN): ENDED, tokenizer.unk_token_id: None}
    visible |= {eos_id: ENDED, mask_id: MASKED}
    pieces: list[str] = []
    for sign, tokens in groupby(tokens_T.tolist(), key=visible.get):
        ids = list(tokens)
        pieces += (
            [str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))] if sign is None else [sign] * len(ids)
        )
    return between.join(pieces)
