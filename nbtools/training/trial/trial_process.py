"""The process of a trial. Ends with the process that started it, and when another process needs its GPU.

    python -P -m nbtools.training.trial.trial_process DESCRIPTOR < REQUEST

The answer, one line of JSON, goes to the descriptor. A first line counts: the trial may be ended while it answers.
"""

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nbtools.errors import NbtoolsError
from nbtools.failures.evidence import error_line
from nbtools.failures.known_errors import cause_of
from nbtools.machine import gpu_queue
from nbtools.machine.devices import devices
from nbtools.rundir.rundir import RUN_DIR_VARIABLE
from nbtools.training import expand_segments

_LOOK_EVERY_S = 0.5


def main() -> None:
    """Measure the training that the request on stdin describes, and answer once."""
    descriptor, request = int(sys.argv[1]), json.load(sys.stdin)

    def answer(content: Mapping[str, Any]) -> None:
        os.write(descriptor, json.dumps(content).encode() + b"\n")

    expand_segments()
    is_done = threading.Event()
    threading.Thread(target=_watch, args=(request, answer, is_done), name="watch").start()
    try:
        # By name, because torch takes seconds to load, and the trial must be able to end meanwhile.
        answer(importlib.import_module("nbtools.training.trial.measure").measure(request))
    except BaseException as error:
        answer({"error": error_sentence(error)})
        raise  # into the log
    finally:
        is_done.set()


def error_sentence(error: BaseException) -> str:
    """Return an error as one sentence, with the advice for a known one."""
    if isinstance(error, NbtoolsError):
        return " ".join(str(error).split())
    line = error_line(f"{type(error).__name__}: {error}")
    return f"{line}. {cause.advice}" if (cause := cause_of(line)) else line


def _watch(request: Mapping[str, Any], answer: Callable[[Mapping[str, Any]], None], is_done: threading.Event) -> None:
    """End this process and its children once its parent has ended, or another process needs its GPU."""
    ticket = request["ticket"] and Path(request["ticket"])
    while not is_done.wait(_LOOK_EVERY_S):
        if os.getppid() != request["parent"]:
            _remove_all(ticket)
            break
        if why := _wanted_by(ticket):
            answer({"error": why})
            break
    else:
        return
    os.killpg(0, signal.SIGKILL)


def _remove_all(ticket: Path | None) -> None:
    """Remove the folder that the parent would have removed; renamed first, so that the training adds no more files."""
    if ticket is not None:
        ticket.unlink(missing_ok=True)
    folder = Path(os.environ[RUN_DIR_VARIABLE]).parent
    with contextlib.suppress(OSError):
        folder = folder.rename(folder.with_name(f"{folder.name}-ended"))
    shutil.rmtree(folder, ignore_errors=True)


def _wanted_by(ticket: Path | None) -> str:
    """Return the reason to end the trial if another run or process uses or waits for its GPU, else an empty text."""
    if ticket is not None and (behind := gpu_queue.behind(ticket)):
        return f"the trial ended because {behind[0]} was launched meanwhile"
    for device in devices():  # only the GPU of this trial is visible; this process is one of its holders
        # Counted, not compared by pid: in a container, the driver reports the host's process ids.
        if len(device.holders) > 1:
            others = ", ".join(str(holder) for holder in device.holders if not holder.is_caller)
            return f"the trial ended because GPU {device.index} is now held by {others}, too"
    return ""


if __name__ == "__main__":
    main()
