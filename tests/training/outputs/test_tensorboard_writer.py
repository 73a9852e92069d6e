"""The metric rows as TensorBoard events, read back as TensorBoard reads them."""

import json
import sys
from pathlib import Path

import pytest
from fixture_types import Train

from nbtools.project import Project
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.outputs.tensorboard_writer import Events


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def rows(files: RunDir, name: str) -> list[tuple[int, float]]:
    parsed = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    return [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in parsed if name in row]


@pytest.mark.promise("guide-A13", "guide-O8")
def test_every_metric_row_is_an_event(tiny_training: Train) -> None:
    files = tiny_training(report_to="tensorboard")
    events = read_back(files.tensorboard)
    names = {name for line in files.metrics.read_text().splitlines() for name in json.loads(line)}
    assert set(events) == names - {"step", "time", "samples"}
    assert events["train/loss"] == rows(files, "train/loss")
    assert [step for step, _ in events["eval/loss"]] == [2, 4]


def test_a_later_attempt_and_a_resumed_run_show_no_step_twice(tiny_training: Train) -> None:
    first = tiny_training(report_to="tensorboard")
    tiny_training(resume_from=first.checkpoint(2), files=first, attempt=2, report_to="tensorboard", max_steps=5)
    assert [step for step, _ in read_back(first.tensorboard)["train/loss"]] == [1, 2, 3, 4, 5]
    second = tiny_training(resume_from=first.checkpoint(4), report_to="tensorboard", max_steps=6)
    assert [step for step, _ in read_back(second.tensorboard)["train/loss"]] == [5, 6]


def test_a_missing_package_is_a_clear_error_before_the_first_step(
    tiny_training: Train, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    files = RunDir.create(project.runs, "mlm")
    with pytest.raises(SystemExit, match=r"report_to='tensorboard': needs the package tensorboard, which"):
        tiny_training(files=files, report_to="tensorboard")
    assert (read_json(files.finished) or {})["step"] == 0


def test_events_that_cannot_be_written_cost_a_warning_and_no_training(
    tiny_training: Train, project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    files = RunDir.create(project.runs, "mlm")
    files.tensorboard.write_text("in the way")
    tiny_training(files=files, report_to="tensorboard")
    assert (read_json(files.finished) or {})["why"] == "completed"
    assert capfd.readouterr().out.count("TensorBoard events are no longer written: ") == 1


def test_values_that_are_not_finite_are_written_too(tmp_path: Path) -> None:
    events = Events(tmp_path / "tensorboard")
    events.write(1, {"train/loss": float("inf")})
    events.close(failed=False)
    assert read_back(tmp_path / "tensorboard") == {"train/loss": [(1, float("inf"))]}
