"""A script started without `nbtools launch`: rank 0 makes the run directory and records the run."""

import contextlib
import hashlib
import io
import os
import re
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from nbtools import __version__
from nbtools.config import Launch
from nbtools.errors import LaunchError, ProjectError
from nbtools.project import find_project
from nbtools.recipes import recipe_of
from nbtools.rundir.identity import ProcessIdentity
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RunDir
from nbtools.training.engine.flags import Flags
from nbtools.training.process.device import is_under_torchrun, script_path


def claim_run(flags: Flags[Any]) -> Path:
    """Return the run directory that the launcher made; without a launcher, make one (rank 0 only)."""
    given = os.environ.get(RUN_DIR_VARIABLE)
    if given is None:
        return _run_by_hand(flags)
    if not Path(given).is_dir():
        raise LaunchError(f"{RUN_DIR_VARIABLE}={given!r}: no such folder; start scripts with `nbtools launch`")
    return Path(given)


def _run_by_hand(flags: Flags[Any]) -> Path:
    """Make the run directory of a script started by hand, with all files but the supervisor's."""
    script = script_path()
    if not script.is_file():
        raise ProjectError("main(config) must be called from a script: its name and folder become the run's")
    name = re.sub(r"\W", "_", script.stem)
    try:
        files = RunDir.create(find_project(script.parent).runs, name)
    except OSError as error:
        raise ProjectError(f"the run directory cannot be made: {error}; make the project's runs/ writable") from error
    _held.append(acquire_lock(files.lock))
    shutil.copyfile(script, files.script)
    under_torchrun = is_under_torchrun()
    identity = ProcessIdentity.of(os.getppid() if under_torchrun else os.getpid())
    write_json(files.process, {"role": "torchrun" if under_torchrun else "worker", **identity.to_json()})
    resumed_from = flags.resume_from and flags.resume_from.expanduser().resolve()
    if resumed_from and resumed_from.is_file():
        resumed_from = None  # a file of weights belongs to no run
    ours = ("NBTOOLS_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    gpus = None if torch.cuda.is_available() else ()
    launch = Launch(nproc_per_node=int(os.environ.get("LOCAL_WORLD_SIZE", "1")), gpus=gpus)
    content = {
        "name": name,
        "script": str(script),
        "script_sha256": hashlib.sha256(files.script.read_bytes()).hexdigest(),
        "recipe": recipe_of(flags.config).key,
        "argv": [sys.executable, *sys.argv],
        "args": sys.argv[1:],
        "cwd": str(Path.cwd()),
        "env": {key: value for key, value in os.environ.items() if key.startswith(ours)},
        "launch": launch.model_dump(mode="json"),
        "versions": {"python": sys.version.split()[0], "nbtools": __version__, "torch": torch.__version__},
        "host": socket.gethostname(),
        "time": time.time(),
        "resumed_from": resumed_from
        and {
            "run": resumed_from.parent.parent.name,
            "checkpoint": resumed_from.name,
            "step": int(resumed_from.name.rpartition("-")[2]) if resumed_from.name[-1].isdecimal() else 0,
        },
        "by_hand": True,
    }
    write_json(files.launch, content)
    log = files.log.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
    sys.stdout, sys.stderr = _Copied(sys.stdout, log), _Copied(sys.stderr, log)
    return files.path


_held: list[int | None] = []
"""Descriptor of the lock, held until this process ends."""


class _Copied(io.TextIOBase):
    """A terminal whose text also goes to a log."""

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self._terminal = terminal
        self._log = log

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._log.write(text)
        return self._terminal.write(text)

    def flush(self) -> None:
        self._terminal.flush()

    def fileno(self) -> int:
        return self._terminal.fileno()

    def isatty(self) -> bool:
        return self._terminal.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._terminal.encoding
