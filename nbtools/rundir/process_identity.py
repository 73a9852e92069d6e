"""The identity of a process, safe against reused pids."""

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, distinct from any later process with the same pid."""

    pid: int
    start_time: float
    """Seconds since boot at which the process started; independent of the wall clock."""
    boot_id: str
    host: str = field(compare=False)
    pid_namespace: int = 0
    """Number of the space of pids, which containers do not share; 0 if it is not recorded."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the identity of the living process `pid`.

        Raises:
            psutil.NoSuchProcess: there is no such process.
        """
        return cls(pid, _start_time(pid), _boot_id(), socket.gethostname(), _pid_namespace())

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self | None:
        """Return the identity in a JSON object; None if a key is missing or of the wrong type."""
        try:
            where = str(content["boot_id"]), str(content["host"]), int(content.get("pid_namespace", 0))
            return cls(int(content["pid"]), float(content["start_time"]), *where)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain values."""
        return asdict(self)

    @property
    def is_here(self) -> bool:
        """Whether the pid is one of this machine since its last start; its name may have changed meanwhile."""
        if self.boot_id != _boot_id() or self.pid_namespace not in (0, _pid_namespace()):
            return False
        return self.boot_id != "" or self.host == socket.gethostname()

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process of another machine or container: not `is_here`, and under another name."""
        return not self.is_here and self.host != socket.gethostname()

    def is_alive(self) -> bool:
        """Whether this process runs on this machine; a zombie does not."""
        if not self.is_here or self.pid <= 0:
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
        return psutil.Process(pid).create_time()  # no /proc: use the wall clock
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
