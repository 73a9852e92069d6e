"""The current JSON records of a run, read from its directory."""

import contextlib
import json
import signal
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nbtools.rundir.json_files import finite, kept, read_json
from nbtools.rundir.names import Labels, read_labels
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.tail import open_regular
from nbtools.user_config import decided_for


class Records:
    """Content of launch.json, config.json, process.json, finished.json and exit.json of one run.

    Each file is read again only when it was replaced: a failed run that starts again replaces some of them.
    """

    def __init__(self, files: RunDir) -> None:
        self.files = files

    @property
    def launch(self) -> dict[str, Any]:
        """Content of launch.json; empty until that file exists."""
        return kept(read_json, self.files.launch) or {}

    @property
    def config(self) -> dict[str, Any] | None:
        """The config as run, the values that flags overrode, and what is derived; None before training starts."""
        return kept(read_json, self.files.config)

    @property
    def process(self) -> ProcessIdentity | None:
        """The process to signal: the supervisor, or the torchrun or Python process that was started by hand."""
        return ProcessIdentity.from_json(kept(read_json, self.files.process) or {})

    @property
    def finished(self) -> dict[str, Any]:
        """Content of finished.json, written by rank 0 at its end; empty without that file."""
        return kept(read_json, self.files.finished) or {}

    @property
    def exit(self) -> dict[str, Any] | None:
        """Content of exit.json, written by the supervisor at the end; None without that file."""
        return kept(read_json, self.files.exit)

    @property
    def labels(self) -> Labels:
        """The name, tags and note that the user gave the run."""
        return read_labels(self.files)

    @property
    def started_at(self) -> float | None:
        """Unix time of the launch."""
        return finite(self.launch.get("time"))

    @property
    def torchrun_at(self) -> float | None:
        """Unix time at which the supervisor started torchrun, after the wait in the queue; None if it is unknown."""
        path = self.files.system
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError), open_regular(path) as file:
            return finite(json.loads(file.readline(1 << 16)).get("time"))
        return None

    @property
    def began_at(self) -> float | None:
        """Unix time at which the training was started; that of the launch if it is unknown."""
        launched, began = self.started_at, self.torchrun_at
        return launched if launched is None or began is None else max(launched, began)

    @property
    def ended_at(self) -> float | None:
        """Unix time of the end, from the supervisor's record, else from rank 0's."""
        ended = finite((self.exit or {}).get("time"))
        return finite(self.finished.get("time")) if ended is None else ended

    @property
    def duration_s(self) -> float | None:
        """Duration that the supervisor measured, which does not depend on the clock of the day; None until the end."""
        return finite((self.exit or {}).get("duration_s"))


def mapping_at(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object under `name`; an empty one if the value is missing or of another type."""
    found = content.get(name)
    return found if isinstance(found, dict) else {}


def recorded_arguments(launch: Mapping[str, Any]) -> list[str]:
    """Return the arguments of the script in a launch.json."""
    args = launch.get("args")
    return [str(word) for word in args] if isinstance(args, list) else []


def stop_signal(launch: Mapping[str, Any]) -> signal.Signals:
    """Return the signal that asks the processes of a launch.json to save and end."""
    wanted = mapping_at(dict(launch), "program").get("stop_signal")
    return signal.SIGINT if wanted == "SIGINT" else signal.SIGTERM


def shutdown_timeout_s(plan: Mapping[str, Any]) -> float:
    """Return the seconds that the ranks of a launch.json have for their last checkpoint."""
    granted = finite(mapping_at(dict(plan), "launch").get("shutdown_timeout_s"))
    return 60.0 if granted is None else granted


def checkpoints_and_resume(launch: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the pattern of the checkpoints of the program in a launch.json, and the words that resume it.

    Each is that of the launch, unless the user has said another one since; empty if it is unknown.
    """
    program = mapping_at(dict(launch), "program")
    said = remembered(str(launch.get("root")), str(launch.get("script")))
    if (finite(said.get("time")) or 0.0) > (finite(launch.get("time")) or 0.0):
        program = {**program, **said}
    pattern, words = program.get("checkpoints"), program.get("resume")
    return pattern if isinstance(pattern, str) else "", tuple(map(str, words)) if isinstance(words, list) else ()


def remembered(root: str, script: str) -> dict[str, Any]:
    """Return what the user has said of the `checkpoints` and the `resume` of a script, as launch.json names it."""
    return decided_for("checkpoints", root, script)


def local_time(unix: float | None) -> str:
    """Return a Unix time as local date and time, to the second; empty for None and for years out of range."""
    try:
        return "" if unix is None else f"{datetime.fromtimestamp(unix):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return ""
