"""The GPU queue: first come, first served, without a server; a dead run blocks no other."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch, Start
from launched import TRAINER, agent, supervisor_of
from waiting import eventually

from nbtools.machine import gpu_queue
from nbtools.machine.processes import members
from nbtools.run.run import Run
from nbtools.run.state import RunState, waiting_for
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir

Take = Callable[..., tuple[Path, int]]


def training(run: Run) -> bool:
    return run.state is RunState.RUNNING


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    monkeypatch.setenv("NBTOOLS_QUEUE_DIR", str(tmp_path / "queue"))
    return tmp_path / "queue"


@pytest.fixture
def take(folder: Path) -> Iterator[Take]:
    held: list[int] = []

    def take(name: str, *gpus: int) -> tuple[Path, int]:
        path, descriptor = gpu_queue.take(RunDir(f"/runs/{name}"), gpus, [f"GPU-{index}" for index in gpus])
        held.append(os.dup(descriptor))  # a copy: the test may close its own
        os.close(descriptor)
        return path, held[-1]

    yield take
    for descriptor in held:
        try:
            os.close(descriptor)
        except OSError:
            continue  # the test did


def names(found: list[gpu_queue.Ticket]) -> list[str]:
    return [ticket.run.name for ticket in found]


# --- tickets --------------------------------------------------------------------------------------


def test_whoever_came_first_and_shares_a_device_is_ahead(take: Take) -> None:
    asked = {"a": (0,), "b": (1,), "c": (0, 1), "d": (2,), "e": (1,)}
    taken = {name: take(name, *gpus)[0] for name, gpus in asked.items()}
    ahead = {name: names(gpu_queue.ahead(path)) for name, path in taken.items()}
    assert ahead == {"a": [], "b": [], "c": ["a", "b"], "d": [], "e": ["b", "c"]}, "none overtakes one that waits"


def test_a_ticket_that_nobody_holds_is_dead_and_cleared_away_by_the_next(take: Take) -> None:
    dead, descriptor = take("a", 0)
    waiting, _ = take("b", 0)
    os.close(descriptor)
    assert gpu_queue.ahead(waiting) == []
    take("c", 0)
    assert not dead.exists()
    assert waiting.exists()


def test_numbers_go_on_beyond_nine_digits_and_strange_files_are_left_alone(folder: Path, take: Take) -> None:
    take("a", 0)
    for name in ("999999999.json", "x.json", "1.txt", "-1.json", "٣.json"):
        (folder / name).write_text("{}")
    (folder / "5.json").symlink_to("/etc/passwd")
    os.mkfifo(folder / "6.json")
    path, _ = take("b", 0)
    assert path.name == "1000000000.json"
    assert names(gpu_queue.ahead(path)) == ["a"]
    assert Path("/etc/passwd").exists()


def test_the_folder_is_for_everybody_to_add_and_for_owners_to_remove(folder: Path, take: Callable[..., object]) -> None:
    previous = os.umask(0o077)
    try:
        take("a", 0)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert all(path.stat().st_mode & stat.S_IROTH for path in folder.iterdir())


@pytest.mark.slow
def test_forty_at_once_get_forty_numbers(folder: Path) -> None:
    program = (
        "import sys, time; from nbtools.machine import gpu_queue; from nbtools.rundir.rundir import RunDir\n"
        "path, fd = gpu_queue.take(RunDir(f'/runs/{sys.argv[1]}'), [0], ['GPU-0'])\n"
        "print(path.name, flush=True); input()"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for index in range(40)
    ]
    assert all(process.stdout for process in started)
    given = [process.stdout.readline().strip() for process in started if process.stdout]
    assert len(set(given)) == 40
    assert len(gpu_queue.ahead(folder / max(given))) == 39
    for process in started:
        process.communicate("\n")


# --- runs that wait -------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_runs_queue_in_order_and_a_dead_one_in_between_holds_nobody_up(supervised: Start) -> None:
    runs = [supervised(*agent(TRAINER, "--steps", "3", nproc=1), name=f"n{index}", gpus=(0, 1)) for index in range(10)]
    dead = runs[5]
    assert waiting_for(runs[9].records) == "behind n8 on GPU 0,1 and 8 more" or runs[0].state is not RunState.RUNNING
    eventually(lambda: dead.files.process.exists())
    if dead.state is RunState.QUEUED:
        supervisor_of(dead).kill()
    others = [run for run in runs if run is not dead]
    for run in others:
        assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    began = [next(iter(run.history["train/loss"].times.tolist())) for run in others]
    ended = [run.records.ended_at or 0.0 for run in others]
    assert began == sorted(began)
    assert all(start >= end for start, end in zip(began[1:], ended[:-1], strict=True)), "two had the GPUs at once"


def test_a_waiting_run_says_behind_whom_and_moves_up_when_they_have_gone(supervised: Start) -> None:
    first = supervised(*agent(TRAINER, nproc=1), name="mlm_tiny", gpus=(0, 1))
    cancelled = supervised(*agent(TRAINER, nproc=1), name="cancelled", gpus=(1,))
    second = supervised(*agent(TRAINER, "--steps", "2", nproc=1), name="second", gpus=(1,))
    other = supervised(*agent(TRAINER, "--steps", "2", nproc=1), name="other", gpus=(2,))
    assert other.wait(timeout_s=300) is RunState.SUCCEEDED, "a run on another GPU does not wait"
    eventually(lambda: training(first))
    assert waiting_for(second.records) == "behind cancelled on GPU 1 and 1 more"
    cancelled.stop()
    assert cancelled.state is RunState.STOPPED and not cancelled.files.log.exists(), "it had never started"
    ended = read_json(cancelled.files.exit) or {}
    assert (ended["returncode"], ended["stopped"], ended["failure"]) == (None, True, None)
    time.sleep(1.2)  # two looks of a supervisor: it must not have started
    assert second.state is RunState.QUEUED
    assert waiting_for(second.records) == "behind mlm_tiny on GPU 0,1"
    assert second.summary()["waiting_for"] == waiting_for(second.records)
    assert waiting_for(first.records) == ""
    first.stop()
    assert second.wait(timeout_s=300) is RunState.SUCCEEDED
    assert waiting_for(second.records) == ""


def test_gpus_stay_taken_until_an_orphaned_training_has_gone(supervised: Start) -> None:
    first = supervised(*agent(TRAINER, nproc=1), name="first", gpus=(0,))
    second = supervised(*agent(TRAINER, "--steps", "2", nproc=1), name="second", gpus=(0,))
    eventually(lambda: first.step >= 2)
    supervisor_of(first).kill()
    time.sleep(1.5)  # several looks of the one that waits
    assert second.state is RunState.QUEUED
    assert first.state is RunState.RUNNING
    first.stop()
    assert second.wait(timeout_s=300) is RunState.SUCCEEDED
    eventually(lambda: not members(first.files))


def test_after_a_run_means_when_it_has_ended_however_it_ends(supervised: Start) -> None:
    first = supervised(*agent(TRAINER, "--fail-at", "100", nproc=1), name="first")
    second = supervised(*agent(TRAINER, "--steps", "2", nproc=1), name="second", after=str(first.dir))
    eventually(lambda: first.step >= 2)
    assert second.state is RunState.QUEUED
    assert waiting_for(second.records) == "after first"
    assert first.wait(timeout_s=300, check=False) is RunState.FAILED
    assert second.wait(timeout_s=300) is RunState.SUCCEEDED
    began = next(iter(second.history["train/loss"].times.tolist()))
    assert began > (first.records.ended_at or 0)


def test_a_run_behind_a_cancelled_one_waits_for_what_that_one_waited_for(supervised: Start) -> None:
    first = supervised(*agent(TRAINER, nproc=1), name="first")
    second = supervised(*agent(TRAINER, nproc=1), name="second", after=str(first.dir))
    third = supervised(*agent(TRAINER, "--steps", "2", nproc=1), name="third", after=str(second.dir))
    eventually(lambda: training(first) and second.files.process.exists() and third.files.process.exists())
    assert waiting_for(third.records) == "after second"
    assert second.stop() == "cancelled while queued; it had not started"
    assert (second.state, members(second.files)) == (RunState.STOPPED, [])
    ended = second.records.exit or {}
    assert ended["duration_s"] < ended["waited_s"], "the wait in the queue is no part of the duration"
    assert waiting_for(third.records) == "after first"
    time.sleep(1.5)  # several looks of the one that waits
    assert third.state is RunState.QUEUED
    first.stop()
    assert third.wait(timeout_s=300) is RunState.SUCCEEDED


def test_a_waiting_run_costs_little_and_keeps_tickets_fresh(supervised: Start) -> None:
    """Programs that clear /tmp away would remove files of an old time."""
    first = supervised(*agent(TRAINER, nproc=1), name="first", gpus=(0,))
    second = supervised(*agent(TRAINER, nproc=1), name="second", gpus=(0,))
    held = [Path(run.info["ticket"]) for run in (first, second)]
    eventually(lambda: training(first) and second.files.process.exists())
    for path in held:
        os.utime(path, (0, 0))
    waiting = supervisor_of(second)
    before = sum(waiting.cpu_times()[:2])
    time.sleep(1.5)
    assert sum(waiting.cpu_times()[:2]) - before < 0.15
    eventually(lambda: all(path.stat().st_mtime > 0 for path in held))
    second.stop()
    first.stop()
