"""The command line, end to end: a project in a temporary folder, real runs, exit codes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Cli, MonkeyPatch
from waiting import eventually

from nbtools.cli import doctor
from nbtools.cli.commands import VERBS
from nbtools.config import Launch, Slurm
from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.run.run import Run
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.script.program import Program
from nbtools.script.script import read_script

WRONG_CALLS = tomllib.loads(Path(__file__).with_name("wrong_calls.toml").read_text(encoding="utf-8"))
NBTOOLS = [sys.executable, "-m", "nbtools"]
ALONE = "--gpus", "none", "--no-torchrun"
"""A launch without torchrun, whose start takes seconds."""

PRINTS_LOSSES = """\
import os, sys, time
for step in range(1, 6):
    if os.environ["RANK"] == "0":
        print(f"step {step} loss {5 / step}", flush=True)
print("arguments", sys.argv[1:], flush=True)
"""
SLEEPS = "import time\nprint('\\x1b[31mready\\x1b[0m \\x1b]0;evil\\x07', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def root(project: Project, monkeypatch: MonkeyPatch) -> Path:
    """The folder of a project, in which the command line is called."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(project.root)
    return project.root


def foreign(root: Path, text: str, name: str = "train") -> str:
    path = root / "scripts" / f"{name}_1.py"
    path.write_text(text)
    return str(path.relative_to(root))


# --- recipes and scripts ---


@pytest.mark.promise("guide-M1")
def test_recipes_and_presets_are_listed(root: Path, cli: Cli) -> None:
    assert "mlm_pretraining" in cli("recipes").stdout
    assert "batch_size" in cli("recipes", "mlm_pretraining").stdout
    listed = cli("recipes", "--presets").stdout
    mlm = cli("recipes", "mlm_pretraining", "--presets").stdout
    assert cli("presets", "mlm_pretraining").stdout == mlm, "the former name of the command"
    assert listed.startswith(mlm)
    title, columns, *presets, legend = mlm.splitlines()
    assert title == "mlm_pretraining: Masked language modelling"
    assert columns.split() == ["PRESET", "MODEL", "PARAMETERS", "BATCH", "EPOCHS", "USE"]
    assert [line.split()[0] for line in presets][:2] == ["cpu_demo", "h200_8gpu_fast"]
    standard = next(line for line in presets if "h200_8gpu_standard" in line)
    model = ["6/8/16", "183,536", "32", "x", "8", "=", "256", "5"]
    assert standard.split()[1:9] == model
    assert "1,000,000 documents" in standard
    assert "layers/heads/width" in legend
    for key in RECIPES:
        assert f"{key}: " in listed


def test_new_writes_a_script_and_prints_its_path(root: Path, cli: Cli) -> None:
    values = ["--set", "max_steps=20", "--set", "dataset=it's a.txt", "--set", "deterministic=true"]
    where = ["--nproc-per-node", "1", "--gpus", "3"]
    done = cli("new", "mlm_pretraining", "tiny", "--preset", "cpu_demo", *values, *where)
    assert done.stdout == "scripts/tiny.py\n"
    script = read_script(root / "scripts" / "tiny.py")
    assert (script.config.max_steps, script.config.deterministic) == (20, True)
    assert script.config.model_dump()["dataset"] == "it's a.txt"
    assert (script.launch.nproc_per_node, script.launch.gpus) == (1, (3,)), "not those of the preset"
    assert not script.hand_edited


@pytest.mark.promise("safety-gpu-count")
def test_new_keeps_the_word_gpu_for_the_machine_that_launches(root: Path, cli: Cli) -> None:
    cli("new", "llm_gan", "all", "--preset", "full", "--sh")
    cli("new", "mlm_pretraining", "tiny", "--preset", "cpu_demo", "--nproc-per-node", "gpu")
    for name in ("all", "tiny"):
        assert read_script(root / "scripts" / f"{name}.py").launch.nproc_per_node == "gpu"
    assert "processes=gpu" in (root / "scripts" / "all.sh").read_text()
    assert "one process per GPU" in (root / "scripts" / "all.py").read_text()
    wrong = cli("new", "mlm_pretraining", "other", "--nproc-per-node", "all", code=2)
    assert "'all' is not a whole number such as 1_000, or gpu" in wrong.stderr


