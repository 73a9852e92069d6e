"""Algorithm Distillation: the same however the batch is divided, bit-exact resume, and it learns to learn."""

from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch
from fixture_types import Train

from nbtools.data.algorithm_distillation import histories
from nbtools.launcher.checks.sizes import num_trainable_parameters
from nbtools.project import Project
from nbtools.recipes import RECIPES, AlgorithmDistillationConfig
from nbtools.run.checkpoints import checkpoints_in
from nbtools.run.run import Run
from nbtools.rundir import media
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.algorithm_distillation.dataset import Windows
from nbtools.training.algorithm_distillation.model import open_action_transformer
from nbtools.training.algorithm_distillation.rollout import Agent

from trainings import TINY as TINY_VALUES
from trainings import ByHand, rows, trained_as_shown

KEY = "algorithm_distillation"
TINY = TINY_VALUES[KEY]


def tiny(**changes: Any) -> AlgorithmDistillationConfig:
    return AlgorithmDistillationConfig(**{**TINY, **changes})


def returns_of(files: RunDir) -> list[float]:
    """The mean return of each episode on the unseen goals, as it was last shown."""
    lines = media.read(files.media, "returns")[-1].lines or {}
    return list(lines["unseen goals"])


# --- in one process -------------------------------------------------------------------------------


def test_a_run_leaves_rows_media_checkpoints_and_a_record_of_its_end(trained: Train, cpu_project: Project) -> None:
    config = tiny()
    files, derived = trained_as_shown(trained, config, cpu_project.root)
    assert derived["num_parameters"] == num_trainable_parameters(config)
    seen = rows(files)
    assert [row["step"] for row in seen] == [1, 2, 3, 4, 5, 6]
    assert {"train/loss", "train/learning_rate", "train/grad_norm", "train/epoch"} <= seen[0].keys()
    assert [name for name in seen[2] if name.startswith("eval/")] == [
        "eval/loss",
        "eval/return_last",
        "eval/return_first",
        "eval/return_best",
    ]
    assert media.names(files.media) == ["returns", "search"]
    shown = media.read(files.media, "returns")
    assert [showing.step for showing in shown] == [3, 6]
    assert shown[-1].x == tuple(range(1, 9))
    assert shown[-1].lines is not None
    assert {name: len(values) for name, values in shown[-1].lines.items()} == {"unseen goals": 8, "best possible": 8}
    showing = media.read(files.media, "search")[-1]
    assert showing.kind == "frames" and showing.keeps_lines
    settings = showing.frames
    assert len(settings) == 8 * (4 + 1)
    assert settings[0].startswith("episode 1  step 0\nreturn 0\n")
    assert settings[-1].startswith("episode 8  step 4\nreturn ")
    assert all(sum(map(frame.count, "@*")) == 1 for frame in settings)
    last = checkpoints_in(files.checkpoints)[-1]
    assert (last.step, last.metrics["eval/loss"]) == (6, seen[-1]["eval/loss"])


GOALS = {"reward_once": True, "test_goals": ("0:0", "2:1")}


@pytest.mark.parametrize(
    ("sequence_length", "interval", "changes"), [(8, None, {}), (10, None, {}), (4, None, GOALS), (12, 4, {})]
)
def test_the_evaluation_is_that_of_the_saved_model(
    trained: Train, cpu_project: Project, sequence_length: int, interval: int | None, changes: dict[str, Any]
) -> None:
    config = tiny(sequence_length=sequence_length, compress_interval=interval, seed=3, **changes)
    files = trained(config)
    row = rows(files)[-1]
    room = config.darkroom
    _, test_G2 = config.split_goals()
    transformer = open_action_transformer(files.checkpoint(6) / "model").eval()
    (folder,) = (path for path in (cpu_project.runs / ".cache").iterdir() if path.is_dir())
    held_out_HL4 = histories.open_steps(folder, histories.read_history_metadata(folder), histories.TEST)
    num_actions = 2 * interval if interval else sequence_length
    windows = Windows(held_out_HL4, 4, num_actions, interval)
    apart = {8: 2, 10: 3, 4: 1}[num_actions]
    starts = [place for place in range(len(windows)) if place % config.windows_per_history % apart == 0]
    assert (read_json(files.config) or {})["derived"]["num_eval_samples"] == len(starts)
    with torch.no_grad():
        losses = [transformer(*windows[0, np.array([place])]).item() / num_actions for place in starts]
    assert row["eval/loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    agent = Agent.open(files.path)
    assert agent.transformer.darkroom == room
    assert agent.transformer.unseen_goals_G2.tolist() == test_G2.tolist()
    returns_E = agent.returns(num_rollouts=3, num_episodes=8, seed=3).mean((0, 1))
    assert returns_of(files) == pytest.approx(returns_E.tolist())
    assert row["eval/return_first"] == pytest.approx(returns_E[:3].mean())
    assert row["eval/return_last"] == pytest.approx(returns_E[4:].mean())
    assert row["eval/return_best"] == room.best_returns(test_G2).mean()


# --- learning to learn ----------------------------------------------------------------------------


def first_and_later(returns_E: Any) -> tuple[float, float]:
    """The mean return of episodes 1-3 and of episodes 28-31."""
    return float(np.mean(returns_E[:3])), float(np.mean(returns_E[27:31]))


def assert_learns_in_context_only(finished: Run) -> None:
    first, later = first_and_later(returns_of(finished.files))
    assert later >= 4, (first, later)
    assert later >= 3 * first, (first, later)
    agent = Agent.open(finished.dir)
    for control in ({"keeps_context": False}, {"hides_rewards": True}):
        assert_flat(agent.returns(num_episodes=31, **control).mean((0, 1)))


def assert_flat(returns_E: Any) -> None:
    first, later = first_and_later(returns_E)
    assert later < 2, (first, later)
    assert abs(later - first) < 0.7, (first, later)


@pytest.mark.seeds
@pytest.mark.parametrize("seed", ["0", "1"])
@pytest.mark.timeout(1000)
def test_the_cpu_demo_learns_to_find_goals_that_it_never_saw(start: ByHand, seed: str) -> None:
    sizes = attrgetter("num_test_goals", "eval_rollouts", "eval_episodes")
    assert sizes(RECIPES[KEY].preset("cpu_demo")[0]) == (8, 16, 40)
    assert_learns_in_context_only(start.demo(KEY, "--seed", seed))


@pytest.mark.seeds
@pytest.mark.timeout(2000)
def test_a_compressed_context_learns_as_well_as_a_plain_one(start: ByHand) -> None:
    plain, compressed = (
        first_and_later(Agent.open(start.demo(KEY, *flags).dir).returns(num_episodes=31).mean((0, 1)))[1]
        for flags in ((), ("--compress-interval", "80", "--sequence-length", "240"))
    )
    assert compressed >= 0.9 * plain, (compressed, plain)


@pytest.mark.seeds
@pytest.mark.timeout(1000)
def test_with_one_episode_in_sight_there_is_nothing_to_learn_it_from(start: ByHand) -> None:
    """With 80 steps in sight the target is reached within 250 training steps."""
    flags = ("--sequence-length", "20", "--max-steps", "300", "--eval-every", "300")
    assert_flat(returns_of(start.demo(KEY, *flags).files))
