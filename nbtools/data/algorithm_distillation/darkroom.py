"""The darkroom: a square room in which an agent sees only where it stands, and has to find out where the goal is.

Every episode begins in the middle and takes `horizon` steps. An action moves one cell right, left, down or up, or
stays; walls stop it. Whoever stands on the goal after a step is rewarded with 1, every time or (Darkroom-Hard) once an
episode. Nothing says where the goal is, and it stays where it is for all episodes of a history (Laskin et al. 2022,
arXiv 2210.14215).

Positions are pairs of column and row, counted from 0. Shape suffixes: S agents, G goals, A actions, 2 column and row.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from nbtools.recipes import AlgorithmDistillationConfig

Integers = npt.NDArray[np.integer[Any]]

RIGHT, LEFT, DOWN, UP, STAY = range(5)
MOVES_A2: Integers = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], dtype=np.int8)
"""What each action adds to column and row."""
NUM_ACTIONS = len(MOVES_A2)
_SPLIT_SEED = 0
"""Of the division into goals to train and to evaluate on, which is the same whatever the training's seed."""


@dataclass(frozen=True)
class Darkroom:
    """The rules of one room; where the agents stand and where their goals are is the caller's to keep."""

    size: int
    """Columns, and as many rows."""
    horizon: int
    """Steps of an episode."""
    reward_once: bool = False
    """Whether only the first step of an episode that ends on the goal is rewarded."""

    @classmethod
    def of(cls, config: "AlgorithmDistillationConfig") -> "Darkroom":
        """The room that a config describes."""
        return cls(config.grid_size, config.horizon, config.reward_once)

    @property
    def num_cells(self) -> int:
        """Cells, all of which can be goals."""
        return self.size**2

    @property
    def start(self) -> tuple[int, int]:
        """Column and row where every episode begins: the middle."""
        return self.size // 2, self.size // 2

    def moved(self, positions_S2: Integers, actions_S: Integers) -> Integers:
        """Return where the agents stand after an action of each. Shape (S, 2)."""
        moved_S2: Integers = np.clip(positions_S2.astype(np.int64) + MOVES_A2[actions_S], 0, self.size - 1)
        return moved_S2

    def distances(self, goals_G2: Integers) -> Integers:
        """Return how many steps from the start each goal is. Shape (G,)."""
        distances_G: Integers = np.abs(goals_G2.astype(np.int64) - self.start).sum(axis=1)
        return distances_G

    def best_returns(self, goals_G2: Integers) -> Integers:
        """Return the most that an episode can bring: go straight to the goal and stay. Shape (G,)."""
        first_step_G = np.maximum(self.distances(goals_G2), 1)  # a goal at the start is reached by staying
        steps_left_G: Integers = np.maximum(self.horizon + 1 - first_step_G, 0)
        return np.minimum(steps_left_G, 1) if self.reward_once else steps_left_G

    def goals(self, config: "AlgorithmDistillationConfig") -> tuple[Integers, Integers]:
        """Divide all cells into goals to train on and goals that no history is made for.

        The second are those that the config names, or else `config.num_test_goals` of them, drawn always alike.

        Returns:
            Two arrays of shape (G, 2).
        """
        cells_G2 = np.stack(np.divmod(np.arange(self.num_cells), self.size), axis=1)
        named = config.named_goals
        if named is not None:
            test_G2 = np.array(named, dtype=np.int64).reshape(-1, 2)
            is_named_G = np.zeros(self.num_cells, dtype=np.bool_)
            is_named_G[test_G2[:, 0] * self.size + test_G2[:, 1]] = True
            return cells_G2[~is_named_G], test_G2
        keys_G = np.random.PCG64(_SPLIT_SEED).random_raw(self.num_cells)  # bits are the same in every version of NumPy
        shuffled_G2 = cells_G2[np.argsort(keys_G, kind="stable")]
        num_train = self.num_cells - config.num_test_goals
        return shuffled_G2[:num_train], shuffled_G2[num_train:]
