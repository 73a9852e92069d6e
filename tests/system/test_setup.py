"""The set-up that lab.sh and test.sh share, run for real in a small stand-in project with its own wheelhouse.

The scripts are the real ones; the packages are wheels of a few bytes and the build backend is a file of the project, so
that pip installs in seconds and without a network. One module-wide project is set up with the real pip; the tests of
interruptions, locks and moves use a stub of uv that unpacks the same wheels.
"""

import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import packaging
import pytest
import yaml

from promises import GUIDES

ROOT = Path(__file__).resolve().parents[2]
# fmt: off
TOOLS = ("bash", "cat", "dirname", "env", "flock", "head", "id", "ls", "mkdir", "mktemp", "rm", "sed", "tail", "tr",
         "uname")
# fmt: on
BASE_PYTHON = getattr(sys, "_base_executable", sys.executable)

PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "nbtools-ddp"
version = "0.1.0"
dependencies = ["thing>=1", "packaging"]

[project.optional-dependencies]
notebook = ["ipykernel", "jupyterlab"]
train = []
data = []
dev = ["checker"]
"""

# The least that PEP 660 asks of a backend for `pip install -e .`.
BACKEND = """
import os, zipfile

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    name = "nbtools_ddp-0.1.0-py3-none-any.whl"
    info = "nbtools_ddp-0.1.0.dist-info"
    files = {
        "nbtools_editable.pth": os.getcwd() + "\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: nbtools-ddp\\nVersion: 0.1.0\\n"
        "Requires-Dist: thing>=1\\nRequires-Dist: packaging\\n"
        "Provides-Extra: notebook\\nRequires-Dist: ipykernel; extra == \\'notebook\\'\\n"
        "Requires-Dist: jupyterlab; extra == \\'notebook\\'\\n"
        "Provides-Extra: train\\nProvides-Extra: data\\n"
        "Provides-Extra: dev\\nRequires-Dist: checker; extra == \\'dev\\'\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"]))
    return name
"""

EXECUTE = """
import os, sys
print("EXECUTED", sys.argv[1:])
raise SystemExit(int(os.environ.get("FAIL_WITH", "0")))
"""

# Stand-ins for `python -m ipykernel` and `python -m jupyterlab`: they append what they were asked to a file, and where.
RECORDER = """
import json, os, sys
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([__spec__.parent, *sys.argv[1:]]) + "\\n")
if "PLACES" in os.environ:
    with open(os.environ["PLACES"], "a") as places:
        places.write(json.dumps([os.getcwd(), os.environ.get("NBTOOLS_ROOT")]) + "\\n")
"""

# A uv that appends its arguments and variables to a file and unpacks the wheels. With UV_SECONDS it first leaves half a
# package and waits, as one that is about to be killed.
UV = f"""#!{BASE_PYTHON}
import glob, json, os, sys, time, venv, zipfile
with open(os.environ["UV_CALLS"], "a") as calls:
    variables = {{name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))}}
    calls.write(json.dumps([sys.argv[1:], variables]) + "\\n")
if sys.argv[1] == "venv":
    venv.create(sys.argv[-1], symlinks=True)
    sys.exit()
python = sys.argv[sys.argv.index("--python") + 1]
(site_packages,) = glob.glob(os.path.dirname(os.path.dirname(python)) + "/lib/python*/site-packages")
if "UV_SECONDS" in os.environ:
    os.mkdir(site_packages + "/thing-1.0.dist-info")
    time.sleep(float(os.environ["UV_SECONDS"]))
sys.path.insert(0, os.getcwd())
from backend import build_editable
wheels = os.environ["PIP_FIND_LINKS"] + "/"
wheels = [wheels + name for name in os.listdir(wheels) if not name.startswith("thing-2")]
for wheel in [*wheels, os.environ["TMPDIR"] + "/" + build_editable(os.environ["TMPDIR"])]:
    zipfile.ZipFile(wheel).extractall(site_packages)
