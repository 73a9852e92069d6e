"""A script started without `nbtools launch`: rank 0 makes the run directory and records the run."""

import contextlib
import hashlib
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO, cast

import torch

from nbtools import __version__
from nbtools.config import Launch
from nbtools.errors import DataError, LaunchError, ProjectError
from nbtools.machine.processes import happens_within
from nbtools.project import Project
from nbtools.recipes import recipe_of
from nbtools.rundir import secret_values
from nbtools.rundir.git_source import record_source
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.lock import NO_LOCKS, create_lock
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import ATTEMPT_VARIABLE, ROOT_VARIABLE, RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir, project_of
from nbtools.training.engine.flags import Flags
from nbtools.training.process.device import is_under_torchrun, script_path
from nbtools.training.process.ranks import Ranks

_APPEARS_WITHIN_S = 15.0


def claim_run(flags: Flags[Any]) -> Path:
    """Return the run directory that the launcher made; without a launcher, make one (rank 0 only)."""
    given = os.environ.get(RUN_DIR_VARIABLE)
    if given is None:
        return _run_by_hand(flags)
    if not Path(given).is_dir():
        raise LaunchError(f"{RUN_DIR_VARIABLE}={given!r}: no such folder; start scripts with `nbtools launch`")
    _claim(RunDir(given))
    return Path(given)


def _claim(files: RunDir) -> None:
    """Record this process as rank 0 of the attempt; LaunchError if another process is recorded.

    A process that inherits the environment of a rank would otherwise write into that rank's run.
    """
    path, own = files.ranks / f"rank0-{own_attempt()}.json", ProcessIdentity.of(os.getpid())
    try:
        files.ranks.mkdir(exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        write_json(path, own.to_json())
    except FileExistsError:
        other = ProcessIdentity.from_json(read_json(path) or {})
        if other == own:
            return
        who = "another process" if other is None else f"process {other.pid} on {other.host}"
        raise LaunchError(
            f"{files.id}: {who} is rank 0 of this run, and this process would write the same files. If a program of "
            f"the run started it, remove {RUN_DIR_VARIABLE} and {RUN_ID_VARIABLE} from its environment (it then makes "
            "a run of its own); if a launcher other than torchrun did, set RANK and WORLD_SIZE"
        ) from None
    except OSError:  # a full disk
        return


def check_shared(ranks: Ranks, files: RunDir) -> None:
    """Check that every node sees the run directory that rank 0 made; DataError on every rank if one does not."""
    if ranks.is_one_machine:
        return
    mark = files.ranks / f".shared-{os.urandom(8).hex()}"

    def make() -> Path | None:
        with contextlib.suppress(OSError):  # a full disk
            mark.touch()
        return mark if mark.exists() else None

    made = ranks.from_main(make)
    is_seen = made is None or ranks.local_rank != 0 or _appears(made)
    seen = ranks.gather((socket.gethostname(), is_seen))

    def judge() -> None:
        mark.unlink(missing_ok=True)
        if blind := sorted({host for host, is_there in seen if not is_there}):
            raise DataError(
                f"{', '.join(blind)}: does not see {files.path}, which rank 0 made on {socket.gethostname()}. All "
                "nodes need the same project: put it, or its runs/ and the data, on a shared file system under one path"
            )

    ranks.from_main(judge)


def _appears(path: Path) -> bool:
    """Whether a file of another node appears here; network file systems show it after a moment."""

    def is_there() -> bool:
        with contextlib.suppress(OSError):
            return path in path.parent.iterdir()
        return False

    return happens_within(is_there, _APPEARS_WITHIN_S)


def own_project() -> Project:
    """Return the project that the launcher named, else that of the script."""
    root = os.environ.get(ROOT_VARIABLE)
    return Project(Path(root)) if root else project_of(script_path())


def own_attempt() -> int:
    """Return the number of this attempt, from 1: the launcher may start a failed training again."""
    return int(os.environ.get(ATTEMPT_VARIABLE, "1"))


def _run_by_hand(flags: Flags[Any]) -> Path:
    """Make the run directory of a script started by hand, with all files but the supervisor's."""
    script = script_path()
    if not script.is_file():
        raise ProjectError("main(config) must be called from a script: its name and folder become the run's")
    name = re.sub(r"\W", "_", script.stem)
    try:
        files = RunDir.create(own_project().runs, name)
    except OSError as error:
        raise ProjectError(f"the run directory cannot be made: {error}; make the project's runs/ writable") from error
    has_locks = True
    try:
        _held.append(create_lock(files.lock))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise ProjectError(f"{files.lock}: cannot be created: {error}") from error
        has_locks = False
    shutil.copyfile(script, files.script)
    under_torchrun = is_under_torchrun()
    identity = ProcessIdentity.of(os.getppid() if under_torchrun else os.getpid())
    write_json(files.process, {"role": "torchrun" if under_torchrun else "worker", **identity.to_json()})
    resumed_from = flags.resume_from and flags.resume_from.expanduser().resolve()
    if resumed_from and resumed_from.is_file():
        resumed_from = None  # a file of weights belongs to no run
    ours = ("NBTOOLS_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    gpus = None if torch.cuda.is_available() else ()
    on_each, in_all = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    nnodes = max(1, in_all // on_each) if "LOCAL_WORLD_SIZE" in os.environ else 1  # some launchers do not set it
    launch = Launch(nproc_per_node=on_each, nnodes=nnodes, gpus=gpus)
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
        "code": record_source(files, own_project().root),
        "host": socket.gethostname(),
        "time": time.time(),
        "resumed_from": resumed_from
        and {
            "run": resumed_from.parent.parent.name,
            "checkpoint": resumed_from.name,
            "step": int(resumed_from.name.rpartition("-")[2]) if resumed_from.name[-1].isdecimal() else 0,
        },
        "by_hand": True,
        "flock": has_locks,
    }
    write_json(files.launch, secret_values.part(files, content, type(flags.config).model_fields))
    log = files.log.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, _Copied(terminal, log)) for terminal in (sys.stdout, sys.stderr))
    return files.path


_held: list[int] = []
"""Descriptor of the lock, held until this process ends."""


class _Copied:
    """A terminal whose text also goes to a log."""

    def __init__(self, terminal: TextIO, log: TextIO) -> None:
        self._terminal = terminal
        self._log = log

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._log.write(text)
        return self._terminal.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)
