"""What stood in a program's files before its start is not the run's, for curves and for the conditions of a stop."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MonkeyPatch
from launched import record_launch

from nbtools.launcher.launch import launch
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers.discovery import FoundMetrics
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import write_json
from nbtools.rundir.program_files.files_before import FilesBefore
from nbtools.rundir.rundir import RunDir

APPENDS = """
import json, os
os.makedirs("out", exist_ok=True)
for epoch in range(3):
    with open("out/log.txt", "a") as file:
        file.write(json.dumps({"train_loss": 1.0 - epoch / 10, "epoch": epoch}) + "\\n")
    with open("out/results.csv", "a") as file:
        file.write(f"{epoch},{epoch / 10}\\n")
"""


def rows(*losses: float, start: int = 0) -> str:
    return "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses, start))


def test_rows_of_an_earlier_run_in_the_same_file_are_left_out(project: Project, monkeypatch: MonkeyPatch) -> None:
    (work := project.root / "work").mkdir()
    (work / "out").mkdir()
    earlier = [{"train_loss": float("nan") if epoch in (1, 2) else 5.0, "epoch": epoch} for epoch in range(8)]
    (work / "out/log.txt").write_text("".join(json.dumps(row) + "\n" for row in earlier))
    (work / "out/results.csv").write_text("epoch,val_loss\n" + "".join(f"{epoch},7\n" for epoch in range(8)))
    (work / "train.py").write_text(APPENDS)
    monkeypatch.chdir(work)
    run = launch(work / "train.py", torchrun=False, gpus=(), stop_on={"nan": True})
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    for _ in range(2):
        found = {name: (series.steps.tolist(), series.values.tolist()) for name, series in run.history.items()}
        assert found == {"train/loss": ([0, 1, 2], [1.0, 0.9, 0.8]), "eval/loss": ([0, 1, 2], [0.0, 0.1, 0.2])}
        assert {series.unit for series in run.history.values()} == {"epoch"}
        run = Run(run.files.path)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The working directory of a run that is about to start, with a file in it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "work").mkdir()
    record_launch(tmp_path / "run", tmp_path / "work")
    (tmp_path / "work/log.jsonl").write_text(rows(9.0, 9.0))
    return tmp_path / "work"


def losses(work: Path) -> list[float]:
    run = work.parent / "run"
    found = FoundMetrics(run, LogMetrics(run / "rank0.log")).history(None)
    return found["train/loss"].values.tolist() if found else []


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def replace(path: Path) -> None:
    path.unlink()
    path.with_name("takes its inode").touch()
    path.write_text(rows(1.0, 0.5, 0.2))


def write_the_same(path: Path) -> None:
    os.utime(path, (1, 1))
    path.write_text(rows(9.0, 9.0))


CHANGES: dict[str, tuple[Callable[[Path], Any], list[float]]] = {
    "untouched": (lambda path: None, []),
    "appended": (lambda path: append(path, rows(1.0, 0.5)), [1.0, 0.5]),
    "after a line without its end": (lambda path: append(path, rows(1.0)), [1.0]),
    "replaced": (replace, [1.0, 0.5, 0.2]),
    "written again, longer": (lambda path: path.write_text(rows(1.0, 0.5, 0.2)), [1.0, 0.5, 0.2]),
    "written again, shorter": (lambda path: path.write_text(rows(1.0)), [1.0]),
    "written again with the same rows": (write_the_same, [9.0, 9.0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_replaced_or_cut_counts_from_its_start(work: Path, change: str) -> None:
    if "without its end" in change:
        append(work / "log.jsonl", '{"step": 7, "lo')
    FilesBefore(RunDir(work.parent / "run")).take()
    act, wanted = CHANGES[change]
    act(work / "log.jsonl")
    assert losses(work) == wanted


def test_a_file_that_was_shorter_for_a_while_counts_from_its_start(work: Path) -> None:
    """A deterministic program writes the same rows again, and more."""
    before = FilesBefore(RunDir(work.parent / "run"))
    before.take()
    (work / "log.jsonl").write_text(rows(9.0))
    before.forget_rewritten()
    append(work / "log.jsonl", rows(9.0, 8.0, start=1))
    assert losses(work) == [9.0, 9.0, 8.0]


def test_a_damaged_record_leaves_nothing_out(work: Path) -> None:
    for content in ({"files": {"a": [1]}}, {"files": 3}, {"files": {"a": ["x", 2, 3, 4]}}):
        write_json(RunDir(work.parent / "run").files_before, content)
        assert losses(work) == [9.0, 9.0]
