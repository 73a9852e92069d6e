"""Start a script with torchrun in the background, in a process tree that outlives the notebook.

The launcher writes the run directory, takes its lock and passes both to the supervisor; it never imports torch.
"""

import contextlib
import fcntl
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nbtools import __version__
from nbtools.errors import LaunchError
from nbtools.failures.known_errors import cause_of
from nbtools.launcher.preflight import Preflight, check_launch
from nbtools.machine import gpu_queue
from nbtools.machine.processes import members, sweep_processes
from nbtools.project import file_digest, located
from nbtools.run.listing import active_run
from nbtools.run.run import Run
from nbtools.rundir import secret_values
from nbtools.rundir.json_files import reserve, write_json
from nbtools.rundir.lock import NO_LOCKS, create_lock, is_locked, wait_for_lock
from nbtools.rundir.rundir import ROOT_VARIABLE, RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir, project_of
from nbtools.rundir.tail import last_lines

_RECORDS_WITHIN_S = 1.0
_ENDS_WITHIN_S = 10.0
_OTHER_LAUNCH_S = 30.0

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
    nproc_per_node: int | Literal["gpu"] | None = None,
    gpus: Sequence[int] | None = None,
    args: Sequence[str] = (),
    omp_num_threads: int | None = None,
    shutdown_timeout_s: int | None = None,
    max_restarts: int | None = None,
    after: Run | str | Path | None = None,
    queue: bool = True,
) -> Run:
    """Start a script with torchrun in the background; return once its supervisor runs, after a second at most.

    A script that `write_script` wrote runs from the copy in its run directory, so that later edits cannot change the
    run; every other script runs from its own path. The working directory is the project's root, or the script's folder
    outside a project; `runs/` is made there.

    Args:
        script: path of the script.
        nproc_per_node: processes on this machine, or `gpu` for one per GPU; None for the script's value, else 1.
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
    checked = check_launch(script, args, overrides)
    if after is not None and not isinstance(after, Run):
        after = Run(after)
    awaited = None if after is None or after.state.is_final else after.dir.resolve()
    return start(checked, after=awaited, queue=queue)


def launch_once(script: str | Path) -> tuple[Run, bool]:
    """Launch a script, or return its active run; callers in several processes at once start one run.

    Returns:
        The run, and whether this call started it.

    Raises:
        LaunchError: as `launch`; or another process has been launching this script for long.
    """
    path = located(script)
    with _alone(path):
        if path.is_file() and (run := active_run(path, project_of(path))):
            return run, False
        return launch(path), True


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock on a script's file, without which two kernels could both find that no run of it is active."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # no such script, or a file system without locks
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            held.callback(os.close, descriptor)
            if not wait_for_lock(descriptor, fcntl.LOCK_EX, _OTHER_LAUNCH_S):
                raise LaunchError(f"{path}: another process has been launching it for {_OTHER_LAUNCH_S:.0f} s")
        yield


# --- starting -------------------------------------------------------------------------------------


def start(
    checked: Preflight,
    *,
    runs: Path | None = None,
    script: str | None = None,
    resumed_from: dict[str, Any] | None = None,
    after: Path | None = None,
    queue: bool = True,
) -> Run:
    """Start a launch that passed the preflight; `after` and `queue` are as for `launch`.

    Args:
        checked: the launch.
        runs: folder of the new run directory; the project's `runs/` when None.
        script: path to record when `checked.script` is a copy.
        resumed_from: run, checkpoint and step to continue from, and the changed values.
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
    is_started = False
    try:
        if (lock := _taken_lock(run)) is not None:
            held["--lock-fd"] = lock
        ticket = None
        if queue and (taken := _taken_ticket(run, checked)):
            ticket, held["--ticket-fd"] = taken
            _warn_of_newer(ticket)
        _lay_out(
            run,
            checked,
            script=script or str(checked.script),
            resumed_from=resumed_from,
            flock=lock is not None,
            ticket=ticket and str(ticket),
            after=after and str(after),
        )
        is_started = True  # before it is: an interrupt may come at any moment of the start
        _start_supervisor(run, checked, held)
    except BaseException as error:
        while held:
            os.close(held.popitem()[1])
        if is_started and not _end(run):
            raise LaunchError(f"{run.path}: the launch failed ({error!r}), but a process of it does not end") from error
        shutil.rmtree(run.path, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            advice = f". {cause.advice}" if (cause := cause_of(str(error))) else ""
            raise LaunchError(f"{run.path}: the run cannot be started: {error}{advice}") from None
        raise
    finally:
        for descriptor in held.values():
            os.close(descriptor)  # the supervisor has inherited them
    return Run(run.path)


def _end(run: RunDir) -> bool:
    """End the processes of a launch that is given up; return whether all of them have ended.

    A supervisor that has just been forked carries no mark yet, but holds the lock.
    """
    deadline = time.monotonic() + _ENDS_WITHIN_S
    while True:
        sweep_processes(lambda: members(run))
        if not is_locked(run.lock):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def _taken_ticket(run: RunDir, checked: Preflight) -> tuple[Path, int] | None:
    """Queue for the GPUs of this launch; None on the CPU."""
    if not (gpus := checked.placement.gpus):
        return None
    try:
        return gpu_queue.take(run, [device.index for device in gpus], [device.uuid for device in gpus])
    except OSError as error:
        warnings.warn(f"the GPU queue is not usable, so this run starts without waiting: {error}", stacklevel=4)
        return None


def _warn_of_newer(ticket: Path) -> None:
    with contextlib.suppress(OSError):
        for other in gpu_queue.newer(ticket):
            note = f"{other}: a newer nbtools wrote this ticket of the GPU queue, so this run does not wait for its run"
            warnings.warn(f"{note}; update nbtools, or choose other GPUs", stacklevel=4)


def _taken_lock(run: RunDir) -> int | None:
    try:
        return create_lock(run.lock)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    warnings.warn(
        f"{run.path}: this file system has no locks (flock); the run's state is derived from the supervisor's process "
        "instead, which other machines cannot see",
        stacklevel=4,
    )
    return None


def _lay_out(run: RunDir, checked: Preflight, **more: Any) -> None:
    """Write script.py and launch.json, with the entries `more` besides those of the preflight."""
    reserve(run.exit)
    shutil.copyfile(checked.script, run.script)
    torch = importlib.metadata.version("torch")
    content = {
        "name": checked.name,
        "script_sha256": file_digest(run.script),
        "recipe": checked.recipe,
        "argv": checked.command(run.path),
        "args": list(checked.args),
        "cwd": str(checked.cwd),
        "root": str(checked.project.root),
        "env": _environment(run, checked),
        "launch": checked.launch.model_dump(mode="json"),
        "versions": {"python": sys.version.split()[0], "nbtools": __version__, "torch": torch},
        "host": socket.gethostname(),
        "time": time.time(),
        "by_hand": False,
    }
    known = type(checked.config).model_fields if checked.config is not None else ()
    write_json(run.launch, secret_values.part(run, {**content, **more}, known))


def _start_supervisor(run: RunDir, checked: Preflight, held: Mapping[str, int]) -> None:
    with run.supervisor_log.open("wb") as log:
        supervisor = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "nbtools.launcher.supervisor", str(run.path)),
                *([] if "--lock-fd" in held else ["--no-lock"]),
                *(word for option, descriptor in held.items() for word in (option, str(descriptor))),
            ],
            cwd=checked.cwd,
            env=child_environment(os.environ, _environment(run, checked)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(held.values()),
            start_new_session=True,  # a kernel that ends kills its own process group only
        )
    _wait_for_record(run, supervisor)
    # Collects the supervisor's exit status, so that it does not stay a zombie for as long as the kernel lives.
    threading.Thread(target=supervisor.wait, name=f"nbtools-reap-{run.id}", daemon=True).start()


def _environment(run: RunDir, checked: Preflight) -> dict[str, str]:
    """Return the variables that the processes of a run get on top of the caller's."""
    marks = {RUN_ID_VARIABLE: run.id, RUN_DIR_VARIABLE: str(run.path), ROOT_VARIABLE: str(checked.project.root)}
    return {**checked.environment, **marks}


def _wait_for_record(run: RunDir, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait a moment for process.json; LaunchError if the supervisor ends before it has recorded anything."""
    deadline = time.monotonic() + _RECORDS_WITHIN_S
    while not run.process.exists() and time.monotonic() < deadline:
        code = supervisor.poll()
        if code is not None and not run.exit.exists() and not run.process.exists():
            said = " / ".join(last_lines(run.supervisor_log, 3)) or "it printed nothing"
            raise LaunchError(f"{run.id}: the supervisor ended at once with code {code}: {said}")
        time.sleep(0.01)


def child_environment(environment: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment plus `ours`, without the variables of a kernel or an outer torchrun."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED
        and not name.startswith(_DROPPED_PREFIXES)
        and not (name == "MPLBACKEND" and value.startswith("module://"))
    }
    return {**kept, **ours}
