"""Curves of programs that resumed one another: none of the parent's rows is lost, and none is drawn twice."""

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


def test_a_count_that_continues_replaces_the_rows_after_the_resume() -> None:
    joined, shift = joined_runs([(rows(1, 2, 3, 4), 2), (rows(3, 4, 5, start=10.0), MAX_STEP)])
    assert points(joined) == [(1, 1.0), (2, 2.0), (3, 13.0), (4, 14.0), (5, 15.0)]
    assert shift == 0


def test_a_count_that_begins_again_is_drawn_behind_the_parent() -> None:
    parts = [(rows(1, 2, 3, 4), 3), (rows(1, 2, 3, start=10.0), 5), (rows(1, 2, start=20.0), MAX_STEP)]
    joined, shift = joined_runs(parts[:2])
    assert points(joined) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 11.0), (5, 12.0), (6, 13.0)]
    assert shift == 3
    joined, shift = joined_runs(parts)
    assert points(joined)[3:] == [(4, 11.0), (5, 12.0), (6, 21.0), (7, 22.0)]
    assert shift == 5


def test_a_file_with_the_rows_of_the_parent_is_no_new_count() -> None:
    """As trainer_state.json, which has all rows since the first run; a constant learning rate says nothing."""
    parent = rows(5, 10, 15, 20, **{"eval/loss": 3.0})
    child = rows(5, 10, 15, 20, 25)
    joined, shift = joined_runs([(parent, 15), (child, MAX_STEP)])
    assert ([step for step, _ in points(joined)], shift) == ([5, 10, 15, 20, 25], 0)
    assert [step for step, _ in points(joined, "eval/loss")] == [5, 10, 15]
    anew = rows(5, 10, start=10.0, **{"train/lr": 0.1})
    assert joined_runs([(rows(5, 10, **{"train/lr": 0.1}), 10), (anew, MAX_STEP)])[1] == 10


def test_the_first_row_of_a_resumed_run_replaces_that_of_its_parent_at_the_same_step() -> None:
    joined, shift = joined_runs([(rows(0, 2, 4, 6), 4), (rows(4, 6, start=10.0), MAX_STEP)])
    assert (points(joined), shift) == ([(0, 0.0), (2, 2.0), (4, 14.0), (6, 16.0)], 0)


def test_the_own_rows_of_a_fork_replace_its_parents_before_an_estimated_resume() -> None:
    parent = rows(10, 20, 30, 40, 50)
    for until in (25, 30, 45):  # the checkpoint is of step 20
        joined, shift = joined_runs([(parent, until), (rows(30, 40, 50, start=0.5), MAX_STEP)])
        assert (points(joined), shift) == ([(10, 10.0), (20, 20.0), (30, 30.5), (40, 40.5), (50, 50.5)], 0)


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


def test_an_unknown_step_keeps_the_rows_before_the_first_of_the_child() -> None:
    joined, shift = joined_runs([(rows(1, 2, 3, 4), MAX_STEP), (rows(4, 5, start=10.0), MAX_STEP)])
    assert (points(joined), shift) == ([(1, 1.0), (2, 2.0), (3, 3.0), (4, 14.0), (5, 15.0)], 0)
    joined, shift = joined_runs([(rows(1, 2), MAX_STEP), (rows(1, 2, start=10.0), MAX_STEP)])
    assert (points(joined), shift) == ([(1, 1.0), (2, 2.0), (3, 11.0), (4, 12.0)], 2)


def test_a_parent_without_rows_changes_nothing() -> None:
    joined, shift = joined_runs([(History(), 2), (rows(1, 2), MAX_STEP)])
    assert (points(joined), shift) == ([(1, 1.0), (2, 2.0)], 0)
    joined, _ = joined_runs([(rows(1, 2, 3), 2), (History(), MAX_STEP)])
    assert [step for step, _ in points(joined)] == [1, 2, 3], "the child has no row yet"


def test_a_resume_from_a_checkpoint_of_an_earlier_run_leaves_out_the_runs_between() -> None:
    first, second = rows(0, 2, 4, 6), rows(0, 2, 4, start=10.0)
    for at in (3, 6):  # the second run resumed at 6, too
        joined, shift = joined_runs([(first, 6), (second, at), (rows(0, 2, start=20.0), MAX_STEP)])
        assert points(joined) == [*((step, float(step)) for step in range(0, at, 2)), (at, 20.0), (at + 2, 22.0)]
        assert shift == at
