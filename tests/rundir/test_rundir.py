"""The run directory: names, JSON files, the lock, identities of processes."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fixture_types import Audited, MonkeyPatch

from nbtools.errors import FormatError, RunNotFoundError
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.lock import acquire_lock, create_lock, is_locked
from nbtools.rundir.names import find_run
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir, run_folders


def test_runs_created_at_once_all_get_directories_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: RunDir.create(tmp_path / "runs", "same"), range(40)))
    assert len({run.path for run in made}) == 40
    assert all(run.ranks.is_dir() and run.checkpoints.is_dir() for run in made)
    assert all(run.id.endswith("_same") or "_same_" in run.id for run in made)


# --- JSON --------------------------------------------------------------------------------------------


def test_git_ignores_runs_that_nbtools_made_and_a_folder_of_the_users_stays(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    run = RunDir.create(tmp_path / "runs", "toy")
    run.log.write_text("loss 1")
    (tmp_path / "theirs").mkdir()
    RunDir.create(tmp_path / "theirs", "toy").log.write_text("loss 1")
    status = ["git", "-C", str(tmp_path), "status", "--porcelain", "--untracked-files=normal"]
    assert subprocess.run(status, check=True, capture_output=True, text=True).stdout == "?? theirs/\n"
    assert not (tmp_path / "theirs" / ".gitignore").exists()


def test_json_carries_its_format_and_hostile_strings(tmp_path: Path) -> None:
    content = {"text": "a\nb\0c‮</script>$\\frac", "bytes": os.fsdecode(b"\xff"), "number": 1.5}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == {"format": 1, **content}


def test_json_that_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"step": 1})
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert read_json(tmp_path / "a.json") == {"format": 1, "step": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("data", [b"", b'{"step": 1', b"[1]", b"\xff\xfe", b'{"time": NaN}', b'{"format": "x"}'])
def test_what_is_no_json_object_reads_as_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.json").write_bytes(data)
    assert read_json(tmp_path / "a.json") is None


def test_a_newer_format_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(FormatError, match="update nbtools"):
        read_json(tmp_path / "a.json")


# --- the lock ----------------------------------------------------------------------------------------


def test_the_lock_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path) and not path.exists()
    first = acquire_lock(path)
    assert first is not None
    assert acquire_lock(path) is None
    assert is_locked(path)
    os.close(first)
    assert not is_locked(path)
    second = acquire_lock(path)
    assert second is not None
    os.close(second)


def test_readers_of_the_lock_neither_see_nor_hinder_each_other(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with ThreadPoolExecutor(8) as pool:
        assert not any(pool.map(is_locked, [path] * 200))


def test_an_inherited_descriptor_holds_the_lock_after_its_taker_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = acquire_lock(path)
    assert lock is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(lock,))
    os.close(lock)
    try:
        assert is_locked(path)
    finally:
        child.communicate(b"\n")
    assert not is_locked(path)


# --- processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_an_impossible_pid_is_not_alive(pid: int) -> None:
    assert not replace(ProcessIdentity.of(os.getpid()), pid=pid).is_alive()


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessIdentity.of(child.pid)
    assert identity.is_alive()
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but not collected
    assert psutil.pid_exists(child.pid)
    assert not identity.is_alive()
    child.wait()


@pytest.mark.parametrize("content", [{}, {"pid": 1}, {"pid": "x", "start_time": 1, "boot_id": "", "host": ""}])
def test_what_is_no_identity_reads_as_none(content: dict[str, object]) -> None:
    assert ProcessIdentity.from_json(content) is None


# --- finding -----------------------------------------------------------------------------------------


def made(runs: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (runs / name).mkdir(parents=True)
        (runs / name / "launch.json").write_text("{}")
        os.utime(runs / name / "launch.json", (number, number))


def test_runs_are_listed_newest_first_within_a_second_too(tmp_path: Path) -> None:
    made(tmp_path, "2026-01-01_000000_b", "2026-01-01_000000_a", "2026-01-02_000000_a", "2025-01-01_000000_z")
    listed = [path.name[:17] + path.name[-1] for path in run_folders(tmp_path)]
    assert listed == ["2026-01-02_000000a", "2026-01-01_000000a", "2026-01-01_000000b", "2025-01-01_000000z"]
    assert run_folders(tmp_path / "none") == []


def test_a_run_is_found_by_id_by_unique_prefix_and_as_the_latest(tmp_path: Path) -> None:
    made(tmp_path, "2026-01-01_000000_a", "2026-01-01_000000_a_2", "2026-02-01_000000_c")
    assert find_run(tmp_path, "2026-01-01_000000_a").name == "2026-01-01_000000_a"
    assert find_run(tmp_path, "2026-02").name == "2026-02-01_000000_c"
    assert find_run(tmp_path, "latest").name == "2026-02-01_000000_c"
    with pytest.raises(RunNotFoundError, match="2 runs have this prefix"):
        find_run(tmp_path, "2026-01")


@pytest.mark.parametrize("ref", ["", "nothing", "..", "\0", "x" * 10_000, "latest"])
def test_a_run_that_is_not_there_is_an_error_that_says_where_it_was_sought(tmp_path: Path, ref: str) -> None:
    with pytest.raises(RunNotFoundError, match=str(tmp_path)):
        find_run(tmp_path, ref)


def test_the_lock_is_never_a_standard_stream_even_where_those_are_closed(tmp_path: Path) -> None:
    program = (
        "import os, sys; from nbtools.rundir.lock import acquire_lock; from pathlib import Path\n"
        "os.close(0); os.close(1); sys.exit(acquire_lock(Path(sys.argv[1])) > 2)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False)
    assert done.returncode == 1


def test_a_folder_that_may_not_be_read_hides_no_other_run(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    for name in ("2026-01-01_000000_a", "2026-01-01_000001_b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    is_file = Path.is_file

    def refused(path: Path) -> bool:  # root may read every folder, so permissions cannot be tried for real
        if path.parent.name.endswith("_b"):
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refused)
    assert [path.name for path in run_folders(tmp_path)] == ["2026-01-01_000000_a"]


@pytest.mark.promise("safety-lock")
def test_a_new_lock_is_held_however_often_readers_look_at_it(tmp_path: Path) -> None:
    """A reader that finds a lock file free holds it for an instant, which its taker would read as another holder."""
    current, done = [tmp_path / "0"], threading.Event()

    def look() -> None:
        while not done.is_set():
            is_locked(current[0])

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1000):
            current[0] = tmp_path / str(number)
            descriptor = create_lock(current[0])
            assert is_locked(current[0])
            os.close(descriptor)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.promise("safety-latest")
def test_the_latest_run_is_the_one_that_was_launched_last(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    def launched(name: str, at: float, run_id: str | None = None) -> None:
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "launch.json", {"time": at, "env": {"NBTOOLS_RUN_ID": run_id or name}})

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        before = 1792887600.0  # 2026-10-25 02:20 in summer time; ten minutes after the change it is 02:10 again
        launched("2026-10-25_022000_a", before)
        launched("2026-10-25_021000_a", before + 3000)
        assert [path.name for path in run_folders(tmp_path)] == ["2026-10-25_021000_a", "2026-10-25_022000_a"]
        launched("2026-10-24_201000_a", before + 4000)  # on a node whose clock shows UTC
        launched("zz_copy", before, "2026-10-25_022000_a")
        launched("2026-10-25_022000_b_copy", before + 4000, "2026-10-24_201000_a")
        assert find_run(tmp_path, "latest").name == "2026-10-24_201000_a"
        launched("2026-10-27_120000_a", before + 2e5)
        (tmp_path / "2026-10-25_010000_old").mkdir()
        (tmp_path / "2026-10-25_010000_old" / "launch.json").write_text("no JSON")
        assert [path.name for path in run_folders(tmp_path)] == [
            *("2026-10-27_120000_a", "2026-10-24_201000_a", "2026-10-25_022000_b_copy"),
            *("2026-10-25_021000_a", "2026-10-25_022000_a", "zz_copy", "2026-10-25_010000_old"),
        ]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_latest_of_many_runs_costs_few_reads(tmp_path: Path, audited: Audited) -> None:
    for day in range(1, 29):
        for month in range(1, 13):
            (tmp_path / f"2026-{month:02}-{day:02}_120000_a").mkdir()
            (tmp_path / f"2026-{month:02}-{day:02}_120000_a" / "launch.json").write_text("{}")
    with audited() as events:
        assert find_run(tmp_path, "latest").name == "2026-12-28_120000_a"
    assert len([event for event, _ in events if event == "open"]) < 10


def test_a_folder_of_runs_that_links_to_nothing_is_named_with_its_target(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to("/mnt/missing")
    with pytest.raises(FileNotFoundError, match=r"links to /mnt/missing, which does not exist"):
        RunDir.create(tmp_path / "runs", "toy")
