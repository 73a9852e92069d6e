"""Programs that start their own processes: stopped, killed and ended without one that is left."""

import os
import signal
import time
from collections.abc import Callable

import psutil
import pytest

import nbtools as nt
from nbtools.machine.processes import members
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState

WORKER = """
import os, signal, sys, time
def main(*args):
    {more}
    os.write(1, b"started %d\\n" % os.getpid())  # one line, whatever writes beside it
    time.sleep(600)
"""
IGNORES = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
SPAWNERS = {
    "mp.spawn": "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.spawn(main, nprocs=2)\n",
    "daemons": "import torch.multiprocessing as mp\nif __name__ == '__main__':\n    mp.set_start_method('spawn')\n"
    "    each = [mp.Process(target=main, daemon=True) for _ in range(2)]\n    [p.start() for p in each]\n"
    "    [p.join() for p in each]\n",
    "daemons that are not joined": "import torch.multiprocessing as mp\nif __name__ == '__main__':\n"
    "    [mp.get_context('fork').Process(target=main).start() for _ in range(2)]\n    time.sleep(600)\n",
    "subprocesses in sessions of their own": "import subprocess\nif len(sys.argv) > 1:\n    main()\nelse:\n"
    "    each = [subprocess.Popen([sys.executable, __file__, 'rank'], start_new_session=True) for _ in range(2)]\n"
    "    [p.wait() for p in each]\n",
    "its own torchrun": "import subprocess\nif 'RANK' in os.environ:\n    main()\nelse:\n"
    "    sys.exit(subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2', "
    "__file__]).returncode)\n",
    "accelerate": "from accelerate import debug_launcher\nif __name__ == '__main__':\n"
    "    debug_launcher(main, num_processes=2)\n",
}


def started(project: Project, text: str, *, shutdown_timeout_s: int = 10) -> Run:
    script = project.root / "theirs.py"
    script.write_text(text)
    run = nt.launch(script, gpus=(), torchrun=False, shutdown_timeout_s=shutdown_timeout_s)
    eventually(lambda: run.log().count("started") == 2 or run.state.is_final, lambda: run.log())
    assert run.state is RunState.RUNNING, run.log()
    return run


def eventually(condition: Callable[[], bool], said: Callable[[], str] = str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


def ranks(run: Run) -> list[psutil.Process]:
    pids = [int(line.split()[1]) for line in run.log().splitlines() if line.startswith("started")]
    return [psutil.Process(pid) for pid in pids]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [*((name, "pass") for name in SPAWNERS), ("daemons", IGNORES)])
def test_a_stop_ends_every_process_that_a_program_started(cpu_project: Project, name: str, more: str) -> None:
    run = started(cpu_project, WORKER.format(more=more) + SPAWNERS[name], shutdown_timeout_s=2)
    found = ranks(run)
    sentence = run.stop()
    assert run.state is RunState.STOPPED, sentence
    assert not [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    eventually(lambda: not list(members(run.files)))  # the supervisor outlives its record for a moment


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mp.spawn", "subprocesses in sessions of their own"])
def test_a_program_that_is_killed_leaves_no_process(cpu_project: Project, name: str) -> None:
    run = started(cpu_project, WORKER.format(more="pass") + SPAWNERS[name])
    found = ranks(run)
    script = str(cpu_project.root / "theirs.py")
    program = next(process for process in members(run.files) if process.cmdline()[1:] == [script])
    os.kill(program.pid, signal.SIGKILL)
    assert run.wait(60, check=False) is RunState.FAILED
    assert run.failure is not None
    assert "SIGKILL" in run.failure.message
    assert "torchrun" not in run.failure.message
    eventually(lambda: not [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])
    eventually(lambda: not list(members(run.files)))  # the supervisor outlives its record for a moment
