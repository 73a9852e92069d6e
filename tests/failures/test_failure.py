"""The failure card: the first failure in what torchrun and the ranks leave behind, its cause, and how it is shown."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Start
from launched import TRAINER, agent, at_step, processes_of
from waiting import eventually

import nbtools as nt
from nbtools.cli.output import print_run
from nbtools.errors import RunFailed, literal
from nbtools.failures.failure import Failure, first_failure, was_stopped_from_outside
from nbtools.machine.processes import members
from nbtools.notebook.panel import html
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "runs" / "r")
    made.ranks.mkdir(parents=True)
    return made


def beat(run: RunDir, rank: int, step: int, phase: str = "forward", pid: int = 1, **more: Any) -> None:
    content = {"rank": rank, "pid": pid, "host": "h", "step": step, "phase": phase, "time": 5.0}
    write_json(run.heartbeat(rank), {**content, **more})


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


def error_file(run: RunDir, message: str, traceback: str = "Traceback…") -> str:
    path = run.ranks / "attempt_0" / f"{len(list(run.ranks.glob('attempt_0/*')))}.error.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": traceback}}}))
    return str(path)


def failed_with(run: RunDir, message: str = "", code: int = 1, rank: int = 0, **error: str) -> Failure:
    """Lay out what torchrun leaves behind of one rank that failed, with the error that it recorded."""
    told = error_file(run, message, **error) if message else "<N/A>"
    run.log.write_text(summary(root=block(0, rank, code, 100, told)))
    return first_failure(run, 1, "h")


def test_the_rank_that_torchrun_had_to_close_is_not_the_first_although_torchrun_says_so(run: RunDir) -> None:
    echo = block(0, 1, 1, 101, error_file(run, "RuntimeError: Connection closed by peer"))
    closing = "W0101 api.py:1028] Sending process 101 closing signal SIGTERM\n"
    run.log.write_text(closing + summary(block(1, 0, -9, 100), root=echo))
    beat(run, 0, step=12)
    found = first_failure(run, 1, "here")
    assert (found.rank, found.host, found.exitcode, found.signal) == (0, "node-3.cluster", -9, "SIGKILL")
    assert found.message.startswith("killed by SIGKILL at step 12: ")
    assert (found.step, found.traceback) == (12, None)
    lost = "another rank was lost (RuntimeError: Connection closed by peer)"
    assert found.others == [{"rank": 1, "exitcode": 1, "signal": None, "message": lost}]


@pytest.mark.parametrize(("error", "code"), [(None, -9), ("ValueError: boom", 1)], ids=["was killed", "raised"])
def test_of_ranks_that_ended_together_the_one_that_lost_its_peer_is_the_echo(
    run: RunDir, error: str | None, code: int
) -> None:
    echo = block(0, 0, 1, 100, error_file(run, "RuntimeError: Connection closed by peer [127.0.0.1]:48812"))
    told = error_file(run, error) if error else "<N/A>"
    run.log.write_text(summary(block(1, 1, code, 101, told), root=echo))
    found = first_failure(run, 1, "here")
    assert (found.rank, error or "killed by SIGKILL") == (1, found.message.partition(": from")[0])
    assert found.others[0]["message"].startswith("another rank was lost (")


@pytest.mark.parametrize(("code", "signal_name"), [(1, None), (-6, "SIGABRT")])
def test_a_recorded_exception_comes_with_its_traceback_also_after_a_crash_while_leaving(
    run: RunDir, code: int, signal_name: str | None
) -> None:
    found = failed_with(run, "ValueError: boom\nand more", code, rank=1)
    assert (found.rank, found.message, found.traceback) == (1, "ValueError: boom", "Traceback…")
    assert found.signal == signal_name


def test_an_error_file_elsewhere_is_not_read(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "private.json").write_text(json.dumps({"message": "secret"}))
    run.log.write_text(summary(root=block(0, 0, 1, 100, str(tmp_path / "private.json"), host="localhost")))
    said = first_failure(run, 1, "here").headline
    assert said.startswith("rank 0 on here: exited with code 1"), "a machine without a qualified name"
    assert "secret" not in said


def test_torchruns_own_exception_is_told_where_no_rank_failed(run: RunDir) -> None:
    run.error.write_text(json.dumps({"message": {"message": "RendezvousTimeoutError: late", "extraInfo": {}}}))
    assert first_failure(run, 1, "here").message == "RendezvousTimeoutError: late"


@pytest.mark.parametrize("log", [None, "", "Root Cause (first observed failure):\nnonsense", "\0\xff\n" * 10])
def test_a_log_that_tells_nothing_still_gives_a_failure(run: RunDir, log: str | None) -> None:
    if log is not None:
        run.log.write_text(log)
    assert first_failure(run, 3, "here").headline.startswith("exited with code 3")


def test_a_stop_of_rank_0_that_a_failed_rank_caused_is_a_failure(run: RunDir) -> None:
    write_json(run.finished, {"why": "stopped", "step": 3})
    assert was_stopped_from_outside(run)
    run.log.write_text(summary(root=block(0, 1, -9, 101)))
    assert not was_stopped_from_outside(run)


@pytest.mark.parametrize("content", [None, {}, {"message": 3}, "text"])
def test_what_is_no_failure_reads_as_none(content: object) -> None:
    assert Failure.from_json(content) is None


def test_a_failure_is_read_back_as_it_was_written_also_by_an_older_nbtools() -> None:
    others = [{"rank": 1, "exitcode": -15, "signal": "SIGTERM", "message": "closed"}]
    known = Failure(0, "h", 1, None, "boom", "Traceback…", "a.py:1 in f", "Lower it.", 40, math.inf, others)
    assert Failure.from_json(json.loads(json.dumps(known.to_json(), allow_nan=False))) == known
    old = {"rank": 1, "host": "h", "exitcode": -9, "signal": "SIGKILL", "message": "killed", "traceback": None}
    assert Failure.from_json(old) == Failure(1, "h", -9, "SIGKILL", "killed")
    broken = {"message": "m", "rank": True, "step": "7", "loss": "x", "others": [3, {"rank": 1}], "traceback": 5}
    assert Failure.from_json({**broken, "exitcode": 10**400}) == Failure(
        None, None, None, None, "m", others=[{"rank": 1}]
    )


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


# --- attempts ---------------------------------------------------------------------------------------


def test_only_the_last_attempt_counts_in_the_log_and_among_the_ranks_logs(run: RunDir) -> None:
    for name, error in (("zz_first", "ValueError: the first"), ("aa_second", "KeyError: 'the second'")):
        log = run.ranks / name / "attempt_0" / "1" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(TRACEBACK.replace("RuntimeError: two lines", error))
        age_s = 5 if name == "zz_first" else 0
        os.utime(run.ranks / name, (time.time() - age_s, time.time() - age_s))
    run.log.write_text(summary(root=block(0, 0, -9, 100)))
    since = run.log.stat().st_size
    with run.log.open("a") as file:
        file.write(summary(root=block(0, 1, 1, 201, "<N/A>")))
    found = first_failure(run, 1, "here", since=since)
    assert (found.rank, found.message) == (1, "exited with code 1: KeyError: 'the second'")
    assert found.others == []
    end = run.log.stat().st_size
    assert first_failure(run, 3, "here", since=end).message == "exited with code 3 without output (sys.exit?)"


# --- the ranks ----------------------------------------------------------------------------------------


def test_ranks_of_several_machines_are_named_with_their_machines(run: RunDir) -> None:
    write_json(run.launch, {"launch": {"nnodes": 2, "nproc_per_node": 1}})
    write_json(run.node_record(1), {"host": "n2", "returncode": 1})
    run.log.write_text(
        "W0101 api.py:1028] Sending process 100 closing signal SIGTERM\n"
        + summary(root=block(0, 0, -15, 100, host="n1"))
    )
    run.node_output(1).write_text(summary(root=block(0, 1, 1, 100, error_file(run, "ValueError: boom"), host="n2")))
    found = first_failure(run, 1, "n1")
    assert found.headline == "rank 1 on n2: ValueError: boom"
    assert found.other_lines == ["rank 0 on n1: closed by torchrun (SIGTERM)"]


def test_the_other_ranks_are_told_in_their_order_those_that_ended_in_order_too(run: RunDir) -> None:
    closing = "".join(f"W0101 api.py:1028] Sending process {pid} closing signal SIGTERM\n" for pid in (100, 102, 103))
    others = [block(0, 2, -15, 102), block(1, 3, -9, 103)]
    run.log.write_text(closing + summary(*others, root=block(0, 1, 7, 101)))
    beat(run, 0, step=4, phase="done", pid=100)
    beat(run, 1, step=3, pid=101)
    found = first_failure(run, 1, "here")
    assert (found.rank, found.exitcode, found.step) == (1, 7, 3)
    assert found.other_lines == [
        "rank 0: closed by torchrun, ended in order",
        "rank 2: closed by torchrun (SIGTERM)",
        "rank 3: closed by torchrun (SIGKILL)",
    ]


# --- the rank that raised, although it ended later ---

LOST = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:9"


def raised(error: str) -> str:
    """Return the traceback of an error."""
    return TRACEBACK.replace("RuntimeError: two lines\nthe second one", error)


RAISED = raised("ValueError: bad sample")
ECHOES = {
    "an exception": (1, LOST),
    "a stall": (1, "RuntimeError: [/gloo/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation"),
    "a store that waits": (1, "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /0//cpu//0/1"),
    "a barrier": (1, "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 1800000 ms\n Original"),
    "a pipe": (1, "BrokenPipeError: [Errno 32] Broken pipe"),
    "an exit after its words": (3, LOST),
    "an abort after its words": (-6, LOST),
    "an exit": (1, None),
    "an exit with another code": (3, None),
    "SIGSEGV": (-11, None),
    "SIGABRT": (-6, None),
    "SIGTERM": (-15, None),
}
"""Exit code and error of a rank that fails for the end of another one."""


def in_torch(text: str, rank: int) -> str:
    """Return a text as torch's hook for uncaught exceptions prints it."""
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def ended(run: RunDir, printed: dict[int, str], codes: dict[int, int], first: int, closed: tuple[int, ...]) -> Failure:
    """Lay out what torchrun leaves behind when its ranks printed this, and ended with these codes."""
    write_json(run.launch, {"launch": {"nproc_per_node": len(printed)}})
    for rank in range(1, len(printed)):
        log = run.ranks / "x" / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(printed[rank])
    closing = "".join(
        f"W0101 00:00:00.1 9 torch/distributed/elastic/x.py:1] Sending process {100 + rank} closing signal SIGTERM\n"
        for rank in closed
    )
    others = [block(rank, rank, code, 100 + rank) for rank, code in codes.items() if code and rank != first]
    run.log.write_text(printed[0] + closing + summary(*others, root=block(0, first, codes[first], 100 + first)))
    return first_failure(run, 1, "here")


