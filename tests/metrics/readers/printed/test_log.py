"""Metrics out of the logs of scripts that only print."""

import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chosen_printers import CHOSEN_PRINTERS
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st

from nbtools.metrics.history import History
from nbtools.metrics.readers.printed import log as printed
from nbtools.metrics.readers.printed.log import LogMetrics
from nbtools.metrics.readers.printed.read_line import read_line

from printers import PRINTERS, Printer


def parse_line(text: str) -> dict[str, float] | None:
    """Read one line by itself: its metrics, with the counter as `step` if it has one; None if it is not a row."""
    reading = read_line(text)
    if reading is None or not reading.is_row:
        return None
    count = {"step": reading.counter().value} if reading.counter() else {}
    return {**count, **reading.coordinates, **reading.metrics}


def read_log(path: Path, *parts: bytes) -> History:
    log = LogMetrics(path)
    for part in parts:
        with path.open("ab") as file:
            file.write(part)
        history = log.history
    return history


def points(history: History, name: str) -> list[tuple[int, float]]:
    series = history[name]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


# --- what one line says -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ('{"step": 20, "loss": 2.3}', {"step": 20, "train/loss": 2.3}),
        (
            '{"iter": 7, "train": {"loss": 2.0}, "val": {"acc": 0.5}}',
            {"step": 7, "train/loss": 2.0, "eval/accuracy": 0.5},
        ),
        ('INFO {"step": 3, "reward": NaN}', {"step": 3, "train/reward": math.nan}),
        ("{'loss': 2.3, 'epoch': 0.1}", {"train/loss": 2.3, "train/epoch": 0.1}),
        ("step 3 loss 0.5 time 1h2m3.5s lr 0.1", {"step": 3, "train/loss": 0.5, "train/learning_rate": 0.1}),
        (
            "{'loss': '2.3', 'grad_norm': 'nan', 'learning_rate': '5e-05'}",
            {"train/loss": 2.3, "train/grad_norm": math.nan, "train/learning_rate": 5e-05},
        ),
        ("{'loss': nan, 'grad_norm': -inf}", {"train/loss": math.nan, "train/grad_norm": -math.inf}),
        ("{'loss': tensor(2.3, device='cuda:0'), 'epoch': 1}", {"train/loss": 2.3, "train/epoch": 1.0}),
        ("{'eval_loss': 1.2, 'eval_runtime': 3.1}", {"eval/loss": 1.2, "eval/runtime": 3.1}),
        ("{'train_runtime': 9.5, 'train_loss': 2.0}", {"train/runtime": 9.5, "train/mean_loss": 2.0}),
        ("loss=2.3", {"train/loss": 2.3}),
        ("step 20 loss 2.31", {"step": 20, "train/loss": 2.31}),
        ("step: 20, train loss: 2.31, lr: 1e-4", {"step": 20, "train/loss": 2.31, "train/learning_rate": 1e-4}),
        ("Epoch 3 | val_loss 1.2", {"train/epoch": 3.0, "eval/loss": 1.2}),
        ("[Epoch 1/10] Step 50/100 loss 0.5", {"step": 50, "train/epoch": 1.0, "train/loss": 0.5}),
        ("Epoch [1/10], Step [50/100], Loss: 0.5", {"step": 50, "train/epoch": 1.0, "train/loss": 0.5}),
        (
            "Epoch 1:  45%|████▌     | 45/100 [00:10<00:12,  4.50it/s, loss=0.5, lr=1e-3]",
            {"step": 45, "train/epoch": 1.0, "train/loss": 0.5, "train/learning_rate": 1e-3},
        ),
        (
            "iter 20: loss 2.3000, time 12.31ms, mfu 3.20%",
            {"step": 20, "train/loss": 2.3, "train/time_ms": 12.31, "train/mfu": 3.2},
        ),
        ("step 250: train loss 4.2870, val loss 4.2823", {"step": 250, "train/loss": 4.287, "eval/loss": 4.2823}),
        ("validation loss: 1.5", {"eval/loss": 1.5}),
        ("Validation: loss 1.2 acc 0.5", {"eval/loss": 1.2, "eval/accuracy": 0.5}),
        ("Test set: Average loss: 0.0264, Accuracy: 9912/10000 (99%)", {"test/loss": 0.0264, "test/accuracy": 0.9912}),
        (
            "Epoch: [0][  10/5005]\tTime  0.5 ( 0.6)\tLoss 6.9e+00 (6.8e+00)\tAcc@1   0.25 (  0.10)",
            {"step": 10, "train/epoch": 0.0, "train/time": 0.5, "train/loss": 6.9, "train/accuracy": 0.25},
        ),
        (
            "2026-01-31 12:00:00,123 INFO train.py:20] step 1,200 loss nan grad norm: 1.2 tok/s 12,345",
            {"step": 1200, "train/loss": math.nan, "train/grad_norm": 1.2, "train/tokens_per_s": 12345.0},
        ),
        ("[rank0]: step=30 loss=-inf", {"step": 30, "train/loss": -math.inf}),
        ("step:100/1000 trainLoss:3.2 best_val_loss:3.3", {"step": 100, "train/loss": 3.2, "eval/best_loss": 3.3}),
        ("d_loss: 0.7 g_loss: 1.4", {"train/d_loss": 0.7, "train/g_loss": 1.4}),
        ("step 5 loss 0.5 124.2/s, 31.1/s/gpu LR: 0.1", {"step": 5, "train/loss": 0.5, "train/learning_rate": 0.1}),
        (
            "batch 5, loss[loss=0.5, ctc_loss=0.2], tot_loss[loss=0.6, ctc_loss=0.3]",
            {
                "step": 5,
                "train/loss": 0.5,
                "train/loss_ctc_loss": 0.2,
                "train/tot_loss": 0.6,
                "train/tot_loss_ctc_loss": 0.3,
            },
        ),
        ("train(loss=0.5, acc=0.8) val(loss=0.6)", {"train/loss": 0.5, "train/accuracy": 0.8, "eval/loss": 0.6}),
        ("Batch [100-200]\taccuracy=0.5", {"step": 200, "train/accuracy": 0.5}),
        (
            "Loss_D: 1.5\tD(x): 0.5\tD(G(z)): 0.6 / 0.01",
            {"train/loss_d": 1.5, "train/d_x": 0.5, "train/d_g_z": 0.6, "train/d_g_z_2": 0.01},
        ),
        ("[ITER 7] Evaluating test: L1 0.03 PSNR 24.1", {"step": 7, "test/l1": 0.03, "test/psnr": 24.1}),
        ("the loss is 2.5 after 3 minutes on 2 machines", {"train/loss": 2.5}),
        ("Cost after iteration 100: 0.65", {"step": 100, "train/cost": 0.65}),
        ("Loss after epoch 3: 0.5", {"train/epoch": 3.0, "train/loss": 0.5}),
        ("Training loss (for one batch) at step 200: 1.0379", {"step": 200, "train/loss": 1.0379}),
        ("DEV : loss 0.4 - f1-score (micro avg)  0.7", {"eval/loss": 0.4, "eval/f1_score": 0.7}),
        (
            "Step: 9. Mean Reward: 1.5. Std of Reward: 0.7.",
            {"step": 9, "train/mean_reward": 1.5, "train/std_of_reward": 0.7},
        ),
        ("step 3 | loss 2.5 | 420000 tok/s", {"step": 3, "train/loss": 2.5, "train/tokens_per_s": 420000.0}),
        ("epoch 1 loss1: 0.5 loss2: 0.3", {"train/epoch": 1.0, "train/loss1": 0.5, "train/loss2": 0.3}),
        ('{"results": {"fid50k_full": 9.5}, "timestamp": 1.7e9}', {"time": 1.7e9, "train/results_fid50k_full": 9.5}),
        ("tick 3 kimg 12.1 time 2m 10s sec/tick 33.1", {"step": 3, "train/kimg": 12.1, "train/sec_tick": 33.1}),
    ],
)
def test_a_line_of_metrics_is_read(line: str, row: dict[str, float]) -> None:
    found = parse_line(line)
    if any(math.isnan(value) for value in row.values()):
        assert repr(found) == repr(row)
    else:
        assert found == pytest.approx(row)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "batch_size = 12",
        "learning_rate = 0.0006",
        "number of parameters: 123.59M",
        "num decayed parameter tensors: 50, with 124,354,560 parameters",
        "tokens per iteration will be: 491,520",
        "loss_scale=65536",
        "label smoothing 0.1, loss weight 0.5",
        "    loss = 0.5 * (a + b)",
        '  File "/home/me/loss.py", line 20, in loss',
        "ValueError: loss must be finite",
        '{"batch_size": 3, "lr": 0.1, "loss": "mse", "epochs": 3}',
        "Namespace(batch_size=3, lr=0.1, loss='mse')",
        "{'num_samples': 1000}",
        "{'best_valid_loss': inf, 'batch_idx_train': 0, 'log_interval': 50, 'num_epochs': 30}",
        "Learning rate: 0.001",
        "W1120 02:00:00.123000 1234 torch/distributed/run.py:851] ",
        "W1120 02:00:00.123000 1234 torch/distributed/run.py:851] *****************************************",
        "W1120 02:00:00.123000 1234 torch/distributed/run.py:851] Setting OMP_NUM_THREADS environment variable for "
        "each process to be 1 in default, to avoid your system being overloaded, please further tune the variable for "
        "optimal performance in your application as needed. ",
        "[W1120 02:00:00.5 socket.cpp:200] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
        "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        "W1120 02:00:01.1 12 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 13 "
        "closing signal SIGTERM",
        "E1120 02:00:01.2 12 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0 "
        "(pid: 13) of binary: /usr/bin/python",
        "  time      : 2026-11-20_02:00:01",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 14)",
        "  error_file: <N/A>",
        "  traceback : Signal 9 (SIGKILL) received by PID 14",
        "host:12:34 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 - Init COMPLETE",
        "`loss_type=None` was set in the config but it is unrecognised. Using the default loss: `ForCausalLMLoss`.",
        "***** Running training *****",
        "  Total optimization steps = 375",
        " 10%|█         | 10/100 [00:05<00:45,  2.00it/s]",
        "EarlyStopping counter: 3 out of 7",
        "data loaded, cost 3.2s",
        "epoch 3 finished, time cost: 12.3",
        "cost: 35.2 seconds",
        "layers 12 heads 8 dropout 0.1 embd 500",
        "step_size 5 gamma 0.1 lr 0.1 momentum 0.9",
        "3: 5 files, 2 folders, 7 errors",
        "Lesson 3: 2 losses, 1 recall, 1.5 hours",
        "12: 3.5 meters, 2.25 kg",
        "[yolo] params: iou loss: ciou (4), iou_norm: 0.07, obj_norm: 1.00",
        "Normalizer: (iou: 0.07, obj: 1.00)",
        "loss weights: (loss_box: 5.0, loss_cls: 2.0)",
        "100/100 - 1m 2s",
        "> port: 8080",
        " | > weight_decay: 0.01",
        "Warming up. 3 workers",
        "Speed: 1.2 ms preprocess, 45.2 ms inference, 1.1 ms postprocess per image",
    ],
)
def test_a_line_that_only_holds_numbers_is_not_read(line: str) -> None:
    assert parse_line(line) is None


