"""Discriminators of the LLM GAN: their interface, and one that scores every token.

The token discriminator is a causal language model with one score D per position. Its loss is the cross-entropy of
sigmoid(D) = "human so far", the discriminator's loss of Goodfellow et al. 2014 (arXiv 1406.2661) at every prefix; the
generator's reward is 2 sigmoid(D) - 1 per token, as in ScratchGAN (de Masson d'Autume et al. 2019, arXiv 1905.09922).

Shape suffixes: B pairs of a human and a generated text, P positions of a prompt, T positions of a text, U uniforms.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2ForTokenClassification, PreTrainedModel

from nbtools.recipes.llm_gan import LLMGANConfig, discriminator_positions, model_settings
from nbtools.training.llm_gan.rewards import token_rewards
from nbtools.training.text.causal_sampling import at_rest
from nbtools.training.text.vocabulary import Alphabet, padded_inputs


class Pairs(NamedTuple):
    """A human and a generated text for each prompt."""

    prompts_BP: Tensor
    reals_BT: Tensor
    fakes_BT: Tensor
    uniforms_BU: Tensor


class Discriminator(nn.Module, ABC):
    """Tells the human from the generated text of a pair with the same prompt.

    `forward` takes what `prepare` returns, and returns the SUM of the pairs' losses and the number of correct pairs,
    shape (2,). Only the first element has gradients. The caller divides it by the number of pairs.
    """

    forward_methods = ("prepare", "judge")
    num_uniforms = 0
    """Random numbers in [0, 1) that it needs per pair."""

    def __init__(self, model: PreTrainedModel, alphabet: Alphabet) -> None:
        """Judge texts of `alphabet` with `model`, the network that is trained and saved."""
        super().__init__()
        self.model = model
        self.alphabet = alphabet

    @abstractmethod
    def prepare(self, pairs: Pairs, *, supervised: bool) -> tuple[Tensor, ...]:
        """Return the inputs of `forward`, without gradients; `supervised` during the warm-up."""

    @abstractmethod
    def judge(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return 1 for a correct choice, -1 for a wrong one, 0 for an undecided pair; and the reward of every token.

        A tied, non-finite or unparseable outcome is undecided. Rewards are finite, and 0 after a text's end and in
        undecided pairs. Shapes (B,) and (B, T).
        """

    def update_baseline(self, total: Callable[[Sequence[float]], list[float]]) -> None:
        """Update the running mean of rewards, if any; called after each optimizer step, `total` sums over all ranks."""

    def running_state(self) -> dict[str, Any]:
        """Return the state beside the network's weights, for a checkpoint."""
        return {}

    def load_running_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `running_state` returned; an empty mapping changes nothing."""


class TokenDiscriminator(Discriminator):
    """Scores every prefix of a text: higher means more likely human."""

    def scores(self, prompts_BP: Tensor, texts_BT: Tensor) -> Tensor:
        """Return D for every token: above 0 where the prefix counts as human. Shape (B, T)."""
        num_prompt = prompts_BP.shape[1]
        inputs = padded_inputs(torch.cat([prompts_BP, texts_BT], dim=1), self.alphabet.pad_id)
        scores: Tensor = self.model(**inputs, use_cache=False).logits[:, num_prompt:, 0]
        return scores.float()

    def ratings(self, prompts_BP: Tensor, reals_BT: Tensor, fakes_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of human and generated texts, 0 after a text's end, and their masks. Shapes (2, B, T)."""
        texts, shape = torch.cat([reals_BT, fakes_BT]), (2, *reals_BT.shape)
        masks = self.alphabet.mask(texts)
        scores = torch.where(masks, self.scores(prompts_BP.repeat(2, 1), texts), 0.0)
        return scores.view(shape), masks.view(shape)

    def prepare(self, pairs: Pairs, *, supervised: bool) -> tuple[Tensor, ...]:
        """Return the pairs without their uniforms."""
        return pairs[:3]

    def forward(self, prompts_BP: Tensor, reals_BT: Tensor, fakes_BT: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of "human so far" / (2 T), and the number of correct pairs."""
        ratings, masks = self.ratings(prompts_BP, reals_BT, fakes_BT)
        human = torch.zeros_like(ratings)
        human[0] = 1
        losses = nn.functional.binary_cross_entropy_with_logits(ratings, human, reduction="none")
        right = (self._outcomes(ratings.detach(), masks) > 0).sum()
        return torch.stack([(losses * masks).sum() / (2 * reals_BT.shape[1]), right.to(losses.dtype)])

    def judge(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Return whether the human text has the higher mean score, and 2 sigmoid(D) - 1 at the generated tokens."""
        with at_rest(self.model):
            ratings, masks = self.ratings(pairs.prompts_BP, pairs.reals_BT, pairs.fakes_BT)
        outcomes_B = self._outcomes(ratings, masks)
        return outcomes_B, token_rewards(ratings[1], masks[1], outcomes_B != 0)

    def _outcomes(self, ratings: Tensor, masks: Tensor) -> Tensor:
        """Return 1, -1 or 0 per pair: 0 where the mean scores are equal, or one is not finite."""
        means = ratings.double().sum(-1) / masks.sum(-1).clamp(min=1)
        difference_B = means[0] - means[1]
        return torch.where(torch.isfinite(difference_B), torch.sign(difference_B), 0.0).long()


def build_token_discriminator(config: LLMGANConfig, alphabet: Alphabet) -> TokenDiscriminator:
    """Build a GPT-2 of the config's size with one score per position."""
    settings = model_settings(config, alphabet.vocab_size, discriminator_positions(config)) | {"num_labels": 1}
    return TokenDiscriminator(GPT2ForTokenClassification(GPT2Config(**settings)), alphabet)