@pytest.mark.promise("safety-echo")
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", ["uncaught", "recorded", "caught"])
@pytest.mark.parametrize("end", [-15, 0, 1])
@pytest.mark.parametrize("echo", ECHOES)
def test_the_exception_of_a_rank_that_is_slow_to_end_is_the_first_failure(
    run: RunDir, victim: int, how: str, end: int, echo: str
) -> None:
    code, error = ECHOES[echo]
    other = 1 - victim
    shown = {"uncaught": in_torch(RAISED, victim), "caught": f"went on\n{RAISED}bye\n", "recorded": ""}[how]
    noticed = in_torch(raised(error), other) if error else "step 3\n"
    if how == "recorded":
        path = run.ranks / "x" / "attempt_0" / str(victim) / "error.json"
        path.parent.mkdir(parents=True)
        content = {"message": "ValueError: bad sample", "extraInfo": {"py_callstack": RAISED}}
        path.write_text(json.dumps({"message": content}))
    found = ended(run, {victim: shown, other: noticed}, {victim: end, other: code}, other, (victim,))
    is_told = how != "caught" or error is not None or end == 1  # what a program printed may have been handled
    assert (found.rank == victim) == is_told
    if is_told:
        assert "ValueError: bad sample" in found.message
        assert (found.traceback or "").removesuffix("\nbye") == RAISED.rstrip()
        assert (found.log is not None) == (victim == 1 and how != "recorded")
        assert [one["rank"] for one in found.others] == [other]


