"""The curves of printed lines, their steps and units, and the kinds of lines."""

import json
import random
import re
import time
from collections.abc import Callable, Sequence
from importlib.metadata import distributions
from pathlib import Path

import pytest

from nbtools.metrics.printed.log import LogMetrics

TEXTS = ("", ".md", ".rst", ".json", ".toml", ".yaml")  # of packages, METADATA and LICENSE among them
LOSSES, PSNRS = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4], [30.5, 31.5, 32.5, 33.5, 34.5, 35.5]
Curves = dict[str, tuple[str, list[int], list[float]]]


def curves_of(log: Path, text: str, patterns: Sequence[str] = (), templates: Sequence[str] = ()) -> Curves:
    log.write_text(text)
    history = LogMetrics(log, patterns=patterns, templates=templates).poll()
    return {n: (s.unit, s.steps.tolist(), s.values.tolist()) for n, s in history.items()}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank0.log"


@pytest.mark.parametrize(
    ("text", "curves"),
    [
        (
            "01/02/2025, 10:00:00 epoch 1 best val acc: 0.5100, train loss: 0.9, wait 1/5\n"
            "01/02/2025, 10:01:00 epoch 2 best val acc: 0.6100, train loss: 0.8, wait 2/5\n",
            {"eval/best_accuracy": ("epoch", [1, 2], [0.51, 0.61]), "train/loss": ("epoch", [1, 2], [0.9, 0.8])},
        ),
        (
            "epoch 1: I train loss (mean of clients): 0.9; CSI(5 mm/h) = 0.31\n"
            "epoch 2: I train loss (mean of clients): 0.8; CSI(5 mm/h) = 0.33\n",
            {"train/i_loss": ("epoch", [1, 2], [0.9, 0.8]), "csi_5_mm_h": ("epoch", [1, 2], [0.31, 0.33])},
        ),
        (
            "Epoche 1 von 3: Verlust 0.9\nEpoche 2 von 3: Verlust 0.8\n"
            "epoch;train_mse;val_mse\n3;3.01;2.97\n4;2.41;2.33\n",
            {
                "verlust": ("epoch", [1, 2], [0.9, 0.8]),
                "train/mse": ("epoch", [3, 4], [3.01, 2.41]),
                "eval/mse": ("epoch", [3, 4], [2.97, 2.33]),
            },
        ),
        (
            "step 10 loss 0.9, 1px: 0.5, 3px=70.5%\nstep 20 loss 0.8, 1px: 0.6, 3px=81.5%\n",
            {
                "train/loss": ("step", [10, 20], [0.9, 0.8]),
                "1px": ("step", [10, 20], [0.5, 0.6]),
                "3px": ("step", [10, 20], [70.5, 81.5]),
            },
        ),
        (
            "step 0 loss 1.5\nstep 1 loss 0.5\nRuntimeError: [/a/pair.cc:537] Read error [10.0.0.1]:2500: reset\n",
            {"train/loss": ("step", [0, 1], [1.5, 0.5])},
        ),
        (
            "[INFO] Epoch#0. cost: 1.5 s. train_loss: 5.30. val_loss: 5.2\n"
            "[INFO] Epoch#1. cost: 2.5 s. train_loss: 5.20. val_loss: 5.1\n",
            {
                "cost": ("epoch", [0, 1], [1.5, 2.5]),
                "train/loss": ("epoch", [0, 1], [5.3, 5.2]),
                "eval/loss": ("epoch", [0, 1], [5.2, 5.1]),
            },
        ),
        (
            "[TRAIN] Iter: 100 Loss: 0.9\n[TRAIN] Iter: 200 Loss: 0.8\n[TEST] Iter: 300 PSNR: 24.5\n"
            "[TRAIN] Iter: 300 Loss: 0.7\n[TRAIN] Iter: 400 Loss: 0.6\n[TEST] Iter: 500 PSNR: 25.5\n",
            {
                "train/loss": ("step", [100, 200, 300, 400], [0.9, 0.8, 0.7, 0.6]),
                "test/psnr": ("step", [300, 500], [24.5, 25.5]),
            },
        ),
        (
            "step = 10, loss = 0.9\n***** Eval results 10 *****\n  loss = 1.1\n"
            "step = 20, loss = 0.8\n***** Eval results 20 *****\n  loss = 1.0\n",
            {"train/loss": ("step", [10, 20], [0.9, 0.8]), "eval/loss": ("step", [10, 20], [1.1, 1.0])},
        ),
        (  # a heading that is perhaps one of a split: what follows states none
            "step 10 psnr 30.5\nLoading the test set\nloss: 0.9\nstep 20 psnr 31.5\nLoading the test set\nloss: 0.8\n",
            {"psnr": ("step", [10, 20], [30.5, 31.5]), "loss": ("step", [10, 20], [0.9, 0.8])},
        ),
        (  # what may be a setting does not count
            "state 8 | batch 64 | gamma 0.99\n" + "".join(f"ep {20 * i} | R {i}.5\n" for i in range(1, 5)),
            {"r": ("step", [20, 40, 60, 80], [1.5, 2.5, 3.5, 4.5])},
        ),
        (  # resumed: the first epoch may be 0 or 1, so only epochs are certain
            "".join(f"Epoch {e} | Iter 100/200 | Loss 1.{e}\nEpoch {e} | Valid Loss 0.{e}\n" for e in (13, 14)),
            {"eval/loss": ("epoch", [13, 14], [0.13, 0.14])},
        ),
        (  # an unknown word before a number that rises evenly
            "seed 7 width 64\n" + "".join(f"upd {2 * i} | R {i}.5\nevaluation: loss 0.{9 - i}\n" for i in range(1, 5)),
            {
                "r": ("step", [2, 4, 6, 8], [1.5, 2.5, 3.5, 4.5]),
                "eval/loss": ("step", [2, 4, 6, 8], [0.8, 0.7, 0.6, 0.5]),
            },
        ),
        ("".join(f"kept {kept} of all, R {kept}.5\n" for kept in (2, 4, 7, 8, 9)), {}),
        (  # lines before those that count for them
            "".join(
                f"lr = 0.{3 - i}\nEpoch: [{i}][0/9] loss: 0.{9 - i}\nEpoch: [{i}][5/9] loss: 0.7\n" for i in (0, 1)
            ),
            {
                "train/learning_rate": ("step", [0, 9], [0.3, 0.2]),
                "train/loss": ("step", [0, 5, 9, 14], [0.9, 0.7, 0.8, 0.7]),
            },
        ),
        (
            "Epoch: [1] Average Loss 0.6\n * Average Loss 0.8\nEpoch: [2] Average Loss 0.4\n * Average Loss 0.7\n",
            {"train/average_loss": ("epoch", [1, 2], [0.6, 0.4]), "eval/loss": ("epoch", [1, 2], [0.8, 0.7])},
        ),
        (
            "Epoch 1, step/total_step: 5/10 Loss:5.9\nEpoch 1, step/total_step: 10/10 Loss:3.6\nEpoch 1, Val Loss:4.5\n"
            "Epoch 2, step/total_step: 5/10 Loss:2.5\n",
            {"train/loss": ("step", [5, 10, 15], [5.9, 3.6, 2.5]), "eval/loss": ("step", [10], [4.5])},
        ),
        (
            "epoch,train_loss,lr\n0,1.5,0.1\n1,1.2,0.05\n",
            {"train/loss": ("epoch", [0, 1], [1.5, 1.2]), "train/learning_rate": ("epoch", [0, 1], [0.1, 0.05])},
        ),
        (
            "step 1 loss 1.5 acc 0.1\npsnr: 31.2 best 31.2\nTest: bpb 1.5 loss 2.5\n"
            "step 2 loss 1.2 acc 0.2\npsnr: 31.4 best 31.4\nTest: bpb 1.4 loss 2.4\n"
            "step 3 loss 1.1 acc 0.3\npsnr: 31.5 best 31.5\nTest: bpb 1.3 loss 2.3\n",
            {
                "train/loss": ("step", [1, 2, 3], [1.5, 1.2, 1.1]),
                "accuracy": ("step", [1, 2, 3], [0.1, 0.2, 0.3]),
                "psnr": ("step", [1, 2, 3], [31.2, 31.4, 31.5]),
                "test/bpb": ("step", [1, 2, 3], [1.5, 1.4, 1.3]),
                "test/loss": ("step", [1, 2, 3], [2.5, 2.4, 2.3]),
            },
        ),
        (
            "[rank1]: step 1 loss 9.5\n[rank0]: step 1 loss 2.5\n[rank1]: step 2 loss 8.5\n[rank0]: step 2 loss 1.5\n",
            {"train/loss": ("step", [1, 2], [2.5, 1.5])},
        ),
        (
            "Epoch 1/2\n16/16 - 1s - loss: 1.5\nEpoch 2/2\n16/16 - 1s - loss: 1.2\n4/4 - 0s - loss: 9.5\n",
            {"train/loss": ("step", [16, 32], [1.5, 1.2])},
        ),
        (
            "epoch 0 iter 0/320 loss: 1.5\n  depth: 0.5\nepoch 0 iter 240/320 loss: 1.2\n  depth: 0.4\n",
            {"train/loss": ("step", [0, 240], [1.5, 1.2]), "depth": ("step", [0, 240], [0.5, 0.4])},
        ),
        (
            "Epoch: 0, Step: 1, loss 3.5\nEpoch: 0, Step: 2, loss 2.5\nstep=2, psnr=31.5\n"
            "Epoch: 1, Step: 1, loss 1.5\nEpoch: 1, Step: 2, loss 0.5\nstep=4, psnr=32.5\n",
            {"train/loss": ("step", [1, 2, 3, 4], [3.5, 2.5, 1.5, 0.5]), "psnr": ("step", [2, 4], [31.5, 32.5])},
        ),
        (
            "".join(f"global loss 0.{9 - n} at step {n}\nstep {n % 3} psnr 3{n}.5\n" for n in range(6)),
            {"train/global_loss": ("step", [*range(6)], LOSSES), "psnr": ("step", [*range(6)], PSNRS)},
        ),
        (
            "".join(f"step {n} loss {9 - n}.5\n" for n in (1, 2, 3, 4)) + "step 3 loss 3.5\nstep 4 loss 2.5\n",
            {"train/loss": ("step", [1, 2, 3, 4], [8.5, 7.5, 3.5, 2.5])},
        ),
        ("iter: 1,000, loss 2.5\niter: 2,000, loss 1.5\n", {"train/loss": ("step", [1000, 2000], [2.5, 1.5])}),
        (
            "".join(f" 1%|#| {n}/9 [0<1, 2it/s, cer=0.{9 - n}]\nepoch {n + 1} done\n" * 2 for n in (1, 2, 3)),
            {"cer": ("step", [1, 2, 3], [0.8, 0.7, 0.6])},
        ),
        (  # a table with a row for each organ
            "".join(f"epoch {e}\n| organ     |   Dice |   Time |\n| left lung | 0.{e} | {e}s |\n" for e in (1, 2)),
            {"eval/left_lung_dice": ("epoch", [1, 2], [0.1, 0.2])},
        ),
        (
            " iter  ||grad||  pérd\n    1       0.5   2.5 ★\n    2       0.4   2.6\n",
            {"train/grad": ("step", [1, 2], [0.5, 0.4]), "pérd": ("step", [1, 2], [2.5, 2.6])},
        ),
    ],
)
def test_printed_lines_have_their_values_steps_and_units(log: Path, text: str, curves: Curves) -> None:
    assert curves_of(log, text) == curves


