"""Disks that are full, over quota, or read-only since an error: real small ones, and the same errors injected."""

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from fixture_types import Cli, Inject, MonkeyPatch, Printed, Start, Train
from launched import TRAINER
from waiting import eventually

import nbtools as nt
from nbtools.cli.commands import main
from nbtools.errors import LaunchError
from nbtools.failures import evidence
from nbtools.launcher import launch as launching
from nbtools.machine import slurm
from nbtools.notebook.panel.snapshot import alarms_of, take_snapshot
from nbtools.project import Project
from nbtools.run.checkpoints import Progress
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json, reserve, write_json, write_reserved_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine import checkpoint
from nbtools.training.outputs import retries
from nbtools.training.outputs.retries import stop_s

Mount = Callable[..., None]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mount a file system until the test ends."""
    mounted: list[Path] = []

    def act(path: Path, *options: str) -> None:
        subprocess.run(["mount", *options, str(path)], check=True)
        mounted.append(path)

    yield act
    for path in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def toy(project: Project) -> Path:
    script = project.scripts / "toy.py"
    script.write_text("print('step 1 loss=1.5')\n")
    return script


def fill(folder: Path) -> None:
    """Use the last byte of a disk."""
    descriptor = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for size in (1 << 20, 4096, 1):
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, b"x" * size)
    os.close(descriptor)


def cost_of_a_look_s(run: Run) -> float:
    """Show a run's state in a panel, a second one beside it and `show`; return the CPU time of this process."""
    began = time.process_time()
    panels = [nt.LivePlot(run.dir), nt.LivePlot(run.dir)]
    assert main(["show", run.id]) == 0
    for panel in panels:
        panel.close()
    return time.process_time() - began


TRAINING = """
import os, sys, time
from pathlib import Path
from nbtools.recipes import MLMPretrainingConfig
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.standalone import own_attempt
from nbtools.training.engine.worker import run
from nbtools.training.outputs import retries

go, retries.LAST_SAVE_S = Path(sys.argv.pop(1)), float(sys.argv.pop(1))

def train(worker, config):
    for step in range(own_attempt(), 7):
        if step == 3:
            while not go.exists():
                time.sleep(0.02)
        if step == 5 and go.read_text() == "fail, then stop" and own_attempt() == 1:
            raise ValueError("boom")
        worker.progress.step = step
        worker.say("x" * 10_000)
        worker.end_step({"train/loss": 1 / step, **{f"train/{number}": 0.5 for number in range(500)}}, 6)
        worker.save({}, {"optimizer": {}}, {}, write_more=lambda at: (at / "weights").write_bytes(bytes(100_000)))
        while step == 6 and go.read_text() != "end" and not worker.stop_agreed():
            go.with_name("waits").touch()
            time.sleep(0.02)

run(train, Flags(MLMPretrainingConfig()))
"""


@pytest.mark.promise("safety-full-disk", "fault-9", "last-checkpoint")
@pytest.mark.needs("mount")
@pytest.mark.slow
@pytest.mark.parametrize("then", ["end", "fail, then stop"])
def test_a_training_outlives_a_disk_that_is_full_to_its_last_byte(
    supervised: Start, project: Project, mount: Mount, capsys: Printed, then: str
) -> None:
    """At a log line, a row, a checkpoint, a restart, the end; the state is right, whatever could not be written.

    `stop` took 2.2 to 2.9 s on two cores, most of it the end of the processes.
    """
    mount(project.runs, "-t", "tmpfs", "-o", "size=2m", "none")
    script, go = project.scripts / "training.py", project.root / "go"
    script.write_text(TRAINING)
    run = supervised(sys.executable, script, go, "4", launch={"max_restarts": 1})
    eventually(lambda: [saved.step for saved in run.checkpoints] == [1, 2])
    before_s = cost_of_a_look_s(run)
    fill(project.runs)
    assert cost_of_a_look_s(run) < 2 + 3 * before_s
    go.write_text(then)
    if then == "end":
        eventually(
            lambda: run.summary()["unsaved"].endswith("(No space left on device): nothing was saved since step 2")
        )
        assert main(["runs"]) == main(["show", run.id]) == 0
        assert capsys.readouterr().out.count("(No space left on device): nothing was saved since step 2") == 2
    lost = "the last checkpoint could not be written: nothing was saved since step 2 ([Errno 28] No space"
    if then == "end":
        assert main(["wait", run.id]) == 1
    else:
        eventually((project.root / "waits").exists)
        assert cost_of_a_look_s(run) < 2 + 3 * before_s
        began = time.monotonic()
        assert run.stop().startswith(f"failed at step 6: {lost}")
        assert time.monotonic() - began < 50, "nothing waits for space: the supervisor's retries take a minute"
        assert main(["show", run.id]) == 0
    assert lost in "".join(capsys.readouterr())
    assert run.state is RunState.FAILED and (read_json(run.files.exit) or {})["stopped"] is False
    assert run.failure is not None and "nbtools clean" in (run.failure.advice or "")
    assert run.summary()["restarts"] == 0 or then != "end", "another attempt would train the same again"
    assert run.step == run.records.finished["step"] == 6 and run.records.finished["unsaved_since"] == 2
    assert run.records.finished["metrics"]["train/loss"] == pytest.approx(1 / 6)
    assert [saved.step for saved in run.checkpoints] == [1, 2]
    for saved in run.checkpoints:
        saved.verify()


