"""The stop of a run's processes; runs with ranks of their own are stopped in `test_run`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fixture_types import MonkeyPatch

from nbtools.run import stop
from nbtools.rundir.rundir import RunDir

COUNTS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
while True: time.sleep(0.05)
"""


def test_a_process_is_asked_once_where_no_mark_of_that_can_be_written(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A second SIGTERM makes torchrun abort its shutdown."""
    run = RunDir.create(tmp_path, "x")
    monkeypatch.setattr(stop, "foreign_owner", lambda path: "somebody")
    environment = {**os.environ, "NBTOOLS_RUN_ID": run.id, "NBTOOLS_RUN_DIR": str(run.path)}
    command = [sys.executable, "-c", COUNTS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == "ready\n"
        stop.stop_processes(run, lambda: False, timeout_s=1)
        assert worker.stdout.read() == "asked\n"
    assert worker.returncode == -signal.SIGKILL
