"""Automatic restarts: a failed run starts again, bounded, in its own directory, from its newest whole checkpoint."""

import json
from pathlib import Path

import pytest
from fixture_types import Start
from launched import TRAINER, agent, at_step, processes_of, supervisor_of
from waiting import eventually

from nbtools.failures.restarts import read_restarts
from nbtools.machine.processes import members
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir


def rows(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in run.files.metrics.read_text().splitlines()]


@pytest.mark.promise("fault-2")
def test_a_killed_rank_costs_an_attempt_and_the_curve_continues(supervised: Start) -> None:
    options = ["--steps", "12", "--step-s", "0.3", "--checkpoint-every", "4"]
    run = supervised(*agent(TRAINER, *options), recipe="mlm_pretraining", launch={"max_restarts": 1})
    at_step(run, 6)
    processes_of(run)["1"].kill()
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    (restart,) = read_restarts(run.files)
    assert (restart.attempt, restart.failure.rank, restart.failure.signal) == (1, 1, "SIGKILL")
    assert restart.checkpoint is not None  # of step 4, 8, or the last step of rank 0, which saves when it is stopped
    at = int(restart.checkpoint[5:])
    assert next(row["step"] for row in rows(run) if row["attempt"] == 2) == at + 1
    assert run.history["train/loss"].steps.tolist() == list(range(1, 13))
    assert run.returncode == 0
    assert (read_json(run.files.exit) or {})["attempt"] == 2


def test_a_program_that_always_fails_is_started_so_often_and_no_more(supervised: Start) -> None:
    run = supervised(*agent(TRAINER, "--fail-at", "2", "--steps", "5"), launch={"max_restarts": 2})
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert [restart.attempt for restart in read_restarts(run.files)] == [1, 2]
    assert [restart.checkpoint for restart in read_restarts(run.files)] == [None, None]
    assert {row["attempt"] for row in rows(run)} == {1, 2, 3}
    assert "boom at step 2" in run.failure.message
    eventually(lambda: not members(run.files))


def test_a_damaged_newest_checkpoint_is_passed_over_and_recorded(supervised: Start) -> None:
    options = ["--steps", "8", "--step-s", "0.3", "--checkpoint-every", "2", "--fail-at", "7", "--fail-attempt", "1"]
    run = supervised(*agent(TRAINER, *options), recipe="mlm_pretraining", launch={"max_restarts": 1})
    eventually(lambda: run.files.checkpoint(2).exists())
    supervisor = supervisor_of(run)
    supervisor.suspend()  # it looks for a checkpoint as soon as the agent has failed
    eventually(lambda: run.files.checkpoint(6).exists())
    (run.files.checkpoint(6) / "state.pt").write_bytes(b"{}")
    supervisor.resume()
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert [restart.checkpoint for restart in read_restarts(run.files)] == ["step-000004"]
    (line,) = run.files.attempts.read_text().splitlines()
    assert "step-000006" in json.loads(line)["passed_over"][0]


def test_while_it_starts_again_it_counts_as_running_and_shows_no_older_end(supervised: Start) -> None:
    run = supervised(
        *agent(TRAINER, "--fail-at", "2", "--fail-attempt", "1", "--steps", "1000"), launch={"max_restarts": 1}
    )
    seen = set()

    def has_gone_on() -> bool:
        seen.add(run.state)
        return run.step >= 5 and bool(read_restarts(run.files))

    eventually(has_gone_on)
    assert seen <= {RunState.QUEUED, RunState.RUNNING}
    assert not run.files.finished.exists()
    run.stop()
    assert run.state is RunState.STOPPED


def test_a_command_that_cannot_be_started_is_not_tried_again(supervised: Start) -> None:
    run = supervised("/no/such/program", launch={"max_restarts": 5})
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert run.failure is not None and "/no/such/program" in run.failure.message
    assert run.returncode == 127
    assert read_restarts(run.files) == []


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"\xff", b'{"attempt": 1}', b"[" * 100_000])
def test_damaged_lines_of_attempts_are_left_out(tmp_path: Path, line: bytes) -> None:
    good = b'{"attempt": 1, "time": 5.0, "failure": null, "checkpoint": null}'
    RunDir(tmp_path).attempts.write_bytes(line + b"\n" + good + b"\n" + line)
    assert [restart.attempt for restart in read_restarts(RunDir(tmp_path))] == [1]
