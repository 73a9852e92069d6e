"""Runs seen from outside: state from files and lock, curves, checkpoints, stopping; directories made by hand."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import MonkeyPatch, Printed, Start
from launched import PROGRAMS, TRAINER, agent, at_step, ranks_of
from run_folder import held
from waiting import eventually

from nbtools import runs
from nbtools.cli.commands import main
from nbtools.cli.output import print_run
from nbtools.errors import NbtoolsError, RunFailed, RunNotFoundError
from nbtools.machine import processes
from nbtools.machine.processes import living, members, ranks_among
from nbtools.project import Project
from nbtools.run import stop
from nbtools.run.checkpoints import checkpoints_in, newest_verified
from nbtools.run.lineage import resumed_step
from nbtools.run.records import Records, local_time
from nbtools.run.run import Run
from nbtools.run.state import RunState, awaited, waiting_for
from nbtools.rundir.heartbeat import RankHeartbeat
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir

FAILED = {
    "rank": 1,
    "host": "h",
    "exitcode": -9,
    "signal": "SIGKILL",
    "message": "killed by SIGKILL",
    "traceback": None,
}


@pytest.fixture
def files(project: Project) -> RunDir:
    """A run directory as a launcher leaves it, its lock held by nobody."""
    run = RunDir.create(project.runs, "toy")
    run.lock.touch()
    write_json(run.launch, {"name": "toy", "script": "/p/scripts/toy.py", "time": 1000.0, "recipe": "mlm_pretraining"})
    return run


@pytest.fixture
def locked(files: RunDir) -> Iterator[RunDir]:
    """The same with its lock held."""
    with held(files):
        yield files


def exit_json(run: RunDir, returncode: int = 0, stopped: bool = False, failure: object = None) -> None:
    ended = {"returncode": returncode, "signal": None, "stopped": stopped, "failure": failure, "time": 1010.0}
    write_json(run.exit, {**ended, "duration_s": 10.0, "swept": 0})


def rows(run: RunDir, *steps: int, loss: float = 1.0) -> None:
    with run.metrics.open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "time": 1000.0 + step, "train/loss": loss}) + "\n")


# --- state -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["rank0.log", "metrics.jsonl", "system.jsonl", "ranks/1.heartbeat.json"])
def test_a_held_lock_is_queued_until_the_training_has_a_file(locked: RunDir, file: str) -> None:
    run = Run(locked.path)
    assert run.state is RunState.QUEUED
    locked.ranks.mkdir(exist_ok=True)
    (locked.path / file).touch()  # the log may have been removed or renamed
    assert run.state is RunState.RUNNING
    assert not run.state.is_final


@pytest.mark.promise("safety-nameless-machine")
@pytest.mark.parametrize(
    ("age_s", "settings", "file", "said"),
    [
        (300, {}, None, "no rank has started for 5m: the name service failed"),
        (300, {"torchrun": False}, None, ""),
        (60, {}, None, ""),
        (None, {}, None, ""),
        (300, {}, "id_x/attempt_0", ""),
        (300, {}, "0.heartbeat.json", ""),
    ],
)
def test_a_run_without_a_rank_for_minutes_says_what_torchrun_printed(
    locked: RunDir, age_s: float | None, settings: dict[str, Any], file: str | None, said: str
) -> None:
    write_json(locked.launch, {"launch": settings, "time": time.time() - 4000})  # it waited in the queue
    if age_s is not None:
        locked.system.write_text(json.dumps({"time": time.time() - age_s}) + "\n")
    locked.log.write_text("started\nthe name service failed\n\n")
    (locked.ranks / (file or "other")).mkdir(parents=True)
    assert waiting_for(Records(locked)) == said
    assert Run(locked.path).summary()["waiting_for"] == said


@pytest.mark.parametrize(
    ("ended", "why", "while_held", "free"),
    [
        ((0, False), None, "SUCCEEDED", "SUCCEEDED"),
        ((0, False), "completed", "SUCCEEDED", "SUCCEEDED"),
        ((0, False), "stopped", "STOPPED", "STOPPED"),
        ((1, True), None, "STOPPED", "STOPPED"),
        ((1, False), "completed", "FAILED", "FAILED"),
        ((-9, False), "stopped", "FAILED", "FAILED"),
        (None, "completed", "RUNNING", "SUCCEEDED"),
        (None, "stopped", "RUNNING", "STOPPED"),
        (None, "failed", "RUNNING", "FAILED"),
        (None, None, "RUNNING", "LOST"),
    ],
)
def test_the_supervisors_record_decides_then_rank_0s_once_the_lock_is_free(
    files: RunDir, ended: tuple[int, bool] | None, why: str | None, while_held: str, free: str
) -> None:
    files.log.touch()
    if why:
        failure = FAILED if why == "failed" else None
        write_json(files.finished, {"why": why, "step": 7, "metrics": {}, "failure": failure, "time": 1009.0})
    if ended:
        exit_json(files, *ended)
    run = Run(files.path)
    with held(files):
        assert run.state == while_held
    assert (run.state, run.returncode) == (free, ended and ended[0])
    assert free != "LOST" or "without recording an end" in getattr(run.failure, "headline", "")


def test_where_there_are_no_locks_the_supervisors_process_decides(files: RunDir) -> None:
    write_json(files.launch, {"name": "toy", "flock": False, "time": time.time()})
    assert Run(files.path).state is RunState.QUEUED, "until its supervisor is known"
    write_json(files.launch, {"name": "toy", "flock": False, "time": time.time() - 60})
    assert Run(files.path).state is RunState.LOST
    files.log.touch()
    write_json(files.process, {"role": "supervisor", **ProcessIdentity.of(os.getpid()).to_json()})
    assert Run(files.path).state is RunState.RUNNING
    write_json(files.process, {"role": "supervisor", **ProcessIdentity.of(os.getpid()).to_json(), "start_time": 1.0})
    assert Run(files.path).state is RunState.LOST


@pytest.mark.parametrize("name", ["launch.json", "exit.json", "config.json"])
def test_a_run_that_cannot_be_read_hides_no_other_in_a_notebook(files: RunDir, project: Project, name: str) -> None:
    good = RunDir.create(project.runs, "good")
    write_json(good.launch, {"name": "good"})
    (files.path / name).write_text('{"format": 1000000}')
    for text in (runs()._repr_html_(), *[repr(runs())] * (name != "config.json")):  # which a row of the list lacks
        assert good.id in text and files.id in text and "update nbtools" in text
    assert "update nbtools" in Run(files.path)._repr_html_() and files.id in Run(files.path)._repr_html_()


# --- what it tells -----------------------------------------------------------------------------------


def test_a_summary_is_strict_json_and_names_everything(files: RunDir) -> None:
    rows(files, 1, 2)
    with files.metrics.open("a") as file:
        file.write('{"step": 3, "time": 1003.0, "train/loss": "NaN"}\n')
    write_json(files.config, {"derived": {"total_steps": 40}, "config": {}})
    beat = {"rank": 0, "pid": 1, "host": "h", "step": 4, "phase": "forward", "time": 1004.0}
    write_json(files.heartbeat(0), beat)
    files.heartbeat(1).write_text("{torn")
    exit_json(files, 1, failure=FAILED)
    summary = Run(files.path).summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    beat.pop("format", None)
    launch = {"id": files.id, "name": "toy", "script": "/p/scripts/toy.py", "started_at": 1000.0}
    ended = {"state": "FAILED", "returncode": 1, "ended_at": 1010.0, "restarts": 0}
    curves = {"step": 4, "total_steps": 40, "metrics": {"train/loss": "NaN"}, "units": {"train/loss": "step"}}
    failure = {**dict.fromkeys(("where", "advice", "step", "loss", "log")), "others": [], **FAILED}
    assert summary == {
        **launch,
        **ended,
        **curves,
        **dict.fromkeys(("cwd", "python", "silent_s", "eta_s", "job", "parent")),
        **dict.fromkeys(("note", "stopped_on", "why_stopped", "unsaved", "outputs", "slow"), ""),
        **dict.fromkeys(("waiting_for", "origin", "code"), ""),
        **{name: [] for name in ("arguments", "tags", "checkpoints", "shared", "stragglers", "curves", "events")},
        **{name: [] for name in ("notices", "phases")},
        **{name: {} for name in ("weights", "join")},
        "ranks": [beat],
        "failure": failure,
    }


def test_a_run_tells_its_step_while_another_thread_reads_all_rows(files: RunDir, monkeypatch: MonkeyPatch) -> None:
    files.metrics.write_text("".join(f'{{"step": {step}, "train/loss": {step}}}\n' for step in range(1, 9)))
    run, held, opened = Run(files.path), threading.Event(), threading.Event()
    follow = run.rows._written.follow
    monkeypatch.setattr(run.rows._written, "follow", lambda tail: held.set() or (opened.wait(20) and follow(tail)))
    with ThreadPoolExecutor(2) as threads:
        reading = threads.submit(lambda: run.history.last_step)
        assert held.wait(20) and not run.rows.is_read
        asked = threads.submit(lambda: (run.step, run.rows.newest.last("train/loss"), run.state))
        assert asked.result(10)[:2] == (8, 8.0)
        opened.set()
        assert reading.result(20) == 8 and run.rows.is_read


def test_a_path_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="not a run directory"):
        Run(tmp_path)


def test_a_script_that_only_prints_still_has_a_history(files: RunDir) -> None:
    write_json(files.launch, {"name": "foreign", "recipe": None})
    files.log.write_text("step 10 loss 2.5\nstep 20 loss 2.25\n")
    run = Run(files.path)
    assert run.history["train/loss"].steps.tolist() == [10, 20]
    files.log.write_text(files.log.read_text() + "step 30 loss 2.0\n")
    assert run.step == 30
    rows(files, 11, 21, 31)  # of a script of ours, edited until it was no plain one
    assert run.history["train/loss"].steps.tolist() == [11, 21, 31]


@pytest.mark.parametrize(
    ("num_epochs", "resumed_from", "total"), [(4, None, 128), (None, None, None), (4, {"run": "a", "step": 32}, None)]
)
def test_a_printed_epoch_is_not_the_run(
    files: RunDir, num_epochs: int | None, resumed_from: object, total: int | None
) -> None:
    write_json(files.launch, {"recipe": None, "num_epochs": num_epochs, "resumed_from": resumed_from})
    files.log.write_text("epoch 0 | step 0/32 | loss 2.5\nepoch 0 | step 28/32 | loss 2.25\n")
    run = Run(files.path)
    assert (run.step, run.total_steps) == (28, total)


# --- resumed runs ------------------------------------------------------------------------------------


def resumed(project: Project, parent: RunDir, step: int) -> RunDir:
    run = RunDir.create(project.runs, "toy")
    run.lock.touch()
    origin = {"run": parent.id, "checkpoint": f"step-{step:06d}", "step": step}
    write_json(run.launch, {"name": "toy", "recipe": "mlm_pretraining", "resumed_from": origin})
    return run


def test_the_curve_of_a_resumed_run_continues_its_parents(project: Project, files: RunDir) -> None:
    rows(files, 1, 2, 3, 4, 5, loss=5.0)
    child = resumed(project, files, step=3)
    rows(child, 4, loss=1.0)
    grandchild = resumed(project, child, step=4)
    run = Run(grandchild.path)
    assert run.history["train/loss"].steps.tolist() == [1, 2, 3, 4]
    assert run.history["train/loss"].values.tolist() == [5.0, 5.0, 5.0, 1.0]
    rows(grandchild, 5, 6, loss=0.5)
    assert run.history["train/loss"].values.tolist() == [5.0, 5.0, 5.0, 1.0, 0.5, 0.5]
    assert run.own_history["train/loss"].steps.tolist() == [5, 6]
    assert run.parent.id == child.id


def test_parents_that_are_gone_or_go_in_circles_are_left_out(project: Project, files: RunDir) -> None:
    child = resumed(project, files, step=3)
    rows(child, 4)
    write_json(files.launch, {"name": "toy", "resumed_from": {"run": child.id, "step": 4}})
    assert Run(child.path).history["train/loss"].steps.tolist() == [4]
    write_json(child.launch, {"name": "toy", "resumed_from": {"run": "../elsewhere", "step": 4}})
    assert Run(child.path).parent is None


# --- checkpoints -------------------------------------------------------------------------------------


def test_checkpoints_are_listed_by_step_and_only_whole_ones(tmp_path: Path) -> None:
    for name in ("step-999999", "step-1000000", "step-000020", ".step-000030.tmp", "step-000040", "notes"):
        (tmp_path / name).mkdir()
    for step in (999_999, 1_000_000, 20):
        content = {"step": step, "time": 1.0, "files": {"state.pt": {"bytes": 1, "sha256": "0"}}}
        write_json(tmp_path / f"step-{step:06d}" / "manifest.json", content)
    assert [found.step for found in checkpoints_in(tmp_path)] == [20, 999_999, 1_000_000]
    assert checkpoints_in(tmp_path / "none") == []


@pytest.mark.parametrize(
    "manifest",
    [
        *({}, {"step": "x"}, {"format": 9}, {"step": 1, "time": 1, "files": {}}, {"step": 1, "time": 1, "files": []}),
        {"step": 2, "time": 1, "files": {"state.pt": {"bytes": 1, "sha256": "0"}}},
    ],
)
def test_a_manifest_that_is_none_is_not_a_checkpoint(tmp_path: Path, manifest: dict[str, Any]) -> None:
    path = tmp_path / "step-000001"
    path.mkdir()
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert len(checkpoints_in(tmp_path)) == (manifest.get("step") == 2), "the step of another is noticed later"
    found, reasons = newest_verified(tmp_path)
    assert (found, len(reasons)) == (None, 1)


# --- signalling --------------------------------------------------------------------------------------


def test_a_run_on_another_host_is_not_signalled_from_here(locked: RunDir, stranger: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(stranger.pid).to_json()
    write_json(locked.process, {"role": "torchrun", **identity, "boot_id": "another boot", "host": "node-17"})
    locked.log.touch()
    with pytest.raises(NbtoolsError, match="runs on node-17"):
        Run(locked.path).stop(timeout_s=0.2)
    assert stranger.poll() is None


@pytest.mark.promise("safety-renamed-machine")
@pytest.mark.parametrize(
    ("change", "is_alive", "is_elsewhere"),
    [
        ({"host": "its-name-before"}, True, False),
        ({"host": "its-name-before", "pid_namespace": 0}, True, False),  # as recorded by an earlier nbtools
        ({"boot_id": "another boot"}, False, False),  # the same machine, started again
        ({"boot_id": "another boot", "host": "node-17"}, False, True),
        ({"pid_namespace": 1, "host": "a-container"}, False, True),
        ({"start_time": 1.0}, False, False),  # another process with its pid
        ({"boot_id": "", "host": "node-17"}, False, True),
    ],
)
def test_a_machine_is_known_by_its_boot_before_its_name(
    change: dict[str, Any], is_alive: bool, is_elsewhere: bool, stranger: subprocess.Popen[bytes]
) -> None:
    content = {**ProcessIdentity.of(stranger.pid).to_json(), **change}
    identity = ProcessIdentity.from_json(content)
    assert (identity.is_alive(), identity.is_elsewhere) == (is_alive, is_elsewhere)
    beat = RankHeartbeat.from_json({"rank": 0, "step": 1, "phase": "data", "time": 1.0, **content})
    assert beat is not None and beat.is_elsewhere == is_elsewhere


def test_stopping_a_run_that_has_ended_says_so(files: RunDir) -> None:
    exit_json(files)
    write_json(files.finished, {"why": "completed", "step": 7, "metrics": {}})
    assert Run(files.path).stop() == f"{files.id} had already ended: SUCCEEDED at step 7"


@pytest.mark.promise("safety-renamed-machine")
@pytest.mark.parametrize(("workers", "host"), [("0", "this one"), ("2", "its-name-before")])
def test_stop_saves_a_checkpoint_and_counts_the_ended_ranks(supervised: Start, workers: str, host: str) -> None:
    run = supervised(*agent(TRAINER, "--loader-workers", workers))
    at_step(run, 2)
    started = members(run.files)
    assert len(started) == 4 + 2 * int(workers), "the supervisor and the agent, too"
    if host != "this one":
        write_json(run.files.process, {**(read_json(run.files.process) or {}), "host": host})
    said = run.stop()
    assert said == f"stopped at step {run.step}; checkpoint step-{run.step:06d} saved; 2 ranks ended"
    assert run.state is RunState.STOPPED
    assert members(run.files) == living(started) == []


def test_a_second_caller_of_a_stop_signals_no_process_again(supervised: Start, monkeypatch: MonkeyPatch) -> None:
    run, sent = supervised(*agent(TRAINER)), list[int]()
    at_step(run, 2)
    ask, send = stop._ask, processes.send_signal

    def send_and_count(process: psutil.Process, number: signal.Signals) -> None:
        sent.append(process.pid)
        send(process, number)

    def ask_twice(*what: Any) -> None:
        ask(*what)
        ask(*what)

    monkeypatch.setattr(processes, "send_signal", send_and_count)
    monkeypatch.setattr(stop, "_ask", ask_twice)
    assert run.stop().startswith("stopped") and run.state is RunState.STOPPED
    assert len(sent) == 1, "the supervisor, which passes it on"


def test_stop_says_what_it_could_not_end(supervised: Start, monkeypatch: MonkeyPatch) -> None:
    run = supervised(*agent(TRAINER))
    at_step(run, 2)
    family = members(run.files)
    ranks = ranks_among(family)
    stubborn = ranks[1]
    stubborn.suspend()  # nothing but SIGKILL ends it, and that is kept from it
    for process in family:
        if process not in ranks.values():
            process.kill()  # neither the supervisor nor the agent would spare it
    send = processes.send_signal
    with monkeypatch.context() as patched:
        patched.setattr(processes, "send_signal", lambda one, number: one == stubborn or send(one, number))
        patched.setattr(processes, "sweep_processes", functools.partial(processes.sweep_processes, limit_s=0.5))
        said = run.stop(timeout_s=0.5)
    assert said.endswith(f"; 1 rank ended; 1 process could not be ended: pid {stubborn.pid} (state T)")
    assert living([stubborn])
    assert run.stop(timeout_s=0.5).endswith("; 1 rank ended")
    assert not living([stubborn])


@pytest.mark.promise("safety-removed-run")
def test_a_removed_run_is_stopped_while_it_lives(supervised: Start, monkeypatch: MonkeyPatch, capsys: Printed) -> None:
    run = supervised(sys.executable, "-c", "import time; time.sleep(600)")
    after = supervised(sys.executable, "-c", "pass", after=str(run.dir))
    eventually(lambda: run.files.log.exists() and after.records.process is not None)
    monkeypatch.chdir(run.dir.parents[1])
    eventually(lambda: shutil.rmtree(run.dir, ignore_errors=True) or not run.dir.exists())  # the supervisor writes
    assert awaited(after.records) is not None and after.state is RunState.QUEUED
    for words in ([], ["runs"], ["clean"], *([verb, run.id] for verb in ("show", "wait", "watch", "log"))):
        assert main(words) == (1 if words[1:] and words[0] != "show" else 0)
        assert "its run directory was removed; its processes still run: stop them" in "".join(capsys.readouterr())
    assert main(["stop", run.id]) == 0
    assert capsys.readouterr().out == "its run directory was removed; 2 processes ended\n"
    assert after.wait(60) is RunState.SUCCEEDED


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "STOPPED on request"),
        ({"why": "time limit"}, "STOPPED by Slurm: time limit"),
        ({"stopped_on": {"sentence": "loss is NaN"}}, "STOPPED by stop_on"),
    ],
)
def test_a_stopped_run_says_what_stopped_it(files: RunDir, more: dict[str, Any], said: str, capsys: Printed) -> None:
    write_json(files.exit, {"returncode": -15, "stopped": True, "time": 1010.0, **more})
    print_run(Run(files.path).summary())
    assert f"  {said}\n" in capsys.readouterr().out


def test_stop_finds_a_supervisor_whose_environment_is_still_empty(supervised: Start, monkeypatch: MonkeyPatch) -> None:
    """The kernel shows an empty /proc/PID/environ until exec is complete: 52 of 600 reads right after Popen."""
    run = supervised(*agent(TRAINER))
    find, reads = processes.members, iter(range(2))
    monkeypatch.setattr(processes, "members", lambda files: find(files) if next(reads, None) is None else [])
    run.stop()
    assert run.state is RunState.STOPPED


def test_stop_with_little_patience_kills_and_says_so(supervised: Start) -> None:
    run = supervised(sys.executable, PROGRAMS / "ignores_sigterm.py", shutdown_timeout_s=600)
    eventually(lambda: "ready" in run.log())
    assert run.stop(timeout_s=0.3) == "killed after 0 s at step 0; no checkpoint was saved; 1 process ended"
    assert run.state is RunState.STOPPED


def test_ranks_that_lost_supervisor_and_agent_are_swept_by_stop(supervised: Start) -> None:
    run = supervised(*agent(TRAINER, "--leave-no-word"))
    at_step(run, 2)
    ranks = ranks_of(run)
    for process in {*members(run.files)} - {*ranks}:
        process.kill()
    eventually(lambda: run.state is RunState.LOST)
    assert run.stop().endswith("2 ranks ended")
    assert living(ranks) == []


def test_a_run_started_by_hand_is_stopped_through_the_process_it_names(project: Project) -> None:
    run = RunDir.create(project.runs, "byhand")
    program = (
        "import os, sys\n"
        "from nbtools.rundir.process_identity import ProcessIdentity\nfrom nbtools.rundir.rundir import RunDir\n"
        "from nbtools.rundir.lock import acquire_lock\nfrom nbtools.rundir.json_files import read_json, write_json\n"
        "run = RunDir(sys.argv[1])\n"
        "lock = acquire_lock(run.lock)\n"
        "write_json(run.launch, {'name': 'byhand', 'by_hand': True, 'recipe': None})\n"
        "run.log.touch()\n"
        "os.environ['NBTOOLS_RUN_DIR'] = str(run.path)\n"
        "write_json(run.process, {'role': 'worker', **ProcessIdentity.of(os.getpid()).to_json()})\n"
        "import runpy; sys.argv[1:] = ['--step-s', '0.05']\n"
        "runpy.run_path(SCRIPT, run_name='__main__')\n"
    ).replace("SCRIPT", repr(str(PROGRAMS / "fake_trainer.py")))
    process = subprocess.Popen([sys.executable, "-c", program, str(run.path)], stdout=subprocess.DEVNULL)
    try:
        eventually(lambda: run.heartbeat(0).exists())
        seen = Run(run.path)
        assert seen.state is RunState.RUNNING
        assert seen.stop(timeout_s=20).startswith("stopped at step")
        assert seen.state is RunState.STOPPED
        assert not run.exit.exists()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


# --- waiting -----------------------------------------------------------------------------------------


def test_waiting_for_a_failed_run_raises_with_its_failure(files: RunDir) -> None:
    exit_json(files, 1, failure=FAILED)
    with pytest.raises(RunFailed, match="rank 1 on h: killed by SIGKILL"):
        Run(files.path).wait()
    assert Run(files.path).wait(check=False) is RunState.FAILED


def test_waiting_ends_in_time_and_leaves_the_run_alone(locked: RunDir) -> None:
    with pytest.raises(TimeoutError, match="it continues"):
        Run(locked.path).wait(timeout_s=0.2)


def test_a_run_whose_lock_was_deleted_is_still_stopped(supervised: Start) -> None:
    run = supervised("sleep", "600")
    eventually(run.files.log.exists)
    run.files.lock.unlink()
    assert run.state is RunState.LOST
    run.stop(timeout_s=30)
    assert members(run.files) == []
    assert run.state is RunState.STOPPED


def test_stops_from_two_terminals_are_one_request(supervised: Start) -> None:
    counts = (
        "import signal, sys, time\n"
        "asked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), print('asked', flush=True)))\n"
        "print('ready', flush=True)\n"
        "while not asked: time.sleep(0.1)\n"  # however long the commands take to start
        "for _ in range(40): time.sleep(0.1)\n"
    )
    run = supervised(sys.executable, "-c", counts)
    eventually(lambda: "ready" in run.log())
    supervisor = run.records.process
    os.kill(supervisor.pid, signal.SIGKILL)  # with it, the supervisor alone would count
    command = [sys.executable, "-m", "nbtools", "stop", str(run.dir)]
    stops = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=300) for process in stops] == [0, 0, 0]
    assert run.log().count("asked") == 1


def test_a_run_of_somebody_else_is_refused_at_once_and_named(supervised: Start, monkeypatch: MonkeyPatch) -> None:
    run = supervised("sleep", "600")
    eventually(run.files.process.exists)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: 65_534)  # root, too, signals only its own processes
        with pytest.raises(NbtoolsError, match="only they can stop it"):
            run.stop()
    assert "stopped" in run.stop(timeout_s=10)


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_parts_of_another_shape_count_as_missing(files: RunDir, value: object) -> None:
    write_json(files.launch, {"name": "toy", "launch": value, "resumed_from": value, "time": 1e300})
    write_json(files.config, {"derived": value})
    run = Run(files.path)
    assert (run.total_steps, run.parent, resumed_step(run.info)) == (None, None, 0)
    assert local_time(run.records.started_at) == ""
    assert run.stop() == "lost at step 0; no checkpoint was saved; 0 processes ended"
