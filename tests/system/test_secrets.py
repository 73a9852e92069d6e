"""A secret given as an argument: it reaches every attempt of the training, and nothing that others can read."""

import json
import stat
import sys
from pathlib import Path

import pytest
from fixture_types import Cli, Configs, MonkeyPatch, Shown, Train
from launched import write_torch_free

import nbtools as nt
from nbtools.errors import NbtoolsError
from nbtools.launcher.programs.program_resume import known_words
from nbtools.launcher.resume import resume
from nbtools.project import Project
from nbtools.run.run import Run
from nbtools.run.state import RunState
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir

CANARY = "canary-5f1c"
ARGS = ("--hf-token", CANARY, f"--api_key={CANARY}", "--epochs", "3", "hf_" + CANARY.replace("-", "") + "0" * 20)
TORCHRUN = """
import json, os, sys
with open(os.environ["SEEN_ARGS"], "a") as file:
    file.write(json.dumps(sys.argv) + "\\n")
sys.exit(int(os.environ["NBTOOLS_ATTEMPT"] == "1"))
"""


def with_canary(run: RunDir) -> list[Path]:
    """The files of a run that hold the secret."""
    return [path for path in run.path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()]


@pytest.mark.promise("safety-secrets")
def test_a_secret_argument_reaches_each_attempt_and_is_shown_nowhere(
    project: Project, tmp_path: Path, monkeypatch: MonkeyPatch, everything_shown: Shown
) -> None:
    write_torch_free(tmp_path / "torch_free", TORCHRUN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "torch_free"))
    monkeypatch.setenv("SEEN_ARGS", str(tmp_path / "seen"))
    monkeypatch.chdir(project.root)
    script = project.scripts / "toy.py"
    script.write_text("print('hello')\n")
    checked = nt.preflight(script, args=ARGS, gpus=())
    assert "canary" not in repr(checked) + checked._repr_html_()
    run = nt.launch(script, args=ARGS, gpus=(), max_restarts=1)
    assert run.wait(timeout_s=300, check=False) is RunState.SUCCEEDED, run.log()
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert [tuple(argv[-len(ARGS) :]) for argv in seen] == [ARGS, ARGS], "the restart has it, too"
    assert with_canary(run.files) == [run.files.secrets]
    assert stat.S_IMODE(run.files.secrets.stat().st_mode) == 0o600
    (tmp_path / "new").touch()
    modes = [stat.S_IMODE(file.stat().st_mode) for file in (run.files.launch, tmp_path / "new")]
    assert modes[0] == modes[1], "that of any new file, so that a colleague's panel may read it"
    assert run.info["args"][1:5] == ["***", "--api_key=***", "--epochs", "3"]
    assert "canary" not in everything_shown(run)


@pytest.mark.promise("safety-secrets")
@pytest.mark.slow
def test_a_resumed_run_gets_its_parents_secrets(
    texts: Project, tiny_training: Train, tiny_config: Configs, monkeypatch: MonkeyPatch
) -> None:
    parent = tiny_training(max_steps=2, checkpoint_every=2)
    nt.write_script(tiny_config(max_steps=2, checkpoint_every=2), "toy", project=texts)
    parent.script.write_text((texts.scripts / "toy.py").read_text())
    args = ["--max-steps", "2"]
    secret = {"format": 1, "args": ["--max-steps", "4"], "argv": [sys.executable]}
    launch = {"name": "toy", "script": str(texts.scripts / "toy.py"), "recipe": "mlm_pretraining", "args": args}
    write_json(parent.launch, {**launch, "launch": {"gpus": [], "nproc_per_node": 1}, "secrets": "***", "time": 1e9})
    write_json(parent.exit, {"returncode": 0, "stopped": False, "failure": None, "time": 1e9})
    monkeypatch.delenv("NBTOOLS_RUN_DIR", raising=False)
    monkeypatch.delenv("NBTOOLS_ATTEMPT", raising=False)
    before = list(texts.runs.iterdir())
    with pytest.raises(NbtoolsError, match="only the user who launched"):
        resume(parent.path)
    assert list(texts.runs.iterdir()) == before
    parent.secrets.write_text(json.dumps(secret))
    child = resume(parent.path)
    assert child.wait(timeout_s=300, check=False) is RunState.SUCCEEDED, child.log()
    assert Run(child.dir).step == 4


@pytest.mark.promise("safety-secrets")
def test_words_that_resume_a_program_are_for_its_user(
    project: Project, monkeypatch: MonkeyPatch, everything_shown: Shown
) -> None:
    monkeypatch.chdir(project.root)
    script = project.root / "train.py"
    script.write_text("print('hello')\n")
    script.chmod(0o600)
    words = ("--resume", "{checkpoint}", "--hub-token", CANARY)
    path = nt.write_script(nt.Program(script="train.py", resume=words), "run_train", nt.Launch(gpus=(), torchrun=False))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "canary" not in repr(nt.preflight(path)) + nt.preflight(path)._repr_html_()
    run = nt.launch(path)
    assert run.wait(timeout_s=300, check=False) is RunState.SUCCEEDED, run.log()
    assert with_canary(run.files) == [run.files.secrets]
    assert stat.S_IMODE(run.files.script.stat().st_mode) == 0o600
    assert stat.S_IMODE(run.files.launch.stat().st_mode) & 0o044, "a colleague's panel may read it"
    assert known_words(run) == words
    assert "canary" not in everything_shown(run)


@pytest.mark.promise("safety-secrets")
def test_printed_secrets_are_masks(
    project: Project, monkeypatch: MonkeyPatch, everything_shown: Shown, cli: Cli
) -> None:
    monkeypatch.chdir(project.root)
    (project.root / "train.py").write_text(
        "import argparse, os\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--hub-token')\n"
        "args = parser.parse_args()\n"
        "print(args, flush=True)\n"
        "raise ValueError(f'cannot log in with {args.hub_token}')\n"
    )
    program = nt.Program(script="train.py", args=("--hub-token", CANARY))
    run = nt.launch(nt.write_script(program, "run_train", nt.Launch(gpus=(), torchrun=False)))
    assert run.wait(timeout_s=300, check=False) is RunState.FAILED
    assert "canary" in run.files.log.read_text()
    assert stat.S_IMODE(run.files.log.stat().st_mode) == 0o600
    assert set(with_canary(run.files)) == {run.files.secrets, run.files.log}
    assert "Namespace(hub_token='***')" in run.log()
    failure = run.failure
    assert failure.message == "exited with code 1: ValueError: cannot log in with ***"
    assert "***" in cli("log", run.id, "--follow").stdout
    assert "canary" not in everything_shown(run) + repr(failure) + cli("log", run.id, "--follow").stdout
