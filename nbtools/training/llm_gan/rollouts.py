"""Training inputs of the LLM GAN: pairs for the discriminator, human texts and rewarded rollouts for the generator.

The texts and verdicts of all passes of an optimizer step are written together, since a batch takes hardly longer than
one text; the results are divided into the passes again.

Shape suffixes: B batch, K draws of a step, P positions of a prompt, T positions of a text, U uniforms.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from nbtools.errors import ConfigError
from nbtools.recipes.llm_gan import LLMGANConfig
from nbtools.training.engine.optimizer import autocast
from nbtools.training.llm_gan.discriminator import Discriminator, Pairs
from nbtools.training.llm_gan.generator import Generator
from nbtools.training.llm_gan.rewards import Baseline, returns
from nbtools.training.outputs.tally import Tally
from nbtools.training.text.causal_sampling import train_mode

Batch = tuple[Tensor, ...]
"""Prompts (B, K, P), texts (B, K, T) and uniforms (B, K, U)."""
GeneratorInputs = tuple[Tensor, Tensor, Tensor, Tensor | None, float]
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

    def discriminator_inputs(self, passes: Sequence[Batch], draw: int, *, supervised: bool) -> list[tuple[Tensor, ...]]:
        """Generate a text per prompt of a draw, and return the discriminator's inputs of each pass.

        The loss of sampled verdicts or texts is that of the policy that wrote them, which has no dropout.
        """
        with generating(self._config, self._device):
            parts = self._pairs(passes, draw)
            prepared = [self._discriminator.prepare(part, supervised=supervised) for part in parts]
        train_mode(self._discriminator, has_dropout=supervised or self._config.judging == "scores")
        return _divided([torch.cat(part) for part in zip(*prepared, strict=True)], passes)

    def warmup_inputs(self, passes: Sequence[Batch]) -> list[GeneratorInputs]:
        """Return the human texts of each pass, every token with the same weight."""
        train_mode(self._generator, has_dropout=True)
        texts = [(batch[0][:, 0], batch[1][:, 0]) for batch in passes]
        return [
            (prompts_BP, reals_BT, self._alphabet.mask(reals_BT) / reals_BT.shape[1], None, 1.0)
            for prompts_BP, reals_BT in texts
        ]

    @torch.no_grad()
    def rollout_inputs(self, passes: Sequence[Batch]) -> list[GeneratorInputs]:
        """Generate a text per prompt of the last draw, for each pass; the weight of a token is its advantage."""
        config, length = self._config, self._config.sequence_length
        with generating(config, self._device):
            judged = [
                (pairs.prompts_BP, pairs.fakes_BT, *self._discriminator.judge(pairs))
                for pairs in self._pairs(passes, config.judge_steps)
            ]
        prompts_BP, fakes_BT, outcomes_B, rewards_BT = (torch.cat(part) for part in zip(*judged, strict=True))
        decided_B = outcomes_B != 0
        mask_BT = self._alphabet.mask(fakes_BT)
        # Undecided pairs do not count: where the baseline is negative, a reward of 0 would be an advantage.
        credited_BT = mask_BT & decided_B[:, None]
        returns_BT = returns(rewards_BT, config.credit)
        weights_BT = torch.where(credited_BT, self.baseline.advantages(rewards_BT, returns_BT), 0.0) / length
        self.baseline.add(rewards_BT, returns_BT, credited_BT)
        counts = {"credited": credited_BT.sum(), "undecided": (~decided_B).sum(), "written": mask_BT.sum()}
        self.tally.add(reward=torch.where(credited_BT, returns_BT, 0.0).sum(), texts=len(decided_B), **counts)
        train_mode(self._generator, has_dropout=False)
        bonus_BT = mask_BT * (config.entropy_weight / length)
        return [
            (prompts, fakes, weights, bonus if config.entropy_weight else None, config.temperature)
            for prompts, fakes, weights, bonus in _divided([prompts_BP, fakes_BT, weights_BT, bonus_BT], passes)
        ]

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

    def _pairs(self, passes: Sequence[Batch], draw: int) -> Iterator[Pairs]:
        """Generate a text per prompt of a draw, `texts_at_once` at a time; the caller opens `generating`."""
        parts = [torch.cat([tokens_BK[:, draw] for tokens_BK in part]) for part in zip(*passes, strict=True)]
        chunks = zip(*(torch.split(part, texts_at_once(self._config)) for part in parts), strict=True)
        for prompts_BP, reals_BT, uniforms_BU in chunks:
            yield self._generator.pairs(prompts_BP, reals_BT, uniforms_BU, self._config.temperature)


def texts_at_once(config: LLMGANConfig) -> int:
    """Return how many texts a rank writes and judges together."""
    return config.texts_at_once or config.batch_size * config.gradient_accumulation_steps


@contextlib.contextmanager
def generating(config: LLMGANConfig, device: torch.device) -> Iterator[None]:
    """Context with autocast for writing and judging texts; ConfigError if the GPU runs out of memory."""
    try:
        # Not the context of a training pass: autocast caches the weights it casts, and these have no gradients.
        with autocast(device, config.precision):
            yield
    except torch.cuda.OutOfMemoryError as error:
        raise ConfigError(
            f"texts_at_once={config.texts_at_once}: the GPU has too little memory to write and judge "
            f"{texts_at_once(config)} texts together; lower it, for example to {max(texts_at_once(config) // 2, 1)}"
        ) from error


def _divided(parts: Sequence[Tensor], passes: Sequence[Batch]) -> list[tuple[Tensor, ...]]:
    """Divide the rows of all passes into those of each pass."""
    sizes = [len(batch[0]) for batch in passes]
    return list(zip(*(torch.split(part, sizes) for part in parts), strict=True))