def test_a_list_below_a_counter_is_read_whatever_its_names(tmp_path: Path) -> None:
    history = read_log(
        tmp_path / "log",
        b" | > dropout: 0.1\n --> STEP: 3/9 -- GLOBAL_STEP: 30\n | > log_mle: 0.5 (0.6)\n | > loss: 2.5\n"
        b"\x1b[1m--> EVAL PERFORMANCE\x1b[0m\n | > avg_log_mle: 0.7\nsaved the best loss 2.4\n | > dropout: 0.2\n",
    )
    assert points(history, "train/log_mle") == [(30, 0.5)]
    assert points(history, "eval/log_mle") == [(30, 0.7)]
    assert not [name for name in history if "dropout" in name]


def test_sizes_of_the_data_in_a_list_before_the_training_are_no_metrics(tmp_path: Path) -> None:
    data = " > EPOCH: 0/5\n | > Avg text length: 98.33\n | > Batch group size: 0.\n"
    lists = "".join(f" --> STEP: {step}\n  | > loss: 0.{step}\n  | > mean length: {step}.5\n" for step in (1, 2))
    assert {*read_log(tmp_path / "log", (data + lists).encode())} == {"train/loss", "train/mean_length"}


def test_an_evaluation_that_prints_a_batch_and_the_mean_has_the_mean(tmp_path: Path) -> None:
    history = read_log(
        tmp_path / "log", b"step 5 loss 2.5 (2.7)\nTest: [9/10]  Loss: 2.66 (2.74)  Acc@1: 32.9 (38.5)\n"
    )
    assert points(history, "train/loss") == [(5, 2.5)]
    assert points(history, "test/loss") == [(5, 2.74)]
    assert points(history, "test/accuracy") == [(5, 38.5)]


def test_a_message_directly_behind_a_bar_is_a_line_of_its_own(tmp_path: Path) -> None:
    bar = b"\r {0}%|#  | {0}/100 [00:01<00:09,  9.0it/s]"
    row = b"\r          \r{'loss': %.1f, 'epoch': %.1f}\n"
    parts = [bar.replace(b"{0}", b"10"), row % (0.5, 0.2), bar.replace(b"{0}", b"20"), row % (0.4, 0.3)]
    message = b"[INFO|trainer.py:3614] 2024-05-14 10:22:01,101 >> ***** Running Evaluation *****\n{'eval_loss': 0.7}\n"
    history = read_log(tmp_path / "log", *parts, bar.replace(b"{0}", b"30") + message)
    assert points(history, "train/loss") == [(20, 0.5), (30, 0.4)]
    assert points(history, "eval/loss") == [(30, 0.7)]


def test_an_error_of_the_data_before_the_training_is_no_metric(tmp_path: Path) -> None:
    history = read_log(
        tmp_path / "log",
        b"100%|####| 15/15 [00:00, 9it/s]\nmean ar error: 0.02\n",
        b"steps:   1%|#| 1/120 [00:00, 9it/s, loss=0.13]\n",
    )
    assert {name: points(history, name) for name in history} == {"train/loss": [(1, 0.13)]}


@pytest.mark.parametrize(
    "line",
    [
        "    accuracy  bleu-4  clen",
        "Start training from score -6.359171",
        "Saved checkpoint checkpoint1.pt (epoch 1 @ 1099 updates, score 7.233)",
        "It takes 2/2=1 bolt of fiber. loss of fiber: 0.0, so 2 + 1 = 3",
        "(TaskRunner pid=3165) [score] 1.0",
        "Metric val_loss improved. New best score: 1.670",
        "Metric val_loss improved by 0.418 >= min_delta = 0.0. New best score: 1.252",
        "Epoch 3: val_loss improved from 0.51234 to 0.49111, saving model to weights/best.keras",
    ],
)
def test_a_line_of_which_the_numbers_are_no_results_is_no_row(line: str) -> None:
    assert parse_line(line) is None


def test_rows_of_evaluations_alone_are_counted_by_their_own_counter(tmp_path: Path) -> None:
    text = b"".join(
        b"[%d]\tvalidation_0-logloss:0.%d\tvalidation_1-logloss:0.%d\n" % (n, 90 - n, 80 - n) for n in range(4)
    )
    history = read_log(tmp_path / "log", text)
    assert {tuple(points(history, name)) for name in history} == {
        ((0, 0.9), (1, 0.89), (2, 0.88), (3, 0.87)),
        ((0, 0.8), (1, 0.79), (2, 0.78), (3, 0.77)),
    }


def test_a_loop_that_prints_its_length_starts_over_after_so_many_steps(tmp_path: Path) -> None:
    bars = (
        b"Epoch %d:   0%%|  | 0/400 [00:00<?]\rEpoch %d:  50%%|# | 200/400 [00:05<00:05, train_loss=1.%d]\r"
        b"Epoch %d: 100%%|##| 400/400 [00:10<00:00, train_loss=0.%d]\n"
    )
    history = read_log(tmp_path / "log", b"".join(bars % (n, n, n + 1, n, n + 1) for n in range(3)))
    expected = [(200, 1.1), (400, 0.1), (600, 1.2), (800, 0.2), (1000, 1.3), (1200, 0.3)]
    assert points(history, "train/loss") == expected


def test_a_metric_that_begins_as_a_whole_number_keeps_its_first_point(tmp_path: Path) -> None:
    history = read_log(tmp_path / "log", b"step 1 loss 2.5 reward 22\nstep 2 loss 2.4 reward 22.5\n")
    assert points(history, "train/reward") == [(1, 22.0), (2, 22.5)]


def test_a_line_is_parsed_and_never_executed(tmp_path: Path) -> None:
    target = tmp_path / "executed"
    for line in (
        f"{{'loss': __import__('pathlib').Path({str(target)!r}).touch() or 1.0}}",
        f"{{'loss': 2.0, 'x': open({str(target)!r}, 'w')}}",
        "{'loss': 9**9**9**9}",
    ):
        parse_line(line)
    assert not target.exists()


def test_reading_never_prints_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for line in (r"{'loss': 1, 'x': '\d'}", "{'loss': 1or 2}", "{'loss': 0x1for x in y}", "{'loss': 1 is 1}"):
            parse_line(line)