@pytest.mark.promise("safety-epochs")
def test_new_with_epochs_lifts_the_cap_of_the_preset_and_says_so(root: Path, cli: Cli) -> None:
    made = cli("new", "mlm_pretraining", "tiny", "--preset", "cpu_demo", "--set", "epochs=5")
    config = read_script(root / "scripts" / "tiny.py").config
    assert (config.epochs, config.max_steps) == (5, None)
    assert "max_steps=600 is lifted, as epochs=5 is given without it" in made.stderr


def test_new_makes_a_project_of_a_folder_that_belongs_to_none_and_says_so(
    root: Path, cli: Cli, monkeypatch: MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    monkeypatch.delenv("NBTOOLS_ROOT")
    monkeypatch.chdir(empty)
    assert "no project found" in cli("runs", code=2).stderr
    cli("new", "mlm_pretraining", "datasets", code=2)
    assert list(empty.iterdir()) == []
    made = cli("new", "mlm_pretraining", "tiny")
    assert made.stdout == "scripts/tiny.py\n"
    assert f"{empty} is a project of nbtools now" in made.stderr
    assert "project" not in cli("new", "mlm_pretraining", "second").stderr
    assert cli("runs").stdout == ""
    (root / "pyproject.toml").touch()
    (root / "runs").rmdir()
    monkeypatch.chdir(root)
    cli("new", "mlm_pretraining", "tiny")
    assert not (root / "runs").exists(), "a project of its own is left as it is"


def test_new_writes_a_launcher_script_that_keeps_the_arguments_of_a_program(root: Path, cli: Cli) -> None:
    (root / "train.py").write_text(PRINTS_LOSSES)
    words = ("--nproc-per-node", "2", "--cwd", ".", "--resume-with", "--resume {checkpoint}", "--stop-signal", "SIGINT")
    made = cli("new", "train.py", "tiny", *words, "--", "--lr", "3e-4", "--name", "a b")
    assert made.stdout == "scripts/tiny.py\n"
    script = read_script(root / "scripts" / "tiny.py")
    args = ("--lr", "3e-4", "--name", "a b")
    kept = Program(script="train.py", args=args, cwd=".", resume=("--resume", "{checkpoint}"), stop_signal="SIGINT")
    assert script.program == kept
    assert (script.launch, script.recipe, script.hand_edited) == (Launch(nproc_per_node=2), None, False)
    checked = cli("launch", "scripts/tiny.py", "--gpus", "none", "--dry-run", "--", "--more").stdout
    assert "train.py --lr 3e-4 --name 'a b' --more\n" in checked
    assert "'train.py', started in the project's folder" in checked


def test_new_tells_what_a_program_and_a_recipe_do_not_take(root: Path, cli: Cli) -> None:
    (root / "train.py").write_text("pass\n")
    assert "--preset: is for a recipe" in cli("new", "train.py", "tiny", "--preset", "cpu_demo", code=2).stderr
    assert "--set FIELD=VALUE" in cli("new", "mlm_pretraining", "tiny", "--", "--lr", "1", code=2).stderr
    assert "--stop-signal: is for a program" in cli("new", "llm_gan", "x", "--stop-signal", "SIGINT", code=2).stderr
    assert "--cwd nowhere: no such folder" in cli("new", "train.py", "tiny", "--cwd", "nowhere", code=2).stderr
    assert not [*(root / "scripts").iterdir()]


def test_launch_takes_the_name_of_a_module(root: Path, cli: Cli) -> None:
    (root / "package").mkdir()
    (root / "package" / "__init__.py").touch()
    (root / "package" / "words.py").write_text("GREETING = 'from the package'\n")
    (root / "package" / "train.py").write_text("from .words import GREETING\nprint(GREETING)\n")
    hint = cli("launch", "package/train.py", code=2).stderr
    assert "nbtools launch -m package.train" in hint
    assert " -m -- package.train\n" in cli("launch", "-m", "package.train", "--gpus", "none", "--dry-run").stdout


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS.items())
def test_a_wrong_call_says_why_on_stderr_and_exits_2(root: Path, call: str, message: str, cli: Cli) -> None:
    done = cli(*shlex.split(call), code=2)
    assert message in done.stderr
    assert all(line.startswith("nbtools: ") for line in done.stderr.splitlines())
    assert done.stdout == ""
    assert list((root / "scripts").iterdir()) == list((root / "runs").iterdir()) == []


