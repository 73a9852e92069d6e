"""Tables as programs write them: CSV of Python, Lightning and stable-baselines3, JSONL of Python's json."""

import csv
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nbtools.metrics.history import History
from nbtools.metrics.readers import tabular
from nbtools.metrics.readers.points import extend
from nbtools.metrics.readers.tabular import TableFile, TrainerState

HERE = Path(__file__).parent


def write_csv(path: Path, rows: Iterable[Sequence[object]], encoding: str = "utf-8", **dialect: Any) -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, **dialect).writerows(rows)
    return path


def write_jsonl(path: Path, rows: Iterable[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def curves(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Return the steps and values of each metric in a file."""
    history, reader = History(), TableFile(path)
    extend(history, reader.poll())
    extend(history, reader.rest())
    return {name: (series.steps.tolist(), series.values.tolist()) for name, series in history.items()}


# --- rows that are no numbers -------------------------------------------------------------------


@pytest.fixture
def usual_limit() -> Iterator[None]:
    """Python's limit of a cell, which readers of data sets raise for the whole process."""
    before = csv.field_size_limit(131_072)
    yield
    csv.field_size_limit(before)


def test_a_table_with_a_very_long_cell_is_left_with_a_reason(tmp_path: Path, usual_limit: None) -> None:
    reader = TableFile(write_csv(tmp_path / "predictions.csv", [("id", "text"), (1, "x" * 140_000), (2, "y")]))
    assert reader.poll() == {}
    assert reader.note == "no column counts steps"
    rows = [("step", "loss", "text"), (1, 0.5, "x" * 140_000), (2, 0.4, "y")]
    reader = TableFile(write_csv(tmp_path / "metrics.csv", rows))
    assert reader.poll()["train/loss"][:2] == ([2], [0.4])
    assert reader.note == "a row: field larger than field limit (131072)"


@pytest.mark.parametrize("num_rows", [5, 1000, 20_000])
def test_a_quote_that_nothing_closes_loses_no_other_row(tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text('step,text,loss\n1,a,0.5\n2,"b,0.4\n' + "".join(f"{i},c,0.3\n" for i in range(3, num_rows)))
    assert curves(path)["train/loss"][0] == [1, *range(3, num_rows)]


def test_a_text_of_several_lines_stays_in_its_row_while_the_file_grows(tmp_path: Path) -> None:
    rows = [(step, f'a sample\nof "step" {step},\n\nin lines', 1 / step) for step in range(1, 50)]
    source = write_csv(tmp_path / "source", [("step", "text", "reward"), *rows]).read_bytes()
    reader, history = TableFile(tmp_path / "log.csv"), History()
    for start in range(0, len(source), 37):
        with (tmp_path / "log.csv").open("ab") as file:
            file.write(source[start : start + 37])
        extend(history, reader.poll())
    assert history["train/reward"].values.tolist() == [1 / step for step in range(1, 50)]
    assert reader.note == ""


def test_a_nan_that_python_wrote_into_jsonl_is_a_point(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": math.nan if step > 5 else 1.0, "grad_norm": math.inf} for step in range(1, 9)]
    found = curves(write_jsonl(tmp_path / "log.jsonl", rows))
    assert found["train/loss"][0] == list(range(1, 9))
    assert [math.isnan(value) for value in found["train/loss"][1]] == [False] * 5 + [True] * 3
    assert set(found["train/grad_norm"][1]) == {math.inf}


STATE = """
import sys
from transformers.trainer_callback import TrainerState
rows = [{"epoch": step / 4, "loss": 2.0 / step, "grad_norm": float("nan") if step > 6 else 1.0, "step": step}
        for step in range(1, 9)]
TrainerState(epoch=2.0, global_step=8, max_steps=8, log_history=rows).save_to_json(sys.argv[1])
"""


@pytest.mark.slow
def test_the_state_of_transformers_with_a_nan_is_read(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", STATE, tmp_path / "trainer_state.json"], check=True, timeout=200)
    reader = TrainerState(tmp_path / "trainer_state.json")
    points = reader.poll()
    assert points["train/loss"][0] == points["train/grad_norm"][0] == list(range(1, 9))
    assert math.isnan(points["train/grad_norm"][1][-1])
    assert reader.note == ""


def test_a_state_that_cannot_be_parsed_is_read_once_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parse = tabular._parsed
    monkeypatch.setattr(tabular, "_parsed", lambda text: (parsed.append(len(text)), parse(text))[1])
    path, text = tmp_path / "trainer_state.json", (HERE / "hf_trainer_state.json").read_text()
    path.write_text(text[:3000])
    reader = TrainerState(path)
    assert [reader.poll() for _ in range(3)] == [{}] * 3
    assert parsed == [3000]
    assert reader.note == "it is not JSON, or not written to its end"
    path.write_text(text)
    assert reader.poll()["train/loss"][0] == list(range(5, 61, 5))
    assert reader.note == ""


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("counter", ["batch", "step", "iter"])
def test_a_counter_that_starts_over_in_each_epoch_continues(tmp_path: Path, counter: str) -> None:
    rows = [(epoch, batch, 1.0 / (10 * epoch + batch + 1)) for epoch in range(3) for batch in range(10)]
    steps, values = curves(write_csv(tmp_path / "log.csv", [("epoch", counter, "loss"), *rows]))["train/loss"]
    assert (steps, values) == (list(range(30)), [row[2] for row in rows])
    once = [(epoch, 99, 1.0 / epoch) for epoch in range(1, 4)]
    steps, _ = curves(write_csv(tmp_path / "log.csv", [("epoch", counter, "loss"), *once]))["train/loss"]
    assert steps == [99, 198, 297]


def test_batches_without_an_epoch_and_steps_of_episodes_continue(tmp_path: Path) -> None:
    rows = [(batch, 1.0) for _ in range(3) for batch in range(1, 11)]
    assert curves(write_csv(tmp_path / "log.csv", [("batch", "loss"), *rows]))["train/loss"][0] == list(range(1, 31))
    rows = [(episode, step, 1.0) for episode in range(3) for step in range(5)]
    path = write_csv(tmp_path / "log.csv", [("episode", "step", "reward"), *rows])
    assert curves(path)["train/reward"][0] == list(range(15))


def test_a_counter_of_the_whole_run_and_a_restart_repeat_no_epoch(tmp_path: Path) -> None:
    rows = [(step // 10, step, 1.0) for step in range(30)]
    rows += [(2, step, 0.5) for step in range(20, 30)]
    steps, values = curves(write_csv(tmp_path / "log.csv", [("epoch", "step", "loss"), *rows]))["train/loss"]
    assert (steps, values) == (list(range(30)), [1.0] * 20 + [0.5] * 10)
    batches = [(epoch, batch, 1.0) for epoch in range(3) for batch in range(10)]
    batches += [(epoch, batch, 0.5) for epoch in (1, 2, 3) for batch in range(10)]
    steps, values = curves(write_csv(tmp_path / "log.csv", [("epoch", "batch", "loss"), *batches]))["train/loss"]
    assert (steps, values) == (list(range(40)), [1.0] * 10 + [0.5] * 30)


def test_a_row_of_an_epoch_belongs_to_its_last_step(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"epoch": 0, "val_loss": 3.0}]
    for epoch in range(1, 4):
        rows += [{"epoch": epoch, "step": 100 * epoch - 50 * left, "loss": 1.0} for left in (1, 0)]
        rows.append({"epoch": epoch, "val_loss": 2.0})
    found = curves(write_jsonl(tmp_path / "log.jsonl", rows))
    assert found["train/loss"][0] == [50, 100, 150, 200, 250, 300]
    assert found["eval/loss"][0] == [0, 100, 200, 300]
    rows.sort(key=lambda row: "val_loss" in row)  # all evaluations are written at the end
    assert curves(write_jsonl(tmp_path / "log.jsonl", rows))["eval/loss"][0] == [100, 200, 300]


# --- layouts ------------------------------------------------------------------------------------


def test_the_progress_of_stable_baselines_is_read() -> None:
    """Written by PPO of stable-baselines3 2.9."""
    found = curves(HERE / "sb3_progress.csv")
    assert found["train/rollout_ep_rew_mean"][0] == [64, 128, 192, 256, 320]
    assert found["train/loss"][0] == [128, 192, 256, 320]


@pytest.mark.needs("lightning")
def test_a_metric_of_any_name_beside_a_step_is_read_from_lightnings_logger(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    for step in range(10):
        logger.log_metrics({"kl": 1.0 / (step + 1)}, step)
        logger.save()
    assert curves(Path(logger.log_dir) / "metrics.csv")["train/kl"][0] == list(range(10))


@pytest.mark.needs("lightning")
def test_lightnings_logger_writes_its_file_again_once_it_has_a_new_column(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger, history = CSVLogger(tmp_path), History()
    reader = TableFile(Path(logger.log_dir) / "metrics.csv")
    headers = []
    for step in range(30):
        logger.log_metrics({"train_loss": 1 / (step + 1), "epoch": step // 10}, step)
        if step % 10 == 9:
            if step > 10:
                logger.log_metrics({"val_loss": 0.5, "epoch": step // 10}, step)
            logger.save()
            headers.append(reader.path.read_text().splitlines()[0])
            extend(history, reader.poll())
    assert "val_loss" in headers[1] and "val_loss" not in headers[0]
    assert history["train/loss"].values.tolist() == [1 / (step + 1) for step in range(30)]
    assert history["eval/loss"].steps.tolist() == [19, 29]


@pytest.mark.parametrize(
    "counter", ["_step", "total_steps", "env_steps", "global step", "Step", "train/global_step", "time/total_timesteps"]
)
def test_steps_are_counted_under_many_names(tmp_path: Path, counter: str) -> None:
    found = curves(write_csv(tmp_path / "log.csv", [(counter, "loss"), (10, 0.5), (20, 0.4)]))
    assert found == {"train/loss": ([10, 20], [0.5, 0.4])}


def test_a_setting_counts_no_steps(tmp_path: Path) -> None:
    reader = TableFile(write_csv(tmp_path / "grid.csv", [("max_steps", "loss"), (100, 0.5)]))
    assert (reader.poll(), reader.note) == ({}, "no column counts steps")


def test_a_mark_of_byte_order_blank_lines_and_other_separators_are_read(tmp_path: Path) -> None:
    rows = [("step", "loss"), (1, "0,5"), (2, "0,25")]
    wanted = {"train/loss": ([1, 2], [0.5, 0.25])}
    plain = [("step", "loss"), (1, 0.5), (2, 0.25)]
    assert curves(write_csv(tmp_path / "log.csv", plain, "utf-8-sig")) == wanted
    assert curves(write_csv(tmp_path / "log.csv", [(), *plain, (), ()])) == wanted
    assert curves(write_csv(tmp_path / "log.csv", plain, delimiter=";")) == wanted
    assert curves(write_csv(tmp_path / "log.csv", rows, delimiter=";")) == wanted
    assert curves(write_csv(tmp_path / "log.csv", plain, delimiter="\t")) == wanted
    (tmp_path / "log.jsonl").write_text('\n{"step": 1, "loss": 0.5}\n\n{"step": 2, "loss": 0.25}\n', "utf-8-sig")
    assert curves(tmp_path / "log.jsonl") == wanted


def test_thousands_are_grouped_by_commas(tmp_path: Path) -> None:
    rows = [("step", "loss"), ("500", 0.5), ("1,000", 0.4), ("1,234,567", "1,024.5")]
    assert curves(write_csv(tmp_path / "log.csv", rows))["train/loss"] == ([500, 1000, 1234567], [0.5, 0.4, 1024.5])


def test_jsonl_with_a_step_needs_no_name_of_a_metric(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "log.jsonl", [{"step": step, "kl": 0.1, "temperature": 1} for step in range(5)])
    assert curves(path)["train/kl"] == (list(range(5)), [0.1] * 5)


def test_separators_of_lines_within_a_text_end_no_row(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d\x1ce"
    path = write_jsonl(tmp_path / "log.jsonl", [{"step": step, "loss": 0.5, "text": text} for step in range(3)])
    assert curves(path)["train/loss"][0] == [0, 1, 2]
    path = write_csv(tmp_path / "log.csv", [("step", "text", "loss"), *((step, text, 0.5) for step in range(3))])
    assert curves(path)["train/loss"][0] == [0, 1, 2]


def test_a_last_line_without_its_end_is_read_once_nothing_follows(tmp_path: Path) -> None:
    for name, text in (("log.csv", "step,loss\n1,0.5\n2,0.25"), ("log.jsonl", '{"step": 2, "loss": 0.25}')):
        (tmp_path / name).write_text(text)
        reader = TableFile(tmp_path / name)
        assert reader.poll().get("train/loss", ([],))[0] == [1] * (name == "log.csv")
        assert reader.rest()["train/loss"][:2] == ([2], [0.25])
        assert reader.rest() == {}


def test_jsonl_without_a_counter_is_left_with_a_reason(tmp_path: Path) -> None:
    reader = TableFile(write_jsonl(tmp_path / "log.jsonl", [{"prompt": "x", "completion": "y"}] * 3))
    assert reader.poll() == {}
    assert reader.note == "no row has a counter, such as `step`, and a metric"


def test_a_large_file_without_a_counter_is_given_up_after_some_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    parse = tabular._parsed
    monkeypatch.setattr(tabular, "_parsed", lambda text: (parsed.append(text), parse(text))[1])
    reader = TableFile(write_jsonl(tmp_path / "samples.jsonl", [{"prompt": "x", "loss": 1.0}] * 5_000))
    assert reader.poll() == reader.poll() == {}
    assert reader.note == "no row has a counter, such as `step`, and a metric"
    assert len(parsed) == 1_000
    with reader.path.open("a") as file:
        file.write('{"step": 1, "loss": 0.5}\n')
    assert reader.poll() == {}


def test_of_a_file_that_takes_too_long_the_ends_of_blocks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"step": step, "loss": 0.5, "text": "x" * 1_000} for step in range(10_000)]
    reader = TableFile(write_jsonl(tmp_path / "log.jsonl", rows))
    monkeypatch.setattr(tabular, "_FIRST_LOOK_S", 1e-3)
    steps = reader.poll()["train/loss"][0]
    assert steps[0] == 0 and steps[-1] == 9_999 and 4_000 < len(steps) < 5_000
    assert reader.note == "6 MB of its rows: they are written too fast, or too many"


def test_a_state_beyond_the_limit_is_left_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.touch()
    os.truncate(path, (256 << 20) + 1)
    reader = TrainerState(path)
    assert (reader.poll(), reader.note) == ({}, "it has more than 256 MB")