@pytest.mark.parametrize(
    "grow",
    [
        lambda n: "loss " + "1" * n,
        lambda n: "loss " + "1," * n,
        lambda n: "loss " + "1,234" + ",234" * n,
        lambda n: "loss=" + "=" * n,
        lambda n: "loss " * n,
        lambda n: "loss 1 " * n,
        lambda n: "step 1 " * n,
        lambda n: "1: " + "1.0 loss, " * n,
        lambda n: "| > " * n + "loss: 1.0",
        lambda n: "| > " + "loss " * n + ": 1.0",
        lambda n: "EVAL " * n,
        lambda n: "loss {" + "[" * n,
        lambda n: "{'loss': " + "[" * n,
        lambda n: "{'loss': " + "{" * n + "}" * n,
        lambda n: "{'loss': " + "-" * n + "1}",
        lambda n: "loss " + "a-" * n,
        lambda n: "loss " + "1:00" * n,
        lambda n: "loss 1/" + "1" * n,
        lambda n: "loss " + " " * n + "*",
        lambda n: "loss 1" + " " * n,
        lambda n: "loss " + "tensor(" * n,
        lambda n: "{'loss': '" + "1" * n + "'}",
        lambda n: "{" + "'a': nan, " * n + "}",
    ],
)
def test_the_worst_line_costs_in_proportion_to_its_length(grow: Callable[[int], str]) -> None:
    def cost(num: int) -> float:
        line, best = grow(num), math.inf
        for _ in range(5):
            before = time.thread_time()
            parse_line(line)
            best = min(best, time.thread_time() - before)
        return best

    assert cost(1200) < 30 * max(cost(150), 2e-4)  # 8 if linear, 64 if quadratic


def test_a_line_longer_than_any_row_is_passed_over() -> None:
    assert parse_line("loss=1.0 " + "x" * 20_000) is None


# --- steps --------------------------------------------------------------------------------------


