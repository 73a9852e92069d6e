"""torchrun as runs start it: in a Slurm job, each process gets more than one SIGTERM."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from waiting import eventually

from nbtools.project import Project
from nbtools.rundir.json_files import read_json
from nbtools.rundir.rundir import RunDir

TRAINER = Path(__file__).parents[1] / "programs" / "fake_trainer.py"


def test_further_sigterms_do_not_end_the_agent_before_ranks_that_save(project: Project) -> None:
    run = RunDir.create(project.runs, "fake")
    log = run.path / "agent.log"
    options = ["--nproc-per-node=1", "--shutdown-timeout=20", str(TRAINER), "--step-s", "3"]
    with log.open("w") as output:
        agent = subprocess.Popen(
            [sys.executable, "-P", "-m", "nbtools.machine.agent", *options],
            env={**os.environ, "NBTOOLS_RUN_DIR": str(run.path), "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    eventually(run.heartbeat(0).exists)
    agent.terminate()
    eventually(lambda: "closing signal" in log.read_text())  # the rank is in the middle of a step

    def ends_under_signals() -> bool:
        agent.send_signal(signal.SIGINT)
        time.sleep(0.1)
        agent.terminate()
        time.sleep(0.1)  # signals that are pending at once would be one
        return agent.poll() is not None

    eventually(ends_under_signals)
    assert (read_json(run.finished) or {}).get("why") == "stopped"
