"""The machines of a run over several: each records the state of its part in `ranks/nodeN.json`."""

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from nbtools.rundir.json_files import content_of, whole, write_json
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir

_MOST = 1024


def num_machines(info: Mapping[str, Any]) -> int:
    """Return the number of machines of a run, by its launch.json."""
    launch = info.get("launch")
    count = whole(launch.get("nnodes")) if isinstance(launch, Mapping) else None
    return min(count or 1, _MOST)


def record(run: RunDir, node: int) -> dict[str, Any]:
    """Return what a machine has recorded: its process, `stopping`, at its end `returncode`; empty without a record."""
    return content_of(run.node_record(node))


def write_record(run: RunDir, node: int, **state: object) -> None:
    """Record the state of this process's part of the run; a full disk takes no record."""
    with contextlib.suppress(OSError):
        write_json(run.node_record(node), {"node": node, **ProcessIdentity.of(os.getpid()).to_json(), **state})


def join_command(run: RunDir, node: int) -> str:
    """Return the command for a shell of a machine that takes part in a run."""
    return shlex.join([sys.executable, "-P", "-m", "nbtools", "launch", str(run.path), "--node", str(node)])


def has_ranks(run: RunDir, node: int) -> bool:
    """Whether torchrun has started ranks on a machine other than the first."""
    return any(run.node_logs(node).glob("*/attempt_*"))


def has_joined(run: RunDir, node: int) -> bool:
    """Whether a machine takes part in a run; one that ended before the rendezvous may join again."""
    found = record(run, node)
    return bool(found) and ("returncode" not in found or has_ranks(run, node))