def test_rows_without_a_counter_are_numbered_and_said_to_be_no_steps(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"loss=3.0\nloss=2.0\nhello\nloss=1.0\n")
    log = LogMetrics(tmp_path / "log")
    assert points(log.history, "train/loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert (log.counts, log.total_steps(), log.history.has_steps) == ("row", None, False)


def test_lines_have_the_time_at_which_the_supervisor_saw_the_log_grow(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"loss=3.0\nloss=2.0\nloss=1.0\nloss=0.5\n")
    (tmp_path / "times").write_bytes(b"[0,1000.0,1]\n[9,1010.0,1]\n[27,1030.0,1]\n[36,1100.0,1]\n[40,")
    assert LogMetrics(tmp_path / "log", tmp_path / "times").history["train/loss"].times.tolist() == [
        *(1010.0, 1020.0, 1030.0),
        1100.0,
    ]


def test_only_a_new_attempt_rewinds(tmp_path: Path) -> None:
    line = b"step %d loss %d.0\n"
    first, second = line % (10, 5) + line % (20, 4), line % (10, 3) + line % (30, 2)
    (tmp_path / "log").write_bytes(first + second)
    log = LogMetrics(tmp_path / "log")
    assert points(log.history, "train/loss") == [(10, 5.0), (20, 4.0), (30, 3.0), (50, 2.0)]
    (tmp_path / "times").write_text(
        f"[0,1000,1]\n[{len(first)},1010,1]\n[{len(first)},1020,2]\n[{len(first + second)},1030,2]\n"
    )
    log = LogMetrics(tmp_path / "log", tmp_path / "times")
    assert points(log.history, "train/loss") == [(10, 3.0), (30, 2.0)]


def test_an_evaluation_without_a_step_belongs_to_the_step_before(tmp_path: Path) -> None:
    log = b"step 100 loss 2.0\nval loss 2.1\nstep 200 loss 1.0\nval loss 1.1\n"
    history = read_log(tmp_path / "log", log)
    assert points(history, "train/loss") == [(100, 2.0), (200, 1.0)]
    assert points(history, "eval/loss") == [(100, 2.1), (200, 1.1)]


@pytest.mark.parametrize("first_epoch", [0, 1])
def test_steps_that_are_counted_anew_in_every_epoch_go_on(tmp_path: Path, first_epoch: int) -> None:
    log = "".join(
        f"Epoch {first_epoch + epoch}: Step [{step}/100] Loss: {epoch}.5\n" for epoch in range(3) for step in (50, 100)
    )
    history = read_log(tmp_path / "log", log.encode())
    assert history["train/loss"].steps.tolist() == [50, 100, 150, 200, 250, 300]


def test_a_counter_of_each_epoch_that_is_printed_by_the_steps_of_the_run_tells_the_length(tmp_path: Path) -> None:
    rows = [
        ((e - 1) * 267 + i, f"(epoch: {e}/3, iters: {i}) loss: {e}.{i:03}") for e in (1, 2, 3) for i in range(1, 268)
    ]
    log = LogMetrics(tmp_path / "log")
    (tmp_path / "log").write_text("".join(f"{line}\n" for step, line in rows if step % 50 == 0))
    assert log.history["train/loss"].steps.tolist() == [*range(50, 802, 50)]
    assert log.total_steps() == 801


def test_a_counter_printed_at_uneven_steps_starts_over_behind_its_last_value(tmp_path: Path) -> None:
    rows = [f"epoch {e} iter {i} loss {e}.{i:03}\n" for e in (1, 2) for i in (3 * e, 50 + 7 * e, 150 - 9 * e, 199)]
    assert read_log(tmp_path / "log", "".join(rows).encode())["train/loss"].steps.tolist() == [
        *(3, 57, 141, 199),
        *(205, 263, 331, 398),
    ]


@pytest.mark.parametrize(
    ("begin", "epoch", "steps"),
    [
        ("\r{bar}\n", "Epoch {e}\nloss: {e}.5\n", [1, 2, 3]),  # the bar is of the data
        ("\r{bar}\n", "=== epoch {e} starts ===\nloss: {e}.5\n", [1, 2, 3]),
        ("", "\r{bar}\nEpoch {e} finished\nloss: {e}.5\n", [50, 100, 150]),
        ("", "\r{bar}\nEpoch {e}: 3.2 s\nloss: {e}.5\n", [50, 100, 150]),
        ("", "Epoch {e}\n\r{bar}\nloss: {e}.5\n", [50, 100, 150]),
    ],
)
def test_a_bar_that_ended_before_the_first_epoch_begins_is_none_of_the_training(
    tmp_path: Path, begin: str, epoch: str, steps: list[int]
) -> None:
    text = begin + "".join(epoch.replace("{e}", str(e)) for e in (1, 2, 3))
    bars = "\r".join(f"{2 * i}%|███  | {i}/50 [00:05<00:06, 3.1it/s]" for i in (0, 10, 50))
    history = read_log(tmp_path / "log", text.replace("{bar}", bars).encode())
    assert points(history, "train/loss") == [*zip(steps, (1.5, 2.5, 3.5), strict=True)]


def test_the_steps_so_far_in_a_message_of_an_epoch_are_not_those_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("step 100 loss 0.5\nsaving the model (epoch 1, total_iters 100)\nstep 200 loss 0.4\n")
    log = LogMetrics(tmp_path / "log")
    assert log.history["train/loss"].steps.tolist() == [100, 200]
    assert log.total_steps() is None


def test_steps_counted_over_all_epochs_are_kept(tmp_path: Path) -> None:
    log = "".join(f"Epoch {1 + step // 200}: Step [{step}/1000] Loss: 1.5\n" for step in range(100, 1001, 100))
    history = read_log(tmp_path / "log", log.encode())
    assert history["train/loss"].steps.tolist() == list(range(100, 1001, 100))


def test_one_row_per_epoch_at_the_same_step_of_each_is_kept_apart(tmp_path: Path) -> None:
    log = "".join(f"[Epoch {epoch}/3] Step 100/100 loss {epoch}\n" for epoch in (1, 2, 3))
    history = read_log(tmp_path / "log", log.encode())
    assert points(history, "train/loss") == [(100, 1.0), (200, 2.0), (300, 3.0)]


def test_a_loop_that_starts_over_at_zero_is_at_least_one_step_longer_than_its_last_number(tmp_path: Path) -> None:
    log = "".join(f"Epoch {epoch}, batch {batch}, loss={epoch}.{batch}\n" for epoch in (1, 2) for batch in (0, 50))
    assert points(read_log(tmp_path / "log", log.encode()), "train/loss") == [
        (0, 1.0),
        (50, 1.5),
        (51, 2.0),
        (101, 2.5),
    ]


def test_a_counter_of_the_run_that_agrees_with_a_bar_does_not_replace_it(tmp_path: Path) -> None:
    bars = [f"\r {step}%|#  | {step}/100 [00:01<00:09, loss={step / 100}]" for step in (10, 20, 30)]
    history = read_log(
        tmp_path / "log", "\n[ITER 20] test: PSNR 24.1\n".join(["".join(bars[:2]), bars[2]]).encode() + b"\n"
    )
    assert points(history, "train/loss") == [(10, 0.1), (20, 0.2), (30, 0.3)]
    assert points(history, "test/psnr") == [(20, 24.1)]


def test_the_result_of_an_evaluation_is_not_of_the_training_although_it_has_the_counter_of_the_run(
    tmp_path: Path,
) -> None:
    history = read_log(
        tmp_path / "log",
        b"loss = 2.0, step = 100\nEvaluation [5/5]\nSaved for global step 150: accuracy = 0.9, loss = 1.5\n"
        b"loss = 1.0, step = 150\nEvaluation [5/5]\nloss = 0.5, step = 200\n",
    )
    assert points(history, "train/loss") == [(100, 2.0), (150, 1.0), (200, 0.5)]
    assert points(history, "eval/loss") == [(150, 1.5)]
    assert "train/accuracy" not in history


def test_an_evaluation_before_the_first_step_is_at_zero(tmp_path: Path) -> None:
    history = read_log(tmp_path / "log", b"val loss 4.5\nstep 1/9 loss 4.3\nstep 2/9 loss 4.0\nval loss 4.1\n")
    assert points(history, "eval/loss") == [(0, 4.5), (2, 4.1)]


def test_the_mean_of_an_epoch_is_a_metric_of_its_own_unless_it_repeats_the_last_value(tmp_path: Path) -> None:
    history = read_log(
        tmp_path / "log",
        b"Epoch 1\nBatch 9/10 loss: 0.5\nTrain Loss: 0.7\nLearning rate: 0.1\n"
        b"Epoch 2\nBatch 9/10 loss: 0.4\nTrain Loss: 0.4\n",
    )
    assert points(history, "train/loss") == [(9, 0.5), (19, 0.4)]
    assert points(history, "train/mean_loss") == [(9, 0.7), (19, 0.4)]
    assert points(history, "train/learning_rate") == [(9, 0.1)]
    same = b"Epoch 1\nBatch 9/10 loss: 0.5\nloss: 0.50\nEpoch 2\nBatch 9/10 loss: 0.4\nloss: 0.40\n"
    assert [*read_log(tmp_path / "same", same)] == ["train/loss"]


def test_a_score_below_those_of_an_evaluation_is_one_of_them_unless_the_training_has_it(tmp_path: Path) -> None:
    history = read_log(
        tmp_path / "log", b"Epoch 1\nloss: 0.5\nVal Loss: 0.6\nF1: 0.8\nEpoch 2\nloss: 0.4\nVal Loss: 0.5\nF1: 0.9\n"
    )
    assert points(history, "train/loss") == [(1, 0.5), (2, 0.4)]
    assert points(history, "eval/f1") == [(1, 0.8), (2, 0.9)]
    history = read_log(tmp_path / "other", b"val loss: 0.6\nloss: 0.5\nval loss: 0.4\nloss: 0.3\n")
    assert [value for _, value in points(history, "train/loss")] == [0.5, 0.3]


def test_a_line_between_rules_tells_what_the_numbers_below_it_are_of(tmp_path: Path) -> None:
    log = b"epoch 1 loss: 0.5\n>>>>>testing : run_sl384_ll48<<<<<\ntest shape: (357, 32)\nmse:0.25, mae:0.75\n"
    history = read_log(tmp_path / "log", log)
    assert (points(history, "test/mse"), points(history, "test/mae")) == ([(1, 0.25)], [(1, 0.75)])


@pytest.mark.parametrize("shape", ["(5000, 64, 64)", "(7, 64)"])
def test_the_shape_of_what_was_loaded_is_no_epoch_and_no_step(tmp_path: Path, shape: str) -> None:
    (tmp_path / "log").write_text(f"loading x.npy ... {shape}\niter 10 loss 0.5\niter 20 loss 0.4\n")
    assert [*LogMetrics(tmp_path / "log").history] == ["train/loss"]
    assert read_line(f"loading x.npy ... {shape}") is None


def test_two_pairs_between_bars_are_no_row_of_a_table(tmp_path: Path) -> None:
    history = read_log(tmp_path / "log", b"Epoch: 3\n| Test Loss: 2.2 | Test PPL:  60.1 |\n")
    assert (points(history, "test/loss"), points(history, "test/perplexity")) == ([(3, 2.2)], [(3, 60.1)])


def test_a_list_in_the_cell_of_a_table_has_a_curve_for_each_of_its_numbers(tmp_path: Path) -> None:
    rows = (
        b"Step      Train loss            Test loss  Test metric\n0         [2.5e-01, 1.0e-01]  [0.5]     [1.0e+00]\n"
    )
    shapes = b"[3, 4]    [5, 6]    [7, 8]    [9, 9]\n"
    best = b"Best model at step 0:\n  train loss: 3.5e-01\n  test loss: 5.0e-01\n\n"
    history = read_log(tmp_path / "log", rows + b"200       [1.5e-01, 0.5e-01]  [0.4]     []\n" + best + shapes)
    assert {name: points(history, name) for name in history} == {
        "train/loss_1": [(0, 0.25), (200, 0.15)],
        "train/loss_2": [(0, 0.1), (200, 0.05)],
        "test/loss": [(0, 0.5), (200, 0.4)],
        "test/metric": [(0, 1.0)],
    }


@pytest.mark.parametrize(
    ("log", "total"),
    [
        ("step 17/250 loss 2.0", 250),
        ("Epoch 1/3: [17/250] loss 2.0", 750),
        ("Epoch 1/3: [250/250] loss 2.0\nEpoch 2/3: [17/250] loss 1.0", 750),
        ("  Total optimization steps = 60\nstep 5 loss 1.0", 60),
        ("\r  7%|7  | 17/250 [00:01<00:10, 20.1it/s, loss=2.0]", 250),
        ("Epoch 1/3 loss 2.0", None),
        ("> EPOCH: 0/5\n--> STEP: 25/92 -- GLOBAL_STEP: 117\n | > loss: 0.5", 460),
        ("Epoch 1 [250/250] loss 2.0\nEpoch 2 [17/250] loss 1.0", None),
        ("epoch 1/2\n\r 50%|5  | 20/40 [00:01, loss=2.0]\nepoch 2/2\n\r 52%|5  | 21/40 [00:01, loss=1.0]", 40),
        ("epoch 0 | step 4/32 | loss 2.0", None),
        ("epoch 0 | step 28/32 | loss 2.0\nepoch 1 | step 4/32 | loss 1.0", None),
        ("Epoch 1\n\r 50%|5  | 20/40 [00:01, loss=2.0]", None),
        ("epoch 0 | step 20/40 | loss 2.0\nepoch 1 | step 21/40 | loss 1.0", 40),
        ("epoch 0 | global_step 4/32 | loss 2.0", 32),
        ("epoch 0.125 | step 4/32 | loss 2.0", 32),
    ],
)
def test_the_number_of_all_steps_is_taken_where_it_is_printed(tmp_path: Path, log: str, total: int | None) -> None:
    (tmp_path / "log").write_text(log + "\n")
    metrics = LogMetrics(tmp_path / "log")
    assert metrics.history
    assert metrics.total_steps() == total


@pytest.mark.parametrize(
    ("log", "total"),
    [
        ("epoch 0 | step 4/32 | loss 2.0", 128),
        ("epoch 1 | step 28/32 | loss 2.0\nepoch 2 | step 4/32 | loss 1.0", 128),
        ("epoch 3 | step 28/32 | loss 2.0\nepoch 4 | step 4/32 | loss 1.0", None),
        ("step 4/32 | loss 2.0", 32),
    ],
)
def test_the_steps_of_an_epoch_are_multiplied_by_the_number_of_epochs(
    tmp_path: Path, log: str, total: int | None
) -> None:
    (tmp_path / "log").write_text(log + "\n")
    metrics = LogMetrics(tmp_path / "log")
    assert metrics.history
    assert metrics.total_steps(4) == total


# --- whole logs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("printer", [*PRINTERS, *CHOSEN_PRINTERS], ids=lambda printer: printer.name)
def test_the_output_of_a_real_program_gives_its_points(tmp_path: Path, printer: Printer) -> None:
    (tmp_path / "log").write_text(printer.text + "\n")
    log = LogMetrics(tmp_path / "log")
    history = log.history
    assert {name: points(history, name) for name in printer.points if name in history} == {
        name: [(step, pytest.approx(value)) for step, value in expected] for name, expected in printer.points.items()
    }
    assert log.counts == printer.counts
    assert not [name for name in history if any(word in name for word in printer.never)]


def test_a_log_of_transformers_has_the_steps_of_its_own_record() -> None:
    """The log and the state were written by one run of `Trainer` 5.23; the bar lags behind the rows in it."""
    folder = Path(__file__).parent
    history = LogMetrics(folder / "hf_trainer_5.log").history
    state = json.loads(folder.with_name("hf_trainer_state.json").read_text())["log_history"]
    for ours, theirs in (("train/loss", "loss"), ("eval/loss", "eval_loss"), ("train/learning_rate", "learning_rate")):
        expected = [(row["step"], pytest.approx(row[theirs], rel=1e-3)) for row in state if theirs in row]
        assert points(history, ours) == expected


def test_a_progress_bar_is_read_while_it_moves(tmp_path: Path) -> None:
    bar = "\rEpoch 1:  {0}%|##  | {0}/100 [00:10<00:12, 4.50it/s, loss={1}]"
    log = LogMetrics(tmp_path / "log")
    (tmp_path / "log").write_text(bar.format(10, 0.9) + bar.format(20, 0.8) + bar.format(30, 0.7))
    assert points(log.history, "train/loss") == [(10, 0.9), (20, 0.8)]
    with (tmp_path / "log").open("a") as file:
        file.write("\n")
    assert points(log.history, "train/loss") == [(10, 0.9), (20, 0.8), (30, 0.7)]


def test_colours_and_bad_bytes_around_a_row_do_not_hide_it(tmp_path: Path) -> None:
    history = read_log(tmp_path / "log", b"\x1b[32mstep 5\x1b[0m \xff\xfe loss: \x1b[1m2.5\x1b[0m\n")
    assert points(history, "train/loss") == [(5, 2.5)]


def test_a_diverged_loss_stays_visible(tmp_path: Path) -> None:
    history = read_log(
        tmp_path / "log", b"step 1 loss 2.0\nstep 2 loss nan\nstep 3 loss inf\n{'loss': nan, 'step': 4}\n"
    )
    values = history["train/loss"].values
    assert values[0] == 2.0
    assert math.isnan(values[1])
    assert values[2] == math.inf
    assert math.isnan(values[3])


def test_metrics_in_a_flood_of_other_output_are_found(tmp_path: Path) -> None:
    noise = b"nothing to see in line 12345, and nothing in this one\n" * 3000
    history = read_log(tmp_path / "log", b"".join(noise + b"step %d loss %d.5\n" % (i, i) for i in range(5)))
    assert points(history, "train/loss") == [(i, i + 0.5) for i in range(5)]


def test_a_flood_of_like_lines_costs_little(tmp_path: Path) -> None:
    line = b"2026-11-21 13:00:00,%03d DEBUG loader: fetched batch %05d from part-00042.parquet in 3.2 ms\n"
    noise = b"".join(line % (i % 1000, i) for i in range(10_000)) + b"step 1 loss 0.5\n"
    (tmp_path / "log").write_bytes(noise)
    best = math.inf
    for _ in range(5):
        log = LogMetrics(tmp_path / "log")
        before = time.thread_time()
        history = log.history
        best = min(best, time.thread_time() - before)
    assert points(history, "train/loss") == [(1, 0.5)]
    assert best < 0.02  # for 0.9 MB; 0.002 on a quiet machine, 0.2 if each line were read


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_of_a_flood_of_rows_only_samples_are_read_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(printed, "_FIRST_LOOK_S", 0.0)
    flood = b"".join(b"step %d loss %d.5" % (i, i) + end for i in range(100_000))
    history = read_log(tmp_path / "log", flood)
    found = points(history, "train/loss")
    assert found[-1] == (99_999, 99_999.5), "the newest row is always read"
    assert found == [(i, i + 0.5) for i in range(100_000 - len(found), 100_000)]
    assert 0 < len(found) < 1000
    assert history.num_unread_bytes == len(flood) - sum(len(b"step %d loss %d.5\n" % (i, i)) for i, _ in found)


def test_after_a_flood_of_rows_every_new_one_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "_FIRST_LOOK_S", 1e-9)
    log = LogMetrics(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"".join(b"step %d loss 1.0\n" % i for i in range(20_000)))
    assert len(log.history["train/loss"]) == 20_000  # the first block takes all the time there is, and more
    for step in range(20_000, 20_100):
        with (tmp_path / "log").open("ab") as file:
            file.write(b"step %d loss 2.0\n" % step)
        assert log.history.last_step == step
    assert log.history.num_unread_bytes == 0


