"""The run directory: every file name in one class, and the few ways in which its files are written.

This directory is the only protocol between the processes of a run and everybody who looks at it.
Each file has one writing process, is written once by an atomic rename or only appended to, and every
JSON file says `"format": 1`. Readers ignore unknown keys.
"""

import datetime
import errno
import fcntl
import json
import math
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import psutil

from nbtools.errors import FormatError, RunNotFoundError

FORMAT = 1
LARGEST_JSON_BYTES = 16 * 2**20
"""A larger file is none of ours."""
MAX_STEP = 2**53
"""The greatest step that a float holds exactly, so that it can be drawn."""
_PASSING = (errno.ESTALE, errno.EIO, errno.ETIMEDOUT)
"""What a network file system may say once of a file that is well: another machine replaced it, the server is slow."""

T = TypeVar("T")

RUN_ID_VARIABLE = "NBTOOLS_RUN_ID"
"""Environment variable that every process of a launched run carries from its start."""
ATTEMPT_VARIABLE = "NBTOOLS_ATTEMPT"
"""Environment variable with the number of the attempt; greater than 1 after an automatic restart."""
RUN_DIR_VARIABLE = "NBTOOLS_RUN_DIR"
"""Environment variable that holds the absolute path of a launched run's directory."""


class RunDir:
    """Names of the files of one run. Holds paths and nothing else."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.id = self.path.name
        """The run's id: the directory's name."""
        self.launch = self.path / "launch.json"
        """What was started: argv, cwd, the environment that matters, versions (launcher, once)."""
        self.script = self.path / "script.py"
        """The bytes that ran (launcher, once)."""
        self.config = self.path / "config.json"
        """The resolved config: `config`, `overridden`, `derived` (rank 0, once)."""
        self.process = self.path / "process.json"
        """Whom to signal: a `ProcessIdentity` with its `role` (supervisor, or rank 0 by hand; once)."""
        self.log = self.path / "rank0.log"
        """Output of rank 0 and of torchrun; exists from the moment torchrun starts."""
        self.metrics = self.path / "metrics.jsonl"
        """Metric rows (rank 0, appended)."""
        self.system = self.path / "system.jsonl"
        """Use of GPUs, CPU and memory (supervisor, appended)."""
        self.ranks = self.path / "ranks"
        """Folder of the heartbeats, and of the other ranks' logs as torchrun lays them out."""
        self.error = self.ranks / "error.json"
        """Traceback of the first failing rank, as torch's `@record` wrote it."""
        self.supervisor_log = self.ranks / "supervisor.log"
        """What the supervisor itself had to say; empty if all went well."""
        self.checkpoints = self.path / "checkpoints"
        """Folder of the checkpoints."""
        self.exhibits = self.path / "exhibits"
        """What the training shows beside its curves: see `nbtools.rundir.media` (rank 0, appended)."""
        self.outputs = self.path / "outputs"
        """What a finished training hands over: `model/`, its history as JSON and as a picture (rank 0, once)."""
        self.tensorboard = self.path / "tensorboard"
        """The metric rows as TensorBoard events, where asked for (rank 0, a file per attempt)."""
        self.profile = self.path / "profile"
        """`trace.json` and `table.txt` of the profiled steps, where asked for (rank 0, once)."""
        self.finished = self.path / "finished.json"
        """`why` (completed, stopped, failed), last `step`, final `metrics` (rank 0, once)."""
        self.exit = self.path / "exit.json"
        """`returncode`, `signal`, `stopped`, `failure` (supervisor, once)."""
        self.attempts = self.path / "attempts.jsonl"
        """One line per automatic restart: the `attempt` that failed, why, and where the next goes on (supervisor)."""
        self.seen = self.path / "seen.json"
        """When a panel last showed the run, so that the next one can tell what happened since (the panel)."""
        self.lock = self.path / "lock"
        """Held with flock as long as the supervisor or the torchrun agent lives."""

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @classmethod
    def create(cls, runs: Path, name: str) -> Self:
        """Make `runs/<date>_<time>_<name>`; the second of the same second gets `_2`, and so on.

        `mkdir` decides who got a name, so that any number of processes may create runs at once.
        """
        runs.mkdir(parents=True, exist_ok=True)
        stem = f"{datetime.datetime.now():%Y-%m-%d_%H%M%S}_{name}"
        number = 1
        while True:
            path = runs / (stem if number == 1 else f"{stem}_{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
            else:
                run = cls(path)
                run.ranks.mkdir()
                run.checkpoints.mkdir()
                return run

    def heartbeat(self, rank: int) -> Path:
        """The one file that is replaced again and again: a rank's last sign of life."""
        return self.ranks / f"{rank}.heartbeat.json"

    def stacks(self, rank: int) -> Path:
        """Where a rank that announced a handler writes its Python stacks when it is asked for them (appended)."""
        return self.ranks / f"{rank}.stacks.txt"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint taken after `step` optimizer steps; visible only when it is whole."""
        return self.checkpoints / f"step-{step:06d}"

    def rank_logs(self, rank: int) -> list[Path]:
        """Log files of a rank other than 0 under the newest agent: torchrun makes a folder at each start."""
        logs = sorted(self.ranks.glob(f"*/attempt_*/{rank}/std*.log"))
        newest = max((log.parents[2] for log in logs), key=_written_at, default=None)
        return [log for log in logs if log.parents[2] == newest]


def is_run(path: Path) -> bool:
    """Whether a launcher got as far as taking the lock: before that, nothing can be told about a directory."""
    try:
        return retried(lambda: (path / "lock").is_file() or (path / "launch.json").is_file())
    except OSError:  # somebody else's folder
        return False


def run_folders(runs: Path) -> list[Path]:
    """Run directories in `runs`, newest first."""
    try:
        paths = [path for path in retried(lambda: list(runs.iterdir())) if is_run(path)]
    except OSError:
        return []
    return sorted(paths, key=lambda path: (path.name[:17], _written_at(path / "launch.json"), path.name), reverse=True)


def find_run(runs: Path, ref: str) -> Path:
    """Return the directory in `runs` that `ref` means: an id, a prefix that fits one id only, or `latest`.

    Raises:
        RunNotFoundError: none fits, or several do.
    """
    folders = run_folders(runs)
    if ref == "latest":
        if not folders:
            raise RunNotFoundError(f"no run in {runs} yet: start one with nbtools launch SCRIPT")
        return folders[0]
    fitting = [path for path in folders if path.name == ref] or [
        path for path in folders if ref and path.name.startswith(ref)
    ]
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting[:5]) + (", …" if len(fitting) > 5 else "")
        raise RunNotFoundError(f"run {ref!r}: {len(fitting)} runs begin so ({names}); give more of the id")
    if not fitting:
        raise RunNotFoundError(f"run {ref[:80]!r}: no run in {runs} has this id or prefix; see nbtools runs")
    return fitting[0]


def name_of(run_id: str) -> str:
    """The name in a run's id, without date and time."""
    return re.sub(r"^[0-9-]{10}_[0-9]{6}_", "", run_id)


def _written_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns  # launch.json is written once, so this orders the runs of one second
    except OSError:
        return 0


# --- JSON files ---------------------------------------------------------------------------------


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` with `"format": 1` under `path` by an atomic rename; strict JSON only."""
    data = json.dumps({"format": FORMAT, **content}, allow_nan=False, ensure_ascii=False, indent=1)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def write() -> None:
        temporary.write_text(data + "\n", encoding="utf-8", errors="backslashreplace")
        temporary.replace(path)

    try:
        retried(write)
    finally:
        temporary.unlink(missing_ok=True)


def retried(act: Callable[[], T]) -> T:
    """Do something with a file; again, within a second, where a network file system has lost track of it meanwhile."""
    for pause_s in (0.01, 0.1, 0.5):
        try:
            return act()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
        time.sleep(pause_s)
    return act()


def strict_number(value: float) -> float | str:
    """Return a number as strict JSON can hold it: what is not finite becomes `"NaN"` or `"Infinity"`."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def whole(value: object) -> int | None:
    """A whole number that a file claims, if one can count with it: 0 to `MAX_STEP`."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= MAX_STEP else None


def finite(value: object) -> float | None:
    """A number that a file claims, if one can calculate with it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) <= sys.float_info.max else None


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in `path`, or None where there is none (yet) that can be read.

    Raises:
        FormatError: a newer nbtools wrote the file.
    """
    try:
        content = json.loads(retried(lambda: read_small(path)), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    version = content.get("format", FORMAT)
    if not isinstance(version, int):
        return None
    if version > FORMAT:
        raise FormatError(f"{path}: format {version}, but this nbtools reads up to {FORMAT}; update nbtools")
    return content


def read_small(path: Path) -> bytes:
    """Return what is in a regular file of at most `LARGEST_JSON_BYTES`; others are not waited for, nor held in memory.

    Raises:
        OSError: there is none, or it is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(LARGEST_JSON_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > LARGEST_JSON_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not strict JSON")


# --- the lock -----------------------------------------------------------------------------------


def acquire_lock(path: Path, *, is_new: bool = False) -> int | None:
    """Take the run's lock and return its descriptor, or None if somebody holds it.

    The lock lives as long as any copy of the descriptor does: hand it on with `pass_fds`. A link is never followed.

    Args:
        path: the file, made if it is missing.
        is_new: insist on making it: where others may write, too, whatever is there may be a trap.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_new else os.O_NOFOLLOW), 0o644)
    try:  # where stdin is closed, `open` returns 0, which a child would replace by its own stdin
        descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(opened)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds the lock, without ever standing in a taker's way for more than an instant."""
    try:
        descriptor = retried(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two readers never see each other
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP):
            return False
        raise
    finally:
        os.close(descriptor)
    return False


def goes_on(run: RunDir) -> bool:
    """Whether a run has yet to end; one that was deleted has ended."""
    return not run.exit.exists() and is_locked(run.lock)


# --- processes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for another which was given the same pid later."""

    pid: int
    start_time: float
    """Seconds since boot at which the kernel started it: immune to clock jumps."""
    boot_id: str
    host: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """Identity of the living process `pid`.

        Raises:
            psutil.NoSuchProcess: there is none.
        """
        return cls(pid, _start_time(pid), _boot_id(), socket.gethostname())

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self | None:
        """Read an identity back; None if a key is missing or of the wrong type."""
        try:
            return cls(int(content["pid"]), float(content["start_time"]), str(content["boot_id"]), str(content["host"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def to_json(self) -> dict[str, Any]:
        """The identity as plain values."""
        return asdict(self)

    def is_alive(self) -> bool:
        """Whether this very process lives on this machine (a zombie does not)."""
        if self.host != socket.gethostname() or self.boot_id != _boot_id() or self.pid <= 0:
            return False
        try:
            if psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(_start_time(self.pid) - self.start_time) < 0.005
        except psutil.Error:
            return False


def _start_time(pid: int) -> float:
    """Seconds from boot to the start of `pid` (Linux: field 22 of /proc/PID/stat, in clock ticks)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    except OSError:
        return psutil.Process(pid).create_time()  # no /proc: the wall clock is the next best
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