"""


def build_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Write a pure Python wheel by hand."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        sizes = "".join(f"{path},,{len(text.encode())}\n" for path, text in files.items())
        wheel.writestr(f"{info}/RECORD", f"{sizes}{info}/RECORD,,\n")


@dataclass
class StandIn:
    """A project with the real scripts, and the environment its commands run in: no uv, no network, its own home."""

    root: Path
    outside: Path
    variables: dict[str, str] = field(default_factory=dict)
    first_output: str = ""
    first_packages: frozenset[str] = frozenset()

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def site_packages(self) -> Path:
        (folder,) = self.venv.glob("lib/python*/site-packages")
        return folder

    def start(self, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(self.root / "scripts" / script), *arguments],
            cwd=self.outside,
            env={**self.variables, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str, status: int = 0, **variables: str) -> str:
        process = self.start(script, *arguments, **variables)
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == status, output
        return output

    def calls(self) -> list[list[str]]:
        """What ipykernel and jupyterlab were asked since the last look."""
        path = Path(self.variables["CALLS"])
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


def clone(folder: Path) -> StandIn:
    """Lay out the stand-in project below `folder`, as if it had been cloned a moment ago."""
    root = folder / "a folder" / "nbtools"
    (root / "scripts" / "setup").mkdir(parents=True)
    for name in ("setup.sh", "lab.sh", "test.sh", "setup/lacking.py"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
    (root / "scripts" / "constraints.txt").write_text("# a comment\nthing==1.0\n", encoding="utf-8")
    (root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (root / "backend.py").write_text(BACKEND, encoding="utf-8")
    (root / "notebooks").mkdir()
    (root / "nbtools").mkdir()
    (root / "nbtools" / "__init__.py").touch()
    (root / ".ci").mkdir()
    (root / ".ci" / "execute_notebooks.py").write_text(EXECUTE, encoding="utf-8")

    wheelhouse = folder / "wheelhouse"
    wheelhouse.mkdir()
    build_wheel(wheelhouse, "thing", "1.0", {"thing.py": "version = 1\n"})
    build_wheel(wheelhouse, "thing", "2.0", {"thing.py": "version = 2\n"})
    build_wheel(wheelhouse, "checker", "1.0", {"checker.py": "# checks\n"})
    for name in ("ipykernel", "jupyterlab"):
        build_wheel(wheelhouse, name, "1.0", {f"{name}/__init__.py": "", f"{name}/__main__.py": RECORDER})
    sources = Path(packaging.__file__).parent.glob("*.py")
    build_wheel(wheelhouse, "packaging", "1.0", {f"packaging/{path.name}": path.read_text("utf-8") for path in sources})

    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for tool in TOOLS:
        path = shutil.which(tool)
        assert path is not None, tool
        (bin_folder / tool).symlink_to(path)
    (bin_folder / "python3").symlink_to(BASE_PYTHON)
    home = folder / "home"
    home.mkdir()
    (folder / "tmp").mkdir()
    outside = folder / "elsewhere"
    outside.mkdir()
    variables = {
        "PATH": str(bin_folder),
        "HOME": str(home),
        "TMPDIR": str(folder / "tmp"),
        "CALLS": str(folder / "calls"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheelhouse),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    return StandIn(root, outside, variables)


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    """A fresh clone, in a folder with a space in its name."""
    return clone(tmp_path)


@pytest.fixture
def quick(stand_in: StandIn, tmp_path: Path) -> StandIn:
    """A fresh clone on a machine that has the stub of uv."""
    uv = tmp_path / "bin" / "uv"
    uv.write_text(UV, encoding="utf-8")
    uv.chmod(0o755)
    stand_in.variables["UV_CALLS"] = str(tmp_path / "uv-calls")
    return stand_in


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """A clone that pip has set up once; the tests that share it leave it set up."""
    project = clone(tmp_path_factory.mktemp("shared"))
    project.first_output = project.run("lab.sh", "--setup-only")
    project.first_packages = frozenset(path.name for path in project.site_packages.glob("*.dist-info"))
    return project


@pytest.fixture
def ready(shared: StandIn) -> StandIn:
    shared.calls()
    return shared


def installed_files(project: StandIn) -> dict[Path, int]:
    paths = (path for path in project.venv.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.lstat().st_mtime_ns for path in paths}


@pytest.mark.promise("guide-M6")
@pytest.mark.slow
def test_a_fresh_clone_is_set_up_from_a_wheelhouse_alone(shared: StandIn) -> None:
    assert "to download" in shared.first_output
    assert {
        "thing-1.0.dist-info",
        "checker-1.0.dist-info",
    } <= shared.first_packages  # constraints.txt excludes thing 2.0
    assert (shared.venv / "bin" / "pip").is_file()


def test_setup_only_registers_the_kernel_and_says_how_to_pick_it(ready: StandIn) -> None:
    output = ready.run("lab.sh", "--setup-only")
    (call,) = ready.calls()
    assert call[:5] == ["ipykernel", "install", "--user", "--name", "nbtools"]
    assert "VS Code" in output
    assert "JupyterHub" in output
    assert str(ready.venv / "bin" / "python") in output


def test_a_second_start_installs_nothing(ready: StandIn) -> None:
    before = installed_files(ready)
    assert "Setting up" not in ready.run("lab.sh", "--headless", PIP_FIND_LINKS="/nonexistent")
    assert installed_files(ready) == before


@pytest.mark.slow
def test_an_update_follows_the_constraints_and_a_failed_one_changes_nothing(ready: StandIn) -> None:
    constraints = ready.root / "scripts" / "constraints.txt"
    constraints.write_text("thing==2.0\n", encoding="utf-8")
    assert "Setting up" in ready.run("lab.sh", "--headless")
    assert (ready.site_packages / "thing-2.0.dist-info").is_dir()

    constraints.write_text("thing==3.0\n", encoding="utf-8")  # in no wheelhouse
    said = ready.run("lab.sh", "--headless", status=1)
    assert "the installation failed" in said
    assert "Without a network it needs" in said
    constraints.write_text("thing==2.0\n", encoding="utf-8")
    assert "Setting up" not in ready.run("lab.sh", "--headless")


def torch_wheel(folder: Path, tag: str) -> Path:
    """Put an empty wheel of PyTorch for a Python into the wheelhouse."""
    wheel = folder / "wheelhouse" / f"torch-2.4+cpu-{tag}-linux_x86_64.whl"
    zipfile.ZipFile(wheel, "w").close()
    return wheel


def test_a_venv_of_the_users_own_is_completed_and_never_removed(quick: StandIn, tmp_path: Path) -> None:
    venv.create(quick.venv, symlinks=True)
    (quick.venv / "precious").touch()
    torch_wheel(tmp_path, "cp{0}{1}-cp{0}{1}".format(*sys.version_info))
    output = quick.run("lab.sh", "--headless")
    assert "Setting up" in output
    assert "PyTorch for other Pythons than " not in output
    assert "Setting up" not in quick.run("lab.sh", "--headless")

    editable = quick.site_packages / "nbtools_editable.pth"
    editable.write_text(f"{quick.outside}\n", encoding="utf-8")  # an nbtools from another clone
    assert "Setting up" in quick.run("lab.sh", "--headless")
    assert editable.read_text(encoding="utf-8") == f"{quick.root}\n"
    assert (quick.venv / "precious").is_file()


def test_over_ssh_the_tunnel_is_printed_with_the_port_that_jupyter_gets(ready: StandIn) -> None:
    with socket.socket() as taken:
        with suppress(OSError):  # some other program has it
            taken.bind(("127.0.0.1", 8888))
            taken.listen()
        output = ready.run("lab.sh", "--collaborative=a b", SSH_CONNECTION="10.0.0.9 50000 10.0.0.1 2222")
    (call,) = ready.calls()
    port = call[call.index("--port") + 1]
    assert port != "8888"
    assert f"ssh -N -L {port}:localhost:{port} -p 2222 " in output
    assert "@10.0.0.1" in output
    assert "--no-browser" in call
    assert call[-1] == "--collaborative=a b"

    output = ready.run("lab.sh", "--ServerApp.port=9123", SSH_CONNECTION="10.0.0.9 50000 10.0.0.1 22")
    assert "ssh -N -L 9123:localhost:9123 " in output
    assert "-p 22" not in output
    assert "--port" not in ready.calls()[0]


def test_jupyter_keeps_its_token_and_root_is_allowed_only_for_root(ready: StandIn) -> None:
    output = ready.run("lab.sh", "--no-browser")
    (call,) = ready.calls()
    assert not any(word in argument.lower() for argument in call for word in ("token", "password", "xsrf", "ip="))
    assert ("--allow-root" in call) == ("--allow-root" in output) == (os.getuid() == 0)


def test_a_notebook_is_opened_with_a_terminal_else_executed(ready: StandIn) -> None:
    assert "EXECUTED ['notebooks/01_launch_ddp.ipynb']" in ready.run("lab.sh")
    assert "EXECUTED" in ready.run("lab.sh", "--headless", FAIL_WITH="3", status=3)
    assert ready.calls() == []

    reader, writer = pty.openpty()
    command = ["bash", str(ready.root / "scripts" / "lab.sh")]
    process = subprocess.Popen(
        command, cwd=ready.outside, env=ready.variables, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
    )
    try:
        assert process.wait(timeout=300) == 0
    finally:
        process.kill()
        os.close(writer)
        os.close(reader)
    (call,) = ready.calls()
    assert call[0] == "jupyterlab"
    assert "--LabApp.default_url=/lab/tree/notebooks/01_launch_ddp.ipynb" in call


def test_lab_opens_on_a_repository_of_the_users_in_which_nothing_is_written(ready: StandIn, tmp_path: Path) -> None:
    repository = tmp_path / "my repository"
    repository.mkdir()
    (repository / "train.py").write_text("print(1)\n")
    (ready.outside / "link").symlink_to(repository)
    places = tmp_path / "places"
    for words in (("--project", str(repository)), ("--project=link", "--port", "9000")):
        output = ready.run("lab.sh", *words, PLACES=str(places))
        (call,) = ready.calls()
        assert call[0] == "jupyterlab"
        assert "--LabApp.default_url=/lab" in call
        assert not any("project" in word for word in call)
        assert f"Project: {repository}." in output
    assert call[-2:] == ["--port", "9000"]
    assert [json.loads(line) for line in places.read_text().splitlines()] == [[str(repository)] * 2] * 2
    assert [path.name for path in repository.iterdir()] == ["train.py"]
    (ready.outside / "link").unlink()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--project",), "--project needs the folder"),
        (("--project", "nowhere"), "--project nowhere: no such folder"),
        (("--project", ".", "--headless"), "--headless and --project exclude each other"),
        (("--setup-only", "--project=."), "--setup-only and --project exclude each other"),
    ],
)
def test_a_project_that_cannot_be_opened_is_refused(stand_in: StandIn, words: tuple[str, ...], complaint: str) -> None:
    assert complaint in stand_in.run("lab.sh", *words, status=2)
    assert not stand_in.venv.exists()


def test_an_active_environment_is_used_if_it_has_everything(ready: StandIn) -> None:
    active = ready.outside / "my env"
    shutil.copytree(ready.venv, active, symlinks=True)
    (site_packages,) = active.glob("lib/python*/site-packages")
    before = installed_files(ready)
    variables = {"VIRTUAL_ENV": str(active), "PATH": f"{active}/bin:{ready.variables['PATH']}"}

    assert f"Using {active}/bin/python3, which has everything" in ready.run("lab.sh", "--headless", **variables)
    shutil.rmtree(site_packages / "checker-1.0.dist-info")  # of the extra `dev`, which lab.sh does not need
    assert f"Using {active}/bin/python3, which has everything" in ready.run("lab.sh", "--headless", **variables)

    shutil.rmtree(next(site_packages.glob("thing-*.dist-info")))
    output = ready.run("lab.sh", "--headless", **variables)
    assert "lacks: thing>=1." in output
    assert f"Using {ready.venv} instead" in output
    assert not list(site_packages.glob("thing-*.dist-info"))
    assert installed_files(ready) == before


@pytest.mark.slow
def test_an_interrupted_set_up_is_made_again(quick: StandIn) -> None:
    process = quick.start("lab.sh", "--headless", UV_SECONDS="60")
    try:
        deadline = time.monotonic() + 60
        while not list(quick.venv.glob("lib/python*/site-packages/thing*")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    output = quick.run("lab.sh", "--headless")
    assert "its set-up was interrupted" in output
    assert "EXECUTED" in output
    assert (quick.site_packages / "thing.py").is_file()
    assert "Setting up" not in quick.run("lab.sh", "--headless")


def test_two_set_ups_at_once_install_once_and_a_move_again(quick: StandIn) -> None:
    both = [quick.start("lab.sh", "--headless", UV_SECONDS="1") for _ in range(2)]
    try:
        outputs = [process.communicate(timeout=300)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], outputs
    assert sum("Setting up" in output for output in outputs) == 1
    assert sum("waiting for it" in output for output in outputs) == 1
    assert all("EXECUTED" in output for output in outputs)

    moved = StandIn(quick.root.rename(quick.root.parent / "moved"), quick.outside, quick.variables)
    assert "the project was moved" in moved.run("lab.sh", "--headless")
    assert str(moved.root) in (moved.venv / "bin" / "activate").read_text(encoding="utf-8")


def test_uv_gets_the_settings_of_pip(quick: StandIn, tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = https://main.example/simple\nextra-index-url = https://zero.example/simple\n"
        "find-links = /overridden/by/the/variable\ncert = /my.pem\n"
        "[install]\nextra-index-url =\n  https://first.example/simple\n  https://second.example/simple\n",
        encoding="utf-8",
    )
    assert "with uv and" in quick.run("lab.sh", "--headless", PIP_CONFIG_FILE=str(config), SSL_CERT_FILE="/of-uv.pem")
    calls = Path(quick.variables["UV_CALLS"]).read_text(encoding="utf-8").splitlines()
    (made, _), (arguments, variables) = map(json.loads, calls)
    assert made[-1] == str(quick.venv)
    assert arguments[-4:] == ["-c", "scripts/constraints.txt", "-e", ".[notebook,train,data,dev]"]
    assert "--no-index" in arguments
    assert variables == {
        "UV_CALLS": quick.variables["UV_CALLS"],
        "UV_FIND_LINKS": quick.variables["PIP_FIND_LINKS"],
        "UV_DEFAULT_INDEX": "https://main.example/simple",
        "UV_INDEX": "https://first.example/simple https://second.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/of-uv.pem",  # uv's own settings win
    }


def test_without_a_suitable_python_the_error_names_what_to_install(stand_in: StandIn, tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.unlink()
    output = stand_in.run("lab.sh", status=2)
    assert "no Python 3.11 or newer" in output
    assert "apt install" in output
    assert not stand_in.venv.exists()

    python.write_text("#!/usr/bin/env bash\nexit 1\n", encoding="utf-8")  # too old: it fails each question
    python.chmod(0o755)
    assert "no Python 3.11 or newer" in stand_in.run("test.sh", status=2)
    assert "NBTOOLS_PYTHON=/no/such: " in stand_in.run("lab.sh", status=2, NBTOOLS_PYTHON="/no/such")

    # Debian's python3 without python3-venv.
    python.write_text(
        '#!/usr/bin/env bash\ncase "$2" in *_base_executable*) echo "$0" ;; *) exit 1 ;; esac\n', encoding="utf-8"
    )
    assert "python3-venv" in stand_in.run("lab.sh", status=2)
    assert not stand_in.venv.exists()


def test_a_folder_called_venv_that_is_none_is_not_touched(stand_in: StandIn) -> None:
    stand_in.venv.mkdir()
    (stand_in.venv / "precious").touch()
    assert "move it away" in stand_in.run("lab.sh", status=2)
    assert [path.name for path in stand_in.venv.iterdir()] == ["precious"]


def test_modes_that_contradict_each_other_are_refused(stand_in: StandIn) -> None:
    assert "exclude each other" in stand_in.run("lab.sh", "--headless", "--setup-only", status=2)
    assert "--port 9" in stand_in.run("lab.sh", "--headless", "--port", "9", status=2)
    assert "usage" in stand_in.run("lab.sh", "--help")
    assert "usage" in stand_in.run("test.sh", "--help")
    assert not stand_in.venv.exists()


def test_a_home_that_is_not_there_is_replaced_for_jupyter_and_matplotlib(stand_in: StandIn, tmp_path: Path) -> None:
    program = (
        f'. "{stand_in.root}/scripts/setup.sh"; replace_unwritable_home; '
        'printf "%s\\n" "$JUPYTER_RUNTIME_DIR" "$MPLCONFIGDIR"'
    )
    output = subprocess.run(
        ["bash", "-euc", program],
        env={**stand_in.variables, "HOME": "/nonexistent", "TMPDIR": str(tmp_path), "MPLCONFIGDIR": "/mine"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    _, runtime, matplotlib = output.splitlines()
    assert Path(runtime).parent.parent == tmp_path
    assert matplotlib == "/mine"


def write_modules(folder: Path, **programs: str) -> Path:
    """Write what stands in for the programs that test.sh starts, and return their folder."""
    modules = folder / "modules"
    modules.mkdir(exist_ok=True)
    for name, program in programs.items():
        (modules / f"{name}.py").write_text(program, encoding="utf-8")
    return modules


def test_test_sh_runs_every_part_once_and_prints_its_time(ready: StandIn, tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 1.1: pass\n"
    said = "import sys; print('RAN', '{}', sys.argv[1:]); sys.exit({})"
    modules = write_modules(
        tmp_path, ruff=said.format("ruff", 1), mypy=busy + said.format("mypy", 0), pytest=said.format("pytest", 2)
    )
    output = ready.run("test.sh", "-k", "tail", status=1, PYTHONPATH=str(modules))

    runs = [line for line in output.splitlines() if line.startswith("RAN")]
    assert [line.split()[1] for line in runs] == ["ruff", "ruff", "mypy", "pytest", "pytest"]
    fast = "'-m', 'not slow and not browser and not soak and not seeds', '-k', 'tail']"
    options = "['-n', '4', '--max-worker-restart=0', '--dist', 'loadfile', '--no-loadscope-reorder'"
    assert f"{options}, {fast}" in runs[-1]
    report = re.findall(r"^([\w-]+) +\d+ s wall +(\d+) s CPU  (.+)$", output, re.MULTILINE)
    assert [(part, verdict) for part, _, verdict in report] == [
        ("set-up", "ready"),
        ("ruff", "FAILED (exit status 1)"),
        ("format", "FAILED (exit status 1)"),
        ("mypy", "passed"),
        ("notebooks", "FAILED (exit status 2)"),
        ("tests", "FAILED (exit status 2)"),
    ]
    assert int(report[3][1]) >= 1

    write_modules(tmp_path, ruff="", mypy="", pytest="import sys; print('RAN', sys.argv[1:])")
    output = ready.run("test.sh", "--all", PYTHONPATH=str(modules))
    assert f"\nskipped: no {another_python()} on PATH\n  the fast tests on it\n" in output
    assert f"RAN {options}, '-m', 'not soak and not seeds']" in output


def another_python() -> str:
    """Name of the Python, of 3.11 and 3.13, that these tests do not run on."""
    return "python3.13" if sys.version_info < (3, 13) else "python3.11"


def test_test_sh_runs_the_fast_tests_on_another_python_too(quick: StandIn, tmp_path: Path) -> None:
    other = tmp_path / "bin" / another_python()
    other.symlink_to(BASE_PYTHON)
    modules = write_modules(tmp_path, ruff="", mypy="", pytest="import sys; print('RAN', sys.prefix, sys.argv[1:])")
    output = quick.run("test.sh", "--all", "-x", PYTHONPATH=str(modules))
    ran = [line for line in output.splitlines() if line.startswith("RAN")]
    fast = "['-n', '2', '--dist', 'loadfile', '-m', 'not slow and not browser and not soak and not seeds', '-x']"
    assert [line.startswith(f"RAN {quick.venv} [") for line in ran] == [True, True, False]
    assert ran[2:] == [f"RAN {quick.root / f'.venv-{other.name}'} {fast}"]
    assert re.search(rf"^{other.name} +\d+ s wall +\d+ s CPU  passed$", output, re.MULTILINE)
    assert "skipped:" not in output


def test_a_wheelhouse_for_another_python_is_told(quick: StandIn, tmp_path: Path) -> None:
    wheel = torch_wheel(tmp_path, "cp39-cp39")
    output = quick.run("lab.sh", "--setup-only")
    assert "PyTorch for other Pythons than " in output
    assert wheel.name in output


def test_environment_yml_defers_to_pyproject() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert environment["channels"] == ["conda-forge"]
    python, installer = conda
    assert python.split(",")[0] == f"python{project['requires-python']}"
    assert installer == "pip"  # nothing that pyproject.toml lists is repeated here
    assert pip == ["-c scripts/constraints.txt", f"-e .[{','.join(('notebook', 'train', 'data', 'dev'))}]"]
    assert set(project["optional-dependencies"]) == {"notebook", "train", "data", "wandb", "zoo", "dev"}
    for line in pip:
        assert (ROOT / line.split()[1].split("[")[0]).exists()


def test_constraints_hold_for_the_cpu_and_the_cuda_build() -> None:
    lines = [
        line
        for line in (ROOT / "scripts/constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert all("==" in line for line in lines)
    (torch,) = [line for line in lines if line.startswith("torch==")]
    assert "+" not in torch  # a local version such as +cpu exists in no index but one
    assert all("sys_platform == 'linux'" in line for line in lines if line.startswith(("nvidia-c", "triton")))


def test_torch_is_a_floor_so_that_an_installed_build_is_kept() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch,) = [line for line in project["optional-dependencies"]["train"] if line.startswith("torch")]
    assert torch.startswith("torch>=")
    assert "," not in torch
    floor = torch.removeprefix("torch>=").split('"')[0]
    assert f"torch {floor} is the floor" in GUIDES["guide-L2"][1]


SKIPPING = """
import pytest

