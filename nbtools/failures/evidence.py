"""Evidence of why a run failed: its output, tracebacks, heartbeats and metric rows.

All functions read only, and none of them raises: files that cannot be read count as empty.
"""

import errno
import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtools.rundir.json_files import read_json, read_small
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import end_of, objects_in

_TAIL_BYTES = 512 * 1024  # torchrun's summary repeats whole tracebacks
_MAX_TRACEBACK = 64 * 1024
_MAX_MESSAGE = 500
_NO_SPACE_BYTES = 64 * 1024

_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("another exception occurred:", "the following exception:", "\nOriginal")
"""Text between two tracebacks of one chained error; a DataLoader prints the last before its worker's traceback."""
_CRASH = "Fatal Python error: "
"""First words of faulthandler's report of a fatal signal."""
_UNINDENTED = re.compile(r"^[^\s\d].*$", re.MULTILINE)
"""Matches the line of the exception below a traceback's frames: `ValueError: boom`."""
_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<function>[^\n]+)(?:\n {4,}(?P<source>\S[^\n]*))?',
    re.MULTILINE,
)
_BOX = re.compile(r"^[╭┌][^\n]*\n(?P<lines>(?:[│|][^\n]*\n)+)[╰└][─-]+[╯┘]\s*\Z", re.MULTILINE)
"""A box at the end of the output, in which tyro and typer print errors of the arguments."""
_RANK_PREFIX = re.compile(r"^(?:\[(?:rank|default)?\d+\]|\d+): ?", re.MULTILINE)
"""Prefix of a rank's line: of torch while a process group exists, of torchrun --tee, and of srun --label."""
_UNCAUGHT = re.compile(r"^(?:\[default\d+\]: ?)?\[rank(?P<rank>\d+)\]: ?(?P<line>.*)$", re.MULTILINE)
"""A line of an uncaught exception, as torch's hook prints it while a process group exists."""
_CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error:$", re.MULTILINE)
_SPAWNED_AND_KILLED = re.compile(r"ProcessExitedException: process (\d+) terminated with signal (SIG\w+)")
_AFTER_EXCEPTION = 2 * 1024
"""Largest number of characters that a program prints between an exception and its end."""
_AFTER_CRASH = 8 * 1024
"""Largest number of characters that native code prints when it aborts at the exit of the interpreter."""
_OBJECT_DUMP = re.compile(
    r"object address  : .*\nobject refcount : .*\nobject type     : .*\nobject type name: .*\nobject repr     : (.*)\n"
)
"""Python's dump of an exception when `sys.stderr` is closed: it may interrupt a traceback within a line."""
_TORCHRUN = re.compile(r"^ *[EWI]\d{4} \d\d:\d\d:\d\d.*torch/distributed/elastic", re.MULTILINE)

_COLLECTIVE = re.compile(r"torch/distributed/distributed_c10d\.py\", line \d+, in (\w+)")

_LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib(?:64)?[/\\]python3[^/\\]*[/\\]|^<")
_PACKAGE = Path(__file__).resolve().parents[1]


def training_frame(traceback: str, run: RunDir) -> str | None:
    """Name the deepest frame of the training code: `scripts/toy.py:33 in train: loss.backward()`.

    Training code is the script, the user's modules and the folders of the recipes. Frames of Python, of libraries and
    of the rest of nbtools do not count. Of chained exceptions the last one with such a frame decides.
    """
    if traceback.startswith(_CRASH):
        traceback = "\n".join(reversed(traceback.split("\n")))  # faulthandler prints the innermost frame first
    for part in reversed(traceback.split(_TRACEBACK)):
        frames = [frame for frame in _FRAME.finditer(part) if _is_training_code(Path(frame["file"]))]
        if frames:
            frame = frames[-1]
            source = f": {frame['source'].strip()}" if frame["source"] else ""
            return f"{_shown(Path(frame['file']), run)}:{frame['line']} in {frame['function']}{source}"[:300]
    return None


def exceptions(traceback: str) -> list[str]:
    """Return the first line of every exception in a chain, in order: `ValueError: boom`."""
    found = (_UNINDENTED.search(part) for part in traceback.split(_TRACEBACK)[1:])
    return [line[0].strip() for line in found if line is not None]


