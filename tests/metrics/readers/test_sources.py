"""One metric in several files: those of one writer are joined, of others the longest is drawn, and all are named."""

import csv
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbtools.launcher.launch import launch
from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.metrics.readers.points import Points
from nbtools.metrics.readers.printed.log import LogMetrics
from nbtools.metrics.readers.rows import new_rows
from nbtools.metrics.readers.tabular import TableFile
from nbtools.project import Project
from nbtools.run.state import RunState

Found = Callable[[], tuple[History, list[str]]]


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"


@pytest.fixture
def found(tmp_path: Path, cwd: Path) -> Found:
    """Look at the files of a run that has ended."""
    metrics = FoundMetrics(tmp_path, LogMetrics(tmp_path / "rank0.log"))

    def look() -> tuple[History, list[str]]:
        now = time.time()
        return metrics.history(str(cwd), (), now - 100, now), metrics.notes()

    return look


def write(path: Path, steps: Iterable[int], value: float, age_s: float = 0.0, column: str = "loss") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("step", column), *((step, value) for step in steps)])
    os.utime(path, (time.time() - age_s,) * 2)


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
        f"{logs / 'version_9/metrics.csv'}: train/loss",
        f"{logs / 'version_11/metrics.csv'}: train/loss",
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
    assert notes[0] == f"{cwd / 'fold11/log.csv'}: train/loss"
    assert notes[1].startswith("also found, but not drawn: ") and notes[1].endswith(" and 3 more")
    assert notes[1].count("log.csv (train/loss)") == 8


def test_files_of_other_names_are_not_joined(cwd: Path, found: Found) -> None:
    write(cwd / "train.csv", range(100), 1.0, age_s=60)
    write(cwd / "val.csv", range(50, 90), 2.0)
    history, notes = found()
    assert runs_of(history["train/loss"]) == [(0, 99, 1.0)]
    assert f"also found, but not drawn: {cwd / 'val.csv'} (train/loss)" in notes


@pytest.mark.needs("lightning")
def test_the_versions_of_lightnings_logger_are_joined(cwd: Path, found: Found) -> None:
    from lightning.pytorch.loggers import CSVLogger

    for steps, value in ((range(121), 1.0), (range(100, 200), 2.0)):
        logger = CSVLogger(cwd)
        for step in steps:
            logger.log_metrics({"train_loss": value}, step)
        logger.save()
    assert runs_of(found()[0]["train/loss"]) == [(0, 99, 1.0), (100, 199, 2.0)]


RESTARTED = """
import csv, pathlib, sys
attempt = len(list(pathlib.Path("logs").glob("version_*")))
folder = pathlib.Path(f"logs/version_{attempt}")
folder.mkdir(parents=True)
with open("predictions.csv", "w", newline="") as file:
    csv.writer(file).writerows([("id", "text"), (1, "x" * 140_000)])
with (folder / "metrics.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(("epoch", "step", "train_loss"))
    table.writerows((step // 50, step, attempt) for step in (range(121), range(100, 200))[attempt])
sys.exit(1 - attempt)
"""


def test_a_run_that_restarted_has_one_curve_beside_a_file_of_long_texts(
    project: Project, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (work := project.root / "work").mkdir()
    monkeypatch.chdir(work)
    (work / "train.py").write_text(RESTARTED)
    run = launch(work / "train.py", torchrun=False, gpus=(), max_restarts=1)
    assert run.wait(timeout_s=100) is RunState.SUCCEEDED
    assert runs_of(run.history["train/loss"]) == [(0, 99, 0.0), (100, 199, 1.0)]
    assert run.id in cli("runs").stdout
    assert f"{work / 'predictions.csv'}: not read: no column counts steps" in cli("show", run.id).stdout


EVENTS = """
import sys, time
from torch.utils.tensorboard import SummaryWriter
first = SummaryWriter(sys.argv[1])
for step in range(121):
    first.add_scalar("Loss/train", 1.0, step)
time.sleep(1.1)  # the name of a file has the second of its start
second = SummaryWriter(sys.argv[1])
for step in range(100, 180):
    second.add_scalar("Loss/train", 2.0, step)
first.close()
second.close()
"""
PARALLEL = """
import sys, time
from torch.utils.tensorboard import SummaryWriter
first = SummaryWriter(sys.argv[1])
second = SummaryWriter(sys.argv[1], filename_suffix=".rank1")
for step in range(100):
    first.add_scalar("Loss/train", 1.0, step)
    if step >= 40 and step % 10 == 0:
        second.add_scalar("Loss/train", 2.0, step)
first.close()
second.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "wanted"),
    [(EVENTS, [(0, 99, 1.0), (100, 179, 2.0)]), (PARALLEL, [(0, 99, 1.0)])],
    ids=["one after the other", "at the same time"],
)
def test_two_writers_of_tensorboard_in_one_folder_are_joined_unless_they_wrote_at_once(
    cwd: Path, found: Found, program: str, wanted: list[tuple[int, int, float]]
) -> None:
    subprocess.run([sys.executable, "-c", program, cwd / "tb"], check=True, timeout=200)
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


# --- files that are not read --------------------------------------------------------------------


def test_no_file_of_another_program_breaks_reading_a_run(
    cwd: Path, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(cwd / "metrics.csv", range(10), 1.0)
    with (cwd / "predictions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "text"), (1, "x" * 140_000), (2, 'an open " quote')])
    (cwd / "damaged.csv").write_text('step,loss\n1,"0.5\n')
    poll = TableFile.poll

    def fail(reader: TableFile) -> Points:
        if reader.path.name == "damaged.csv":
            raise OverflowError("of its reader")
        return poll(reader)

    monkeypatch.setattr(TableFile, "poll", fail)
    for _ in range(2):
        history, notes = found()
        assert history["train/loss"].steps.tolist() == list(range(10))
        assert f"{cwd / 'damaged.csv'}: not read: OverflowError: of its reader" in notes
        assert f"{cwd / 'predictions.csv'}: not read: no column counts steps" in notes


def test_of_many_files_the_newest_are_read_and_the_others_are_counted(cwd: Path, found: Found) -> None:
    for number in range(60):
        write(cwd / f"client_{number:02}.csv", [1], 1.0, age_s=number, column=f"loss_{number}")
    history, notes = found()
    assert sorted(history) == sorted(f"train/loss_{number}" for number in range(50))
    assert "10 more files were not read: only the newest 50 are" in notes


def test_a_last_row_without_a_newline_is_read_after_the_end(cwd: Path, found: Found) -> None:
    (cwd / "log.csv").write_text("step,loss\n1,0.5\n2,0.25")
    assert found()[0]["train/loss"].steps.tolist() == [1, 2]
