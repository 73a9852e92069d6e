"""Scaling: short runs with the same work on different numbers of processes."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from nbtools.config import Launch
from nbtools.errors import LaunchError
from nbtools.notebook.comparison.scaling import scaling
from nbtools.notebook.comparison.scaling_card import scaling_of
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.rundir import run_folders
from nbtools.script.script import write_script


@pytest.fixture
def script(texts: Project, tiny_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny recipe's script, in a project whose machine has two cores and no GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(texts.root / "cache"))
    monkeypatch.setattr("nbtools.notebook.comparison.scaling.num_cores", lambda: 2)
    monkeypatch.setattr("nbtools.notebook.comparison.scaling.devices", list)
    return str(write_script(tiny_config(), "tiny", Launch(gpus=())))


@pytest.mark.slow
def test_the_same_samples_on_one_and_two_processes_give_a_card(script: str) -> None:
    panel = scaling(script, (2, 1, 64), steps=6)
    one, two = panel.comparison.runs
    assert panel.comparison.notes[0] == (
        "Each run trains on the same 48 samples, one run after the other: 12 steps on 1, 6 steps on 2."
    )
    assert panel.comparison.notes[1] == (
        "64 processes: left out. This machine has 2 CPU cores, and each process needs one."
    )
    assert two.info["after"] == str(one.dir)
    assert [run.info["env"]["OMP_NUM_THREADS"] for run in (one, two)] == ["1", "1"]
    panel.wait(400)
    assert [run.state for run in (one, two)] == [RunState.SUCCEEDED] * 2
    assert [run.step for run in (one, two)] == [12, 6]
    assert [int(run.history["train/loss"].samples[-1]) for run in (one, two)] == [48, 48]
    assert list(panel.comparison.labels) == ["tiny · nproc_per_node 1", "tiny · nproc_per_node 2"]
    first, second = scaling_of(panel.comparison.nproc, panel._reader.curves)
    assert first is not None and second is not None
    assert first.unit == "samples/s" and first.efficiency == 1.0 and first.data_wait is not None
    assert first.peer_wait is None and 0 <= (second.peer_wait or 0) <= 1 and second.peer_wait is not None
    assert second.rate and second.efficiency == pytest.approx(second.rate / 2 / (first.rate or 0))
    words = re.sub(r"<[^>]*>", " ", panel._tables)
    assert "Scaling" in words and "linear scaling" in words
    panel.close()


def test_nothing_starts_unless_two_numbers_of_processes_fit(script: str, texts: Project) -> None:
    with pytest.raises(LaunchError, match=r"at least two .* 64 processes: left out. This machine has 2 CPU cores"):
        scaling(script, (1, 64))
    with pytest.raises(LaunchError, match="give whole numbers of at least 1"):
        scaling(script, (0, 1))
    assert run_folders(texts.runs) == []


@pytest.mark.filterwarnings("ignore:2 separate trainings")
def test_a_script_without_a_recipe_gets_its_arguments_for_each_number(script: str, texts: Project) -> None:
    path = texts.scripts / "own.py"
    path.write_text("import sys\nfor n in range(3):\n    print(f'step {n} loss {sys.argv[1]}')\n")
    panel = scaling(path, (1, 2), args=lambda count: [str(8 // count)])
    assert "args=lambda n" in panel.comparison.notes[0]
    assert [run.info["args"] for run in panel.wait(400).comparison.runs] == [["8"], ["4"]]
    assert all(isinstance(run, Run) and run.state is RunState.SUCCEEDED for run in panel.comparison.runs)
    panel.close()