@pytest.mark.parametrize(
    ("code", "noticed", "printed"),
    [
        (-9, None, in_torch(RAISED, 1)),  # killed from outside
        (1, "KeyError: 'x'", in_torch(RAISED, 1)),  # an exception of its own
        (1, "OSError: [Errno 28] No space left on device", in_torch(RAISED, 1)),
        (1, LOST, in_torch(raised("StopIteration"), 1)),  # handled, by a collective
        (1, LOST, in_torch(raised("KeyboardInterrupt"), 1)),
        (1, LOST, in_torch(raised(LOST), 1)),
        (1, LOST, RAISED + 200 * "step 12 loss 1.5\n"),  # survived
        (-11, None, RAISED),  # perhaps survived
        (1, LOST, "all is well\n"),
    ],
)
def test_a_failure_stays_the_first_where_no_other_rank_raised_before(
    run: RunDir, code: int, noticed: str | None, printed: str
) -> None:
    shown = in_torch(raised(noticed), 0) if noticed else ""
    found = ended(run, {0: shown, 1: printed}, {0: code, 1: -15}, 0, (1,))
    assert (found.rank, found.exitcode) == (0, code)


@pytest.mark.parametrize("how", ["not torchrun", "a chain"])
def test_an_exception_before_an_echo_is_found_in_a_shared_log_and_in_a_chain(run: RunDir, how: str) -> None:
    echo = raised(LOST)
    if how == "a chain":
        chain = f"{RAISED}\nDuring handling of the above exception, another exception occurred:\n\n{echo}"
        found = ended(run, {0: in_torch(echo, 0), 1: in_torch(chain, 1)}, {0: 1, 1: 1}, 1, ())
    else:
        write_json(run.launch, {"launch": {"torchrun": False}})
        run.log.write_text(in_torch(RAISED, 1) + in_torch(echo, 0))
        found = first_failure(run, 1, "here")
    assert (found.rank, found.message) == (1, "ValueError: bad sample")


