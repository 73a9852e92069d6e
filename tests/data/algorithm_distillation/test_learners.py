"""Learning histories as they are played: by the rules, better from episode to episode, the same whoever plays them."""

import hashlib
from typing import Any

import numpy as np
import pytest

from nbtools.data.algorithm_distillation import histories, learners
from nbtools.data.algorithm_distillation.darkroom import Darkroom
from nbtools.data.algorithm_distillation.learners import generate
from nbtools.recipes import AlgorithmDistillationConfig

SMALL = {"grid_size": 5, "horizon": 8, "num_episodes": 6, "sequence_length": 16}
MOVES = {0: (1, 0), 1: (-1, 0), 2: (0, 1), 3: (0, -1), 4: (0, 0)}


def small(**changes: Any) -> AlgorithmDistillationConfig:
    return AlgorithmDistillationConfig(**{**SMALL, **changes})


def played(config: AlgorithmDistillationConfig, num_histories: int = 4) -> tuple[Any, Any]:
    """Histories of all training goals, and the goals."""
    room = config.darkroom
    goals_G2 = config.split_goals()[0]
    return generate(config.learner, room, goals_G2, num_histories), goals_G2


def returns_of(steps_HL4: Any, horizon: int) -> Any:
    return steps_HL4[..., 3].reshape(len(steps_HL4), -1, horizon).sum(axis=2, dtype=int)


@pytest.mark.parametrize("source", ["annealed", "q_learning"])
@pytest.mark.parametrize("reward_once", [False, True])
def test_every_step_keeps_the_rules_of_the_room(source: Any, reward_once: bool) -> None:
    config = small(source_algorithm=source, reward_once=reward_once, source_episodes=12)
    steps_HL4, goals_G2 = played(config)
    assert steps_HL4.shape == (len(goals_G2) * 4, 48, 4) and steps_HL4.dtype == np.uint8
    num_rewards = 0
    for history, steps_L4 in enumerate(steps_HL4.tolist()):
        goal = tuple(goals_G2[history // 4].tolist())
        for number, (column, row, action, reward) in enumerate(steps_L4):
            if number % 8 == 0:
                place, paid = (2, 2), False
            assert (column, row) == place
            place = tuple(min(max(was + by, 0), 4) for was, by in zip(place, MOVES[action], strict=True))
            assert reward == (place == goal and not (reward_once and paid))
            paid |= bool(reward)
            num_rewards += reward
    assert num_rewards > 100


def test_the_demonstrator_ends_with_shortest_ways_and_begins_with_any() -> None:
    config = AlgorithmDistillationConfig()
    steps_HL4, goals_G2 = played(config, num_histories=10)
    returns_HE = returns_of(steps_HL4, 20)
    best_H1 = np.repeat(config.darkroom.best_returns(goals_G2), 10)[:, None]
    assert np.array_equal(returns_HE[:, -2:], np.broadcast_to(best_H1, (730, 2)))
    means_E = returns_HE.mean(axis=0)
    assert means_E[0] < 1
    assert np.all(np.diff(means_E) > -0.2) and means_E[7] < 0.5 * means_E[14]
    actions_HEK = steps_HL4[..., 2].reshape(730, 20, 20)
    counts_A = np.bincount(actions_HEK[:, 0].ravel(), minlength=5) / actions_HEK[:, 0].size
    assert np.all(np.abs(counts_A - 0.2) < 0.05), "at first it acts at random"
    corner = actions_HEK[np.repeat(np.all(goals_G2 == [8, 8], axis=1), 10), -1, :8]
    assert {tuple(sorted(way)) for way in corner.tolist()} == {(0, 0, 0, 0, 2, 2, 2, 2)}
    assert len({tuple(way) for way in corner.tolist()}) > 5, "which axis comes first is drawn"


@pytest.mark.parametrize("reward_once", [False, True])
def test_q_learning_learns(reward_once: bool) -> None:
    config = AlgorithmDistillationConfig(source_algorithm="q_learning", reward_once=reward_once)
    assert config.episodes_played == 300
    steps_HL4, goals_G2 = played(config, num_histories=2)
    returns_HE = returns_of(steps_HL4, 20)
    best = config.darkroom.best_returns(goals_G2).mean()
    assert returns_HE[:, 0].mean() < 0.25 * best
    assert returns_HE[:, 8:10].mean() > returns_HE[:, :2].mean() + 0.1 * best, "step by step"
    assert returns_HE[:, -3:].mean() > 0.85 * best


def test_q_learning_knows_nothing_of_the_goal_but_its_rewards() -> None:
    room, kept_E = Darkroom(5, 8), np.arange(20)
    goals_S2 = np.array([[0, 1], [4, 3], [2, 0]])
    alike = [np.random.PCG64(7) for _ in goals_S2]
    steps_SL4 = learners._q_learning(room, goals_S2, alike, kept_E, 20)
    first_rewards = [int(np.flatnonzero(steps_L4[:, 3])[0]) for steps_L4 in steps_SL4]
    until = sorted(first_rewards)[1]
    assert until > 3 and len(set(first_rewards)) > 1
    kept = [steps_L4 for steps_L4, first in zip(steps_SL4, first_rewards, strict=True) if first >= until]
    assert np.array_equal(kept[0][: until + 1, :3], kept[1][: until + 1, :3])
    assert not np.array_equal(kept[0][:, 2], kept[1][:, 2]), "and from then on each goes its own way"


@pytest.mark.parametrize("source", ["annealed", "q_learning"])
def test_a_history_depends_on_seed_goal_and_number_alone(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(source_algorithm=source)
    whole_HL4, goals_G2 = played(config, 7)
    room = config.darkroom
    fewer_HL4, _ = played(config, 3)
    by_number = whole_HL4.reshape(len(goals_G2), 7, 48, 4)
    assert np.array_equal(by_number[:, :3], fewer_HL4.reshape(len(goals_G2), 3, 48, 4)), "of how many others there are"
    backwards_HL4 = generate(config.learner, room, goals_G2[::-1], 7)
    assert np.array_equal(by_number[::-1], backwards_HL4.reshape(by_number.shape)), "of the order of the goals"
    monkeypatch.setattr(learners, "_NUMBERS_AT_ONCE", 5 * 125)
    assert len([*learners.generated(config.learner, room, goals_G2, 7)]) > 20
    assert np.array_equal(whole_HL4, played(config, 7)[0]), "of what is played at once"
    assert not np.array_equal(whole_HL4, played(config.replace(seed=1), 7)[0])
    assert len({history.tobytes() for history in whole_HL4}) == len(whole_HL4)


def test_episodes_are_kept_at_equal_distances_and_the_last_one_always() -> None:
    values: dict[str, Any] = {"source_algorithm": "q_learning", "source_episodes": 18}
    all_HEK4 = played(small(**values, num_episodes=18))[0].reshape(-1, 18, 8, 4)
    kept_HEK4 = played(small(**values))[0].reshape(-1, 6, 8, 4)
    assert np.array_equal(kept_HEK4, all_HEK4[:, 2::3])


@pytest.mark.parametrize(("source", "digest"), [("annealed", "dc29623598035a37"), ("q_learning", "307b648540aa8cdb")])
def test_what_is_played_stays_the_same_within_a_format(source: Any, digest: str) -> None:
    """A cache is found by its settings: whoever changes what they mean has to count up `histories.FORMAT`."""
    assert histories.FORMAT == 1
    steps_HL4, _ = played(small(source_algorithm=source))
    assert hashlib.sha256(steps_HL4.tobytes()).hexdigest()[:16] == digest
