"""A profile of some steps: a trace that Perfetto opens, a table, and nothing at all when nobody asked."""

import json
from pathlib import Path

import pytest
import torch
from fixture_types import Train

from nbtools.project import Project
from nbtools.rundir.json_files import read_json
from nbtools.training.outputs.profiler import SKIPPED_STEPS, Profile


@pytest.mark.promise("guide-A17")
def test_the_steps_after_the_fifth_are_profiled(tiny_training: Train, capfd: pytest.CaptureFixture[str]) -> None:
    files = tiny_training(profile_steps=2, max_steps=10, eval_every=100, checkpoint_every=100)
    trace = json.loads((files.profile / "trace.json").read_text())
    names = [event.get("name") for event in trace["traceEvents"]]
    assert names.count("Optimizer.step#AdamW.step") == 2
    assert any(str(name).startswith("aten::") for name in names)
    assert sorted(path.name for path in files.profile.iterdir()) == ["table.txt", "trace.json"]
    table = (files.profile / "table.txt").read_text()
    assert table.startswith("2 steps after 5 skipped ones, by self_cpu")
    assert "Self CPU" in table and "aten::" in table
    said = capfd.readouterr().out
    assert table.splitlines()[4] in said
    assert "ui.perfetto.dev" in said


@pytest.mark.parametrize("num_profiled", [-2, 0, 3])
def test_a_training_that_ends_early_profiles_the_steps_there_were(
    tiny_training: Train, capfd: pytest.CaptureFixture[str], num_profiled: int
) -> None:
    files = tiny_training(profile_steps=50, max_steps=SKIPPED_STEPS + num_profiled)
    assert (read_json(files.finished) or {})["why"] == "completed"
    if num_profiled > 0:
        assert (files.profile / "table.txt").read_text().startswith(f"{num_profiled} steps ")
    else:
        assert not files.profile.exists()
        assert "note: nothing was profiled" in capfd.readouterr().out


def test_a_profile_that_cannot_be_written_costs_a_warning(project: Project, tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("in the way")
    said: list[str] = []
    profile = Profile(tmp_path / "profile", 1, torch.device("cpu"), said.append)
    for _ in range(SKIPPED_STEPS + 1):
        torch.ones(3).sum()
        profile.end_step()
    profile.close()
    assert said[0].startswith("warning: the profile was not written")
    assert len(said) == 2