@pytest.mark.promise("safety-echo")
@pytest.mark.parametrize(
    ("ranks", "codes", "closed", "words"),
    [
        (2, {0: 1}, (), "rank 1 ended first, with exit code 0, while rank 0 was in all_reduce ("),
        (4, {0: 1, 2: -15}, (2,), "ranks 1, 3 ended first, with exit code 0, while rank 0 was in all_reduce ("),
        (2, {0: 1, 1: -15}, (1,), "rank 1 left the process group, or ended, without an exception while rank 0 was in"),
        (2, {0: 1}, (1,), "rank 1 left the process group, or ended, without an exception while rank 0 was in all_re"),
        (3, {0: 1, 1: -15, 2: -15}, (1, 2), "one of ranks 1, 2 left the process group, or ended, without an exc"),
    ],
)
@pytest.mark.parametrize("error", [LOST, ECHOES["a stall"][1]], ids=["lost", "a stall"])
def test_a_rank_that_ended_in_order_while_another_waited_is_named(
    run: RunDir, ranks: int, codes: dict[int, int], closed: tuple[int, ...], words: str, error: str
) -> None:
    frame = '  File "/e/torch/distributed/distributed_c10d.py", line 3252, in all_reduce\n    work.wait()\n'
    found = ended(run, {0: in_torch(raised(frame + error), 0), **dict.fromkeys(range(1, ranks), "")}, codes, 0, closed)
    is_told = error == LOST or "ended first" in words  # a rank that others wait for may hang
    assert found.message.startswith(words if is_told else "waited 8 s for another rank")
    assert ("batches" in (found.advice or "")) == is_told


# --- how far, and where -------------------------------------------------------------------------------


def test_the_last_step_and_loss_come_from_the_heartbeat_and_the_metrics(run: RunDir) -> None:
    assert failed_with(run, code=7, rank=1).progress == ""
    rows = [{"step": 1200, "train/loss": 2.3456}, {"step": 1240, "eval/loss": 9.0}]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 12')
    assert first_failure(run, 1, "here").progress == "last step 1,240, train/loss 2.346"
    beat(run, 1, step=1243)
    assert first_failure(run, 1, "here").step == 1243
    run.metrics.write_text('{"step": 1, "loss": "NaN"}\n')
    assert first_failure(run, 1, "here").progress == "last step 1,243, train/loss nan"


# --- causes in words ----------------------------------------------------------------------------------

TIMED_OUT = "RuntimeError: [/pytorch/gloo/unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation"