@pytest.mark.skip(reason="marked")
def test_marked(): ...

def test_at_run_time():
    pytest.skip("at run time")

@pytest.mark.gpu
def test_gpu():
    pytest.skip("no CUDA device")

@pytest.mark.needs("mount")
def test_lacking():
    assert False

@pytest.mark.needs("another user")
def test_there():
    pytest.skip("for another reason")

@pytest.mark.needs("no_package")
def test_package():
    import no_package

@pytest.mark.xfail(reason="known")
def test_xfail():
    assert False
"""


def test_no_skip_fails_all_skips_but_for_what_the_machine_lacks(tmp_path: Path) -> None:
    for name in ("conftest.py", "slurm_cluster.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    probes = (ROOT / "tests" / "capabilities.py").read_text(encoding="utf-8")
    probes += "\nCAPABILITIES = {'mount': (lambda: False, 'a disk'), 'another user': (lambda: True, 'a user')}\n"
    probes += "PACKAGES = ('no_package',)\n"
    (tmp_path / "capabilities.py").write_text(probes, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n gpu: needs one\n needs: it\n", encoding="utf-8")
    (tmp_path / "torch.py").write_text("class cuda: is_available = lambda: False\n", encoding="utf-8")
    (tmp_path / "test_skipping.py").write_text(SKIPPING, encoding="utf-8")
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('no_such_module')\n", encoding="utf-8")

    def output(**variables: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        return subprocess.run(
            [*command, str(tmp_path)],
            cwd=tmp_path,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tmp_path), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        ).stdout

    assert "7 skipped, 1 xfailed" in output(NBTOOLS_NO_SKIP="")
    # A module that cannot be collected and a mark (seen at set-up) are errors; a skip at run time is a failure.
    skipped = tmp_path / "skipped.txt"
    found = output(NBTOOLS_NO_SKIP="1", NBTOOLS_SKIPPED=str(skipped))
    assert "3 failed, 2 skipped, 1 xfailed, 2 errors" in found
    assert skipped.read_text(encoding="utf-8").splitlines() == [
        "skipped: needs mount: a disk",
        "  test_skipping.py: test_lacking",
        "skipped: no CUDA device",
        "  test_skipping.py: test_gpu",
    ]
    (tmp_path / "test_skipping.py").write_text(SKIPPING.replace('"mount"', '"a moon"'), encoding="utf-8")
    assert "test_lacking: needs ['a moon']; allowed: mount, another user, no_package" in output()
