"""Start a script with torchrun in the background, in a process tree that outlives the notebook.

The launcher writes the run directory, takes its lock and passes both to the supervisor; it never imports torch.
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from nbtools import __version__
from nbtools.config import COMMANDS
from nbtools.errors import LaunchError, NbtoolsError
from nbtools.failures.known_errors import cause_of
from nbtools.launcher.placement import CORES_TAKEN, child_environment
from nbtools.launcher.preflight import check_launch, with_site
from nbtools.launcher.programs.program_resume import remember
from nbtools.launcher.request import LaunchRequest, LaunchSettings, Preflight, spelled_out
from nbtools.launcher.sbatch import job_environment, job_script, refused
from nbtools.machine import gpu_queue, slurm
from nbtools.machine.processes import happens_within, members, sweep_processes
from nbtools.project import file_digest, located
from nbtools.run.listing import active_run
from nbtools.run.records import Records
from nbtools.run.run import Run
from nbtools.run.slurm_job import job_of, runs_on_slurm
from nbtools.rundir import secret_values
from nbtools.rundir.atomic import write_file
from nbtools.rundir.git_source import record_source
from nbtools.rundir.json_files import read_json, reserve, whole, write_json
from nbtools.rundir.lock import NO_LOCKS, create_lock, is_locked, wait_for_lock
from nbtools.rundir.machines import join_command
from nbtools.rundir.requests.events import append_events, read_events
from nbtools.rundir.rundir import RunDir, marks_of, newest_first, project_of
from nbtools.rundir.tail import last_lines
from nbtools.script.program import Program

_RECORDS_WITHIN_S = 1.0
_ENDS_WITHIN_S = 10.0
_OTHER_LAUNCH_S = 30.0


@spelled_out
def launch(
    script: str | Path | Program,
    *,
    args: Sequence[str] = (),
    after: Run | str | Path | None = None,
    queue: bool = True,
    **settings: Unpack[LaunchSettings],
) -> Run:
    """Start a script with torchrun in the background; return once its supervisor runs, after a second at most.

    With `cluster`, sbatch submits the supervisor as a job instead, and the run is QUEUED until Slurm starts it.

    A recipe's script that `write_script` wrote runs from the copy in its run directory, so that later edits cannot
    change the run, in the project's root. Every other program runs from its own path, in the working directory of this
    call, as under torchrun. `runs/` is in the root of the script's project; the project of a program is that of this
    call's folder if the program lies below it, else the program's repository, else its folder.

    Args:
        script: path of the script, or a `Program`, which may be a module.
        nproc_per_node: processes on this machine, or `gpu` for one per GPU; None for the script's value, else 1.
        gpus: GPU indices as nvidia-smi counts; `()` for the CPU; None for the script's value, else the first
            `nproc_per_node` GPUs, or the CPU of a machine without GPUs.
        cwd: working directory of a program; None for the launcher script's, else that of this call.
        name: last part of the run's id; None for the name of the script.
        stop_signal: signal with which a stop of a program begins; None for the launcher script's, else SIGTERM.
        nnodes: number of machines; None for the script's value, else 1. The first is this one, and the run's
            `info["join"]` has the command that each other one needs.
        cluster: `Slurm(...)` to submit a job, `"slurm"` for one with the script's or the site's settings, `"none"` for
            this machine; None for the script's value. `nproc_per_node` and `nnodes` then count processes on each node,
            and nodes.
        args: the script's own arguments, after those in a launcher script.
        torchrun: False starts the program once, without torchrun; None for the script's value, else torchrun, but for a
            program that starts its own processes.
        python: Python executable or environment of the processes; None for the script's value, else the active
            environment, the one beside the program, or that of nbtools.
        omp_num_threads: CPU threads per process; None for cores // nproc_per_node.
        shutdown_timeout_s: seconds between a stop's signal and SIGKILL; None for the script's value, else 60.
        max_restarts: how often a failed run starts again, in the same directory, from its latest verified checkpoint (a
            program: the newest whole one, with its words of `resume`, else from its beginning); None for the script's
            value, else 0.
        stop_on: conditions on which the supervisor stops the run, `StopOn(nan=True)` or `{"nan": True}`; None for the
            script's.
        on_end: words of a program that the supervisor starts at the end, such as `["notify-send", "{sentence}"]`; None
            for the script's. The words are taken from this call or from a script of this user outside `runs/` alone.
        notify_on: conditions on which a notice is sent, such as `{"failed": True, "stalled_min": 10}`; None for the
            script's. It is POSTed as JSON to the `address` in `~/.config/nbtools/notify.json`.
        notify_with: words of a program that is started for each notice, as by `on_end`.
        after: a run that must end first, in any state; if it is cancelled while it waits, the run that it waits for.
        queue: wait until no earlier run claims one of these GPUs, in the order of the launches; False shares them.
            Slurm's queue has no such choice.

    Raises:
        LaunchError: the run cannot start as asked; nothing is started or left behind.
    """
    return launch_request(LaunchRequest.of(script, settings, args=args, queue=queue), after)


def launch_request(request: LaunchRequest, after: Run | str | Path | None = None) -> Run:
    """Check and start what `launch` is asked; patterns of curves are kept for a program without a launcher script."""
    checked = check_launch(request)
    if after is not None:
        awaited = after if isinstance(after, Run) else Run(after)
        path = None if awaited.state.is_final else awaited.dir.resolve()
        checked = replace(checked, request=replace(request, after=path))
    run = start(checked)
    if (curves := request.program.get("curves")) and checked.script in (checked.source, checked.cwd):
        try:
            remember(run, "curves", curves=tuple(curves))
        except NbtoolsError as error:
            warnings.warn(f"the patterns of curves count for this run alone: {error}", stacklevel=3)
    return run


def launch_once(script: str | Path) -> tuple[Run, bool]:
    """Launch a script, or return its active run; callers in several processes at once start one run.

    Returns:
        The run, and whether this call started it.

    Raises:
        LaunchError: as `launch`; or another process has been launching this script for long.
    """
    path = located(script)
    with contextlib.ExitStack() as held:
        # Without a lock on the script's file, two kernels could both find that no run of it is active.
        with contextlib.suppress(OSError):  # no such script, or a file system without locks
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            held.callback(os.close, descriptor)
            if not wait_for_lock(descriptor, fcntl.LOCK_EX, _OTHER_LAUNCH_S):
                raise LaunchError(f"{path}: another process has been launching it for {_OTHER_LAUNCH_S:.0f} s")
        if path.is_file() and (run := active_run(path, project_of(path))):
            return run, False
        return launch(path), True


# --- starting -------------------------------------------------------------------------------------


def start(checked: Preflight, resumed_from: Mapping[str, Any] | None = None) -> Run:
    """Start a launch that passed its check.

    Args:
        checked: the launch.
        resumed_from: run, checkpoint and step to continue from, and the changed values.
    """
    awaited_jobs: list[int] = []
    after, queue = checked.request.after, checked.request.queue
    if checked.launch.cluster is not None:
        if not queue:
            raise LaunchError("queue=False: has no effect on Slurm's queue; leave it out (--no-queue)")
        awaited_jobs = _jobs_after(after)
        checked = with_site(checked)
    elif after is not None and runs_on_slurm(Records(RunDir(after))):
        raise LaunchError(
            f"after={after.name}: is a Slurm job, and this launch is for one machine, whose queue knows no jobs; "
            f"nbtools wait {after.name}, then launch"
        )
    for finding in checked.findings:
        if finding.level == "warn" and (after is None or finding.subject != CORES_TAKEN):
            warnings.warn(finding.sentence, stacklevel=4)
    held: list[int] = []
    with _run_dir(checked) as run:
        if checked.launch.cluster is not None:
            _submit(run, checked, resumed_from, awaited_jobs)
            return Run(run.path)
        try:
            if (lock := _taken_lock(run)) is not None:
                held.append(lock)
            ticket = None
            if queue and (taken := _taken_ticket(run, checked)):
                ticket, descriptor = taken
                held.append(descriptor)
                if problem := gpu_queue.foreign_folder(ticket):
                    warnings.warn(problem, stacklevel=4)
            _lay_out(run, checked, resumed_from, flock=lock is not None, ticket=ticket)
            _start_supervisor(run, checked, held)
        finally:
            for descriptor in held:
                os.close(descriptor)  # the supervisor has inherited them
    return Run(run.path)


def create_run(checked: Preflight) -> RunDir:
    """Make the run directory of a job that was submitted by hand, as `start` does for one that it submits; LaunchError
    if it cannot be made, and nothing is left behind."""
    with _run_dir(checked) as run:
        run.lock.touch()
        _lay_out(run, checked)
    return run


@contextlib.contextmanager
def _run_dir(checked: Preflight) -> Iterator[RunDir]:
    """Make a run directory, and remove it again if the launch fails, unless a part of it cannot be taken back."""
    folder = checked.runs
    existed = folder.exists()
    try:
        run = RunDir(RunDir.create(folder, checked.name).path.resolve())
    except OSError as error:
        raise LaunchError(f"{folder}: cannot be written: {error.strerror}; fix that, or set NBTOOLS_ROOT") from None
    try:
        yield run
    except BaseException as error:  # an interrupt may come at any moment
        if left := _taken_back(run):
            raise LaunchError(f"{run.path}: the launch failed ({error!r}), but {left}") from error
        shutil.rmtree(run.path, ignore_errors=True)
        if not existed:
            with contextlib.suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            advice = f". {cause.advice}" if (cause := cause_of(str(error))) else ""
            raise LaunchError(f"{run.path}: the run cannot be started: {error}{advice}") from None
        raise


def _taken_back(run: RunDir) -> str:
    """Cancel the job and end the processes of a failed launch; return what is left of it, in words.

    sbatch may fail, as with a time-out, although the job exists. A supervisor that has just been forked carries no mark
    yet, but holds the lock.
    """
    if run.job_script.exists():
        slurm.forget()
        jobs = slurm.own_jobs() if slurm.is_available() else {}
        for job in (jobs or {}).values():
            if job.name == run.id:
                slurm.cancel(job.id)
        return f"squeue fails, so its job may exist: check squeue --me --name {run.id}" if jobs is None else ""

    def has_ended() -> bool:
        sweep_processes(lambda: members(run))
        return not is_locked(run.lock)

    return "" if happens_within(has_ended, _ENDS_WITHIN_S) else "one of its processes does not end"


# --- Slurm ----------------------------------------------------------------------------------------


def _submit(run: RunDir, checked: Preflight, resumed_from: Mapping[str, Any] | None, awaited: Sequence[int]) -> None:
    """Submit the job of a run; the directory names the run before there is a job, which has the name of the run."""
    _lay_out(run, checked, resumed_from)
    run.lock.touch()
    write_file(run.job_script, job_script(run, checked.launch, checked.cwd, awaited).encode())
    environment = job_environment(child_environment(os.environ, _environment(run, checked)))
    try:
        number, cluster = slurm.submit(run.job_script, environment)
    except LaunchError as error:
        raise refused(error, checked.launch) from None
    _record_job(run, number, cluster)


def _record_job(run: RunDir, number: int, cluster: str | None) -> None:
    write_json(run.slurm, {"job_id": number, "cluster": cluster, "time": time.time()})


def run_of_job(script: Path) -> RunDir:
    """Return the run directory of a script which was submitted by hand, in its job.

    A job that starts again finds the directory of its first start.

    Raises:
        LaunchError: the script cannot be launched.
    """
    number = slurm.current_job()
    if number is None:
        raise LaunchError(f"{script}: this is no Slurm job; start it with nbtools launch {script}, or submit it")
    checked = check_launch(LaunchRequest(script=script))
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        for path in newest_first(checked.project.runs):
            if (read_json(RunDir(path).slurm) or {}).get("job_id") == number:
                return RunDir(path.resolve())
    run = create_run(checked)
    _record_job(run, number, os.environ.get("SLURM_CLUSTER_NAME"))
    output = Path("/proc/self/fd/1").resolve()
    with contextlib.suppress(OSError):  # on another disk
        if output.is_file():
            run.job_log.hardlink_to(output)  # what Slurm says of the job, such as a preemption
    slurm.control("update", f"jobid={number}", f"jobname={run.id}")  # marks the job as this run's
    print(f"run directory: {run.path}", flush=True)
    return run


def _jobs_after(after: Path | None) -> list[int]:
    """Return the ids of the jobs that must end first: of a run, and of those that it waits for, if it is cancelled."""
    found: list[int] = []
    seen: set[Path] = set()
    while after is not None and after not in seen:
        seen.add(after)
        records = Records(RunDir(after))
        if not runs_on_slurm(records):
            reason = f"is no Slurm job, so Slurm cannot wait for it; nbtools wait {after.name}, then launch"
            raise LaunchError(f"after={after.name}: {reason}")
        number = job.id if (job := job_of(records)) else None
        if slurm.own_jobs() is None:  # else one that is not in squeue's list has ended
            number = whole((read_json(records.files.slurm) or {}).get("job_id"))
        if number is None:
            break
        found.append(number)
        before = records.launch.get("after")
        after = Path(before) if isinstance(before, str) else None
    return found


# --- this machine ---------------------------------------------------------------------------------


def _taken_ticket(run: RunDir, checked: Preflight) -> tuple[Path, int] | None:
    """Queue for the GPUs of this launch; None on the CPU."""
    if not (gpus := checked.placement.gpus):
        return None
    try:
        return gpu_queue.take(run, [device.index for device in gpus], [device.uuid for device in gpus])
    except OSError as error:
        warnings.warn(f"the GPU queue is not usable, so this run starts without waiting: {error}", stacklevel=5)
        return None


def _taken_lock(run: RunDir) -> int | None:
    try:
        return create_lock(run.lock)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    warnings.warn(
        f"{run.path}: this file system has no locks (flock); the run's state is derived from the supervisor's process "
        "instead, which other machines cannot see",
        stacklevel=5,
    )
    return None


def _lay_out(
    run: RunDir,
    checked: Preflight,
    resumed_from: Mapping[str, Any] | None = None,
    *,
    flock: bool = True,
    ticket: Path | None = None,
) -> None:
    """Write script.py and launch.json, and what else a recipe's or a program's run needs."""
    reserve(run.exit)
    if checked.source is not None:
        # A source that others cannot read may contain a secret: its copy is as closed.
        run.script.touch(mode=0o600 | stat.S_IMODE(checked.source.stat().st_mode) & 0o666)
        shutil.copyfile(checked.source, run.script)
    script, after = checked.request.recorded_script or str(checked.script), checked.request.after
    if repeated := checked.request.reproduces:
        append_events(run, (event for event in read_events(repeated) if not event.refused), planned=True)
    python, meeting = checked.placement.interpreter, checked.placement.meeting
    versions = {"python": ".".join(map(str, python.version)), "nbtools": __version__}
    if python.torch_version is not None:  # the machine that submits a job may lack it
        versions["torch"] = python.torch_version
    content = {
        "name": checked.name,
        "script_sha256": None if checked.source is None else file_digest(run.script),
        "recipe": checked.recipe,
        "argv": checked.command(run.path),
        "target": checked.target(run.path),
        "args": list(checked.args_in(run.path)),
        "cwd": str(checked.cwd),
        "root": str(checked.project.root),
        "env": _environment(run, checked),
        # Commands are not recorded: one that is read from a run directory must never be executed.
        "launch": checked.launch.model_dump(mode="json", exclude={*COMMANDS}),
        "versions": versions,
        "code": record_source(run, checked.project.root),
        "host": socket.gethostname(),
        "time": time.time(),
        "by_hand": False,
        "script": script,
        "resumed_from": resumed_from,
        "after": after and str(after),
        "flock": flock,
        "ticket": ticket and str(ticket),
        **({"reproduces": repeated.id} if repeated else {}),
        "meeting": meeting and [meeting.address, meeting.port],
        # The command for a shell of each machine but the first.
        "join": [join_command(run, node) for node in range(1, checked.launch.nnodes)] if meeting else [],
        **checked.record(run, script),
    }
    known = type(checked.config).model_fields if checked.config is not None else ()
    write_json(run.launch, secret_values.part(run, content, known))


def _start_supervisor(run: RunDir, checked: Preflight, held: Sequence[int]) -> None:
    with run.supervisor_log.open("wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "nbtools.launcher.supervisor", str(run.path), "--launched"],
            cwd=checked.cwd,
            env=child_environment(os.environ, _environment(run, checked)),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=held,
            start_new_session=True,  # a kernel that ends kills its own process group only
        )
    assert supervisor.stdin is not None
    told = checked.launch.model_dump(include={*COMMANDS}) | {"held": held}
    with contextlib.suppress(BrokenPipeError), supervisor.stdin as pipe:  # it ended at once: its log says why
        # Not as arguments, which every user can read in `ps`.
        pipe.write(f"{json.dumps(told)}\n".encode())
    _wait_for_record(run, supervisor)
    # Collects the supervisor's exit status, so that it does not stay a zombie for as long as the kernel lives.
    threading.Thread(target=supervisor.wait, name=f"nbtools-reap-{run.id}", daemon=True).start()


def _environment(run: RunDir, checked: Preflight) -> dict[str, str]:
    """Return the variables that the processes of a run get on top of the caller's."""
    return {**checked.placement.variables(run), **marks_of(run, checked.project.root)}


def _wait_for_record(run: RunDir, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait a moment for process.json; LaunchError if the supervisor ends before it has recorded anything."""

    def has_begun() -> bool:
        code = supervisor.poll()
        if code is None or run.exit.exists() or run.process.exists():
            return run.process.exists()
        said = " / ".join(last_lines(run.supervisor_log, 3)) or "it printed nothing"
        raise LaunchError(f"{run.id}: the supervisor ended at once with code {code}: {said}")

    happens_within(has_begun, _RECORDS_WITHIN_S)


def main() -> None:
    """Make the run directory of a script that was submitted by hand, and become the batch step of its job."""
    try:
        run = run_of_job(Path(sys.argv[1]))
    except (NbtoolsError, OSError) as error:
        sys.exit(f"nbtools: {error}")
    command = [sys.executable, "-P", "-m", "nbtools.launcher.job", str(run.path)]
    os.execve(sys.executable, command, {**os.environ, **marks_of(run)})


if __name__ == "__main__":
    main()
