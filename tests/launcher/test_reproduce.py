"""Runs that are started once more: equal to the bit, or told where they part and what differs on record."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Cli
from waiting import eventually

import nbtools as nt
from nbtools.config import Launch
from nbtools.errors import CheckpointError, LaunchError
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.compare import reproduced
from nbtools.run.run import Run
from nbtools.script.script import write_script

from trainings import TINY, assert_same_checkpoints, rows, write_inputs


def repeated(run: Run) -> Run:
    """Run it once more to its end; it has the same rows and the same last checkpoint."""
    again = nt.reproduce(run)
    assert str(again.wait(timeout_s=300)) == "SUCCEEDED"
    assert rows(again.files) == rows(run.files)
    assert_same_checkpoints(run.checkpoints[-1].path, again.checkpoints[-1].path)
    count = run.step - run.info["resumed_from"]["step"] if run.info["resumed_from"] else run.step
    assert reproduced(again) == f"repeats {run.id}: equal to the bit for {count:,} steps"
    return again


@pytest.mark.slow
def test_a_steered_run_its_fork_and_its_repetition_are_repeated(cpu_project: Project, cli: Cli) -> None:
    """Values that were changed while the training was held count from the next step on, not in what was due before."""
    write_inputs("mlm_pretraining", cpu_project)
    often = {"max_steps": 100_000, "epochs": 100_000, "eval_every": 50, "checkpoint_every": 10**6}
    often |= {"lr_schedule": "constant", "warmup_steps": 0, "gradient_accumulation_steps": 2, "log_every": 10}
    config = MLMPretrainingConfig(**{**TINY["mlm_pretraining"], **often, "checkpoint_epochs": False})
    run = nt.launch(write_script(config, "tiny", Launch(nproc_per_node=1, gpus=()), project=cpu_project))
    with pytest.raises(LaunchError, match="it can be started once more when it has ended"):
        nt.reproduce(run)
    eventually(lambda: run.files.controls.exists() and run.step > 3)
    run.steer(learning_rate=0.003)
    run.steer("evaluate")
    run.steer("pause")  # at a known step, on a busy machine, too
    run.steer(learning_rate=0.001, eval_every=1, log_every=1, max_steps=run.events[-1].step + 40)
    run.steer("continue")
    assert str(run.wait(timeout_s=300)) == "SUCCEEDED"
    assert [event.in_pause for event in run.events] == [False] * 3 + [True] * 5
    again = repeated(repeated(run))
    shown = cli("show", again.id).stdout
    assert "equal to the bit" in shown and f"nbtools launch --again {again.id}" in shown
    fork = nt.resume(run, run.checkpoints[0], changes={"max_steps": run.step + 5, "strategy": "fsdp"})
    fork.wait(timeout_s=300)
    next((cpu_project.root / "texts").iterdir()).touch()
    config = json.loads(fork.files.config.read_text())
    fork.files.config.write_text(json.dumps({**config, "environment": {"device": "cuda:0", "device_name": "GPU X"}}))
    with pytest.warns(UserWarning, match=r"may differ: machine.device_name 'GPU X' -> \[.*; .* was changed since"):
        assert repeated(fork).info["resumed_from"] == fork.info["resumed_from"]
    with_name = cli("launch", "--again", run.id, "--name", "x", code=2)
    assert "--again: goes with no other option, and name is given" in with_name.stderr
    shutil.rmtree(run.checkpoints[0].path)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        nt.reproduce(fork)
    run.files.script.write_text(run.files.script.read_text() + "# mine\n")
    with pytest.raises(LaunchError, match="is not the copy that"):
        nt.reproduce(run)
    run.files.script.unlink()
    with pytest.raises(LaunchError, match="no longer exists"):
        nt.reproduce(run)


def test_what_differs_is_told_with_both_values_and_what_is_on_record(tmp_path: Path) -> None:
    def run(name: str, values: list[Any], **launch: Any) -> Run:
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        launch = {"format": 1, "name": "x", "recipe": "mlm_pretraining", **launch}
        (folder / "launch.json").write_text(json.dumps(launch))
        lines = [{"step": step, "time": step, "train/loss": value} for step, value in enumerate(values, 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Run(folder)

    first = run("2026-01-31_142233_a", [2.0, "NaN", 1.0, 0.5], versions={"torch": "2.9.0"})
    same = run("2026-01-31_142234_b", [2.0, "NaN", 1.0], reproduces=first.id, versions={"torch": "2.9.0"})
    assert reproduced(same) == f"repeats {first.id}: equal to the bit for 3 steps"
    other = run("2026-01-31_142235_c", [2.0, "NaN", 1.25, 0.5], reproduces=first.id, versions={"torch": "2.10.0"})
    assert reproduced(other) == (
        f"repeats {first.id}: differs from step 3 on: train/loss 1.0 there, 1.25 here (0.25, relative 0.25); "
        "not as there: versions.torch 2.9.0 -> 2.10.0"
    )
    shutil.rmtree(first.dir)
    assert (reproduced(same), reproduced(first)) == (f"repeats {first.id}, which was removed", "")
