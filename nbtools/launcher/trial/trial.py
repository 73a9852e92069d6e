"""A trial: a child process that takes a few real steps of a training before it is launched.

It runs in a folder of its own that is removed afterwards, with the marks of a run in its environment. On a GPU it holds
a ticket of the queue, so that a run which is launched meanwhile waits; the trial sees that and ends.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from nbtools.config import Launch, TrainConfig
from nbtools.errors import LaunchError
from nbtools.launcher.placement import child_environment, place
from nbtools.launcher.request import as_launch_error
from nbtools.launcher.trial.result import TrialResult
from nbtools.machine import gpu_queue
from nbtools.machine.devices import Device
from nbtools.machine.gpu_queue import Ticket
from nbtools.machine.processes import members, sweep_processes
from nbtools.recipes import recipe_of
from nbtools.run.removal.clean import CACHE
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.rundir import RunDir, marks_of

_LONGEST_LOG = 2**20
_STARTING = "start"


def start_trial(config: TrainConfig, launch: Launch, *, root: str | Path) -> "Trial":
    """Start a process that takes a few steps of the training on one device of the launch; return at once.

    Args:
        config: the training; its `save_dir`, `report_to` and `profile_steps` do not count.
        launch: devices, threads and number of processes, as for `launch`; one process is measured.
        root: the project, where relative paths of the config start.

    Raises:
        LaunchError: every GPU of the launch is in use, the launch is for Slurm, or the data or torch is missing.
    """
    if launch.cluster is not None:
        raise LaunchError("cluster=Slurm(...): a trial runs on this machine, not on a node; set cluster=None for it")
    project = Path(root).resolve()
    recipe = recipe_of(config)
    with as_launch_error():
        recipe.refuse(config)
        recipe.source(config, project)
    placement = place(launch.replace(nnodes=1))
    device = free_device(placement.gpus, gpu_queue.tickets()) if placement.gpus else None
    run = RunDir.create(Path(tempfile.mkdtemp(prefix="nbtools-trial-")).resolve(), "trial")
    ticket, held = None, []
    try:
        _link_cache(project / "runs", run.path.parent)
        if device is not None:
            with contextlib.suppress(OSError):  # the queue is not usable: a launch would not wait either
                ticket, descriptor = gpu_queue.take(run, [device.index], [device.uuid])
                held.append(descriptor)
            if ticket is not None and (earlier := gpu_queue.ahead(ticket)):
                raise _in_use([f"GPU {device.index} by {earlier[0].run.name}"])
        environment = {**placement.environment, "CUDA_VISIBLE_DEVICES": device.selector if device else ""}
        environment["TMPDIR"] = str(run.path.parent)  # what a killed process leaves, such as DataLoader's sockets
        environment |= marks_of(run, project)
        request = {"recipe": recipe.key, "config": config.model_dump(mode="json"), "parent": os.getpid()}
        request |= {"ticket": ticket and str(ticket), "world_size": placement.launch.num_processes * launch.nnodes}
        return Trial(run, config, request, environment, project, device, held)
    except BaseException:
        _remove(run, ticket)
        raise
    finally:
        for descriptor in held:
            os.close(descriptor)


@dataclass(eq=False)
class Trial:
    """A trial that runs or has ended; `start_trial` makes it."""

    run: RunDir
    config: TrainConfig
    request: Mapping[str, Any]
    environment: Mapping[str, str]
    cwd: Path
    device: Device | None
    held: Sequence[int]
    """Descriptors that the process inherits."""

    def __post_init__(self) -> None:
        self._is_cancelled = False
        self._result: TrialResult | None = None
        self._has_ended = threading.Event()
        self._printed: str | None = None
        # Files without a name: nothing has to remove them, however the processes end.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `_collect` closes both
        self._answer: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nbtools.training.trial.trial_process", str(self._answer.fileno())],
            cwd=self.cwd,
            env=child_environment(os.environ, self.environment),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=(self._answer.fileno(), *self.held),
            start_new_session=True,  # Ctrl-C in a terminal reaches the caller, which cancels it
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin:  # no file: the config may hold a token
            self._process.stdin.write(json.dumps(self.request).encode())
        threading.Thread(target=self._collect, name=f"nbtools-{self.run.id}", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> TrialResult | None:
        """Wait for the result; None if the trial still runs after `timeout_s`."""
        self._has_ended.wait(timeout_s)
        return self._result

    def cancel(self) -> None:
        """End the trial, if it still runs, with all its processes; return when they have ended."""
        self._is_cancelled = True
        self._process.kill()  # it keeps no results, so it needs no graceful stop
        self._has_ended.wait()

    @property
    def phase(self) -> str:
        """Current phase: start, data, forward, backward or optimizer; empty once the trial has ended."""
        if self._has_ended.is_set():
            return ""
        return next((beat.phase for beat in read_heartbeats(self.run)), _STARTING)

    def log(self) -> str:
        """Return the end of the process's output."""
        with contextlib.suppress(ValueError):  # closed meanwhile
            if self._printed is None:
                return _end_of(self._log)
        return self._printed or ""

    def _collect(self) -> None:
        """Wait for the end of the process, however it ends, and leave nothing behind."""
        try:
            code = self._process.wait()
            sweep_processes(lambda: members(self.run), grace_s=0)
            ticket = self.request["ticket"]
            _remove(self.run, ticket and Path(ticket))
            self._printed = _end_of(self._log)
            self._result = self._outcome(code, _end_of(self._answer))
        finally:
            self._has_ended.set()
            self._log.close()
            self._answer.close()

    def _outcome(self, code: int, answer: str) -> TrialResult:
        line, end, _ = answer.partition("\n")
        if end:
            device, total_bytes = "", None
            if self.device is not None:
                device, total_bytes = f"GPU {self.device.index} ({self.device.name})", self.device.memory_total_bytes
            world_size = int(self.request["world_size"])
            return TrialResult.of(json.loads(line), self.config, world_size, device, total_bytes)
        if self._is_cancelled:
            return TrialResult(error="the trial was cancelled")
        last = next((line for line in reversed(self.log().splitlines()) if line.strip()), "it printed nothing")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return TrialResult(error=f"the process of the trial {how} without a result: {last[:500]}")


