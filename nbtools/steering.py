"""Steering of a training, for any program: requests of its owner are files, which `poll` reads between two steps.

This file needs the standard library alone, and may be copied beside a program that has no nbtools:

    for name, value in steering.poll(step, values={"lr": lr}, actions=("save",)):
        if name == "save":
            save()
        else:
            optimizer.param_groups[0]["lr"] = lr = value

A request is `requests/<nanoseconds>-<random>.json` in the run directory, and appears by an atomic rename:

    {"format": 1, "action": "save", "by": "ana@box"}
    {"format": 1, "values": {"learning_rate": 0.0005, "max_steps": 2000}, "by": "ana@box"}

What was done with it is a row of `events.jsonl`. The requests of a program that nbtools did not launch are none.
"""

import contextlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ACTIONS = "save", "evaluate", "pause", "continue", "profile"
FORMAT = 1
MOST_BYTES = 4096
_FILE = re.compile(r"[0-9]{19}-[0-9a-f]{12}\.json")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_AT_ONCE = 64
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Request:
    """A file in `requests/` as rank 0 read it, and as all ranks apply it."""

    name: str
    action: str = ""
    """Empty for a request to change values."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """New values by name."""
    by: str = ""
    """User and machine, as the viewer wrote them."""
    problem: str = ""
    """Why the file is no request; empty for one."""


class Inbox:
    """The requests of a run, each taken once; for rank 0.

    Only a regular file of this user that is no link counts. Every other name is reported once, as a request with a
    problem, and never opened.
    """

    def __init__(self, run: Path, answered: Collection[str] = ()) -> None:
        """Leave out the requests with the names `answered`, which an earlier attempt has answered."""
        self._run = run
        self._taken = {f"{name}.json" for name in answered}

    def num_waiting(self) -> int:
        """Return the number of files that were not taken yet; 0 without a folder."""
        with contextlib.suppress(OSError), self._opened() as folder:
            return len(self._waiting(folder))
        return 0

    def take(self) -> list[Request]:
        """Return the next requests, oldest first, and remove their files; at most 64, the others wait."""
        found: list[Request] = []
        with contextlib.suppress(OSError), self._opened() as folder:
            for file in sorted(self._waiting(folder))[:_MOST_AT_ONCE]:
                self._taken.add(file)
                found.append(_read(file, folder))
                with contextlib.suppress(OSError):
                    os.unlink(file, dir_fd=folder)
        return found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the folder; OSError if there is none, or if it is a link."""
        run = os.open(self._run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            folder = os.open("requests", _FOLDER, dir_fd=run)
        finally:
            os.close(run)
        try:
            yield folder
        finally:
            os.close(folder)

    def _waiting(self, folder: int) -> list[str]:
        names = os.listdir(folder)
        return [name for name in names if name[0] != "." and name not in self._taken]


def _read(file: str, folder: int) -> Request:
    name = _plain(file.removesuffix(".json"))
    if not _FILE.fullmatch(file):
        return Request(name, problem="is no name of a request")
    try:
        # A pipe or a device must not block the training, and a link may lead to another user's file.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        return Request(name, problem=f"cannot be opened: {error.strerror}")
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return Request(name, problem="is not a plain file")
        if status.st_uid != os.geteuid():
            return Request(name, problem="belongs to another user")
        if status.st_size > MOST_BYTES:
            return Request(name, problem=f"has {status.st_size:,} bytes, more than {MOST_BYTES:,}")
        return parsed(name, os.read(descriptor, MOST_BYTES))
    except OSError as error:
        return Request(name, problem=f"cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def parsed(name: str, data: bytes) -> Request:
    """Return the request in the content of a file."""
    try:
        content = json.loads(data)
        action, values = content.get("action", ""), content.get("values", {})
    except (ValueError, AttributeError, RecursionError):
        return Request(name, problem="is not a JSON object")
    if content.get("format") != FORMAT:
        return Request(name, problem=f"has the format {_plain(content.get('format'))}, not {FORMAT}")
    by = _plain(content.get("by", ""))
    if isinstance(values, dict) and values and not action:
        return Request(name, values=values, by=by)
    if action in ACTIONS and not values:
        return Request(name, action, by=by)
    return Request(name, by=by, problem=f"asks neither for one of {', '.join(ACTIONS)} nor for values")


def _plain(value: object) -> str:
    """Return a value as one short line without characters that control a terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(value)[:_LONGEST_NAME])


def encoded(requests: Collection[Request]) -> bytes:
    """Return requests as bytes that `decoded` reads on another rank."""
    return json.dumps([asdict(request) for request in requests]).encode()


def decoded(data: bytes) -> list[Request]:
    """Return the requests that `encoded` wrote."""
    return [Request(**values) for values in json.loads(data)]


def append_rows(path: Path, rows: Collection[Mapping[str, Any]]) -> None:
    """Append rows to a file of JSON lines, all at once; OSError if the disk is full."""
    lines = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a crash or a full disk
        os.write(descriptor, b"\n" * is_torn + lines)
    finally:
        os.close(descriptor)


def poll(
    step: int, values: Mapping[str, Any] | None = None, actions: Collection[str] = (), *, every: int = 10
) -> list[tuple[str, Any]]:
    """Return what the owner has asked for, after each step that `every` divides: actions with None, and new values.

    Every rank of a process group calls it after every step, with the same arguments: rank 0 reads the requests and
    sends them to the others, so that all change at the same step. A pause is held in here.

    Args:
        step: completed steps.
        values: current values that may be changed, by name; JSON values.
        actions: those of `ACTIONS` that the program takes, beside `pause` and `continue`.
        every: steps between two looks.
    """
    folder = os.environ.get("NBTOOLS_RUN_DIR")
    if not folder or step % every:
        return []
    polled = _POLLED.setdefault(folder, _Polled(Path(folder)))
    changes = polled.look(step, values or {}, actions)
    while polled.is_paused:
        time.sleep(0.2)
        changes += polled.look(step, values or {}, actions)
    return changes


class _Polled:
    """The requests to this program, as its ranks have polled them."""

    def __init__(self, run: Path) -> None:
        self.is_paused = False
        self._run, self._inbox, self._is_offered = run, Inbox(run), False

    def look(self, step: int, values: Mapping[str, Any], actions: Collection[str]) -> list[tuple[str, Any]]:
        offered: dict[str, Any] = {"format": FORMAT, "actions": [*actions, "pause", "continue"], "values": dict(values)}
        send, is_main = _process_group()
        if is_main and not self._is_offered:
            self._is_offered = True
            hidden = self._run / f".controls.json.{os.getpid()}.tmp"
            hidden.write_text(json.dumps(offered))
            hidden.replace(self._run / "controls.json")
        changes: list[tuple[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for request in decoded(send(encoded(self._inbox.take() if is_main else ()))):
            row = {"request": request.name, "step": step, "time": time.time(), "by": request.by}
            unknown = [name for name in request.values if name not in values]
            if request.problem or unknown or (request.action and request.action not in offered["actions"]):
                why = request.problem or f"{(unknown or [request.action])[0]}: the program takes no such request"
                rows.append({**row, "refused": why})
            elif request.action:
                if request.action in ("pause", "continue"):
                    self.is_paused = request.action == "pause"
                else:
                    changes.append((request.action, None))
                rows.append({**row, "action": request.action})
            for name, value in () if unknown else request.values.items():
                changes.append((name, value))
                rows.append({**row, "field": name, "from": values[name], "to": value})
        if rows and is_main:
            with contextlib.suppress(OSError):  # a full disk does not end a training
                append_rows(self._run / "events.jsonl", rows)
        return changes


_POLLED: dict[str, _Polled] = {}


def _process_group() -> tuple[Callable[[bytes], bytes], bool]:
    """Return a function that sends bytes of rank 0 to all ranks, and whether this is rank 0."""
    torch: Any = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return lambda data: data, int(os.environ.get("RANK", "0")) == 0
    on_gpu = dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")

    def send(data: bytes) -> bytes:
        size = torch.tensor([len(data)], device=device)
        dist.broadcast(size, src=0)
        content = torch.zeros(int(size), dtype=torch.uint8, device=device)
        if dist.get_rank() == 0:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        dist.broadcast(content, src=0)
        return bytes(content.tolist())

    return send, dist.get_rank() == 0
