"""The wheel that the project builds, what it holds, and that it trains in an empty folder outside the clone."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import MonkeyPatch

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


def build(what: str, source: Path, folder: Path) -> Path:
    """Build as installers do, with the backend that pyproject.toml names."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{what}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=source, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sdist of a fresh clone."""
    folder = tmp_path_factory.mktemp("wheel")
    clone = folder / "clone"
    shutil.copytree(ROOT / "nbtools", clone / "nbtools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("sdist", "wheel"):
        (folder / name).mkdir()
    with tarfile.open(build("sdist", clone, folder / "sdist")) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("nbtools_ddp-*")
    return build("wheel", unpacked, folder / "wheel")


@pytest.fixture
def nbtools(wheel: Path, tmp_path: Path, monkeypatch: MonkeyPatch) -> Command:
    """The command of a fresh environment with the wheel, in an empty folder; it finds the packages of this one."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True, symlinks=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    (site_packages,) = environment.glob("lib/python*/site-packages")
    # Packages of these folders are found, but their path files, such as that of an editable nbtools, are not read.
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (site_packages / "others.pth").write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def call(*words: str, program: str = "nbtools") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [environment / "bin" / program, *words], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    return call


@pytest.mark.promise("safety-wheel")
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    kinds = {".py", ".pyi", ".js", ".css", ".html", ".csv", ".json", ".toml", ".yaml", ".sh", ".txt"}
    sources = {path for path in (ROOT / "nbtools").rglob("*") if path.suffix in kinds or path.name == "py.typed"}
    assert names == {path.relative_to(ROOT).as_posix() for path in sources}


@pytest.mark.slow
@pytest.mark.needs("ensurepip")
@pytest.mark.promise("safety-wheel")
def test_the_wheel_trains_and_plots_in_an_empty_folder(nbtools: Command, wheel: Path) -> None:
    where = nbtools("-c", "import nbtools; print(nbtools.__file__)", program="python").stdout
    assert "environment/lib" in where
    small = ["num_layers=1", "num_heads=2", "hidden_size=16", "sequence_length=16", "batch_size=2", "max_steps=4"]
    small += ["eval_every=2", "eval_samples=4", "log_every=1", "checkpoint_every=2"]
    made = nbtools("new", "mlm_pretraining", "tiny", "--preset", "cpu_demo", *(f"--set={value}" for value in small))
    assert made.stdout == "scripts/tiny.py\n"
    run = nbtools("launch", "scripts/tiny.py").stdout.strip()
    nbtools("wait", run, "--timeout", "200")
    assert nbtools("plot", "latest", "-o", "curves.png").stderr == ""
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in Path().iterdir()) == ["curves.png", "runs", "scripts"]
    assert str(ROOT) not in Path("runs", run, "launch.json").read_text(encoding="utf-8").replace(sys.prefix, "")

    Path("train.py").write_text("for step in range(1, 21):\n    print(f'step {step} loss {1 / step:.4f}')\n")
    run = nbtools("launch", "train.py").stdout.strip()  # a program of the user's own, which knows nothing of nbtools
    nbtools("wait", run, "--timeout", "200")
    shown = json.loads(nbtools("show", run, "--json").stdout)
    assert (shown["state"], shown["step"], shown["metrics"]["train/loss"]) == ("SUCCEEDED", 20, 0.05)
