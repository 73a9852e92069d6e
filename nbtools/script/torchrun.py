"""The command that starts a program with torchrun or without: a list for a process, a line for a shell."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtools.config import Launch
from nbtools.machine.interpreter import Interpreter, own_interpreter
from nbtools.machine.network import LOOPBACK
from nbtools.rundir.rundir import RunDir


@dataclass(frozen=True)
class Meeting:
    """Rendezvous endpoint of a launch: an address and a free port of the first machine."""

    address: str
    port: int


ON_ONE_MACHINE = "--rdzv-backend=c10d", f"--rdzv-endpoint={LOOPBACK}:0", f"--local-addr={LOOPBACK}"
"""Rendezvous of processes on one machine; by default, torchrun announces the host's name, which need not resolve."""
_JOIN_WITHIN_S = 3600
"""Time in which all machines have to join."""


def torchrun_command(
    script: str | Path | Sequence[str],
    launch: Launch,
    *,
    run: Path,
    args: Sequence[str] = (),
    has_shutdown_timeout: bool = True,
    meeting: Meeting | None = None,
    node: int = 0,
    interpreter: Interpreter | None = None,
) -> list[str]:
    """Return the command that starts a program with its `args` on one machine, without restarts.

    Rank 0 writes to torchrun's output, the other ranks to files below `run/ranks`; the name of the directory `run` is
    the rendezvous id. With `torchrun=False` the program itself is started, once.

    Args:
        script: path of the program, or the words `-m` and the name of its module.
        launch: number of processes and machines.
        run: the run directory.
        args: the program's arguments.
        has_shutdown_timeout: whether torchrun has `--shutdown-timeout` (torch 2.4 has not).
        meeting: where the machines meet; None for a single one, which needs no fixed port.
        node: number of the machine.
        interpreter: the Python that runs it; that of nbtools when None.
    """
    python = interpreter or own_interpreter()
    program = [str(script)] if isinstance(script, str | Path) else list(script)
    if launch.torchrun is False:
        return [str(python.path), *program, *args]
    redirects = ",".join(f"{rank}:3" for rank in range(1, launch.num_processes)) if node == 0 else "3"
    if meeting is None:
        rendezvous = list(ON_ONE_MACHINE)
    else:
        rendezvous = [f"--node-rank={node}", f"--rdzv-conf=timeout={_JOIN_WITHIN_S}"]
        rendezvous += [f"--master-addr={meeting.address}", f"--master-port={meeting.port}"]
    return [
        # -P: a random.py in the working directory must not shadow Python's
        *(str(python.path), *python.safe_path, "-m", "torch.distributed.run"),
        *(f"--nnodes={launch.nnodes}", f"--nproc-per-node={launch.num_processes}"),
        *(*rendezvous, f"--rdzv-id={run.name}"),
        "--max-restarts=0",
        *([f"--shutdown-timeout={launch.shutdown_timeout_s}"] if has_shutdown_timeout else []),
        f"--log-dir={RunDir(run).node_logs(node)}",
        *([f"--redirects={redirects}"] if redirects else []),
        *after_options(program),
        *args,
    ]


def after_options(program: Sequence[str]) -> list[str]:
    """Return the words of a program, `-m` and a module or a path first, as they follow the options of its launcher.

    Without `--`, torchrun refuses arguments of the program that begin several of its own options, such as `--log`.
    """
    at = 1 if program[0] == "-m" else 0
    return [*program[:at], "--", *program[at:]]


def by_hand(script: str, launch: Launch) -> list[str]:
    """Return the command for a terminal in the project's root; rank 0 then creates the run directory.

    On several machines, NODE stands for the number of each, from 0, and ADDRESS for that of the first one.
    """
    count = 1 if launch.gpus == () and launch.nproc_per_node == "gpu" else launch.nproc_per_node
    several = [f"--nnodes={launch.nnodes}", f"--node-rank={NODE}", f"--master-addr={ADDRESS}", "--master-port=29500"]
    where = ["--standalone"] if launch.nnodes == 1 else several
    return ["torchrun", *where, f"--nproc-per-node={count}", script]


NODE, ADDRESS = "NODE", "ADDRESS"


def variables(launch: Launch) -> dict[str, str]:
    """Return the environment variables that go with `by_hand`."""
    found = {} if launch.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, launch.gpus))}
    return found | ({} if launch.omp_num_threads is None else {"OMP_NUM_THREADS": str(launch.omp_num_threads)})
