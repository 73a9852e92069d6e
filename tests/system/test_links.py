"""Projects behind links: `runs/` on another disk, the project reached through a link, `scripts/` read-only."""

import json
import os
import shutil
from pathlib import Path

import pytest
from fixture_types import Configs, Lock, MonkeyPatch
from permissions import nbtools

from nbtools.cli.doctor import doctor
from nbtools.config import Launch
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir, project_of
from nbtools.script.script import write_script


@pytest.fixture
def linked(texts: Project, tiny_config: Configs, monkeypatch: MonkeyPatch) -> Path:
    """A project with a small training, whose `runs/` is a link; returns the link by which the project is reached."""
    root, disk, away = (texts.root.with_name(f"{texts.root.name}{end}") for end in ("", "-disk", "-away"))
    write_script(tiny_config(checkpoint_epochs=False), "tiny", Launch(gpus=()), project=texts)
    monkeypatch.delenv("NBTOOLS_ROOT")
    disk.mkdir()
    texts.runs.rmdir()
    texts.runs.symlink_to(disk)
    (root / "pyproject.toml").touch()
    away.symlink_to(root)
    return away


@pytest.mark.slow
@pytest.mark.promise("safety-links")
def test_a_training_behind_links_launches_resumes_forks_plots_and_is_cleaned(
    linked: Path, read_only: Lock, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(linked)
    monkeypatch.setenv("PWD", str(linked))
    env = {**os.environ}
    (linked / "scripts").chmod(0o755)
    read_only(linked / "scripts")
    first = nbtools("launch", "scripts/tiny.py", env=env, code=0).stdout.strip()
    nbtools("wait", first, env=env, code=0)
    assert json.loads(nbtools("show", first, "--json", env=env, code=0).stdout)["step"] == 4
    nbtools("plot", first, "-o", linked / "plot.png", env=env, code=0)
    said = nbtools("resume", first, "--set", "max_steps=6", env=env, code=2).stderr
    assert "the script of the fork cannot be written: Permission denied" in said
    longer = nbtools("resume", first, "--", "--max-steps", "6", env=env, code=0).stdout.strip()
    nbtools("wait", longer, env=env, code=0)
    (linked / "scripts").chmod(0o755)
    fork = nbtools("resume", longer, "--set", "max_steps=8", env=env, code=0).stdout.strip()
    nbtools("wait", fork, env=env, code=0)
    assert (linked / "scripts" / "tiny_2.py").is_file()
    steps = {row["id"]: row["step"] for row in json.loads(nbtools("runs", "--json", env=env, code=0).stdout)}
    assert steps == {first: 4, longer: 6, fork: 8}
    checked = [found for found in doctor() if found.subject in ("project", "scripts/", "runs/")]
    assert {found.level for found in checked} == {"ok"}
    nbtools("clean", fork, longer, "--yes", env=env, code=0)
    assert [path.name for path in (linked / "runs").iterdir() if not path.name.startswith(".")] == [first]


def test_the_project_of_a_run_is_the_one_whose_runs_it_is_in(project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("NBTOOLS_ROOT")
    away = project.root.with_name(f"{project.root.name}-away")
    project.runs.rename(away)
    project.runs.symlink_to(away)
    run = RunDir.create(project.runs, "toy")
    run.launch.write_text(json.dumps({"format": 1, "root": str(project.root)}))
    assert project_of(away / run.id / "script.py") == project
    copy = project.root.with_name(f"{project.root.name}-copy")
    shutil.copytree(project.root, copy)  # with real runs: launch.json still names the first project
    assert project_of(copy / "runs" / run.id / "script.py") == Project(copy)
    run.launch.write_text('{"format": 1, "root": 7}')
    monkeypatch.chdir(project.root)
    assert project_of(away / run.id / "script.py") == project


def test_a_launched_run_records_the_root_and_hands_it_on(project: Project) -> None:
    from nbtools.launcher.launch import launch

    (project.scripts / "toy.py").write_text("import os; print(os.environ['NBTOOLS_RUN_ROOT'])\n")
    run = launch(project.scripts / "toy.py", gpus=(), torchrun=False)
    run.wait(timeout_s=300)
    assert str(project.root) in Run(run.dir).log()
    assert (read_json(run.files.launch) or {})["root"] == str(project.root)
