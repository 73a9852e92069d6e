"""One metric in several files: those of one writer are joined, of others the longest is drawn, and all are named."""

import csv
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import eventually

from nbtools.failures.stop_conditions import StopConditions
from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.print_rows import new_rows
from nbtools.metrics.readers.sources import MetricSource, joined_sources
from nbtools.metrics.readers.tabular import TableFile
from nbtools.metrics.writer import MetricWriter
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

Found = Callable[[], tuple[History, list[str]]]


@pytest.fixture
def found(tmp_path: Path, cwd: Path) -> Found:
    """Look at the files of a run that has ended."""
    metrics = FoundMetrics(tmp_path, LogMetrics(tmp_path / "rank0.log"))
    return lambda: (metrics.history(time.time()), metrics.notes())


def write(path: Path, steps: Iterable[int], value: float, age_s: float = 0.0, column: str = "loss") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("step", column), *((step, value) for step in steps)])
    os.utime(path, (time.time() - age_s,) * 2)


def test_column_that_never_changes_is_told_and_not_drawn(found: Found, cwd: Path) -> None:
    (cwd / "log.jsonl").write_text(
        "".join(f'{{"step": {n}, "alpha": 0.7, "loss": 1, "reward": 0}}\n' for n in range(3))
    )
    history, notes = found()
    assert {*history} == {"train/loss", "reward"}
    assert any("log.jsonl (alpha)" in note for note in notes), notes


def test_folds_that_follow_each_other_on_one_axis_are_told(found: Found, tmp_path: Path) -> None:
    epochs = [epoch for _fold in range(3) for epoch in range(1, 6)]
    lines = (f"Epoch {epoch}/5 loss {2.5 - number / 16}\n" for number, epoch in enumerate(epochs))
    (tmp_path / "rank0.log").write_text("".join(lines))
    history, notes = found()
    assert history["train/loss"].steps.tolist() == list(range(1, 16))
    assert notes[0].endswith("train/loss; the epochs start over 2 times, part after part")


def runs_of(series: Series) -> list[tuple[int, int, float]]:
    """Return first step, last step and value of each piece of a curve that is constant."""
    edges = [0, *(np.flatnonzero(np.diff(series.values)) + 1).tolist(), len(series)]
    steps, values = series.steps, series.values
    return [(int(steps[first]), int(steps[end - 1]), float(values[first])) for first, end in pairwise(edges)]


# --- joining ------------------------------------------------------------------------------------


def test_the_files_of_restarts_are_one_curve(cwd: Path, found: Found) -> None:
    write(cwd / "logs/version_9/metrics.csv", range(121), 1.0, age_s=60)
    write(cwd / "logs/version_10/metrics.csv", range(100, 151), 2.0, age_s=50)
    write(cwd / "logs/version_11/metrics.csv", range(80, 200), 3.0, age_s=40)
    history, notes = found()
    assert runs_of(history["train/loss"]) == [(0, 79, 1.0), (80, 199, 3.0)]
    logs = cwd / "logs"
    assert set(notes) == {
        f"{logs / 'version_9/metrics.csv'}: train/loss; counter: step",
        f"{logs / 'version_11/metrics.csv'}: train/loss; counter: step",
        f"also found, but not drawn: {logs / 'version_10/metrics.csv'} (train/loss)",
    }


def test_a_restart_that_has_just_begun_replaces_the_end_of_the_attempt_before(cwd: Path, found: Found) -> None:
    write(cwd / "version_0/metrics.csv", range(0, 121, 3), 1.0, age_s=60)
    write(cwd / "version_1/metrics.csv", range(100, 105, 3), 2.0)
    assert runs_of(found()[0]["train/loss"]) == [(0, 99, 1.0), (100, 103, 2.0)]


def test_of_folds_the_last_is_drawn_and_the_others_are_named(cwd: Path, found: Found) -> None:
    for fold in range(12):
        write(cwd / f"fold{fold}/log.csv", range(10), float(fold), age_s=40 - fold)
    history, notes = found()
    assert runs_of(history["train/loss"]) == [(0, 9, 11.0)]
    assert notes[0] == f"{cwd / 'fold11/log.csv'}: train/loss; counter: step"
    assert notes[1].startswith("also found, but not drawn: ") and notes[1].endswith(" and 3 more")
    assert notes[1].count("log.csv (train/loss)") == 8


