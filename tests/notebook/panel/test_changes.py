"""What a panel shows of the changes since the last look at a run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from run_folder import RunFolder

from nbtools.notebook.panel import html
from nbtools.notebook.panel.changes import Change, Look, cache_file, changes_since, read_look, record_look
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

LEFT = 1_750_000_000.0
"""Time of the last look; only what comes after it is a change."""


class Record(RunFolder):
    """A run directory whose times are given in seconds from the last look."""

    def __init__(self, path: Path) -> None:
        super().__init__(RunDir(path), LEFT - 1000)
        self.start()
        self.say("an early line\nwarning: seen before\n")
        self.look = Look(LEFT, self.files.log.stat().st_size)

    def row(self, step: int, at: float, **metrics: Any) -> None:
        super().row(step, LEFT + at, **metrics)

    def train(self, steps: Sequence[int], at_s: float) -> None:
        """Training rows, the first one at `at_s`, one each second."""
        for index, step in enumerate(steps):
            self.row(step, at_s + index, train_loss=10 / step)

    def fail(self, attempt: int, at_s: float, checkpoint: str | None) -> None:
        cause = {"rank": 1, "host": None, "message": "killed by SIGKILL", "signal": "SIGKILL"}
        self.restart(attempt, checkpoint, LEFT + at_s, **cause)

    def changes(self) -> list[Change]:
        return changes_since(Run(self.files.path), self.look)

    def short(self) -> list[str]:
        return [change.short for change in self.changes()]


@pytest.fixture
def record(tmp_path: Path) -> Any:
    made = Record(tmp_path / "2026-01-31_142233_tiny")
    yield made
    made.release()


# --- what happened ---


def test_nothing_that_was_there_before_is_news(record: Record) -> None:
    record.train(range(1, 21), -100)
    record.row(20, -80, eval_loss=2.0)
    record.checkpoint(20, at=LEFT - 79)
    record.fail(1, -90, None)
    assert record.changes() == []
    record.end(at=LEFT - 1)
    assert record.changes() == []


def test_steps_best_loss_and_checkpoints_are_told_then_and_now(record: Record) -> None:
    record.train(range(10, 110, 10), -10)
    record.row(50, -5, eval_loss=3.5)
    record.row(100, -1, eval_loss=3.25)
    record.checkpoint(100, at=LEFT - 0.5)
    assert record.short() == []
    record.train(range(110, 310, 10), 10)
    record.row(200, 19, eval_loss=2.5)
    record.row(300, 30, eval_loss=2.75)
    record.checkpoint(200, at=LEFT + 20)
    record.checkpoint(300, at=LEFT + 31)
    assert record.short() == ["step 100 → 300", "best eval loss 3.25 → 2.5", "2 checkpoints"]
    assert [list(change.details) for change in record.changes()] == [
        [],
        ["best eval loss 3.25 (step 100) → 2.5 (step 200)"],
        ["step-000200", "step-000300"],
    ]
    assert not any(change.is_trouble for change in record.changes())


def test_a_best_loss_that_did_not_improve_is_told_as_such(record: Record) -> None:
    record.row(1, -10, eval_loss=2.0)
    record.row(2, 10, eval_loss="NaN")
    assert record.short() == ["step 1 → 2"]
    record.row(3, 20, eval_loss=2.5)
    assert record.short() == ["step 1 → 3", "best eval loss still 2"]
    assert record.changes()[1].details == ("best eval loss still 2 (step 1)",)


def test_the_training_loss_is_told_until_a_first_evaluation(record: Record) -> None:
    record.row(5, -10, train_loss=4.0, train_grad_norm=1.0)
    record.row(10, 10, train_loss=3.5, train_grad_norm=1.0)
    assert record.short() == ["step 5 → 10", "train loss 4 → 3.5"]
    record.row(10, 10, eval_loss=2.0)
    assert record.short() == ["step 5 → 10", "best eval loss 2"]


def test_the_best_loss_of_a_resumed_run_is_that_of_its_whole_curve(tmp_path: Path) -> None:
    parent = Record(tmp_path / "2026-01-31_142233_parent")
    parent.row(50, -500, eval_loss=1.5)
    parent.end(at=LEFT - 450)
    child = Record(tmp_path / "2026-01-31_152233_child")
    write_json(
        child.files.launch,
        {"name": "tiny", "recipe": "mlm_pretraining", "resumed_from": {"run": parent.files.id, "step": 50}},
    )
    child.row(60, 10, eval_loss=1.75)
    try:
        assert child.short() == ["step 50 → 60", "best eval loss still 1.5"]
    finally:
        child.release()


def test_restarts_are_told_with_their_cause(record: Record) -> None:
    record.train(range(1, 251), -250)
    record.checkpoint(200, at=LEFT - 50)
    record.fail(1, 5, "step-000200")
    record.fail(2, 100, None)
    record.train(range(201, 260), 200)
    assert record.short() == ["2 restarts", "step 200 → 259", "train loss 0.05 → 0.03861"]
    first, second = record.changes()[0].details
    assert first.endswith(": restarted at step 200: rank 1: killed by SIGKILL")
    assert second.endswith(": restarted from the start: rank 1: killed by SIGKILL")
    assert record.changes()[0].is_trouble


def test_only_warnings_after_the_last_look_are_told_and_equal_ones_once(record: Record) -> None:
    record.say("step 1\nwarning: the disk is full\nno warning: here\nwarning: the disk is full\nwarning: \x1b[31mred\n")
    warnings = record.changes()[0]
    assert warnings.short == "2 warnings"
    assert warnings.details == ["warning: the disk is full (2 times)", "warning: red"]


def test_a_log_that_was_truncated_is_read_from_its_start(record: Record) -> None:
    record.files.log.write_text("warning: new\n")
    assert record.short() == ["1 warning"]


def test_of_a_flood_of_output_the_end_is_searched_and_of_many_warnings_the_last_are_shown(record: Record) -> None:
    with record.files.log.open("ab") as log:
        log.write(b"warning: lost in the flood\n")
    os.truncate(record.files.log, 40 << 20)
    record.say("\n" + "".join(f"warning: number {i}\n" for i in range(1000)))
    (warnings,) = record.changes()
    assert warnings.short == "1,000 warnings" and warnings.details[0] == "995 earlier ones"
    assert warnings.details[-1] == "warning: number 999" and len(warnings.details) == 6


def test_the_end_is_told_with_its_cause(record: Record) -> None:
    record.row(7, 10, train_loss=1.0)
    record.end(at=LEFT + 20)
    assert record.short()[0] == "succeeded at step 7" and not record.changes()[0].is_trouble
    record.end(1, {"rank": 1, "host": "node7", "message": "ValueError: boom"}, at=LEFT + 20)
    first = record.changes()[0]
    assert first.short == "failed at step 7" and first.details[0].endswith("rank 1 on node7: ValueError: boom")
    assert first.is_trouble


def test_a_run_that_was_lost_meanwhile_is_told_and_one_lost_before_is_not(record: Record) -> None:
    record.row(7, -10, train_loss=1.0)
    record.release()
    assert record.short() == []
    record.row(8, 10, train_loss=1.0)
    assert record.short()[0] == "lost at step 8"


def test_rows_without_times_are_no_news(record: Record) -> None:
    record.files.metrics.write_text('{"step": 1, "train/loss": 1.0}\n{"step": 2, "train/loss": 1.0}\n')
    assert record.short() == []


# --- the last look ---


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"format": 99, "time": 1, "log_bytes": 1}', '{"format": 1, "time": "x", "log_bytes": 1}'),
        *('{"format": 1, "log_bytes": 1}', '{"format": 1, "time": 1, "log_bytes": 1e400}', '{"time": null}'),
        '{"format": 1, "time": 1, "log_bytes": -5}',
    ],
)
def test_a_record_that_cannot_be_read_is_none(record: Record, content: str) -> None:
    path = cache_file(record.files)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert read_look(record.files) is None


def test_a_log_size_beyond_the_file_reads_the_log_from_its_start(record: Record) -> None:
    (change,) = changes_since(Run(record.files.path), Look(LEFT, 10**15))
    assert change.details == ["warning: seen before"]


def test_a_look_is_kept_in_the_cache_of_the_user_and_not_in_the_run(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(record.files.path.rglob("*"))
    (record.files.path / "seen.json").write_text('{"format": 1, "time": 1.0, "log_bytes": 0}')
    assert read_look(record.files) is None, "old versions left this file in run directories"
    (record.files.path / "seen.json").unlink()
    record_look(record.files, LEFT)
    assert read_look(record.files) == Look(LEFT, record.files.log.stat().st_size)
    link = tmp_path / "link"
    link.symlink_to(record.files.path)
    assert read_look(RunDir(link)) == read_look(record.files) and read_look(RunDir(tmp_path / "other")) is None
    assert sorted(record.files.path.rglob("*")) == before
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    record_look(record.files, LEFT)
    assert [path.parent for path in (tmp_path / "home").rglob("*.json")] == [tmp_path / "home/.cache/nbtools/looks"]


def test_a_cache_that_cannot_be_written_is_no_error(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file", Path("relative")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        record_look(record.files, LEFT)
        assert read_look(record.files) is None
    assert not Path("relative").exists()


# --- the card ---


def test_the_card_is_one_line_that_unfolds_and_everything_in_it_is_literal() -> None:
    hostile = "<img src=x onerror=alert(1)></summary><script>"
    card = html.changes_card([Change(f"short {hostile}", ("one", hostile), is_trouble=True), Change("calm")], 4320.0)
    assert card.count("<details") == card.count("<summary") == card.count("</summary>") == 1
    assert "<details open" not in card and "Since the last look" in card
    assert "1h12m" in card and "<img" not in card
    assert "<script" not in card and card.count(html.literal(hostile)) == 2
    assert [card.count(f"<li>{line}</li>") for line in ("one", "calm")] == [1, 1]
    assert html.changes_card([], 4320.0) == ""