@pytest.mark.promise("guide-A14", "guide-G11")
def test_a_timeout_names_the_rank_that_was_waited_for(run: RunDir) -> None:
    assert failed_with(run, TIMED_OUT).message == f"waited 10 min for another rank ({TIMED_OUT})"
    for rank, (step, phase) in enumerate([(40, "backward"), (40, "backward"), (40, "forward"), (41, "data")]):
        beat(run, rank, step=step, phase=phase)
    found = first_failure(run, 1, "h")
    assert found.message == f"waited 10 min for rank 2, which was in forward at step 40 ({TIMED_OUT})"
    assert "collective_timeout_min" in (found.advice or "")


def memory_row(share: float | None) -> str:
    total = 2**40
    used = {} if share is None else {"memory_used_bytes": int(share * total), "memory_total_bytes": total}
    return json.dumps({"time": time.time(), "gpus": [], **used}) + "\n"


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([], "from outside (kill -9,"),
        ([None], "from outside (kill -9,"),
        ([0.5, 0.89], "from outside (kill -9,"),
        ([0.5, 0.96, 0.4], "most likely the host ran out of memory: 983.0 of 1024.0 GiB in use"),
        ([0.96] + 30 * [0.4], "from outside (kill -9,"),  # long ago
    ],
)
def test_a_kill_is_the_hosts_lack_of_memory_only_where_memory_was_short(
    run: RunDir, shares: list[float | None], words: str
) -> None:
    run.system.write_text("".join(map(memory_row, shares)))
    assert failed_with(run, code=-9).message.startswith(f"killed by SIGKILL: {words}")
    assert ("most likely" in first_failure(run, -9, "h").message) == ("most likely" in words)  # the agent itself


def test_a_killed_loader_worker_is_a_matter_of_memory_too(run: RunDir) -> None:
    error = "RuntimeError: DataLoader worker (pid 8210) is killed by signal: Killed. "
    assert failed_with(run, error).message.startswith("a DataLoader worker died (RuntimeError")
    run.system.write_text(memory_row(0.96))
    assert "died: most likely the host ran out of memory: 983.0 of" in first_failure(run, 1, "h").message


BROKEN_CONNECTION = """\
Traceback (most recent call last):
  File "/p/scripts/toy.py", line 16, in <module>
    for batch in loader:
  File "/e/site-packages/torch/utils/data/dataloader.py", line 1291, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 395, in _recv
    chunk = read(handle, remaining)
ConnectionResetError: [Errno 104] Connection reset by peer
"""


CUT = """\
Traceback (most recent call last):
  File "/p/scripts/toy.py", line 16, in <module>
    for batch in loader:
  File "/e/site-packages/torch/utils/data/dataloader.py", line 725, in __next__
    data = self._next_data()

EOFError()
"""
"""As seen on a machine under load: torch's handler of SIGCHLD raised while Python printed the traceback."""


RESET = CUT.replace("EOFError()", "ConnectionResetError(104, 'Connection reset by peer')")


@pytest.mark.parametrize("traceback", [BROKEN_CONNECTION, CUT, RESET], ids=["whole", "cut", "cut reset"])
def test_a_loader_workers_death_is_told_also_where_torch_noticed_only_its_connection(
    run: RunDir, traceback: str
) -> None:
    error = traceback.splitlines()[-1]
    found = failed_with(run, error, traceback=traceback)
    assert found.message == f"a DataLoader worker died ({error})"
    assert found.where == "/p/scripts/toy.py:16 in <module>: for batch in loader:"


