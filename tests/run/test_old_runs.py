"""Run directories of the format before `media/`: `exhibits/`, the kind `drawings`, `seen.json` of a panel."""

import json
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from nbtools.notebook.panel.panel import LivePlot
from nbtools.project import Project
from nbtools.run.checkpoints import newest_verified
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir import media

PARENT, CHILD = "2026-01-31_142233_old", "2026-01-31_150000_old"
STARTED = 1_790_000_000.0
MAP = "return 0\n· · @\n· X ·"


def put(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"format": 1, **content}, indent=1))


def put_lines(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def put_checkpoint(run: Path, step: int) -> None:
    folder = run / "checkpoints" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"weights")
    claim = {"bytes": 7, "sha256": sha256(b"weights").hexdigest()}
    counts = {"step": step, "epoch": 0, "position": 8 * step, "samples": 8 * step, "attempt": 1, "world_size": 2}
    best = {"best_by": "eval/return_last", "lower_is_better": False, "metrics": {"eval/return_last": step / 10}}
    put(folder / "manifest.json", {**counts, **best, "time": STARTED + step, "files": {"state.pt": claim}})


def put_run(path: Path, first: int, last: int, resumed_from: dict[str, Any] | None = None) -> None:
    """Write what a run of two ranks left behind, file by file, from the files of commit cb40563."""
    origin = {} if resumed_from is None else {"resumed_from": resumed_from}
    settings = {"nproc_per_node": 2, "gpus": [], "omp_num_threads": 1, "shutdown_timeout_s": 60, "max_restarts": 0}
    put(
        path / "launch.json",
        {
            "name": "old",
            "script": "/home/me/project/scripts/old.py",
            "recipe": "algorithm_distillation",
            "argv": ["python", "-m", "torch.distributed.run", "script.py"],
            "args": [],
            "launch": settings,
            "versions": {"python": "3.11.7", "nbtools": "0.1.0"},
            "time": STARTED,
            "flock": True,
            **origin,
        },
    )
    put(path / "config.json", {"recipe": "algorithm_distillation", "config": {}, "derived": {"total_steps": last}})
    identity = {"start_time": 2637.38, "boot_id": "a80bed07-7923-4069-871a-13431ce5b02d", "host": "vm"}
    put(path / "process.json", {"role": "supervisor", "pid": 14543, **identity})
    beat = {"rank": 0, "pid": 14555, **identity, "step": last, "phase": "done", "nth": 7, "time": STARTED + last}
    put(path / "ranks/0.heartbeat.json", {**beat, "stacks_signal": 12})
    (path / "rank0.log").write_text(f"step {last}/{last}\n")
    (path / "lock").touch()
    steps = range(first, last + 1)
    put_lines(
        path / "metrics.jsonl",
        *({"step": step, "time": STARTED + step, "samples": 8 * step, "train/loss": 1 / step} for step in steps),
    )
    put_checkpoint(path, last)
    showing = {"step": last, "time": STARTED + last}
    drawings = {"kind": "drawings", "title": "A goal being found", "frames": ["return 0\n@ · ·\n· X ·", MAP]}
    put_lines(path / "exhibits/search.jsonl", {**showing, **drawings})
    table = {"kind": "table", "title": "Mistakes", "columns": ["text"], "rows": [["a"]]}
    put_lines(path / "exhibits/mistakes.jsonl", {**showing, **table}, {**showing, **table, "rows": [["b"]]})
    put(path / "seen.json", {"time": STARTED + 1, "log_bytes": 3})
    put(
        path / "finished.json", {"why": "completed", "step": last, "metrics": {}, "failure": None, "time": STARTED + 90}
    )
    ended = {"returncode": 0, "signal": None, "stopped": False, "failure": None, "duration_s": 9.0, "swept": 0}
    put(path / "exit.json", {**ended, "time": STARTED + 99, "attempt": 1})


@pytest.fixture
def old(project: Project) -> Run:
    """A run of the old format that resumed another one from its checkpoint of step 4."""
    put_run(project.runs / PARENT, 1, 4)
    put_run(project.runs / CHILD, 5, 8, {"run": PARENT, "checkpoint": "step-000004", "step": 4})
    return Run(CHILD)


def test_an_old_run_is_read_in_full(old: Run) -> None:
    assert old.state is RunState.SUCCEEDED
    assert old.history["train/loss"].steps.tolist() == list(range(1, 9))
    assert newest_verified(old.files.checkpoints) == (old.checkpoints[0], [])
    summary = old.summary()
    assert summary["stragglers"] == []
    assert {name: summary[name] for name in ("returncode", "step", "total_steps", "parent", "origin", "ended_at")} == {
        "returncode": 0,
        "step": 8,
        "total_steps": 8,
        "parent": PARENT,
        "origin": f"resumed from {PARENT} at step 4",
        "ended_at": STARTED + 99,
    }


def test_the_old_folder_and_kind_of_media_are_read(old: Run) -> None:
    mistakes, search = old.media
    assert mistakes.rows == (("b",),), "the newest showing of each"
    assert (search.kind, search.keeps_lines, search.frames[-1]) == ("frames", True, MAP)
    assert old.media == media.latest(old.dir / "exhibits")


def test_the_command_line_shows_and_draws_an_old_run(
    old: Run, tmp_path: Path, cli: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert [run["id"] for run in json.loads(cli("runs", "--json").stdout)] == [CHILD, PARENT]
    assert MAP in cli("show", CHILD, "--media").stdout
    former = cli("show", CHILD, "--exhibits").stdout
    assert former == cli("show", CHILD, "--media").stdout
    cli("plot", CHILD, "-o", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_panel_shows_an_old_run_and_changes_none_of_its_files(
    old: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = {path: path.read_bytes() for path in sorted(old.dir.rglob("*")) if path.is_file()}
    panel = LivePlot(old)
    panel.refresh()
    header = panel._widgets.header.value
    panel.close()
    assert "Succeeded" in header and f"resumed from {PARENT} at step 4" in header
    assert {path: path.read_bytes() for path in sorted(old.dir.rglob("*")) if path.is_file()} == before