PRINTS = """
import os, sys
from pathlib import Path
print("step 1 loss 0.5", flush=True)
while not Path(sys.argv[1]).exists():
    pass
while True:
    print("y" * 100, flush=True)
"""


@pytest.mark.promise("safety-full-disk")
@pytest.mark.needs("mount")
def test_a_script_whose_print_fails_names_the_full_disk(supervised: Start, project: Project, mount: Mount) -> None:
    mount(project.runs, "-t", "tmpfs", "-o", "size=1m", "none")
    run = supervised(sys.executable, "-c", PRINTS, project.root / "go")
    eventually(lambda: run.metrics)
    (project.root / "go").touch()
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert run.failure.message.startswith("the disk is full (exited with code 1")
    assert "nbtools clean" in (run.failure.advice or "")


@pytest.mark.needs("mount")
def test_a_launch_on_a_full_disk_says_so_and_leaves_nothing(project: Project, mount: Mount) -> None:
    mount(project.runs, "-t", "tmpfs", "-o", "size=100k", "none")
    fill(project.runs)
    with pytest.raises(LaunchError, match=r"No space left on device.*nbtools clean"):
        nt.launch(toy(project), gpus=())
    assert [path.name for path in project.runs.iterdir()] == ["filler"]


@pytest.mark.promise("safety-full-disk")
@pytest.mark.needs("mount")
@pytest.mark.slow
def test_a_full_temporary_folder_holds_up_no_launch(
    project: Project, mount: Mount, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    temporary = tmp_path / "full"
    temporary.mkdir()
    mount(temporary, "-t", "tmpfs", "-o", "size=64k", "none")
    fill(temporary)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("NBTOOLS_QUEUE_DIR", str(temporary / "queue"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(project.root)
    run = nt.launch(toy(project), gpus=())
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED, run.log()
    assert main(["plot", run.id, "-o", "plot.png"]) == 0
    assert (project.root / "plot.png").read_bytes().startswith(b"\x89PNG")
    gpu = types.SimpleNamespace(index=0, uuid="GPU-0")
    with pytest.warns(UserWarning, match=r"the GPU queue is not usable, .*No space left on device"):
        assert (
            launching._taken_ticket(run.files, types.SimpleNamespace(placement=types.SimpleNamespace(gpus=(gpu,))))
            is None
        )


# --- the same errors, injected ----------------------------------------------------------------------


@pytest.mark.promise("safety-full-disk")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_record_is_written_into_its_reserved_space(tmp_path: Path, monkeypatch: MonkeyPatch, number: int) -> None:
    path, opened = tmp_path / "exit.json", os.open
    reserve(path)
    reserve(path)  # by the next attempt
    assert read_json(path) is None

    def full(name: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), name)
        return opened(name, flags, mode)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match=os.strerror(number)):
        write_json(path, {"returncode": 0})
    write_reserved_json(path, {"returncode": 0})
    assert read_json(path) == {"format": 1, "returncode": 0}
    assert [file.name for file in tmp_path.iterdir()] == ["exit.json"]


def test_without_reserved_space_a_record_is_a_file_like_any_other(tmp_path: Path) -> None:
    write_reserved_json(tmp_path / "exit.json", {"returncode": 0})
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".finished.json.reserved").symlink_to(tmp_path / "victim")
    write_reserved_json(tmp_path / "finished.json", {"why": "completed"})
    assert [read_json(tmp_path / name) for name in ("exit.json", "finished.json")] == [
        {"format": 1, "returncode": 0},
        {"format": 1, "why": "completed"},
    ]
    assert (tmp_path / "victim").read_text() == "mine"


FAILING = """
import errno, os
really, number = os.open, int(os.environ["FAILS_WITH"])
def act(path, flags, *mode, **options):
    writes = flags & os.O_CREAT or (number == errno.EROFS and flags & os.O_WRONLY)
    if writes and os.path.exists(os.environ["FAILS_SINCE"]):
        raise OSError(number, os.strerror(number), str(path))
    return really(path, flags, *mode, **options)
os.open = act
"""


