"""The room: its rules and its goals."""

from itertools import product

import numpy as np
import pytest

from nbtools.data.algorithm_distillation.darkroom import DOWN, LEFT, RIGHT, STAY, UP, Darkroom
from nbtools.recipes import AlgorithmDistillationConfig


@pytest.mark.parametrize(
    ("before", "action", "after"),
    [
        ((1, 1), RIGHT, (2, 1)),
        ((1, 1), LEFT, (0, 1)),
        ((1, 1), DOWN, (1, 2)),
        ((1, 1), UP, (1, 0)),
        ((1, 1), STAY, (1, 1)),
        ((2, 1), RIGHT, (2, 1)),
        ((0, 1), LEFT, (0, 1)),
        ((1, 2), DOWN, (1, 2)),
        ((1, 0), UP, (1, 0)),
    ],
)
def test_an_action_moves_one_cell_and_walls_stop_it(
    before: tuple[int, int], action: int, after: tuple[int, int]
) -> None:
    moved_S2 = Darkroom(3, 20).moved(np.array([before], dtype=np.uint8), np.array([action], dtype=np.uint8))
    assert moved_S2.tolist() == [list(after)]


@pytest.mark.parametrize("seed", [0, 1])
def test_all_cells_are_goals_and_a_tenth_of_them_is_held_out_always_the_same(seed: int) -> None:
    config = AlgorithmDistillationConfig(seed=seed)
    train, test = (goals_G2.tolist() for goals_G2 in config.split_goals())
    assert (len(train), len(test), config.num_test_goals) == (73, 8, 8)
    assert sorted(train + test) == [[column, row] for column, row in product(range(9), range(9))]
    assert test[:3] == [[4, 2], [1, 0], [7, 4]], "another division would leak goals of older runs"


@pytest.mark.parametrize(("size", "share", "counts"), [(2, 0.1, (3, 1)), (2, 0.99, (1, 3)), (17, 0.1, (260, 29))])
def test_there_is_always_a_goal_to_train_and_one_to_evaluate_on(
    size: int, share: float, counts: tuple[int, int]
) -> None:
    config = AlgorithmDistillationConfig(grid_size=size, test_share=share)
    train_G2, test_G2 = config.split_goals()
    assert (len(train_G2), len(test_G2)) == counts


def test_named_goals_are_held_out_in_their_order_and_all_others_trained_on() -> None:
    config = AlgorithmDistillationConfig(test_goals=("7:2", "0:0"))
    train_G2, test_G2 = config.split_goals()
    assert test_G2.tolist() == [[7, 2], [0, 0]]
    assert len(train_G2) == 79
    assert not {(7, 2), (0, 0)} & {tuple(goal) for goal in train_G2.tolist()}


@pytest.mark.parametrize("reward_once", [False, True])
@pytest.mark.parametrize(("size", "horizon"), [(2, 3), (3, 2), (4, 9), (5, 4)])
def test_the_best_return_is_what_the_best_of_all_ways_brings(size: int, horizon: int, reward_once: bool) -> None:
    room = Darkroom(size, horizon, reward_once)
    cells = list(product(range(size), range(size)))
    ways = {cell: {tuple(room.moved(np.array([cell]), np.array([a]))[0].tolist()) for a in range(5)} for cell in cells}
    for goal in cells:
        # By dynamic programming from the end: the most that can still be earned in each cell, if nothing was yet.
        most = dict.fromkeys(cells, 0)
        for _ in range(horizon):
            most = {
                cell: max((1 if reward_once else 1 + most[to]) if to == goal else most[to] for to in ways[cell])
                for cell in cells
            }
        assert room.best_returns(np.array([goal])).tolist() == [most[room.start]], goal