@pytest.mark.parametrize(
    "text",
    [
        "batch_size: 32\nlr: 0.001\nmomentum: 0.9\n",
        "Namespace(lr=0.1, epoch=3, loss_weight=0.5)\n",
        "step 1 wd 0.1\nstep 2 wd 0.1\nstep 3 wd 0.1\n",
        "Conv2d(3, 16, kernel_size=(3, 3), stride=1)\nConv2d(16, 32, kernel_size=(5, 5), stride=2)\n",
        "saving to out/model_loss_0.5.pt\nsaving to out/model_loss_0.4.pt\n",
        "loss: 0,51\nloss: 0,41\nloss: 0,31\n",
        "step:1K loss:2.5\nstep:2K loss:1.5\nstep:3K loss:1.2\n",
    ],
)
def test_settings_constants_and_unsure_lines_are_no_curves(log: Path, text: str) -> None:
    assert curves_of(log, text) == {}


EPOCHS = [f"epoch {n} loss {3 / (1 + n):.4f}\n" for n in range(1, 7)]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (lambda n: f"Class {n % 3}: IoU 0.{n}1\nClass {n % 3 + 1}: IoU 0.{n}2\n", "several rows of one step"),
        (lambda n: f"EarlyStopping counter: {n} out of 10\n", "an early stop counts to its patience"),
        (lambda n: f"validation loss decreased (inf --> 0.{9 - n}1)\n", "the best one and the new one"),
        (lambda n: f"| AP |\n|----|\n| 3{n}.1 |\nsegm:\n| AP |\n|----|\n| 2{n}.1 |\n", "two tables of one step"),
        (lambda n: f"Best acc: 0.{min(n, 3)}1 at epoch {min(n, 3)}\n", "the epoch of another line"),
        (lambda n: f"val_threshold: 0.5, tokens: {n * 1024}\n", "a setting, and a number that follows the count"),
        (lambda n: f"elapsed: {n * 12.5:.1f}\n", "a share of the steps"),
        (lambda n: f"ts: {1795974026 + n * n}.25\n", "a time"),
        (lambda n: f"time: {1.5 * n * n}\n", "a time since the start"),
        (
            lambda n: f"| class | b | c |\n|---|---|---|\n| Area | IoU | Acc |\n| all | 8{n}.5 | 7{n}.5 |\n",
            "another header",
        ),
        (lambda n: f"Run: {1 + n // 4}\n", "the number of a run"),
        (lambda n: f"batch {n // 3}/{n % 3 * 100} f1 0.{n}1\n", "an epoch and a batch as 3/10"),
    ],
)
def test_a_number_that_may_be_no_metric_is_not_drawn(log: Path, line: Callable[[int], str], why: str) -> None:
    text = "".join(epoch + line(n) for n, epoch in enumerate(EPOCHS, 1))
    assert {*curves_of(log, text)} == {"train/loss"}, why


