"""The Python in which a program runs: that of nbtools, or one of the user's that has no nbtools."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbtools.errors import LaunchError, did_you_mean
from nbtools.project import expanded

_NEIGHBOURS = (".venv", "venv", ".conda", ".pixi/envs/default")
_ASK_WITHIN_S = 20.0
_PROGRAM = """
import importlib.util, json, sys
spec = importlib.util.find_spec("torch")
print(json.dumps([sys.version_info[:3], sys.prefix, spec.origin if spec else None, [p for p in sys.path if p]]))
"""
_FINDS = """
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
first, *rest = sys.argv[1].split(".")
found = find_spec(first)
for part in rest:
    found = found and PathFinder.find_spec(part, found.submodule_search_locations or [])
if found and found.submodule_search_locations is not None:
    found = PathFinder.find_spec("__main__", found.submodule_search_locations)
sys.exit(found is None)
"""
_OLDEST = (3, 8)


@dataclass(frozen=True)
class Interpreter:
    """A Python executable, and the torch in its environment."""

    path: Path
    """Path of the executable. A link in an environment is not followed, since its place names the environment."""
    source: str
    """Why it was chosen, such as `VIRTUAL_ENV`."""
    version: tuple[int, int, int]
    prefix: Path
    torch_folder: Path | None
    """Folder of the installed torch; None without one."""
    search: tuple[Path, ...]
    """`sys.path` of the interpreter."""
    is_own: bool = False
    """Whether nbtools itself runs in this interpreter."""

    @property
    def torch_version(self) -> str | None:
        """Version of the installed torch, such as `2.13.0+cu128`; None without one."""
        if self.torch_folder is None:
            return None
        found = re.search(r"^__version__ *= *['\"]([^'\"]+)", self.torch_text("version.py"), re.MULTILINE)
        return found[1] if found else "of an unknown version"

    def torch_text(self, name: str) -> str:
        """Return the text of a file in the folder of torch; LaunchError without torch."""
        if self.torch_folder is None:
            step = "bash scripts/lab.sh --setup-only installs it" if self.is_own else "install it there, or set python="
            raise LaunchError(f"torch is not installed in {self.prefix} ({self.source}): {step}")
        return (self.torch_folder / name).read_text(encoding="utf-8", errors="replace")

    @property
    def safe_path(self) -> tuple[str, ...]:
        """The option that keeps the working directory off `sys.path`: a random.py there must not shadow Python's."""
        return ("-P",) if self.version >= (3, 11) else ()

    def finds(self, module: str, cwd: Path) -> bool:
        """Whether `python -m` finds a module in a working directory; nothing of it is imported."""
        return _run(self.path, _FINDS, module, cwd=cwd, check=False).returncode == 0

    def __str__(self) -> str:
        torch = "no torch" if self.torch_folder is None else f"torch {self.torch_version}"
        return f"{self.path} ({self.source}; Python {'.'.join(map(str, self.version))}, {torch})"


def own_interpreter() -> Interpreter:
    """Return the interpreter of this process."""
    spec = importlib.util.find_spec("torch")  # finds, does not import
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    prefix, search = Path(sys.prefix), tuple(Path(each) for each in sys.path if each)
    source = "the environment of nbtools"
    return Interpreter(Path(sys.executable), source, sys.version_info[:3], prefix, folder, search, is_own=True)


def interpreter_for(
    program: Path | None, named: str | None, root: Path, *, needs_torch: bool = True, may_run: bool = True
) -> Interpreter:
    """Return the interpreter of a program of the user's.

    Args:
        program: its file; None for a recipe, which runs in the environment of nbtools unless another is named.
        named: `Launch.python`, relative to `root`.
        root: the project's root.
        needs_torch: whether an environment without torch that is not named is passed over.
        may_run: whether interpreters may be started; else the files of their environments tell about them.

    Raises:
        LaunchError: the named one is no Python.
    """
    described = _asked if may_run else _seen
    if named is not None:
        return replace(described(named_executable(named, root)), source="python=")
    for path, source in _candidates(program):
        try:
            found = replace(described(path), source=source)
        except LaunchError:
            continue  # a broken environment that the user did not name
        if found.torch_folder is not None or not needs_torch:
            return own_interpreter() if found.is_own else found
    return own_interpreter()


def named_executable(named: str, root: Path) -> Path:
    """Return the Python of `Launch.python`, relative to `root`; LaunchError if it is no executable nor environment."""
    path = Path(os.path.normpath(root / expanded(named)))
    if (found := executable(path)) is not None:
        return found
    what = "is not executable" if path.is_file() else "holds no bin/python" if path.is_dir() else "no such file"
    beside = [name for name in _NEIGHBOURS if executable(root / name)]
    hint = did_you_mean(named, beside) or (f"there is {beside[0]}" if beside else "give the path of bin/python")
    raise LaunchError(f"python={named!r}: {what} ({path}); {hint}")


