"""The Python of a program: the user's own environment, found, named, refused, and really used."""

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from fixture_types import Cli, MonkeyPatch

import nbtools as nt
from nbtools.errors import LaunchError
from nbtools.launcher.preflight import preflight
from nbtools.machine.interpreter import interpreter_for, own_interpreter
from nbtools.project import Project
from nbtools.run.run import Run

ANOTHER_UID = 65_534

TRAIN = """
import importlib.util, os, sys
import torch
import torch.distributed as dist

assert importlib.util.find_spec("nbtools") is None, "the program's environment has no nbtools"
dist.init_process_group("gloo")
total = torch.ones(()) * dist.get_rank()
dist.all_reduce(total)
if dist.get_rank() == 0:
    print("prefix", sys.prefix, "package", __package__, flush=True)
    for step in range(1, 4):
        print(f"step {step}/3 loss {total.item() + step:.1f}", flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _no_active_environment(monkeypatch: MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)


def bare(folder: Path) -> Path:
    """Make an empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def without_nbtools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real environment that has the packages of this one, torch among them, but for nbtools."""
    folder = bare(tmp_path_factory.mktemp("theirs") / "env")
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages = Path(sysconfig.get_paths()["purelib"])
    # Links to its entries, not a .pth to the folder: site would read the .pth of an editable nbtools there.
    for entry in packages.iterdir():
        if "nbtools" not in entry.name and entry.suffix != ".pth" and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return folder


def fake_torch(environment: Path, version: str) -> None:
    """Replace the torch of an environment by files of another version: nothing but files of it is ever read."""
    (site,) = environment.glob("lib/python3*/site-packages")
    if (site / "torch").is_symlink():
        (site / "torch").unlink()
    (site / "torch" / "distributed").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (site / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = None\n")
    (site / "torch" / "distributed" / "run.py").write_text("--max-restarts only\n")


def program(folder: Path, text: str = "print('step 1 loss 2.0')\n", name: str = "train.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


# --- really used --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_module_trains_in_the_environment_beside_it(
    cpu_project: Project, without_nbtools: Path, cli: Cli, monkeypatch: MonkeyPatch
) -> None:
    repository = cpu_project.root / "repo"
    script = program(repository / "pkg", TRAIN)
    program(repository / "pkg", "", "__init__.py")
    (repository / ".venv").symlink_to(without_nbtools)
    monkeypatch.chdir(repository)
    run = Run(cli("launch", "-m", "pkg.train", "--nproc-per-node", 2).stdout.strip())
    run.wait(180)
    assert f"prefix {repository / '.venv'} package pkg" in run.log()
    assert run.history["train/loss"].values.tolist() == [2.0, 3.0, 4.0]
    assert run.info["target"] == ["-m", "pkg.train"] and run.info["cwd"] == str(repository)
    assert run.info["argv"][0] == str(repository / ".venv" / "bin" / "python")
    assert run.info["launch"]["python"] == run.info["argv"][0]
    assert f".venv in {repository}" in repr(preflight(script))


@pytest.mark.slow  # an environment is made, and three programs start in it
def test_a_restart_and_a_resume_run_in_the_named_environment(cpu_project: Project, without_nbtools: Path) -> None:
    told = "import importlib.util, sys\nprint('in', sys.prefix, importlib.util.find_spec('nbtools'), flush=True)\n"
    source = (Path(__file__).parents[1] / "programs" / "saves.py").read_text()
    docstring, _, rest = source.partition("\n\n")
    script = program(cpu_project.root, f"{docstring}\n{told}{rest}")
    args = ("--fail-at", "25", "--out-dir", str(cpu_project.root / "out"))
    run = nt.launch(script, python=str(without_nbtools), torchrun=False, max_restarts=1, args=args)
    assert run.wait(120) == "SUCCEEDED"
    assert run.log().count(f"in {without_nbtools} None") == 2
    assert "resumed" in run.log() and "ckpt_step20.pt" in run.log()
    child = nt.resume(run, args=("--steps", "50"))
    child.wait(120)
    assert f"in {without_nbtools} None" in child.log() and "ckpt_step40.pt" in child.log()
    assert child.info["argv"][0] == run.info["argv"][0] == str(without_nbtools / "bin" / "python")
    assert child.history["train/loss"].steps.tolist() == list(range(1, 51))


# --- named ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        ("nowhere", r"python='nowhere': no such file \(.*/nowhere\); "),
        ("folder", r"python='folder': holds no bin/python"),
        ("text.txt", r"python='text.txt': is not executable"),
        (".vemv", r"python='\.vemv': no such file .*did you mean \.venv"),
        ("liar", r"liar: is not a working Python"),
        ("fails", r"fails: is not a working Python: it is broken"),
        ("old", r"old: is Python 3\.6\.9; at least 3\.8 is needed"),
    ],
)
def test_a_named_python_that_is_none_is_refused(project: Project, named: str, complaint: str) -> None:
    root, script = project.root, program(project.root)
    (root / "folder").mkdir()
    (root / "text.txt").write_text("text")
    bare(root / ".venv")
    for name, line in {
        "liar": "echo no json",
        "fails": "echo it is broken >&2; exit 3",
        "old": "echo '[[3, 6, 9], \"/usr\", null, []]'",
    }.items():
        (root / name).write_text(f"#!/bin/sh\n{line}\n")
        (root / name).chmod(0o755)
    with pytest.raises(LaunchError, match=complaint):
        nt.launch(script, python=named, gpus=())
    assert not list(project.runs.iterdir())


def test_a_python_that_does_not_answer_is_given_up(project: Project, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr("nbtools.machine.interpreter._ASK_WITHIN_S", 0.5)
    silent = program(project.root, "#!/bin/sh\nexec sleep 60\n", "silent")
    silent.chmod(0o755)
    with pytest.raises(LaunchError, match="did not answer within"):
        interpreter_for(None, "silent", project.root)


def test_a_named_environment_without_torch_says_where_it_is_missing(project: Project) -> None:
    environment = bare(project.root / "theirs")
    script = program(project.root)
    with pytest.raises(
        LaunchError, match=rf"torch is not installed in {environment} .*install it there, or set python="
    ):
        nt.launch(script, python="theirs", gpus=())
    assert preflight(script, python="theirs", gpus=(), torchrun=False).launch.torchrun is False


def test_the_torch_of_an_environment_decides_torchruns_options(project: Project) -> None:
    fake_torch(bare(project.root / "theirs"), "2.4.1+cu121")
    checked = preflight(program(project.root), python="theirs", nproc_per_node=2, gpus=())
    assert "torch 2.4.1+cu121" in repr(checked)
    assert not [word for word in checked.command(Path("/r")) if word.startswith("--shutdown-timeout")]
    found = interpreter_for(None, "theirs", project.root)
    assert (found.torch_version, found.source) == ("2.4.1+cu121", "python=")


def test_the_own_environment_under_another_path_is_the_own_one(project: Project) -> None:
    found = interpreter_for(None, sys.prefix, project.root)
    assert (found.is_own, found.prefix) == (True, Path(sys.prefix))


# --- found ----------------------------------------------------------------------------------------------


@pytest.fixture
def beside(project: Project) -> Path:
    """A program beside which is an environment with a torch of its own."""
    fake_torch(bare(project.root / "repo" / ".venv"), "2.5.0")
    return program(project.root / "repo" / "src")


def test_the_nearest_environment_up_to_the_repository_is_taken(project: Project, beside: Path) -> None:
    found = interpreter_for(beside, None, project.root)
    assert (found.torch_version, found.source) == ("2.5.0", f".venv in {project.root / 'repo'}")
    fake_torch(bare(beside.parent / "venv"), "2.6.0")
    assert interpreter_for(beside, None, project.root).source == "venv beside the script"
    (beside.parent / ".git").mkdir()
    shutil.rmtree(beside.parent / "venv")
    assert interpreter_for(beside, None, project.root).is_own, "a repository ends at its .git"


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_one_comes_first(project: Project, beside: Path, variable: str, monkeypatch: MonkeyPatch) -> None:
    fake_torch(bare(project.root / "active"), "2.7.0")
    monkeypatch.setenv(variable, str(project.root / "active"))
    found = interpreter_for(beside, None, project.root)
    assert (found.torch_version, found.source) == ("2.7.0", f"active: {variable}")
    if variable == "CONDA_PREFIX":
        monkeypatch.setenv("CONDA_DEFAULT_ENV", "base")
        assert interpreter_for(beside, None, project.root).torch_version == "2.5.0"
    monkeypatch.setenv(variable, sys.prefix)
    assert interpreter_for(beside, None, project.root).torch_version == "2.5.0", "that of nbtools says nothing"


def test_environments_that_are_broken_or_lack_torch_are_passed_over(project: Project) -> None:
    script = program(project.root / "repo" / "src")
    bare(script.parent / ".venv")
    broken = script.parent / "venv" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o755)
    fake_torch(bare(project.root / "repo" / ".venv"), "2.5.0")
    assert interpreter_for(script, None, project.root).torch_version == "2.5.0"
    assert interpreter_for(script, None, project.root, needs_torch=False).source == ".venv beside the script"


@pytest.mark.needs("another user")
def test_an_environment_of_another_user_is_not_run_unless_it_is_named(project: Project, beside: Path) -> None:
    environment = project.root / "repo" / ".venv"
    os.chown(environment, ANOTHER_UID, ANOTHER_UID)
    assert interpreter_for(beside, None, project.root).is_own
    assert interpreter_for(beside, str(environment), project.root).torch_version == "2.5.0"


@pytest.mark.needs("another user")
@pytest.mark.parametrize("what", ["bin", "bin/python"])
def test_an_environment_that_another_user_may_change_is_not_run(project: Project, beside: Path, what: str) -> None:
    os.chown(project.root / "repo" / ".venv" / what, ANOTHER_UID, ANOTHER_UID, follow_symlinks=False)
    assert interpreter_for(beside, None, project.root).is_own


def test_an_environment_that_is_made_again_is_asked_again(project: Project, beside: Path) -> None:
    assert interpreter_for(beside, None, project.root).torch_version == "2.5.0"
    environment = project.root / "repo" / ".venv"
    shutil.rmtree(environment)
    fake_torch(bare(environment), "2.8.0")
    assert interpreter_for(beside, None, project.root).torch_version == "2.8.0"


def test_a_torch_that_is_installed_later_is_found(project: Project, monkeypatch: MonkeyPatch) -> None:
    script = program(project.root / "repo")
    environment = bare(script.parent / ".venv")
    assert interpreter_for(script, None, project.root).is_own
    fake_torch(environment, "2.8.0")
    assert interpreter_for(script, None, project.root).torch_version == "2.8.0"
    monkeypatch.setattr(subprocess, "run", None)  # nothing has changed: it is not run again
    assert interpreter_for(script, None, project.root).torch_version == "2.8.0"


def test_a_recipe_runs_in_the_environment_of_nbtools(project: Project, beside: Path) -> None:
    assert interpreter_for(None, None, project.root) == own_interpreter()


def test_a_look_runs_nothing_of_the_working_folder(project: Project, beside: Path, monkeypatch: MonkeyPatch) -> None:
    trap = textwrap.dedent(f"open({str(project.root / 'ran')!r}, 'w')\n")
    for name in ("json.py", "importlib.py", "sitecustomize.py"):
        program(project.root, trap, name)
    monkeypatch.chdir(project.root)
    assert interpreter_for(beside, None, project.root).torch_version == "2.5.0"
    assert not (project.root / "ran").exists()
