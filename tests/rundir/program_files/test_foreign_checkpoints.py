"""Checkpoints of other programs: known by a pattern or by usual names, listed when they are quiet, never unpickled."""

import json
import os
import pickle
import re
import shutil
import struct
import textwrap
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Audited, MonkeyPatch
from launched import python, record_launch

from nbtools.errors import CheckpointError
from nbtools.rundir.program_files import foreign_checkpoints
from nbtools.rundir.program_files.written_files import walk

from trainings import Planted


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The directory of a run, whose program works in `cwd`."""
    for name in ("runs/2026-01-31_142233_a", "cwd"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "runs/2026-01-31_142233_a"


@pytest.fixture
def cwd(run_dir: Path, tmp_path: Path) -> Path:
    return tmp_path / "cwd"


def listed(
    run_dir: Path, *args: str, pattern: str = "", goes_on: bool = False, recorded: dict[str, Any] | None = None
) -> list[foreign_checkpoints.ForeignCheckpoint]:
    record_launch(run_dir, run_dir.parents[1] / "cwd", *args, **(recorded or {}))
    return foreign_checkpoints.checkpoints_of(run_dir, None if goes_on else time.time(), pattern)[0]


def names(found: list[foreign_checkpoints.ForeignCheckpoint]) -> set[str]:
    return {one.name for one in found}


def write(path: Path, content: bytes = b"weights", age_s: float = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


# --- which ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "epoch"),
    [
        ("lightning_logs/version_0/checkpoints/epoch=3-step=400.ckpt", 400, 3),
        ("last.ckpt", None, None),
        ("out/ckpt.pt", None, None),
        ("out/model_0100.pth", None, None),
        ("checkpoint_best.pt", None, None),
        ("checkpoint-12.pth.tar", None, None),
        ("iter_2000.pth", 2000, None),
        ("epoch_12.pth", None, 12),
        ("snapshot.pt", None, None),
        ("00000500.pt", None, None),
        ("checkpoint_3.safetensors", None, None),
        ("llama-3.1-step700.pt", 700, None),
        ("out/epoch_1/model.pt", None, None),  # a lone file in a numbered folder
    ],
)
def test_usual_names_are_checkpoints(run_dir: Path, cwd: Path, name: str, step: int | None, epoch: int | None) -> None:
    write(cwd / name)
    (found,) = listed(run_dir)
    assert (found.name, found.step, found.epoch, found.num_bytes) == (name, step, epoch, 7)


@pytest.mark.parametrize(
    "name",
    [
        *("optimizer.pt", "rng_state.pth", "training_args.bin", "tokenizer.pt", "val_predictions.pt", "dataset_4.pt"),
        *("train_000.bin", "train_3.pt", "model.safetensors", "data_7.npz", "a.tar", "mnist_cnn.pt"),
        *("last.ckpt.tmp", "tmp123.pt", ".last.pt", "ckpt_rank3.pt", "iter_5/mp_rank_01/model_optim_rng.pt"),
    ],
)
def test_parts_data_and_unfinished_files_are_none(run_dir: Path, cwd: Path, name: str) -> None:
    write(cwd / name)
    assert listed(run_dir) == []


def test_a_pattern_names_the_checkpoints_whatever_their_names_are(run_dir: Path, cwd: Path) -> None:
    for name in ("a/mnist_7.weights", "b/mnist_8.weights", "b/last.ckpt", "b/mnist_9.weights.tmp"):
        write(cwd / name)
    write(cwd / "a/mnist_1.weights", age_s=1000)
    assert names(listed(run_dir, pattern="*/mnist_*")) == {"a/mnist_7.weights", "b/mnist_8.weights"}, "of this run"
    assert names(listed(run_dir, pattern=str(cwd / "b/*.ckpt"))) == {"b/last.ckpt"}
    write(cwd / "ckpts/iter_0000500/mp_rank_00/model_optim_rng.pt")
    (found,) = listed(run_dir, pattern="ckpts/iter_*")
    assert (found.step, found.files.keys()) == (500, {"mp_rank_00/model_optim_rng.pt"})


@pytest.mark.parametrize(
    ("written", "pattern"),
    [
        (["out/checkpoint_10.pt", "out/checkpoint_20.pt"], "out/checkpoint_*.pt"),
        (["lightning_logs/version_3/checkpoints/epoch=1-step=8.ckpt"],) * 2,
        (["out/best.pt", "out/last.pt"], "out/*.pt"),
        ([], ""),
    ],
)
def test_a_pattern_fits_the_files(run_dir: Path, cwd: Path, written: list[str], pattern: str | list[str]) -> None:
    for age_s, name in enumerate(reversed(written), 10):
        write(cwd / name, age_s=age_s)
    guess = foreign_checkpoints.guessed_pattern(listed(run_dir))
    assert guess == (pattern if isinstance(pattern, str) else re.sub(r"\d+", "*", pattern[0]))
    assert names(listed(run_dir, pattern=guess or "none")) == set(written)


def test_a_numbered_folder_is_one_checkpoint_with_the_size_of_its_files(run_dir: Path, cwd: Path) -> None:
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        write(cwd / f"out/checkpoint-500/{name}", b"12345")
    assert names(listed(run_dir)) == {"out/checkpoint-500"}, "of a program that writes no more"
    write(cwd / "out/checkpoint-500/training_args.bin")
    assert listed(run_dir) == [], "of a Trainer that has not come to its end"
    write(cwd / "out/checkpoint-500/trainer_state.json", b"{}")
    (found,) = listed(run_dir)
    assert (found.step, found.num_bytes) == (500, 20 + 7 + 2)
    write(cwd / "out/trainer_state.json", b"{}")
    assert names(listed(run_dir)) == {"out/checkpoint-500"}, "as Trainer.save_state writes it beside them"


def test_folders_of_arguments_and_the_run_directory_are_searched(run_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "disk/results/last.ckpt")
    write(run_dir / "checkpoints/ckpt_7.pt")
    found = listed(run_dir, f"--output_dir={tmp_path / 'disk/results'}")
    assert names(found) == {str(tmp_path / "disk/results/last.ckpt"), "checkpoints/ckpt_7.pt"}


def test_old_files_links_and_other_runs_are_passed_over(run_dir: Path, cwd: Path, tmp_path: Path) -> None:
    write(tmp_path / "last.ckpt")
    (cwd / "last.ckpt").symlink_to(tmp_path / "last.ckpt")
    (cwd / "linked").symlink_to(tmp_path)
    write(cwd / "old.ckpt", age_s=1000)
    write(cwd / "runs/2026-01-31_142233_other/checkpoints/last.ckpt")
    os.mkfifo(cwd / "pipe.ckpt")
    assert listed(run_dir) == []


def test_a_folder_of_links_alone_is_no_checkpoint(run_dir: Path, cwd: Path, tmp_path: Path) -> None:
    (cwd / "checkpoint-500").mkdir()
    for name in ("model.safetensors", "trainer_state.json"):
        (cwd / "checkpoint-500" / name).symlink_to(write(tmp_path / "store" / name))
    write(cwd / "last.ckpt")
    assert names(listed(run_dir)) == {"last.ckpt"}


def test_a_checkpoint_deleted_meanwhile_is_passed_over(run_dir: Path, cwd: Path, monkeypatch: MonkeyPatch) -> None:
    for number in (500, 600):
        for name in ("model.safetensors", "trainer_state.json"):
            write(cwd / f"checkpoint-{number}/{name}")

    def deleting(root: Path) -> Iterator[tuple[Path, list[str], list[os.DirEntry[str]]]]:
        for found in walk(root):
            if found[0].name == "checkpoint-500" and found[0] != root:
                shutil.rmtree(found[0])
            yield found

    monkeypatch.setattr(foreign_checkpoints, "walk", deleting)
    assert names(listed(run_dir)) == {"checkpoint-600"}


def test_of_a_folder_of_many_files_few_are_looked_at(run_dir: Path, cwd: Path) -> None:
    write(cwd / "checkpoint-5/trainer_state.json")
    write(cwd / "checkpoint-5/global_step5/mp_rank_00_model_states.pt")
    (found,) = listed(run_dir)
    assert found.files.keys() == {"trainer_state.json", "global_step5/mp_rank_00_model_states.pt"}
    for number in range(3_000):
        (cwd / f"checkpoint-5/global_step5/{number}.pt").touch()
    (found,) = listed(run_dir)
    assert len(found.files) <= 2_001


def test_files_beside_another_run_are_not_taken(run_dir: Path, cwd: Path) -> None:
    write(cwd / "last.ckpt")
    other = run_dir.parent / "2026-01-31_142234_b"
    other.mkdir()
    (other / "rank0.log").touch()
    (other / "launch.json").write_text(json.dumps({"time": time.time() - 50, "cwd": str(cwd), "args": []}))
    assert listed(run_dir) == []
    (other / "exit.json").write_text(json.dumps({"time": time.time() - 40}))
    shutil.rmtree(other)
    assert names(listed(run_dir)) == {"last.ckpt"}


def test_a_folder_that_no_other_run_names_is_searched(run_dir: Path, cwd: Path) -> None:
    """The program's default counts as named, unless it is the working directory or around it."""
    write(cwd / "ckpts/ckpt_0.pt")
    write(cwd / "other/ckpt_0.pt")
    other = run_dir.parent / "2026-01-31_142234_b"
    other.mkdir()
    (other / "rank0.log").touch()
    launch = {"time": time.time() - 50, "cwd": str(cwd), "default_folders": ["--log_dir", "."]}
    (other / "launch.json").write_text(json.dumps({**launch, "args": ["--out_dir", "other"]}))
    assert listed(run_dir) == []
    assert listed(run_dir, pattern="ckpts/*.pt") == []
    named = listed(run_dir, pattern="ckpts/*.pt", recorded={"program": {"checkpoints": "ckpts/*.pt"}})
    assert names(named) == {"ckpts/ckpt_0.pt"}, "the pattern counts as named, too"
    own = {"default_folders": ["--out_dir", "ckpts", "--root_dir", ".."]}
    assert names(listed(run_dir, recorded=own)) == {"ckpts/ckpt_0.pt"}
    (other / "launch.json").write_text(json.dumps({**launch, "args": ["--out_dir", "other", "--out_dir", "ckpts"]}))
    assert listed(run_dir, recorded=own) == [], "both write to it"
    _, shared = foreign_checkpoints.checkpoints_of(run_dir, None)
    assert shared == {cwd / "ckpts": other.name}
    assert names(listed(run_dir, "--out_dir", "other", recorded=own)) == {"other/ckpt_0.pt"}, "the last one counts"


