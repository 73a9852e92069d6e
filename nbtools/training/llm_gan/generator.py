"""The LLM GAN's generator: a causal language model with one loss for warm-up and adversarial training.

With weight 1 on every token the loss is the negative log-likelihood of human texts (warm-up). With a token's advantage
as its weight, the gradient is that of REINFORCE (Williams 1992) on the sampled tokens.

Shape suffixes: B batch, P positions of a prompt, T positions of a text, U uniforms, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from nbtools.recipes.llm_gan import LLMGANConfig, model_settings, num_positions
from nbtools.training.llm_gan.discriminator import Pairs
from nbtools.training.text.causal_sampling import write
from nbtools.training.text.chunked_logits import head_of, in_chunks
from nbtools.training.text.vocabulary import Alphabet, padded_inputs


class Generator(nn.Module):
    """A causal language model whose banned tokens have probability 0."""

    forward_methods = ("losses", "pairs")

    def __init__(self, model: PreTrainedModel, alphabet: Alphabet) -> None:
        super().__init__()
        self.model = model
        self.alphabet = alphabet

    def _hidden(self, prompts_BP: Tensor, texts_BT: Tensor) -> Tensor:
        """Return the hidden state before each token of the texts; of an unknown architecture, the logits."""
        inputs = padded_inputs(torch.cat([prompts_BP, texts_BT[:, :-1]], dim=1), self.alphabet.pad_id)
        length = texts_BT.shape[1]
        if head_of(self.model) is None:
            hidden_BTH: Tensor = self.model(**inputs, use_cache=False, logits_to_keep=length)[0]
        else:
            hidden_BTH = self.model.base_model(**inputs, use_cache=False)[0][:, -length:]
        return hidden_BTH

    def _scored(self, hidden: Tensor, temperature: float) -> Tensor:
        head = head_of(self.model)
        logits = self.alphabet.without_banned((hidden if head is None else head(hidden)).float())
        return logits if temperature == 1 else logits / temperature

    def _in_chunks(self, compute: Callable[..., Tensor], hidden_BTH: Tensor, *parts_BT: Tensor) -> list[Tensor]:
        parts = (part.flatten(0, 1) for part in (hidden_BTH, *parts_BT))
        return in_chunks(compute, self.alphabet.vocab_size, *parts)

    def forward(
        self, prompts_BP: Tensor, texts_BT: Tensor, weights_BT: Tensor, bonus_BT: Tensor | None, temperature: float
    ) -> Tensor:
        """Return the sum of weight x negative log-likelihood, and that of bonus x entropy. Shape (2,).

        Args:
            prompts_BP: padded on the left.
            texts_BT: targets, padded on the right.
            weights_BT: 0 after a text's end.
            bonus_BT: weights of the entropy; None for no entropy term.
        """

        def sums(hidden_NH: Tensor, tokens_N: Tensor, weights_N: Tensor, bonus_N: Tensor | None = None) -> Tensor:
            logs_NV = self._scored(hidden_NH, temperature).log_softmax(-1)
            losses_N = -logs_NV.gather(-1, tokens_N[:, None])[:, 0]
            # Where the weight is 0, even the infinite loss of a banned padding token must not count.
            weighted = torch.where(weights_N != 0, losses_N * weights_N, 0.0).sum()
            if bonus_N is None:
                return torch.stack([weighted, torch.zeros_like(weighted)])
            entropies_N = -(logs_NV.exp() * logs_NV).sum(-1)
            return torch.stack([weighted, (entropies_N * bonus_N).sum()])

        parts = (texts_BT, weights_BT) if bonus_BT is None else (texts_BT, weights_BT, bonus_BT)
        return torch.stack(self._in_chunks(sums, self._hidden(prompts_BP, texts_BT), *parts)).sum(0)

    def pairs(self, prompts_BP: Tensor, reals_BT: Tensor, uniforms_BU: Tensor, temperature: float) -> Pairs:
        """Generate a text per prompt from the first T uniforms; the others are for the discriminator."""
        length = reals_BT.shape[1]
        fakes_BT = write(self.model, prompts_BP, uniforms_BU[:, :length], self.alphabet, temperature=temperature)
        return Pairs(prompts_BP, reals_BT, fakes_BT, uniforms_BU[:, length:])

    def losses(self, prompts_BP: Tensor, texts_BT: Tensor, temperature: float = 1.0) -> Tensor:
        """Return the negative log-likelihood of every token, 0 after a text's end. Shape (B, T)."""

        def losses(hidden_NH: Tensor, tokens_N: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self._scored(hidden_NH, temperature), tokens_N, reduction="none")

        losses_N = torch.cat(self._in_chunks(losses, self._hidden(prompts_BP, texts_BT), texts_BT))
        return torch.where(self.alphabet.mask(texts_BT), losses_N.view_as(texts_BT), 0.0)


def build_generator(config: LLMGANConfig, alphabet: Alphabet) -> GPT2LMHeadModel:
    """Build a GPT-2 of the config's size."""
    return GPT2LMHeadModel(GPT2Config(**model_settings(config, alphabet.vocab_size, num_positions(config))))
