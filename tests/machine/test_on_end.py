"""The command of `on_end`: after the end is recorded, without a shell, and only from the owner's own launch."""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import psutil
import pytest
from fixture_types import MonkeyPatch, Start
from launched import TRAINER, agent
from waiting import eventually

from nbtools.config import Launch
from nbtools.launcher.launch import launch
from nbtools.launcher.preflight import check_launch
from nbtools.launcher.request import LaunchRequest
from nbtools.machine import on_end
from nbtools.machine.processes import members
from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import read_json, write_json
from nbtools.rundir.lock import is_locked
from nbtools.rundir.rundir import RunDir
from nbtools.script.script import render


def said_at_end(run: Run) -> str:
    """What the command printed; the run has ended before it is started."""
    log = run.files.on_end_log
    eventually(lambda: log.exists() and log.read_text().endswith("\n"))
    return log.read_text()


@pytest.mark.promise("fault-35")
@pytest.mark.parametrize(
    ("options", "state", "why"),
    [
        (["--steps", "3"], "SUCCEEDED", " at step 3: train/loss 0.3333"),
        (["--fail-at", "2"], "FAILED", " at step 1: ValueError: boom at step 2"),
        (["--nan-from", "2"], "STOPPED", ": train/loss is NaN at step 2; no checkpoint is older"),
    ],
)
def test_any_end_starts_the_command_once(supervised: Start, options: list[str], state: str, why: str) -> None:
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "{sentence}", "$(id); {run}", "{run}", "{state}"]
    run = supervised(*agent(TRAINER, *options, nproc=1), launch={"stop_on": {"nan": True}}, on_end=words)
    assert run.wait(timeout_s=300, check=False) is RunState(state)
    sentence, *others = json.loads(said_at_end(run))
    assert sentence.startswith(f"Run fake {state.lower()} after ")
    assert why in sentence
    assert others == ["$(id); {run}", run.id, state]


@pytest.mark.promise("fault-35")
def test_a_command_that_fails_changes_no_result(supervised: Start) -> None:
    run = supervised(sys.executable, TRAINER, "--steps", "2", on_end=["/no/such/program"])
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    assert "on_end: '/no/such/program' could not be started" in said_at_end(run)
    assert not is_locked(run.files.lock)


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(on_end, "_WITHIN_S", 0.5)
    run = RunDir(tmp_path)
    run.ranks.mkdir()
    program = "import os, time; print(os.fork() or os.environ.get('NBTOOLS_RUN_ID'), flush=True); time.sleep(1000)"
    monkeypatch.setenv("NBTOOLS_RUN_ID", "this-run")
    on_end.start_on_end([sys.executable, "-c", program], {}, run)
    *printed, last = run.on_end_log.read_text().splitlines()
    assert "was killed after" in last
    child = next(int(word) for word in printed if word != "None")
    assert "None" in printed, "it is no process of the run"
    eventually(lambda: not Path(f"/proc/{child}").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text())


# --- whose words ------------------------------------------------------------------------------------


@pytest.mark.promise("fault-35")
def test_words_in_a_run_directory_are_never_executed(supervised: Start, project: Project, tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    words = ["touch", str(proof)]
    asked = {"on_end": words, "notify_with": words, "notify_on": {"ended": True}}
    run = supervised(sys.executable, TRAINER, "--steps", "2", launch=asked)
    assert run.wait(timeout_s=300) is RunState.SUCCEEDED
    copied = shutil.copytree(
        run.dir, run.dir.with_name("copied"), ignore=shutil.ignore_patterns("exit.json", "process*")
    )
    launched = {**(read_json(copied / "launch.json") or {}), **asked}
    write_json(copied / "launch.json", launched)
    again = os.spawnv(
        os.P_WAIT, sys.executable, [sys.executable, "-P", "-m", "nbtools.launcher.supervisor", str(copied)]
    )
    assert (again, (copied / "exit.json").exists()) == (0, True)
    (copied / "script.py").write_text(render(MLMPretrainingConfig(), "x", Launch(**asked)))
    checked = check_launch(LaunchRequest(script=copied / "script.py"))
    assert (checked.launch.on_end, checked.launch.notify_with) == ((), ())
    assert any("is the script of a run, so its on_end is left out" in note for note in checked.warnings)
    given = LaunchRequest(script=copied / "script.py", settings={"on_end": ["true"]})
    assert check_launch(given).launch.on_end == ("true",)
    assert not proof.exists()


@pytest.mark.promise("fault-35")
def test_a_launch_hands_its_words_on_and_writes_them_nowhere(project: Project) -> None:
    script = project.scripts / "quick.py"
    script.write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        say = [sys.executable, "-c", "print('secret-word')"]
        run = launch(script, gpus=(), cwd=str(project.root), on_end=say, notify_with=say, notify_on={"nan": True})
    eventually(lambda: run.state is RunState.RUNNING)
    processes = [psutil.Process((read_json(run.files.process) or {})["pid"]), *members(run.files)]
    assert not [words for process in processes if "secret-word" in str(words := process.cmdline())]
    (project.root / "go").touch()
    run.wait(timeout_s=300)
    assert said_at_end(run) == "secret-word\n"
    assert "secret-word" not in json.dumps(run.info)
