"""Whole logs of programs, each with the points that someone expects who wrote both down and had not read the reader.

The logs have the formats of the named programs, or are what ordinary scripts print; texts and numbers are invented. A
series is found by its values, since the reader is free in the names. Of a point, the expectation names every step at
which a reasonable person would accept it; without any, only the order counts.
"""

import json
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from nbtools.errors import ConfigError
from nbtools.metrics.printed.grammars import COUNTERS
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import folded, numbers_in, shape_of

LOGS: Final = {path.stem: path for path in sorted((Path(__file__).parent / "logs").glob("*.json"))}
Point = tuple[list[float], Any]
Found = list[tuple[float, float]]

KNOWN: Final = """
axolotl_lora hf_run_glue hf_trainer hf_trainer_2 hf_trainer_ddp hf_trainer_lora whisper_seq2seq_trainer
trl_dpo_transformers5 trl_grpo llamafactory_running_log ms_swift_lora lightning_bar lightning_ddp
lightning_early_stopping lightning_tqdm_file keras_torch accelerate_clm_no_trainer accelerate_notebook_nlp
diffusers_basic_training diffusers_lora diffusers_lora_checkpoints diffusers_text_to_image_lora torchvision_detection
detr mae mae_finetune mae_finetune_2 timm timm_ema timm_train timm_train_2 timm_train_2b detectron2
detectron2_faster_rcnn detectron2_mask detectron2_train mmdet mmdetection2 mmengine_ddp mmseg_best_checkpoint mmseg_iter
fairseq fairseq_iwslt fairseq_translation nanogpt nanogpt_2 nanogpt_ddp ultralytics_v8 ultralytics_yolo
ultralytics_yolov8 yolov5 yolov5_bars sb3_ppo sb3_ppo_2 sb3_ppo_2b xgboost_evals xgboost_native lightgbm lightgbm_2
lightgbm_cv lightgbm_log_evaluation catboost catboost_binary catboost_multiclass deepspeed_chat_sft megatron_gpt
megatron_gpt_2 megatron_gpt_2b megatron_lm megatron_lm_2 megatron_moe nemo2_pretrain torchtune_full
torchtune_lora_stdout torchtitan_8b torchtitan_llama torchtitan_llama3 torchtitan_llama_2 composer_llmfoundry skorch
tabnet spacy_three_pipes spacy_train_ner_tagger verl_grpo verl_grpo_2 verl_ppo_gsm8k nnunet nnunet_2 nnunetv2
nnunetv2_2 nnunetv2_ddp nnunetv2_ddp_2 nnunetv2_two_classes fastai_fine_tune flair_ner imagenet imagenet_2 imagenet_dp
wlm word_language_model
""".split()  # noqa: SIM905
"""Logs of known trainers and libraries: the list was made before the reader."""
OTHERS: Final = [name for name in LOGS if name not in KNOWN]
UNREAD: Final[dict[str, str]] = {
    "deepspeed_chat_sft": "the perplexity before the training stands at its first step",
    "detectron2_mask": "its two tables of boxes and masks have the same columns and the same step: none is drawn",
    "diffusers_text_to_image_lora": "a learning rate that is printed once is no curve",
    "fairseq": "the summary of an epoch has the curve of the steps, at the same steps",
    "fastai_fine_tune": "the table of the frozen epoch counts from 0, and so does the next one",
    "flair_ner": "the lines of the development set stand at the summary of the epoch",
    "keras_torch": "its first line has other units of time, and is another statement",
    "lightning_bar": "a bar that shows the same value again adds no point, although it was measured again",
    "lightning_early_stopping": "a mean of an epoch that is drawn twice is certain only with the next one",
    "megatron_gpt": "the test set has a curve of its own",
    "nemo2_pretrain": "validation losses of a bar are drawn again at later steps",
    "sb3_ppo_2": "a value that is 0 throughout is no curve",
    "sb3_ppo_2b": "the two rows of its evaluation's tables are not read",
    "torchtune_lora_stdout": "lines behind a bar and on their own are two statements",
    "ultralytics_yolo": "values that are 0 throughout are no curves",
    "verl_grpo": "its first evaluation, before the training, is another statement",
    "verl_grpo_2": "the same",
    "verl_ppo_gsm8k": "the same",
    "yolov5_bars": "a value without a fraction has another shape",
}
"""Known trainers of which something is read otherwise, and why; each has to fail, so that the list stays true."""


