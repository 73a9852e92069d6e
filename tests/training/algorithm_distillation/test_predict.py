"""Episodes with frozen weights: the returns of `Agent`, drawn; goals that cannot be read are errors of their rows."""

import numpy as np
import pytest
import torch

from nbtools.project import Project
from nbtools.recipes.predict_settings import AlgorithmDistillationPredict
from nbtools.training.algorithm_distillation.predict import Predictor
from nbtools.training.algorithm_distillation.rollout import FOUND, GOAL, Agent

from trainings import train_model


def test_the_returns_are_those_of_the_agent_and_the_median_rollout_is_drawn(
    cpu_project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, config = train_model(cpu_project, "algorithm_distillation", monkeypatch)
    predictor = Predictor(folder, config, torch.device("cpu"))
    settings = AlgorithmDistillationPredict(episodes=3, rollouts=5, seed=2, num_frames=6)
    first, named, *wrong = predictor.predict(["", " 0:2", "0:3", "here"], settings)
    assert [row["error"] for row in wrong] == [
        "0:3 is outside the grid; columns and rows go from 0 to 2",
        "'here' is not a goal; write column:row, such as 7:2",
    ]
    agent = Agent.open(folder)
    unseen = agent.transformer.unseen_goals_G2[0].tolist()
    assert first["goal"] == f"{unseen[0]}:{unseen[1]}"
    assert first["is_unseen"]
    for row in (first, named):
        goal = [int(part) for part in row["goal"].split(":")]
        returns = agent.returns([goal], num_rollouts=5, num_episodes=3, seed=2)[0].mean(axis=0)
        assert row["returns"] == returns.round(2).tolist()
        heading, _, _, *drawing = row["text"].split("\n")
        assert heading == f"goal {row['goal']}, best possible return {row['best']}"
        assert drawing[0].split() == ["episode", "1", "step", "4", "episode", "3", "step", "4"]
        cells = np.array([line.split() for line in drawing[2:]])
        assert cells.shape == (3, 6)
        assert [cells[goal[1], goal[0] + offset] in (GOAL, FOUND) for offset in (0, 3)] == [True, True]
        assert len(row["frames"]) == 6
        assert row["keep_lines"]
    (cleared,) = predictor.predict([""], settings.replace(keeps_context=False, hides_rewards=True))
    how = {"num_rollouts": 5, "num_episodes": 3, "seed": 2, "keeps_context": False, "hides_rewards": True}
    assert cleared["returns"] == agent.returns([unseen], **how)[0].mean(axis=0).round(2).tolist()
