"""The stages of LLM GAN training: which network trains, its learning rate, and when the next stage starts."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, cast

from nbtools.launcher.checks.step_count import learning_rate
from nbtools.recipes.llm_gan import LLMGANConfig
from nbtools.training.engine.plan import Plan


class Stage(StrEnum):
    """Stage of a training; one by likelihood has no other."""

    GENERATOR = "generator warm-up"
    DISCRIMINATOR = "judge warm-up"
    ADVERSARIAL = "adversarial"
    LIKELIHOOD = "likelihood"


class Stages:
    """The stage of each step: adversarial training starts once the judge is accurate enough, and lasts to the end."""

    def __init__(self, plan: Plan, state: Mapping[str, Any] | None = None) -> None:
        self._plan = plan
        config = self._config
        self._warm = config.generator_warmup_steps + config.judge_warmup_steps
        state = state or {}
        self.adversarial_since: int | None = state.get("game_since")
        """The last step before adversarial training; None before it starts."""
        self.judge_accuracy: float = state.get("judge_accuracy", math.nan)
        """Accuracy on held-out pairs at the last evaluation."""
        if self._warm == 0 and config.judge_accuracy == 0 and self.adversarial_since is None:
            self.adversarial_since = 0

    @property
    def _config(self) -> LLMGANConfig:
        """The config with its current values, which steering may change."""
        return cast(LLMGANConfig, self._plan.config)

    def at(self, step: int) -> Stage:
        """Return the stage of the next step, or of a past one."""
        if self._config.objective == "likelihood":
            return Stage.LIKELIHOOD
        if self.adversarial_since is not None and step > self.adversarial_since:
            return Stage.ADVERSARIAL
        return Stage.GENERATOR if step <= self._config.generator_warmup_steps else Stage.DISCRIMINATOR

    def discriminator_draws(self, stage: Stage) -> range:
        """Return the draws of a batch that train the discriminator, one update each."""
        return range({Stage.DISCRIMINATOR: 1, Stage.ADVERSARIAL: self._config.judge_steps}.get(stage, 0))

    def trains_generator(self, stage: Stage) -> bool:
        return stage is not Stage.DISCRIMINATOR and not (stage is Stage.ADVERSARIAL and self._config.freeze_generator)

    def discriminator_learning_rate(self, stage: Stage) -> float:
        config = self._config
        return config.judge_learning_rate if stage is Stage.ADVERSARIAL else config.warmup_learning_rate

    def generator_learning_rate(self, step: int) -> float:
        """Return the generator's learning rate; the config's schedule holds for adversarial training."""
        since = self.adversarial_since
        if since is None or self.at(step) is not Stage.ADVERSARIAL:
            return self._config.warmup_learning_rate
        return learning_rate(self._config, step - since, self._plan.total_steps - since)

    @property
    def _has_begun(self) -> bool:
        """Whether no warm-up is left to wait for."""
        return self.adversarial_since is not None or self._config.objective == "likelihood"

    def warmup_note(self) -> str:
        """Return a note if the warm-up leaves no adversarial step, else an empty text."""
        if self._has_begun or self._warm < self._plan.total_steps:
            return ""
        return (
            f"note: generator_warmup_steps={self._config.generator_warmup_steps} and "
            f"judge_warmup_steps={self._config.judge_warmup_steps} leave none of the {self._plan.total_steps} "
            "steps for adversarial training; give more epochs or max_steps, or less warm-up"
        )

    def ends_warmup(self, step: int) -> bool:
        """Whether a warm-up ends with this step, so that an evaluation must follow."""
        return not self._has_begun and step in (self._config.generator_warmup_steps, self._warm)

    def update(self, step: int, judge_accuracy: float) -> str:
        """Record the judge's accuracy after a step, and start adversarial training if it suffices; return a message."""
        config = self._config
        self.judge_accuracy = judge_accuracy
        if self._has_begun or step < self._warm:
            return ""
        found = f"the judge is right on {judge_accuracy:.1%} of the held-out pairs"
        wanted = f"judge_accuracy={config.judge_accuracy}"
        if judge_accuracy >= config.judge_accuracy:
            self.adversarial_since = step
            return f"{found}: adversarial training starts after step {step}"
        if step < self._plan.total_steps:
            return f"{found}, below {wanted}: its warm-up continues"
        return (
            f"warning: {found} after all {step} steps, below {wanted}: no adversarial step was taken; give more steps, "
            "a higher warmup_learning_rate, a larger judge, or a lower judge_accuracy"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"game_since": self.adversarial_since, "judge_accuracy": self.judge_accuracy}
