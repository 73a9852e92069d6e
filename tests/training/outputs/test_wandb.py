"""The metric rows in Weights & Biases: the real package offline, read back from its own files."""

import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Train
from waiting import eventually

import nbtools as nt
from nbtools.project import Project
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.outputs.wandb import RECORD

wandb = pytest.importorskip("wandb", reason="the extra `dev` is not installed")


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No network, no settings and no account of the user; its service process ends with the test."""
    for name in ("project", "console", "symlink", "init_timeout", "finish_timeout"):
        monkeypatch.setenv(f"WANDB_{name.upper()}", "")  # so that what a training sets is undone
        monkeypatch.delenv(f"WANDB_{name.upper()}")
    for name in ("api_key", "run_id", "name", "dir", "resume"):
        monkeypatch.delenv(f"WANDB_{name.upper()}", raising=False)
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    wandb.teardown()


def records(data: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, each part with checksum, length and type."""
    assert data[:4] == b":W&B"
    position, record = 7, b""
    while position + 7 < len(data):
        left = 32_768 - position % 32_768
        length, kind = struct.unpack_from("<HB", data, position + 4) if left >= 7 else (left - 7, 0)
        record += data[position + 7 : position + 7 + length] if kind else b""
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def read_back(files: RunDir) -> list[dict[str, Any]]:
    """The rows of every attempt in a run directory, with W&B's own class of a record."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(files.path.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


def rows(files: RunDir) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    return [{name: value for name, value in row.items() if "/" in name} for row in parsed]


def mirrored(files: RunDir) -> list[dict[str, Any]]:
    return [
        {name: row[name] for name in row if "/" in name and name != "train/global_step"} for row in read_back(files)
    ]


@pytest.mark.promise("guide-O8")
def test_every_metric_row_is_one_of_weights_and_biases(tiny_training: Train) -> None:
    files = tiny_training(report_to="tensorboard,wandb")
    assert [row["train/global_step"] for row in read_back(files)] == [1, 2, 3, 4]
    assert mirrored(files) == [pytest.approx(row) for row in rows(files)]
    assert (read_json(files.finished) or {})["why"] == "completed"
    assert files.tensorboard.is_dir()
    assert not (Path.cwd() / "wandb").exists()


@pytest.mark.promise("guide-G7")
def test_a_resumed_run_and_an_attempt_continue_the_id_and_a_fork_has_its_own(tiny_training: Train) -> None:
    first = tiny_training(report_to="wandb")
    known = read_json(first.wandb / RECORD)
    assert known is not None and known["name"] == first.id and known["id"]
    assert [path.name.rpartition("-")[2] for path in first.path.glob("wandb/offline-run-*")] == [known["id"]]
    tiny_training(resume_from=first.checkpoint(2), files=first, attempt=2, report_to="wandb", max_steps=5)
    assert read_json(first.wandb / RECORD) == known
    assert [row["train/global_step"] for row in read_back(first)] == [1, 2, 3, 4, 3, 4, 5]
    for changes, is_same in (({}, True), ({"max_steps": 6}, True), ({"learning_rate": 0.1}, False)):
        child = RunDir.create(first.path.parent, "child")
        origin = {"run": first.id, "checkpoint": "step-000004", "step": 4, "changes": changes}
        write_json(child.launch, {"name": "child", "resumed_from": origin})
        tiny_training(resume_from=first.checkpoint(4), files=child, report_to="wandb", **{"max_steps": 6, **changes})
        assert [row["train/global_step"] for row in read_back(child)] == [5, 6]
        assert ((read_json(child.wandb / RECORD) or {})["id"] == known["id"]) == is_same


def test_the_users_own_id_and_name_hold(tiny_training: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_NAME", "my run")
    files = tiny_training(report_to="wandb")
    assert read_json(files.wandb / RECORD) == {"format": 1, "id": "mine", "name": "my run"}
    assert len(read_back(files)) == 4


def test_the_users_own_mode_holds(tiny_training: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert not tiny_training(report_to="wandb").wandb.exists()


@pytest.mark.slow
@pytest.mark.promise("guide-G7")
def test_rank_0_alone_reports_and_after_a_stop_no_process_of_the_service_is_left(
    texts: Project, tiny_config: Callable[..., Any]
) -> None:
    config = tiny_config(report_to="wandb", max_steps=None, epochs=100_000, checkpoint_every=100_000)
    run = nt.launch(nt.write_script(config, "tiny", nt.Launch(nproc_per_node=2, gpus=()), project=texts))
    eventually(lambda: run.step >= 3 or run.state.is_final)
    run.stop(timeout_s=200)
    assert run.state is RunState.STOPPED, run.log()
    assert len(list(run.dir.glob("wandb/offline-run-*"))) == 1
    assert [row["train/global_step"] for row in read_back(run.files)] == list(range(1, run.step + 1))
    assert "no longer sent to Weights & Biases" not in run.log()
    assert (read_json(run.files.exit) or {})["swept"] == 0, "W&B's own process has ended"


@pytest.mark.parametrize("broken", ["import", "no account", "no service", "log", "finish"])
def test_what_fails_in_weights_and_biases_is_one_warning_and_no_failure(
    tiny_training: Train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], broken: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such\nservice")

    if broken == "import":
        monkeypatch.setitem(sys.modules, "wandb", None)
    elif broken in ("no account", "no service"):
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # a port without a service
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40 if broken == "no service" else "")
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    else:
        monkeypatch.setattr(f"wandb.sdk.wandb_run.Run.{broken}", fail)
    files = tiny_training(report_to="wandb")
    assert (read_json(files.finished) or {})["why"] == "completed"
    assert len(rows(files)) == 4
    said = capfd.readouterr().out
    assert said.count("warning: metrics are no longer sent to Weights & Biases: ") == 1, said
    assert ("pip install wandb" if broken == "import" else "WANDB_MODE=offline") in said
    assert "no such service" in said or broken in ("import", "no account", "no service")
