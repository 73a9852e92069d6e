"""Curves of programs that resumed one another: none of the parent's rows is lost, and none is drawn twice."""

import pytest

from nbtools.metrics.history import History
from nbtools.metrics.joined_runs import joined_runs
from nbtools.rundir.json_files import MAX_STEP


def rows(*steps: int, start: float = 0.0, **more: float) -> History:
    """A history with a loss per step that differs from run to run by its `start`."""
    history = History()
    history.add("train/loss", steps, [start + step for step in steps], [start] * len(steps))
    for name, value in more.items():
        history.add(name, steps, [value] * len(steps), [start] * len(steps))
    return history


def points(history: History, name: str = "train/loss") -> list[tuple[int, float]]:
    series = history[name]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("runs", "points_of_all", "shift_of_last"),
    [
        ([((1, 2, 3, 4), 2), ((3, 4, 5), 9)], {1: 1, 2: 2, 3: 13, 4: 14, 5: 15}, 0),
        ([((0, 2, 4, 6), 4), ((4, 6), 9)], {0: 0, 2: 2, 4: 14, 6: 16}, 0),
        ([((1, 2, 3, 4), 3), ((1, 2, 3), 9)], {1: 1, 2: 2, 3: 3, 4: 11, 5: 12, 6: 13}, 3),
        ([((1, 2, 3, 4), 3), ((1, 2, 3), 5), ((1, 2), 9)], {1: 1, 2: 2, 3: 3, 4: 11, 5: 12, 6: 21, 7: 22}, 5),
        ([((1, 2, 3, 4), MAX_STEP), ((4, 5), 9)], {1: 1, 2: 2, 3: 3, 4: 14, 5: 15}, 0),
        ([((1, 2), MAX_STEP), ((1, 2), 9)], {1: 1, 2: 2, 3: 11, 4: 12}, 2),
        ([((), 2), ((1, 2), 9)], {1: 11, 2: 12}, 0),
        ([((10, 20, 30, 40, 50), 25), ((30, 40, 50), 99)], {10: 10, 20: 20, 30: 40, 40: 50, 50: 60}, 0),
        ([((10, 20, 30, 40, 50), 45), ((30, 40, 50), 99)], {10: 10, 20: 20, 30: 40, 40: 50, 50: 60}, 0),
    ],
    ids=[
        *("the count continues", "the first row is at the step of the resume", "the count begins again"),
        *("it begins again twice", "an unknown step", "an unknown step and a new count", "a parent without rows"),
        *("a fork from an estimated step", "a fork from an estimated step behind it"),
    ],
)
def test_a_runs_own_rows_follow_or_replace_its_parents(
    runs: list[tuple[tuple[int, ...], int]], points_of_all: dict[int, float], shift_of_last: int
) -> None:
    """The values of a run are its steps, and 10 more than those of the run before."""
    joined, shift = joined_runs([(rows(*steps, start=10.0 * i), until) for i, (steps, until) in enumerate(runs)])
    assert (dict(points(joined)), shift) == (points_of_all, shift_of_last)


def test_a_file_with_the_rows_of_the_parent_is_no_new_count() -> None:
    """As trainer_state.json, which has all rows since the first run; a constant learning rate says nothing."""
    parent = rows(5, 10, 15, 20, **{"eval/loss": 3.0})
    child = rows(5, 10, 15, 20, 25)
    joined, shift = joined_runs([(parent, 15), (child, MAX_STEP)])
    assert ([step for step, _ in points(joined)], shift) == ([5, 10, 15, 20, 25], 0)
    assert [step for step, _ in points(joined, "eval/loss")] == [5, 10, 15]
    anew = rows(5, 10, start=10.0, **{"train/lr": 0.1})
    assert joined_runs([(rows(5, 10, **{"train/lr": 0.1}), 10), (anew, MAX_STEP)])[1] == 10


def test_curves_of_another_unit_are_joined_by_their_own_count() -> None:
    def both(steps: range, epochs: range, start: float) -> History:
        history = rows(*steps, start=start)
        history.add("eval/loss", epochs, [start + each for each in epochs], [start] * len(epochs), unit="epoch")
        return history

    parent, child = both(range(10, 60, 10), range(1, 6), 0.0), both(range(40, 80, 10), range(4, 8), 0.5)
    joined, _ = joined_runs([(parent, 30), (child, MAX_STEP)])
    assert [step for step, _ in points(joined)] == [*range(10, 80, 10)]
    assert points(joined, "eval/loss") == [(1, 1), (2, 2), (3, 3), (4, 4.5), (5, 5.5), (6, 6.5), (7, 7.5)]
    assert (joined["train/loss"].unit, joined["eval/loss"].unit) == ("step", "epoch")


def test_a_run_without_rows_yet_shows_its_parents_up_to_the_resume() -> None:
    joined, _ = joined_runs([(rows(1, 2, 3), 2), (History(), MAX_STEP)])
    assert [step for step, _ in points(joined)] == [1, 2, 3], "the child has no row yet"


def test_a_resume_from_a_checkpoint_of_an_earlier_run_leaves_out_the_runs_between() -> None:
    first, second = rows(0, 2, 4, 6), rows(0, 2, 4, start=10.0)
    for at in (3, 6):  # the second run resumed at 6, too
        joined, shift = joined_runs([(first, 6), (second, at), (rows(0, 2, start=20.0), MAX_STEP)])
        assert points(joined) == [*((step, float(step)) for step in range(0, at, 2)), (at, 20.0), (at + 2, 22.0)]
        assert shift == at