# --- when -----------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_being_written_is_listed_once_it_is_quiet(run_dir: Path, cwd: Path) -> None:
    write(cwd / "last.ckpt", age_s=0)
    assert listed(run_dir, goes_on=True) == []
    assert names(listed(run_dir)) == {"last.ckpt"}, "no process is left that writes"
    write(cwd / "last.ckpt", age_s=3)
    assert names(listed(run_dir, goes_on=True)) == {"last.ckpt"}


def test_a_file_that_is_overwritten_is_one_checkpoint_with_its_newest_time(run_dir: Path, cwd: Path) -> None:
    for age_s in (30, 20):
        write(cwd / "ckpt.pt", age_s=age_s)
        (found,) = listed(run_dir)
        assert time.time() - found.time == pytest.approx(age_s, abs=1)


def test_what_was_found_is_kept_for_some_seconds_and_looked_for_at_the_end(run_dir: Path, cwd: Path) -> None:
    follows = foreign_checkpoints.ForeignCheckpoints(run_dir)
    record_launch(run_dir, cwd)
    assert follows.look(None) == []
    write(cwd / "last.ckpt")
    assert follows.look(None) == []
    assert names(follows.look(time.time())) == {"last.ckpt"}


def test_a_folder_of_many_files_hides_no_checkpoint_beside_it(run_dir: Path, cwd: Path) -> None:
    for folder in ("images", "samples"):
        (cwd / "out" / folder).mkdir(parents=True)
        for number in range(2_100):
            (cwd / f"out/{folder}/{number}.png").touch()
    for checkpoint in ("checkpoints/last.ckpt", "a/last.ckpt", "zeta/deep/last.ckpt", "last.ckpt"):
        written = write(cwd / "out" / checkpoint)
        assert names(listed(run_dir)) == {f"out/{checkpoint}"}
        written.unlink()


