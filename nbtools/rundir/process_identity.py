"""The identity of a process, safe against reused pids."""

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
    host: str

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the identity of the living process `pid`.

        Raises:
            psutil.NoSuchProcess: there is no such process.
        """
        return cls(pid, _start_time(pid), _boot_id(), socket.gethostname())

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self | None:
        """Return the identity in a JSON object; None if a key is missing or of the wrong type."""
        try:
            return cls(int(content["pid"]), float(content["start_time"]), str(content["boot_id"]), str(content["host"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def to_json(self) -> dict[str, Any]:
        """Return the identity as plain values."""
        return asdict(self)

    def is_alive(self) -> bool:
        """Whether this process runs on this machine; a zombie does not."""
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
        return psutil.Process(pid).create_time()  # no /proc: use the wall clock
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
