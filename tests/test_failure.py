"""Finding the first failure in what torchrun and the ranks leave behind."""

import json
from pathlib import Path

import pytest

from nbtools.failure import Failure, first_failure, was_told_to_stop
from nbtools.rundir import RunDir, write_json


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    made.ranks.mkdir()
    return made


def block(index: int, rank: int, code: int, pid: int, error_file: str = "<N/A>", host: str = "node-3.cluster") -> str:
    signal_name = " (SIGKILL)" if code == -9 else ""
    return (
        f"[{index}]:\n  time      : 2026-01-01_00:00:00\n  host      : {host}\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {pid}) {signal_name}\n"
        f"  error_file: {error_file}\n  traceback : To enable traceback see: https://pytorch.org\n"
    )


def summary(*others: str, root: str) -> str:
    failures = "".join(others) or "  <NO_OTHER_FAILURES>\n"
    line = "-" * 60 + "\n"
    return f"{line}Failures:\n{failures}{line}Root Cause (first observed failure):\n{root}{'=' * 60}\n"


def error_file(run: RunDir, message: str) -> str:
    path = run.ranks / "attempt_0" / "error.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "Traceback…"}}}))
    return str(path)


def test_the_rank_that_torchrun_had_to_close_is_not_the_first_although_torchrun_says_so(run: RunDir) -> None:
    echo = block(0, 1, 1, 101, error_file(run, "RuntimeError: Connection closed by peer"))
    closing = "W0101 api.py:1028] Sending process 101 closing signal SIGTERM\n"
    run.log.write_text(closing + summary(block(1, 0, -9, 100), root=echo))
    write_json(run.heartbeat(0), {"rank": 0, "step": 12})
    assert first_failure(run, 1, "here") == Failure(
        0, "node-3.cluster", -9, "SIGKILL", "killed by SIGKILL at step 12", None
    )


def test_of_ranks_that_ended_together_the_one_killed_is_the_cause_and_the_exception_its_echo(run: RunDir) -> None:
    echo = block(0, 0, 1, 100, error_file(run, "RuntimeError: Connection closed by peer"))
    run.log.write_text(summary(block(1, 1, -9, 101), root=echo))
    assert first_failure(run, 1, "here").rank == 1


def test_a_recorded_exception_comes_with_its_traceback(run: RunDir) -> None:
    run.log.write_text(summary(root=block(0, 1, 1, 101, error_file(run, "ValueError: boom\nand more"))))
    failure = first_failure(run, 1, "here")
    assert (failure.rank, failure.message, failure.traceback) == (1, "ValueError: boom", "Traceback…")


def test_an_error_file_elsewhere_is_not_read(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "private.json").write_text(json.dumps({"message": "secret"}))
    run.log.write_text(summary(root=block(0, 0, 1, 100, str(tmp_path / "private.json"))))
    assert "secret" not in first_failure(run, 1, "here").headline


def test_a_machine_without_a_qualified_name_is_named_as_the_supervisor_knows_it(run: RunDir) -> None:
    run.log.write_text(summary(root=block(0, 0, -9, 100, host="localhost")))
    assert first_failure(run, 1, "here").headline == "rank 0 on here: killed by SIGKILL"


def test_torchruns_own_exception_is_told_where_no_rank_failed(run: RunDir) -> None:
    run.error.write_text(json.dumps({"message": {"message": "RendezvousTimeoutError: late", "extraInfo": {}}}))
    assert first_failure(run, 1, "here").message == "RendezvousTimeoutError: late"


@pytest.mark.parametrize("log", ["", "Root Cause (first observed failure):\nnonsense", "\0\xff\n" * 10])
def test_a_log_that_tells_nothing_still_gives_a_failure(run: RunDir, log: str) -> None:
    run.log.write_text(log)
    assert first_failure(run, 3, "here").headline.startswith("exited with code 3")


def test_a_missing_log_still_gives_a_failure(run: RunDir) -> None:
    assert first_failure(run, 3, "here").headline == "exited with code 3 without a word (sys.exit?)"


def test_a_stop_of_rank_0_that_a_failed_rank_caused_is_a_failure(run: RunDir) -> None:
    write_json(run.finished, {"why": "stopped", "step": 3})
    assert was_told_to_stop(run)
    run.log.write_text(summary(root=block(0, 1, -9, 101)))
    assert not was_told_to_stop(run)


@pytest.mark.parametrize("content", [None, {}, {"message": 3}, "text"])
def test_what_is_no_failure_reads_as_none(content: object) -> None:
    assert Failure.from_json(content) is None


TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    raise RuntimeError("two lines")
RuntimeError: two lines
the second one
"""


def test_a_script_without_an_error_file_still_gives_its_exception_and_traceback(run: RunDir) -> None:
    log = run.ranks / "x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("a warning\n" + TRACEBACK)
    run.log.write_text(summary(root=block(0, 1, 1, 101, "<N/A>")))
    failure = first_failure(run, 1, "here")
    assert failure.message == "exited with code 1: RuntimeError: two lines"
    assert failure.traceback == TRACEBACK.rstrip()


def test_an_exception_that_was_survived_is_not_the_reason_of_an_exit(run: RunDir) -> None:
    run.log.write_text(TRACEBACK + "went on, then gave up\n" + summary(root=block(0, 0, 3, 100, "<N/A>")))
    failure = first_failure(run, 1, "here")
    assert failure.traceback is None
    assert "RuntimeError" not in failure.message
