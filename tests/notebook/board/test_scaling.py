"""Scaling: short runs with the same work on different numbers of processes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbtools.config import Launch
from nbtools.errors import LaunchError
from nbtools.notebook.board.board import Board
from nbtools.notebook.board.scaling import scaling
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir, run_folders
from nbtools.script.script import write_script

Keep = Callable[[Board], Board]


@pytest.fixture
def script(texts: Project, tiny_config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny recipe's script, in a project whose machine has two cores and no GPU."""
    monkeypatch.setattr("nbtools.notebook.board.scaling.num_cores", lambda: 2)
    monkeypatch.setattr("nbtools.notebook.board.scaling.devices", list)
    return str(write_script(tiny_config(), "tiny", Launch(gpus=())))


@pytest.mark.slow
def test_the_same_samples_on_one_and_two_processes_give_a_card(script: str, kept: Keep) -> None:
    panel = kept(scaling(script, (2, 1, 64), steps=6))
    one, two = panel.comparison.runs
    same, left_out, *_ = panel.comparison.notes
    assert same == "Each run trains on the same 48 samples, one run after the other: 12 steps on 1, 6 steps on 2."
    assert left_out == "64 processes: left out. This machine has 2 CPU cores, and each process needs one."
    assert two.info["after"] == str(one.dir)
    assert [run.info["env"]["OMP_NUM_THREADS"] for run in (one, two)] == ["1", "1"]
    panel.wait(400)
    assert [run.state for run in (one, two)] == [RunState.SUCCEEDED] * 2
    assert [run.step for run in (one, two)] == [12, 6]
    assert [int(run.history["train/loss"].samples[-1]) for run in (one, two)] == [48, 48]
    assert [one.label for one in panel.comparison.members] == ["tiny · nproc_per_node 1", "tiny · nproc_per_node 2"]
    words = " ".join(re.sub(r"<[^>]*>", " ", panel._controls.tables.value).split())
    assert re.search(r"nproc_per_node 1 1 [\d.]+ samples/s 100% \d+% –", words)
    assert re.search(r"nproc_per_node 2 2 [\d.]+ samples/s \d+% \d+% \d+%", words) and "linear scaling" in words


def test_nothing_starts_unless_two_numbers_of_processes_fit(script: str, texts: Project) -> None:
    with pytest.raises(LaunchError, match=r"at least two .* 64 processes: left out. This machine has 2 CPU cores"):
        scaling(script, (1, 64))
    with pytest.raises(LaunchError, match="give whole numbers of at least 1"):
        scaling(script, (0, 1))
    assert run_folders(texts.runs) == []


def test_a_script_without_a_recipe_gets_its_arguments_for_each_number(
    script: str, texts: Project, monkeypatch: pytest.MonkeyPatch, kept: Keep
) -> None:
    path = texts.scripts / "own.py"
    path.write_text("import sys\nfor n in range(3):\n    print(f'step {n} loss {sys.argv[1]}')\n")
    launched: list[dict[str, Any]] = []

    def launch(script: Path, **options: Any) -> Run:
        files = RunDir.create(texts.runs, f"own_{options['nproc_per_node']}")
        write_json(files.launch, {"name": "own", "launch": {"nproc_per_node": options["nproc_per_node"]}})
        launched.append(options)
        return Run(files.path)

    monkeypatch.setattr("nbtools.notebook.board.scaling.launch", launch)
    panel = kept(scaling(path, (1, 2), args=lambda count: [str(8 // count)]))
    assert "args=lambda n" in panel.comparison.notes[0]
    assert [options["args"] for options in launched] == [["8"], ["4"]]
    assert [options["after"] for options in launched] == [None, panel.comparison.runs[0]]
