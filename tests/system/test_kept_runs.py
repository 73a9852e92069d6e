"""Run directories of an earlier version, each of a real launch, kept as data: they open, plot, resume and fork."""

import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from fixture_types import MonkeyPatch, Printed

from nbtools.cli.commands import main as nbtools
from nbtools.launcher import launch as launching
from nbtools.launcher.resume import config_of, resume
from nbtools.notebook.panel.panel import LivePlot
from nbtools.notebook.plots.figure import save_plot
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.rundir import has_recipe

from trainings import train_here

ARCHIVE = Path(__file__).parent / "kept_runs" / "runs.tar.gz"
KEPT = {
    "mlm": ("SUCCEEDED", 6),
    "mlm_longer": ("SUCCEEDED", 9),
    "mlm_fork": ("SUCCEEDED", 6),
    "diffusion": ("SUCCEEDED", 6),
    "pairs": ("SUCCEEDED", 6),
    "classification": ("SUCCEEDED", 6),
    "distillation": ("SUCCEEDED", 6),
    "gan": ("SUCCEEDED", 8),
    "sharded": ("SUCCEEDED", 6),
    "lora": ("SUCCEEDED", 6),
    "llada_sharded_lora": ("SUCCEEDED", 6),
    "refused": ("FAILED", None),
    "stopped": ("STOPPED", None),
    "lost": ("LOST", None),
    "by_hand": ("SUCCEEDED", 6),
    "epochs": ("SUCCEEDED", 22),
    "ddp": ("SUCCEEDED", 30),
    "trainer": ("SUCCEEDED", 20),
    "raises": ("FAILED", None),
    "slurm": ("SUCCEEDED", 6),
    "cancelled": ("STOPPED", None),
}
"""The name of each run, its state, and its last step where that is known beforehand."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("kept")
    here = {"@ROOT@": str(root), "@PYTHON@": sys.executable, "@ENVIRONMENT@": sys.prefix, "@NBTOOLS@": sys.prefix}
    with tarfile.open(ARCHIVE) as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            content = file.read()
            if "checkpoints" not in entry.name:
                for name, place in here.items():
                    content = content.replace(name.encode(), place.encode())
            path = root / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (entry.mtime, entry.mtime))  # by which the checkpoints of programs are found
    return root


def run_named(name: str, project: Project) -> Run:
    (path,) = project.runs.glob(f"2026-11-26_??????_{name}")
    return Run(path)


@pytest.fixture
def kept(unpacked: Path, monkeypatch: MonkeyPatch) -> Project:
    monkeypatch.setenv("NBTOOLS_ROOT", str(unpacked))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(unpacked)
    monkeypatch.setattr(launching, "_start_supervisor", lambda *_: None)
    return Project(unpacked)


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_run_opens_and_plots(name: str, kept: Project, capsys: Printed) -> None:
    run = run_named(name, kept)
    state, step = KEPT[name]
    assert run.state == state
    assert nbtools(["show", run.id, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["step"]) == (state, step if step is not None else told["step"])
    assert (told["failure"] is not None) == (state in ("FAILED", "LOST"))
    if name not in ("refused", "raises"):
        history = run.history
        assert "train/loss" in history or "loss" in history or "train/judge_loss" in history, list(history)
    assert save_plot(run, kept.root / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    panel = LivePlot(run.dir)
    panel.refresh()
    assert run.id in repr(panel._outputs())
    panel.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the learning rate was")
@pytest.mark.parametrize("name", [name for name in KEPT if name not in ("refused", "raises")])
def test_a_kept_run_resumes_and_forks(name: str, kept: Project, monkeypatch: MonkeyPatch) -> None:
    run = run_named(name, kept)
    newest = run.checkpoints[-1]
    if not has_recipe(run.files):
        child = resume(run)
        assert str(newest.path) in " ".join(child.info["args"])
        return
    longer: dict[str, Any] = {"max_steps": newest.step + 1, "epochs": 1000}
    fork = resume(run, newest.step, changes={**longer, "seed": 7}, cluster="none", name="fork")
    assert fork.info["resumed_from"]["step"] == newest.step
    files = train_here(kept, config_of(run).replace(**longer), newest.path, monkeypatch=monkeypatch)
    assert Run(files.path).step == newest.step + 1
    assert json.loads(files.metrics.read_text().partition("\n")[0])["step"] == newest.step + 1