# --- runs ---


def test_a_run_from_launch_to_plot(root: Path, cli: Cli) -> None:
    script = foreign(root, PRINTS_LOSSES)
    hostile = "$(touch p); 'x' \n"
    run_id = cli("launch", script, "--nproc-per-node", "2", "--gpus", "none", "--", "--flag", hostile).stdout.strip()
    assert (root / "runs" / run_id).is_dir()
    assert cli("wait", run_id).stdout == f"{run_id} SUCCEEDED\n"
    shown = json.loads(cli("show", run_id[:-1], "--json").stdout)
    keys = {"id", "state", "returncode", "step", "total_steps", "metrics", "checkpoints", "ranks", "failure"}
    assert keys <= set(shown)
    assert (shown["id"], shown["state"], shown["returncode"], shown["failure"]) == (run_id, "SUCCEEDED", 0, None)
    assert [run["id"] for run in json.loads(cli("runs", "--json").stdout)] == [run_id]
    assert "SUCCEEDED" in cli("runs").stdout
    assert "SUCCEEDED (exit code 0)" in cli("show", "latest").stdout
    log = cli("log", "latest", "-n", "2").stdout
    assert log.splitlines()[-1] == f"arguments {['--flag', hostile]}"
    assert len(log.splitlines()) == 2
    assert "step 5 loss 1.0" in cli("log", "latest", "-f").stdout
    assert "SUCCEEDED" in cli("watch", "latest").stdout.splitlines()[-1]
    assert cli("plot", "latest", "-o", "curves.png").stdout == "curves.png\n"
    plain = (root / "curves.png").read_bytes()
    cli("plot", "latest", "-o", "curves.png", "--log", "--x", "time")
    assert (root / "curves.png").read_bytes() != plain
    assert (root / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "is known to resume it; name one" in cli("resume", "latest", code=2).stderr
    assert "ended" in cli("stop", "latest").stdout.replace("already", "ended")
    assert "cannot be written" in cli("plot", "latest", "-o", f"{script}/x.png", code=2).stderr
    assert "export is for recipes" in cli("export", "latest", code=2).stderr
    assert sorted(path.name for path in root.iterdir()) == ["curves.png", "runs", "scripts"]


def test_a_failed_run_exits_1_and_no_row_of_the_curves_is_its_cause(root: Path, cli: Cli) -> None:
    source = "import sys\nprint('epoch 1 | step 28/32 | loss 0.0679 | acc 0.969', flush=True)\nsys.exit(3)\n"
    cli("launch", foreign(root, source), "--gpus", "none")
    done = cli("wait", "latest", code=1)
    assert done.stderr.startswith("nbtools: ")
    assert cli("watch", "latest", code=1).stdout.endswith(" FAILED  step 28  train/loss 0.0679\n")
    shown = cli("show", "latest").stdout  # showing a failure is no failure
    assert "FAILED (exit code 3, torchrun's 1)" in shown
    assert "exited with code 3 without a message (sys.exit?)" in shown
    assert "step 28/32" not in shown.partition("exited with")[2]
    assert json.loads(cli("show", "latest", "--json").stdout)["failure"]["rank"] == 0


def test_stopping_following_and_waiting_with_a_limit_and_an_interrupt(
    root: Path, cli: Cli, monkeypatch: MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    run_id = cli("launch", foreign(root, SLEEPS), *ALONE).stdout.strip()
    run = Run(run_id)
    eventually(lambda: "ready" in run.log())
    assert "still RUNNING after 0.1 s" in cli("wait", run_id, "--timeout", "0.1", code=124).stderr
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt, match=f"{run_id} continues: nbtools stop {run_id}"):
            run.wait()
        assert f"{run_id} continues" in cli("wait", run_id, code=130).stderr
    with subprocess.Popen([*NBTOOLS, "watch", run_id], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout.readline().startswith(run_id.encode())
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=300)
        assert watching.returncode == 130
        assert b"continues" in errors
        assert b"Traceback" not in errors
    assert run.state == "RUNNING"
    with subprocess.Popen([*NBTOOLS, "log", "-f", run_id], stdout=subprocess.PIPE) as following:
        assert cli("stop", run_id).stdout
        output, _ = following.communicate(timeout=300)
        assert following.returncode == 0
    assert b"ready" in output
    assert b"\x1b" not in output
    assert cli("wait", run_id, code=130).stdout == f"{run_id} STOPPED\n"


def test_one_call_stops_several_runs_the_newest_first(root: Path, cli: Cli) -> None:
    script = foreign(root, SLEEPS)
    first = Run(cli("launch", script, *ALONE).stdout.strip())
    second = Run(cli("launch", script, *ALONE, "--after", first.id).stdout.strip())
    eventually(lambda: "ready" in first.log() and second.files.process.exists())
    assert "no run" in cli("stop", first.id, "none_such", code=2).stderr
    assert first.state == "RUNNING"
    lines = cli("stop", first.id, second.id).stdout.splitlines()
    assert lines[0] == f"{second.id}: cancelled while queued; it had not started"
    assert lines[1].startswith(f"{first.id}: stopped at step 0") and len(lines) == 2


def test_following_a_long_log_reads_its_end_alone(root: Path, cli: Cli) -> None:
    run = RunDir(root / "runs" / "2026-01-01_000000_long")
    run.path.mkdir()
    run.lock.touch()
    write_json(run.launch, {"name": "long", "time": 1e9})
    write_json(run.exit, {"returncode": 0, "stopped": False, "failure": None, "time": 1e9})
    with run.log.open("wb") as log:
        log.truncate(50 << 20)
        log.seek(0, os.SEEK_END)
        log.write(b"\n" + b"".join(b"line %d\n" % number for number in range(200)))

    def megabytes_read() -> float:
        return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1]) / 1e6  # type: ignore[index]

    for _ in range(2):  # the first imports what it needs
        before = megabytes_read()
        assert cli("log", "-f", run.id, "-n", "3").stdout.splitlines() == ["line 197", "line 198", "line 199"]
    assert megabytes_read() - before < 2


