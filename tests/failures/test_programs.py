"""Programs of the user's that really fail: the cause is shown, whatever the launcher prints below it."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import eventually

import nbtools as nt
from nbtools.failures.failure import Failure
from nbtools.machine.processes import members
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState

FAKE_AGENT = Path(__file__).parents[1] / "programs" / "fake_agent.py"
RAISES = "raise ValueError('batch 3 has no labels')\n"
PROGRAMS = tomllib.loads(Path(__file__).with_name("failing_programs.toml").read_text(encoding="utf-8"))
Failed = Callable[..., tuple[Run, Failure]]


@pytest.fixture
def failed(cpu_project: Project, supervised: Callable[..., Run]) -> Failed:
    """Run the text of a program to its failure."""

    def run_to_its_end(text: str, *, has_ranks: bool = False) -> tuple[Run, Failure]:
        script, root = cpu_project.root / "theirs.py", str(cpu_project.root)
        script.write_text(f"{text}\n# one of the programs that read their RANK\n")
        if has_ranks:
            run = nt.launch(script, nproc_per_node=2, gpus=())
        else:
            run = supervised(sys.executable, FAKE_AGENT, script, script=str(script), root=root)
        assert run.wait(120, check=False) is RunState.FAILED, run.log()
        assert run.failure is not None
        return run, run.failure

    return run_to_its_end


@pytest.mark.promise("fault-25")
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_failure_of_a_program_is_what_it_raised_or_said(
    cpu_project: Project, failed: Failed, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(cpu_project.root)
    monkeypatch.setenv("COLUMNS", "200")  # rich breaks a long path into several lines
    program = PROGRAMS[name]
    run, failure = failed(program["text"], has_ranks="rank" in program)
    eventually(lambda: not members(run.files))
    assert program["said"] in failure.message
    assert failure.rank == program.get("rank", 0)
    assert all(word not in "\n".join(failure.lines) for word in ("ChildFailedError", "HYDRA_FULL_ERROR", "│", "\x1b"))
    where = program.get("where", "theirs.py:")
    assert where in (failure.where or "") and bool(where) == bool(failure.where)
    if advice := program.get("advice"):
        assert advice.format(cwd=cpu_project.root, python=sys.executable) in (failure.advice or "")
    elif "SIG" not in program["said"]:
        assert failure.advice is None


@pytest.mark.slow
def test_a_benign_traceback_long_before_a_signal_is_not_its_cause(failed: Failed) -> None:
    text = "import logging, os, signal\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('retried')\n"
    text += "print('step 1 loss 1.0\\n' * 5000, flush=True)\nos.kill(os.getpid(), signal.SIGABRT)\n"
    _, failure = failed(text)
    assert failure.message.startswith("killed by SIGABRT")
    assert "ZeroDivisionError" not in failure.message


@pytest.mark.slow
def test_the_last_step_and_loss_of_a_program_come_from_its_curves(failed: Failed) -> None:
    text = "for step in range(1, 8):\n    print(f'step {step}/100 loss {10 - step}.5', flush=True)\n" + RAISES
    run, failure = failed(text)
    assert (failure.step, failure.loss) == (7, 3.5)
    assert "last step 7, train/loss 3.5" in failure.lines
    assert run.summary()["failure"]["loss"] == 3.5