def executable(path: Path) -> Path | None:
    """Return the Python of a path: an executable, or the folder of an environment; None if there is none."""
    found = path / "bin" / "python" if path.is_dir() else path
    return found if found.is_file() and os.access(found, os.X_OK) else None


def _candidates(program: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield the active environment and those beside the program, the preferred one first."""
    if program is None:
        return
    active = [(name, os.environ.get(name)) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    if os.environ.get("CONDA_DEFAULT_ENV") == "base":
        active.pop()  # conda activates it for every shell
    for name, prefix in active:
        if prefix and (path := executable(Path(prefix))) and Path(prefix).resolve() != Path(sys.prefix).resolve():
            yield path, f"active: {name}"
    for folder in program.parents:
        for name in _NEIGHBOURS:
            if (path := executable(folder / name)) and _is_trusted(folder / name):
                yield path, f"{name} beside the script" if folder == program.parent else f"{name} in {folder}"
        if (folder / ".git").exists() or folder == Path.home():
            return


def _is_trusted(environment: Path) -> bool:
    """Whether an environment belongs to this user or root: a default must not run another user's code."""
    parts = (environment, environment / "bin", environment / "bin" / "python")
    owners = {status.st_uid for part in parts for status in (part.lstat(), part.stat())}
    return owners <= {0, os.geteuid()}


def _asked(path: Path) -> Interpreter:
    """Run an interpreter for its version, its path and its torch, which is not imported."""
    try:
        changed = path.resolve().stat().st_mtime_ns, (path.parent.parent / "pyvenv.cfg").exists()
    except OSError as error:
        raise LaunchError(f"{path}: cannot be run: {error.strerror}; set python= to another") from None
    known, found = _ANSWERS.get(path, (None, None))
    if found is None or known != (changed, _packages_changed(found)):
        found = _answer(path)
        _ANSWERS[path] = (changed, _packages_changed(found)), found
    return found


def _seen(path: Path) -> Interpreter:
    """Return what the files of an environment tell about its interpreter; LaunchError if it is none."""
    prefix = path.parent.parent
    if prefix.resolve() == Path(sys.prefix).resolve():
        return own_interpreter()
    packages = sorted(prefix.glob("lib*/python3.*/site-packages"))
    if not packages:
        raise LaunchError(
            f"{path}: is in no environment of Python, and is not run to tell more before it is allowed to"
        )
    version = (3, int(re.sub(r"\D", "", packages[-1].parent.name[8:]) or 0), 0)
    torch = next((folder / "torch" for folder in packages if (folder / "torch" / "version.py").is_file()), None)
    return Interpreter(path, "", version, prefix, torch, tuple(packages))


_ANSWERS: dict[Path, tuple[object, Interpreter]] = {}
"""Cached properties of each interpreter by its path, with the file times that invalidate them."""


def _packages_changed(interpreter: Interpreter) -> tuple[int, ...]:
    """Return when something was last installed into the environment of an interpreter, or removed."""
    folders = (path for path in interpreter.search if path.name in ("site-packages", "dist-packages"))
    return tuple(path.stat().st_mtime_ns for path in folders if path.is_dir())


def _run(path: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program of one text with an interpreter, and return its end and output."""
    options |= {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": _ASK_WITHIN_S}
    return subprocess.run([str(path), "-c", *words], **options)


def _answer(path: Path) -> Interpreter:
    if path.parent.parent.resolve() == Path(sys.prefix).resolve():
        return own_interpreter()
    hidden = ("PYTHONHOME", "__PYVENV_LAUNCHER__")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = _run(path, _PROGRAM, cwd="/", env=environment, check=True)
        version, prefix, torch, search = json.loads(done.stdout.splitlines()[-1])
        folder = Path(torch).parent if torch else None
        found = Interpreter(path, "", tuple(version), Path(prefix), folder, tuple(map(Path, search)))
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{path}: did not answer within {_ASK_WITHIN_S:.0f} s; set python= to another") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
        raise LaunchError(f"{path}: is not a working Python: {said}; set python= to another") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise LaunchError(f"{path}: is not a working Python: {error}; set python= to another") from None
    if found.version < _OLDEST:
        least = ".".join(map(str, _OLDEST))
        raise LaunchError(f"{path}: is Python {'.'.join(map(str, found.version))}; at least {least} is needed")
    return found
