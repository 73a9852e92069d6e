"""The commands of `Launch.on_end` and `notify_with`, started without a shell, and the process that sends notices.

The words come from the launch, through the supervisor's input. They are never read from a run directory, which another
user may have written or copied.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nbtools.errors import duration
from nbtools.rundir.heartbeat import read_heartbeats
from nbtools.rundir.json_files import file_stamp, finite, read_json, whole
from nbtools.rundir.rundir import RUN_DIR_VARIABLE, RUN_ID_VARIABLE, RunDir
from nbtools.rundir.tail import one_line

_WITHIN_S = 60.0
_NOTICES_WITHIN_S = 20.0
"""Time in which a supervisor waits for the last notices; a stop waits for the supervisor."""
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
    after = duration(finite(ended.get("duration_s")) or 0)
    said = f"Run {name} {state.lower()} after {after}{f' at step {step:,}' if step else ''}"
    return f"{said}: {one_line(str(why), _LONGEST_WHY)}" if why else said


def start_on_end(words: Sequence[str], replaced: Mapping[str, str], run: RunDir) -> None:
    """Start a command, wait a minute for its end, then kill its process group; its output is in `ranks/on_end.log`.

    Its failure is in that file too, and changes nothing.
    """
    with run.on_end_log.open("wb") as log:
        said = run_command(words, replaced, log)
        log.write(f"on_end: {said}\n".encode(errors="backslashreplace") if said else b"")


def run_command(words: Sequence[str], replaced: Mapping[str, str], output: Any) -> str:
    """Start a command, wait a minute for its end, then kill its process group; return why it failed, or ""."""
    environment = {key: value for key, value in os.environ.items() if key not in (RUN_ID_VARIABLE, RUN_DIR_VARIABLE)}
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    argv = [replaced.get(word, word) for word in words]
    try:
        command = subprocess.Popen(argv, env=environment, process_group=0, **streams)  # no process of the run
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{words[0]!r} could not be started: {error}"
    try:
        return f"{words[0]!r} ended with exit code {code}" if (code := command.wait(_WITHIN_S)) else ""
    except subprocess.TimeoutExpired:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        return f"{words[0]!r} was killed after {_WITHIN_S:.0f} s"


def start_beside(run: RunDir, module: str, *args: str, **streams: Any) -> "subprocess.Popen[bytes]":
    """Start a module of nbtools that reads a run, and is no process of it: those are counted, and ended with it."""
    unmarked = {name: value for name, value in os.environ.items() if name != RUN_ID_VARIABLE}
    command = [sys.executable, "-P", "-m", module, str(run.path), *args]
    return subprocess.Popen(command, env={**unmarked, RUN_DIR_VARIABLE: os.devnull}, process_group=0, **streams)


class NotifierProcess:
    """The process that sends the notices of a run; the training does not depend on it."""

    def __init__(self, run: RunDir, words: Sequence[str]) -> None:
        """Start nothing yet; `words` are those of `notify_with`."""
        self._run, self._words = run, tuple(words)
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def look(self, conditions: Mapping[str, Any]) -> None:
        """Start the process once a condition of `notify_on` is set, or asked for."""
        self._began = self._began or time.monotonic()
        if self._process is None and (any(conditions.values()) or file_stamp(self._run.notice_requests)):
            with contextlib.suppress(OSError):
                self._process = start_beside(self._run, "nbtools.failures.notify", stdin=subprocess.PIPE, bufsize=0)
                assert self._process.stdin is not None
                self._process.stdin.write(f"{json.dumps([self._words, self._began])}\n".encode())

    def end(self, state: str, sentence: str) -> None:
        """Have the end told, and wait a while for that; the process ends by itself."""
        if self._process is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                told = json.dumps({"state": state, "sentence": sentence})
                self._process.communicate(f"{told}\n".encode(), _NOTICES_WITHIN_S)