def test_a_log_that_starts_over_replaces_the_curve(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = LogMetrics(path)
    path.write_text("loss=3.0\nloss=2.0\nloss=1.0\n")
    assert len(log.history["train/loss"]) == 3
    path.write_text("loss=9.0\n")
    assert points(log.history, "train/loss") == [(1, 9.0)]


def test_a_missing_log_has_no_metrics(tmp_path: Path) -> None:
    history = LogMetrics(tmp_path / "none").history
    assert ([*history], history.last_step) == ([], None)


def test_a_line_in_two_pieces_is_read_once(tmp_path: Path) -> None:
    history = read_log(tmp_path / "log", b"step 1 lo", b"ss 2.", b"5\nstep 2", b" loss 2.0\n")
    assert points(history, "train/loss") == [(1, 2.5), (2, 2.0)]


# --- fuzz ---------------------------------------------------------------------------------------

PIECES = (
    """loss step epoch Epoch val train acc lr = : [ ] ( ) / , | { } ' " nan inf - 1 % é 2.5 1e-4 1,234 1e999 tensor("""
)
words = st.sampled_from([*PIECES.split(), "9" * 50, "it/s", " ", "\r", "\x1b[0m", "\\u0041"])
printed_lines = st.one_of(
    st.lists(words, max_size=14).map(" ".join),
    st.lists(words, max_size=14).map("".join),
    st.text(max_size=60),
    st.dictionaries(
        st.sampled_from(
            ["loss", "step", "epoch", "eval_loss", "train_runtime", "time", "samples", "dropped", "\ud800loss"]
        ),
        st.one_of(
            st.floats(),
            st.integers(),
            st.text(max_size=3),
            st.none(),
            st.dictionaries(st.text(max_size=3), st.floats()),
        ),
    ).map(repr),
)


WORDS = st.sampled_from(["rooms", "files", "size", "of", "the", "meters", "long", "and", "total", "model", "images"])
AMOUNTS = st.one_of(st.integers(0, 999), st.floats(0, 99).map(lambda value: round(value, 2)))
PIECES = st.one_of(
    WORDS, AMOUNTS.map(str), st.sampled_from([":", ",", "-", "1m 2s", "[3, 4]", "(", ")", "=", ">>>", "***"])
)


@given(st.lists(PIECES, max_size=14))
@examples(6_000)
def test_text_without_the_name_of_a_measure_or_of_a_counter_is_no_row(pieces: list[str]) -> None:
    assert parse_line(" ".join(pieces)) is None


@given(st.integers(0, 999), st.lists(st.tuples(AMOUNTS, WORDS), min_size=1, max_size=6))
@examples(2_000)
def test_amounts_of_ordinary_things_behind_a_number_are_no_row(number: int, amounts: list[tuple[float, str]]) -> None:
    assert parse_line(f"{number}: " + ", ".join(f"{amount} {word}" for amount, word in amounts)) is None


NAMES = st.sampled_from(["epoch", "step", "val_loss", "acc", "train", "iter", "mIoU", "model"])
FILES = st.builds(
    lambda folder, parts, joint, end: folder + joint.join(f"{name}={value}" for name, value in parts) + end,
    st.sampled_from(["", "out/val/run_3/", "/home/me/train/loss_0.5/", "~/runs/acc/7/", "./"]),
    st.lists(st.tuples(NAMES, AMOUNTS), min_size=1, max_size=3),
    st.sampled_from(["-", "_"]),
    st.sampled_from([".ckpt", ".pt", ".pth", ".safetensors"]),
)


@given(FILES, AMOUNTS)
@examples(2_000)
def test_the_name_of_a_file_gives_neither_a_name_nor_a_number(file: str, value: float) -> None:
    for quote in ("", "'", '"'):
        name = quote + file + quote
        assert parse_line(f"global step 86: 'val_loss' reached {value} (best {value}), saving model to {name}") is None
        assert parse_line(f"best weights: {name}.") is None
        assert parse_line(f"step 5 loss 0.5 saved {name}") == {"step": 5, "train/loss": 0.5}


@given(AMOUNTS, st.integers(0, 10**6), st.sampled_from(["mIoU", "coco/bbox_mAP", "accuracy"]), FILES)
@examples(2_000)
def test_the_step_of_the_best_so_far_is_not_its_value(value: float, step: int, metric: str, file: str) -> None:
    for unit in ("iter", "epoch", "steps"):
        line = f"The best checkpoint with {value} {metric} at {step} {unit} is saved to {file}."
        assert parse_line(line) is None
    row = parse_line(f"best {metric} 0.25 at step {step}")
    assert row is not None
    assert [*row.values()] == [0.25]


@given(printed_lines)
@examples(6_000)
def test_no_line_breaks_the_reader(line: str) -> None:
    row = parse_line(line)
    if row is not None:
        assert isinstance(row.get("step", 0), int)
        assert 0 <= row.get("step", 0) <= 2**53
        assert all(isinstance(value, float) for name, value in row.items() if name != "step")
        assert all("/" in name for name in row.keys() - {"step", "time", "samples"})
        assert any("/" in name for name in row)


@given(st.floats(), st.floats(), st.integers(0, 2**53))
@examples(1_000)
def test_printed_numbers_come_back_exactly(loss: float, lr: float, step: int) -> None:
    forms = [
        f"step {step} loss {loss!r} lr {lr!r}",
        f"step={step}, loss={loss!r}, lr={lr!r}",
        repr({"step": step, "loss": loss, "lr": lr}),
    ]
    if math.isfinite(loss) and math.isfinite(lr):
        forms.append(json.dumps({"step": step, "loss": loss, "lr": lr}))
    for line in forms:
        row = parse_line(line)
        assert row is not None, line
        assert repr((row["step"], row["train/loss"], row["train/learning_rate"])) == repr((step, loss, lr)), line


@given(
    st.lists(
        st.one_of(st.binary(max_size=40), printed_lines.map(lambda line: line.encode("utf-8", "replace"))), max_size=8
    ),
    st.data(),
)
@examples(600)
def test_a_log_reads_the_same_however_its_bytes_arrive(
    tmp_path_factory: pytest.TempPathFactory, found: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("r")
    whole = b"\n".join(found) + b"\n"
    cut = data.draw(st.integers(0, len(whole)))
    once = read_log(folder / "once", whole)
    twice = read_log(folder / "twice", whole[:cut], whole[cut:])
    assert once.keys() == twice.keys()
    assert once.num_skipped == 0
    for name in once:
        assert repr(points(once, name)) == repr(points(twice, name))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("Loss after 100 steps: 0.51\nLoss after 200 steps: 0.42\n", {"train/loss": [(100, 0.51), (200, 0.42)]}),
        (
            "epoch train_loss val_loss\n1 0.512 0.612\n2 0.412 0.522\n",
            {"train/loss": [(1, 0.512), (2, 0.412)], "eval/loss": [(1, 0.612), (2, 0.522)]},
        ),
        ("dice [0.61, 0.72] step 3 loss 0.5\n", {"train/dice": [(3, 0.61)], "train/dice_1": [(3, 0.72)]}),
        ("Epoch 1 loss 0.5\nBest epoch: 7 with loss 0.4\nEpoch 2 loss 0.45\n", {"train/loss": [(1, 0.5), (2, 0.45)]}),
        ("[GPU 1] step 5 loss 0.5\n[GPU 0] step 5 loss 0.6\n[GPU 1] step 9 loss 0.1\n", {"train/loss": [(5, 0.6)]}),
        (
            "INFO:root:[1,    10] loss: 0.612\nINFO:root:[2,    10] loss: 0.512\n",
            {"train/loss": [(10, 0.612), (20, 0.512)]},
        ),
        ("Args(lr=0.1, epochs=3, loss=0.5)\nstep 1 loss 2.0\n", {"train/loss": [(1, 2.0)]}),
        (
            "step 5/20 loss 2.5\nstep 6/20 loss 2.0\nstep 7/20 loss 1.5\nthe loss 4 with step 2\n",
            {"train/loss": [(5, 2.5), (6, 2.0), (7, 1.5)]},
        ),
    ],
)
def test_what_ordinary_scripts_print(tmp_path: Path, log: str, expected: dict[str, Any]) -> None:
    history = read_log(tmp_path / "log", log.encode())
    assert {name: points(history, name) for name in expected} == expected


