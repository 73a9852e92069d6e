"""Patterns of printed lines."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.errors import ConfigError
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import folded, numbers_in


def test_pattern_reads_the_named_numbers_of_a_line() -> None:
    pattern = Pattern("iter {step}: loss {train/loss}, time {_}ms")
    assert pattern.names == ("step", "train/loss")
    assert pattern.values("iter 100: loss 3.25e-01, time 145.23ms") == {"step": 100.0, "train/loss": 0.325}
    assert pattern.values("iter 100: loss nan, time fast ms") == pytest.approx(
        {"step": 100, "train/loss": float("nan")}, nan_ok=True
    )


@pytest.mark.parametrize(
    "line",
    ["iter 100: loss 3.2", "iter 100: loss 3.2, time 5ms!", "an iter 1: loss 3, time 5ms", "iter x: loss 1, time 1ms"],
)
def test_pattern_matches_whole_lines_only(line: str) -> None:
    assert Pattern("iter {step}: loss {train/loss}, time {_}ms").values(line) is None


@pytest.mark.parametrize(
    ("text", "line", "values"),
    [
        ("loss: {a} acc: {b}", "loss:10.5 acc:  7", [10.5, 7]),
        ("loss:{a} acc:{b}%", "loss: 0.5 acc: 93.10 %", [0.5, 93.1]),
        ("  tokens\t{a}", "tokens 1,024", [1024]),
        ("Epoch {a}. loss {b}", "Epoch 3. loss -.5", [3, -0.5]),
        ("[{a} {b}] x", "[1. 2.5] x", [1, 2.5]),
        ("{{{a}}}: {b}", "{3}: 4", [3, 4]),
        ("{_} loss {a}", "bad loss of loss 0.5", [0.5]),
        ("{_}loss {a} {_}", "loss loss 3 and more", [3]),
        ("{a}/{b} ({_}%)", "3/10 (30%)", [3, 10]),
    ],
)
def test_pattern_takes_padding_and_printed_forms_of_numbers(text: str, line: str, values: list[float]) -> None:
    found = Pattern(text).values(folded(line))
    assert found is not None
    assert list(found.values()) == values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("loss {x", "without its partner"),
        ("loss x}", "without its partner"),
        ("loss {x:.4f}", "is no name"),
        ("loss {}", "is no name"),
        ("loss {x}{_}", "need text between"),
        ("loss {x} acc {x}", "there twice"),
        ("{x}", "no text beside"),
        ("loss {_}", "no number has a name"),
        ("loss 3", "no number has a name"),
        ("a\nloss {x}", "one line"),
        ("a" * 3000 + "{x}", "at most 2000"),
    ],
)
def test_bad_pattern_is_an_error_with_the_next_step(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        Pattern(text)
    assert "iter {step}: loss {train/loss}" in str(error.value)


def test_pattern_of_a_line_keeps_chosen_numbers_and_any_text_for_the_others() -> None:
    line = folded("2026-01-02 10:00:00,123 - INFO - [3/10] {loss=0.5} top1: 71.5 2s")
    pattern = Pattern.of(line, {0: "step", 2: "train/loss", 3: "eval/top1"})
    assert pattern.text == "[{step}/{_}] {{loss={train/loss}}} top1: {eval/top1} {_}s"
    assert pattern.values("[4/11] {loss=nan} top1: 72 10s") is not None
    with pytest.raises(ConfigError, match="choose from 0 to 4"):
        Pattern.of(line, {5: "loss"})


@given(st.text("ab .,:|[]{}()-+e=%/0123456789", max_size=60), st.data())
def test_pattern_of_a_line_reads_the_chosen_numbers_of_that_line(text: str, data: st.DataObject) -> None:
    line = folded(text)
    numbers = numbers_in(line)
    chosen = data.draw(st.sets(st.sampled_from(range(len(numbers))))) if numbers else set()
    try:
        pattern = Pattern.of(line, {i: f"n{i}" for i in chosen})
    except ConfigError:
        return
    assert pattern.values(line) == {f"n{i}": numbers[i][2] for i in sorted(chosen)}


@pytest.mark.parametrize("text", ["{_}a{_}b{x}c{_}d", "{_} {x} {_} {y} z", "a{_}1{x}b", "{_}.{x}.{_}!"])
@pytest.mark.parametrize("line", ["a" * 200_000, "1" * 200_000, "ab1c" * 50_000, "1 " * 100_000, "a1.1e1," * 30_000])
def test_hostile_lines_take_linear_time(text: str, line: str) -> None:
    began = time.process_time()
    Pattern(text).values(line)
    assert time.process_time() - began < 5
