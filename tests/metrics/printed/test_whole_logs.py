"""Whole logs of programs, each with the points that someone expects who wrote both down and had not read the reader.

The logs have the formats of the named programs, or are what ordinary scripts print; texts and numbers are invented. A
series is found by its values, since the reader is free in the names. Of a point, the expectation names every step at
which a reasonable person would accept it; without any, only the order counts.
"""

import functools
import json
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from nbtools.errors import ConfigError
from nbtools.metrics.curve_names import COUNTERS
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.printed.pattern import Pattern
from nbtools.metrics.printed.shapes import folded, numbers_in, shape_of

LOGS: Final = {path.stem: path for path in sorted((Path(__file__).parent / "logs").glob("*.json"))}
Point = tuple[list[float], Any]

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
    "lightning_early_stopping": "a mean of an epoch that is drawn twice is certain only with the next one",
    "nemo2_pretrain": "validation losses of a bar are drawn again at later steps",
    "sb3_ppo_2": "a value that is 0 throughout is no curve",
    "ultralytics_yolo": "values that are 0 throughout are no curves",
    "verl_grpo_2": "its first evaluation, before the training, is not behind a bar",
}
"""Known trainers of which something is read otherwise, and why; each has to fail, so that the list stays true."""


_NAN: Final = 1e300
"""Stands for NaN, which has no order."""


class Points:
    """The points of a curve, of which those are found that are an expected one, also in percent or in thousands."""

    def __init__(self, steps: Sequence[float], values: Sequence[float]) -> None:
        self.steps, self.values = steps, values
        self._ranked = sorted((_NAN if math.isnan(value) else value, i) for i, value in enumerate(values))

    def places(self, expected: Any) -> list[int]:
        """Return the places of those that have an expected value, in their order."""
        found: set[int] = set()
        for want in map(float, expected["any"] if isinstance(expected, dict) else [expected]):
            want = _NAN if math.isnan(want) else want
            for centre, slack in ((want, 1e-6), (1000 * want, 1e-6), (want / 100, 1e-2)):
                low, high = sorted((centre * (1 - slack), centre / (1 - slack)))
                first = bisect_left(self._ranked, (low, -1))
                found.update(i for _, i in self._ranked[first : bisect_right(self._ranked, (high, math.inf))])
        return sorted(found)

    def lacking(self, expected: Sequence[Point], *, is_placed: bool, has_bars: bool) -> tuple[int, set[int]]:
        """Return the number of expected points that lack, at a right step if they are `is_placed`, and those beside."""
        rest, num_missing = {*range(len(self.steps))}, 0
        for steps, value in expected:
            places = (i for i in self.places(value) if i in rest)
            fits = (i for i in places if not is_placed or is_step(steps, self.steps[i], has_bars=has_bars))
            place = next(fits, None)
            num_missing += place is None
            rest -= {place}  # type: ignore[arg-type]
        return num_missing, rest


def is_step(expected: list[float], step: float, *, has_bars: bool) -> bool:
    """Whether a step is one of those expected; the drawing of a bar with a value comes up to two steps before."""
    slack = max([2.0, *(0.015 * each for each in expected)]) if has_bars and max(expected, default=0) > 30 else 0
    return not expected or any(abs(step - each) <= slack for each in expected)


class WholeLog:
    """A log, the points that are expected, and the curves that are read at first sight, once for all tests."""

    def __init__(self, name: str) -> None:
        expected = json.loads(LOGS[name].read_text())
        self.path = LOGS[name].with_suffix(".log")
        self.series: list[dict[str, Any]] = expected["series"]
        self.results: list[Point] = expected["results"]
        self.has_bars = any(one["bar"] for one in self.series)
        self.found = self.curves()

    def curves(self, patterns: Sequence[str] = ()) -> dict[str, Points]:
        history = LogMetrics(self.path, patterns=patterns).poll()
        return {name: Points(one.steps.tolist(), one.values.tolist()) for name, one in history.items()}

    def num_lacking(self, one: dict[str, Any], found: Points, *, is_placed: bool = True) -> int:
        return found.lacking(one["points"], is_placed=is_placed, has_bars=self.has_bars)[0]

    def unread(self) -> list[str]:
        """Return the names of the expected series that are not read with every point at a right step."""
        is_redrawn = b"\r" in self.path.read_bytes()
        return [
            one["name"] for one in self.series if not any(self._is(one, p, is_redrawn) for p in self.found.values())
        ]

    def _is(self, one: dict[str, Any], found: Points, is_redrawn: bool) -> bool:
        """Whether a curve is an expected series: a point beside it has to be one of another."""
        num_missing, rest = found.lacking(one["points"], is_placed=True, has_bars=self.has_bars)
        if num_missing or is_redrawn or not rest:
            return not num_missing
        others = [*self.results, *(point for other in self.series if other is not one for point in other["points"])]
        return rest <= {i for _, value in others for i in found.places(value)}

    def num_read(self, found: Mapping[str, Points]) -> tuple[int, int, int]:
        """Return the number of expected points, of those with their values in one curve, and with their steps, too."""
        num = [0, 0, 0]
        for one in self.series:
            total = len(one["points"])
            for i, is_placed in enumerate((False, True), 1):
                lacking = (self.num_lacking(one, each, is_placed=is_placed) for each in found.values())
                num[i] += total - min(lacking, default=total)
            num[0] += total
        return num[0], num[1], num[2]

    def clicked(self, most: int = 3) -> list[str]:
        """Return the patterns of a user who names the unread values of up to three lines, and what counts in each."""
        missing = [one for one in self.series if all(self.num_lacking(one, each) for each in self.found.values())]
        shapes: dict[str, list[str]] = {}
        for line in self.path.read_text(errors="replace").replace("\r", "\n").split("\n") if missing else ():
            shapes.setdefault(shape_of(text := folded(line)), []).append(text)
        kinds = [(lines[0], _slots(lines)) for lines in shapes.values()]
        patterns: list[str] = []
        while missing and len(patterns) < most:
            choices = [choice for line, slots in kinds if (choice := _choice(line, slots, missing))]
            if not choices:
                break
            named, pattern = max(choices, key=lambda choice: len(choice[0]))
            patterns.append(pattern)
            missing = [one for one in missing if one["name"] not in named]
        return patterns


