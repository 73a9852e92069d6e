"""Words of torchrun's commands: the rendezvous, a program behind the options, and a start by hand."""

from collections.abc import Sequence
from dataclasses import dataclass

from nbtools.config import Launch
from nbtools.machine.network import LOOPBACK


@dataclass(frozen=True)
class Meeting:
    """Rendezvous endpoint of a launch: an address and a free port of the first machine."""

    address: str
    port: int


ON_ONE_MACHINE = "--rdzv-backend=c10d", f"--rdzv-endpoint={LOOPBACK}:0", f"--local-addr={LOOPBACK}"
"""Rendezvous of processes on one machine; by default, torchrun announces the host's name, which need not resolve."""


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
