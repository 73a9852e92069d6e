"""Tables as programs write them: CSV of Python, Lightning and stable-baselines3, JSONL of Python's json."""

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nbtools.metrics.history import History
from nbtools.metrics.readers import reader as reading
from nbtools.metrics.readers import tabular
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
    return points_of(TableFile(path).poll(is_complete=True))


def points_of(history: History) -> dict[str, tuple[list[int], list[float]]]:
    """Return the steps and values of each metric."""
    return {name: (series.steps.tolist(), series.values.tolist()) for name, series in history.items()}


def test_a_cell_that_names_a_split_gives_it_to_the_row(tmp_path: Path) -> None:
    rows = [{"mode": mode, "step": step, "loss": step + 0.5} for step in (1, 2) for mode in ("train", "val")]
    found = curves(write_jsonl(tmp_path / "log.jsonl", [{"lr": 0.1, "seed": 3}, *rows, {"mode": "test", "loss": 9.0}]))
    assert found == {"train/loss": ([1, 2], [1.5, 2.5]), "eval/loss": ([1, 2], [1.5, 2.5])}


# --- rows that are no numbers -------------------------------------------------------------------


@pytest.fixture
def usual_limit() -> Iterator[None]:
    """Python's limit of a cell, which readers of data sets raise for the whole process."""
    before = csv.field_size_limit(131_072)
    yield
    csv.field_size_limit(before)


def test_a_table_with_a_very_long_cell_is_left_with_a_reason(tmp_path: Path, usual_limit: None) -> None:
    reader = TableFile(write_csv(tmp_path / "predictions.csv", [("id", "text"), (1, "x" * 140_000), (2, "y")]))
    assert not reader.poll()
    assert reader.note == "no column counts its rows (id, text)"
    rows = [("step", "loss", "text"), (1, 0.5, "x" * 140_000), (2, 0.4, "y")]
    reader = TableFile(write_csv(tmp_path / "metrics.csv", rows))
    assert points_of(reader.poll())["train/loss"] == ([2], [0.4])
    assert reader.note == "a row: field larger than field limit (131072)"


