"""A user's choice from a printed line: the counter is proposed, a name is taken from the line, matches are counted."""

import pytest

from nbtools.metrics.printed.choice import counters_in, find, metric_at, names_in
from nbtools.metrics.printed.pattern import Pattern

LINES = [f"turn {5 * turn} of the wheel: {3 / (1 + turn) + 0.5:.4f} in {10 + turn % 3}" for turn in range(60)]


def test_a_number_that_rises_from_line_to_line_is_proposed_as_the_step() -> None:
    assert counters_in(LINES[-1], LINES) == {0: "step"}
    assert counters_in(LINES[-1], [*LINES[:2]]) == {}, "two lines are too few to tell"
    assert counters_in("left 9 right 0.5", [f"left {9 - i} right 0.5" for i in range(9)]) == {}
    assert counters_in("epoch 3 iter 20 | 0.5", []) == {0: "epoch", 1: "step"}, "by their names"


def test_a_pattern_of_a_click_keeps_the_total_of_its_counter_and_no_padding() -> None:
    line = "epoch 3 [ 20/400 ( 5%)] loss 0.5"
    text = "epoch {epoch} [ {step}/{total_step} ({_}%)] loss {train/loss}"
    assert Pattern.of(line, names_in(line, ())).text == text
    assert [*find(Pattern(text), [line]).curves] == ["train/loss"]


@pytest.mark.parametrize(
    ("line", "index", "name"),
    [
        ("it 5 | loss 2.31", 1, "train/loss"),
        ("5 7 0.25", 2, "value"),
        ("validation after 5: val_acc 0.25", 1, "eval/accuracy"),
    ],
)
def test_a_metric_is_named_by_the_words_before_its_number(line: str, index: int, name: str) -> None:
    assert metric_at(line, index) == name


def test_names_of_a_line_are_those_of_the_first_pattern_that_matches() -> None:
    patterns = [Pattern("other {step}: {train/loss}"), Pattern("turn {step} of the wheel: {train/loss} in {_}")]
    assert names_in(LINES[0], patterns) == {0: "step", 1: "train/loss"}
    assert names_in("nothing at all", patterns) == {}


@pytest.mark.promise("any-script")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("turn {step} of the wheel: {train/loss} in {_}", "60 of the last 61 lines match. step counts from 0 to 295."),
        ("turn {_} of the wheel: {train/loss} in {_}", "60 of the last 61 lines match. No number counts: "),
        ("turn {step} of {_}", "60 of the last 61 lines match. No number is a metric: "),
        ("spin {step} of {_}", "No line of the last 61 lines matches: nothing is drawn until one does."),
    ],
)
def test_a_pattern_says_how_many_lines_it_matches_and_what_counts(text: str, said: str) -> None:
    assert str(find(Pattern(text), [*LINES, "batch 7"])).startswith(said)


def test_a_pattern_that_matches_every_line_and_a_counter_that_falls_are_said() -> None:
    found = str(find(Pattern("at {step}: {train/loss}"), [f"at {i % 5}: 0.5" for i in range(10)]))
    assert found.startswith("Every line of the last 10 lines matches: ")
    assert found.endswith("step counts from 0 to 4; where it falls, it starts over.")