def test_files_of_other_names_are_not_joined(cwd: Path, found: Found) -> None:
    write(cwd / "train.csv", range(100), 1.0, age_s=60)
    write(cwd / "val.csv", range(50, 90), 2.0)
    history, notes = found()
    assert runs_of(history["train/loss"]) == [(0, 99, 1.0)]
    assert f"also found, but not drawn: {cwd / 'val.csv'} (train/loss)" in notes


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [(range(121), range(100, 180), [(0, 99, 1.0), (100, 179, 2.0)]), (range(100), range(40, 100, 10), [(0, 99, 1.0)])],
    ids=["one after the other", "at the same time"],
)
def test_two_writers_of_tensorboard_in_one_folder_are_joined_unless_they_wrote_at_once(
    cwd: Path, found: Found, first: range, second: range, wanted: list[tuple[int, int, float]]
) -> None:
    from torch.utils.tensorboard import SummaryWriter

    writers = [SummaryWriter(cwd / "tb"), SummaryWriter(cwd / "tb", filename_suffix=".2")]
    rows = [(step, 0) for step in first] + [(step, 1) for step in second]
    for step, number in rows if len(wanted) > 1 else sorted(rows):
        writers[number].add_scalar("Loss/train", number + 1.0, step)
    for writer in writers:
        writer.close()
    assert len(list((cwd / "tb").iterdir())) == 2
    assert runs_of(found()[0]["train/loss"]) == wanted


def test_rows_that_a_restart_replaced_are_new_for_the_conditions_of_a_stop() -> None:
    seen: dict[str, Series] = {}

    def steps_of(block: bytes) -> list[int]:
        return [json.loads(line)["step"] for line in block.splitlines()]

    def history(*values: float) -> History:
        result = History()
        result.add("train/loss", range(len(values)), values, [math.nan] * len(values))
        return result

    assert steps_of(new_rows(history(3.0, 2.0, 1.0, 1.0), seen)) == [0, 1, 2, 3]
    assert steps_of(new_rows(history(3.0, 2.0, math.nan), seen)) == [2]
    assert steps_of(new_rows(history(3.0, 2.0, math.nan, 1.0), seen)) == [3]


# --- rows in metrics.jsonl ------------------------------------------------------------------------


def test_a_row_in_metrics_jsonl_hides_no_curve_of_other_sources(project: Project) -> None:
    """Also for the list of runs and the conditions of a stop; of one metric the source with the most points counts."""
    (cwd := project.root / "work").mkdir()
    files = RunDir.create(project.runs, "own")
    launched = {"name": "own", "time": time.time() - 10, "cwd": str(cwd), "args": []}
    write_json(files.launch, launched)
    files.log.write_text("step 1 loss 3.0\nstep 2 loss 2.0\n")
    run = Run(files.path)
    assert [*run.history] == ["train/loss"]
    write(cwd / "log.csv", range(1, 4), 0.5, column="val_loss")
    with MetricWriter(files.metrics) as writer:
        writer.write(0, {"train/num_samples": 7.0, "train/loss": 9.0})
    assert run.history["train/loss"].values.tolist() == [3.0, 2.0], "it was seen before the row"
    fresh = Run(files.path)
    assert fresh.step == 3
    assert fresh.rows.newest_metrics == {"train/num_samples": 7.0, "train/loss": 2.0, "eval/loss": 0.5}
    first, *others = fresh.rows.notes
    assert first.startswith(f"{files.metrics}: train/num_samples")
    assert others[:2] == ["printed lines: train/loss", f"{cwd / 'log.csv'}: eval/loss; counter: step"]
    assert others[2] == f"also found, but not drawn: {files.metrics} (train/loss)"
    hits: list[dict[str, Any] | None] = []
    with closing(StopConditions(files, {"nan": True})) as conditions:
        eventually(lambda: conditions.look() or conditions._finite_step)
        with files.log.open("a") as log:
            log.write("step 3 loss nan\n")
        eventually(lambda: hits.append(conditions.look()) or hits[-1])
    assert hits[-1] is not None and hits[-1]["step"] == 3


