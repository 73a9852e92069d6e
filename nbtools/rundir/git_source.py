"""The code of a run in git: the commit, and in source.diff the uncommitted changes of tracked files.

git starts no other program: no hook, no file system monitor, no driver for diffs or for the text of files, and no
transport, which a partial clone would use to download what it lacks.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from nbtools.rundir.atomic import write_file
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import open_regular

LARGEST_DIFF_BYTES = 1 << 20
_PATIENCE_S = 3.0
_HEADERS = b"+++ b/", b"--- a/", b"+++ /dev/null", b"--- /dev/null"
_SETTINGS = ("core.fsmonitor=", "core.hooksPath=/dev/null", "diff.external=", "diff.relative=false", "color.ui=false")
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}  # nothing is written into the repository
_VARIABLES |= {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}  # the second is stronger than every config


def record_source(run: RunDir, folder: Path) -> dict[str, Any] | None:
    """Return the state of the git repository that a folder is in, for launch.json, and write source.diff (mode 0600).

    Returns:
        `commit`, `lines` (number of changed lines of tracked files), `sha256` of the diff (None without changes), and
        whether it was `cut` to 1 MiB; None if there is no git, no commit, or no answer within some seconds.
    """
    commit = _git(folder, "rev-parse", "--verify", "--end-of-options", "HEAD^{commit}")
    options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty")
    diff = None if commit is None else _git(folder, "diff", "--src-prefix=a/", "--dst-prefix=b/", *options, "HEAD")
    if commit is None or diff is None:
        return None
    cut = len(diff) > LARGEST_DIFF_BYTES
    diff = diff[: diff.rfind(b"\n", 0, LARGEST_DIFF_BYTES) + 1] if cut else diff
    num_lines = sum(line[:1] in (b"+", b"-") and not line.startswith(_HEADERS) for line in diff.split(b"\n"))
    if diff:
        with contextlib.suppress(OSError):  # a full disk
            write_file(run.source, diff, mode=0o600)
    sha256 = hashlib.sha256(diff).hexdigest() if diff else None
    return {"commit": commit.decode().strip(), "lines": num_lines, "sha256": sha256, "cut": cut}


def recorded_diff(run: RunDir) -> bytes:
    """Return source.diff, at most 1 MiB of it; empty without one. OSError: it cannot be read, as another user's."""
    with contextlib.suppress(FileNotFoundError), open_regular(run.source) as file:
        return file.read(LARGEST_DIFF_BYTES)
    return b""


def _git(folder: Path, *words: str) -> bytes | None:
    """Return what a git command prints, at most a little more than 1 MiB of it; None if it fails or takes too long."""
    if (git := shutil.which("git")) is None:
        return None
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= _VARIABLES
    command = [git, "-C", str(folder), "--no-pager", *settings, *words]
    code = None
    try:
        with tempfile.TemporaryFile() as output:  # a diff may be larger than the memory
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.DEVNULL}
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = subprocess.run(command, env=environment, timeout=_PATIENCE_S, check=False, **streams).returncode
            output.seek(0)
            found = output.read(LARGEST_DIFF_BYTES + 1)
    except OSError:
        return None
    return found if code == 0 or len(found) > LARGEST_DIFF_BYTES else None