UNGUARDED = """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("{}")) as pool:
    pool.submit(abs, 1).result()
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_script_that_its_own_processes_run_again_lacks_the_guard(run: RunDir, method: str, is_recorded: bool) -> None:
    script = run.path / "unguarded.py"
    script.write_text(UNGUARDED.format(method))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    error = "concurrent.futures.process.BrokenProcessPool: A process"
    told = error_file(run, error) if is_recorded else "<N/A>"
    run.log.write_text(done.stderr + summary(root=block(0, 0, 1, 100, told)))
    found = first_failure(run, 1, "h")
    assert found.message.startswith('the script has no if __name__ == "__main__":, and a process that it started ran')


def test_a_semaphore_without_room_is_a_matter_of_shared_memory(run: RunDir) -> None:
    traceback = TRACEBACK.replace('raise RuntimeError("two lines")', "sl = self._semlock = _multiprocessing.SemLock(")
    found = failed_with(run, "OSError: [Errno 28] No space left on device", traceback=traceback)
    assert found.message.startswith("shared memory (/dev/shm) ran out (")


def test_what_was_killed_is_the_program_where_the_run_directory_is_away(tmp_path: Path) -> None:
    said = first_failure(RunDir(tmp_path / "gone"), -9, "h").message
    assert said.startswith("the program was killed by SIGKILL: from outside")


# --- real faults --------------------------------------------------------------------------------------


def failed(run: Run, timeout_s: float = 300) -> Failure:
    assert run.wait(timeout_s=timeout_s, check=False) is RunState.FAILED
    assert run.failure is not None
    return run.failure


@pytest.mark.promise("safety-echo")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_as_the_kernel_does_it_without_memory_is_told_as_that(supervised: Start, victim: int) -> None:
    run = supervised(*agent(TRAINER))
    at_step(run, 3)
    with run.files.system.open("a") as file:
        file.write(memory_row(0.95))
    processes_of(run)[str(victim)].kill()
    found = failed(run)
    assert (found.rank, found.exitcode, found.signal) == (victim, -9, "SIGKILL")
    assert found.host and [other["rank"] for other in found.others] == [1 - victim]
    assert found.step == next(beat.step for beat in read_heartbeats(run.files) if beat.rank == victim)
    eventually(lambda: not members(run.files))
    assert found.message.startswith(f"killed by SIGKILL at step {found.step}: most likely the host ran out of memory: ")
    assert "batch_size" in (found.advice or "")
    assert found.loss == run.metrics["train/loss"]
    with pytest.raises(RunFailed) as error:
        run.wait()
    assert all(part in str(error.value) for part in (*found.lines[:2], str(run.files.log)))


CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x1 (most recent call first):
  File "/p/scripts/dies.py", line 5 in train
"""


@pytest.mark.parametrize(
    ("name", "words", "is_told"),
    [
        ("SIGSEGV", ": a segmentation fault in native code", True),
        ("SIGABRT", ": aborted by native code", True),
        ("SIGTERM", ": asked to end from outside", False),
        ("SIGUSR1", "", False),
    ],
)
def test_signals_are_told_apart_in_words_with_the_line_where_python_knows_it(
    run: RunDir, name: str, words: str, is_told: bool
) -> None:
    code = -signal.Signals[name]
    run.log.write_text((CRASH if is_told else "") + summary(root=block(0, 0, code, 100)))
    found = first_failure(run, 1, "h")
    assert (found.signal, found.exitcode) == (name, code)
    assert found.message.startswith(f"killed by {name}{words}")
    assert (found.where, found.traceback is not None) == (
        ("/p/scripts/dies.py:5 in train", True) if is_told else (None, False)
    )


PEERS = """\
import atexit, datetime, os, sys, time
import torch
import torch.distributed as dist
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.json_files import write_json

def tell(step, phase):
    content = {"rank": rank, "pid": os.getpid(), "host": "h", "step": step, "phase": phase, "time": time.time()}
    write_json(RunDir(os.environ["NBTOOLS_RUN_DIR"]).heartbeat(rank), content)

def train(fault):
    for step in range(6):
        tell(step, "forward")
        if rank == 1 and step == 3:
            if fault == "hangs":
                time.sleep(600)
            elif fault == "leaves":
                os._exit(0)
            atexit.register(time.sleep, 60)
            raise ValueError("bad sample")
        tell(step, "collective")
        dist.all_reduce(torch.ones(4), group=group)

dist.init_process_group("gloo")
dist.barrier()
group = dist.new_group(timeout=datetime.timedelta(seconds=8))
rank = dist.get_rank()
train(sys.argv[1])
"""


