"""Start a script with torchrun in the background, in a process tree that outlives the notebook.

The launcher writes the run directory, takes its lock and passes both to the supervisor; it never imports torch.
"""

import contextlib
import errno
import hashlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbtools import __version__
from nbtools.errors import LaunchError
from nbtools.launcher.preflight import Preflight, check_launch
from nbtools.machine import gpu_queue
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)

# Variables of a kernel or of an outer launcher that a training process must not inherit.
_DROPPED_PREFIXES = ("JPY_", "TORCHELASTIC_", "PET_", "NBTOOLS_RUN_", "NBTOOLS_ATTEMPT")
_DROPPED = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    # ipykernel's colours; a run writes to a file
    *("CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "GIT_PAGER"),
}


def launch(
    script: str | Path,
    *,
    nproc_per_node: int | None = None,
    gpus: Sequence[int] | None = None,
    args: Sequence[str] = (),
    omp_num_threads: int | None = None,
    shutdown_timeout_s: int | None = None,
    max_restarts: int | None = None,
    after: Run | str | Path | None = None,
    queue: bool = True,
) -> Run:
    """Start a script with torchrun in the background and return at once.

    A script that `write_script` wrote runs from the copy in its run directory, so that later edits cannot change the
    run; every other script runs from its own path. The working directory is the project's root, or the script's folder
    outside a project; `runs/` is made there.

    Args:
        script: path of the script.
        nproc_per_node: processes on this machine; None for the script's value, else 1.
        gpus: GPU indices as nvidia-smi counts; `()` for the CPU; None for the script's value, else the first
            `nproc_per_node` GPUs, or the CPU of a machine without GPUs.
        args: the script's own arguments.
        omp_num_threads: CPU threads per process; None for cores // nproc_per_node.
        shutdown_timeout_s: seconds between a stop's SIGTERM and SIGKILL; None for the script's value, else 60.
        max_restarts: how often a failed run starts again, in the same directory, from its latest verified checkpoint (a
            script without a recipe: from its beginning); None for the script's value, else 0.
        after: a run that must end first, in any state.
        queue: wait until no earlier run claims one of these GPUs, in the order of the launches; False shares them.

    Raises:
        LaunchError: the run cannot start as asked; nothing is started or left behind.
    """
    overrides = {
        "nproc_per_node": nproc_per_node,
        "gpus": gpus,
        "omp_num_threads": omp_num_threads,
        "shutdown_timeout_s": shutdown_timeout_s,
        "max_restarts": max_restarts,
    }
    return start(check_launch(script, args, overrides), after=_awaited(after), queue=queue)


# --- starting -------------------------------------------------------------------------------------


def start(
    checked: Preflight,
    *,
    runs: Path | None = None,
    script: str | None = None,
    resumed_from: Mapping[str, Any] | None = None,
    after: Path | None = None,
    queue: bool = True,
) -> Run:
    """Start a launch that passed the preflight.

    Args:
        checked: the launch.
        runs: folder of the new run directory; the project's `runs/` when None.
        script: path to record when `checked.script` is a copy.
        resumed_from: run, checkpoint and step to continue from, and the changed values.
        after: directory of a run that must end first.
        queue: as for `launch`.
    """
    for note in checked.warnings:
        warnings.warn(note, stacklevel=3)
    folder = runs or checked.project.runs
    existed = folder.exists()
    try:
        run = RunDir(RunDir.create(folder, checked.name).path.resolve())
    except OSError as error:
        raise LaunchError(f"{folder}: cannot be written: {error.strerror}; free it, or set NBTOOLS_ROOT") from None
    held: dict[str, int] = {}
    try:
        if (lock := _taken_lock(run)) is not None:
            held["--lock-fd"] = lock
        ticket = None
        if queue and (taken := _taken_ticket(run, checked)):
            ticket, held["--ticket-fd"] = taken
        waits = {"ticket": ticket, "after": after}
        _lay_out(run, checked, script, resumed_from, waits, has_locks=lock is not None)
        _start_supervisor(run, checked, held)
    except BaseException as error:
        shutil.rmtree(run.path, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise LaunchError(f"{run.path}: the run cannot be started: {error}") from None
        raise
    finally:
        for descriptor in held.values():
            os.close(descriptor)  # the supervisor has inherited them
    return Run(run.path)


def _awaited(run: Run | str | Path | None) -> Path | None:
    """Return the directory of the run to wait for; None if it has ended."""
    if run is None:
        return None
    found = run if isinstance(run, Run) else Run(run)
    return None if found.state.is_final else found.dir.resolve()


def _taken_ticket(run: RunDir, checked: Preflight) -> tuple[Path, int] | None:
    """Queue for the GPUs of this launch; None on the CPU."""
    if not (gpus := checked.placement.gpus):
        return None
    try:
        return gpu_queue.take(run, [device.index for device in gpus], [device.uuid for device in gpus])
    except OSError as error:
        warnings.warn(f"the GPU queue is not usable, so this run starts without waiting: {error}", stacklevel=4)
        return None


def _taken_lock(run: RunDir) -> int | None:
    try:
        return acquire_lock(run.lock)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    warnings.warn(
        f"{run.path}: this file system has no locks (flock); the run's state is derived from the supervisor's process "
        "instead, which other machines cannot see",
        stacklevel=4,
    )
    return None


def _lay_out(
    run: RunDir,
    checked: Preflight,
    script: str | None,
    resumed_from: Mapping[str, Any] | None,
    waits: Mapping[str, Path | None],
    *,
    has_locks: bool,
) -> None:
    source = checked.script.read_bytes()
    run.script.write_bytes(source)
    torch = importlib.metadata.version("torch")
    write_json(
        run.launch,
        {
            "name": checked.name,
            "script": script or str(checked.script),
            "script_sha256": hashlib.sha256(source).hexdigest(),
            "recipe": checked.recipe,
            "argv": checked.command(run.path),
            "args": list(checked.args),
            "cwd": str(checked.cwd),
            "env": {**checked.environment, RUN_ID_VARIABLE: run.id, RUN_DIR_VARIABLE: str(run.path)},
            "launch": checked.launch.model_dump(mode="json"),
            "versions": {"python": sys.version.split()[0], "nbtools": __version__, "torch": torch},
            "host": socket.gethostname(),
            "time": time.time(),
            "resumed_from": None if resumed_from is None else dict(resumed_from),
            "by_hand": False,
            "flock": has_locks,
            **{name: None if path is None else str(path) for name, path in waits.items()},
        },
    )


def _start_supervisor(run: RunDir, checked: Preflight, held: Mapping[str, int]) -> None:
    with run.supervisor_log.open("wb") as log:
        supervisor = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "nbtools.launcher.supervisor", str(run.path)),
                *([] if "--lock-fd" in held else ["--no-lock"]),
                *(word for option, descriptor in held.items() for word in (option, str(descriptor))),
            ],
            cwd=checked.cwd,
            env=child_environment(os.environ, run, checked.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(held.values()),
            start_new_session=True,  # a kernel that ends kills its own process group only
        )
    # Collects the supervisor's exit status, so that it does not stay a zombie for as long as the kernel lives.
    threading.Thread(target=supervisor.wait, name=f"nbtools-reap-{run.id}", daemon=True).start()


def child_environment(environment: Mapping[str, str], run: RunDir, ours: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment plus `ours`, without the variables of a kernel or an outer torchrun."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED
        and not name.startswith(_DROPPED_PREFIXES)
        and not (name == "MPLBACKEND" and value.startswith("module://"))
    }
    return {**kept, **ours, RUN_ID_VARIABLE: run.id, RUN_DIR_VARIABLE: str(run.path)}
