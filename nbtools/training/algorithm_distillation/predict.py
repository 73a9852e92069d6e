"""Runs a trained Algorithm Distillation model in the Darkroom, with frozen weights, and draws its path.

Shape suffixes: G goals, E episodes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbtools.errors import ConfigError, shown
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.recipes.algorithm_distillation import goal_of
from nbtools.recipes.predict_settings import AlgorithmDistillationPredict, Input
from nbtools.training.algorithm_distillation import rollout
from nbtools.training.algorithm_distillation.model import open_action_transformer
from nbtools.training.engine.optimizer import autocast


class Predictor:
    """A loaded model and the environment of its training."""

    def __init__(self, folder: Path, config: AlgorithmDistillationConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.transformer = open_action_transformer(folder).to(device)
        self.transformer.eval()
        self.num_parameters = self.transformer.model.num_parameters()

    def predict(self, inputs: Sequence[Input], settings: AlgorithmDistillationPredict) -> Iterator[dict[str, Any]]:
        """Yield for each goal the mean return of every episode, and the median rollout as a drawing.

        An empty input is the first unseen goal. `text` has the last state of the first and of the last episode;
        `frames`, with `num_frames`, the states of some episodes.
        """
        how = {name: getattr(settings, name) for name in ("seed", "keeps_context", "hides_rewards")}
        for given in inputs:
            try:
                goal = self._goal(str(given).strip())
            except ConfigError as error:
                yield {"error": str(error)}
                continue
            run = rollout.RolloutSettings(settings.episodes, num_at_once=self.config.eval_batch_size, **how)
            goals = rollout.repeat_goals(np.array([goal]), settings.rollouts)
            with autocast(self.device, self.config.precision):
                done = rollout.run_rollouts(self.transformer, *goals, run)
            yield self._row(goal, done, settings)

    def _goal(self, text: str) -> tuple[int, int]:
        room = self.transformer.darkroom
        if text:
            return goal_of(text, room.size)
        unseen = self.transformer.unseen_goals_G2.tolist()
        if not unseen:
            raise ConfigError(f"{shown(text)}: the training left out no goal; name one as column:row, such as 0:0")
        return unseen[0][0], unseen[0][1]

    def _row(
        self, goal: tuple[int, int], done: rollout.Rollouts, settings: AlgorithmDistillationPredict
    ) -> dict[str, Any]:
        darkroom, middle = self.transformer.darkroom, done.median()
        returns_E = done.returns_SE.mean(axis=0).round(2)
        best = int(darkroom.best_returns(np.array([goal]))[0])
        ends = [
            rollout.rollout_frames(done, middle, darkroom, [episode])[-1].split("\n")
            for episode in sorted({1, settings.episodes})
        ]
        drawing = "\n".join(
            "     ".join(f"{part:<{2 * darkroom.size}}" for part in line).rstrip() for line in zip(*ends, strict=True)
        )
        returns = " ".join(f"{value:g}" for value in returns_E)
        text = f"goal {goal[0]}:{goal[1]}, best possible return {best}\nreturn of each episode: {returns}\n\n{drawing}"
        row: dict[str, Any] = {"text": text, "goal": f"{goal[0]}:{goal[1]}", "best": best}
        row |= {"returns": returns_E.tolist(), "is_unseen": list(goal) in self.transformer.unseen_goals_G2.tolist()}
        if settings.num_frames:
            frames = rollout.rollout_frames(done, middle, darkroom, rollout.episodes_to_show(settings.episodes))
            picked = np.unique(np.linspace(0, len(frames) - 1, settings.num_frames).astype(int))
            row |= {"frames": [frames[place] for place in picked], "keep_lines": True}
        return row
