"""The torchrun command of a script: a list for a process, a line for a shell."""

import shlex
import sys
from collections.abc import Mapping, Sequence
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
        *(
            python,
            "-P",
            "-m",
            "torch.distributed.run",
        ),  # -P: a random.py in the working directory must not shadow Python's
        *("--nnodes=1", f"--nproc-per-node={launch.nproc_per_node}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={run.name}"),
        "--max-restarts=0",
        *([f"--shutdown-timeout={launch.shutdown_timeout_s}"] if has_shutdown_timeout else []),
        f"--log-dir={run / 'ranks'}",
        *([f"--redirects={redirects}"] if redirects else []),
        str(script),
        *args,
    ]


def as_shell(
    script: str,
    launch: Launch,
    environment: Mapping[str, str],
    args: Sequence[str] = (),
    *,
    has_shutdown_timeout: bool = True,
) -> str:
    """Return the command as a shell takes it in the run's working directory, with `runs/ID` for the run.

    Args:
        script: as for `torchrun_command`.
        launch: number of processes and shutdown timeout.
        environment: variables to set in front of the command.
        args: the script's own arguments.
        has_shutdown_timeout: whether this torchrun has `--shutdown-timeout`.
    """
    run = Path("runs/ID")
    command = torchrun_command(
        script, launch, run=run, args=args, python="python", has_shutdown_timeout=has_shutdown_timeout
    )
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(command)])


def by_hand(script: str, launch: Launch) -> list[str]:
    """Return the command for a terminal in the project's root; rank 0 then creates the run directory."""
    return ["torchrun", "--standalone", f"--nproc-per-node={launch.nproc_per_node}", script]


def variables(launch: Launch) -> dict[str, str]:
    """Return the environment variables that go with `by_hand`."""
    found = {} if launch.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, launch.gpus))}
    return found | ({} if launch.omp_num_threads is None else {"OMP_NUM_THREADS": str(launch.omp_num_threads)})