def raised_by(run: RunDir, rank: int, log: str, *, also_caught: bool) -> Iterator[tuple[str, str]]:
    """Yield the exceptions of a rank with their tracebacks, the last first: recorded ones, then printed ones.

    With `also_caught`, the one at the end of the output counts although it is not marked as uncaught.
    """
    chains = [traceback for path in run.rank_logs(rank, "error.json") if (traceback := error_file(path, run.ranks)[1])]
    lines = _UNCAUGHT.finditer(_raw_output(run, rank, log))
    chains += reversed(_chains("\n".join(line["line"] for line in lines if int(line["rank"]) == rank)))
    for ended in _chains(printed_by(run, rank, log))[-1:] if also_caught else ():
        last = exceptions(ended)[-1:]
        chains += [ended] if last and len(ended) - ended.rfind(last[0]) <= _AFTER_EXCEPTION else []
    for chain in chains:
        yield from ((one[:_MAX_MESSAGE], chain.rstrip()[:_MAX_TRACEBACK]) for one in reversed(exceptions(chain)))


def ranks_in(log: str) -> set[int]:
    """Return the ranks that torch's hook names in an output."""
    return {int(line["rank"]) for line in _UNCAUGHT.finditer(log)}


def collective(traceback: str) -> str | None:
    """Return the name of the collective that the program had called: `all_reduce`."""
    return found[1] if (found := _COLLECTIVE.search(traceback)) else None


def lost_loader_worker(traceback: str) -> bool:
    """Whether the connection to a DataLoader worker broke; torch often reports that first."""
    # The traceback may be cut: torch's handler of SIGCHLD raises while Python prints it.
    is_broken = re.search(r"^(?:EOFError|BrokenPipeError|Connection\w*Error)\b", traceback, re.MULTILINE) is not None
    return is_broken and "torch/utils/data/dataloader.py" in traceback and "_utils/fetch.py" not in traceback


def raised_before(printed: str) -> tuple[str, str] | None:
    """Return the exception and traceback after which native code ended the process; None without one near the end."""
    before = printed.rpartition(_CRASH)[0] or printed
    said, traceback = last_output(before, 1)
    if traceback is None or len(before) - before.rfind(said[2:]) > _AFTER_CRASH:
        return None
    return said[2:], traceback


def spawned_rank(printed: str) -> tuple[int, str | None] | None:
    """Return the rank that torch.multiprocessing names as the failed one, and the signal that killed it, if one did."""
    if found := _SPAWNED_AND_KILLED.search(printed):
        return int(found[1]), found[2]
    return (int(found[1]), None) if (found := _SPAWNED.search(printed)) else None


def crash_report(printed: str) -> str | None:
    """Return faulthandler's last report of a fatal signal; None if there is none."""
    _, crash, rest = printed.rpartition(_CRASH)
    return (crash + rest).rstrip()[:_MAX_TRACEBACK] or None if crash else None


def last_output(text: str, exitcode: int) -> tuple[str, str | None]:
    """Return the exception and traceback at the end of a program's output (exit code 1), else its last line."""
    text = _OBJECT_DUMP.sub(r"\n\1\n", _RANK_PREFIX.sub("", text))
    chain = "".join(_chains(text)[-1:]).split(_TRACEBACK)[1:]
    raised = next((part for part in chain[:-1] if part.rstrip().endswith("\nOriginal")), chain[-1] if chain else "")
    if exitcode == 1 and (exception := _UNINDENTED.search(raised)):
        traceback = (_TRACEBACK + _TRACEBACK.join(chain)).rstrip()[:_MAX_TRACEBACK]
        return f": {error_line(raised[exception.start() :])[:_MAX_MESSAGE]}", traceback
    if box := _BOX.search(text):
        inside = (line.strip("│| ") for line in box["lines"].split("\n"))
        words = " ".join(itertools.takewhile(lambda line: not line.startswith("──"), inside))
        return f": {words.strip()[:_MAX_MESSAGE]}", None
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
    return f": {lines[-1].strip()[:_MAX_MESSAGE]}" if lines else " without output (sys.exit?)", None


