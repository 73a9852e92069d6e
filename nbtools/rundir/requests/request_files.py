"""Requests to a running training: a small file each, which a viewer of the run's owner writes and rank 0 takes.

    {"format": 1, "action": "save", "by": "ana@box"}
    {"format": 1, "values": {"learning_rate": 0.0005, "max_steps": 2000}, "by": "ana@box"}

A request appears by an atomic rename as `requests/<nanoseconds>-<random>.json`, so that requests sort by their time.
"""

import contextlib
import getpass
import json
import os
import re
import socket
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from nbtools.errors import ConfigError, shown
from nbtools.rundir.atomic import open_folder
from nbtools.rundir.json_files import FORMAT, write_json
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import one_line

ACTIONS = "save", "evaluate", "pause", "continue", "profile"
_FILE = re.compile(r"[0-9]{19}-[0-9a-f]{12}\.json")
_MOST_BYTES = 4096
_MOST_AT_ONCE = 64
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Request:
    """A file in `requests/` as rank 0 read it, and as all ranks apply it."""

    name: str
    action: str = ""
    """One of `ACTIONS`; empty for a request to change values."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the config, and their new values."""
    by: str = ""
    """User and machine, as the viewer wrote them."""
    problem: str = ""
    """Why the file is no request; empty for one."""

    @classmethod
    def of(cls, name: str, data: bytes) -> Self:
        """Parse the content of a file."""
        try:
            content = json.loads(data)
            action, values = content.get("action", ""), content.get("values", {})
        except (ValueError, AttributeError, RecursionError):
            return cls(name, problem="is not a JSON object")
        if content.get("format") != FORMAT:
            return cls(name, problem=f"has the format {shown(content.get('format'), 40)}, not {FORMAT}")
        by = one_line(str(content.get("by", "")), _LONGEST_NAME)
        if isinstance(values, dict) and values and not action:
            return cls(name, values=values, by=by)
        if action in ACTIONS and not values:
            return cls(name, action, by=by)
        return cls(name, by=by, problem=f"asks neither for one of {', '.join(ACTIONS)} nor for values")


def write_request(run: RunDir, *, action: str = "", values: Mapping[str, Any] | None = None) -> str:
    """Write a request into a run directory and return its name.

    Raises:
        ConfigError: It is larger than 4 kB, or holds what JSON cannot.
        OSError: It cannot be written.
    """
    asked = {"action": action} if action else {"values": dict(values or {})}
    content = {**asked, "by": f"{getpass.getuser()}@{socket.gethostname()}"}
    try:
        size = len(json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1).encode())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{shown(asked)}: {error}; give plain numbers and texts") from None
    if size > _MOST_BYTES - 100:
        raise ConfigError(f"{shown(asked)}: has {size:,} bytes; a request has at most {_MOST_BYTES:,}")
    run.requests.mkdir(mode=0o700, exist_ok=True)
    name = f"{time.time_ns():019d}-{os.urandom(6).hex()}"
    write_json(run.requests / f"{name}.json", content)
    return name


class Inbox:
    """The requests of a run, each taken once; for rank 0.

    Only a regular file of this user that is no link counts. Every other name is reported once, as a request with a
    problem, and never opened.
    """

    def __init__(self, run: RunDir, answered: Collection[str] = ()) -> None:
        """Leave out the requests with the names `answered`, which an earlier attempt has answered."""
        self._run = run
        self._taken = {f"{name}.json" for name in answered}

    def num_waiting(self) -> int:
        """Return the number of files that were not taken yet; 0 without a folder."""
        with contextlib.suppress(OSError), open_folder(self._run.path, "requests") as folder:
            return len(self._waiting(folder))
        return 0

    def take(self) -> list[Request]:
        """Return the next requests, oldest first, and remove their files; at most 64, the others wait."""
        found: list[Request] = []
        with contextlib.suppress(OSError), open_folder(self._run.path, "requests") as folder:
            for file in sorted(self._waiting(folder))[:_MOST_AT_ONCE]:
                self._taken.add(file)
                found.append(_read(file, folder))
                with contextlib.suppress(OSError):
                    os.unlink(file, dir_fd=folder)
        return found

    def _waiting(self, folder: int) -> list[str]:
        names = os.listdir(folder)
        return [name for name in names if name[0] != "." and name not in self._taken]


def _read(file: str, folder: int) -> Request:
    name = one_line(file.removesuffix(".json"), _LONGEST_NAME)
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
        if status.st_size > _MOST_BYTES:
            return Request(name, problem=f"has {status.st_size:,} bytes, more than {_MOST_BYTES:,}")
        return Request.of(name, os.read(descriptor, _MOST_BYTES))
    except OSError as error:
        return Request(name, problem=f"cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)


def encoded(requests: Collection[Request]) -> bytes:
    """Return requests as bytes that `decoded` reads on another rank."""
    return json.dumps([asdict(request) for request in requests]).encode()


def decoded(data: bytes) -> list[Request]:
    """Return the requests that `encoded` wrote."""
    return [Request(**values) for values in json.loads(data)]