@pytest.mark.promise("safety-full-disk")
@pytest.mark.parametrize(("name", "state"), [("EDQUOT", RunState.SUCCEEDED), ("EROFS", RunState.LOST)])
def test_the_end_of_a_run_whose_supervisor_can_create_no_file(
    supervised: Start, tmp_path: Path, injected: Inject, name: str, state: RunState
) -> None:
    """Over quota, the end is recorded; a read-only disk takes no record, and the supervisor does not wait for one."""
    since = tmp_path / "since"
    injected(FAILING, FAILS_WITH=getattr(errno, name), FAILS_SINCE=since)
    run = supervised("touch", since)
    assert run.wait(timeout_s=300, check=False) is state
    if state is RunState.LOST:
        assert run.failure.message.startswith("the file system is read-only (its processes have ended")


@pytest.mark.promise("last-checkpoint")
@pytest.mark.parametrize(
    ("strategy", "name", "tries"),
    [
        *(("ddp", name, 99) for name in ("ENOSPC", "ESTALE")),  # of all errors the text is shown
        *(("fsdp", "EIO", 99), ("ddp", "EIO", 2), ("fsdp", "EIO", 2)),
    ],
)
def test_a_run_whose_last_checkpoint_cannot_be_written_has_failed(
    tiny_training: Train,
    project: Project,
    monkeypatch: MonkeyPatch,
    capfd: Printed,
    strategy: str,
    name: str,
    tries: int,
) -> None:
    number, left, save = getattr(errno, name), [tries], checkpoint.save

    def fails(folder: Path, progress: Progress, **options: Any) -> Path:
        if progress.step == 4 and left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return save(folder, progress, **options)

    monkeypatch.setattr(checkpoint, "save", fails)
    monkeypatch.setattr(retries, "_RETRY_EVERY_S", 0.01)
    monkeypatch.setattr(retries, "LAST_SAVE_S", 600 if tries < 99 else 0.1)
    run = Run(RunDir.create(project.runs, "mlm"))
    if tries < 99:
        tiny_training(files=run.files, strategy=strategy)
        assert run.state is RunState.SUCCEEDED and not run.summary()["unsaved"]
        assert [saved.step for saved in run.checkpoints] == [2, 4]
        return
    said = f"the last checkpoint could not be written: nothing was saved since step 2 ([Errno {number}]"
    with pytest.raises(SystemExit, match=re.escape(said)):
        tiny_training(files=run.files, strategy=strategy)
    if dist.is_initialized():
        dist.destroy_process_group()
    assert run.records.finished["unsaved_since"] == 2
    assert run.state is RunState.FAILED
    assert main(["wait", run.id]) == 1 and said in capfd.readouterr().err
    lost = f"no checkpoint at step 4 ({os.strerror(number)}): nothing was saved since step 2"
    assert lost in alarms_of(take_snapshot(run, RunState.RUNNING), [], None, 0)
    assert main(["runs"]) == main(["export", run.id]) == 0
    printed = capfd.readouterr()
    assert lost in printed.out and lost in printed.err and printed.out.strip().endswith("step-000002")


@pytest.mark.promise("last-checkpoint")
@pytest.mark.parametrize(
    ("launch", "environment", "seconds"),
    [
        ({"launch": {"shutdown_timeout_s": 600}}, {}, 480),
        ({"launch": {"shutdown_timeout_s": 60}, "by_hand": True}, {}, 48),
        ({"launch": {"shutdown_timeout_s": 60}, "by_hand": True}, {"TORCHELASTIC_RUN_ID": "x"}, 24),
        ({"launch": {"shutdown_timeout_s": 600}}, {"SLURM_JOB_ID": "7"}, 24),
        ({"launch": {"shutdown_timeout_s": 10}}, {"SLURM_JOB_ID": "7"}, 8),
    ],
)
def test_the_time_for_the_last_checkpoint_at_a_stop(
    project: Project, monkeypatch: MonkeyPatch, launch: dict[str, Any], environment: dict[str, str], seconds: float
) -> None:
    run = RunDir.create(project.runs, "toy")
    write_json(run.launch, launch)
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slurm, "settings", lambda: {"KillWait": "30 sec"})
    assert stop_s(run) == seconds


def test_the_state_of_a_disk_is_read_from_statvfs(project: Project, monkeypatch: MonkeyPatch, tmp_path: Path) -> None:
    run = RunDir.create(project.runs, "toy")
    found = list(os.statvfs(tmp_path))
    for changes, error in (({}, ""), ({4: 0}, "No space left on device"), ({8: os.ST_RDONLY}, "Read-only file system")):
        values = [changes.get(number, value) for number, value in enumerate(found)]
        monkeypatch.setattr(os, "statvfs", lambda path, values=values: os.statvfs_result(values))
        assert evidence.disk_error(run) == error