# --- other ranks ----------------------------------------------------------------------------------


def test_lines_that_the_last_rank_alone_prints_are_read_from_its_log(tmp_path: Path, cwd: Path, found: Found) -> None:
    """As of Megatron, whose ranks print with print_rank_last; the first agent was restarted."""
    (tmp_path / "rank0.log").write_text("> building the model\n")
    logs = {}
    for agent, rank, text in (
        ("x_a", 1, "iteration 1/ 9 | lm loss: 7.0 |\n"),
        ("x_a", 10, "".join(f" iteration {step}/ 500 | lm loss: {3 + step / 1000:.3f} |\n" for step in range(1, 101))),
        ("x_b", 10, "".join(f" iteration {step}/ 500 | lm loss: {2 + step / 1000:.3f} |\n" for step in range(81, 151))),
    ):
        logs[agent] = tmp_path / f"ranks/{agent}/attempt_0/{rank}/stdout.log"
        logs[agent].parent.mkdir(parents=True)
        logs[agent].write_text(text)
        os.utime(logs[agent], (time.time() - 50 * (agent == "x_a"),) * 2)
    metrics = FoundMetrics(tmp_path, LogMetrics(tmp_path / "rank0.log"))
    history = metrics.history(time.time())
    (name,) = history
    expected = [step / 1000 + 2 + (step <= 80) for step in range(1, 151)]
    assert history[name].values.tolist() == pytest.approx(expected)
    assert metrics.notes()[:2] == [f"{log}: {name}" for log in logs.values()]
    assert metrics.total_steps() == 500
    with (tmp_path / "rank0.log").open("a") as file:
        file.write("step 1 loss 9.0\nstep 2 loss 8.0\n")
    assert [*found()[0]] == ["train/loss"], "rank 0 prints metrics itself"


# --- files that are not read --------------------------------------------------------------------


def test_no_file_of_another_program_breaks_reading_a_run(
    cwd: Path, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cwd / "metrics.csv", range(10), 1.0)
    with (cwd / "predictions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), (1, "x" * 140_000), (2, 'an open " quote')])
    (cwd / "damaged.csv").write_text('step,loss\n1,"0.5\n')
    poll = TableFile.poll

    def fail(reader: TableFile, *, is_complete: bool = False) -> History:
        if reader.path.name == "damaged.csv":
            raise OverflowError("of its reader")
        return poll(reader, is_complete=is_complete)

    monkeypatch.setattr(TableFile, "poll", fail)
    for _ in range(2):
        history, notes = found()
        assert history["train/loss"].steps.tolist() == list(range(10))
        assert f"{cwd / 'damaged.csv'}: not read: OverflowError: of its reader" in notes
        assert f"{cwd / 'predictions.csv'}: not read: no column counts its rows (id, text)" in notes


def test_of_many_files_the_newest_are_read_and_the_others_are_counted(cwd: Path, found: Found) -> None:
    for number in range(60):
        write(cwd / f"client_{number:02}.csv", [1], 1.0, age_s=number, column=f"loss_{number}")
    history, notes = found()
    assert sorted(history) == sorted(f"train/loss_{number}" for number in range(50))
    assert "10 more files were not read: only the newest 50 are" in notes


@pytest.mark.parametrize(("num_written", "is_drawn"), [(100, True), (99, True), (98, False)])
def test_rows_of_metrics_jsonl_go_before_printed_ones_that_are_hardly_more(num_written: int, is_drawn: bool) -> None:
    sources = [MetricSource("", "", 0), MetricSource("rows", "rows", 0, is_asked=True)]
    for source, count in zip(sources, (100, num_written), strict=True):
        source.history.add("loss", np.arange(count), np.ones(count), np.zeros(count))
    assert ("rows" in joined_sources(sources).drawn) is is_drawn
