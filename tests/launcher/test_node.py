"""Several machines in one run: here all of them are this one, which needs no other port or folder."""

import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Cli, Configs, MonkeyPatch
from waiting import eventually

from nbtools.config import Launch
from nbtools.errors import ConfigError, LaunchError
from nbtools.failures.failure import Failure, explained, first_failure
from nbtools.launcher.launch import launch
from nbtools.launcher.node import run_node
from nbtools.launcher.placement import check_host_name, place
from nbtools.machine import network
from nbtools.notebook.panel.snapshot import notes_of
from nbtools.project import Project
from nbtools.run.records import Records
from nbtools.run.run import Run
from nbtools.run.state import RunState, commands_to_join, state_of, waiting_for
from nbtools.run.stop import left_behind, other_machines
from nbtools.rundir import machines
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir
from nbtools.script.compat.shell import shell_text
from nbtools.script.script import read_script, write_script
from nbtools.script.torchrun import Meeting

MEETING = Meeting("10.0.0.1", 4711)


def test_each_machine_has_its_number_and_all_one_meeting_point() -> None:
    two = place(Launch(nproc_per_node=2, nnodes=2, gpus=()), MEETING)
    first, second = (two.command(["a.py"], Path("/r"), (), node) for node in (0, 1))
    common = {"--nnodes=2", "--nproc-per-node=2", "--master-addr=10.0.0.1", "--master-port=4711", "--max-restarts=0"}
    assert common < set(first) & set(second)
    assert {"--node-rank=0", "--log-dir=/r/ranks", "--redirects=1:3"} < set(first)
    assert {"--node-rank=1", "--log-dir=/r/ranks/node1", "--redirects=3"} < set(second)


def test_the_logs_of_a_rank_are_found_on_its_machine(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    write_json(run.launch, {"launch": {"nproc_per_node": 2, "nnodes": 2}})
    for folder, local_rank in ((run.ranks, 1), (run.ranks / "node1", 0), (run.ranks / "node1", 1)):
        log = folder / "id_x" / "attempt_0" / str(local_rank) / "stdout.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"{folder.name} {local_rank}")
    assert [run.rank_logs(rank)[0].read_text() for rank in (1, 2, 3)] == ["ranks 1", "node1 0", "node1 1"]


def test_a_restart_that_would_reach_one_machine_only_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_restarts=2 with nnodes=2: .*resume the run"):
        Launch(nnodes=2, max_restarts=2)
    assert Launch(nproc_per_node=4, nnodes=3).world_size == 12


def test_a_script_says_how_to_start_machines_by_hand(project: Project, tiny_config: Configs) -> None:
    path = write_script(tiny_config(), "two", Launch(nproc_per_node=4, nnodes=2), project=project)
    assert read_script(path).launch.nnodes == 2
    assert "2 machines x 4 processes" in path.read_text()
    assert "torchrun --nnodes=2 --node-rank=NODE --master-addr=ADDRESS" in path.read_text()
    text = shell_text("two", Launch(nnodes=2), "mlm_pretraining")
    assert '"--node-rank=${NODE_RANK:?' in text and '"--master-addr=${MASTER_ADDR:?' in text
    refused = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False, cwd=project.root)
    assert refused.returncode != 0 and "NODE_RANK: set it to the number of this machine" in refused.stderr


# --- where machines meet ----------------------------------------------------------------------------


