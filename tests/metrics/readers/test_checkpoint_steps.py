"""Steps of a program's checkpoints: exact where names and times tell one, else an estimate."""

import json
from pathlib import Path

import pytest

from nbtools.metrics.history import History
from nbtools.metrics.printed.log import LogMetrics
from nbtools.metrics.readers.checkpoint_steps import with_steps
from nbtools.rundir.program_files.foreign_checkpoints import ForeignCheckpoint, checkpoint_at

START = 1_700_000_000.0


def log_of(
    folder: Path, *, epochs: range, step_s: float, line: str = "epoch {e} | step {i}/32 | loss {x}.5"
) -> LogMetrics:
    """A log with a line every 4 of the 32 steps of an epoch, and its size each second, as the supervisor records it."""
    text, sizes, now = "", list[list[float]](), START
    for e in epochs:
        for i in range(32):
            now += step_s
            if i % 4 == 0:
                text += line.format(e=e, i=i, x=e * 32 + i) + "\n"
            if not sizes or now - sizes[-1][1] >= 1:
                sizes.append([len(text), round(now, 2), 1])
    sizes.append([len(text), round(now + 0.5, 2), 1])
    (folder / "rank0.log").write_text(text)
    (folder / "times").write_text("".join(f"{json.dumps(each)}\n" for each in sizes))
    return LogMetrics(folder / "rank0.log", folder / "times")


def saved(folder: Path, name: str, after_s: float) -> ForeignCheckpoint:
    (folder / name).write_text("x")
    (found,) = [checkpoint_at(folder / name)]
    return ForeignCheckpoint(found.path, name, found.step, START + after_s, 1, {}, found.number, found.is_of_epoch)


def steps(folder: Path, printed: LogMetrics, saves: dict[str, float], shift: int = 0) -> list[tuple[int | None, bool]]:
    found = [saved(folder, name, after_s) for name, after_s in saves.items()]
    return [(one.step, one.is_estimate) for one in with_steps(found, printed.history, printed, shift)]


@pytest.mark.parametrize("step_s", [0.001, 0.1, 3.0])
@pytest.mark.parametrize("name", ["ckpt_{}.pt", "epoch_{}.pth", "model-epoch{}.pt"])
def test_a_file_of_an_epoch_has_the_step_at_its_end(tmp_path: Path, step_s: float, name: str) -> None:
    printed = log_of(tmp_path, epochs=range(3, 9), step_s=step_s)
    ends = {name.format(epoch): (epoch - 2) * 32 * step_s for epoch in range(3, 9)}
    assert steps(tmp_path, printed, ends) == [(96 + 32 * n, False) for n in range(1, 7)]
    assert steps(tmp_path, printed, ends, -32) == [(64 + 32 * n, False) for n in range(1, 7)], "epochs are from 1"


@pytest.mark.parametrize("step_s", [0.001, 0.1, 3.0])
def test_a_file_may_number_the_epochs_from_1_where_the_lines_do_from_0(tmp_path: Path, step_s: float) -> None:
    printed = log_of(tmp_path, epochs=range(4), step_s=step_s)
    ends = {f"ckpt_{epoch + 1}.pt": (epoch + 1) * 32 * step_s for epoch in range(4)}
    assert steps(tmp_path, printed, ends) == [(32, False), (64, False), (96, False), (128, False)]


def test_a_number_is_a_step_only_where_the_time_says_so(tmp_path: Path) -> None:
    slow = log_of(tmp_path, epochs=range(4), step_s=3.0)
    assert steps(tmp_path, slow, {"ckpt_40.pt": 40 * 3.0, "ckpt_80.pt": 80 * 3.0}) == [(40, False), (80, False)]
    fast = log_of(tmp_path, epochs=range(4), step_s=0.001)
    assert all(is_estimate for _, is_estimate in steps(tmp_path, fast, {"ckpt_40.pt": 0.04, "ckpt_80.pt": 0.08}))


def test_a_name_without_a_number_has_about_the_step_of_the_last_row(tmp_path: Path) -> None:
    printed = log_of(tmp_path, epochs=range(4), step_s=3.0)
    ((step, is_estimate),) = steps(tmp_path, printed, {"last.pt": 3.0 * 64})
    assert step in (60, 64) and is_estimate


def test_a_named_step_counts_from_the_first_run_on_or_from_the_resume_on(tmp_path: Path) -> None:
    printed = log_of(tmp_path, epochs=range(3, 9), step_s=0.1)
    for name in ("step_64.pt", "step_160.pt"):
        assert steps(tmp_path, printed, {name: 6.4}) == [(160, False)]


def test_a_number_without_any_row_is_the_step_unless_it_is_an_epoch(tmp_path: Path) -> None:
    names = {"ckpt_4.pt": 1.0, "epoch_4.pt": 1.0, "step_4.pt": 1.0}
    silent = LogMetrics(tmp_path / "none.log")
    found = with_steps([saved(tmp_path, name, after_s) for name, after_s in names.items()], History(), silent, 0)
    assert [(one.step, one.is_estimate) for one in found] == [(4, False), (None, False), (4, False)]


def test_an_epoch_is_the_step_where_epochs_are_all_that_is_counted(tmp_path: Path) -> None:
    printed = log_of(tmp_path, epochs=range(4), step_s=0.01, line="Epoch {e}: loss {x}.5")
    (tmp_path / "rank0.log").write_text("".join(f"Epoch {e}: loss {9 - e}.5\n" for e in range(1, 5)))
    (tmp_path / "times").write_text(f"[30,{START + 1},1]\n[80,{START + 9},1]\n")
    assert steps(tmp_path, printed, {"epoch_2.pt": 2.0, "epoch_3.pt": 4.0}) == [(2, False), (3, False)]
