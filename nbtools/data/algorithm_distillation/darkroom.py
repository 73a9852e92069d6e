"""The Darkroom environment: a square grid whose agent observes its own position and not the goal.

Every episode starts in the middle and takes `horizon` steps. An action moves one cell right, left, down or up, or
stays; walls stop it. A step that ends on the goal gives a reward of 1, every time or (Darkroom-Hard) once per episode.
The goal is not observed and stays the same for all episodes of a history (Laskin et al. 2022, arXiv 2210.14215).

Positions are pairs of column and row, counted from 0. Shape suffixes: S agents, G goals, A actions, 2 column and row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.integer[Any]]

RIGHT, LEFT, DOWN, UP, STAY = range(5)
MOVES_A2: Integers = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], dtype=np.int8)
"""Change of column and row by each action."""
NUM_ACTIONS = len(MOVES_A2)
NUM_REWARDS = 2
_SPLIT_SEED = 0
"""Seed of the split into training and test goals; independent of the training's seed."""


@dataclass(frozen=True)
class Darkroom:
    """The dynamics and rewards of one grid; the caller holds the positions of agents and goals."""

    size: int
    """Number of columns, and of rows."""
    horizon: int
    """Steps per episode."""
    reward_once: bool = False
    """Whether only the first step of an episode that ends on the goal is rewarded."""

    @property
    def num_cells(self) -> int:
        """Number of cells; each can be a goal."""
        return self.size**2

    @property
    def start(self) -> tuple[int, int]:
        """Column and row where every episode starts: the middle."""
        return self.size // 2, self.size // 2

    def moved(self, positions_S2: Integers, actions_S: Integers) -> Integers:
        """Return the positions after one action per agent. Shape (S, 2)."""
        moved_S2: Integers = np.clip(positions_S2.astype(np.int64) + MOVES_A2[actions_S], 0, self.size - 1)
        return moved_S2

    def best_returns(self, goals_G2: Integers) -> Integers:
        """Return the highest return of an episode: go straight to the goal and stay there. Shape (G,)."""
        distances_G = np.abs(goals_G2.astype(np.int64) - self.start).sum(axis=1)
        first_step_G = np.maximum(distances_G, 1)  # a goal at the start is reached by staying
        steps_left_G: Integers = np.maximum(self.horizon + 1 - first_step_G, 0)
        return np.minimum(steps_left_G, 1) if self.reward_once else steps_left_G

    def split_goals(self, test_goals: int | Sequence[tuple[int, int]]) -> tuple[Integers, Integers]:
        """Split all cells into training goals and test goals.

        Args:
            test_goals: the test goals, or how many to draw; the draw is deterministic.

        Returns:
            Two arrays of shape (G, 2).
        """
        cells_G2 = np.stack(np.divmod(np.arange(self.num_cells), self.size), axis=1)
        if not isinstance(test_goals, int):
            test_G2 = np.array(test_goals, dtype=np.int64).reshape(-1, 2)
            is_test = (cells_G2[:, None] == test_G2).all(axis=2).any(axis=1)
            return cells_G2[~is_test], test_G2
        keys_G = np.random.PCG64(_SPLIT_SEED).random_raw(self.num_cells)  # bits are the same in every version of NumPy
        shuffled_G2 = cells_G2[np.argsort(keys_G, kind="stable")]
        num_train = self.num_cells - test_goals
        return shuffled_G2[:num_train], shuffled_G2[num_train:]