def test_a_folder_below_the_home_is_looked_through(run_dir: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(tmp_path / "home/out/last.ckpt")
    assert [one.path for one in listed(run_dir, "--output_dir", "~/out")] == [tmp_path / "home/out/last.ckpt"]


# --- which one to continue from ---------------------------------------------------------------------


def test_the_last_one_precedes_the_best_one_that_is_written_after_it(run_dir: Path, cwd: Path) -> None:
    order = ["w/last.pt", "w/model_0100.pth", "model.pt", "w/best.pt"]
    for name, age_s in zip(order, (11.0, 50, 5, 10.9), strict=True):
        write(cwd / name, age_s=age_s)
    for name in order:
        found, _ = foreign_checkpoints.newest_whole(listed(run_dir))
        assert found is not None and found.name == name
        found.path.unlink()


def test_a_file_that_was_cut_off_is_passed_over(run_dir: Path, cwd: Path) -> None:
    with zipfile.ZipFile(cwd / "ckpt_1.pt", "w") as archive:
        archive.writestr("data.pkl", b"x" * 10_000)
    whole = (cwd / "ckpt_1.pt").read_bytes()
    write(cwd / "ckpt_1.pt", whole, age_s=30)
    write(cwd / "ckpt_2.pt", whole[:5000], age_s=20)
    write(cwd / "checkpoint_3.safetensors", (10_000).to_bytes(8, "little") + b"{}", age_s=10)
    write(cwd / "ckpt_4.pt", b"", age_s=5)
    locator, end = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 2), struct.pack("<4s8xH8xH", b"PK\5\6", 0xFFFF, 0)
    write(cwd / "ckpt_5.pt", whole[:5000] + locator + end.ljust(22, b"\0"), age_s=4)  # of an archive in two files
    found, reasons = foreign_checkpoints.newest_whole(listed(run_dir))
    assert found is not None and found.name == "ckpt_1.pt"
    assert [reason.partition(":")[0] for reason in reasons] == [
        *("ckpt_5.pt", "ckpt_4.pt", "checkpoint_3.safetensors", "ckpt_2.pt")
    ]
    assert all(reason.endswith("ends too early: it was not written to its end") for reason in reasons)