@pytest.mark.promise("fault-24", "safety-echo")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rank", "words", "where"),
    [
        ("hangs", 0, "waited 8 s for rank 1, which was in forward at step 3 (", "dist.all_reduce(torch.ones(4), group"),
        ("leaves", 0, "rank 1 ended first, with exit code 0, while rank 0 was in all_reduce", "dist.all_reduce(torch"),
        ("raises", 1, "ValueError: bad sample", 'raise ValueError("bad sample")'),
    ],
)
def test_torchrun_what_happened_to_one_of_two_real_ranks_is_told_in_words(
    project: Project, fault: str, rank: int, words: str, where: str
) -> None:
    script = project.scripts / "peers.py"
    script.write_text(PEERS)
    run = nt.launch(script, nproc_per_node=2, gpus=(), args=[fault])
    found = failed(run)
    assert (found.rank, found.step) == (rank, 3)
    assert found.message.startswith(words)
    assert re.match(rf"scripts/peers.py:\d+ in train: {re.escape(where)}", found.where or "")
    assert (found.traceback or "").startswith("Traceback")
    assert (found.advice is None) == (fault == "raises")
    assert [other["rank"] for other in found.others] == ([] if fault == "leaves" else [1 - rank])
    assert (found.log is None) == (rank == 0)
    eventually(lambda: not members(run.files))


def test_a_script_that_was_started_by_hand_tells_the_same_of_its_own_end(run: RunDir) -> None:
    from nbtools.training.process.device import failure_of

    beat(run, 0, step=7)
    try:
        raise MemoryError("no room")
    except MemoryError as error:
        found = failure_of(error, 0, run)
    assert (found.rank, found.step) == (0, 7)
    assert found.message == "the process could get no more memory (MemoryError: no room)"
    assert (found.where or "").endswith('raise MemoryError("no room")')
    echo = failure_of(RuntimeError("Connection closed by peer [127.0.0.1]:1"), 0, run)
    assert (echo.rank, echo.exitcode) == (None, None)
    assert echo.headline.startswith("another rank was lost (RuntimeError: Connection closed")


# --- how it is shown ----------------------------------------------------------------------------------

SHOWN = Failure(
    *(1, "node7", 1, None, "the GPU ran out of memory (torch.OutOfMemoryError)", "Traceback…\n  deep\nthe error"),
    where="scripts/toy.py:33 in train: loss.backward()",
    advice="Lower batch_size.",
    step=1240,
    loss=2.3456,
    others=[{"rank": 0, "exitcode": -15, "signal": "SIGTERM", "message": "closed by torchrun"}],
)


def test_the_card_shows_the_frame_first_and_folds_the_traceback_and_the_other_ranks() -> None:
    shown = html.failure(SHOWN, "/r/rank0.log")
    parts = [
        *("<b style='font-size:15px'>the GPU ran out of memory", "rank 1 on node7"),
        *("at scripts/toy.py:33 in train: loss.backward()", "last step 1,240, train/loss 2.346"),
        *("Lower batch_size.", "traceback</summary>", "  deep\nthe error"),
        *("1 other rank</summary>", "rank 0: closed by torchrun", "log: /r/rank0.log"),
    ]
    page, _, copied = shown.partition("<button")
    places = [page.find(part) for part in parts[:-1]]
    places.append(shown.rfind(parts[-1]))
    assert "rank 1 on node7: the GPU ran out of memory" in copied
    assert -1 not in places
    assert places == sorted(places)
    assert shown.count("<details>") == 2  # closed


def test_the_card_shows_what_others_wrote_literally() -> None:
    hostile = "<img src=x onerror=alert(1)>'\"\u202e"
    other = {"rank": hostile, "message": hostile}
    shown = html.failure(Failure(1, hostile, 1, None, hostile, hostile, hostile, hostile, 1, 1.0, [other]), hostile)
    assert "<img" not in shown
    assert "\u202e" not in shown
    card, copied, rest = re.split(r"data-copy='([^']*)'", shown)
    assert (card + rest).count(literal(hostile)) == 8
    assert copied.count(literal(hostile)) == 6


def test_the_terminal_shows_the_same_with_the_traceback_last(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir.create(project.runs, "toy")
    write_json(run.launch, {"name": "toy", "script": "/p/toy.py"})
    run.lock.touch()
    write_json(run.exit, {"returncode": 1, "stopped": False, "failure": SHOWN.to_json(), "time": 1.0})
    summary = Run(run.path).summary()
    assert summary["failure"] == SHOWN.to_json()
    print_run(summary)
    assert capsys.readouterr().out.endswith("""
rank 1 on node7: the GPU ran out of memory (torch.OutOfMemoryError)
  at scripts/toy.py:33 in train: loss.backward()
  last step 1,240, train/loss 2.346
  what to do: Lower batch_size.
  rank 0: closed by torchrun

Traceback…
  deep
the error
""")
