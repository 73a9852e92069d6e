"""Known errors and signals, each with its cause and the setting to change.

Extend known_errors.toml freely. Whether the kernel sent a SIGKILL for lack of memory is decided by the memory in use
before it and by the kernel's count of such kills.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import psutil

from nbtools.errors import plural
from nbtools.rundir.json_files import whole


@dataclass(frozen=True)
class Cause:
    """A known error: an entry of known_errors.toml, which says what its fields are."""

    pattern: str
    words: str
    advice: str
    is_often_handled: bool = False
    name: str = ""


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def causes() -> tuple[Cause, ...]:
    """Return the known errors in their order."""
    found = []
    for row in _tables()["cause"]:
        pattern, what_to_do = "|".join(row["pattern"]), row["advice"].replace("{less_memory}", advice("less_memory"))
        found.append(Cause(**{**row, "pattern": pattern, "advice": what_to_do}))
    return tuple(found)


def known(name: str) -> Cause:
    """Return the known error of a name."""
    return next(cause for cause in causes() if cause.name == name)


def advice(name: str) -> str:
    """Return advice that the code gives: `less_memory`, or `left_first` of ranks that ended while others waited."""
    return str(_tables()["advice"][name])


def signal_meaning(name: str) -> tuple[str, str | None]:
    """Return what a signal means for a rank that was not killed for lack of memory, and advice; "" if it is unknown."""
    row = _tables()["signal"].get(name, {})
    return row.get("words", ""), row.get("advice")


_FOLLOWS = re.compile(
    r"^(?:exited with code \d+(?: at step \d+)?: )?(?:\w+\.)*"
    r"(?:Dist(?:Backend|Network|Store)Error|Broken(?:Pipe|Barrier)Error|Connection(?:Reset|Aborted|Refused)Error|SystemExit|KeyboardInterrupt|SignalException|SIGTERMException"
    r"|StopIteration|Empty)(?::|$)|/gloo/|monitoredBarrier"
)
"""Errors of communication, requests to end, and exceptions that programs handle, with a collective in the handler."""
_AFTER_FREE_MEMORY = re.compile(r"(?<= is free)\. .*", re.DOTALL)


def without_allocator(message: str) -> str:
    """Return a message of torch without what follows the GPU's free memory: the allocator's figures and a variable."""
    return _AFTER_FREE_MEMORY.sub("", message)


def cause_of(message: str, said: str = "", led_to: str = "") -> Cause | None:
    """Return the first known cause of an error with this message.

    Args:
        message: The message.
        said: All exceptions of its traceback, a line each.
        led_to: Those that were not handled.
    """
    for cause in causes():
        others = "" if cause.name == "rank_lost" else led_to if cause.is_often_handled else said
        if re.search(cause.pattern, f"{message}\n{others}"):
            return cause
    return None


def is_echo(message: str) -> bool:
    """Whether a rank with this message only noticed that another rank had failed."""
    return cause_of(message) is known("rank_lost")


def follows_another(message: str) -> bool:
    """Whether an error may follow from another rank's: a lost connection, a long wait, a request to end."""
    cause = cause_of(message)
    return cause.name in ("rank_lost", "timeout", "not_joined") if cause else _FOLLOWS.search(message) is not None


def waited(said: str) -> str:
    """Return how long a rank waited for a collective, by its error: `10 min`."""
    if (found := re.search(r"(?:Timed out waiting |Timeout\(ms\)=|wait timeout after )(\d{1,12})", said)) is None:
        return "too long"
    seconds = int(found[1]) / 1000
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"


_ALARMING_SHARE = 0.9


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host, or of the container (control group) around this process if that has less left."""

    memory_used_bytes: int
    """Memory in use, without page cache."""
    memory_total_bytes: int
    oom_kills: int | None
    """Number of processes that the kernel killed for lack of memory; None if it is unknown."""

    @classmethod
    def from_row(cls, row: object) -> Self | None:
        """Return the memory in a row of system.jsonl; None if the row has none."""
        values = row if isinstance(row, Mapping) else {}
        used, total, kills = (whole(values.get(name)) for name in cls.__dataclass_fields__)
        return cls(used, total, kills) if used is not None and total else None

    @property
    def share(self) -> float:
        """Share of the memory that is in use."""
        return self.memory_used_bytes / self.memory_total_bytes

    def __str__(self) -> str:
        return f"{self.memory_used_bytes / 2**30:.1f} of {self.memory_total_bytes / 2**30:.1f} GiB in use"


def host_memory(cgroups: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> HostMemory:
    """Return the memory in use and in total, within the limits of control groups (version 2), in about 0.5 ms."""
    memory = psutil.virtual_memory()
    levels = [(memory.total - memory.available, memory.total)]
    oom_kills = None
    for folder in _control_groups(cgroups, proc):
        if oom_kills is None:  # the innermost group counts the kills of its own processes
            oom_kills = _numbers(folder / "memory.events").get("oom_kill")
        total, used, parts = (_numbers(folder / f"memory.{name}") for name in ("max", "current", "stat"))
        if total.get("") and "" in used:
            cache = parts.get("file", 0) - parts.get("shmem", 0)  # shared memory within it cannot be dropped
            levels.append((used[""] - cache, total[""]))
    used_bytes, total_bytes = min(levels, key=lambda level: level[1] - level[0])
    if oom_kills is None:
        oom_kills = _numbers(proc / "vmstat").get("oom_kill")
    return HostMemory(max(0, used_bytes), total_bytes, oom_kills)


def lack_of_memory(before: Sequence[HostMemory], now: HostMemory) -> str | None:
    """Return a sentence if memory most likely ran out, by readings before and after a SIGKILL; else None."""
    if not before:
        return None
    fullest = max(before, key=lambda reading: reading.share)
    first, last = before[0].oom_kills, now.oom_kills
    if first is not None and last is not None and (kills := last - first) > 0:
        ended, size = plural(kills, "process"), f"{fullest.memory_total_bytes / 2**30:.1f} GiB"
        return f"most likely the host ran out of memory: the kernel ended {ended} for lack of it ({size} in all)"
    return f"most likely the host ran out of memory: {fullest}" if fullest.share >= _ALARMING_SHARE else None


def _control_groups(cgroups: Path, proc: Path) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, inner ones first."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for name in (line.removeprefix("0::") for line in lines if line.startswith("0::")):
        folder = cgroups / name.lstrip("/")
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(cgroups))  # a container shows some


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers in lines of `name number`; a number alone has the name `""`. Empty without a readable file."""
    try:
        lines = [line.rpartition(" ") for line in path.read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {name: int(number) for name, _, number in lines if number.isdecimal()}
