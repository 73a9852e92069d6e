"""Who is stuck: the judgement over heartbeats, and stacks of living processes, none of which is stopped for it."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from fixture_types import MonkeyPatch, Start
from launched import PROGRAMS, agent, at_step, python
from waiting import eventually

from nbtools.machine.processes import living, members, ranks_among
from nbtools.project import Project
from nbtools.run.ranks import stacks
from nbtools.run.ranks.stacks import take_stacks
from nbtools.run.ranks.stragglers import Straggler, process_condition, stragglers
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import RankHeartbeat
from nbtools.rundir.json_files import write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir

NOW = 1000.0


# --- who is stuck ---------------------------------------------------------------------------------


def beats(*entries: tuple[int, str, float] | tuple[int, str, float, int]) -> list[RankHeartbeat]:
    """One rank per entry: step, phase, for how long, and which phase of its step that is."""
    return [
        RankHeartbeat(rank, 1, "elsewhere", entry[0], entry[1], NOW - entry[2], *entry[3:])
        for rank, entry in enumerate(entries)
    ]


def stuck(*entries: tuple[int, str, float] | tuple[int, str, float, int], step_s: float | None = 0.5) -> list[int]:
    return [straggler.beat.rank for straggler in stragglers(beats(*entries), NOW, step_s)]


@pytest.mark.parametrize(
    ("waiting", "straggler"),
    [
        ((10, "collective", 30.0), (10, "forward", 31.0)),
        ((10, "collective", 30.0), (9, "collective", 31.0)),
        ((10, "backward", 30.0), (10, "forward", 29.0)),  # DDP's backward pass holds the all-reduce
        ((10, "backward", 30.0), (10, "data", 31.0)),
        ((10, "backward", 30.0), (9, "backward", 28.0)),
        ((10, "forward", 30.0), (9, "forward", 31.0)),
    ],
)
def test_the_one_furthest_behind_is_named(waiting: tuple[int, str, float], straggler: tuple[int, str, float]) -> None:
    assert stuck(waiting, straggler) == [1]
    assert stuck(straggler, waiting, waiting) == [0]


def test_the_count_of_phases_orders_ranks_within_a_step() -> None:
    # The collective at the end of step 10 comes before the forward pass of step 11, which is still counted as 10.
    assert stuck((10, "forward", 30.0, 3), (10, "collective", 31.0, 1)) == [1]
    # Two passes are accumulated: the data of the second come after the backward pass of the first.
    assert stuck((10, "data", 30.0, 4), (10, "backward", 30.0, 3)) == [1]


@pytest.mark.parametrize(
    ("entries", "step_s", "named"),
    [
        # Patience is twice the usual step and a little.
        (((10, "forward", 0.2), (10, "forward", 3.9)), 0.5, []),
        (((10, "forward", 0.2), (10, "forward", 4.1)), 0.5, [1]),
        (((10, "forward", 22.0), (10, "forward", 24.0)), 10.0, [1]),
        (((10, "forward", 14.0),), None, []),
        (((10, "forward", 16.0),), None, [0]),
        # Where all are equally far, all hang.
        (((10, "collective", 30.0), (10, "collective", 31.0)), 0.5, [0, 1]),
        (((10, "backward", 30.0),), 0.5, [0]),
        # What may take minutes is left alone.
        (((10, "checkpoint", 60.0), (10, "evaluation", 60.0)), 0.5, []),
        (((10, "checkpoint", 60.0), (10, "backward", 50.0)), 0.5, []),  # it waits for a rank that writes
        (((0, "data", 600.0), (0, "data", 600.0)), 0.5, []),  # the text is being tokenized
        (((10, "data", 30.0), (10, "backward", 30.0)), 0.5, [0]),  # a batch is not a text
        (((10, "done", 600.0), (10, "done", 600.0)), 0.5, []),
        ((), 0.5, []),
    ],
)
def test_stragglers_are_behind_for_longer_than_their_phase_may_take(
    entries: tuple[tuple[int, str, float], ...], step_s: float | None, named: list[int]
) -> None:
    assert stuck(*entries, step_s=step_s) == named


def test_one_that_is_stopped_or_gone_is_the_cause_wherever_it_is() -> None:
    def condition(beat: RankHeartbeat) -> str:
        return "stopped (state T)" if beat.rank == 1 else ""

    for phase, nth in (("backward", 3), ("checkpoint", 2), ("collective", 4)):
        found = stragglers(beats((40, "backward", 35.0, 3), (40, phase, 35.2, nth)), NOW, 0.5, condition)
        assert [straggler.beat.rank for straggler in found] == [1]
    assert not stragglers(beats((40, "backward", 1.0), (40, "backward", 1.0)), NOW, 0.5, condition)


def test_a_straggler_is_a_sentence() -> None:
    beat = RankHeartbeat(1, 1, "h", 40, "forward", NOW)
    assert str(Straggler(beat, 35.4, True, "")) == "rank 1 is behind: forward at step 40 for 35 s"
    held = Straggler(beat, 35.4, False, "stopped (state T)")
    assert str(held) == "rank 1 is stuck: forward at step 40 for 35 s, stopped (state T)"


def test_a_heartbeat_of_an_older_nbtools_is_read() -> None:
    plain = {"rank": 1, "pid": 2, "host": "h", "step": 3, "phase": "data", "time": 4.0}
    beat = RankHeartbeat.from_json(plain)
    assert beat == RankHeartbeat(1, 2, "h", 3, "data", 4.0)
    assert beat.to_json() == plain
    for more in ({"nth": "x"}, {"stacks_signal": -1}, {"start_time": []}, {"boot_id": None}):
        assert RankHeartbeat.from_json({**plain, **more}) == beat
    assert RankHeartbeat.from_json({**plain, "step": None}) is None


# --- stacks ---------------------------------------------------------------------------------------


def hanging(supervised: Start, how: str) -> Run:
    run = supervised(*agent(PROGRAMS / "hangs.py", how))
    eventually(lambda: all((run.files.ranks / f"{rank}.ready").exists() for rank in (0, 1)))
    return run


@pytest.fixture
def no_py_spy(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_py_spy", lambda: None)


@pytest.mark.usefixtures("no_py_spy")
def test_ranks_that_announced_a_signal_tell_where_they_are_and_go_on(supervised: Start) -> None:
    run = hanging(supervised, "announce")
    family = members(run.files)
    ranks = ranks_among(family)
    for _ in range(2):
        found = take_stacks(run.files)
        assert [(item.rank, item.pid, item.has_stacks) for item in found] == [(n, ranks[n].pid, True) for n in (0, 1)]
        for item in found:
            assert item.text.count("in hang_here") == 1, "this dump, and none before it"
            assert "in beside_it" in item.text
    assert len(living(family)) == len(family)
    assert psutil.STATUS_STOPPED not in {process.status() for process in family}


@pytest.mark.usefixtures("no_py_spy")
def test_a_rank_that_announced_nothing_is_never_signalled(supervised: Start) -> None:
    run = hanging(supervised, "silent")
    ranks = ranks_among(members(run.files))
    found = take_stacks(run.files)
    assert [(item.rank, item.pid) for item in found] == [(rank, ranks[rank].pid) for rank in (0, 1)]
    for item in found:
        assert not item.has_stacks
        assert item.text == (
            "no stacks: it has registered no signal for its stacks; install py-spy to read them from outside"
        )
    time.sleep(0.5)
    assert len(living(ranks.values())) == 2
    ranks[1].send_signal(signal.SIGUSR2)  # it would have been its death
    eventually(lambda: not living([ranks[1]]))


def test_py_spy_is_asked_where_it_is_installed(supervised: Start, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    run = hanging(supervised, "silent")
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\n[ "$1 $2" = "dump --pid" ] && [ -d "/proc/$3" ] && echo "Process $3: hang_here"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = take_stacks(run.files)
    assert [item.text for item in found] == [f"Process {item.pid}: hang_here" for item in found]
    assert all(item.has_stacks for item in found)
    program.write_text("#!/bin/sh\necho 'Permission Denied: try sudo' >&2\nexit 1\n")
    for item in take_stacks(run.files):
        assert not item.has_stacks
        assert item.text.endswith(f"py-spy dump --pid {item.pid}: Permission Denied: try sudo")


@pytest.mark.usefixtures("no_py_spy")
def test_a_stopped_rank_is_told_as_such_and_not_signalled(supervised: Start) -> None:
    run = hanging(supervised, "announce")
    held = ranks_among(members(run.files))[1]
    held.suspend()
    eventually(lambda: held.status() == psutil.STATUS_STOPPED)
    found = take_stacks(run.files)
    assert "in hang_here" in found[0].text
    assert (found[1].text, found[1].has_stacks) == ("stopped (state T)", False)
    pending = [line.split() for line in Path(f"/proc/{held.pid}/status").read_text().splitlines() if "Pnd:" in line]
    assert {int(mask, 16) for _, mask in pending} == {0}
    held.resume()
    eventually(lambda: held.status() == psutil.STATUS_SLEEPING)
    assert "in hang_here" in take_stacks(run.files)[1].text


@pytest.mark.usefixtures("no_py_spy")
def test_a_rank_that_does_not_answer_is_not_waited_for_long(supervised: Start, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_ANSWER_S", 0.5)
    run = hanging(supervised, "deaf")
    for item in take_stacks(run.files):
        assert not item.has_stacks
        assert "no answer within 0 s (process is sleeping)" in item.text


def test_ranks_on_another_machine_are_named_with_it(project: Project) -> None:
    run = RunDir.create(project.runs, "toy")
    elsewhere = {**ProcessIdentity.of(os.getpid()).to_json(), "host": "node-7", "boot_id": "another boot"}
    write_json(run.heartbeat(0), {"rank": 0, "step": 1, "phase": "forward", "time": 1.0, **elsewhere})
    write_json(run.heartbeat(1), {"rank": 1, "step": 1, "phase": "done", "time": 1.0, **elsewhere})
    assert [(item.rank, item.text) for item in take_stacks(run)] == [(0, "runs on node-7: take its stacks there")]


def test_the_condition_of_a_process_is_seen_on_its_own_machine_only(stranger: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(stranger.pid)
    beat = RankHeartbeat(0, stranger.pid, identity.host, 1, "forward", 1.0, identity=identity)
    assert process_condition(beat) == ""
    stranger.send_signal(signal.SIGSTOP)
    eventually(lambda: process_condition(beat) == "stopped (state T)")
    assert process_condition(RankHeartbeat(0, stranger.pid, "elsewhere", 1, "forward", 1.0)) == ""
    reused = ProcessIdentity(identity.pid, 1.0, identity.boot_id, identity.host)
    assert process_condition(replace(beat, identity=reused)) == "gone"
    stranger.kill()
    eventually(lambda: process_condition(beat) == "gone")  # a zombie until it is waited for
    stranger.wait()
    assert process_condition(beat) == "gone"


def test_the_command_line_names_the_straggler_and_its_stacks(supervised: Start) -> None:
    run = hanging(supervised, "announce")
    assert run.state is RunState.RUNNING
    show = ["-m", "nbtools", "show", run.dir]
    told = python(*show)
    assert "rank 1 is behind: backward at step 40 for" in told
    assert "hang_here" not in told
    told = python(*show, "--stacks")
    assert told.count("in hang_here") == 2
    pids = [process.pid for process in map(ranks_among(members(run.files)).get, (0, 1)) if process is not None]
    assert all(f"--- rank {rank} (pid {pid})" in told for rank, pid in enumerate(pids))
    summary = json.loads(python(*show, "--stacks", "--json"))
    assert [(item["rank"], item["has_stacks"]) for item in summary["stacks"]] == [(0, True), (1, True)]
    assert [straggler["rank"] for straggler in summary["stragglers"]] == [1]
    assert summary["stragglers"][0]["message"].startswith("rank 1 is behind: backward at step 40 for ")


# --- real ranks -----------------------------------------------------------------------------------

TRAINS = """
import time
import torch
from nbtools.config import TrainConfig
from nbtools.training.engine import worker
from nbtools.training.engine.flags import Flags

