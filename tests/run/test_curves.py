"""Curves in few columns: what they keep of all rows, their cache, and the glimpse of a long run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fixture_types import MonkeyPatch

from nbtools.metrics.history import History
from nbtools.project import Project
from nbtools.run import curves
from nbtools.run.curves import NUM_COLUMNS, cached, curves_of, ends_of, glimpse, read_curves
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir


def rows(count: int, first: int = 1) -> bytes:
    """Return metric rows with a spike in the middle of all that are asked for."""
    lines = []
    for step in range(first, first + count):
        row = {"step": step, "time": 1e9 + step / 2, "samples": step * 8, "train/loss": 5 / step, "eval/accuracy": 0.5}
        if step == first + count // 2:
            row["train/loss"] = 99.0
        lines.append(json.dumps(row))
    return "\n".join(lines).encode() + b"\n"


@pytest.fixture
def run(project: Project, tmp_path: Path, monkeypatch: MonkeyPatch) -> Run:
    """A run of 30,000 rows, and a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = RunDir.create(project.runs, "long")
    write_json(files.launch, {"name": "long", "recipe": "mlm_pretraining", "time": 1e9})
    files.metrics.write_bytes(rows(30_000))
    return Run(files.path)


def test_no_extreme_of_a_column_is_lost_and_the_mean_is_of_all_rows(run: Run) -> None:
    series, sketch = run.history["train/loss"], curves_of(run.history)["train/loss"]
    assert len(sketch.steps) == NUM_COLUMNS and sketch.counts.sum() == len(series) == 30_000
    assert sketch.high.max() == 99.0 and sketch.low.min() == series.values.min()
    assert np.average(sketch.mean, weights=sketch.counts) == pytest.approx(series.values.mean())
    assert (np.diff(sketch.steps) > 0).all()


def test_a_short_curve_is_kept_as_it_is_with_its_gaps_and_its_divergence() -> None:
    history = History()
    history.extend(
        b'{"step":1,"loss":2.0}\n{"step":2,"loss":"NaN"}\n{"step":3,"loss":1.0}\n{"step":5,"loss":"Infinity"}\n'
    )
    sketch = curves_of(history)["loss"]
    assert np.array_equal(sketch.mean, [2.0, np.nan, 1.0, np.nan], equal_nan=True)
    assert sketch.diverged_at == 5 and sketch.ends.best == 1.0 and sketch.ends.last == np.inf


def test_a_curve_without_any_finite_value_diverges_at_its_first_step() -> None:
    history = History()
    history.extend(b'{"step":4,"loss":"NaN"}\n{"step":5,"loss":"NaN"}\n')
    sketch = curves_of(history)["loss"]
    assert (sketch.diverged_at, len(sketch), sketch.ends.best) == (4, 2, None)


def test_the_cache_gives_the_same_curves_until_rows_are_added(run: Run) -> None:
    assert cached(run) is None
    read = read_curves(run)
    again = cached(Run(run.dir))
    assert again is not None and list(again) == list(read)
    for name in read:
        assert again[name].ends == read[name].ends
        for column in ("steps", "times", "samples", "low", "high", "mean", "counts"):
            assert np.array_equal(getattr(again[name], column), getattr(read[name], column)), column
    with run.files.metrics.open("ab") as file:
        file.write(rows(1, first=30_001))
    assert cached(run) is None
    assert not list(run.dir.glob("**/*.bin")), "the cache is never in the run"


def test_a_damaged_cache_is_read_again(run: Run) -> None:
    read_curves(run)
    path = curves._cache_file(run)
    for damage in (path.read_bytes()[:-8], b"{}\n", b"", b'{"format": 1, "stamp"'):
        path.write_bytes(damage)
        assert cached(run) is None
    assert len(read_curves(run)["train/loss"].steps) == NUM_COLUMNS


def test_the_cache_has_a_size_and_keeps_the_newest_file(project: Project, run: Run, monkeypatch: MonkeyPatch) -> None:
    read_curves(run)
    path = curves._cache_file(run)
    size = path.stat().st_size
    for age in range(4):
        older = path.with_name(f"{age}.bin")
        older.write_bytes(bytes(size))
        os.utime(older, ns=(0, path.stat().st_mtime_ns - 10**9 * (age + 1)))
    monkeypatch.setattr(curves, "_MOST_CACHED_BYTES", 3 * size + 5000)
    with run.files.metrics.open("ab") as file:
        file.write(rows(1, first=30_001))
    read_curves(run)
    assert sorted(file.name for file in path.parent.iterdir()) == sorted([path.name, "0.bin", "1.bin"])
    monkeypatch.setattr(curves, "_MOST_CACHED_BYTES", 0)
    path.unlink()
    assert len(read_curves(run)) == 2 and not list(path.parent.iterdir()), "one that is too large is not kept"


def test_curves_of_a_resumed_run_change_with_its_parent(project: Project, run: Run) -> None:
    files = RunDir.create(project.runs, "second")
    write_json(
        files.launch, {"name": "second", "recipe": "mlm_pretraining", "resumed_from": {"run": run.id, "step": 100}}
    )
    files.metrics.write_bytes(rows(10, first=101))
    child = Run(files.path)
    sketch = read_curves(child)["train/loss"]
    assert sketch.counts.sum() == 110 and cached(child) is not None
    with run.files.metrics.open("ab") as file:
        file.write(rows(1, first=30_001))
    assert cached(child) is None


def test_a_glimpse_has_both_ends_a_gap_and_no_best(run: Run) -> None:
    found = glimpse(run)
    sketch, ends = found["train/loss"], ends_of("train/loss", run.history["train/loss"])
    assert not sketch.is_complete and (sketch.ends.last, sketch.ends.last_step) == (ends.last, ends.last_step)
    assert sketch.ends.best is None and sketch.steps[0] == 1 and sketch.steps[-1] == 30_000
    assert np.isnan(sketch.mean).sum() == 1 and sketch.high[np.isfinite(sketch.high)].max() < 99


def test_a_process_of_its_own_fills_the_cache_and_goes_on_after_a_bad_run(project: Project, run: Run) -> None:
    bad = RunDir.create(project.runs, "newer")
    bad.launch.write_text('{"format": 99}')
    command = [sys.executable, "-P", "-m", "nbtools.run.curves", str(bad.path), str(run.dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{run.id}\n" and done.stderr == ""
    assert cached(run) is not None
