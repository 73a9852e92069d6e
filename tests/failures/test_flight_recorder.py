"""Torch's record of collectives: dumps that torch itself wrote, in which ranks stand at different places."""

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from nbtools.failures.failure import first_failure
from nbtools.failures.flight_recorder import recorder_variables, stuck_collective
from nbtools.project import Project
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

from capabilities import ANOTHER_UID
from trainings import ByHand

WAITS = """
import datetime, os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
for _ in range(2):
    dist.all_reduce(torch.ones(3, 4))
try:
    if rank == 0:
        dist.all_reduce(torch.ones(5))
    else:
        store.wait(["rank 0 has given up"], datetime.timedelta(seconds=60))
except RuntimeError as error:
    assert "Timed out" in str(error)
with open(f"{sys.argv[1]}{rank}", "wb") as file:
    file.write(torch._C._distributed_c10d._dump_fr_trace())
store.set("rank 0 has given up", "")
if rank == 0:
    store.wait(["rank 1 has, too"], datetime.timedelta(seconds=60))
store.set("rank 1 has, too", "")
os._exit(0)
"""
"""Writes what torch dumps when a collective of NCCL times out; gloo records the same, but dumps nothing by itself."""
WATCHDOG = (
    "[rank0]:[E1121 13:00:00.1 ProcessGroupNCCL.cpp:633] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600028 milliseconds before timing out.\n"
)
SUMMARY = """Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 100)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 100
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a run directory with the dumps of two ranks, of which rank 1 lacks a call."""
    run = RunDir(tmp_path_factory.mktemp("run"))
    run.ranks.mkdir()
    run.script.write_text(WAITS)
    codes, said = ByHand(Project(run.path)).ended(run.script, run.collectives)
    assert codes == [0, 0], said
    return run


@pytest.fixture
def run(written: RunDir, tmp_path: Path) -> RunDir:
    return RunDir(shutil.copytree(written.path, tmp_path / "r"))


def dump(run: RunDir, rank: int) -> Path:
    return Path(f"{run.collectives}{rank}")


def rewrite(run: RunDir, rank: int, **changes: Any) -> None:
    """Write a rank's dump with changed values, and the entries as NCCL has them: a call has ended, or has not."""
    content = pickle.loads(dump(run, 0).read_bytes())
    content["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    for entry in content["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("gloo", "nccl")
        has_ended = entry["collective_seq_id"] < changes.get("open_from", 3)
        entry |= {"state": "completed" if has_ended else "scheduled", "retired": has_ended, **changes.get("entry", {})}
    dump(run, rank).write_bytes(pickle.dumps(content))


def test_the_dumps_name_the_collective_and_the_rank_that_did_not_come(run: RunDir) -> None:
    found = stuck_collective(run)
    assert found is not None
    assert (str(found), found.missing) == ("all_reduce of [5] (collective 3)", (1,))


@pytest.mark.promise("safety-collective")
def test_the_failure_of_a_timeout_names_collective_node_and_rank(run: RunDir) -> None:
    run.log.write_text(WATCHDOG + SUMMARY)
    for rank, phase in enumerate(("collective", "data")):
        beat = {"rank": rank, "pid": 1, "host": f"n{rank + 1}", "step": 40, "phase": phase, "time": 5.0}
        write_json(run.heartbeat(rank), beat)
    assert first_failure(run, 1, "n1").message == (
        "killed by SIGABRT at step 40: waited 10 min in all_reduce of [5] (collective 3) for rank 1 on n2, which was "
        "in data at step 40"
    )


def test_ranks_without_a_dump_are_those_that_did_not_come(run: RunDir) -> None:
    dump(run, 1).unlink()
    rewrite(run, 0, open_from=2)
    found = stuck_collective(run)
    assert found is not None
    assert (found.first.call, found.first.number, found.missing) == ("all_reduce of [3, 4]", 2, (1, 2))


def test_a_rank_that_called_another_collective_in_its_place_is_named(run: RunDir) -> None:
    rewrite(run, 1, entry={"profiling_name": "nccl:broadcast", "input_sizes": [[7]]})
    rewrite(run, 2)
    rewrite(run, 0)
    found = stuck_collective(run)
    assert found is not None
    assert found.missing == ()
    assert str(found) == "all_reduce of [5] (collective 3, where rank 1 called broadcast of [7])"


def test_ranks_at_the_same_place_are_not_stuck(run: RunDir) -> None:
    for rank in (2, 1, 0):
        rewrite(run, rank, open_from=9)
    assert stuck_collective(run) is None


class _Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made by a pickle",)


def test_a_dump_with_code_or_damage_is_not_read(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path)
    whole = dump(run, 0).read_bytes()
    for content in (pickle.dumps({"entries": [_Code()]}), whole[:-30], b"", b"[]", pickle.dumps([1]), b"\x80\x02Q."):
        dump(run, 0).write_bytes(content)
        assert stuck_collective(run) is None
    assert not Path("made by a pickle").exists()
    dump(run, 0).unlink()
    os.mkfifo(dump(run, 0))
    assert stuck_collective(run) is None


@pytest.mark.needs("another user")
def test_a_dump_of_another_user_is_not_read(run: RunDir) -> None:
    os.chown(dump(run, 0), ANOTHER_UID, ANOTHER_UID)
    assert stuck_collective(run) is None


def test_torchs_names_for_the_variables_follow_its_version_and_the_users_own_stay() -> None:
    run = RunDir(Path("/r"))
    prefix = "/r/ranks/nccl_trace_rank_"
    before = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix}
    now = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": prefix}
    on_timeout = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    assert recorder_variables(run, {}, "2.4.1+cu121") == {**before, **on_timeout}
    assert recorder_variables(run, {}, "2.13.0a0+git1") == {**now, **on_timeout}
    assert (
        recorder_variables(run, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/x"}, "2.13")
        == on_timeout
    )
