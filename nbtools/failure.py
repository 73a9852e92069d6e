"""The first failure of a run: found after its end in what torch and the ranks left behind.

torchrun always exits 1. Which rank fell first, and of what, is told in two places: a rank whose `main` is wrapped
in `@record` writes its traceback to an error file, and torchrun prints a summary of all failed ranks as the last thing
in the log. Nothing but that summary tells of a signal or of `sys.exit`.
"""

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from nbtools.rundir import RunDir, read_json

_TAIL_BYTES = 512 * 1024  # torchrun's summary repeats whole tracebacks

_SUMMARY = re.compile(
    r"^\[\d+\]:\n"
    r" +time +: .*\n"
    r" +host +: (?P<host>.*)\n"
    r" +rank +: (?P<rank>\d+) \(local_rank: \d+\)\n"
    r" +exitcode +: (?P<exitcode>-?\d+) \(pid: (?P<pid>\d+)\).*\n"
    r" +error_file: (?P<error_file>.*)\n"
    r" +traceback : (?P<message>.*)$",
    re.MULTILINE,
)
_ROOT_CAUSE = "Root Cause (first observed failure):"
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[^\s\d].*$", re.MULTILINE)
"""The first line after a traceback's header that is not indented: `ValueError: boom`."""
_TORCHRUN = re.compile(r"^[EWI]\d{4} \d\d:\d\d:\d\d.*torch/distributed/elastic", re.MULTILINE)
_CLOSED = re.compile(r"Sending process (\d+) closing signal")


@dataclass(frozen=True)
class Failure:
    """The first failure of a run: the cause, not the ranks that fell over because of it."""

    rank: int | None
    host: str | None
    exitcode: int | None
    signal: str | None
    """Name of the signal that killed it, such as `SIGKILL`."""
    message: str
    """One line."""
    traceback: str | None = None

    @classmethod
    def from_json(cls, content: object) -> Self | None:
        """Read back what the supervisor or rank 0 wrote; None if it is nothing of the kind."""
        if not isinstance(content, Mapping) or not isinstance(content.get("message"), str):
            return None
        known: dict[str, Any] = {name: content.get(name) for name in cls.__dataclass_fields__}
        return cls(**known)

    def to_json(self) -> dict[str, Any]:
        """The failure as plain values."""
        return asdict(self)

    @property
    def headline(self) -> str:
        """One line: who, where, what."""
        if self.rank is None:
            return self.message
        where = f" on {self.host}" if self.host else ""
        return f"rank {self.rank}{where}: {self.message}"


def first_failure(run: RunDir, returncode: int, host: str, *, since: int = 0) -> Failure:
    """Tell why a run whose agent ended with `returncode` (negative: by that signal) failed.

    What stands in the log before byte `since` is of an earlier attempt.
    """
    log = _end_of(run.log, since)
    if returncode < 0:
        name = signal_name(-returncode)
        return Failure(None, host, returncode, name, f"the torchrun agent was killed by {name}")
    found = _from_summary(run, log, host)
    if found is not None:
        return found
    message, traceback = _error_file(run.error)  # the agent's own: it never came to starting ranks, or lost them
    if message is None:
        said, traceback = _last_words(log, returncode)
        message = f"exited with code {returncode}{said}"
    return Failure(None, host, returncode, None, message, traceback)


def was_told_to_stop(run: RunDir, *, since: int = 0) -> bool:
    """Whether torchrun was ended by a signal that did not come from the supervisor: a preemption, a `kill`.

    Rank 0 calling it a stop is not enough: when one rank fails, torchrun asks the others to stop, too.
    """
    if _ROOT_CAUSE in _end_of(run.log, since):
        return False
    message, _ = _error_file(run.error)
    was_signalled = message is not None and message.startswith("SignalException")
    return was_signalled or (read_json(run.finished) or {}).get("why") == "stopped"


def signal_name(number: int) -> str:
    """Name of a signal, such as `SIGKILL`; unknown ones by number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _from_summary(run: RunDir, log: str, host: str) -> Failure | None:
    """Choose the first failing rank from torchrun's summary of all failed ranks."""
    summary, _, root = log.rpartition(_ROOT_CAUSE)
    if not root:
        return None
    blocks = [*_SUMMARY.finditer(root), *_SUMMARY.finditer(summary)]
    if not blocks:
        return None
    # torchrun compares whole seconds, so a rank that died of its peer's death may pass for the root cause. But the
    # ranks that it had to close were alive when it noticed the first end, and of the others a signal comes from
    # outside while an exception may be an echo.
    closed = {int(pid) for pid in _CLOSED.findall(log)}
    first = min(blocks, key=lambda block: (int(block["pid"]) in closed, not _is_foreign_signal(int(block["exitcode"]))))
    rank, exitcode = int(first["rank"]), int(first["exitcode"])
    named = first["host"].strip()
    host = host if named == "localhost" else named  # the fully qualified name of a machine without one
    message, traceback = _error_file(Path(first["error_file"]), inside=run.ranks)
    killed_by = signal_name(-exitcode) if exitcode < 0 else None
    if killed_by is not None:
        message = f"killed by {killed_by}{_last_step(run, rank)}"
    elif message is None:
        said, traceback = _last_words(_printed_by(run, rank, log), exitcode)
        message = f"exited with code {exitcode}{_last_step(run, rank)}{said}"
    return Failure(rank, host, exitcode, killed_by, message, traceback)


def _is_foreign_signal(exitcode: int) -> bool:
    return exitcode < 0 and exitcode != -signal.SIGTERM


def _last_step(run: RunDir, rank: int) -> str:
    step = (read_json(run.heartbeat(rank)) or {}).get("step")
    return f" at step {step}" if isinstance(step, int) else ""


def _printed_by(run: RunDir, rank: int, log: str) -> str:
    """The output of a rank that left no error file; rank 0's stands in the log, before torchrun's own."""
    text = log if rank == 0 else "\n".join(_end_of(path) for path in reversed(run.rank_logs(rank)))
    return _TORCHRUN.split(text)[0]


def _last_words(text: str, exitcode: int) -> tuple[str, str | None]:
    """What a Python program printed last: its exception and the traceback (both end in code 1), else its last line."""
    _, header, rest = text.rpartition(_TRACEBACK)
    if exitcode == 1 and header and (exception := _EXCEPTION.search(rest)):
        return f": {exception[0].strip()[:500]}", (header + rest).rstrip()
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
    return f": {lines[-1].strip()[:500]}" if lines else " without a word (sys.exit?)", None


def _error_file(path: Path, inside: Path | None = None) -> tuple[str | None, str | None]:
    """Read what `@record` wrote: `ValueError: boom` and the traceback; (None, None) without one."""
    if inside is not None and not path.is_relative_to(inside):  # the log is text that anybody may have printed
        return None, None
    try:
        content = json.loads(path.read_bytes())["message"]
        if isinstance(content, str):
            return content.strip().split("\n")[0], None
        message, extra = str(content["message"]), content.get("extraInfo", {})
        return message.strip().split("\n")[0], extra.get("py_callstack")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, None


def _end_of(path: Path, since: int = 0) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(since, file.tell() - _TAIL_BYTES, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
