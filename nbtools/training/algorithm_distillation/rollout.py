"""Rollouts of a trained Algorithm Distillation model in the Darkroom: in-context learning without weight updates.

    from nbtools.training.algorithm_distillation.rollout import Agent

    agent = Agent.open("runs/ID")
    agent.returns([(7, 2)])                             # (1, 16, 40): the return rises from episode to episode
    agent.returns([(7, 2)], keeps_context=False)        # it does not: the context is cleared at each reset

Across the reset between two episodes the model keeps the steps in its context: as many of the last whole episodes as
leave room for one more, with the action and reward before the reset; of a compressed context those of the current
region and of the one before it. Actions are sampled, as in Laskin et al. 2022 (arXiv 2210.14215). Rollouts run in one
batch: at a reset the kept episodes are encoded at once, then every step is one token after a cache of keys and values.

All random numbers are a pure function of (seed, goal, rollout number, episode), so any number of ranks can share the
rollouts.

Shape suffixes: G goals, R rollouts of a goal, S rollouts of all goals, E episodes, K steps of an episode, T steps in
the context, A actions; 2 column and row, 4 as in `model`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache

from nbtools.data.algorithm_distillation.darkroom import Darkroom, Integers
from nbtools.errors import ConfigError
from nbtools.training.algorithm_distillation.model import ActionTransformer, open_action_transformer, with_markers
from nbtools.training.engine import checkpoint
from nbtools.training.engine.sampler import uniforms
from nbtools.training.text.causal_sampling import drawn

NONE = 0
"""Id of an unknown last action or reward; known ones are counted from 1."""
LAST = 4
"""Number of last episodes of a rollout whose mean return is reported as its final return."""


@dataclass(frozen=True)
class RolloutSettings:
    """Settings of rollouts; `keeps_context` and `hides_rewards` are ablations."""

    num_episodes: int = 40
    seed: int = 0
    keeps_context: bool = True
    """False clears the context at every reset."""
    hides_rewards: bool = False
    """True replaces every observed reward by 0."""
    num_at_once: int = 2048
    """Rollouts per batch; affects only speed and memory."""

    def kept_steps(self, transformer: ActionTransformer, episode: int) -> int:
        """Return how many steps of whole episodes, but one, stay in the context of an episode."""
        horizon, interval = transformer.darkroom.horizon, transformer.compress_interval
        if not self.keeps_context:
            return 0
        if interval is None:
            return (transformer.context // horizon - 1) * horizon
        region, step = divmod(episode * horizon, interval)
        return min(region, 1) * interval + step


@dataclass(frozen=True)
class Rollouts:
    """The trajectories of some rollouts."""

    goals_S2: Integers
    positions_SEK2: Integers
    """(column, row) after each step."""
    rewards_SEK: Integers

    @property
    def returns_SE(self) -> Integers:
        """Return of each episode."""
        returns_SE: Integers = self.rewards_SEK.sum(axis=2, dtype=np.int64)
        return returns_SE

    def median(self) -> int:
        """Return the rollout with the median return in the last episodes."""
        order_S = np.argsort(self.returns_SE[:, -LAST:].sum(axis=1), kind="stable")
        return int(order_S[len(order_S) // 2])


def run_rollouts(
    transformer: ActionTransformer, goals_S2: Integers, numbers_S: Integers, settings: RolloutSettings
) -> Rollouts:
    """Run rollouts, each from an empty context.

    Args:
        goals_S2: goal of each rollout; may be empty.
        numbers_S: number of each rollout among those of its goal; seeds its random numbers.
    """
    shape = (len(goals_S2), settings.num_episodes, transformer.darkroom.horizon)
    done = Rollouts(goals_S2, np.zeros((*shape, 2), np.uint8), np.zeros(shape, np.uint8))
    for first in range(0, len(goals_S2), settings.num_at_once):
        some = slice(first, first + settings.num_at_once)
        part = Rollouts(goals_S2[some], done.positions_SEK2[some], done.rewards_SEK[some])
        _run_batch(transformer, part, numbers_S[some], settings)
    return done


@torch.no_grad()
def _run_batch(transformer: ActionTransformer, done: Rollouts, numbers_S: Integers, settings: RolloutSettings) -> None:
    """Run one batch of rollouts, and write their trajectories into `done`."""
    darkroom, device = transformer.darkroom, transformer.offsets_4.device
    goals_S2, num_rollouts, num_steps = done.goals_S2.astype(np.int64), len(done.goals_S2), darkroom.horizon
    samples_S = ((goals_S2[:, 0] * darkroom.size + goals_S2[:, 1]) << 32) + numbers_S
    seen_ST4 = np.zeros((num_rollouts, 0, 4), np.int64)
    last_S2 = np.full((num_rollouts, 2), NONE)  # action and reward
    for episode in range(settings.num_episodes):
        kept_ST4 = seen_ST4[:, max(seen_ST4.shape[1] - settings.kept_steps(transformer, episode), 0) :]
        num_kept = kept_ST4.shape[1]
        seen_ST4 = np.concatenate([kept_ST4, np.zeros((num_rollouts, num_steps, 4), np.int64)], axis=1)
        if num_kept:
            seen_ST4[:, 0, 2:] = NONE  # as at the start of a training window
        else:
            last_S2[:] = NONE
        cache, num_read = DynamicCache(config=transformer.model.config), 0
        positions_S2: Integers = np.tile(darkroom.start, (num_rollouts, 1))
        uniforms_SK = torch.from_numpy(uniforms(settings.seed, "rollout", episode, samples_S, num_steps)).to(device)
        for step in range(num_steps):
            place = num_kept + step
            seen_ST4[:, place, :2], seen_ST4[:, place, 2:] = positions_S2, last_S2
            tokens_ST4 = seen_ST4[:, : place + 1]
            if transformer.compress_interval is not None:
                tokens_ST4 = with_markers(tokens_ST4, transformer.compress_interval)
            unread_ST4 = torch.from_numpy(tokens_ST4[:, num_read:]).to(device)
            num_read = tokens_ST4.shape[1]
            actions_S = drawn(transformer.next_logits(unread_ST4, cache), uniforms_SK[:, step]).cpu().numpy()
            positions_S2 = darkroom.moved(positions_S2, actions_S)
            rewards_S = (positions_S2 == goals_S2).all(axis=1)
            if darkroom.reward_once:
                rewards_S &= ~done.rewards_SEK[:, episode].any(axis=1)
            done.positions_SEK2[:, episode, step], done.rewards_SEK[:, episode, step] = positions_S2, rewards_S
            seen_rewards_S = rewards_S & (not settings.hides_rewards)
            last_S2 = np.stack([actions_S, seen_rewards_S], axis=1) + 1


def repeat_goals(goals_G2: Integers, num_rollouts: int) -> tuple[Integers, Integers]:
    """Return the goal and the number of every rollout, in the order of the goals. Shapes (S, 2) and (S,)."""
    return np.repeat(goals_G2, num_rollouts, axis=0), np.tile(np.arange(num_rollouts), len(goals_G2))


FLOOR, TRAIL, AGENT, GOAL, FOUND = "·", "o", "@", "X", "*"
_MOST_FRAMES, _MOST_CHARACTERS = 200, 120_000


def episodes_to_show(num_episodes: int, most: int = 8) -> list[int]:
    """Return the episodes to draw: most of the first ones, fewer later ones, and the last one."""
    if num_episodes <= most:
        return list(range(1, num_episodes + 1))
    return sorted({round(number) for number in np.geomspace(1, num_episodes, most)})


def rollout_frames(rollouts: Rollouts, rollout: int, darkroom: Darkroom, episodes: Sequence[int]) -> list[str]:
    """Return the grid as text, before and after every step of some episodes (counted from 1), in frames of one size.

    Subsampled evenly if they are many.
    """
    num_episodes, num_steps = rollouts.rewards_SEK.shape[1:]
    goal = tuple(rollouts.goals_S2[rollout].tolist())
    every = [(episode, step) for episode in episodes for step in range(num_steps + 1)]
    most = max(min(_MOST_FRAMES, _MOST_CHARACTERS // (2 * darkroom.size**2)), 2)
    found = []
    for place in np.unique(np.linspace(0, len(every) - 1, most).astype(int)):
        episode, step = every[place]
        steps_T2 = rollouts.positions_SEK2[rollout, episode - 1, :step]
        rewards = int(rollouts.rewards_SEK[rollout, episode - 1, :step].sum())
        cells = [[FLOOR] * darkroom.size for _ in range(darkroom.size)]
        path = [darkroom.start, *((int(column), int(row)) for column, row in steps_T2)]
        for column, row in path:
            cells[row][column] = TRAIL
        cells[goal[1]][goal[0]] = GOAL
        column, row = path[-1]
        cells[row][column] = FOUND if (column, row) == goal else AGENT
        widths = (len(str(num_episodes)), len(str(num_steps)))
        heading = f"episode {episode:{widths[0]}}  step {step:{widths[1]}}\nreturn {rewards:{widths[1]}}"
        found.append("\n".join([heading, *(" ".join(row_of_cells) for row_of_cells in cells)]))
    return found


@dataclass(frozen=True)
class Agent:
    """A trained model that acts in the environment of its training."""

    transformer: ActionTransformer

    @classmethod
    def open(cls, path: str | Path, device: str | torch.device = "cpu") -> "Agent":
        """Open a run's newest checkpoint, a checkpoint, or its `model/`; CheckpointError if it fits no model."""
        transformer = open_action_transformer(checkpoint.model_folder(path))
        transformer.eval()
        transformer.to(device)
        return cls(transformer)

    def returns(self, goals: npt.ArrayLike | None = None, *, num_rollouts: int = 16, **how: Any) -> Integers:
        """Return the return of every episode of several rollouts for each goal. Shape (G, R, E).

        Args:
            goals: pairs of column and row; None for the unseen goals.
            how: fields of `RolloutSettings`, such as `num_episodes`, `keeps_context`, `hides_rewards`.

        Raises:
            ConfigError: a goal is outside the room, or a number is below 1.
        """
        settings = RolloutSettings(**how)
        if num_rollouts < 1 or settings.num_episodes < 1:
            raise ConfigError(
                f"num_rollouts={num_rollouts}, num_episodes={settings.num_episodes}: each must be at least 1"
            )
        transformer = self.transformer
        goals_G2 = transformer.unseen_goals_G2 if goals is None else checked_goals(transformer.darkroom, goals)
        done = run_rollouts(transformer, *repeat_goals(goals_G2, num_rollouts), settings)
        return done.returns_SE.reshape(-1, num_rollouts, settings.num_episodes)


def checked_goals(darkroom: Darkroom, goals: npt.ArrayLike) -> Integers:
    """Return goals (G, 2) as an array; ConfigError unless they are pairs of column and row in the room."""
    try:
        goals_G2 = np.asarray(goals)
    except ValueError:  # rows of different lengths
        goals_G2 = np.zeros(0)
    if goals_G2.dtype.kind not in "iu" or goals_G2.ndim != 2 or goals_G2.shape[1] != 2 or not len(goals_G2):
        raise ConfigError(f"goals={str(goals)[:80]!r}: give pairs of column and row, such as [(7, 2)]")
    for goal in goals_G2:
        if goal.min() < 0 or goal.max() >= darkroom.size:
            raise ConfigError(
                f"goals: {tuple(goal.tolist())} is outside the grid; columns and rows go from 0 to {darkroom.size - 1}"
            )
    return goals_G2.astype(np.int64)
