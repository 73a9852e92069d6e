"""A model in a process of its own: rows in order, errors in words, damaged and missing checkpoints."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from nbtools.errors import CheckpointError, ConfigError, LaunchError
from nbtools.predict import model_process
from nbtools.predict.model_process import ModelProcess
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.recipes.predict_settings import MLMPretrainingPredict
from nbtools.run.checkpoints import Checkpoint
from nbtools.run.run import Run
from nbtools.rundir.rundir import RunDir

from trainings import TINY, train_here, write_inputs


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    project = Project(tmp_path_factory.mktemp("lab"))
    write_inputs("mlm_pretraining", project)
    config = MLMPretrainingConfig(**{**TINY["mlm_pretraining"], "dataset": str(project.root / "texts")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return train_here(project, config, monkeypatch=patch)


@pytest.fixture
def trained(trained_once: RunDir, cpu_project: Project) -> RunDir:
    """A copy of a trained run, in a project of the test's own."""
    return RunDir(shutil.copytree(trained_once.path, cpu_project.runs / trained_once.id))


@pytest.fixture
def process(trained: RunDir) -> Iterator[ModelProcess]:
    with ModelProcess(Run(trained)) as started:
        yield started


def test_a_process_answers_in_order_and_survives_requests_that_fail(process: ModelProcess) -> None:
    assert process.ready["step"] == 6
    assert process.ready["device"] == "cpu"
    assert process.ready["parameters"] > 1000
    rows = list(process.predict(["w1 [MASK]", "none", "[MASK] w2 [MASK]"]))
    assert [len(row.get("masks", ())) for row in rows] == [1, 0, 2]
    next(process.predict(["w1 [MASK]", "[MASK] w2 w3"]))  # the second row is not read
    (row,) = process.predict(["[MASK] w2"], MLMPretrainingPredict(top_k=2))
    assert len(row["masks"][0]) == 2
    process.close()
    process.close()
    with pytest.raises(LaunchError, match="ended"):
        list(process.predict(["[MASK]"]))


def test_a_run_without_a_whole_checkpoint_is_refused_in_words(trained: RunDir) -> None:
    (trained.checkpoint(6) / "manifest.json").unlink()
    (trained.checkpoint(3) / "model" / "config.json").write_text("{}")
    with pytest.raises(LaunchError, match=r"no checkpoint to predict with .*step-000006.*step-000003"):
        ModelProcess(Run(trained))
    with pytest.raises(CheckpointError, match="step-000003"):
        ModelProcess(Run(trained), "step-000003")


@pytest.mark.slow
def test_a_checkpoint_that_is_removed_while_it_is_opened_gives_way_to_the_next(
    trained: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = model_process._started

    def start(checkpoint: Checkpoint, *rest: Any) -> Any:
        if checkpoint.step == 6:  # as the training does once it has saved enough others
            shutil.rmtree(checkpoint.path)
        return real(checkpoint, *rest)

    monkeypatch.setattr(model_process, "_started", start)
    with ModelProcess(Run(trained)) as process:
        assert (process.checkpoint.step, process.ready["step"]) == (3, 3)


@pytest.mark.parametrize(
    ("end", "patience_s", "said"),
    [("exit 3", 60, r"exit code 3\): no room"), ("exec >&-\nexec sleep 600 2>&-", 0.5, "has not ended: no room")],
)
def test_a_process_that_ends_or_closes_its_output_is_told_with_its_last_line(
    trained: RunDir, monkeypatch: pytest.MonkeyPatch, end: str, patience_s: float, said: str
) -> None:
    monkeypatch.setattr("sys.executable", str(trained.path / "python"))
    monkeypatch.setattr(model_process, "_PATIENCE_S", patience_s)
    (trained.path / "python").write_text(f"#!/bin/sh\necho no room >&2\n{end}\n")
    (trained.path / "python").chmod(0o755)
    with pytest.raises(LaunchError, match=said):
        ModelProcess(Run(trained))


def test_a_device_that_is_not_there_is_refused(trained: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process.devices, "devices", list)
    with pytest.raises(ConfigError, match="must be cpu or cuda"):
        ModelProcess(Run(trained), device="tpu")
    with pytest.raises(LaunchError, match="no usable GPU"):
        ModelProcess(Run(trained), device="cuda")
