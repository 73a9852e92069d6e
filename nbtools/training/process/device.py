"""This process and the run directory: signals, the agent's death, the heartbeat, and a run that was started by hand."""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import hashlib
import io
import multiprocessing
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Self, TextIO

import torch

from nbtools import __version__
from nbtools.config import Launch
from nbtools.errors import LaunchError, ProjectError
from nbtools.failures.failure import Failure, explained
from nbtools.failures.known_errors import is_echo
from nbtools.machine import devices
from nbtools.project import find_project
from nbtools.recipes import recipe_of
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, ProcessIdentity, RunDir, acquire_lock, read_json, write_json
from nbtools.training import PARENT_PID
from nbtools.training.engine import checkpoint
from nbtools.training.engine.flags import Flags
from nbtools.training.process import launchers

_PR_SET_PDEATHSIG = 1
_BEAT_EVERY_S = 1.0


def seed_everything(seed: int, rank: int, *, deterministic: bool) -> None:
    """Seed this rank's generators: dropout differs between ranks, weights do not (DDP sends rank 0's)."""
    checkpoint.seed(seed + 1_000_003 * rank)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False


def is_under_torchrun() -> bool:
    """Whether torchrun (or a launcher built on it) started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def script_path() -> Path:
    """The script that this process runs."""
    return Path(getattr(sys.modules["__main__"], "__file__", None) or sys.argv[0]).resolve()


def die_with_agent() -> None:
    """Let the kernel kill this rank when torchrun's agent dies: nobody else would (Linux only).

    Only under torchrun: a process that a shell put into the background has to outlive that shell.
    """
    if not is_under_torchrun() or sys.platform != "linux":
        return
    _die_with_parent()
    if os.getppid() != PARENT_PID:  # it died before we asked
        raise SystemExit("torchrun's agent is gone")


def loader_worker_init() -> Callable[[int], None]:
    """Return a `worker_init_fn` that lets DataLoader workers end with this rank, neither earlier nor later.

    torchrun signals the whole process group of a rank, as a terminal and Slurm do. A rank goes on to the end of its
    step and a checkpoint, and for that it needs its workers.
    """
    is_leaving = multiprocessing.RawValue("b", 0)
    # Runs before multiprocessing's own, which sends SIGTERM to the children that are left, and waits for them.
    atexit.register(setattr, is_leaving, "value", 1)
    return functools.partial(_stay_with_rank, is_leaving)


def _stay_with_rank(is_leaving: Any, worker_id: int) -> None:
    def obey(number: int, frame: FrameType | None) -> None:
        if is_leaving.value:
            os._exit(0)

    signal.signal(signal.SIGTERM, obey)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        _die_with_parent()  # torch's own way notices in 5 s
    rank = multiprocessing.parent_process()
    if rank is not None and not rank.is_alive():  # it died before we asked
        os._exit(1)


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def stay_on_this_machine() -> None:
    """Where all ranks are on one machine, let gloo listen on the loopback interface only, unless the user chose one."""
    name = devices.loopback()
    if name is not None and os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE"):
        os.environ.setdefault(devices.GLOO_INTERFACE, name)


class StopRequest:
    """SIGTERM and SIGINT as a flag. A handler that did more could interrupt a save halfway."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        if is_under_torchrun():
            return  # the process ends now: a late signal must not turn a clean end into a death
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


class Phase(NamedTuple):
    """What a rank does, and since when."""

    name: str
    step: int
    """Optimizer steps done."""
    since: float
    """Unix time."""
    nth: int
    """How many phases began since the last step: the same for all ranks at the same place."""


class StacksOnSignal:
    """Makes a signal write the Python stacks of all threads into a file, whatever this process is doing.

    faulthandler does that in the signal's handler itself, so a rank that waits in a collective answers, too.
    """

    def __init__(self, path: Path) -> None:
        self.number: int | None = None
        """The signal; None if somebody else has a handler for it, or there is no room for the file."""
        if signal.getsignal(signal.SIGUSR2) not in (signal.SIG_DFL, signal.SIG_IGN):
            return
        with contextlib.suppress(OSError):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            faulthandler.register(signal.SIGUSR2, file=self._file, all_threads=True, chain=False)
            self.number = int(signal.SIGUSR2)

    def close(self) -> None:
        """Give the signal back; not where the process ends now, for one that comes late would be its death."""
        if self.number is not None and not is_under_torchrun():
            faulthandler.unregister(self.number)
            os.close(self._file)
        self.number = None