def test_a_reader_that_has_seen_enough_is_no_error(root: Path) -> None:
    (root / "runs" / "2026-01-01_000000_x").mkdir()
    with subprocess.Popen([*NBTOOLS, "presets"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as printing:
        printing.stdout.close()
        assert printing.stderr.read() == b""
        assert printing.wait(timeout=300) == 0


def test_an_ascii_terminal_shows_what_it_can(root: Path, cli: Cli) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    text = f"dataset={chr(0x6771)}"
    cli("new", "mlm_pretraining", "tiny", "--set", text)
    done = subprocess.run([*NBTOOLS, "recipes"], env=environment, capture_output=True, check=False)
    assert done.returncode == 0


# --- doctor and start-up ---


@pytest.mark.promise("guide-M7", "guide-M17", "guide-G1")
@pytest.mark.slow
def test_doctor_reports_this_machine_and_runs_a_collective(root: Path, cli: Cli) -> None:
    done = cli("doctor", "--all-reduce")
    assert "gloo: 2 ranks agree" in done.stdout
    subjects = {line.split()[1] for line in done.stdout.splitlines() if not line.startswith(" ")}
    assert {"python", "nbtools", "widgets", "cpu", "gpus", "torch", "gloo", "project", "runs/"} <= subjects
    assert not list(root.glob("**/.nbtools*"))


def test_doctor_exits_1_when_there_is_a_problem(root: Path, monkeypatch: MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setenv("NBTOOLS_ROOT", str(root / "none"))
    monkeypatch.setattr(doctor, "_probe_torch", lambda: None)  # the other test imports torch
    findings = json.loads(cli("doctor", "--json", code=1).stdout)
    assert [finding["subject"] for finding in findings if finding["level"] == "problem"] == ["project"]
    assert all(finding["next_step"] for finding in findings if finding["level"] != "ok")
    assert "--gpu-tests: torch can use no GPU" in cli("doctor", "--gpu-tests", code=2).stderr


def test_the_command_line_starts_without_torch_or_matplotlib(root: Path) -> None:
    code = (
        "import sys; from nbtools.cli.commands import main; main(['recipes']); main(['runs']);"
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'ipywidgets', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_names_every_command_and_exits_0(root: Path, cli: Cli) -> None:
    text = cli("--help").stdout
    for command in VERBS:
        assert f"\n    {command} " in text
        assert cli(command, "--help").stdout.startswith(f"usage: nbtools {command}")
    assert len(VERBS) <= 18
    assert "presets" not in text and "preflight" not in text, "former names are not listed"


@pytest.mark.parametrize("start", [[*NBTOOLS], [str(Path(sys.executable).with_name("nbtools"))]], ids=["-m", "script"])
def test_the_module_and_the_installed_command_are_the_same_program(root: Path, start: list[str]) -> None:
    done = subprocess.run([*start, "fly"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nbtools: argument COMMAND: invalid choice: 'fly'; choose from recipes")


def test_a_dry_run_starts_nothing_and_only_it_prints_json(root: Path, cli: Cli) -> None:
    script = foreign(root, PRINTS_LOSSES)
    checked = cli("launch", "--dry-run", script, "--gpus", "none")
    assert "ready to launch" in checked.stdout
    assert cli("preflight", script, "--gpus", "none").stdout.splitlines()[0] == checked.stdout.splitlines()[0]
    assert json.loads(cli("launch", "--dry-run", "--json", script, "--gpus", "none").stdout)
    assert "--dry-run" in cli("launch", "--json", script, code=2).stderr
    assert "run 'none'" in cli("launch", "--dry-run", script, "--gpus", "none", "--after", "none", code=2).stderr
    assert list((root / "runs").iterdir()) == []


def test_closed_streams_are_no_error(root: Path, cli: Cli) -> None:
    path = foreign(root, SLEEPS)
    command = f"exec {sys.executable} -m nbtools launch {path} --no-torchrun <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], check=False).returncode == 0
    run = Run("latest")
    eventually(lambda: "ready" in run.log())
    assert str(run.state) == "RUNNING"
    cli("stop", "latest")


def test_another_projects_script_is_launched(
    root: Path, tmp_path_factory: Any, monkeypatch: MonkeyPatch, cli: Cli
) -> None:
    script = tmp_path_factory.mktemp("elsewhere") / "train_1.py"
    script.write_text("print('loss=1.5')\n")
    monkeypatch.delenv("NBTOOLS_ROOT")
    launched = cli("launch", script, *ALONE)
    folder = script.parent / "runs" / launched.stdout.strip()
    assert str(folder) in launched.stderr
    cli("wait", folder)
    monkeypatch.chdir(script.parent)
    assert "SUCCEEDED" in cli("show", "latest").stdout


@pytest.mark.parametrize("path", ["x.jpg", "scripts", "absent/x.png", "absent/\0.png", "~no-such-user/x"])
def test_an_impossible_picture_or_run_is_a_wrong_call(root: Path, path: str, cli: Cli) -> None:
    for name in ("2026-01-01_000000_old", "2026-01-01_000001_old"):
        (root / "runs" / name).mkdir()
        (root / "runs" / name / "lock").touch()
    for refs in (["latest"], ["2026*"]) if "\0" not in path else ():
        cli("plot", *refs, "-o", path, code=2)
    assert not (root / "absent").exists()
    cli("show", path.replace("\0", "x" * 5000) + "/", code=2)
    cli("launch", path.replace("\0", "x" * 5000), code=2)


def test_a_full_disk_behind_stdout_is_said_once(root: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*NBTOOLS, "recipes"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_new_never_loses_a_value_that_was_edited_by_hand(root: Path, cli: Cli) -> None:
    cli("new", "mlm_pretraining", "tiny")
    path = root / "scripts" / "tiny.py"
    path.write_text(path.read_text().replace("seed=0,", "seed=8,"))
    refused = cli("new", "mlm_pretraining", "tiny", code=2)
    assert "seed is 8 there, 0 here" in refused.stderr and "--force" in refused.stderr
    assert "seed=8," in path.read_text()
    cli("new", "mlm_pretraining", "tiny", "--set", "seed=8")
    cli("new", "mlm_pretraining", "tiny", "--force")
    assert "seed=0," in path.read_text()


# --- Slurm ------------------------------------------------------------------------------------------


@pytest.fixture
def site(root: Path, monkeypatch: MonkeyPatch) -> Path:
    monkeypatch.setenv("NBTOOLS_CONFIG_DIR", str(root))
    path = root / "slurm.toml"
    path.write_text('partition = "low"\naccount = "lab"\n')
    return path


@pytest.mark.promise("guide-A15", "guide-A18")
def test_new_for_slurm_spells_out_the_defaults_of_the_site(root: Path, site: Path, cli: Cli) -> None:
    words = ["--preset", "cpu_demo", "--cluster", "slurm", "--time_limit", "30", "--no-requeue"]
    done = cli("new", "mlm_pretraining", "tiny", *words, "--preamble", "module load x\nulimit -c 0", "--sbatch")
    assert done.stdout.split() == ["scripts/tiny.py", "scripts/tiny.sbatch"]
    site.unlink()
    script = read_script(root / "scripts" / "tiny.py")
    assert script.launch == Launch(
        nproc_per_node=2,
        cluster=Slurm(
            partition="low",
            account="lab",
            time_limit="30",
            gpus_per_node=0,
            preamble="module load x\nulimit -c 0",
            requeue=False,
        ),
    )
    assert not script.hand_edited and "sbatch scripts/tiny.sbatch" in script.docstring
    assert "torchrun" not in script.docstring
    text = (root / "scripts" / "tiny.sbatch").read_text()
    assert "#SBATCH --account=lab\n" in text and text.endswith("-m nbtools.launcher.job scripts/tiny.py\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--partition", "low"], "partition=low: is for Slurm, and this launch is for one machine; add"),
        (["--cluster", "none", "--mem", "1G"], "--cluster none: is this machine, and mem is for Slurm"),
        (["--cluster", "slurm", "--time-limit", "an hour"], "time_limit='an hour': must be minutes (30)"),
        (["--cluster", "slurm", "--gpus", "0"], "gpus=(0,) with cluster=Slurm(...): Slurm chooses the devices"),
        (["--cluster", "pbs"], "invalid choice: 'pbs'"),
    ],
)
def test_a_wrong_place_is_refused_at_once(root: Path, site: Path, words: list[str], said: str, cli: Cli) -> None:
    cli("new", "mlm_pretraining", "tiny", "--preset", "cpu_demo")
    for verb in (["launch"], ["launch", "--dry-run"], ["preflight"]):
        assert said in cli(*verb, root / "scripts" / "tiny.py", *words, code=2).stderr
    assert said in cli("new", "mlm_pretraining", "other", *words, code=2).stderr
    assert not list((root / "runs").iterdir()) and not (root / "scripts" / "other.py").exists()


def test_sbatch_is_for_a_script_of_slurm(root: Path, cli: Cli) -> None:
    for what in ("llm_gan", foreign(root, SLEEPS)):
        assert "--sbatch: is for a script with --cluster slurm" in cli("new", what, "x", "--sbatch", code=2).stderr
    assert not (root / "scripts" / "x.py").exists()


def test_the_job_script_of_a_program_is_written_without_a_cluster(root: Path, site: Path, cli: Cli) -> None:
    words = ["new", foreign(root, SLEEPS), "mine", "--cluster", "slurm", "--gpus-per-node", "2", "--sbatch"]
    assert cli(*words, "--", "--lr", "0.1").stdout.split() == ["scripts/mine.py", "scripts/mine.sbatch"]
    text = (root / "scripts" / "mine.sbatch").read_text()
    assert "#SBATCH --gpus-per-node=2\n" in text and text.endswith("-m nbtools.launcher.job scripts/mine.py\n")


@pytest.mark.needs("slurm")
def test_launch_submits_and_changes_single_settings(root: Path, site: Path, slurm_cluster: object, cli: Cli) -> None:
    site.unlink()
    cli("new", "mlm_pretraining", "tiny", "--preset", "cpu_demo", "--cluster", "slurm", "--partition", "low")
    path = root / "scripts" / "tiny.py"
    checked = cli("launch", path, "--dry-run", "--partition", "high", "--mem", "1G").stdout
    assert "partition=high, mem=1G" in checked and "to start at" in checked
    run = Run(cli("launch", path, "--qos", "q", "--preamble", "sleep 600").stdout.strip())
    cluster = run.info["launch"]["cluster"]
    assert (cluster["partition"], cluster["qos"], cluster["gpus_per_node"]) == ("low", "q", 0)
    refused = cli("launch", path, "--partition", "nowhere", code=2)
    assert "partition=nowhere: Slurm refuses the job" in refused.stderr