@pytest.mark.needs("mount", "ext4")
@pytest.mark.slow
def test_a_disk_that_turns_read_only_is_told(supervised: Start, project: Project, tmp_path: Path, mount: Mount) -> None:
    """By an error of ext4, which cannot be refused because files are open."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    mount(project.runs, "-o", "loop,errors=remount-ro", str(image))
    device = next(
        line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if str(project.runs) in line
    )
    run = supervised(sys.executable, "-c", PRINTS.replace("while True:", "for _ in range(3):"), project.root / "go")
    eventually(lambda: run.metrics)
    (Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error").write_text("x")
    (project.root / "go").touch()
    assert run.wait(timeout_s=300, check=False) is RunState.LOST
    assert run.failure.message.startswith("the file system is read-only (its processes have ended")
    assert run.summary()["state"] == "LOST"
    assert "0 processes ended" in run.stop()
    with pytest.raises(LaunchError, match="Read-only file system"):
        nt.launch(toy(project), gpus=())


# --- file systems that cannot do everything ------------------------------------------------------------


def ended(run: RunDir) -> RunDir:
    run.lock.touch()
    write_json(run.launch, {"name": "toy", "time": 1e9})
    write_json(run.exit, {"returncode": 0, "stopped": False, "failure": None, "time": 1e9})
    return run


def test_a_run_that_cannot_be_moved_is_still_removed(project: Project, monkeypatch: MonkeyPatch, cli: Cli) -> None:
    run = ended(RunDir.create(project.runs, "toy"))
    really = os.rename

    def rename(source: str | Path, target: str | Path, **folders: int) -> None:
        if source == run.id:
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(source))
        really(source, target, **folders)

    monkeypatch.setattr(os, "rename", rename)
    assert "removed 1 item" in cli("clean", "--state", "SUCCEEDED", "--yes").stdout
    assert not run.path.exists()


NO_LINKS = """
import errno, fcntl, os
def refuse(number):
    def act(*args, **options):
        raise OSError(number, os.strerror(number))
    return act
os.link = os.symlink = os.chmod = os.fchmod = refuse(errno.EPERM)
fcntl.flock = refuse(errno.ENOLCK)
"""


@pytest.mark.slow
def test_a_run_on_a_file_system_without_links_locks_and_permissions(project: Project, injected: Inject) -> None:
    """As vfat: in every process of the launch and of the run."""
    injected(NO_LINKS, CUDA_VISIBLE_DEVICES="")
    script = str(toy(project))

    def nbtools(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nbtools", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == code, done.stderr
        return done

    launched = nbtools("launch", script)
    assert "this file system has no locks (flock)" in launched.stderr
    assert nbtools("wait", launched.stdout.strip()).stdout.endswith(" SUCCEEDED\n")
    assert json.loads(nbtools("show", "latest", "--json").stdout)["metrics"] == {"train/loss": 1.5}
    assert "removed 1 item" in nbtools("clean", "--state", "SUCCEEDED", "--yes").stdout
    secret = nbtools("launch", script, "--", "--api-key=canary", code=2)
    assert "secrets.json: cannot be hidden from other users on this file system" in secret.stderr
    assert not any(b"canary" in path.read_bytes() for path in project.runs.rglob("*") if path.is_file())


@pytest.fixture
def exfat(project: Project, tmp_path: Path) -> Iterator[None]:
    """Have `runs/` on exFAT: no links, one mode for all files, and a chmod that succeeds without an effect."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    subprocess.run(["mkfs.exfat", str(image)], check=True, capture_output=True)
    find = ["losetup", "--find", "--show", str(image)]
    device = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
    try:
        subprocess.run(["mount.exfat-fuse", device, str(project.runs)], check=True, capture_output=True)
        yield
        subprocess.run(["umount", "--lazy", str(project.runs)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.mark.needs("mount", "exfat")
@pytest.mark.usefixtures("exfat")
def test_a_run_on_exfat_stops_with_its_checkpoint_and_is_removed(supervised: Start, project: Project, cli: Cli) -> None:
    with pytest.raises(OSError, match=r"not permitted|not implemented"):
        (project.runs / "link").symlink_to(project.root)
    run = supervised(sys.executable, TRAINER, "--steps", "100000", "--step-s", "0.01", "--checkpoint-every", "5")
    eventually(lambda: run.step and run.step > 10)
    assert run.state is RunState.RUNNING
    run.stop()
    assert run.state is RunState.STOPPED and run.checkpoints[-1].step == run.step
    assert "removed 1 item" in cli("clean", "--state", "STOPPED", "--yes").stdout
    assert [path.name for path in project.runs.iterdir() if not path.name.startswith(".")] == []
    script = str(toy(project))
    secret = cli("launch", script, "--gpus", "none", "--", "--api-key=canary", code=2)
    assert "secrets.json: cannot be hidden from other users on this file system" in secret.stderr
    assert not any(b"canary" in path.read_bytes() for path in project.runs.rglob("*") if path.is_file())
