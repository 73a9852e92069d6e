"""What the processes of a run leave behind for whoever asks why it failed: output, tracebacks, heartbeats, rows.

Readers only, and none of them raises: what cannot be read tells nothing.
"""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtools.errors import FormatError
from nbtools.rundir.json_files import read_small
from nbtools.rundir.rundir import RunDir

if TYPE_CHECKING:
    from nbtools.rundir.heartbeat import RankBeat

_TAIL_BYTES = 512 * 1024  # torchrun's summary repeats whole tracebacks
_ROWS_BYTES = 64 * 1024
_MAX_TRACEBACK = 64 * 1024
_MAX_MESSAGE = 500

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("another exception occurred:", "the following exception:", "\nOriginal")
"""Ends what stands before a further traceback of the same error; the last is a DataLoader's, before its worker's."""
_CRASH = "Fatal Python error: "
"""Begins what faulthandler writes at a fatal signal."""
_UNINDENTED = re.compile(r"^[^\s\d].*$", re.MULTILINE)
"""Of what follows a traceback's header the exceptions: `ValueError: boom`."""
_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<function>[^\n]+)(?:\n {4,}(?P<source>\S[^\n]*))?',
    re.MULTILINE,
)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
"""What torch puts before each line of a traceback once there is a process group."""
_TORCHRUN = re.compile(r"^[EWI]\d{4} \d\d:\d\d:\d\d.*torch/distributed/elastic", re.MULTILINE)

_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\]|^<")
_PACKAGE = Path(__file__).resolve().parent
_PLUMBING = ("__init__", "banner", "checkpoint", "flags", "process", "step", "worker")
"""Modules of `nbtools.training` that are no training code: the frame of the loop that called them tells more."""


# --- tracebacks ---------------------------------------------------------------------------------


def training_frame(traceback: str, run: RunDir) -> str | None:
    """Name the deepest frame of the training code: `scripts/toy.py:33 in train: loss.backward()`.

    Training code is the script, a recipe and the user's modules: nothing of Python's, a library's or the plumbing of
    nbtools. Where exceptions are chained, it is the frame of the last one that has any.
    """
    if traceback.startswith(_CRASH):
        traceback = "\n".join(reversed(traceback.split("\n")))  # its innermost frame comes first
    for part in reversed(traceback.split(_TRACEBACK)):
        frames = [frame for frame in _FRAME.finditer(part) if _is_training_code(Path(frame["file"]))]
        if frames:
            frame = frames[-1]
            source = f": {frame['source'].strip()}" if frame["source"] else ""
            return f"{_shown(Path(frame['file']), run)}:{frame['line']} in {frame['function']}{source}"[:300]
    return None


def exceptions(traceback: str) -> list[str]:
    """The first line of every exception in a chain, in its order: `ValueError: boom`."""
    found = (_UNINDENTED.search(part) for part in traceback.split(_TRACEBACK)[1:])
    return [line[0].strip() for line in found if line is not None]


def lost_loader_worker(traceback: str) -> bool:
    """Whether the connection to a DataLoader's worker broke; torch is often too slow to see that the worker died."""
    return "in _try_get_data\n" in traceback and "multiprocessing/connection.py" in traceback


def crash_report(printed: str) -> str | None:
    """What Python's faulthandler printed last at a fatal signal; None where it was not on."""
    _, crash, rest = printed.rpartition(_CRASH)
    return (crash + rest).rstrip()[:_MAX_TRACEBACK] or None if crash else None


def last_words(text: str, exitcode: int) -> tuple[str, str | None]:
    """What a Python program printed last: its exception and the traceback (both end in code 1), else its last line."""
    parts = text.split(_TRACEBACK)
    first = len(parts) - 1
    while first > 1 and parts[first - 1].rstrip().endswith(_CHAINED):
        first -= 1
    chain = parts[max(first, 1) :]
    raised = next((part for part in chain[:-1] if part.rstrip().endswith("\nOriginal")), chain[-1] if chain else "")
    if exitcode == 1 and (exception := _UNINDENTED.search(raised)):
        return f": {exception[0].strip()[:_MAX_MESSAGE]}", (_TRACEBACK + _TRACEBACK.join(chain)).rstrip()[
            :_MAX_TRACEBACK
        ]
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
    return f": {lines[-1].strip()[:_MAX_MESSAGE]}" if lines else " without a word (sys.exit?)", None


def _is_training_code(file: Path) -> bool:
    if file.is_relative_to(_PACKAGE):
        return file.parent.name == "training" and file.stem not in _PLUMBING
    return _LIBRARY.search(str(file)) is None


def _shown(file: Path, run: RunDir) -> Path:
    base = next((base for base in (run.path.parent.parent, _PACKAGE.parent) if file.is_relative_to(base)), None)
    return file if base is None else file.relative_to(base)


# --- files --------------------------------------------------------------------------------------


def error_file(path: Path, inside: Path | None = None) -> tuple[str | None, str | None]:
    """Read what `@record` wrote: `ValueError: boom` and the traceback; (None, None) without one."""
    try:
        if inside is not None and not path.resolve().is_relative_to(inside.resolve()):
            return None, None  # the log is text that anybody may have printed
        content = json.loads(read_small(path))["message"]
        if isinstance(content, str):
            return _first_line(content), None
        traceback = content.get("extraInfo", {}).get("py_callstack")
        return _first_line(str(content["message"])), traceback if isinstance(traceback, str) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):  # RuntimeError: nested too deep
        return None, None


def printed_by(run: RunDir, rank: int, log: str) -> str:
    """The output of a rank; rank 0's stands in the log, before torchrun's own."""
    text = log if rank == 0 else "\n".join(end_of(path) for path in reversed(run.rank_logs(rank)))
    return _RANK_PREFIX.sub("", _TORCHRUN.split(text)[0])


def beats(run: RunDir) -> "list[RankBeat]":
    """The ranks' last signs of life; none if a newer nbtools wrote them."""
    from nbtools.rundir.heartbeat import read_beats  # it tells of restarts, so it knows of failures

    try:
        return read_beats(run)
    except FormatError:
        return []


def last_rows(path: Path) -> list[dict[str, Any]]:
    """The last rows of a file of JSON lines, as far as they can be read."""
    rows = []
    for line in end_of(path, num_bytes=_ROWS_BYTES).splitlines():
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def end_of(path: Path, since: int = 0, num_bytes: int = _TAIL_BYTES) -> str:
    """The end of a text file, at most `num_bytes` and not before byte `since`; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(since, file.tell() - num_bytes, 0))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:2000]
