"""Writes requests to a running training, as a viewer of the run's owner does; `nbtools.steering` has their format."""

import getpass
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from nbtools.errors import ConfigError, shown
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.steering import MOST_BYTES


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
    if size > MOST_BYTES - 100:
        raise ConfigError(f"{shown(asked)}: has {size:,} bytes; a request has at most {MOST_BYTES:,}")
    run.requests.mkdir(mode=0o700, exist_ok=True)
    name = f"{time.time_ns():019d}-{os.urandom(6).hex()}"
    write_json(run.requests / f"{name}.json", content)
    return name
