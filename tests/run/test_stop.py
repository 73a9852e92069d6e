"""The stop of a run's processes; runs with ranks of their own are stopped in `test_run`."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nbtools.machine import processes
from nbtools.run import stop
from nbtools.rundir.json_files import write_json
from nbtools.rundir.lock import acquire_lock
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir


def test_a_stop_waits_for_the_record_of_a_supervisor_whose_environment_reads_as_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside `exec`, /proc/PID/environ is empty, so that the processes of a run cannot be recognised yet."""
    run = RunDir.create(tmp_path, "just_launched")
    monkeypatch.setattr(processes, "members", lambda _: [])
    lock = acquire_lock(run.lock)
    assert lock is not None
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, env={**os.environ, "NBTOOLS_RUN_ID": run.id, "NBTOOLS_RUN_DIR": str(run.path)}) as (
        supervisor
    ):
        record = {"role": "supervisor", **ProcessIdentity.of(supervisor.pid).to_json()}
        writer = threading.Timer(0.2, write_json, (run.process, record))
        writer.start()
        try:
            ending = stop.stop_processes(run, lambda: supervisor.poll() is not None, timeout_s=30)
        finally:
            writer.join()
            supervisor.kill()
            os.close(lock)
    assert supervisor.returncode == -signal.SIGTERM
    assert not ending.was_killed


COUNTS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
print("ready", flush=True)
while True: time.sleep(0.05)
"""


def test_a_process_is_asked_once_where_no_mark_of_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second SIGTERM makes torchrun abort its shutdown."""
    run = RunDir.create(tmp_path, "x")
    monkeypatch.setattr(stop, "foreign_owner", lambda path: "somebody")
    environment = {**os.environ, "NBTOOLS_RUN_ID": run.id, "NBTOOLS_RUN_DIR": str(run.path)}
    command = [sys.executable, "-c", COUNTS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        stop.stop_processes(run, lambda: False, timeout_s=1)
        assert worker.stdout.read() == "asked\n"
    assert worker.returncode == -signal.SIGKILL