def test_settings_of_repeated_trainings_are_no_curves(log: Path) -> None:
    epochs = "".join(f"dropout = 0.{n}\n" + "".join(f"wd 0.{n}, {epoch}" for epoch in EPOCHS) for n in (1, 2, 3))
    assert {*curves_of(log, epochs)} == {"train/loss"}


def test_rows_without_any_counter_are_drawn_only_by_a_template_or_a_pattern(log: Path) -> None:
    text = "loss: 1.5\nloss: 1.25\nloss: 1.2\n"
    by_order = {"train/loss": ("row", [1, 2, 3], [1.5, 1.25, 1.2])}
    assert curves_of(log, text) == {}
    assert curves_of(log, text, ["loss: {loss}"]) == curves_of(log, text, templates=["loss: {loss}"]) == by_order
    assert {*curves_of(log, text + "epoch 1 f1 0.4\nepoch 2 f1 0.5\n", templates=["loss: {x}"])} == {"f1"}


CONSTANT = [f"epoch {n} eval/tau 0.5\n" for n in range(6)]
CONTRADICTED = ["[0/8] loss 3.5\n", "[1/8] loss 2.5\n", "[1/9] loss 1.5\n", "[1/10] loss 1.25\n"]


@pytest.mark.parametrize("lines", [CONSTANT, CONTRADICTED])
def test_drawn_curve_is_taken_away_when_it_turns_out_to_be_none(log: Path, lines: list[str]) -> None:
    log.write_text("".join(lines[: len(lines) // 2]))
    metrics = LogMetrics(log)
    assert len([*metrics.poll()]) == 1
    log.write_text("".join(lines))
    assert [*metrics.poll()] == []


def test_evaluation_behind_the_last_row_of_an_epoch_stands_at_its_end(log: Path) -> None:
    rows = [f"Train Epoch: {e} [{n}/1280 ({n // 13}%)] Loss: {9 / (e + n):.4f}\n" for e in (1, 2) for n in (0, 640)]
    text = "".join([*rows[:2], "val_loss: 0.5\n", *rows[2:], "val_loss: 0.4\n"])
    assert curves_of(log, text)["eval/loss"] == ("sample", [1280, 2560], [0.5, 0.4])


def test_texts_of_other_people_give_no_curve() -> None:
    texts = [path for distribution in distributions() for path in distribution.files or () if path.suffix in TEXTS]
    found = {str(path): [*LogMetrics(path.locate()).poll()] for path in texts[:100]}
    assert [name for name, curves in found.items() if curves] == []


def test_bytes_that_are_no_text_take_little_time(log: Path) -> None:
    log.write_bytes(random.Random(1).randbytes(1 << 20))
    began = time.process_time()
    lines = [re.findall(r"[\d.]+", line) for _ in range(10) for line in log.read_text(errors="replace").split("\n")]
    searched = time.process_time()
    assert [*LogMetrics(log).poll()] == [] and lines
    assert time.process_time() - searched < 20 * (searched - began), "1.1 here"


def test_looks_at_a_complete_log_take_each_line_once(log: Path) -> None:
    log.write_text("upd 10 | R 0.5\nlr = 0.1\n")
    metrics = LogMetrics(log, templates=["lr = {lr}", "upd {upd} | R {R}"])
    for _ in range(3):
        metrics.poll(is_complete=True)
    assert [statement.num_rows for statement in metrics._rows.plans._statements.values()] == [1, 1]


def test_pattern_of_the_user_comes_before_everything_else(log: Path) -> None:
    text = "at 1 we saw 0.5 nats\nat 2 we saw 0.4 nats\nstep 3 loss 7.5\nstep 4 loss 7.1\n"
    found = curves_of(log, text, ["at {step} we saw {eval/score} nats"])
    assert found["eval/score"] == ("step", [1, 2], [0.5, 0.4])
    assert curves_of(log, text) == {"train/loss": ("step", [3, 4], [7.5, 7.1])}


def test_whole_numbers_below_the_first_counter_stay_below_it(log: Path) -> None:
    text = "[step=5/20]\nperplexity=16,284\n[step=10/20]\nperplexity=5,061\n[step=15/20]\nperplexity=510.4\n"
    assert curves_of(log, text) == {"perplexity": ("step", [5, 10, 15], [16284, 5061, 510.4])}


def test_steps_of_epochs_whose_length_is_not_printed_are_called_estimates(log: Path) -> None:
    lines = [f"epoch {e} step {n} loss {1 / (e + n / 100):.3f}\n" for e in (1, 2, 3) for n in (0, 50, 100)]
    log.write_text("".join(lines))
    (metrics := LogMetrics(log)).poll(is_complete=True)
    assert "estimates" in metrics.again


def test_names_that_a_program_puts_together_come_from_the_line(log: Path) -> None:
    text = "".join(
        f"01/02 03:04:0{n} AM (a:12) INFO: (Steps: {n}) train/g_{n % 2}_loss = {1 / n:.2f}.\n" for n in range(1, 7)
    )
    found = curves_of(log, text, templates=["(Steps: {step}) {_} = {total}."])
    assert found == {
        "train/g_1_loss": ("step", [1, 3, 5], [1, 0.33, 0.2]),
        "train/g_0_loss": ("step", [2, 4, 6], [0.5, 0.25, 0.17]),
    }


def test_template_reads_what_no_grammar_reads_but_no_running_mean(log: Path) -> None:
    text = "".join(f"at {n} we saw {1 / n:.3f} nats\n" for n in range(1, 4))
    templates = ["at {step} we saw {nll} nats", "step {step} loss {loss} ({mean})"]
    assert curves_of(log, text) == {}
    assert curves_of(log, text, templates=templates) == {"nll": ("step", [1, 2, 3], [1.0, 0.5, 0.333])}
    text = "step 1 loss 1.5 (1.7)\nstep 2 loss 1.2 (1.6)\n"
    assert [*curves_of(log, text, templates=templates)] == ["train/loss"]
    text, templates = "step 1 loss 1.5=1.1 + 0.4\nstep 2 loss 1.2=0.9 + 0.3\n", ["step {step} loss {loss}={nll} + {kl}"]
    found = {name: values for name, (_, _, values) in curves_of(log, text, templates=templates).items()}
    assert found == {"train/loss": [1.5, 1.2], "nll": [1.1, 0.9], "kl": [0.4, 0.3]}
    text, templates = "pass 3: aa 0.5, bb 0.7\npass 9: aa 0.4, bb 0.6\n", ["pass {step}: aa {aa}, bb {_}"]
    assert curves_of(log, text, templates=templates)["bb"] == ("step", [3, 9], [0.7, 0.6])


def test_kinds_say_what_reads_each_line_and_what_counts(log: Path) -> None:
    log.write_text("hello\nstep 1 loss 0.5\nstep 2 loss 0.4\nhello\nhello\n")
    metrics = LogMetrics(log)
    assert metrics.poll()
    assert [(k.shape, k.count, k.source, k.curves, k.counter) for k in metrics.kinds if k.shape] == [
        ("hello", 3, "", (), ""),
        ("step # loss #", 2, "grammar", ("train/loss",), "step"),
    ]


def test_bad_and_unused_patterns_are_told_and_nothing_is_lost(log: Path) -> None:
    log.write_text("step 1 loss 0.5\nstep 2 loss 0.4\n")
    digits = [f"step {n} loss {{train/loss}}" for n in (1, 2)]
    metrics = LogMetrics(log, patterns=["loss {x", "never {y} here", "{_} {z}", *digits])
    assert [*metrics.poll()] == ["train/loss"]
    assert "'step" not in metrics.note
    assert "without its partner" in metrics.note
    assert "'never {y} here' matches no line" in metrics.note
    assert "no text beside the numbers" in metrics.note


def test_restart_continues_the_curve_from_its_first_step(log: Path, tmp_path: Path) -> None:
    first, second = "step 1 loss 5.5\nstep 2 loss 5.1\nstep 3 loss 4.8\n", "step 2 loss 5.2\nstep 3 loss 4.7\n"
    times = tmp_path / "times.jsonl"
    times.write_text(
        "".join(
            json.dumps(row) + "\n"
            for row in ([0, 1, 1], [len(first), 2, 1], [len(first), 2, 2], [len(first + second), 3, 2])
        )
    )
    log.write_text(first + second)
    series = LogMetrics(log, times).poll()["train/loss"]
    assert series.values.tolist() == [5.5, 5.2, 4.7]
    assert series.times.tolist()[0] < 2 < series.times.tolist()[1] <= 3


@pytest.mark.parametrize(
    "text", ["1,", "a=1 ", "[1/2] ", "{'a': 1, ", "loss 1.5 ", "| 1 ", "x(", "\x1b[31m1 ", "1:00 "]
)
def test_hostile_lines_take_linear_time(log: Path, text: str) -> None:
    log.write_text((text * (200_000 // len(text)) + "\n") * 3)
    began = time.process_time()
    assert LogMetrics(log).poll() is not None
    assert time.process_time() - began < 15


def test_lines_of_one_shape_are_all_read_in_little_time(log: Path) -> None:
    log.write_text("".join(f"iter {i}: loss {4 / (1 + i):.5f}, time {100 + i % 7}ms\n" for i in range(100_000)))
    began = time.process_time()
    lines = [[*map(float, re.findall(r"[\d.]+", line))] for line in log.read_text().splitlines()]
    searched = time.process_time()
    assert len(LogMetrics(log).poll()["train/loss"]) == len(lines) == 100_000
    assert time.process_time() - searched < 20 * (searched - began), "5 here, 70 where every line is understood anew"


def test_memory_of_kinds_is_bounded(log: Path) -> None:
    log.write_text("".join(f"{'ab' * (i % 50)} {chr(97 + i % 26) * (i // 50)} 1\n" for i in range(5000)))
    metrics = LogMetrics(log)
    assert metrics.poll() is not None
    assert len(metrics.kinds) <= 1000
