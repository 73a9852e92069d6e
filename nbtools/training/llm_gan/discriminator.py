"""Judges of the LLM GAN: what tells generated texts from human ones, and pays the generator for being taken for human.

A judge that rates tokens has a causal language model's body and one number per position, D. It learns by the
cross-entropy of sigmoid(D) = "human so far", which is the discriminator's loss of Goodfellow et al. 2014
(arXiv 1406.2661) at every prefix, and pays 2 sigmoid(D) - 1 per token, as ScratchGAN does (de Masson d'Autume et al.
2019, arXiv 1905.09922).

Shape suffixes: B pairs of a human and a generated text, P positions of a prompt, T positions of a text, U uniforms.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from transformers import GPT2Config, GPT2ForTokenClassification, PreTrainedModel

from nbtools.recipes.llm_gan import LLMGANConfig, judge_positions, model_settings
from nbtools.training.text.sampling import at_rest
from nbtools.training.text.vocabulary import Alphabet, padded_inputs


class Judge(Protocol):
    """An `nn.Module` that judges pairs of a human and a generated text to the same prompt."""

    model: PreTrainedModel
    """What is trained and saved."""
    num_uniforms: int
    """Random numbers in [0, 1) that it wants for each pair."""

    def study(
        self,
        prompts_BP: torch.Tensor,
        reals_BT: torch.Tensor,
        fakes_BT: torch.Tensor,
        uniforms_BU: torch.Tensor,
        *,
        supervised: bool,
    ) -> tuple[torch.Tensor, ...]:
        """Prepare what the loss is computed on, without gradients; `supervised` during the warm-up."""
        ...

    def __call__(self, *studied: torch.Tensor) -> torch.Tensor:
        """Return what DDP has to see: the SUM of the pairs' losses, and how many it got right. Shape (2,).

        Only the first one has gradients. The caller divides it by the number of pairs.
        """
        ...

    def rewards(
        self, prompts_BP: torch.Tensor, fakes_BT: torch.Tensor, reals_BT: torch.Tensor, uniforms_BU: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the reward of every token, shape (B, T), and whether the pair was decided at all, shape (B,).

        Rewards are finite, and 0 behind a text's end. A pair that is tied, not finite or unparseable is not decided.
        """
        ...

    def prefers(
        self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor, uniforms_BU: torch.Tensor
    ) -> torch.Tensor:
        """Return 1 where it takes the human text for the human one, -1 where the other, else 0. Shape (B,)."""
        ...

    def settle(self, total: Callable[[Sequence[float]], list[float]]) -> None:
        """Bring what it remembers of past steps up to date; every rank calls it after each of its optimizer steps.

        Args:
            total: adds up numbers over all ranks.
        """
        ...

    def state(self) -> dict[str, Any]:
        """What it remembers and has to be saved to go on, beside the model."""
        ...

    def recall(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; an empty mapping changes nothing."""
        ...


class ScoringJudge(nn.Module):
    """Rates every token of a text by how human the text is up to it."""

    num_uniforms = 0

    def __init__(self, model: PreTrainedModel, alphabet: Alphabet) -> None:
        super().__init__()
        self.model = model
        self.alphabet = alphabet

    def scores(self, prompts_BP: torch.Tensor, texts_BT: torch.Tensor) -> torch.Tensor:
        """Return D for every token: above 0 where it takes the text up to there for human. Shape (B, T)."""
        num_prompt = prompts_BP.shape[1]
        inputs = padded_inputs(torch.cat([prompts_BP, texts_BT], dim=1), self.alphabet.pad_id)
        scores: torch.Tensor = self.model(**inputs, use_cache=False).logits[:, num_prompt:, 0]
        return scores.float()

    def ratings(self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor) -> torch.Tensor:
        """Return the scores of human and generated texts, 0 behind a text's end. Shape (2, B, T)."""
        texts = torch.cat([reals_BT, fakes_BT])
        scores = self.scores(prompts_BP.repeat(2, 1), texts)
        scores = torch.where(self.alphabet.mask(texts), scores, 0.0)
        return scores.view(2, *reals_BT.shape)

    def study(
        self,
        prompts_BP: torch.Tensor,
        reals_BT: torch.Tensor,
        fakes_BT: torch.Tensor,
        uniforms_BU: torch.Tensor,
        *,
        supervised: bool,
    ) -> tuple[torch.Tensor, ...]:
        """Return the pairs as they are."""
        return prompts_BP, reals_BT, fakes_BT

    def forward(self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of "human so far" at every token / (2 T), summed, and how many pairs are right."""
        ratings = self.ratings(prompts_BP, reals_BT, fakes_BT)
        masks = self.alphabet.mask(torch.cat([reals_BT, fakes_BT])).view(2, *reals_BT.shape)
        human = torch.zeros_like(ratings)
        human[0] = 1
        losses = nn.functional.binary_cross_entropy_with_logits(ratings, human, reduction="none")
        right = (self._told(ratings.detach(), masks) > 0).sum()
        return torch.stack([(losses * masks).sum() / (2 * reals_BT.shape[1]), right.to(losses.dtype)])

    def rewards(
        self, prompts_BP: torch.Tensor, fakes_BT: torch.Tensor, reals_BT: torch.Tensor, uniforms_BU: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return 2 sigmoid(D) - 1 at every token of the generated texts, and which pairs are no tie."""
        told_B, ratings = self._judged(prompts_BP, reals_BT, fakes_BT)
        rewards_BT = torch.where(self.alphabet.mask(fakes_BT), 2 * torch.sigmoid(ratings[1]) - 1, 0.0)
        decided_B = told_B != 0
        return torch.where(decided_B[:, None], rewards_BT, 0.0), decided_B

    def prefers(
        self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor, uniforms_BU: torch.Tensor
    ) -> torch.Tensor:
        """Return which text has the higher mean score."""
        return self._judged(prompts_BP, reals_BT, fakes_BT)[0]

    def settle(self, total: Callable[[Sequence[float]], list[float]]) -> None:
        """Remember nothing."""

    def state(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def recall(self, state: Mapping[str, Any]) -> None:
        """Change nothing."""

    def _judged(
        self, prompts_BP: torch.Tensor, reals_BT: torch.Tensor, fakes_BT: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with at_rest(self.model):
            ratings = self.ratings(prompts_BP, reals_BT, fakes_BT)
        masks = self.alphabet.mask(torch.cat([reals_BT, fakes_BT])).view(2, *reals_BT.shape)
        return self._told(ratings, masks), ratings

    def _told(self, ratings: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """1, -1 or 0 for each pair: 0 where both texts have the same mean score, or one is not finite."""
        means = ratings.double().sum(-1) / masks.sum(-1).clamp(min=1)
        difference_B = means[0] - means[1]
        return torch.where(torch.isfinite(difference_B), torch.sign(difference_B), 0.0).long()


def build_scoring_judge(config: LLMGANConfig, alphabet: Alphabet) -> ScoringJudge:
    """Build a GPT-2 of the config's size with one score per position."""
    settings = model_settings(config, alphabet.vocab_size, judge_positions(config)) | {"num_labels": 1}
    return ScoringJudge(GPT2ForTokenClassification(GPT2Config(**settings)), alphabet)