class Heartbeat:
    """Writes down once a second what this rank is doing, if that changed: `time` is when it began, not when it was
    written, so a rank that hangs shows since when and in what.
    """

    def __init__(self, files: RunDir, rank: int, stop: StopRequest) -> None:
        self.phase = Phase("start", 0, time.time(), 1)
        """Replaced as a whole."""
        self._files = files
        self._rank = rank
        self._stop = stop
        self._written: Phase | None = None
        self._identity = ProcessIdentity.of(os.getpid())
        self._stacks = StacksOnSignal(files.stacks(rank))
        self._closing = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def enter(self, name: str, step: int) -> None:
        """Begin a phase; costs nothing, the thread writes it down."""
        nth = self.phase.nth + 1 if self.phase.step == step else 1
        self.phase = Phase(name, step, time.time(), nth)

    def close(self) -> None:
        """Write the last phase and end the thread."""
        self._closing.set()
        self._thread.join()
        self._write()
        self._stacks.close()

    def _beat(self) -> None:
        while not self._closing.wait(_BEAT_EVERY_S):
            self._write()
            if self._stop.requested and self._peer_died():
                # torchrun stops us because of that rank. On GPUs the collective that waits for it would not end.
                os._exit(1)

    def _write(self) -> None:
        current = self.phase
        if current is self._written:
            return
        content = {
            "rank": self._rank,
            **self._identity.to_json(),
            "step": current.step,
            "phase": current.name,
            "nth": current.nth,
            "time": current.since,
            "stacks_signal": self._stacks.number,
        }
        with contextlib.suppress(OSError):  # a full disk must not end a training
            write_json(self._files.heartbeat(self._rank), content)
            self._written = current

    def _peer_died(self) -> bool:
        for path in self._files.ranks.glob("*.heartbeat.json"):
            beat = read_json(path) or {}
            if beat.get("host") == socket.gethostname() and beat.get("phase") != "done":
                try:
                    os.kill(int(beat["pid"]), 0)
                except ProcessLookupError:
                    return True
                except (OSError, KeyError, ValueError, TypeError):
                    continue
        return False


def choose_device(local_rank: int) -> torch.device:
    """This rank's device; never the CPU where the user has a reason to expect a GPU."""
    if launchers.wants_cpu(os.environ):
        return torch.device("cpu")
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise LaunchError(
                f"local rank {local_rank}, but only {torch.cuda.device_count()} GPUs are visible: one process per GPU; "
                "lower nproc_per_node, or set CUDA_VISIBLE_DEVICES= to train on the CPU"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden not in ("", "-1") and (found := devices.devices()):
        raise LaunchError(
            f"{len(found)} GPUs ({found[0].name}) with driver {devices.driver_version()}, but torch "
            f"{torch.__version__} (CUDA {torch.version.cuda}) cannot use them; install a build that fits the driver, "
            "or set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    return torch.device("cpu")


def failure_of(error: BaseException, rank: int, files: RunDir) -> Failure:
    """Describe what ended a rank, for finished.json."""
    text = "".join(traceback.format_exception(error))
    message = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    # Where rank 0 only noticed the fall of another rank, that one's own log tells which.
    who = (None, None) if is_echo(message) else (rank, 1)
    return explained(Failure(who[0], os.uname().nodename, who[1], None, message, text), files)


# --- the run directory ----------------------------------------------------------------------------


def claim_run(flags: Flags[Any]) -> Path:
    """Return the run directory that the launcher made for us; without one, make it (rank 0 only)."""
    given = os.environ.get(RUN_DIR_VARIABLE)
    if given is None:
        return _run_by_hand(flags)
    if not Path(given).is_dir():
        raise LaunchError(f"{RUN_DIR_VARIABLE}={given!r}: no such folder; start scripts with `nbtools launch`")
    return Path(given)


def _run_by_hand(flags: Flags[Any]) -> Path:
    """Make and fill the run directory of a script that a person started: all but the supervisor's files."""
    script = script_path()
    if not script.is_file():
        raise ProjectError("main(config) has to be called from a script: its name and folder become the run's")
    name = re.sub(r"\W", "_", script.stem)
    try:
        files = RunDir.create(find_project(script.parent).runs, name)
    except OSError as error:
        raise ProjectError(f"the run directory cannot be made: {error}; make the project's runs/ writable") from error
    _held.append(acquire_lock(files.lock))
    shutil.copyfile(script, files.script)
    under_torchrun = is_under_torchrun()
    identity = ProcessIdentity.of(os.getppid() if under_torchrun else os.getpid())
    write_json(files.process, {"role": "torchrun" if under_torchrun else "worker", **identity.to_json()})
    resumed_from = flags.resume_from and flags.resume_from.expanduser().resolve()
    if resumed_from and resumed_from.is_file():
        resumed_from = None  # weights of an older program: there is no run to go on from
    ours = ("NBTOOLS_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    gpus = None if torch.cuda.is_available() else ()
    launch = Launch(nproc_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), gpus=gpus)
    content = {
        "name": name,
        "script": str(script),
        "script_sha256": hashlib.sha256(files.script.read_bytes()).hexdigest(),
        "recipe": recipe_of(flags.config).key,
        "argv": [sys.executable, *sys.argv],
        "args": sys.argv[1:],
        "cwd": str(Path.cwd()),
        "env": {key: value for key, value in os.environ.items() if key.startswith(ours)},
        "launch": launch.model_dump(mode="json"),
        "versions": {"python": sys.version.split()[0], "nbtools": __version__, "torch": torch.__version__},
        "host": socket.gethostname(),
        "time": time.time(),
        "resumed_from": resumed_from
        and {
            "run": resumed_from.parent.parent.name,
            "checkpoint": resumed_from.name,
            "step": int(resumed_from.name.rpartition("-")[2]) if resumed_from.name[-1].isdecimal() else 0,
        },
        "by_hand": True,
    }
    write_json(files.launch, content)
    log = files.log.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
    sys.stdout, sys.stderr = _Copied(sys.stdout, log), _Copied(sys.stderr, log)
    return files.path


_held: list[int | None] = []
"""Descriptor of the lock, which lives as long as this process."""


class _Copied(io.TextIOBase):
    """A terminal whose text also goes to a log."""

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self._terminal = terminal
        self._log = log

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._log.write(text)
        return self._terminal.write(text)

    def flush(self) -> None:
        self._terminal.flush()

    def fileno(self) -> int:
        return self._terminal.fileno()

    def isatty(self) -> bool:
        return self._terminal.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding
