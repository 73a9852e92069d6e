"""The command of `Launch.on_end`: started without a shell once the end of a run is recorded.

The command comes from the launch, through the supervisor's command line. It is never read from a run directory, which
another user may have written or copied.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from nbtools.errors import spoken
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import finite, read_json, whole
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir
from nbtools.rundir.tail import one_line

_WITHIN_S = 60.0
_LONGEST_WHY = 300
_SHOWN_METRICS = ("eval/loss", "train/loss")


def sentence_on_end(run: RunDir, name: str, state: str, ended: Mapping[str, Any]) -> str:
    """Return one plain sentence: name, state, duration, step, and why or the last loss; `ended` is exit.json."""
    finished = read_json(run.finished) or {}
    step = max([whole(finished.get("step")) or 0, *(beat.step for beat in read_heartbeats(run))])
    stopped_on, failure = ended.get("stopped_on") or {}, ended.get("failure") or {}
    why = stopped_on.get("sentence") or failure.get("message")
    if why is None and isinstance(metrics := finished.get("metrics"), dict):
        named = next((key for key in (*_SHOWN_METRICS, *metrics) if finite(metrics.get(key)) is not None), None)
        why = named and f"{named} {metrics[named]:.4g}"
    after = spoken(finite(ended.get("duration_s")) or 0)
    said = f"Run {name} {state.lower()} after {after}{f' at step {step:,}' if step else ''}"
    return f"{said}: {one_line(str(why), _LONGEST_WHY)}" if why else said


def start_on_end(words: Sequence[str], replaced: Mapping[str, str], run: RunDir) -> None:
    """Start a command, wait a minute for its end, then kill its process group; its output is in `ranks/on_end.log`.

    Its failure is in that file too, and changes nothing.
    """
    environment = {key: value for key, value in os.environ.items() if key not in (RUN_ID_VARIABLE, RUN_DIR_VARIABLE)}
    with run.on_end_log.open("wb") as log:
        said, argv = "", [replaced.get(word, word) for word in words]
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        try:
            command = subprocess.Popen(argv, env=environment, process_group=0, **streams)  # no process of the run
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            said = f"on_end: {words[0]!r} could not be started: {error}"
        else:
            try:
                if code := command.wait(_WITHIN_S):
                    said = f"on_end: {words[0]!r} ended with exit code {code}"
            except subprocess.TimeoutExpired:
                os.killpg(command.pid, signal.SIGKILL)
                command.wait()
                said = f"on_end: {words[0]!r} was killed after {_WITHIN_S:.0f} s"
        log.write(f"{said}\n".encode(errors="backslashreplace") if said else b"")