def test_the_meeting_point_is_of_the_environment_or_this_machine(monkeypatch: MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(network, "_ELSEWHERE", "127.0.0.1")  # a machine without a default route
    addresses = [("lo", "127.0.0.1"), ("eth0", "172.16.0.2"), ("ib0", "10.1.0.7")]
    monkeypatch.setattr(network, "_addresses", lambda: addresses)
    address, port = network.meeting_point()
    assert address == "172.16.0.2" and 1024 <= port < 65536
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert network.meeting_point()[0] == "10.1.0.7"
    monkeypatch.setenv("MASTER_ADDR", "head")
    monkeypatch.setenv("MASTER_PORT", "12355")
    assert network.meeting_point() == ("head", 12355)
    assert network.interface_towards("localhost") == "eth0", "the loopback address of the own name"
    addresses[1:] = []
    assert network.interface_towards("localhost") is None
    for wrong in ("localhost", "127.0.0.1"):
        monkeypatch.setenv("MASTER_ADDR", wrong)
        with pytest.raises(LaunchError, match=f"MASTER_ADDR='{wrong}': not an address .* that others reach"):
            network.meeting_point()


@pytest.mark.parametrize("port", ["0", "x", "70000", "-1", ""])
def test_a_port_that_is_none_is_refused(monkeypatch: MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(LaunchError, match=r"MASTER_PORT=.*must be a number from 1 to 65535"):
        network.meeting_point()


def test_a_machine_uses_the_interface_that_leads_to_the_first(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(network, "interface_towards", lambda _: "ib0")
    placed = place(Launch(nproc_per_node=2, nnodes=2, gpus=()), MEETING)
    assert placed.meeting == MEETING and placed.environment["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "2, rendezvous at 10.0.0.1:4711 (ib0)" in str(placed.findings[0])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert "GLOO_SOCKET_IFNAME" not in place(Launch(nnodes=2, gpus=()), MEETING).environment, "the user's stays"


# --- a machine that cannot join ----------------------------------------------------------------------


@pytest.fixture
def two(project: Project) -> RunDir:
    """A run of two machines whose supervisor seems to run."""
    run = RunDir.create(project.runs, "two")
    run.script.write_text("")
    run.log.touch()
    settings = Launch(nnodes=2, gpus=()).model_dump(mode="json")
    plan = {"launch": settings, "meeting": ["10.0.0.1", 4711], "cwd": str(project.root), "target": [str(run.script)]}
    write_json(run.launch, {**plan, "recipe": "mlm_pretraining", "root": str(project.root), "flock": False})
    write_json(run.process, {"role": "supervisor", **ProcessIdentity.of(1).to_json()})
    return run


@pytest.mark.parametrize(
    ("change", "node", "said"),
    [
        (lambda run: None, 2, r"--node 2: .* has 2 machines; give 1 to 1"),
        (lambda run: write_json(run.exit, {"returncode": 1, "failure": None}), 1, "is FAILED; launch or resume it"),
        (lambda run: write_json(run.launch, {"launch": {"nnodes": 1}, "flock": False}), 1, "cannot be used .*meeting"),
        (lambda run: run.script.unlink(), 1, "script.py: not on .*under one path"),
        (
            lambda run: write_json(run.node_record(1), {"pid": 7, "start_time": 1.0, "boot_id": "b", "host": "other"}),
            1,
            r"machine 1 of .* is other already \(process 7\); if that process has ended, remove .*node1.json",
        ),
    ],
)
def test_a_machine_that_cannot_join_says_so(
    two: RunDir, change: Callable[[RunDir], None], node: int, said: str
) -> None:
    change(two)
    with pytest.raises(LaunchError, match=said):
        run_node(two.path, node)


def test_a_machine_that_does_not_see_the_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=rf"no run directory on {socket.gethostname()}; all machines need .*shared"):
        run_node(tmp_path / "runs" / "x", 1)


# --- real ranks ---------------------------------------------------------------------------------------


def joined(run: Run) -> "subprocess.Popen[str]":
    """Start machine 1 with the command that the run says."""
    (command,) = run.info["join"]
    eventually(lambda: waiting_for(run.records))  # the supervisor is being started
    assert waiting_for(run.records) == "waiting for machine 1"
    assert run.summary()["join"] == {"1": command} and notes_of(run, []) == [f"run on machine 1: {command}"]
    return subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, text=True)


@pytest.mark.promise("guide-L12", "guide-O10")
@pytest.mark.slow
def test_two_machines_train_as_one(texts: Project, tiny_config: Configs) -> None:
    script = write_script(tiny_config(max_steps=3), "tiny", Launch(nnodes=2, gpus=()), project=texts)
    run = launch(script)
    machine = joined(run)
    said, _ = machine.communicate(timeout=300)
    assert run.wait(60) is RunState.SUCCEEDED
    assert machine.returncode == 0 and said.startswith(f"machine 1 of {run.id}: joins at ")
    assert (run.config or {})["derived"]["world_size"] == 2 and run.step == 3
    assert [rank["rank"] for rank in run.summary()["ranks"]] == [0, 1]
    record = read_json(run.files.node_record(1)) or {}
    assert (record["host"], record["returncode"], record["stopping"]) == (socket.gethostname(), 0, False)
    assert waiting_for(run.records) == ""


MEETS = """
import torch
from torch.distributed import all_reduce, barrier, destroy_process_group, init_process_group

init_process_group("gloo")
ranks = torch.ones(1)
all_reduce(ranks)
print("met", int(ranks), flush=True)
barrier()
destroy_process_group()
"""


@pytest.fixture
def meets(project: Project) -> Path:
    """A program whose ranks meet and count each other."""
    path = project.scripts / "meets.py"
    path.write_text(MEETS)
    return path


NAMELESS = """
ip link set lo up; hostname nameless
for file in hosts resolv.conf; do mount --bind /dev/null /etc/$file; done
exec "$0" -P -m nbtools launch "$@"
"""
"""The beginning of a command on a machine without network whose own name, and `localhost`, have no address."""


@pytest.mark.needs("network namespaces")
@pytest.mark.promise("safety-nameless-machine")
@pytest.mark.slow
def test_ranks_on_one_machine_meet_although_its_name_has_no_address(project: Project, meets: Path) -> None:
    command = ["unshare", "--net", "--uts", "--mount", "sh", "-ec", NAMELESS, sys.executable, meets]
    command += ["--nproc-per-node", "2", "--gpus", "none"]
    checked = subprocess.run([*command, "--dry-run"], check=True, capture_output=True, text=True)
    assert "nameless, the name of this machine, has no address" in checked.stdout
    run = Run(project.runs / subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    assert run.wait(180) is RunState.SUCCEEDED
    assert "met 2" in run.log()


@pytest.mark.promise("safety-nameless-machine")
@pytest.mark.parametrize(
    ("settings", "level", "step"),
    [
        ({}, "ok", "runs on one machine need none, torchrun by hand needs --local-addr=127.0.0.1"),
        ({"nnodes": 2}, "warn", "add it to /etc/hosts on all 2 machines"),
        ({"torchrun": False}, None, ""),
    ],
)
def test_a_machine_whose_name_has_no_address_is_a_finding_of_the_launch(
    settings: dict[str, Any], level: str | None, step: str, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "nameless.invalid")
    found = list(check_host_name(Launch(**settings)))
    assert [finding.level for finding in found] == ([] if level is None else [level])
    assert all(step in str(finding) for finding in found)


FAILS = """
import os, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("a shard of machine 1 is damaged")
    time.sleep(600)

main()
"""
ENDS_EARLY = """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(2)
    raise ValueError("late")
"""
"""torchrun waits on the first machine for the other agents for minutes, deaf to signals."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "timeout_s", "message"),
    [(FAILS, 5, ": ValueError: a shard of machine 1 is damaged"), (ENDS_EARLY, 60, "late")],
    ids=["both run", "the first has ended"],
)
def test_a_failure_on_a_machine_ends_the_run(project: Project, program: str, timeout_s: int, message: str) -> None:
    script = project.scripts / "fails.py"
    script.write_text(program)
    run = launch(script, gpus=(), nnodes=2, shutdown_timeout_s=timeout_s)
    machine = joined(run)
    machine.communicate(timeout=300)
    assert machine.returncode == 1
    assert run.wait(50, check=False) is RunState.FAILED
    failure = run.failure
    assert failure is not None and failure.rank == 1
    assert failure.headline.startswith(f"rank 1 on {socket.gethostname()}: ")
    assert failure.headline.endswith(message)


@pytest.mark.slow
def test_a_stop_before_the_other_machine_has_joined_leaves_nothing(project: Project) -> None:
    script = project.scripts / "waits.py"
    script.write_text("import time; time.sleep(600)  # whatever its RANK is")
    run = launch(script, gpus=(), nnodes=2, shutdown_timeout_s=5)
    eventually(run.files.log.exists)
    run.stop()
    assert run.state is RunState.STOPPED and not left_behind(run.records)
    command = [sys.executable, "-P", "-m", "nbtools", "launch", str(run.dir), "--node", "1"]
    late = subprocess.run(command, capture_output=True, text=True, check=False)
    assert late.returncode == 2 and "is STOPPED; launch or resume it first" in late.stderr


STOPS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open(os.path.join(os.environ["NBTOOLS_RUN_DIR"], "rank" + os.environ["RANK"]), "w").close()
time.sleep(600)
"""


@pytest.mark.slow
def test_ctrl_c_on_another_machine_leaves_no_process_there(project: Project) -> None:
    script = project.scripts / "stops.py"
    script.write_text(STOPS)
    run = launch(script, gpus=(), nnodes=2, shutdown_timeout_s=5)
    machine = joined(run)
    eventually((run.dir / "rank1").exists)
    machine.send_signal(signal.SIGINT)
    machine.communicate(timeout=300)
    assert run.wait(60, check=False) is RunState.STOPPED
    record = read_json(run.files.node_record(1)) or {}
    assert record["stopping"] is True and "returncode" in record
    assert other_machines(run.records) == [f"machine 1 ({socket.gethostname()}) ended"]
    assert not left_behind(run.records)


def test_a_machine_that_ended_before_all_have_met_is_missing_again(two: RunDir) -> None:
    records = Records(two)
    assert list(commands_to_join(records)) == [1]
    machines.write_record(two, 1, returncode=1)
    assert list(commands_to_join(records)) == [1]
    (two.node_logs(1) / "id" / "attempt_0").mkdir(parents=True)
    assert commands_to_join(records) == {} and other_machines(records)[0].endswith("ended")


def test_a_command_from_the_files_of_a_run_is_never_shown(two: RunDir) -> None:
    write_json(two.launch, {**(read_json(two.launch) or {}), "join": ["rm -rf ~"] * 500_000})
    (command,) = commands_to_join(Records(two)).values()
    assert shlex.split(command) == [sys.executable, "-P", "-m", "nbtools", "launch", str(two.path), "--node", "1"]


def test_a_run_that_only_its_first_machine_can_see_running_is_joined(two: RunDir) -> None:
    """Where locks do not reach other machines, the run looks LOST from them."""
    write_json(two.process, {"role": "supervisor", "pid": 1, "start_time": 1.0, "boot_id": "b", "host": "first"})
    assert state_of(Records(two)) is RunState.LOST
    two.script.unlink()
    with pytest.raises(LaunchError, match=r"script\.py: not on"):  # it came that far
        run_node(two.path, 1)


def test_a_failure_of_torchrun_on_another_machine_is_named(two: RunDir) -> None:
    (two.node_logs(1) / "id" / "attempt_0").mkdir(parents=True)
    two.node_output(1).write_text("RuntimeError: no route to the first machine\n")
    machines.write_record(two, 1, returncode=1)
    failure = first_failure(two, -9, "first")
    assert failure.message.startswith("machine 1 ended with code 1") and failure.host == socket.gethostname()


def test_a_time_out_on_one_machine_says_nothing_of_others(two: RunDir) -> None:
    message = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."
    failure = Failure(0, "h", 1, None, message)
    assert explained(failure, two).message.startswith("the rendezvous of the run's machines failed")
    write_json(two.launch, {"launch": {"nproc_per_node": 2}})
    assert explained(failure, two).message.startswith("waited ")


def test_other_options_are_refused_beside_the_number_of_a_machine(cli: Cli) -> None:
    for option, name in ((["--dry-run"], "dry_run"), (["--python", "env"], "python")):
        refused = cli("launch", "runs/x", "--node", "1", *option, code=2).stderr
        assert f"--node: goes with --gpus only, not with {name}" in refused