def test_epochs_that_begin_again_are_drawn_after_those_of_the_first_fold(tmp_path: Path) -> None:
    text = "".join(f"fold {fold}\n" + "".join(f"epoch {e} loss {fold}.{e}\n" for e in (1, 2, 3)) for fold in (1, 2))
    history = read_log(tmp_path / "log", text.encode())
    assert points(history, "train/loss") == [(1, 1.1), (2, 1.2), (3, 1.3), (4, 2.1), (5, 2.2), (6, 2.3)]


@pytest.mark.parametrize(
    ("batch", "values", "evaluation", "steps"),
    [
        ("[{0}/1000 (9%)] loss: {1}", range(0, 1000, 64), "Test set: average loss: {}", [1000, 2000, 3000]),
        ("Batch {0}/938, loss {1}", range(100, 938, 100), "val loss {}", [938, 1876, 2814]),
        ("Batch {0}/1000, loss {1}", range(0, 1000, 100), "val loss {}", [1000, 2000, 3000]),
        ("Batch {0}/1000, loss {1}", range(100, 901, 100), "val loss {}", [900, 1900, 2900]),  # 1000 would be printed
        ("Step [{0}/938], loss {1}", range(100, 938, 100), "val loss {}", [938, 1876, 2814]),
        ("Batch {0}/938, loss {1}\nval loss {1}", range(100, 938, 100), "", []),
        ("Batch {0}/938, loss {1}\naccuracy 0.{0}", range(100, 938, 100), "val loss {}", [938, 1876, 2814]),
    ],
)
def test_an_evaluation_behind_the_last_batch_stands_at_the_end_of_the_epoch(
    tmp_path: Path, batch: str, values: range, evaluation: str, steps: list[int]
) -> None:
    epochs = [[batch.format(value, 9 - e - value / 1e4) for value in values] for e in range(3)]
    lines = [f"{line}\n".encode() for e, texts in enumerate(epochs) for line in (*texts, evaluation.format(7.5 - e))]
    history, log, seen = read_log(tmp_path / "whole", b"".join(lines)), LogMetrics(tmp_path / "live"), list[Any]()
    name = "test/loss" if "test/loss" in history else "eval/loss"
    assert [(step, value) for step, value in points(history, name) if value % 1 == 0.5] == [
        *zip(steps, (7.5, 6.5, 5.5), strict=False)
    ]
    for line in lines:  # points that were read do not move
        with (tmp_path / "live").open("ab") as file:
            file.write(line)
        now = [(each, *point) for each in log.history for point in points(log.history, each)]
        assert set(seen) <= set(now)
        seen = now
    assert set(seen) == {(each, *point) for each in history for point in points(history, each)}
    if "\n" in batch:  # rows of each batch stand at its step
        second = history["train/accuracy" if "accuracy" in batch else name]
        assert second.steps.tolist() == history["train/loss"].steps.tolist()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (  # two ranks end their lines at once, as under torchrun
            "[RANK 1] Epoch 0 | Loss: 3.5[RANK 0] Epoch 0 | Loss: 4.5\n\n",
            {"train/loss": [(0, 4.5)]},
        ),
        (  # LightGBM and XGBoost, whose objectives have any names
            "[10]\ttraining's l2: 6.5\tvalid_1's l2: 8.5\n[20]\ttraining's l2: 5.5\tvalid_1's l2: 7.5\n",
            {"train/l2": [(10, 6.5), (20, 5.5)], "eval/l2": [(10, 8.5), (20, 7.5)]},
        ),
        (
            "[10:00:01] [0]\ttrain-gamma-deviance:0.9\ttest-gamma-deviance:1.1\n",
            {"train/gamma_deviance": [(0, 0.9)], "test/gamma_deviance": [(0, 1.1)]},
        ),
        (  # skorch: colours, and a column of marks that is empty where there is none
            "  epoch    train_loss    valid_loss    cp     dur\n-------  ------------  ------------  ----  ------\n"
            "      1        \x1b[36m1.5000\x1b[0m        \x1b[35m1.7000\x1b[0m     +  0.0311\n"
            "      2        1.4000        1.6000        0.0302\n",
            {"train/loss": [(1, 1.5), (2, 1.4)], "eval/loss": [(1, 1.7), (2, 1.6)]},
        ),
        (  # ignite: the heading has a duration
            "\nEpoch 1 - Evaluation time (seconds): 2.13 - Train metrics:\n \tAccuracy: 0.75\n"
            "\nEpoch 1 - Evaluation time (seconds): 0.13 - Test metrics:\n \tAccuracy: 0.65\n",
            {"train/accuracy": [(1, 0.75)], "test/accuracy": [(1, 0.65)]},
        ),
        (
            "[Step 9] Train accuracy / Test accuracy: 0.55 / 0.45.\n",
            {"train/accuracy": [(9, 0.55)], "test/accuracy": [(9, 0.45)]},
        ),
        (
            "Epoch: 001/010 | Gen/Dis Loss: 1.50/0.25\nEpoch: 002/010 | Gen/Dis Loss: 1.25/0.50\n",
            {"train/gen_loss": [(1, 1.5), (2, 1.25)], "train/dis_loss": [(1, 0.25), (2, 0.5)]},
        ),
        ("step 3 loss (train/val): 0.5/0.75\n", {"train/loss": [(3, 0.5)], "eval/loss": [(3, 0.75)]}),
        (
            "Updates 10, num timesteps 800\n Last 10 training episodes: mean/median reward 23.1/22.5\n",
            {"train/mean_reward": [(800, 23.1)], "train/median_reward": [(800, 22.5)]},
        ),
        (  # the steps are those of the episode
            "Episode 1/9 | Reward: 14.0 | Steps: 24\nEpisode 2/9 | Reward: 15.0 | Steps: 21\n",
            {"train/reward": [(1, 14.0), (2, 15.0)]},
        ),
        (
            "------ Iteration #1 ------\nAverage Loss: 0.5\n------ Iteration #2 ------\nAverage Loss: 0.25\n",
            {"train/average_loss": [(1, 0.5), (2, 0.25)]},
        ),
        (
            "Total T: 200 Episode Num: 3 Reward: 9.5\nEvaluation over 10 episodes: 234.25\n",
            {"train/reward": [(3, 9.5)], "eval/value": [(3, 234.25)]},
        ),
        (
            "Epoch 01, Loss: 1.5\nTrain: 0.75, Val: 0.50, Test: 0.25\n",
            {"train/value": [(1, 0.75)], "eval/value": [(1, 0.5)], "test/value": [(1, 0.25)]},
        ),
        (
            "=====Epoch 1\nEvaluating...\n{'Train': {'rocauc': 0.75}, 'Validation': {'rocauc': 0.5}}\n",
            {"train/rocauc": [(1, 0.75)], "eval/rocauc": [(1, 0.5)]},
        ),
        ("At iterate    5    f=  2.50000D-01    |proj g|=  1.2D-02\n", {"train/f": [(5, 0.25)]}),
        (
            "".join(f"\rEpoch 1/3:  {i}0%|##  | {i}0/100 [00:01<00:05, 9.1it/s, D={i}.5, G=0.{i}]" for i in (1, 2))
            + "\n",
            {"train/d": [(10, 1.5), (20, 2.5)], "train/g": [(10, 0.1), (20, 0.2)]},
        ),
    ],
)
def test_what_boosting_graph_and_rl_scripts_print(
    tmp_path: Path, log: str, expected: dict[str, list[tuple[int, float]]]
) -> None:
    history = read_log(tmp_path / "log", log.encode())
    assert {name: points(history, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("elapsed_s", [3.1, 6.3, 9.2, 12.9, 16.1]),
        ("time", [3.1, 6.3, 9.2, 12.9, 16.1]),
        ("total_tokens", [512, 1024, 1536, 2048, 2560]),
        ("consumed", [512, 1024, 1536, 2048, 2560]),
        ("instances", [181, 79, 123, 188, 11]),
        ("clip_range", [0.2, 0.2, 0.2, 0.2, 0.2]),
        ("run", [1, 1, 1, 1, 1]),
        ("total", ["9m 58s", "10m 1s", "1h 2m", "1h2m3.5s", "1d 2h 3m"]),
    ],
)
def test_clocks_counts_and_settings_are_no_curves(tmp_path: Path, name: str, values: list[object]) -> None:
    log = "".join(f"step: {i} loss: {i}.5 {name}: {value}\n" for i, value in enumerate(values, 1))
    assert [*read_log(tmp_path / "log", log.encode())] == ["train/loss"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("time", [0.31, 0.32, 0.33, 0.34, 0.31]),
        ("time", [12.1, 11.9, 12.4, 12.6, 12.9]),
        ("ep_len", [20, 24, 29, 40, 41]),
        ("elapsed_per_iteration", [3.1, 6.3, 9.2, 12.9, 16.1]),
        ("clip_range", [0.2, 0.19, 0.18, 0.17, 0.16]),
        ("air_time", [-0.05, -0.04, -0.03, -0.02, -0.01]),  # no time is below zero: a reward
        ("time_out", [0.1, 0.2, 0.3, 0.4, 0.5]),
    ],
)
def test_durations_and_what_does_not_grow_with_the_steps_are_curves(
    tmp_path: Path, name: str, values: list[float]
) -> None:
    log = "".join(f"step: {i} loss: {i}.5 {name}: {value}\n" for i, value in enumerate(values, 1))
    assert points(read_log(tmp_path / "log", log.encode()), f"train/{name}") == [*enumerate(values, 1)]


