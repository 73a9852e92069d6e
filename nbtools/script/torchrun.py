"""The torchrun command of a script: a list for a process, a line for a shell."""

import sys
from collections.abc import Sequence
from pathlib import Path

from nbtools.config import Launch


def torchrun_command(
    script: str | Path, launch: Launch, *, run: Path, args: Sequence[str] = (), has_shutdown_timeout: bool = True
) -> list[str]:
    """Return the command that starts `script` with its `args` on this machine, without a fixed port or restarts.

    Rank 0 writes to torchrun's output, the other ranks to files below `run/ranks`; the name of the directory `run` is
    the rendezvous id. `has_shutdown_timeout` says whether torchrun has `--shutdown-timeout` (torch 2.4 has not).
    """
    redirects = ",".join(f"{rank}:3" for rank in range(1, launch.num_processes))
    return [
        # -P: a random.py in the working directory must not shadow Python's
        *(sys.executable, "-P", "-m", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={launch.num_processes}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={run.name}"),
        "--max-restarts=0",
        *([f"--shutdown-timeout={launch.shutdown_timeout_s}"] if has_shutdown_timeout else []),
        f"--log-dir={run / 'ranks'}",
        *([f"--redirects={redirects}"] if redirects else []),
        str(script),
        *args,
    ]


def by_hand(script: str, launch: Launch) -> list[str]:
    """Return the command for a terminal in the project's root; rank 0 then creates the run directory."""
    count = 1 if launch.gpus == () and launch.nproc_per_node == "gpu" else launch.nproc_per_node
    return ["torchrun", "--standalone", f"--nproc-per-node={count}", script]


def variables(launch: Launch) -> dict[str, str]:
    """Return the environment variables that go with `by_hand`."""
    found = {} if launch.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, launch.gpus))}
    return found | ({} if launch.omp_num_threads is None else {"OMP_NUM_THREADS": str(launch.omp_num_threads)})