worker._SECONDS_PER_MINUTE = 25

def train(worker, config):
    hang = worker.files.path / "hang"
    model = worker.wrap(torch.nn.Linear(8, 8))
    for step in range(1, 100_000):
        worker.phase("data")
        time.sleep(0.02 if worker.rank else 0.3)  # so that rank 1 nearly always waits in a collective
        worker.phase("forward")
        if worker.rank == 1 and hang.exists():
            hang_here()
        loss = model(torch.ones(4, 8)).sum()
        worker.phase("backward")
        loss.backward()
        worker.progress.step = step
        worker.end_step({"train/loss": float(loss)}, 100_000)
        if worker.stop_agreed():
            break

def hang_here():
    while True:
        time.sleep(1)

worker.run(train, Flags(TrainConfig(collective_timeout_min=1)))
"""


@pytest.fixture
def training(supervised: Start, cpu_project: Project) -> Run:
    """Two real ranks under the real torchrun, three steps a second, a collective timeout of 25 seconds."""
    script = cpu_project.scripts / "trains.py"
    script.write_text(TRAINS)
    torchrun = (sys.executable, "-P", "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2")
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=x", "--shutdown-timeout=5")
    run = supervised(*torchrun, *rendezvous, script)
    at_step(run, 3)
    return run


@pytest.mark.promise("fault-23")
@pytest.mark.slow
def test_a_held_rank_is_named_and_the_run_fails_in_time(training: Run) -> None:
    for _ in range(5):
        assert [item.has_stacks for item in take_stacks(training.files)] == [True, True]
    seen = training.step
    eventually(lambda: training.step > seen + 3)
    assert not training.stragglers
    (training.dir / "hang").touch()
    eventually(lambda: training.stragglers)
    assert str(training.stragglers[0]).startswith("rank 1 is behind: forward at step ")
    waiting, hanging = take_stacks(training.files)
    assert "in hang_here" in hanging.text
    assert "in train" in waiting.text and "backward" in waiting.text
    ranks_among(members(training.files))[1].suspend()
    eventually(lambda: [one.condition for one in training.stragglers] == ["stopped (state T)"])
    stopped = take_stacks(training.files)[1]
    assert (stopped.text, stopped.has_stacks) == ("stopped (state T)", False)
    assert training.state is RunState.RUNNING
    assert training.wait(timeout_s=300, check=False) is RunState.FAILED
    failure = training.failure
    assert failure is not None and failure.rank == 0
    assert "Timed out waiting 25000ms" in (failure.traceback or "")
    eventually(lambda: not members(training.files))