@pytest.mark.parametrize(
    ("loop", "step"),
    [
        ("step {i}/10 global_step {now} loss 0.{i}", 10),
        ("update {i}/10 total_timesteps {now}00 loss 0.{i}", 800),  # counts something else
        ("micro_batch {i} batch {i}/9 global_step {now}0 loss 0.{i}", 80),
    ],
)
def test_a_loop_beside_a_counter_of_the_run_tells_where_the_epoch_ends(tmp_path: Path, loop: str, step: int) -> None:
    rows = [loop.format(i=i, now=10 * epoch + i) for epoch in (0, 1) for i in (4, 8)]
    log = "\n".join([*rows[:2], "val loss 0.7", *rows[2:], "val loss 0.6", ""])
    assert points(read_log(tmp_path / "log", log.encode()), "eval/loss")[0] == (step, 0.7)


def test_a_number_before_the_epoch_is_that_of_a_loop_around_it(tmp_path: Path) -> None:
    log = "".join(f"Run: {run:02d}, Epoch: {i:02d}, Loss: {i}.5\n" for run in (1, 2, 3) for i in (1, 2))
    assert {*read_log(tmp_path / "log", log.encode())} == {"train/loss", "train/epoch"}


@pytest.mark.parametrize(
    ("first", "line", "at"),
    [
        ("=> loaded checkpoint 'last.pt' (epoch 3)", "Epoch: [3][  1/100] Loss 0.5", 301),
        ("", "Epoch: [3][  1/100] Loss 0.5", 301),
        ("", "Epoch [4/10], Step [1/100], Loss: 0.5", 301),
        ("Resuming after epoch 3, global step 300 of 1000", "epoch 4 iter 1/100 loss 0.5", 301),
        ("=> resumed from epoch 3", "Epoch [ 3/10][  1/100] loss 0.5", 301),
        ("", "epoch 4/10 step 350/1000 loss 0.5", 350),
        ("", "epoch 4/10 step   25/1000 loss 0.5", 3025),
        ("", "Epoch 1/3 Step 1/100 loss 0.5", 1),
        ("tokens per step: 524288", "Epoch 1/3 Step 1/100 loss 0.5", 1),
        ("train: 812344 sequences", "step 1/100 loss 0.5", 1),
    ],
)
def test_a_resumed_training_is_drawn_where_its_epoch_begins(tmp_path: Path, first: str, line: str, at: int) -> None:
    history = read_log(tmp_path / "log", f"{first}\n{line}\n".encode())
    assert points(history, "train/loss") == [(at, 0.5)]


def test_an_epoch_behind_steps_of_the_run_moves_none(tmp_path: Path) -> None:
    log = b"step 320/1200 loss 0.5\nepoch 4/12 val loss 0.75\nstep 340/1200 loss 0.25\nstep 360/1200 loss 0.5\n"
    history = read_log(tmp_path / "log", log)
    assert [step for step, _ in points(history, "train/loss")] == [320, 340, 360]
    assert points(history, "eval/loss") == [(320, 0.75)]


def test_epochs_behind_a_resumed_one_follow_it(tmp_path: Path) -> None:
    lines = [f"Epoch [{e}/9] Iter [{i}/100] loss: 0.{e}{i}" for e in (4, 5) for i in (50, 100)]
    history = read_log(tmp_path / "log", "\n".join(["resuming (epoch 3, global step 300)", *lines, ""]).encode())
    assert [step for step, _ in points(history, "train/loss")] == [350, 400, 450, 500]


