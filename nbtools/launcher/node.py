"""The part of a run on a machine other than its first: torchrun in the foreground, with the run's own command.

`nbtools launch RUN_DIR --node N` runs there. It sees the run directory on a shared disk, and ends when the run ends.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtools.config import Launch
from nbtools.errors import ConfigError, LaunchError
from nbtools.launcher.placement import Placement, child_environment, place
from nbtools.launcher.supervisor import Supervisor, adopt_orphans
from nbtools.machine.interpreter import Interpreter, interpreter_for
from nbtools.run.records import Records, mapping_at
from nbtools.run.state import RunState, state_of
from nbtools.rundir import machines, secret_values
from nbtools.rundir.json_files import read_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir, foreign_owner, is_run, marks_of
from nbtools.script.torchrun import Meeting

_LOOK_EVERY_S = 1.0


def run_node(folder: str | Path, node: int, *, gpus: Sequence[int] | None = None) -> int:
    """Run the processes of machine `node` of a launched run until they end, and return torchrun's exit code.

    Args:
        folder: the run directory, under the path that it has here.
        node: number of this machine, from 1.
        gpus: GPU indices on this machine; `()` for the CPU; None for the same ones as on the first.

    Raises:
        LaunchError: the run directory or the machine's GPUs are not there, the run has ended, or the machine has
            joined.
    """
    run = joinable(Path(folder), node)
    plan = secret_values.restored(run, read_json(run.launch) or {})
    try:
        launch = Launch(**mapping_at(plan, "launch"))
        address, port = plan["meeting"]
        meeting = Meeting(str(address), int(port))
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise LaunchError(f"{run.launch}: cannot be used ({error}); launch the run again with --nnodes") from None
    if not 0 < node < launch.nnodes:
        raise LaunchError(f"--node {node}: {run.id} has {launch.nnodes} machines; give 1 to {launch.nnodes - 1}")
    is_on_cpu = not mapping_at(plan, "env").get("CUDA_VISIBLE_DEVICES")
    chosen = () if is_on_cpu else launch.gpus if gpus is None else tuple(gpus)
    placement = place(launch.replace(omp_num_threads=None, gpus=chosen), meeting, interpreter_of(plan))
    if not is_on_cpu and not placement.gpus:
        raise LaunchError(
            f"{socket.gethostname()} has no GPU, and {run.id} runs on GPUs; join from a machine with GPUs"
        )
    return run_part(run, node, plan, placement)


def run_part(
    run: RunDir, node: int, plan: Mapping[str, Any], placement: Placement, *, attempt: int | None = None
) -> int:
    """Run the processes of a machine until they end, and return torchrun's exit code.

    Args:
        run: the run directory.
        node: number of the machine.
        plan: content of launch.json with its secrets.
        placement: where the processes run on this machine.
        attempt: number of the attempt of a Slurm job; None outside a job.

    Raises:
        LaunchError: the project is not on this machine.
    """
    target, cwd = project_paths(plan)
    environment = {**placement.variables(run), **marks_of(run, plan.get("root"))}
    command = placement.command(target, run.path, [str(word) for word in plan.get("args") or ()], node)
    if (meeting := placement.meeting) is not None:
        at = f"{meeting.address}:{meeting.port}"
        print(f"machine {node} of {run.id}: joins at {at}; its output: {run.node_output(node)}", flush=True)
    dropped = os.environ.keys() - child_environment(os.environ, {}).keys()
    for name in dropped:
        del os.environ[name]
    adopt_orphans()
    supervisor = Supervisor(run, node=node)
    if attempt is not None:
        supervisor.attempt = attempt
    return supervisor.supervise_node({**plan, "argv": command, "cwd": str(cwd), "env": environment})


def project_paths(plan: Mapping[str, Any]) -> tuple[list[str], Path]:
    """Return the words that name the program, and its working directory; LaunchError if one of their paths is not on
    this machine."""
    target, cwd = [str(word) for word in plan.get("target") or ()], Path(str(plan.get("cwd")))
    for path in (*(Path(word) for word in target if word.startswith("/")), cwd):
        if not path.exists():
            raise LaunchError(f"{path}: not on {socket.gethostname()}; all machines need the project under one path")
    return target, cwd


def interpreter_of(plan: Mapping[str, Any]) -> Interpreter | None:
    """Return the Python of a run by its launch.json; None for that of nbtools."""
    named, root = mapping_at(dict(plan), "launch").get("python"), Path(str(plan.get("root")))
    return interpreter_for(None, named, root) if isinstance(named, str) else None


def joinable(folder: Path, node: int) -> RunDir:
    """Return the run directory if a machine can join its run now."""
    run, host = RunDir(folder.expanduser().resolve()), socket.gethostname()
    if not is_run(run.path):
        raise LaunchError(
            f"{folder}: no run directory on {host}; all machines need the project, or its runs/, on a shared file "
            "system under one path"
        )
    if owner := foreign_owner(run.path):
        raise LaunchError(f"{run.id} belongs to {owner}; only they can join it")
    if (state := _state_of(run)) is RunState.QUEUED:
        print(f"{run.id} is queued; this machine waits for its turn")
    while state is RunState.QUEUED:
        time.sleep(_LOOK_EVERY_S)
        state = _state_of(run)
    if state.is_final:
        raise LaunchError(f"{run.id}: is {state}; launch or resume it first")
    other = ProcessIdentity.from_json(machines.record(run, node))
    if machines.has_joined(run, node) and other is not None and (other.is_elsewhere or other.is_alive()):
        raise LaunchError(
            f"machine {node} of {run.id} is {other.host} already (process {other.pid}); if that process has ended, "
            f"remove {run.node_record(node)}"
        )
    return run


def _state_of(run: RunDir) -> RunState:
    """Return the state of a run; RUNNING if only the machine of its supervisor can see that it runs."""
    records = Records(run)
    state, leader = state_of(records), records.process
    is_elsewhere = leader is not None and leader.is_elsewhere
    return RunState.RUNNING if state is RunState.LOST and is_elsewhere else state
