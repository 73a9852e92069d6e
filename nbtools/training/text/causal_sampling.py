"""Sampling from a causal language model, token by token with a key-value cache, from given random numbers.

Inverse transform sampling: each token is the inverse of the cumulative distribution at a given number in [0, 1). The
text depends only on the model and these numbers, not on the rest of the batch or on a generator's state. The batch is
written together, and the host waits for a GPU only once in `_CHECK_EVERY` tokens.

Shape suffixes: B batch, P positions of a prompt, T positions of a text, V vocabulary.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from nbtools.training.sharding.fsdp import true_on_all
from nbtools.training.text.vocabulary import Alphabet, padded_inputs

_CHECK_EVERY = {"cpu": 1, "cuda": 16}
"""Tokens between two checks whether all texts have ended, by the type of the device."""


@contextlib.contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode without gradients, and restore its mode afterwards."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        yield
    module.train(was_training)


def train_mode(module: nn.Module, *, has_dropout: bool) -> None:
    """Put a module into training mode; without dropout it gives the probabilities that `write` samples from.

    Layers that recompute their activations do so in training mode only; theirs is the dropout of their parts.
    """
    module.train(has_dropout)
    for part in module.modules():
        has_rate = isinstance(getattr(part, "dropout", 0), float)
        part.training |= getattr(part, "gradient_checkpointing", False) and not has_rate


def write(
    model: PreTrainedModel, prompts_BP: Tensor, uniforms_BT: Tensor, alphabet: Alphabet, *, temperature: float = 1.0
) -> Tensor:
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
    cache = preallocated_cache(model, prompts_BP.shape[1] + length, has_padding=seen_BT is not None)
    check_every = _CHECK_EVERY.get(prompts_BP.device.type, 16)
    with at_rest(model):
        for place in range(length):
            output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            tokens_B = drawn(alphabet.without_banned(output.logits[:, -1].float()), uniforms_BT[:, place], temperature)
            texts_BT[:, place] = torch.where(ended_B, alphabet.pad_id, tokens_B)
            if alphabet.eos_id is not None:
                ended_B |= tokens_B == alphabet.eos_id
                if (place + 1) % check_every == 0 and true_on_all(ended_B.all(), model):
                    break
            more = {"input_ids": tokens_B[:, None]}
            if seen_BT is not None:
                more["position_ids"] = inputs["position_ids"][:, -1:] + 1
                more["attention_mask"] = seen_BT[:, : prompts_BP.shape[1] + place + 1]
            inputs = more
    return texts_BT


class PreallocatedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of one attention layer, in memory for `longest` tokens: a further token copies no earlier one."""

    def __init__(self, longest: int, *, has_padding: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._longest = longest
        # With padding, transformers otherwise asks at every token whether the mask has any, and waits for the answer.
        self.is_compileable = has_padding

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values of shape (B, heads, tokens, H), and return all."""
        start = self.get_seq_length()
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self._all = [
                states.new_empty(*states.shape[:2], self._longest, states.shape[3])
                for states in (key_states, value_states)
            ]
        end = start + key_states.shape[2]
        for states, new in zip(self._all, (key_states, value_states), strict=True):
            states[:, :, start:end] = new
        self.keys, self.values = (states[:, :, :end] for states in self._all)
        return self.keys, self.values


def preallocated_cache(model: PreTrainedModel, longest: int, *, has_padding: bool) -> DynamicCache:
    """Return an empty cache for `longest` tokens; layers that keep other states, or fewer, have transformers' own."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        PreallocatedLayer(longest, has_padding=has_padding) if type(layer) is DynamicLayer else layer
        for layer in cache.layers
    ]
    return cache


def drawn(logits_BV: Tensor, uniforms_B: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the first token of each row whose cumulative probability exceeds the row's random number. Shape (B,)."""
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