@pytest.mark.parametrize(
    "line",
    [
        "image_size=32, timesteps=1000, objective=pred_v",
        "     timesteps: 1000",
        "{'dataset': 'cifar10', 'timesteps': 1000, 'lr': 0.0002}",
        "lr=0.1 momentum=0.9 amp=True data=x model=y opt=adam device=cuda nesterov=False batch=16",
        "resuming from out/ckpt_002000.pt (val loss 1.6412)",
        "8 layers, each with correlation order: 3",
    ],
)
def test_settings_before_a_training_are_neither_steps_nor_values(tmp_path: Path, line: str) -> None:
    history = read_log(tmp_path / "log", f"{line}\nstep 1 loss 0.5\nstep 2 loss 0.25\n".encode())
    assert {name: points(history, name) for name in history} == {"train/loss": [(1, 0.5), (2, 0.25)]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("epoch 3  ARI 0.45  batch mixing 0.39", {"train/ari": 0.45, "train/mixing": 0.39}),
        ("epoch 3\nvalidation dice: spleen 0.9, left_lung 0.8", {"eval/dice_spleen": 0.9, "eval/dice_left_lung": 0.8}),
        ("epoch 3 loss 0.5, val mse 0.46 -> 0.43", {"train/loss": 0.5}),
        ("epoch 3 FID (10k): 47.5", {"train/fid": 47.5}),
        ("epoch 3 loss 0.5 load 0.25", {"train/loss": 0.5, "train/load": 0.25}),
        ("epoch 3 eval vs random: win rate 0.9", {"eval/win_rate": 0.9}),
        ("epoch 3 arena: 34 wins, 6 losses -> score 0.85", {"train/score": 0.85}),
        ("epoch 3\n client 5  loss=0.5  acc=0.75", {"train/client_5_loss": 0.5, "train/client_5_accuracy": 0.75}),
        ("epoch 3 Loss 0.5 (avg 0.75)", {"train/loss": 0.5, "train/mean_loss": 0.75}),
    ],
)
def test_names_are_those_of_the_values(tmp_path: Path, line: str, expected: dict[str, float]) -> None:
    history = read_log(tmp_path / "log", f"epoch 2 loss 2.5\n{line}\n".encode())
    assert {n: v for n in history if n != "train/epoch" for s, v in points(history, n) if s == 3} == expected


def test_a_second_evaluation_at_a_step_is_the_final_one(tmp_path: Path) -> None:
    log = "".join(f"epoch {e} loss 0.{e}\nval loss: 0.{9 - e}1\n" for e in (1, 2, 3)) + "best model: val loss: 0.55\n"
    history = read_log(tmp_path / "log", log.encode())
    assert points(history, "eval/loss") == [(1, 0.81), (2, 0.71), (3, 0.61)]


def test_a_bar_that_nearly_always_changes_shows_the_same_value_twice_if_it_was_measured_twice(tmp_path: Path) -> None:
    values = [*range(20, 40), 39, 41]
    bars = [f"\r {n}%|#| {n}/99 [00:01<00:09, 5.0it/s, loss=0.{v}]" for n, v in enumerate(values, 1)]
    assert len(points(read_log(tmp_path / "log", "".join([*bars, "\r"]).encode()), "train/loss")) == 22
    stale = [f"\r {n}%|#| {n}/99 [00:01<00:09, 5.0it/s, loss=0.{20 + n // 5}]" for n in range(1, 31)]
    assert len(points(read_log(tmp_path / "stale", "".join([*stale, "\r"]).encode()), "train/loss")) == 7


def test_an_end_told_in_a_line_of_its_own_moves_no_row_back(tmp_path: Path) -> None:
    fold = "".join(f"epoch {e}/9 loss 0.{e}5\n" for e in (1, 2, 3)) + "early stop at epoch 3\nval loss 0.75\n"
    history = read_log(tmp_path / "log", (fold + fold).encode())
    assert [step for step, _ in points(history, "train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in points(history, "eval/loss")] == [3, 6]


_SEEN = "ts=2026-01-31T14:22:33Z lvl=info event={0} samples={1} loss={2} auc=0.75\n"
_LOGURU = "12:00:0{0} | INFO | ep {1} it {2}/97 | loss 0.{0} | 0.2 s/it\n"
_BLOCK = "--- update {0}/9 ---\n  timesteps         {0}000\n  explained var     0.{0}   entropy 1.{0}\n"
_RANKS = "2026-01-31 14:22:33.1 | INFO    | rank{0} | step 1 loss {0}.5\n"
_RECALLS = "Validation at epoch 5\nK  Recall  NDCG\n10  0.25  0.5\n20  0.75  0.5\n"
_BAR = "\r train: {0}%|#| {0}/100 [00:01<00:09, 5.0it/s, loss=0.{1}]"
_EPOCHS = "\rT:  {0}%|  | {0}/60 [00:01<?, 2.8epoch/s]\r"


@pytest.mark.parametrize(
    ("log", "name", "expected"),
    [
        (_RANKS.format(1) + _RANKS.format(0), "train/loss", [(1, 0.5)]),
        (f"Epoch 5 | loss: 0.5\n{_RECALLS}Epoch 6 | loss: 0.25\n", "train/loss", [(5, 0.5), (6, 0.25)]),
        (f"Epoch 5 | loss: 0.5\n{_RECALLS}Epoch 6 | loss: 0.25\n", "eval/k_10_recall", [(5, 0.25)]),
        ("Epoch 1/3:   1%|# | 4/640 [00:00<00:33, 18.8img/s, loss (batch)=1.25]\r\n", "train/loss_batch", [(4, 1.25)]),
        (f"{_EPOCHS.format(0)}     \repoch   1: train mse 0.5\n{_EPOCHS.format(1)}\n", "train/mse", [(1, 0.5)]),
        ("it 0/9 | D 0.5 (gp 0.1) | G 1.5\nit 3/9 | D 0.4 (gp 0.1) | G 1.25\n", "train/g", [(0, 1.5), (3, 1.25)]),
        ("epoch 3 loss 0.5\n  lr : 1e-03   grad norm 2.5   time 4.1s\n", "train/grad_norm", [(3, 2.5)]),
        (
            "resume from 4.pt (step=40)\n" + _BAR.format(40, 1) + _BAR.format(50, 2) + "\r",
            "train/loss",
            [(40, 0.1), (50, 0.2)],
        ),
        (_BAR.replace(" train", "Epoch 1").format(9, 5) + "\r[ 1] loss 0.5 val loss 0.75\n", "eval/loss", [(9, 0.75)]),
        (_SEEN.format("train", 4096, 2.5) + _SEEN.format("train", 8192, 1.5), "train/loss", [(4096, 2.5), (8192, 1.5)]),
        (
            "".join(_LOGURU.format(n, n // 2, n % 2 * 96) for n in range(4)),
            "train/loss",
            [(0, 0.0), (96, 0.1), (97, 0.2), (193, 0.3)],
        ),
        (
            "  total_timesteps   1000000\n" + _BLOCK.format(1) + _BLOCK.format(2),
            "train/explained_var",
            [(1000, 0.1), (2000, 0.2)],
        ),
        ("epoch 1 loss 0.5\nTest Clustering Metrics:\n  NMI:    72.5%\n  ARI:    45.5%\n", "test/ari", [(1, 45.5)]),
        ("epoch 1 loss 0.5\nkNN (k=20) top-1 46.5% top-5 90.0%\n", "train/top1", [(1, 46.5)]),
        ("episode 10 return 1.5 len 83\nepisode 20 return 2.5 len 76\n", "train/len", [(10, 83), (20, 76)]),
    ],
)
def test_what_scripts_of_their_own_print(
    tmp_path: Path, log: str, name: str, expected: list[tuple[int, float]]
) -> None:
    assert points(read_log(tmp_path / "log", log.encode()), name) == expected


def test_an_epochs_row_behind_an_erased_bar_stands_at_its_end(tmp_path: Path) -> None:
    """The bar was drawn at 62, 72, 82 and 92 of 100; of the last epoch, no bar follows."""
    bar = "\repoch {0}: {1}%|#| {1}/100 [00:01<00:09, 5.0it/s, loss=0.{0}{1}]"
    epochs = ["".join(bar.format(e, n) for n in (0, 62, 72, 82, 92)) + " " for e in (1, 2)]
    log = "".join(f"{drawn}\r          \rEpoch {e} took 9s. Test loss is 0.{e}.\n" for e, drawn in enumerate(epochs, 1))
    assert points(read_log(tmp_path / "log", log.encode()), "test/loss") == [(100, 0.1), (200, 0.2)]


def test_a_bar_with_a_line_an_epoch_has_a_point_an_epoch(tmp_path: Path) -> None:
    line = "Epoch {0}/50\n6680/6680 [==============================] - 2s 256us/step - loss: 4.3{0} - acc: {1}\n"
    log = "".join(line.format(e, acc) for e, acc in ((1, 0.7287), (2, 0.7284), (3, 0.7284)))
    history = read_log(tmp_path / "log", log.encode())
    assert points(history, "train/accuracy") == [(6680, 0.7287), (13360, 0.7284), (20040, 0.7284)]


def test_a_loop_may_count_one_beyond_its_total(tmp_path: Path) -> None:
    lines = [f"Train Epoch: {e} [{i}/199 ({i // 2}%)]\tLoss: 0.{e}{i}5" for e in (0, 1) for i in (0, 100, 200)]
    history = read_log(tmp_path / "log", "\n".join([*lines, ""]).encode())
    assert [step for step, _ in points(history, "train/loss")] == [0, 100, 200, 300, 400]  # 200 is the second 0, too
    assert [*history] == ["train/loss", "train/epoch"]
