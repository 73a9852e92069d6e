"""Whole logs of programs, each with the points that someone expects who wrote both down and had not read the reader.

The logs have the formats of the named programs, or are what ordinary scripts print; texts and numbers are invented. A
series is found by its values, since the reader is free in the names. Of a point, the expectation names every step at
which a reasonable person would accept it; without any, only the order counts. `results` of the end may be read or not.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nbtools.metrics.readers.printed.log import LogMetrics

LOGS = sorted((Path(__file__).parent / "logs").glob("*.json"))
Points = list[tuple[float, float]]
Expected = Sequence[tuple[list[float], Any]]
UNREAD = {
    "darknet_yolov4_tiny": "the names of its losses stand behind their values, and nothing else counts",
    "deepspeed_chat_sft": "a bar without a label, of the loading, counts before the training does",
    "diffusion_steps_bar": "the norm of one drawing, the third, is that of the one before, and was measured again",
    "depth_anything": "the best values so far, 100.0 before the first evaluation, have the names of its table",
    "kohya_lora": "a bar that shows the same value again adds no point, although it was measured again",
    "kohya_sdxl_lora": "a bar that shows the same value again adds no point, although it was measured again",
    "lightning_bar": "a bar that shows the same value again adds no point, although it was measured again",
    "litgpt_finetune_lora": "each row repeats the last evaluation, and is drawn with it",
    "nemo2_pretrain": "the same",
    "mace_finetune": "the row of the model before the first epoch has no counter, and stands at epoch 1",
    "llm_c": "HellaSwag is not known as the name of a measure, and its line counts nothing",
    "logfmt_sft": "four losses of one step: the last one stays",
    "parlai_train": "its table is broken into several lines for each row, and is not read",
    "pytorch_seq2seq_tutorial": "its loss has no name",
    "rich_distillation": "rich has broken its lines: programs that are launched get a width of 200 characters",
    "speechbrain_transformer": "two test sets are told apart by nothing",
    "torchvision_detection": "a learning rate that stays is drawn at each of its steps",
    "wenet": "its Batch 0/99 is batch 99 of epoch 0",
}
"""What is known to be read otherwise, and why; each of these has to fail, so that the list stays true."""


def is_value(expected: Any, value: float) -> bool:
    """Whether a number is one that is expected, or a percentage of it, or one in thousands."""
    for want in map(float, expected["any"] if isinstance(expected, dict) else [expected]):
        if want == value or (math.isnan(want) and math.isnan(value)):
            return True
        if any(math.isclose(value, each, rel_tol=1e-6) for each in (want, 1000 * want)):
            return True
        if want and math.isclose(100 * value, want, rel_tol=1e-2):
            return True
    return False


def is_step(expected: list[float], step: float, *, has_bars: bool) -> bool:
    """Whether a step is one of those expected; the drawing of a bar with a value comes up to two steps before."""
    slack = max([2.0, *(0.015 * each for each in expected)]) if has_bars and max(expected, default=0) > 30 else 0
    return not expected or any(abs(step - each) <= slack for each in expected)


def left_over(expected: Expected, found: Points, *, has_bars: bool) -> tuple[int, Points]:
    """Return the number of expected points without one at a right step, and the points that are not expected."""
    rest, num_missing = list(found), 0
    for steps, value in expected:
        point = next((p for p in rest if is_value(value, p[1]) and is_step(steps, p[0], has_bars=has_bars)), None)
        if point is None:
            num_missing += 1
        else:
            rest.remove(point)
    return num_missing, rest


def unread(log: Path, series: Sequence[dict[str, Any]], results: Expected) -> list[str]:
    """Return the names of the expected series that are not read with every point at a right step."""
    history = LogMetrics(log).history
    found = {n: [*zip(history[n].steps.tolist(), history[n].values.tolist(), strict=True)] for n in history}
    found.pop("train/epoch", None)
    is_redrawn = b"\r" in log.read_bytes()
    has_bars = any(one["bar"] for one in series)
    wrong = []
    for one in series:
        others = [*results, *(point for other in series if other is not one for point in other["points"])]
        for points in found.values():
            num_missing, rest = left_over(one["points"], points, has_bars=has_bars)
            if not num_missing and (is_redrawn or not left_over_of_all(rest, others, has_bars=has_bars)):
                break
        else:
            wrong.append(one["name"])
    return wrong


def left_over_of_all(points: Points, others: Expected, *, has_bars: bool) -> Points:
    """Return the points that no other series expects either: several may share a curve, each at its step."""
    return [
        (step, value)
        for step, value in points
        if not any(is_value(v, value) and is_step(steps, step, has_bars=has_bars) for steps, v in others)
    ]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_point_that_someone_expects_is_at_its_step(path: Path) -> None:
    expected = json.loads(path.read_text())
    wrong = unread(path.with_suffix(".log"), expected["series"], expected["results"])
    if path.stem in UNREAD:
        assert wrong, f"{path.stem} is read now: take it off the list"
    else:
        assert wrong == []


def test_nearly_all_logs_are_read_whole() -> None:
    assert len(LOGS) > 90
    assert len(UNREAD) <= len(LOGS) / 6


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_no_number_that_is_none_of_a_training_becomes_a_curve(path: Path) -> None:
    """Besides the best value so far, which has a curve of its own."""
    names = set(LogMetrics(path.with_suffix(".log")).history)
    plain = {name.partition("/")[2] for name in names if "/best_" not in name}
    never = {"_".join(str(name).lower().split()) for name in json.loads(path.read_text())["never"]}
    assert not plain & never