def _end_of(file: IO[bytes]) -> str:
    length = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), _LONGEST_LOG, max(0, length - _LONGEST_LOG)).decode(errors="replace")


def free_device(gpus: Sequence[Device], tickets: Sequence[Ticket]) -> Device:
    """Return the first GPU that no process holds and no run of the queue claims; LaunchError if there is none, and says
    what holds each."""
    uses = []
    for device in gpus:
        if not (names := gpu_queue.users_of(device, tickets)):
            return device
        uses.append(f"GPU {device.index} by {', '.join(names)}")
    is_caller = any(holder.is_caller for device in gpus for holder in device.holders)
    raise _in_use(uses, "restart this kernel to free it" if is_caller else "wait for its end")


def _in_use(uses: Sequence[str], step: str = "wait for its end") -> LaunchError:
    return LaunchError(f"a trial takes no GPU in use: {'; '.join(uses)}; {step}, or choose other GPUs")


def _link_cache(runs: Path, folder: Path) -> None:
    """Let the trial read the cached data of earlier runs; its own data are removed with it."""
    own = folder / CACHE
    own.mkdir()
    with contextlib.suppress(OSError):  # there is none
        for entry in (runs / CACHE).iterdir():
            (own / entry.name).symlink_to(entry)


def _remove(run: RunDir, ticket: Path | None) -> None:
    shutil.rmtree(run.path.parent, ignore_errors=True)
    if ticket is not None:
        with contextlib.suppress(OSError):
            ticket.unlink()