class Values:
    """Numbers, of which those are found that are an expected one, or a percentage of it, or one in thousands."""

    def __init__(self, values: Iterable[float]) -> None:
        self._ranked = sorted((_NAN if math.isnan(value) else value, i) for i, value in enumerate(values))

    def places(self, expected: Any) -> list[int]:
        """Return the places of those that fit, in their order."""
        found: set[int] = set()
        for want in map(float, expected["any"] if isinstance(expected, dict) else [expected]):
            want = _NAN if math.isnan(want) else want
            for centre, slack in ((want, 1e-6), (1000 * want, 1e-6), (want / 100, 1e-2)):
                low, high = sorted((centre * (1 - slack), centre / (1 - slack)))
                first = bisect_left(self._ranked, (low, -1))
                found.update(i for _, i in self._ranked[first : bisect_right(self._ranked, (high, math.inf))])
        return sorted(found)


_NAN: Final = 1e300
"""Stands for NaN, which has no order."""


def is_step(expected: list[float], step: float, *, has_bars: bool) -> bool:
    """Whether a step is one of those expected; the drawing of a bar with a value comes up to two steps before."""
    slack = max([2.0, *(0.015 * each for each in expected)]) if has_bars and max(expected, default=0) > 30 else 0
    return not expected or any(abs(step - each) <= slack for each in expected)


def left_over(expected: Sequence[Point], found: Found, *, has_bars: bool) -> tuple[int, Found]:
    """Return the number of expected points without one at a right step, and the points that are not expected."""
    values, rest, num_missing = Values(value for _, value in found), dict(enumerate(found)), 0
    for steps, value in expected:
        places = (i for i in values.places(value) if i in rest and is_step(steps, found[i][0], has_bars=has_bars))
        num_missing += rest.pop(next(places, -1), None) is None
    return num_missing, [*rest.values()]


def points_of(log: Path, patterns: Sequence[str] = ()) -> dict[str, Found]:
    history = LogMetrics(log, patterns=patterns).history
    return {n: [*zip(history[n].steps.tolist(), history[n].values.tolist(), strict=True)] for n in history}


def unread(log: Path, expected: dict[str, Any]) -> list[str]:
    """Return the names of the expected series that are not read with every point at a right step."""
    found, series = points_of(log), expected["series"]
    is_redrawn, has_bars = b"\r" in log.read_bytes(), any(one["bar"] for one in series)
    wrong = []
    for one in series:
        others = [*expected["results"], *(point for other in series if other is not one for point in other["points"])]
        for points in found.values():
            num_missing, rest = left_over(one["points"], points, has_bars=has_bars)
            values = Values(value for _, value in rest)
            known = {i for _, value in others for i in values.places(value)}
            if not num_missing and (is_redrawn or len(known) == len(rest)):
                break
        else:
            wrong.append(one["name"])
    return wrong


def num_read(expected: dict[str, Any], found: dict[str, Found]) -> tuple[int, int, int]:
    """Return the number of expected points, of those with their values in one curve, and with their steps, too."""
    total, values, placed = 0, 0, 0
    has_bars = any(one["bar"] for one in expected["series"])
    for one in expected["series"]:
        points = one["points"]
        total += len(points)
        at_steps = [left_over(points, each, has_bars=has_bars)[0] for each in found.values()]
        anywhere = [
            left_over([([], value) for _, value in points], each, has_bars=has_bars)[0] for each in found.values()
        ]
        values += len(points) - min(anywhere, default=len(points))
        placed += len(points) - min(at_steps, default=len(points))
    return total, values, placed


def clicked(log: Path, expected: dict[str, Any], found: dict[str, Found], most: int = 3) -> list[str]:
    """Return the patterns of a user who names the unread values of up to three lines, and what counts in each."""
    has_bars = any(one["bar"] for one in expected["series"])
    missing = [
        one
        for one in expected["series"]
        if not any(not left_over(one["points"], each, has_bars=has_bars)[0] for each in found.values())
    ]
    shapes: dict[str, list[str]] = {}
    for line in log.read_text(errors="replace").replace("\r", "\n").split("\n"):
        shapes.setdefault(shape_of(text := folded(line)), []).append(text)
    patterns: list[str] = []
    while missing and len(patterns) < most:
        choices = [choice for lines in shapes.values() if (choice := _choice(lines, missing))]
        if not choices:
            break
        named, pattern = max(choices, key=lambda choice: len(choice[0]))
        patterns.append(pattern)
        missing = [one for one in missing if one["name"] not in named]
    return patterns


