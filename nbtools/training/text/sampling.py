"""Sampling from a causal language model, token by token with a key-value cache, from given random numbers.

Inverse transform sampling: each token is the inverse of the cumulative distribution at a given number in [0, 1). The
text depends only on the model and these numbers, not on the rest of the batch or on a generator's state.

Shape suffixes: B batch, P positions of a prompt, T positions of a text, V vocabulary.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from nbtools.training.text.vocabulary import Alphabet, padded_inputs


@contextlib.contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode without gradients, and restore its mode afterwards."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        yield
    module.train(was_training)


def write(
    model: PreTrainedModel,
    prompts_BP: torch.Tensor,
    uniforms_BT: torch.Tensor,
    alphabet: Alphabet,
    *,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Sample a text for each prompt; the caller sets autocast.

    Args:
        prompts_BP: padded on the left.
        uniforms_BT: numbers in [0, 1), one for each token.

    Returns:
        Token ids, padded after a text's end. Shape (B, T).
    """
    batch_size, length = uniforms_BT.shape
    texts_BT = torch.full((batch_size, length), alphabet.pad_id, dtype=torch.long, device=prompts_BP.device)
    ended_B = torch.zeros(batch_size, dtype=torch.bool, device=prompts_BP.device)
    inputs = padded_inputs(prompts_BP, alphabet.pad_id)
    seen_BT = torch.cat([inputs["attention_mask"], torch.ones_like(texts_BT)], dim=1) if len(inputs) > 1 else None
    cache = None
    with at_rest(model):
        for place in range(length):
            output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            tokens_B = drawn(alphabet.without_banned(output.logits[:, -1].float()), uniforms_BT[:, place], temperature)
            texts_BT[:, place] = torch.where(ended_B, alphabet.pad_id, tokens_B)
            if alphabet.eos_id is not None:
                ended_B |= tokens_B == alphabet.eos_id
                if bool(ended_B.all()):
                    break
            more = {"input_ids": tokens_B[:, None]}
            if seen_BT is not None:
                more["position_ids"] = inputs["position_ids"][:, -1:] + 1
                more["attention_mask"] = seen_BT[:, : prompts_BP.shape[1] + place + 1]
            inputs = more
    return texts_BT


def drawn(logits_BV: torch.Tensor, uniforms_B: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Return the first token of each row at which the cumulative probability exceeds the row's number. Shape (B,)."""
    probabilities_BV = torch.softmax(logits_BV.double() / temperature, dim=-1)
    if torch.are_deterministic_algorithms_enabled():  # CUDA has no deterministic cumulative sum
        probabilities_BV = probabilities_BV.cpu()
    cumulative_BV = probabilities_BV.cumsum(-1).to(logits_BV.device)
    totals_B1 = cumulative_BV[:, -1:]
    thresholds_B1 = uniforms_B.double()[:, None] * totals_B1
    # Rounding must not reach the total, which no cumulative probability exceeds.
    thresholds_B1 = torch.minimum(thresholds_B1, torch.nextafter(totals_B1, torch.zeros_like(totals_B1)))
    tokens_B = torch.searchsorted(cumulative_BV, thresholds_B1, right=True)[:, 0]
    return tokens_B.clamp(max=logits_BV.shape[-1] - 1)  # a diverged model has NaN everywhere
