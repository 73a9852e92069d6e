"""Processes that srun, mpirun, mpiexec or flux started: their rank in the variables that torch reads.

These launchers start one process per rank without torch's variables. Untranslated, each process would be a training of
its own.
"""

import re
import socket
import zlib
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

from nbtools.errors import LaunchError

STARTER = "NBTOOLS_STARTED_BY"
"""Environment variable with the name of the launcher whose variables were translated."""
_FIRST_PORT, _NUM_PORTS = 15_000, 15_000


@dataclass(frozen=True)
class _Launcher:
    """The variables in which a launcher describes a process."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str = ""
    num_nodes: str = ""
    job: tuple[str, ...] = ()
    """Variables that together differ between jobs and are the same in all processes of one."""


# The first one whose variables are set is used: mpirun and flux may have been started by srun themselves.
_LAUNCHERS = (
    _Launcher(
        *("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=("PMIX_NAMESPACE",),
    ),
    _Launcher(
        *("flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
        num_nodes="FLUX_JOB_NNODES",
        job=("FLUX_JOB_ID",),
    ),
    _Launcher(*("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"), local_world_size="MPI_LOCALNRANKS"),
    # SLURM_STEP_NUM_TASKS is that of srun; SLURM_NTASKS is also set where a batch script starts a single process.
    _Launcher(
        *("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        num_nodes="SLURM_STEP_NUM_NODES",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    _Launcher("an MPI launcher", "PMI_RANK", "PMI_SIZE", ""),
    _Launcher("a PMIx launcher", "PMIX_RANK", "PMIX_SIZE", ""),
)


def resolves(host: str) -> bool:
    """Whether this machine knows the address of a host."""
    try:
        return bool(socket.getaddrinfo(host, None))
    except OSError:
        return False


def adopt_rank(environment: MutableMapping[str, str], script: str, is_known: Callable[[str], bool] = resolves) -> None:
    """Set torch's rank variables from those of srun, mpirun, mpiexec or flux.

    Where RANK or WORLD_SIZE is set, only a missing LOCAL_RANK is added.

    Args:
        environment: of the process; changed in place.
        script: the script as the user calls it, for the message.
        is_known: whether this machine knows the address of a host.

    Raises:
        LaunchError: several processes were started, but these variables do not say how they find one another, or this
            machine does not know the address of the first node.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        _add_local_rank(environment)
        return
    fitting = [one for one in _LAUNCHERS if {one.rank, one.world_size} <= environment.keys()]
    # srun sets variables of PMI, too, with Slurm's plugin pmi2: a launcher whose variables are complete is preferred.
    found = next((one for one in fitting if one.local_rank in environment), fitting[0] if fitting else None)
    if found is None or (world_size := _number(environment, found.world_size)) in (None, 1):
        return
    rank, local_rank = _number(environment, found.rank), _number(environment, found.local_rank)
    local_world_size = _local_world_size(environment, found, world_size)
    address = environment.get("MASTER_ADDR") or _address(environment, is_one_node=local_world_size == world_size)
    port = environment.get("MASTER_PORT") or _port(environment, found)
    if rank is None or local_rank is None or local_world_size is None or not address or not port:
        raise LaunchError(
            f"{found.name} started {world_size} processes, each of which would train a model of its own: its variables "
            "do not say how they find one another. Start them with torchrun on each node (torchrun --standalone "
            f"--nproc-per-node={world_size} {script} on one), or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT"
        )
    if local_world_size != world_size and not is_known(address):
        raise LaunchError(
            f"{found.name} started {world_size} processes on several nodes, and {socket.gethostname()} does not know "
            f"the address of {address}, the node of rank 0: set MASTER_ADDR to an address of that node which all nodes "
            "reach, or submit the script with nbtools launch --cluster slurm, which finds one"
        )
    numbers = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": local_world_size}
    environment.update({name: str(number) for name, number in numbers.items()})
    environment.update({"MASTER_ADDR": address, "MASTER_PORT": port, STARTER: found.name})


def _add_local_rank(environment: MutableMapping[str, str]) -> None:
    """Set LOCAL_RANK where a wrapper has set RANK and WORLD_SIZE from srun's variables, as many Slurm recipes do."""
    if "LOCAL_RANK" in environment or _number(environment, "WORLD_SIZE") in (None, 1):
        return
    for launcher in _LAUNCHERS:
        if launcher.local_rank and (local_rank := _number(environment, launcher.local_rank)) is not None:
            environment.update({"LOCAL_RANK": str(local_rank), STARTER: launcher.name})
            return


def _number(environment: MutableMapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _local_world_size(environment: MutableMapping[str, str], found: _Launcher, world_size: int | None) -> int | None:
    """Return the number of processes on this node."""
    if (given := _number(environment, found.local_world_size)) is not None:
        return given
    if (num_nodes := _number(environment, found.num_nodes)) == 1:
        return world_size
    if found.name == "srun":  # such as 2(x3),1
        parts = re.findall(r"([0-9]+)(?:\(x([0-9]+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        sizes = [int(size) for size, times in parts for _ in range(min(int(times or 1), 100_000))]
        node = _number(environment, "SLURM_NODEID") or 0
        return sizes[node] if node < len(sizes) else None
    return None if not num_nodes or world_size is None else -(-world_size // num_nodes)


def _address(environment: MutableMapping[str, str], *, is_one_node: bool) -> str:
    """Return the address of rank 0's node; empty if the variables do not name it."""
    if is_one_node:
        return "127.0.0.1"
    # Such as node[01-03,07],other: the first node.
    nodes = environment.get("SLURM_STEP_NODELIST") or ""
    first = re.match(r"([^,\[]+)(?:\[([0-9]+)[^\]]*\])?([^,]*)", nodes)
    return "" if first is None else "".join(part or "" for part in first.groups())


def _port(environment: MutableMapping[str, str], found: _Launcher) -> str:
    """Return a port that is the same in all processes of the job; empty if the variables do not name the job."""
    if not found.job or any(not environment.get(name) for name in found.job):
        return ""
    key = " ".join(environment[name] for name in found.job)
    return str(_FIRST_PORT + zlib.crc32(key.encode()) % _NUM_PORTS)