def _choice(lines: list[str], missing: list[dict[str, Any]]) -> tuple[list[str], str] | None:
    """Return the series that the numbers of a shape's lines are, and the pattern of its first line with them."""
    rows = [[value for _, _, value in numbers_in(line)] for line in lines]
    slots = [*zip(*rows, strict=False)]
    names: dict[int, str] = {}
    for one in missing:
        points = one["points"]
        hits = [sum(bool(values.places(v)) for _, v in points) for values in map(Values, slots)]
        best = max(range(len(slots)), key=lambda i: hits[i], default=0)
        if slots and hits[best] > len(points) / 2 and best not in names:
            names[best] = one["name"]
    if not names:
        return None
    wanted = next(one["points"] for one in missing if one["name"] in names.values())
    named = Values(slots[next(iter(names))])
    for counter, slot in enumerate(slots):
        pairs = [(steps, slot[i]) for steps, v in wanted for i in named.places(v)]
        is_counter = counter not in names and pairs and len({*slot}) > 1
        if is_counter and sum(any(step == each for each in steps) for steps, step in pairs) > len(pairs) / 2:
            names[counter] = "step" if max(slot) > len(wanted) + 1 or "step" in lines[0].lower() else "epoch"
            break
    chosen = {i: name if name in COUNTERS else f"m{i}" for i, name in names.items()}
    try:
        return [name for name in names.values() if name not in COUNTERS], Pattern.of(lines[0], chosen).text
    except ConfigError:
        return None


@pytest.mark.parametrize("name", KNOWN)
def test_known_trainers_are_read_whole_at_first_sight(name: str) -> None:
    expected = json.loads(LOGS[name].read_text())
    wrong = unread(LOGS[name].with_suffix(".log"), expected)
    if name in UNREAD:
        assert wrong, f"{name} is read now: take it off the list"
    else:
        assert wrong == []


def test_most_of_other_programs_is_read_by_grammars_and_nearly_all_after_three_clicks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, after, total = [0, 0], [0, 0], 0
    for name in OTHERS:
        expected, log = json.loads(LOGS[name].read_text()), LOGS[name].with_suffix(".log")
        found = points_of(log)
        num, *shares = num_read(expected, found)
        total += num
        first = [a + b for a, b in zip(first, shares, strict=True)]
        found |= {f"clicked {n}": p for n, p in points_of(log, clicked(log, expected, found)).items()}
        after = [a + b for a, b in zip(after, num_read(expected, found)[1:], strict=True)]
    shares = [round(100 * n / total, 1) for n in (*first, *after)]
    with capsys.disabled():
        print(f"\nof {total:,} points: at first sight {shares[0]} % ({shares[1]} % at their steps), ", end="")
        print(f"after three clicks {shares[2]} % ({shares[3]} %)")
    assert shares[0] >= 40
    assert shares[2] >= 90
    assert shares[3] >= 80


@pytest.mark.parametrize("name", ["deepspeed_chat_sft", "distill_kws", "fastai_fine_tune", *[*LOGS][::20]])
def test_looks_at_a_growing_log_change_nothing(name: str, tmp_path: Path) -> None:
    log, data, cut = tmp_path / "rank0.log", LOGS[name].with_suffix(".log").read_bytes(), random.Random(name)
    metrics = LogMetrics(log)
    for end in (*sorted(cut.sample(range(len(data)), 12)), len(data)):
        with log.open("ab") as file:
            file.write(data[file.tell() : end])
        found = {name: (each.unit, [*each.steps], [*map(str, each.values)]) for name, each in metrics.history.items()}
    whole = LogMetrics(log).history
    assert found == {name: (each.unit, [*each.steps], [*map(str, each.values)]) for name, each in whole.items()}


def test_hardly_any_setting_or_constant_becomes_a_curve() -> None:
    """A bar may have drawn other values before the last one of each step."""
    constant = []
    for name, path in LOGS.items():
        for curve, points in points_of(path.with_suffix(".log")).items():
            values = {value for _, value in points}
            if len(values) == 1 and not curve.startswith(("eval/", "test/")) and not any(map(math.isnan, values)):
                constant.append(f"{name}: {curve}")
    assert len(constant) <= 8, constant
