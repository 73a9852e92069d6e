"""What a panel tells somebody who comes back to a run."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from nbtools.notebook.panel import html
from nbtools.notebook.panel import news as away
from nbtools.notebook.panel.news import Away, News, Seen, Visit, since
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RunDir

LEFT = 1_750_000_000.0
"""When somebody left; rows before it are the odd ones out, all that follows is news."""


class Record:
    """A run directory whose times are told in seconds from the moment somebody left."""

    def __init__(self, path: Path) -> None:
        self.files = RunDir(path)
        self.files.ranks.mkdir(parents=True)
        self.files.checkpoints.mkdir()
        write_json(self.files.launch, {"name": "tiny", "recipe": "mlm_pretraining", "time": LEFT - 1000, "launch": {}})
        self.files.log.write_text("an early line\nwarning: seen before\n")
        self.lock = acquire_lock(self.files.lock)
        self.seen = Seen(LEFT, self.files.log.stat().st_size)

    def row(self, step: int, at_s: float, **metrics: Any) -> None:
        values = {name.replace("_", "/", 1): value for name, value in metrics.items()}
        with self.files.metrics.open("a") as file:
            file.write(json.dumps({"step": step, "time": LEFT + at_s, **values}) + "\n")

    def rows(self, steps: Sequence[int], at_s: float, every_s: float = 1.0) -> None:
        """Training rows, the first one at `at_s`."""
        for index, step in enumerate(steps):
            self.row(step, at_s + index * every_s, train_loss=10 / step)

    def checkpoint(self, step: int, at_s: float) -> None:
        folder = self.files.checkpoint(step)
        folder.mkdir()
        content = {"step": step, "time": LEFT + at_s, "metrics": {}, "files": {"state.pt": {"bytes": 1, "sha256": "0"}}}
        write_json(folder / "manifest.json", content)

    def restart(self, attempt: int, at_s: float, checkpoint: str | None) -> None:
        failure = {"rank": 1, "host": None, "message": "killed by SIGKILL", "signal": "SIGKILL"}
        line = {"attempt": attempt, "time": LEFT + at_s, "failure": failure, "checkpoint": checkpoint}
        with self.files.attempts.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def say(self, text: str) -> None:
        with self.files.log.open("a") as log:
            log.write(text)

    def end(self, at_s: float, returncode: int = 0, failure: Any = None) -> None:
        write_json(self.files.exit, {"returncode": returncode, "failure": failure, "time": LEFT + at_s})
        self.release()

    def release(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None

    def news(self) -> list[News]:
        found = since(Run(self.files.path), self.seen, LEFT + 3600)
        return list(found.news) if found else []

    def short(self) -> list[str]:
        return [news.short for news in self.news()]


@pytest.fixture
def record(tmp_path: Path) -> Any:
    made = Record(tmp_path / "2026-01-31_142233_tiny")
    yield made
    made.release()


# --- what happened ---


def test_nothing_that_was_there_before_is_news(record: Record) -> None:
    record.rows(range(1, 21), -100)
    record.row(20, -80, eval_loss=2.0)
    record.checkpoint(20, -79)
    record.restart(1, -90, None)
    assert since(Run(record.files.path), record.seen, LEFT + 3600) is None
    record.end(-1)
    assert since(Run(record.files.path), record.seen, LEFT + 3600) is None


def test_steps_best_loss_and_checkpoints_are_told_then_and_now(record: Record) -> None:
    record.rows(range(10, 110, 10), -10)
    record.row(50, -5, eval_loss=3.5)
    record.row(100, -1, eval_loss=3.25)
    record.checkpoint(100, -0.5)
    assert record.short() == []
    record.rows(range(110, 310, 10), 10)
    record.row(200, 19, eval_loss=2.5)
    record.row(300, 30, eval_loss=2.75)
    record.checkpoint(200, 20)
    record.checkpoint(300, 31)
    assert record.short() == ["step 100 → 300", "best eval loss 3.25 → 2.5", "2 checkpoints"]
    assert [news.details for news in record.news()] == [
        ("200 steps: from 100 to 300",),
        ("best eval loss 3.25 (step 100) → 2.5 (step 200); last 2.75 at step 300",),
        ("2 checkpoints saved, the newest: step-000300",),
    ]
    assert not any(news.is_trouble for news in record.news())


def test_a_best_loss_that_did_not_improve_is_told_as_such(record: Record) -> None:
    record.row(1, -10, eval_loss=2.0)
    record.row(2, 10, eval_loss="NaN")
    assert record.short() == ["step 1 → 2"]
    record.row(3, 20, eval_loss=2.5)
    assert record.short() == ["step 1 → 3", "best eval loss still 2"]
    assert record.news()[1].details == ("best eval loss still 2 (step 1); last 2.5 at step 3",)


def test_a_first_evaluation_has_no_loss_to_compare_with(record: Record) -> None:
    record.row(5, -10, train_loss=4.0)
    record.row(10, 10, eval_loss=2.0)
    assert record.short() == ["step 5 → 10", "best eval loss 2"]


def test_without_an_evaluation_the_training_loss_is_told(record: Record) -> None:
    record.row(5, -10, train_loss=4.0, train_grad_norm=1.0)
    record.row(10, 10, train_loss=3.5, train_grad_norm=1.0)
    assert record.short() == ["step 5 → 10", "train loss 4 → 3.5"]


def test_the_best_loss_of_a_resumed_run_is_that_of_its_whole_curve(tmp_path: Path) -> None:
    parent = Record(tmp_path / "2026-01-31_142233_parent")
    parent.row(50, -500, eval_loss=1.5)
    parent.end(-450)
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


def test_restarts_are_told_with_their_cause_and_their_pause_is_no_stall(record: Record) -> None:
    record.rows(range(1, 251), -250)
    record.checkpoint(200, -50)
    record.restart(1, 5, "step-000200")
    record.restart(2, 100, None)
    record.rows(range(201, 260), 200)
    assert record.short() == ["2 restarts", "step 200 → 259", "train loss 0.05 → 0.03861"]
    first, second = record.news()[0].details
    assert first.endswith(": restarted at step 200: rank 1: killed by SIGKILL")
    assert second.endswith(": restarted from the start: rank 1: killed by SIGKILL")
    assert record.news()[0].is_trouble


def test_a_pause_far_beyond_the_usual_step_is_a_stall(record: Record) -> None:
    record.rows(range(1, 11), -100, every_s=2.0)
    record.rows(range(11, 21), 300, every_s=2.0)
    record.rows(range(21, 31), 360, every_s=2.0)
    stall = record.news()[0]
    assert stall.short == "stalled for 7m04s"
    assert stall.is_trouble
    assert [detail.partition(": ")[2] for detail in stall.details] == [
        "no progress for 6m22s after step 10 (usual are 2 s)",
        "no progress for 42s after step 20 (usual are 2 s)",
    ]


@pytest.mark.parametrize("every_s", [1.0, 60.0])
def test_regular_rows_are_no_stall_however_slow(record: Record, every_s: float) -> None:
    record.rows(range(1, 11), -10 * every_s, every_s)
    record.rows(range(11, 41), 0, every_s)
    assert not any("stalled" in short for short in record.short())


def test_regular_evaluations_and_checkpoints_are_no_stalls(record: Record) -> None:
    at_s = 10.0
    for step in range(1, 61):
        record.row(step, at_s, train_loss=1.0)
        at_s += 1
        if step % 10 == 0:
            at_s += 120
            record.row(step, at_s, eval_loss=1.0)
            record.checkpoint(step, at_s)
    assert not any("stalled" in short for short in record.short())
    record.row(61, at_s + 1, train_loss=1.0)
    record.row(62, at_s + 600, train_loss=1.0)
    assert "stalled for 9m59s" in record.short()


def test_only_warnings_after_the_last_look_are_told_and_equal_ones_once(record: Record) -> None:
    record.say("step 1\nwarning: the disk is full\nno warning: here\nwarning: the disk is full\nwarning: \x1b[31mred\n")
    warnings = record.news()[0]
    assert warnings.short == "3 warnings"
    assert warnings.details == ("warning: the disk is full (2 times)", "warning: red")


def test_a_log_that_was_truncated_is_read_from_its_start(record: Record) -> None:
    record.files.log.write_text("warning: new\n")
    assert record.short() == ["1 warning"]


def test_of_a_flood_of_output_the_end_is_searched_and_of_many_warnings_the_last_are_shown(record: Record) -> None:
    with record.files.log.open("ab") as log:
        log.write(b"warning: lost in the flood\n")
    os.truncate(record.files.log, 40 << 20)
    record.say("\n" + "".join(f"warning: number {i}\n" for i in range(1000)))
    (warnings,) = record.news()
    assert warnings.short == "1,000 warnings"
    assert warnings.details[0] == "995 earlier ones, then"
    assert warnings.details[-1] == "warning: number 999"
    assert len(warnings.details) == 6


def test_the_end_is_told_with_its_cause(record: Record) -> None:
    record.row(7, 10, train_loss=1.0)
    record.end(20, 1, {"rank": 1, "host": "node7", "message": "ValueError: boom"})
    first = record.news()[0]
    assert first.short == "failed at step 7"
    assert first.details[0].endswith("rank 1 on node7: ValueError: boom")
    assert first.is_trouble


def test_a_clean_end_is_no_trouble(record: Record) -> None:
    record.row(7, 10, train_loss=1.0)
    record.end(20)
    assert record.short()[0] == "succeeded at step 7"
    assert not record.news()[0].is_trouble


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
    ],
)
def test_a_record_that_cannot_be_read_is_none(record: Record, content: str) -> None:
    record.files.seen.write_text(content)
    assert Seen.read(record.files) is None


@pytest.mark.parametrize("log_bytes", [-5, 10**30])
def test_an_impossible_size_of_the_log_reads_it_from_its_start(record: Record, log_bytes: int) -> None:
    found = since(Run(record.files.path), Seen(LEFT, log_bytes), LEFT + 60)
    assert found is not None
    assert [news.details for news in found.news] == [("warning: seen before",)]


def test_a_look_is_recorded_at_most_every_ten_seconds_and_at_the_end(record: Record) -> None:
    run, visit = Run(record.files.path), Visit(record.files)
    recorded = []
    for second in range(0, 35, 5):
        visit.look(run, LEFT + second, LEFT + second)
        seen = Seen.read(record.files)
        recorded.append(seen and seen.time - LEFT)
    assert recorded == [0, 0, 10, 10, 20, 20, 30]
    record.say("more\n")
    visit.look(run, LEFT + 33, LEFT)
    visit.leave(record.files)
    assert Seen.read(record.files) == Seen(LEFT + 33, record.files.log.stat().st_size)


def test_a_directory_that_cannot_be_written_is_no_error(record: Record) -> None:
    record.files.seen.mkdir()
    visit = Visit(record.files)
    assert visit.look(Run(record.files.path), LEFT, LEFT) is None
    visit.leave(record.files)
    assert [path.name for path in record.files.path.glob("*seen*")] == ["seen.json"]
    assert [path.name for path in record.files.path.glob(".*")] == []


def test_a_new_kernel_tells_what_happened_since_the_last_look_of_another_one(record: Record) -> None:
    record.rows(range(1, 11), -10)
    run = Run(record.files.path)
    Visit(record.files).look(run, LEFT, LEFT)
    record.rows(range(11, 21), 1)
    now = LEFT + 25
    found = Visit(record.files).look(run, now, now)
    assert found is not None
    assert (found.since, found.until) == (LEFT, now)
    assert found.news[0].short == "step 10 → 20"


def test_a_kernel_beside_one_that_looks_tells_nothing(record: Record) -> None:
    run, there, here = Run(record.files.path), Visit(record.files), None
    for second in range(0, 40, 5):
        there.look(run, LEFT + second, LEFT)
        record.rows([second + 1], second)
    here = Visit(record.files)
    assert here.look(run, LEFT + 40, LEFT + 40) is None


def test_panels_of_one_kernel_tell_nothing_of_what_another_one_showed(record: Record) -> None:
    run = Run(record.files.path)
    visit = away.visit_of(run)
    assert away.visit_of(Run(record.files.path)) is visit
    for second in range(300):
        record.rows([second + 1], second)
        assert visit.look(run, LEFT + second, LEFT + second) is None
    assert visit.look(run, LEFT + 330, LEFT + 330) is None
    found = visit.look(run, LEFT + 3930, LEFT + 3930)
    assert found is None, "nothing happened"
    record.rows([500], 5000)
    found = visit.look(run, LEFT + 6000, LEFT + 6000)
    assert found is not None
    assert visit.look(run, LEFT + 6030, LEFT + 6030) is found, "another panel, opened a moment later, tells the same"
    assert visit.look(run, LEFT + 6070, LEFT + 6070) is None


def test_looks_of_a_panel_that_nobody_watches_do_not_count(record: Record) -> None:
    run, visit = Run(record.files.path), Visit(record.files)
    for minute in range(180):
        assert visit.look(run, LEFT + 60 * minute, used_at=LEFT) is None
        record.rows([minute + 1], 60 * minute)
    seen = Seen.read(record.files)
    assert seen is not None
    assert seen.time == LEFT + 600
    now = LEFT + 180 * 60
    found = visit.look(run, now, used_at=now - 1)
    assert found is not None
    assert found.since == LEFT + 600
    assert found.news[0].short == "step 11 → 180"


def test_every_cell_that_is_run_is_a_use_of_the_kernel() -> None:
    sources = [
        "import time\nfrom nbtools.notebook.panel.news import use\nfirst = use().at",
        "assert use() is use()\nassert first < use().at <= time.time()\nsecond = use().at",
        "time.sleep(0.3)\nassert second < use().at < time.time() - 0.25",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()


def test_without_a_shell_the_kernel_is_always_in_use() -> None:
    watch = away.Use()
    watch._at -= 3600
    assert watch.at == pytest.approx(time.time(), abs=60)


# --- the card ---


def test_the_card_is_one_line_that_unfolds_and_everything_in_it_is_literal() -> None:
    hostile = "<img src=x onerror=alert(1)></summary><script>"
    news = (News(f"short {hostile}", ("one", hostile), is_trouble=True), News("calm", ("two",)))
    card = html.away(Away(0.0, 4320.0, news))
    assert card.count("<details") == card.count("<summary") == card.count("</summary>") == 1
    assert "<details open" not in card
    assert "While you were away" in card
    assert "1h12m" in card
    assert "<img" not in card
    assert "<script" not in card
    assert card.count(html.literal(hostile)) == 2
    assert [card.count(f"<li>{line}</li>") for line in ("one", "two")] == [1, 1]