def _chains(text: str) -> list[str]:
    """Return the tracebacks in a text, those of one chained error together, each with what follows it."""
    before, *parts = text.split(_TRACEBACK)
    chains: list[str] = []
    for part in parts:
        if chains and before.rstrip().endswith(_CHAINED):
            chains[-1] += _TRACEBACK + part
        else:
            chains.append(_TRACEBACK + part)
        before = part
    return chains


def _is_training_code(file: Path) -> bool:
    if file.is_relative_to(_PACKAGE):
        return file.parent.parent == _PACKAGE / "training" and (file.parent / "train.py").is_file()
    return _LIBRARY.search(str(file)) is None


def _shown(file: Path, run: RunDir) -> Path:
    base = next((base for base in (run.path.parent.parent, _PACKAGE.parent) if file.is_relative_to(base)), None)
    return file if base is None else file.relative_to(base)


def error_file(path: Path, inside: Path | None = None) -> tuple[str | None, str | None]:
    """Return the exception (`ValueError: boom`) and traceback that `@record` wrote; (None, None) without a file."""
    try:
        if inside is not None and not path.resolve().is_relative_to(inside.resolve()):
            return None, None  # any program may have printed the path into the log
        content = json.loads(read_small(path))["message"]
        if isinstance(content, str):
            return error_line(content), None
        traceback = content.get("extraInfo", {}).get("py_callstack")
        return error_line(str(content["message"])), traceback if isinstance(traceback, str) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):  # RuntimeError: too deeply nested
        return None, None


def printed_by(run: RunDir, rank: int, log: str) -> str:
    """Return the output of a rank; rank 0's is in the run's `log`, before torchrun's own messages."""
    return _RANK_PREFIX.sub("", _TORCHRUN.split(_raw_output(run, rank, log))[0])


def output_path(run: RunDir, rank: int | None) -> str | None:
    """Return the path of a rank's own log from the folder of the project; None if it has none, or an empty one."""
    written = [path for path in run.rank_logs(rank or 0) if end_of(path, 1)] if rank else []
    return str(_shown(written[0], run)) if written else None


def _raw_output(run: RunDir, rank: int, log: str) -> str:
    is_shared = rank == 0 or starts_its_ranks(run)
    return log if is_shared else "\n".join(log_end(path) for path in reversed(run.rank_logs(rank)))


def starts_its_ranks(run: RunDir) -> bool:
    """Whether a program was started without torchrun: all of its ranks then write to the run's log."""
    launch = (read_json(run.launch) or {}).get("launch")
    return isinstance(launch, dict) and launch.get("torchrun") is False


def log_end(path: Path, since: int = 0) -> str:
    """Return the end of a log without what moves the cursor: a progress bar may precede any line."""
    return _CURSOR.sub("", text_end(path, since)).replace("\r\n", "\n").replace("\r", "\n")


def last_rows(path: Path, num_bytes: int = 64 * 1024) -> list[dict[str, Any]]:
    """Return the readable rows among the last lines of a JSON lines file."""
    return list(objects_in(end_of(path, num_bytes)))


def text_end(path: Path, since: int = 0) -> str:
    """Return the end of a text file, from byte `since` on; empty if it cannot be read."""
    return end_of(path, _TAIL_BYTES, since).decode(errors="replace")


def disk_error(run: RunDir) -> str:
    """Return the error of a write to the run directory as its file system is now: full, or read-only; else empty."""
    try:
        found, device = os.statvfs(run.path), run.path.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    ours = (line.rpartition(" ")[2] for line in mounts if f" {os.major(device)}:{os.minor(device)} " in line)
    if found.f_flag & os.ST_RDONLY or any("emergency_ro" in options for options in ours):  # the second is ext4's
        return os.strerror(errno.EROFS)
    return os.strerror(errno.ENOSPC) if found.f_bavail * found.f_frsize < _NO_SPACE_BYTES else ""


def error_line(text: str) -> str:
    """Return the first line of an error, and for NCCL's the line with the reason, which follows `Last error:`."""
    line, _, rest = text.strip().partition("\n")
    reason = rest.partition("Last error:")[2].strip().partition("\n")[0] if "NCCL error" in line else ""
    return f"{line} ({reason})"[:2000] if reason else line[:2000]
