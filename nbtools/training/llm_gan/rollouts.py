"""Training inputs of the LLM GAN: pairs for the discriminator, human texts and rewarded rollouts for the generator.

Shape suffixes: B batch, K draws of a step, P positions of a prompt, T positions of a text, U uniforms.
"""

from collections.abc import Mapping

import torch

from nbtools.recipes.llm_gan import LLMGANConfig
from nbtools.training.engine.optimizer import autocast
from nbtools.training.engine.tally import Tally
from nbtools.training.llm_gan.discriminator import Discriminator, Pairs
from nbtools.training.llm_gan.generator import Generator
from nbtools.training.llm_gan.rewards import Baseline, returns

Batch = tuple[torch.Tensor, ...]
"""Prompts (B, K, P), texts (B, K, T) and uniforms (B, K, U)."""
GeneratorInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, float]
"""Arguments of `Generator.forward`."""


class GANRollouts:
    """Generates texts from batches, on the unwrapped models and without gradients, and sums up their metrics."""

    def __init__(
        self, config: LLMGANConfig, generator: Generator, discriminator: Discriminator, device: torch.device
    ) -> None:
        self._config = config
        self._generator = generator
        self._discriminator = discriminator
        self._alphabet = generator.alphabet
        self.baseline = Baseline(config.sequence_length)
        self.tally = Tally(
            "loss",  # of human texts under the generator
            "tokens",  # of these
            "judge_loss",
            "right",  # pairs that the discriminator got right
            "pairs",
            "reward",  # credited to written tokens
            "credited",  # written tokens of decided texts
            "bonus",  # for entropy
            "written",  # tokens
            "undecided",  # texts
            "texts",
            device=device,
        )
        self._device = device

    def discriminator_inputs(self, batch: Batch, draw: int, *, supervised: bool) -> tuple[torch.Tensor, ...]:
        """Generate a text per prompt of a draw, and return the discriminator's inputs."""
        # A separate context: autocast caches the weights it casts, and these copies would have no gradients.
        with autocast(self._device, self._config.precision):
            return self._discriminator.prepare(self._pairs(batch, draw), supervised=supervised)

    def warmup_inputs(self, batch: Batch) -> GeneratorInputs:
        """Return the human texts, every token with the same weight."""
        prompts_BP, reals_BT = (tokens[:, 0] for tokens in batch[:2])
        return prompts_BP, reals_BT, self._alphabet.mask(reals_BT) / reals_BT.shape[1], None, 1.0

    @torch.no_grad()
    def rollout_inputs(self, batch: Batch) -> GeneratorInputs:
        """Generate a text per prompt of the last draw; the weight of a token is its advantage."""
        config, length = self._config, self._config.sequence_length
        with autocast(self._device, config.precision):
            pairs = self._pairs(batch, config.judge_steps)
            rewards_BT, decided_B = self._discriminator.rewards(pairs)
        mask_BT = self._alphabet.mask(pairs.fakes_BT)
        # Undecided pairs do not count: where the baseline is negative, a reward of 0 would be an advantage.
        credited_BT = mask_BT & decided_B[:, None]
        returns_BT = returns(rewards_BT, config.credit)
        weights_BT = torch.where(credited_BT, self.baseline.advantages(rewards_BT, returns_BT), 0.0) / length
        self.baseline.add(rewards_BT, returns_BT, credited_BT)
        self.tally.add(
            reward=torch.where(credited_BT, returns_BT, 0.0).sum(),
            credited=credited_BT.sum(),
            undecided=(~decided_B).sum(),
            texts=len(decided_B),
            written=mask_BT.sum(),
        )
        bonus_BT = mask_BT * (config.entropy_weight / length) if config.entropy_weight else None
        return pairs.prompts_BP, pairs.fakes_BT, weights_BT, bonus_BT, config.temperature

    def metrics(self, total: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of the sums over all ranks."""
        length, entropy_weight = self._config.sequence_length, self._config.entropy_weight
        row: dict[str, float] = {}
        if total["tokens"]:
            row["train/loss"] = total["loss"] * length / total["tokens"]
        if total["pairs"]:
            row["train/judge_loss"] = total["judge_loss"] / total["pairs"]
            row["train/judge_accuracy"] = total["right"] / total["pairs"]
        if total["texts"]:
            row["train/reward"] = total["reward"] / max(total["credited"], 1)
            row["train/undecided"] = total["undecided"] / total["texts"]
            if entropy_weight:
                row["train/entropy"] = total["bonus"] * length / entropy_weight / total["written"]
        return row

    def _pairs(self, batch: Batch, draw: int) -> Pairs:
        """Generate a text per prompt of a draw; the caller sets autocast."""
        prompts_BP, reals_BT, uniforms_BU = (part[:, draw] for part in batch)
        return self._generator.pairs(prompts_BP, reals_BT, uniforms_BU, self._config.temperature)
