"""The torchrun command of a script: a list for a process, a line for a shell."""

import sys
from collections.abc import Sequence
from pathlib import Path

from nbtools.config import Launch


def torchrun_command(
    script: str | Path,
    launch: Launch,
    *,
    run: Path,
    args: Sequence[str] = (),
    python: str = sys.executable,
    has_shutdown_timeout: bool = True,
) -> list[str]:
    """Return the command that starts `script` on this machine, without a shell, a fixed port or restarts.

    Rank 0 writes to torchrun's output, the other ranks to files below `run/ranks`.

    Args:
        script: path of the script that every rank runs.
        launch: number of processes and shutdown timeout.
        run: the run directory; its name is the rendezvous id.
        args: the script's own arguments.
        python: the interpreter.
        has_shutdown_timeout: whether this torchrun has `--shutdown-timeout` (torch 2.4 has not).
    """
    redirects = ",".join(f"{rank}:3" for rank in range(1, launch.nproc_per_node))
    return [
        # -P: a random.py in the working directory must not shadow Python's
        *(python, "-P", "-m", "torch.distributed.run"),
        *("--nnodes=1", f"--nproc-per-node={launch.nproc_per_node}"),
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
    return ["torchrun", "--standalone", f"--nproc-per-node={launch.nproc_per_node}", script]


def variables(launch: Launch) -> dict[str, str]:
    """Return the environment variables that go with `by_hand`."""
    found = {} if launch.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, launch.gpus))}
    return found | ({} if launch.omp_num_threads is None else {"OMP_NUM_THREADS": str(launch.omp_num_threads)})
