"""Shapes of printed lines."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.metrics.printed.shapes import folded, numbers_in, shape_of


@pytest.mark.parametrize(
    "line",
    [
        "step 5: loss 0.5",
        "\x1b[31mstep 5:\x1b[0m  loss 0.5 \t",
        "2026-01-02 10:00:00,123 - root - INFO - step 5: loss 0.5",
        "[titan] 2026-01-02 10:00:00,123 - root - INFO - step 5: loss 0.5",
        "[2026-01-02 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step 5: loss 0.5",
        "[2026-01-02 10:00:00,123][__main__][INFO] - step 5: loss 0.5",
        "INFO:root:step 5: loss 0.5",
        "2026-01-02 10:00:00.123 | INFO     | __main__:train:45 - step 5: loss 0.5",
        "I0102 10:00:00.123456 139712 train.py:123] step 5: loss 0.5",
        "[10:00:00] INFO     step 5: loss 0.5",
        "[rank0]:step 5: loss 0.5",
        "[default0]:[10:00:00] step 5: loss 0.5",
        "[1,0]<stdout>:step 5: loss 0.5",
        "(RayTrainWorker pid=123, ip=10.0.0.1) step 5: loss 0.5",
        "Jan 02 10:00:00 INFO: step 5: loss 0.5",
        "2026-01-02 step 5: loss 0.5",
    ],
)
def test_colours_and_prefixes_of_loggers_are_folded(line: str) -> None:
    assert folded(line) == "step 5: loss 0.5"
    assert shape_of(folded(line)) == "step #: loss #"


@pytest.mark.parametrize(
    "line", ["- loss: 0.5", "| 3 | 0.5 |", "> test 3", "10 0.5", "train 5", "[1/10] loss 3", "-0.5 1", "loss: 1", "1"]
)
def test_a_line_without_a_prefix_stays(line: str) -> None:
    assert folded(line) == line


@pytest.mark.parametrize(
    ("line", "shape", "numbers"),
    [
        ("iter 1,024: loss -0.5, nan 2e-05", "iter #: loss #, # #", [1024, -0.5, float("nan"), 2e-05]),
        ("acc1: 0.5 Acc@5 0.7 v2=3", "acc1: # Acc@# # v2=#", [0.5, 5, 0.7, 3]),
        (" 12%|█▏    | 120/1000 [00:10<01:14, 11.9it/s]", "#%# #/# [#<#, #it/s]", [12, 120, 1000, 11.9]),
        ("step10 1-2 .5 1. 3...", "step# #-# # # #...", [10, 1, 2, 0.5, 1, 3]),
        ("5/5 [=====>....] - 1:02:03", "#/# # - #", [5, 5]),
    ],
)
def test_numbers_of_a_line_are_found(line: str, shape: str, numbers: list[float]) -> None:
    line = folded(line)
    assert shape_of(line) == shape
    assert [value for _, _, value in numbers_in(line)] == pytest.approx(numbers, nan_ok=True)


@given(st.text(max_size=200))
def test_folding_is_stable_and_numbers_lie_in_the_line(text: str) -> None:
    line = folded(text)
    assert "\x1b[" not in line
    assert all(0 <= start < end <= len(line) for start, end, _ in numbers_in(line))
    assert isinstance(shape_of(line), str)


@pytest.mark.parametrize(
    "text", ["1", "1,", "[", "1:", "[1", "a", "INFO:", "-", "=", "|", "━", "1.", "é1", "2026-01-02 "]
)
def test_hostile_lines_take_linear_time(text: str) -> None:
    line = text * (200_000 // len(text))
    began = time.process_time()
    numbers_in(folded(line))
    shape_of(folded(line))
    assert time.process_time() - began < 5