@pytest.mark.parametrize("num_rows", [5, 1000, 20_000])
def test_a_quote_that_nothing_closes_loses_no_other_row(tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text('step,text,loss\n1,a,0.5\n2,"b,0.4\n' + "".join(f"{i},c,0.3\n" for i in range(3, num_rows)))
    assert curves(path)["train/loss"][0] == [1, *range(3, num_rows)]


def test_a_nan_that_python_wrote_into_jsonl_is_a_point(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": math.nan if step > 5 else 1.0, "grad_norm": math.inf} for step in range(1, 9)]
    found = curves(write_jsonl(tmp_path / "log.jsonl", rows))
    assert found["train/loss"][0] == list(range(1, 9))
    assert [math.isnan(value) for value in found["train/loss"][1]] == [False] * 5 + [True] * 3
    assert set(found["train/grad_norm"][1]) == {math.inf}


def test_the_state_of_transformers_with_a_nan_is_read(tmp_path: Path) -> None:
    from transformers import trainer_callback

    rows = [{"step": step, "loss": 2.0 / step, "grad_norm": math.nan if step > 6 else 1.0} for step in range(1, 9)]
    state = trainer_callback.TrainerState(epoch=2.0, global_step=8, max_steps=8, log_history=rows)
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [{"step"')
    reader = TrainerState(path)
    assert (len(reader.poll()), reader.note) == (0, "it is not JSON, or not written to its end")
    state.save_to_json(str(path))
    read = points_of(reader.poll())
    assert read["train/loss"][0] == read["train/grad_norm"][0] == list(range(1, 9))
    assert math.isnan(read["train/grad_norm"][1][-1])
    assert (reader.note, reader.rows.total) == ("", 8)


# --- steps --------------------------------------------------------------------------------------


EPOCHS = [(epoch, batch, 1.0 / (10 * epoch + batch + 1)) for epoch in range(3) for batch in range(10)]
VALUES = [value for _, _, value in EPOCHS]
AGAIN = [(epoch, batch, 0.5) for epoch in (1, 2, 3) for batch in range(10)]
NO_COUNTS = (lambda n: 32, lambda n: n * 7 % 5)
COUNTED = ("_step", "current_steps", "env_steps", "global step", "Step", "train/global_step")


@pytest.mark.parametrize(
    ("names", "rows", "steps", "values"),
    [
        *((f"epoch,{counter},loss", EPOCHS, range(30), VALUES) for counter in ("batch", "step", "iter")),
        ("epoch,batch,loss", [(epoch, 99, 0.5) for epoch in range(1, 4)], (99, 198, 297), [0.5] * 3),
        (
            "episode,step,loss",
            [(episode, step, 1.0) for episode in range(3) for step in range(5)],
            range(15),
            [1.0] * 15,
        ),
        ("epoch,step,loss", [(n // 10, n, 1.0) for n in (*range(30), *range(20, 30))], range(30), [1.0] * 30),
        *(("epoch,batch,loss", [(n, batch(n), 1.0) for n in range(16)], range(16), [1.0] * 16) for batch in NO_COUNTS),
        ("epoch,loss", [(n / 4, n) for n in range(9)], range(9), [*range(9)]),
        ("epoch,batch,loss", EPOCHS + AGAIN, range(40), VALUES[:10] + [0.5] * 30),
        *((f"{name},loss", [(10, 0.5), (20, 0.4)], (10, 20), [0.5, 0.4]) for name in COUNTED),
    ],
)
def test_the_counter_of_a_table_goes_on_over_epochs_and_restarts(
    tmp_path: Path, names: str, rows: list[tuple[float, ...]], steps: Sequence[int], values: list[float]
) -> None:
    assert curves(write_csv(tmp_path / "log.csv", [names.split(","), *rows]))["train/loss"] == ([*steps], values)


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


def test_a_total_counts_nothing_and_is_the_number_of_steps(tmp_path: Path) -> None:
    """As LLaMA-Factory's trainer_log.jsonl."""
    rows = [{"current_steps": n, "total_steps": 200, "loss": 1.0, "epoch": n / 100} for n in range(10, 60, 10)]
    reader = TableFile(write_jsonl(tmp_path / "trainer_log.jsonl", rows))
    assert points_of(reader.poll()) == {"train/loss": ([10, 20, 30, 40, 50], [1.0] * 5)}
    assert (reader.rows.counter, reader.rows.total) == ("current_steps", 200)


COLUMNS = {
    "Lightning's CSVLogger, whose columns are sorted by name": (
        [
            ("epoch", "loss_epoch", "loss_step", "step", "val_loss"),
            *((0, "", 2.0 - step, step, "") for step in (9, 19)),
            *((0, "", "", 19, 4.0), (0, 5.0, "", 19, "")),
        ],
        {"train/loss_step": ([9, 19], [-7.0, -17.0]), "eval/loss": ([19], [4.0]), "train/loss_epoch": ([19], [5.0])},
    ),
    "two columns are never one curve": (
        [("step", "loss", "train_loss", "acc", "accuracy"), (1, 2.0, 3.0, 0.1, 0.2)],
        {"train/loss": ([1], [2.0]), "train_loss": ([1], [3.0]), "accuracy": ([1], [0.1]), "accuracy_2": ([1], [0.2])},
    ),
    "padded columns, as in results.csv of Ultralytics": (
        [("      epoch", "   train/box_loss", "  metrics/mAP50(B)", " val/box_loss"), (1, " 1.2", 0.5, " 1.3")],
        {"train/box_loss": ([1], [1.2]), "metrics_map50_b": ([1], [0.5]), "eval/box_loss": ([1], [1.3])},
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_columns_of_a_table_are_curves_and_a_metric_of_a_step_is_one(tmp_path: Path, name: str) -> None:
    rows, wanted = COLUMNS[name]
    assert curves(write_csv(tmp_path / "log.csv", rows)) == wanted


@pytest.mark.parametrize("names", [("batch", "loss"), ("step", "loss"), ("epoch", "loss")])
def test_rows_whose_counter_starts_over_without_a_restart_have_only_an_order(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    rows = [(3 if names[0] == "epoch" else batch, 1.0) for _ in range(3) for batch in range(1, 11)]
    reader = TableFile(write_csv(tmp_path / "log.csv", [names, *rows]))
    series = reader.poll()["train/loss"]
    assert (series.steps.tolist(), series.unit, reader.rows.counter) == ([*range(30)], "row", "")


def test_a_counter_falls_at_a_restart(tmp_path: Path) -> None:
    rows = [(step, float(attempt)) for attempt in range(2) for step in range(5 - attempt)]
    reader = TableFile(write_csv(tmp_path / "log.csv", [("step", "loss"), *rows]))
    reader.rows.restarts = 1
    assert points_of(reader.poll())["train/loss"] == ([0, 1, 2, 3, 4], [1.0] * 4 + [0.0])


def test_rows_of_numbers_without_a_counter_have_an_order(tmp_path: Path) -> None:
    reader = TableFile(write_csv(tmp_path / "log.csv", [("loss", "lr"), (3.0, 0.1), (2.0, 0.1)]))
    series = reader.poll()["train/loss"]
    assert (series.steps.tolist(), series.values.tolist(), series.unit) == ([0, 1], [3.0, 2.0], "row")
    assert not TableFile(write_csv(tmp_path / "texts.csv", [("text", "loss"), ("a", 0.1), ("b", 0.1)])).poll()


def test_the_user_chooses_a_counter_or_the_order(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "log.csv", [("step", "tokens", "loss"), (1, 64, 3.0), (2, 128, 2.0)])
    assert points_of(TableFile(path, chosen="tokens").poll())["train/loss"] == ([64, 128], [3.0, 2.0])
    reader = TableFile(path, chosen="")
    assert points_of(reader.poll())["train/loss"] == ([0, 1], [3.0, 2.0])
    assert reader.rows.counters == ["step", "tokens", "loss"]


# --- layouts ------------------------------------------------------------------------------------


def test_the_progress_of_stable_baselines_is_read() -> None:
    """Written by PPO of stable-baselines3 2.9."""
    found = curves(HERE / "sb3_progress.csv")
    assert found["rollout_ep_rew_mean"][0] == [64, 128, 192, 256, 320]
    assert found["train/loss"][0] == [128, 192, 256, 320]


@pytest.mark.needs("lightning")
def test_lightnings_logger_writes_its_file_again_once_it_has_a_new_column(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    reader = TableFile(Path(logger.log_dir) / "metrics.csv")
    headers = []
    for step in range(30):
        logger.log_metrics({"train_loss": 1 / (step + 1), "epoch": step // 10}, step)
        if step % 10 == 9:
            if step > 10:
                logger.log_metrics({"val_loss": 0.5, "epoch": step // 10}, step)
            logger.save()
            headers.append(reader.path.read_text().splitlines()[0])
            history = reader.poll()
    assert "val_loss" in headers[1] and "val_loss" not in headers[0]
    assert history["train/loss"].values.tolist() == [1 / (step + 1) for step in range(30)]
    assert history["eval/loss"].steps.tolist() == [19, 29]


def test_a_setting_counts_no_steps(tmp_path: Path) -> None:
    reader = TableFile(write_csv(tmp_path / "grid.csv", [("max_steps", "loss"), (100, 0.5)]))
    assert points_of(reader.poll()) == {"train/loss": ([0], [0.5])}
    assert (reader.history["train/loss"].unit, reader.rows.total) == ("row", None)


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
        assert len(reader.poll().get("train/loss", ())) == (name == "log.csv")
        for _ in range(2):
            assert points_of(reader.poll(is_complete=True))["train/loss"][0][-1] == 2


def test_a_large_file_without_a_counter_is_given_up_after_some_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    parse = tabular._parsed
    monkeypatch.setattr(tabular, "_parsed", lambda text: (parsed.append(text), parse(text))[1])
    reader = TableFile(write_jsonl(tmp_path / "samples.jsonl", [{"prompt": "x" * 90, "loss": 1.0}] * 5_000))
    assert not reader.poll() and not reader.poll()
    assert reader.note == "no column counts its rows (prompt, loss)"
    assert len(parsed) < 5_000
    with reader.path.open("a") as file:
        file.write('{"step": 1, "loss": 0.5}\n')
    assert not reader.poll()


def test_a_file_that_takes_too_long_for_one_look_is_read_on_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"step": step, "loss": 0.5, "text": "x" * 1_000} for step in range(10_000)]
    reader = TableFile(write_jsonl(tmp_path / "log.jsonl", rows))
    monkeypatch.setattr(reading, "_LOOK_S", -1.0)
    steps = points_of(reader.poll())["train/loss"][0]
    assert steps == [*range(len(steps))] and len(steps) < 5_000
    assert reader.note.endswith(" MB of it are not read yet") and reader.history.num_unread_bytes > 5e6
    while reader.note:
        reader.poll()
    assert points_of(reader.history)["train/loss"][0] == [*range(10_000)]
    assert len(TableFile(reader.path).poll(is_complete=True)["train/loss"]) == 10_000


def test_a_state_beyond_the_limit_is_left_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.touch()
    os.truncate(path, (256 << 20) + 1)
    reader = TrainerState(path)
    assert (len(reader.poll()), reader.note) == (0, "it has more than 256 MB")
