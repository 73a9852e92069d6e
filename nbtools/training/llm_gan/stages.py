"""The three stages of a training against a judge: who learns, how fast, and when the next one begins."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from nbtools.recipes.llm_gan import LLMGANConfig
from nbtools.training.engine.optimizer import learning_rate


class Stage(StrEnum):
    """What a step is for."""

    GENERATOR = "generator warm-up"
    JUDGE = "judge warm-up"
    GAME = "game"


class Stages:
    """Where a training stands: the game begins when the judge is good enough, and then never ends."""

    def __init__(self, config: LLMGANConfig, total_steps: int, state: Mapping[str, Any] | None = None) -> None:
        self._config = config
        self._total_steps = total_steps
        self._warm = config.generator_warmup_steps + config.judge_warmup_steps
        state = state or {}
        self.game_since: int | None = state.get("game_since")
        """The last step before the game."""
        self.judge_accuracy: float = state.get("judge_accuracy", math.nan)
        """On held-out pairs, when last measured."""
        if self._warm == 0 and config.judge_accuracy == 0 and self.game_since is None:
            self.game_since = 0

    def at(self, step: int) -> Stage:
        """Return the stage of a step that is next or past."""
        if self.game_since is not None and step > self.game_since:
            return Stage.GAME
        return Stage.GENERATOR if step <= self._config.generator_warmup_steps else Stage.JUDGE

    def judge_draws(self, stage: Stage) -> range:
        """Return the draws of a batch that the judge learns from, one step each."""
        return range({Stage.GENERATOR: 0, Stage.JUDGE: 1, Stage.GAME: self._config.judge_steps}[stage])

    def teaches_generator(self, stage: Stage) -> bool:
        """Whether the generator learns in it."""
        return stage is Stage.GENERATOR or (stage is Stage.GAME and not self._config.freeze_generator)

    def judge_rate(self, stage: Stage) -> float:
        """Return the judge's learning rate."""
        config = self._config
        return config.judge_learning_rate if stage is Stage.GAME else config.warmup_learning_rate

    def generator_rate(self, step: int) -> float:
        """Return the generator's learning rate; the config's schedule is that of the game."""
        if self.game_since is None or step <= self.game_since:
            return self._config.warmup_learning_rate
        return learning_rate(self._config, step - self.game_since, self._total_steps - self.game_since)

    def prospect(self) -> str:
        """Return what there is to say before the first step: that there cannot be a game, or an empty text."""
        if self.game_since is not None or self._warm < self._total_steps:
            return ""
        return (
            f"note: generator_warmup_steps={self._config.generator_warmup_steps} and "
            f"judge_warmup_steps={self._config.judge_warmup_steps} leave none of the {self._total_steps} steps for the "
            "game; give it more epochs or max_steps, or less warm-up"
        )

    def ends_warmup(self, step: int) -> bool:
        """Whether something has been learnt after this step that has to be measured before the next one."""
        return self.game_since is None and step in (self._config.generator_warmup_steps, self._warm)

    def measured(self, step: int, judge_accuracy: float) -> str:
        """Take in what an evaluation after a step found; return what there is to say, or an empty text."""
        config = self._config
        self.judge_accuracy = judge_accuracy
        if self.game_since is not None or step < self._warm:
            return ""
        told = f"the judge tells {judge_accuracy:.1%} of the held-out pairs"
        wanted = f"judge_accuracy={config.judge_accuracy}"
        if judge_accuracy >= config.judge_accuracy:
            self.game_since = step
            return f"{told}: the game begins after step {step}"
        if step < self._total_steps:
            return f"{told}, which is less than {wanted}: it goes on alone"
        return (
            f"warning: {told} after all {step} steps, never {wanted}: there was no game; give it more steps, a higher "
            "warmup_learning_rate, a larger judge, or accept less by judge_accuracy"
        )

    def state(self) -> dict[str, Any]:
        """What has to be saved to go on."""
        return {"game_since": self.game_since, "judge_accuracy": self.judge_accuracy}
