"""Rollouts: what the model sees at every step, whose random numbers it draws, and what the rewards are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from nbtools.data.algorithm_distillation.darkroom import MOVES_A2, Darkroom
from nbtools.errors import ConfigError
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.training.algorithm_distillation import rollout
from nbtools.training.algorithm_distillation.model import ActionTransformer, build_action_transformer
from nbtools.training.engine.sampler import uniforms

ROOM = Darkroom(3, 4)
GOALS = np.array([[0, 0], [2, 1], [1, 1]])


def build(sequence_length: int = 12, **changes: Any) -> ActionTransformer:
    """A model with large random weights, so that it has its own opinion about everything that it sees."""
    torch.manual_seed(1)
    shape: dict[str, Any] = {"grid_size": 3, "horizon": 4, "num_episodes": 5, "num_heads": 2, "hidden_size": 16}
    config = AlgorithmDistillationConfig(**{**shape, "sequence_length": sequence_length, **changes})
    transformer = build_action_transformer(config, GOALS[:2]).eval()
    for weight in transformer.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return transformer


def always(action: int, room: Darkroom) -> ActionTransformer:
    """A model that can do only one thing."""
    shape: dict[str, Any] = {"grid_size": room.size, "horizon": room.horizon, "reward_once": room.reward_once}
    transformer = build(2 * room.horizon, **shape)
    torch.nn.init.zeros_(transformer.model.classifier.weight)
    transformer.model.classifier.bias.data = 100.0 * torch.nn.functional.one_hot(torch.tensor(action), 5).float()
    return transformer


def marked_by_hand(steps: list[list[int]], interval: int) -> list[list[int]]:
    """Steps with the marker 3 before each region of `interval` of them, and the marker 4 behind it before the next."""
    marked: list[list[int]] = []
    for number, step in enumerate(steps):
        if number % interval == 0:
            marked += [[0, 0, 0, 4]] * (number > 0) + [[0, 0, 0, 3]]
        marked.append(step)
    return marked


@torch.no_grad()
def by_reading_everything_anew(
    transformer: ActionTransformer, goal: tuple[int, int], number: int, settings: rollout.RolloutSettings
) -> tuple[list[list[int]], float]:
    """One rollout without cache and without batch: rewards by episode, and how much what was read mattered."""
    sequence_length = transformer.context
    interval = transformer.compress_interval
    past: list[list[list[int]]] = []  # of each episode, (column, row, last action, last reward) of each step
    last, rewards, spread = [0, 0], [], 0.0
    for episode in range(settings.num_episodes):
        if interval is None:
            num_kept = sequence_length // ROOM.horizon - 1
        else:  # the whole region before, and what there is of this one
            of_region = interval // ROOM.horizon
            num_kept = episode % of_region + (of_region if episode >= of_region else 0)
        num_kept = min(num_kept, len(past)) if settings.keeps_context else 0
        kept = past[len(past) - num_kept :]
        seen = [list(step) for steps in kept for step in steps]
        if not seen:
            last = [0, 0]
        else:
            seen[0][2:] = [0, 0]
        sample = np.array([(goal[0] * ROOM.size + goal[1]) * 2**32 + number])
        draws = uniforms(settings.seed, "rollout", episode, sample, ROOM.horizon)[0]
        position, steps, rewarded = ROOM.start, [], []
        for draw in draws:
            steps.append([*position, *last])
            read = seen + steps
            if interval is not None:
                read = marked_by_hand(read, interval)
            logits_A = transformer.next_logits(torch.tensor([read]))[0].double()
            chances = np.cumsum(torch.softmax(logits_A, 0).numpy())
            action = next((number for number in range(5) if draw < chances[number]), 4)
            column, row = (np.array(position) + MOVES_A2[action]).clip(0, ROOM.size - 1).tolist()
            position = column, row
            rewarded.append(int(position == goal and not (ROOM.reward_once and any(rewarded))))
            last = [action + 1, 1 + (0 if settings.hides_rewards else rewarded[-1])]
            spread = max(spread, float(logits_A.max() - logits_A.min()))
        past.append(steps)
        rewards.append(rewarded)
    return rewards, spread


def check_by_hand(transformer: ActionTransformer, settings: rollout.RolloutSettings, num_each: int) -> None:
    goals_S2, numbers_S = rollout.repeat_goals(GOALS, num_each)
    done = rollout.run_rollouts(transformer, goals_S2, numbers_S, settings)
    assert 0 < done.rewards_SEK.mean() < 1
    for place, (goal, number) in enumerate(zip(goals_S2.tolist(), numbers_S.tolist(), strict=True)):
        expected, spread = by_reading_everything_anew(transformer, tuple(goal), number, settings)
        assert done.rewards_SEK[place].tolist() == expected
        assert spread > 1, "a model without an opinion would prove nothing"


@pytest.mark.parametrize(
    ("context", "settings"),
    [
        (16, rollout.RolloutSettings(6)),
        (8, rollout.RolloutSettings(6)),
        (15, rollout.RolloutSettings(6, seed=3)),
        (4, rollout.RolloutSettings(4)),
        (16, rollout.RolloutSettings(4, keeps_context=False)),
        (16, rollout.RolloutSettings(6, hides_rewards=True)),
    ],
)
def test_a_rollout_with_a_cache_is_that_which_reads_everything_anew(
    context: int, settings: rollout.RolloutSettings
) -> None:
    check_by_hand(build(context), settings, 3)


@pytest.mark.parametrize("settings", [rollout.RolloutSettings(7), rollout.RolloutSettings(5, keeps_context=False)])
@pytest.mark.parametrize("interval", [4, 8])
def test_of_a_compressed_context_it_reads_this_region_and_the_one_before(
    interval: int, settings: rollout.RolloutSettings
) -> None:
    transformer = build(24, compress_interval=interval)
    check_by_hand(transformer, settings, 2)


def test_each_control_changes_what_happens() -> None:
    transformer, (goals_S2, numbers_S) = build(16), rollout.repeat_goals(GOALS, 8)
    plain = rollout.RolloutSettings(6)
    ways = (plain, replace(plain, keeps_context=False), replace(plain, hides_rewards=True), replace(plain, seed=1))
    found = [rollout.run_rollouts(transformer, goals_S2, numbers_S, way).positions_SEK2 for way in ways]
    assert all((other != found[0]).any() for other in found[1:])
    assert (found[1][:, 0] == found[0][:, 0]).all(), "before the first reset there is nothing to clear"


def test_who_shares_the_rollouts_changes_nothing() -> None:
    transformer, (goals_S2, numbers_S) = build(), rollout.repeat_goals(GOALS, 4)
    whole = rollout.run_rollouts(transformer, goals_S2, numbers_S, rollout.RolloutSettings(5))
    for share in (slice(0, None, 2), slice(1, None, 2), slice(7, 8)):
        part = rollout.run_rollouts(transformer, goals_S2[share], numbers_S[share], rollout.RolloutSettings(5))
        assert (part.positions_SEK2 == whole.positions_SEK2[share]).all()
    in_pieces = rollout.run_rollouts(transformer, goals_S2, numbers_S, rollout.RolloutSettings(5, num_at_once=5))
    assert (in_pieces.positions_SEK2 == whole.positions_SEK2).all()
    assert rollout.run_rollouts(
        transformer, goals_S2[:0], numbers_S[:0], rollout.RolloutSettings(5)
    ).returns_SE.shape == (0, 5)


def test_the_reward_comes_with_every_step_that_ends_on_the_goal_or_only_with_the_first() -> None:
    goals_S2, numbers_S = rollout.repeat_goals(np.array([[4, 2], [3, 2], [2, 2]]), 1)
    for room, expected in ((Darkroom(5, 6), [5, 1, 0]), (Darkroom(5, 6, reward_once=True), [1, 1, 0])):
        # To the right, up to the wall.
        done = rollout.run_rollouts(always(0, room), goals_S2, numbers_S, rollout.RolloutSettings(3))
        assert done.returns_SE.tolist() == [[each] * 3 for each in expected]
        assert done.positions_SEK2[0, 1].tolist() == [[3, 2], [4, 2], [4, 2], [4, 2], [4, 2], [4, 2]]
    staying = rollout.run_rollouts(always(4, Darkroom(5, 6)), goals_S2, numbers_S, rollout.RolloutSettings(2))
    assert staying.returns_SE.tolist() == [[0, 0], [0, 0], [6, 6]]


def test_the_room_is_shown_before_and_after_every_step() -> None:
    room = Darkroom(3, 2)
    positions_SEK2 = np.array([[[[2, 1], [2, 0]], [[1, 0], [0, 0]]]])
    done = rollout.Rollouts(np.array([[2, 0]]), positions_SEK2, np.array([[[0, 1], [0, 0]]]))
    shown = rollout.rollout_frames(done, 0, room, [1, 2])
    assert shown == [
        "episode 1  step 0\nreturn 0\n· · X\n· @ ·\n· · ·",
        "episode 1  step 1\nreturn 0\n· · X\n· o @\n· · ·",
        "episode 1  step 2\nreturn 1\n· · *\n· o o\n· · ·",
        "episode 2  step 0\nreturn 0\n· · X\n· @ ·\n· · ·",
        "episode 2  step 1\nreturn 0\n· @ X\n· o ·\n· · ·",
        "episode 2  step 2\nreturn 0\n@ o X\n· o ·\n· · ·",
    ]


@pytest.mark.parametrize(("size", "horizon", "num_episodes"), [(9, 20, 40), (64, 1000, 1), (17, 50, 500)])
def test_frames_stay_few_and_of_one_shape(size: int, horizon: int, num_episodes: int) -> None:
    shape = (1, num_episodes, horizon)
    done = rollout.Rollouts(np.array([[0, 0]]), np.zeros((*shape, 2), np.uint8), np.zeros(shape, np.uint8))
    shown = rollout.rollout_frames(done, 0, Darkroom(size, horizon), rollout.episodes_to_show(num_episodes))
    assert 2 <= len(shown) <= 200
    assert sum(map(len, shown)) < 250_000
    assert len({tuple(map(len, frame.split("\n"))) for frame in shown}) == 1
    assert shown[-1].startswith(f"episode {num_episodes}  step {horizon}\n")


def test_the_episodes_that_are_shown_include_the_first_and_the_last() -> None:
    assert rollout.episodes_to_show(40) == [1, 2, 3, 5, 8, 14, 24, 40]
    assert rollout.episodes_to_show(3) == [1, 2, 3]
    assert rollout.episodes_to_show(1) == [1]


def test_an_agent_gives_returns_by_goal_rollout_and_episode() -> None:
    transformer = build()
    agent = rollout.Agent(transformer)
    returns_GRE = agent.returns([(0, 0), (2, 1), (1, 1)], num_rollouts=4, num_episodes=5)
    assert returns_GRE.shape == (3, 4, 5)
    done = rollout.run_rollouts(transformer, *rollout.repeat_goals(GOALS, 4), rollout.RolloutSettings(5))
    assert (returns_GRE.reshape(12, 5) == done.returns_SE).all()
    assert (agent.returns(num_rollouts=4, num_episodes=5) == returns_GRE[:2]).all(), "those never trained on"


@pytest.mark.parametrize(
    ("goals", "how", "said"),
    [
        ([(3, 0)], {}, r"goals: \(3, 0\) is outside the grid; columns and rows go from 0 to 2"),
        ([(0, -1)], {}, r"goals: \(0, -1\) is outside the grid"),
        ((1, 2), {}, r"give pairs of column and row, such as \[\(7, 2\)\]"),
        ([], {}, "give pairs of column and row"),
        (["7:2"], {}, "give pairs of column and row"),
        ([(1.5, 0)], {}, "give pairs of column and row"),
        (None, {"num_episodes": 0}, "num_rollouts=16, num_episodes=0: each must be at least 1"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(goals: Any, how: dict[str, Any], said: str) -> None:
    transformer = build()
    with pytest.raises(ConfigError, match=said):
        rollout.Agent(transformer).returns(goals, **how)