whole_log = functools.cache(WholeLog)


def _slots(lines: list[str]) -> list[Points]:
    """Return the numbers of the lines of a shape, a column for each; as its steps, the numbers themselves."""
    columns = zip(*([value for _, _, value in numbers_in(line)] for line in lines), strict=False)
    return [Points(column, column) for column in columns]


def _choice(line: str, slots: list[Points], missing: list[dict[str, Any]]) -> tuple[list[str], str] | None:
    """Return the series that the numbers of a shape's lines are, and the pattern of its first line with them."""
    names: dict[int, str] = {}
    for one in missing:
        points = one["points"]
        hits = [sum(bool(slot.places(value)) for _, value in points) for slot in slots]
        best = max(range(len(slots)), key=lambda i: hits[i], default=0)
        if slots and hits[best] > len(points) / 2 and best not in names:
            names[best] = one["name"]
    if not names:
        return None
    wanted = next(one["points"] for one in missing if one["name"] in names.values())
    named = slots[next(iter(names))]
    for counter, slot in enumerate(slots):
        pairs = [(steps, slot.steps[i]) for steps, value in wanted for i in named.places(value)]
        is_counter = counter not in names and pairs and len({*slot.steps}) > 1
        if is_counter and sum(any(step == each for each in steps) for steps, step in pairs) > len(pairs) / 2:
            names[counter] = "step" if max(slot.steps) > len(wanted) + 1 or "step" in line.lower() else "epoch"
            break
    chosen = {i: name if name in COUNTERS else f"m{i}" for i, name in names.items()}
    try:
        return [name for name in names.values() if name not in COUNTERS], Pattern.of(line, chosen).text
    except ConfigError:
        return None


@pytest.mark.parametrize("name", KNOWN)
def test_known_trainers_are_read_whole_at_first_sight(name: str) -> None:
    wrong = whole_log(name).unread()
    if name in UNREAD:
        assert wrong, f"{name} is read now: take it off the list"
    else:
        assert wrong == []


def test_most_of_other_programs_is_read_by_grammars_and_nearly_all_after_three_clicks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    total, first, first_placed, after, after_placed = 0, 0, 0, 0, 0
    for log in map(whole_log, OTHERS):
        num, values, placed = log.num_read(log.found)
        total, first, first_placed = total + num, first + values, first_placed + placed
        if patterns := log.clicked():
            found = {f"clicked {name}": points for name, points in log.curves(patterns).items()}
            _, values, placed = log.num_read(log.found | found)
        after, after_placed = after + values, after_placed + placed
    shares = [round(100 * each / total, 1) for each in (first, first_placed, after, after_placed)]
    with capsys.disabled():
        print(f"\nof {total:,} points: at first sight {shares[0]} % ({shares[1]} % at their steps), ", end="")
        print(f"after three clicks {shares[2]} % ({shares[3]} %)")
    assert shares[0] >= 40
    assert shares[2] >= 90
    assert shares[3] >= 80


@pytest.mark.parametrize("name", ["deepspeed_chat_sft", "distill_kws", "fastai_fine_tune", *[*LOGS][::9]])
def test_looks_at_a_growing_log_change_nothing(name: str, tmp_path: Path) -> None:
    log, data, cut = tmp_path / "rank0.log", LOGS[name].with_suffix(".log").read_bytes(), random.Random(name)
    metrics = LogMetrics(log)
    for end in (*sorted(cut.sample(range(len(data)), 12)), len(data)):
        with log.open("ab") as file:
            file.write(data[file.tell() : end])
        while (grown := metrics.poll()).num_unread_bytes:  # a look has a limit of CPU time
            pass
    found = {name: (each.unit, [*each.steps], [*map(str, each.values)]) for name, each in grown.items()}
    whole = LogMetrics(log).poll()
    assert found == {name: (each.unit, [*each.steps], [*map(str, each.values)]) for name, each in whole.items()}


def test_hardly_any_setting_or_constant_becomes_a_curve() -> None:
    """A bar may have drawn other values before the last one of each step."""
    found = {(name, curve): points.values for name in LOGS for curve, points in whole_log(name).found.items()}
    is_result = ("eval/", "test/")
    constant = [key for key, v in found.items() if len({*v}) == 1 and v[0] == v[0] and not key[1].startswith(is_result)]
    assert len(constant) <= 8, constant