def test_a_file_that_changed_or_went_since_it_was_listed_is_not_whole(run_dir: Path, cwd: Path) -> None:
    write(cwd / "ckpt.pt")
    (found,) = listed(run_dir)
    found.verify()
    write(cwd / "ckpt.pt", b"other weights")
    with pytest.raises(CheckpointError, match="has changed since it was listed"):
        found.verify()
    (cwd / "ckpt.pt").unlink()
    with pytest.raises(CheckpointError, match=r"cannot be read \(No such file"):
        found.verify()
    with pytest.raises(CheckpointError, match=r"cannot be read as a checkpoint \(No such file"):
        foreign_checkpoints.checkpoint_at(cwd / "nothing")


@pytest.mark.parametrize("name", ["ckpt.pt", "last.ckpt", "checkpoint-5/pytorch_model.bin", "dcp/.metadata"])
def test_a_hostile_pickle_is_listed_and_verified_without_being_read(
    run_dir: Path, cwd: Path, name: str, audited: Audited, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.chdir(cwd)
    write(cwd / name, pickle.dumps(Planted(cwd / "executed")))
    if "/" in name:
        for other in ("__0_0.distcp", "trainer_state.json"):
            write((cwd / name).with_name(other), pickle.dumps(Planted(cwd / "executed")))
    with audited() as events:
        (found,) = listed(run_dir)
        found.verify()
        found.to_json()
    assert not {event for event, _ in events} & {"pickle.find_class", "os.system", "exec", "compile"}
    assert not (cwd / "executed").exists()


# --- what real programs write -----------------------------------------------------------------------

WRITERS = {
    "accelerate": """
        import torch
        from accelerate import Accelerator
        from accelerate.utils import ProjectConfiguration
        project = ProjectConfiguration(project_dir="out", automatic_checkpoint_naming=True)
        accelerator = Accelerator(cpu=True, project_config=project)
        model = torch.nn.Linear(2, 1)
        model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
        accelerator.save_state()
        accelerator.project_configuration.automatic_checkpoint_naming = False
        accelerator.save_state(output_dir="state")
    """,
    "torch": """
        import torch
        torch.save({"w": torch.zeros(3)}, "checkpoint_best.pt")
        torch.save({"w": torch.zeros(3)}, "old_7.pt", _use_new_zipfile_serialization=False)
    """,
}
EXPECTED = {
    "accelerate": {"out/checkpoints/checkpoint_0": None, "state": None},
    "torch": {"checkpoint_best.pt": None, "old_7.pt": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_what_the_libraries_themselves_write_is_found_and_whole(run_dir: Path, cwd: Path, writer: str) -> None:
    """Checkpoints of Lightning and of DCP are found and resumed in `test_program_resume`."""
    program = textwrap.dedent(WRITERS[writer])
    python("-c", program, cwd=cwd, CUDA_VISIBLE_DEVICES="")
    found = listed(run_dir)
    assert {one.name: one.step for one in found} == EXPECTED[writer]
    for one in found:
        one.verify()
        assert one.num_bytes == sum(path.stat().st_size for path in [one.path, *one.path.rglob("*")] if path.is_file())
