"""Source algorithms of the learning histories: agents whose return in the Darkroom rises from episode to episode.

The *annealed* demonstrator takes random actions with a probability that falls from 1 to 0 over the first nine tenths of
its history, and otherwise walks straight to the goal, which it knows (Zisman et al. 2024, arXiv 2312.12275).
*Q-learning* (Watkins and Dayan 1992) starts without knowledge: every history has a table of its own that is updated
from its rewards.

Each history is a pure function of (seed, goal, history number), independent of how many are generated at once.
Random bits come from PCG64 directly; they are the same in every version of NumPy.

Shape suffixes: S histories generated at once, G goals, L steps of a history (its kept episodes concatenated), E kept
episodes, K steps of an episode, P episodes whose bits are drawn at once, C cells of all rooms, Z cells of one, A
actions, V values (A for each of C), 4 column and row before the action, the action, its reward.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nbtools.data.algorithm_distillation import darkroom as grid
from nbtools.data.algorithm_distillation.darkroom import MOVES_A2, NUM_ACTIONS, Darkroom, Integers

Steps = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint64]

_EXPLORING_SHARE = 0.9
"""Part of a history with exploration; after it the demonstrator takes no random action, and Q-learning few."""
_LEARNING_RATE, _DISCOUNT = 0.5, 0.9
_FIRST_VALUE = 1.0
"""Initial value of every action: optimistic, so that untried actions are preferred."""
_LAST_EPSILON = 0.05
_NUMBERS_AT_ONCE = 2**18
"""Steps generated at once (at least one history): about 20 MB."""
_COLUMN_MOVES_A, _ROW_MOVES_A = MOVES_A2.T.copy()


@dataclass(frozen=True)
class Learner:
    """The source algorithm, and which of its episodes are kept."""

    algorithm: Literal["annealed", "q_learning"]
    num_episodes: int
    """Number of kept episodes of a history, evenly spaced."""
    episodes_played: int
    """Number of all episodes of a history."""
    seed: int


def generate(learner: Learner, darkroom: Darkroom, goals_G2: Integers, num_histories: int) -> Steps:
    """Generate `num_histories` histories per goal, in the order of the goals. Shape (G * num_histories, L, 4)."""
    return np.concatenate([*generated(learner, darkroom, goals_G2, num_histories)])


def generated(learner: Learner, darkroom: Darkroom, goals_G2: Integers, num_histories: int) -> Iterator[Steps]:
    """Yield the histories of `generate` in pieces that fit into memory. Shape (S, L, 4)."""
    numbers = max(learner.num_episodes * darkroom.horizon, NUM_ACTIONS * darkroom.num_cells)
    at_once, total = max(1, _NUMBERS_AT_ONCE // numbers), len(goals_G2) * num_histories
    kept_E = (np.arange(learner.num_episodes) + 1) * learner.episodes_played // learner.num_episodes - 1
    play = _annealed if learner.algorithm == "annealed" else _q_learning
    for first in range(0, total, at_once):
        places_S, numbers_S = np.divmod(np.arange(first, min(first + at_once, total)), num_histories)
        goals_S2 = goals_G2[places_S].astype(np.int64)
        names = np.column_stack((goals_S2, numbers_S)).tolist()
        streams = [np.random.PCG64([learner.seed, *name]) for name in names]
        yield play(darkroom, goals_S2, streams, kept_E, learner.episodes_played)


def _annealed(
    darkroom: Darkroom, goals_S2: Integers, streams: "list[np.random.PCG64]", kept_E: Integers, num_episodes: int
) -> Steps:
    """Generate the kept episodes, all at once: no episode depends on an earlier one."""
    num_steps, shape_SE = darkroom.horizon, (len(streams), len(kept_E))
    bits_SEK = np.stack([stream.random_raw(len(kept_E) * num_steps) for stream in streams]).reshape(*shape_SE, -1)
    steps_EK = kept_E[:, None] * num_steps + np.arange(num_steps)
    noise_EK = np.clip(1 - steps_EK / (_EXPLORING_SHARE * num_episodes * num_steps), 0, 1)
    is_random_KSE = _by_step(_are_below(bits_SEK, noise_EK))
    random_KSE = _by_step(_random_actions(bits_SEK))
    columns_first_KSE = _by_step((bits_SEK & np.uint64(1 << 16)).astype(np.bool_))

    played_SEK4 = np.empty((*shape_SE, num_steps, 4), dtype=np.uint8)
    column_SE, row_SE = (np.full(shape_SE, middle, dtype=np.int8) for middle in darkroom.start)
    goal_column_S1, goal_row_S1 = goals_S2.astype(np.int8)[:, :1], goals_S2.astype(np.int8)[:, 1:]
    is_rewarded_SE = np.zeros(shape_SE, dtype=np.bool_)
    for step in range(num_steps):
        right_SE, down_SE = goal_column_S1 - column_SE, goal_row_S1 - row_SE
        along_columns_SE = (right_SE != 0) & ((down_SE == 0) | columns_first_KSE[step])
        straight_SE = np.where(
            along_columns_SE,
            np.where(right_SE > 0, np.uint8(grid.RIGHT), np.uint8(grid.LEFT)),
            np.where(down_SE > 0, np.uint8(grid.DOWN), np.where(down_SE < 0, np.uint8(grid.UP), np.uint8(grid.STAY))),
        )
        action_SE = np.where(is_random_KSE[step], random_KSE[step], straight_SE)
        played_SEK4[:, :, step, 0], played_SEK4[:, :, step, 1] = column_SE, row_SE
        # `Darkroom.moved` in bytes, which is several times faster.
        column_SE = np.clip(column_SE + _COLUMN_MOVES_A[action_SE], 0, darkroom.size - 1)
        row_SE = np.clip(row_SE + _ROW_MOVES_A[action_SE], 0, darkroom.size - 1)
        reward_SE = (column_SE == goal_column_S1) & (row_SE == goal_row_S1)
        if darkroom.reward_once:
            reward_SE &= ~is_rewarded_SE
            is_rewarded_SE |= reward_SE
        played_SEK4[:, :, step, 2], played_SEK4[:, :, step, 3] = action_SE, reward_SE
    return played_SEK4.reshape(len(streams), -1, 4)


def _q_learning(
    darkroom: Darkroom, goals_S2: Integers, streams: "list[np.random.PCG64]", kept_E: Integers, num_episodes: int
) -> Steps:
    """Run all episodes in order; every history updates its own table, all histories in lockstep."""
    num_steps, num_streams, num_cells = darkroom.horizon, len(streams), darkroom.num_cells
    kept_SEK4 = np.empty((num_streams, len(kept_E), num_steps, 4), dtype=np.uint8)
    places = {int(episode): place for place, episode in enumerate(kept_E)}
    values_CA = np.full((num_streams * num_cells, NUM_ACTIONS), _FIRST_VALUE, dtype=np.float32)
    values_V, best_C = values_CA.reshape(-1), np.full(len(values_CA), _FIRST_VALUE, dtype=np.float32)
    # All values are equal at first, so the greedy action is drawn.
    greedy_C = np.concatenate([_random_actions(stream.random_raw(num_cells)) for stream in streams]).astype(np.intp)

    cells_Z2 = np.stack(np.divmod(np.arange(num_cells), darkroom.size), axis=1)
    by_cell_2 = np.array([darkroom.size, 1])
    moved_ZA = [darkroom.moved(cells_Z2, np.full(num_cells, action)) @ by_cell_2 for action in range(NUM_ACTIONS)]
    ways_V = (np.stack(moved_ZA, axis=1) - np.arange(num_cells)[:, None]).reshape(-1)
    room_S = np.arange(num_streams) * num_cells
    start_S, goal_S = room_S + darkroom.start @ by_cell_2, room_S + goals_S2 @ by_cell_2

    for episode, bits_KS in enumerate(_episode_bits(streams, num_steps, num_episodes)):
        epsilon = max(1 - episode / (_EXPLORING_SHARE * num_episodes), _LAST_EPSILON)
        explores_KS, random_KS = _are_below(bits_KS, np.float64(epsilon)), _random_actions(bits_KS).astype(np.intp)
        cell_S, is_rewarded_S = start_S, np.zeros(num_streams, dtype=np.bool_)
        for step in range(num_steps):
            action_S = np.where(explores_KS[step], random_KS[step], greedy_C[cell_S])
            value_S = cell_S * NUM_ACTIONS + action_S
            next_S = cell_S + ways_V[value_S - room_S * NUM_ACTIONS]
            reward_S = next_S == goal_S
            target_S = reward_S + _DISCOUNT * best_C[next_S]
            rate_S = np.full(num_streams, _LEARNING_RATE)
            if darkroom.reward_once:  # the first reward is terminal for the learner
                reward_S &= ~is_rewarded_S
                target_S[reward_S], rate_S[is_rewarded_S] = 1, 0
                is_rewarded_S |= reward_S
            if episode in places:
                here_S2 = cells_Z2[cell_S - room_S]
                kept_SEK4[:, places[episode], step] = np.column_stack((here_S2, action_S, reward_S))
            values_V[value_S] += rate_S * (target_S - values_V[value_S])
            greedy_S = values_CA[cell_S].argmax(axis=1)
            greedy_C[cell_S], best_C[cell_S] = greedy_S, values_V[cell_S * NUM_ACTIONS + greedy_S]
            cell_S = next_S
    return kept_SEK4.reshape(num_streams, -1, 4)


def _episode_bits(streams: "list[np.random.PCG64]", num_steps: int, num_episodes: int) -> Iterator[Bits]:
    """Yield the bits of each episode. Shape (K, S)."""
    num_at_once = max(1, _NUMBERS_AT_ONCE // (len(streams) * num_steps))
    for first in range(0, num_episodes, num_at_once):
        count = min(num_at_once, num_episodes - first)
        bits_SPK = np.stack([stream.random_raw(count * num_steps) for stream in streams])
        yield from np.ascontiguousarray(bits_SPK.reshape(len(streams), count, num_steps).transpose(1, 2, 0))


def _are_below(bits: Bits, probability: npt.NDArray[np.float64] | np.float64) -> npt.NDArray[np.bool_]:
    """Whether the upper 32 bits of each number, as a fraction, are below `probability`."""
    return bits >> np.uint64(32) < np.uint64(2**32) * probability


def _random_actions(bits: Bits) -> Steps:
    """Return an action for each number, from its lowest 16 bits."""
    return ((bits & np.uint64(0xFFFF)) * np.uint64(NUM_ACTIONS) >> np.uint64(16)).astype(np.uint8)


def _by_step(values_SEK: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values_SEK.transpose(2, 0, 1))
