"""The supervisor against real processes: torch-free programs, alone and as ranks under a stand-in for torchrun."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fixture_types import Cli, Inject, MonkeyPatch, Start
from launched import PROGRAMS, TRAINER, agent, at_step, processes_of, supervisor_of
from waiting import eventually

from nbtools.machine import processes
from nbtools.machine.processes import living, lock_holders, members
from nbtools.project import Project
from nbtools.run import stop
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json
from nbtools.rundir.lock import is_locked
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.rundir import RunDir

# --- ends -------------------------------------------------------------------------------------------


def test_a_run_that_ends_well_is_recorded_and_sweeps_no_other_of_its_id(supervised: Start, tmp_path: Path) -> None:
    run = supervised(*agent(TRAINER, "--steps", "3"))
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "NBTOOLS_RUN_ID": run.id, "NBTOOLS_RUN_DIR": str(tmp_path / "elsewhere" / run.id)},
    )
    try:
        assert run.wait(timeout_s=300) is RunState.SUCCEEDED
        eventually(lambda: not members(run.files))
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    ended = read_json(run.files.exit) or {}
    assert (ended["returncode"], ended["signal"], ended["stopped"], ended["failure"], ended["swept"]) == (
        *(0, None, False, None),
        0,
    )
    assert ended["duration_s"] > 0
    assert not is_locked(run.files.lock)


def test_printed_curves_have_times(supervised: Start, tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text("for step in range(3):\n    print(f'step {step}/3 loss {3 - step}.5', flush=True)\n")
    before = time.time()
    run = supervised(sys.executable, script)
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    loss = run.history["train/loss"]
    assert loss.steps.tolist() == [0, 1, 2]
    assert all(before - 1 < when < time.time() + 1 for when in loss.times.tolist())
    assert run.total_steps == 3
    assert [row[2] for row in map(json.loads, run.files.log_times.read_text().splitlines())] == [1, 1]


def test_the_agents_death_by_signal_fails_the_run_and_no_rank_lives_on(supervised: Start) -> None:
    run = supervised(*agent(TRAINER))
    at_step(run, 2)
    family = processes_of(run)
    assert sorted(family) == ["0", "1", "agent", "supervisor"]
    assert run.records.process == ProcessIdentity.of(family["supervisor"].pid)
    assert os.getsid(family["supervisor"].pid) == family["supervisor"].pid
    family["agent"].kill()
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert not any(family[rank].is_running() and family[rank].status() != "zombie" for rank in "01")
    ended = read_json(run.files.exit) or {}
    assert (ended["signal"], ended["swept"]) == (9, 2)
    assert not run.files.attempts.exists(), "without max_restarts it stays failed"
    assert run.failure.signal == "SIGKILL"
    assert run.failure.headline.startswith("the torchrun agent was killed by SIGKILL: from outside")


@pytest.mark.parametrize("wipe", [[], ["--wipe"]])
def test_a_daemon_is_swept_even_without_the_runs_mark(supervised: Start, tmp_path: Path, wipe: list[str]) -> None:
    run = supervised(sys.executable, PROGRAMS / "forks_daemon.py", tmp_path / "pid", *wipe)
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    ended = read_json(run.files.exit) or {}
    assert ended["swept"] == 1


# --- stops ------------------------------------------------------------------------------------------


def test_further_sigterms_do_not_reach_ranks_that_are_saving(supervised: Start, tmp_path: Path) -> None:
    counter = tmp_path / "signals"
    program = tmp_path / "counts.py"
    program.write_text(
        "import signal, sys, time\n"
        "def count(*_):\n"
        f"    with open({str(counter)!r}, 'a') as file: file.write('x')\n"
        "signal.signal(signal.SIGTERM, count)\n"
        "print('ready', flush=True)\n"
        f"while not __import__('os').path.exists({str(tmp_path / 'end')!r}): time.sleep(0.02)\n"
    )
    run = supervised(sys.executable, program)
    eventually(lambda: "ready" in run.log())
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        supervisor_of(run).send_signal(number)
        time.sleep(0.1)
    (tmp_path / "end").touch()
    assert run.wait(timeout_s=300) is RunState.STOPPED
    assert counter.read_text() == "x"


def test_what_ignores_sigterm_is_killed_after_the_shutdown_timeout(supervised: Start) -> None:
    run = supervised(sys.executable, PROGRAMS / "ignores_sigterm.py", shutdown_timeout_s=0.2)
    eventually(lambda: "ready" in run.log())
    supervisor_of(run).terminate()
    assert run.wait(timeout_s=300) is RunState.STOPPED
    assert run.returncode == -9


def test_a_stop_during_the_last_moments_of_a_completed_run_is_no_failure(supervised: Start, tmp_path: Path) -> None:
    program = tmp_path / "completes.py"
    program.write_text(
        "import os, time\nfrom pathlib import Path\nfrom nbtools.rundir.rundir import RunDir\n"
        "from nbtools.rundir.json_files import write_json\n"
        "write_json(RunDir(os.environ['NBTOOLS_RUN_DIR']).finished, {'why': 'completed', 'step': 5, 'metrics': {}})\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )
    run = supervised(sys.executable, program)
    eventually(lambda: "ready" in run.log())
    assert run.state is RunState.RUNNING  # its agent is still there
    run.stop()
    assert run.state is RunState.STOPPED


# --- the supervisor's own death ---------------------------------------------------------------------


def test_a_run_without_supervisor_that_ignores_sigterm_is_killed(supervised: Start) -> None:
    run = supervised(*agent(PROGRAMS / "ignores_sigterm.py", shutdown_timeout_s=600))
    eventually(lambda: len(members(run.files)) == 4 and run.log().count("ready") == 2)
    supervisor_of(run).kill()
    said = run.stop(timeout_s=0.5)
    assert said.startswith("killed")
    assert run.state is RunState.STOPPED
    assert not members(run.files)


HIDES = """
import subprocess, sys, time
from pathlib import Path
command = [sys.executable, "-c", "import time; time.sleep(600)"]
daemon = subprocess.Popen(command, env={}, start_new_session=True, close_fds=False)
Path(sys.argv[1]).write_text(str(daemon.pid))
time.sleep(600)
"""
"""Starts a daemon that nothing ties to its run but the inherited lock."""


@pytest.mark.promise("safety-stop-unkillable")
def test_a_stop_without_supervisor_ends_a_daemon_with_the_lock(supervised: Start, tmp_path: Path) -> None:
    run = supervised(sys.executable, "-c", HIDES, tmp_path / "pid")
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    daemon = psutil.Process(int((tmp_path / "pid").read_text()))
    supervisor_of(run).kill()
    run.stop(timeout_s=20)
    assert run.state is RunState.STOPPED and living([daemon]) == []


def test_a_process_that_took_the_lock_itself_is_none_of_the_run(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "x")
    taker = "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); os.fork()"
    command = [sys.executable, "-c", f"{taker}; time.sleep(600)", str(run.lock)]
    with subprocess.Popen(command, start_new_session=True) as holder:
        try:
            eventually(lambda: is_locked(run.lock) and psutil.Process(holder.pid).children())
            assert lock_holders(run) == []
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


@pytest.mark.promise("safety-stop-unkillable")
def test_a_stop_spares_an_unkillables_supervisor(supervised: Start, monkeypatch: MonkeyPatch, cli: Cli) -> None:
    run = supervised(sys.executable, "-c", "import time; time.sleep(600)", shutdown_timeout_s=600)
    eventually(lambda: run.files.log.exists() and len(members(run.files)) == 2)
    supervisor = supervisor_of(run)
    (program,) = supervisor.children()
    program.suspend()
    send = processes.send_signal
    with monkeypatch.context() as patched:  # as if it were in state D
        patched.setattr(processes, "send_signal", lambda one, number: one == program or send(one, number))
        patched.setattr(processes, "sweep_processes", functools.partial(processes.sweep_processes, limit_s=0.5))
        said = cli("stop", run.dir, "--timeout", "0.5", code=1).stdout
    assert f"1 process could not be ended: pid {program.pid} (state T)" in said
    assert run.state is RunState.RUNNING and supervisor.is_running()
    program.resume()
    assert run.wait(60) is RunState.STOPPED


@pytest.mark.promise("safety-stop-unkillable")
def test_a_stop_spares_a_supervisor_in_state_d(supervised: Start, monkeypatch: MonkeyPatch, cli: Cli) -> None:
    run = supervised(sys.executable, "-c", "import time; time.sleep(600)")
    eventually(lambda: run.files.log.exists() and len(members(run.files)) == 2)
    supervisor = supervisor_of(run)
    supervisor.suspend()
    monkeypatch.setattr(stop, "STOP_GRACE_S", 0.2)
    with monkeypatch.context() as patched:
        patched.setitem(stop._STATE_LETTERS, "stopped", "D")
        said = cli("stop", run.dir, "--timeout", "0.5", code=1).stdout
    assert f"1 process ended; 1 process could not be ended: pid {supervisor.pid} (state D), the supervisor" in said
    supervisor.resume()
    assert run.wait(60) is RunState.STOPPED


# --- one run, one supervisor ------------------------------------------------------------------------


def test_a_run_directory_is_used_once(supervised: Start) -> None:
    run = supervised(sys.executable, "-c", "pass")
    run.wait(timeout_s=300)
    eventually(lambda: not is_locked(run.files.lock))
    command = [sys.executable, "-P", "-m", "nbtools.launcher.supervisor", str(run.dir)]
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert again.returncode == 2
    assert "used once" in again.stderr


# --- what it is and costs ----------------------------------------------------------------------------


def test_the_agent_starts_with_default_signals_and_nothing_to_read(supervised: Start) -> None:
    program = (
        "import signal, sys\n"
        "print([signal.getsignal(s) is signal.SIG_DFL for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []), repr(sys.stdin.read()))\n"
    )
    run = supervised(sys.executable, "-c", program)
    run.wait(timeout_s=300)
    assert run.log().splitlines() == ["[True, True, True]", "set() ''"]


def test_the_supervisor_is_small_and_idle(supervised: Start) -> None:
    run = supervised(sys.executable, "-c", "import time; time.sleep(600)")
    eventually(lambda: run.files.system.exists())
    supervisor = supervisor_of(run)
    before = sum(supervisor.cpu_times()[:2])
    time.sleep(2)
    assert supervisor.memory_full_info().uss < 25 * 2**20, "its own memory: pages of libraries are shared"
    assert sum(supervisor.cpu_times()[:2]) - before <= 0.07
    row = json.loads(run.files.system.read_text().splitlines()[0])
    memory = {"memory_used_bytes", "memory_total_bytes", "oom_kills"}
    assert set(row) == {"time", "cpu_percent", "num_processes", "rss_bytes", "gpus"} | memory
    assert 0 < row["memory_used_bytes"] < row["memory_total_bytes"]
    assert row["num_processes"] == 1
    assert row["rss_bytes"] > 0


def test_a_launcher_that_blocks_signals_leaves_a_run_that_can_be_stopped(supervised: Start) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    try:
        run = supervised(*agent(TRAINER, "--steps", "1000000"))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    at_step(run, 1)
    assert "killed" not in run.stop(timeout_s=30)
    assert run.state is RunState.STOPPED and run.failure is None
    assert [checkpoint.step for checkpoint in run.checkpoints] == [run.step]
    ended = read_json(run.files.exit) or {}
    assert (ended["returncode"], ended["stopped"]) == (1, True)


# --- errors of the supervisor itself --------------------------------------------------------------


@pytest.mark.promise("safety-supervisor")
def test_an_error_of_the_supervisor_before_the_start_is_the_recorded_cause(supervised: Start) -> None:
    run = supervised(sys.executable, "-c", "pass", env="not an object")
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert run.failure.headline.startswith("the supervisor failed: TypeError")
    assert "Traceback" in (run.failure.traceback or "")


@pytest.mark.promise("safety-supervisor")
def test_the_end_of_a_training_that_a_newer_nbtools_recorded_is_recorded(supervised: Start) -> None:
    program = "import os, pathlib, sys\n"
    program += (
        "pathlib.Path(os.environ['NBTOOLS_RUN_DIR'], 'finished.json').write_text('{\"format\": 99}')\nsys.exit(3)"
    )
    run = supervised(sys.executable, "-c", program)
    eventually(run.files.exit.exists)
    recorded = read_json(run.files.exit) or {}
    assert (recorded["returncode"], recorded["stopped"]) == (3, False)
    assert run.state is RunState.FAILED


@pytest.mark.promise("safety-supervisor")
def test_a_supervisors_error_ends_no_training(supervised: Start, injected: Inject) -> None:
    code = "import psutil\ndef fail(): raise RuntimeError('no counters here')\npsutil.cpu_percent = fail\n"
    injected(code)
    run = supervised(sys.executable, TRAINER, "--steps", "5")
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert run.step == 5
    assert "no counters here" in run.files.supervisor_log.read_text()
    stopped = supervised(sys.executable, TRAINER, "--steps", "10000")
    at_step(stopped, 1, 1)
    stopped.stop(timeout_s=20)
    assert stopped.state is RunState.STOPPED


@pytest.mark.promise("safety-supervisor")
def test_a_lost_run_quotes_its_supervisor(supervised: Start, injected: Inject) -> None:
    injected("raise ImportError('psutil was built for another Python')\n", "psutil.py")
    run = supervised(sys.executable, "-c", "pass")
    eventually(lambda: run.state is RunState.LOST)
    assert "ImportError: psutil was built for another Python" in run.failure.headline
    assert "Traceback" in (run.failure.traceback or "")


@pytest.mark.promise("safety-stop-restart")
def test_a_stop_between_two_attempts_is_a_stop(supervised: Start, tmp_path: Path) -> None:
    program = "import os, sys, time\nprint('ready', flush=True)\n"
    program += "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nraise ValueError('boom')\n"
    run = supervised(sys.executable, "-c", program, tmp_path / "go", launch={"max_restarts": 5})
    eventually(lambda: run.records.process is not None and "ready" in run.log())
    supervisor = supervisor_of(run)
    supervisor.suspend()  # it restarts after a second
    (tmp_path / "go").touch()
    eventually(lambda: not living(supervisor.children()))
    supervisor.send_signal(signal.SIGTERM)
    supervisor.resume()
    assert run.wait(timeout_s=300, check=False) is RunState.STOPPED
    assert (read_json(run.files.exit) or {})["failure"]["message"].endswith("ValueError: boom")


@pytest.mark.promise("safety-nested-launch")
def test_runs_that_a_program_launches_do_not_end_with_it(supervised: Start, project: Project) -> None:
    (project.scripts / "inner.py").write_text("import time\nwhile True: time.sleep(0.1)\n")
    outer = "import nbtools as nt, time; print(nt.launch('scripts/inner.py', gpus=()).id, flush=True); {}"
    for then, end in (("", RunState.SUCCEEDED), ("time.sleep(600)", RunState.STOPPED)):
        run = supervised(sys.executable, "-c", outer.format(then))
        eventually(lambda run=run: run.log().strip())  # type: ignore[misc]
        inner = Run(run.log().split()[-1])
        eventually(inner.files.log.exists)
        if then:
            run.stop(timeout_s=20)
        assert run.wait(timeout_s=300) is end
        assert not inner.state.is_final
        inner.stop(timeout_s=20)
