"""The project on disk: its root, the folders `scripts/` and `runs/`, and the names allowed in them."""

import contextlib
import hashlib
import importlib.util
import os
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from nbtools.errors import InvalidNameError, ProjectError, shown

NAME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")

_OFTEN_IMPORTED = {
    *("torch", "torchvision", "torchaudio", "triton", "numpy", "scipy", "pandas", "pyarrow", "sklearn", "matplotlib"),
    *("transformers", "tokenizers", "datasets", "evaluate", "accelerate", "peft", "trl", "safetensors", "diffusers"),
    *("huggingface_hub", "sentencepiece", "bitsandbytes", "flash_attn", "xformers", "apex", "deepspeed", "lightning"),
    *("einops", "wandb", "tensorboard", "mlflow"),
}
"""Modules that training code imports if they are installed; a script may move to a machine that has them."""


@dataclass(frozen=True)
class Project:
    """A project root with its two working folders."""

    root: Path

    @property
    def scripts(self) -> Path:
        """Folder of the exported training scripts."""
        return self.root / "scripts"

    @property
    def runs(self) -> Path:
        """Folder of the run directories; created by the first launch."""
        return self.root / "runs"

    def script(self, name: str) -> Path:
        """Return the path of script `name` after `check_name`."""
        return self.scripts / f"{check_name(name)}.py"


def find_project(start: str | Path | None = None, *, missing_ok: bool = False) -> Project:
    """Find the project that `start` (a script, a folder; default: the working directory) belongs to.

    The root is `NBTOOLS_ROOT` if that is set, else the nearest ancestor that has `scripts/` and either
    `pyproject.toml` or `runs/`; else, for the working directory, the nearest one whose `runs/` holds a run; else that
    of the repository, unless it is the user's home. With `missing_ok`, `start` is the root if there is none of these.

    Raises:
        ProjectError: `NBTOOLS_ROOT` is no folder, or no ancestor looks like a project.
    """
    named = os.environ.get("NBTOOLS_ROOT")
    if named:
        root = expanded(named).resolve()
        if not root.is_dir():
            raise ProjectError(f"NBTOOLS_ROOT={named!r}: no such folder; point it at your project or unset it")
        return Project(root)
    try:
        origin = expanded(start).resolve() if start is not None else Path.cwd()
    except FileNotFoundError:
        raise ProjectError("the working directory was deleted; change to your project's folder") from None
    folders = (origin, *origin.parents)
    for folder in folders:
        if (folder / "scripts").is_dir() and ((folder / "pyproject.toml").is_file() or (folder / "runs").is_dir()):
            return Project(folder)
    for folder in folders if start is None else ():
        if any((folder / "runs").glob("*/launch.json")):
            return Project(folder)
    for folder in folders:
        if (folder / ".git").exists() and not _is_shared(folder):
            return Project(folder)
    if missing_ok:
        return Project(origin)
    raise ProjectError(
        f"no project found at or above {origin}: a project is a repository, or has scripts/ and pyproject.toml (or "
        "runs/); create scripts/ and runs/ in a folder of yours (`nbtools new` does), or set NBTOOLS_ROOT"
    )


def project_of_program(path: Path) -> Project:
    """Return the project that keeps the runs of a program launched here: that of the working directory if the program
    lies below it, else the program's repository, else its folder; ProjectError if `NBTOOLS_ROOT` is no folder.

    A working directory without a project is one itself, unless it is the home, `/` or `/tmp`.
    """
    here = find_project(missing_ok=True)
    is_here = path.is_relative_to(here.root) and not (here.root == Path.cwd() and _is_shared(here.root))
    return here if is_here else find_project(path.parent, missing_ok=True)


def _is_shared(folder: Path) -> bool:
    """Whether a folder holds the files of several projects, whatever stands in it."""
    return folder in (expanded("~").resolve(), Path("/"), Path("/tmp"))


def expanded(path: str | Path) -> Path:
    """Expand a leading `~`; `~name` stays if there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def located(path: str | Path) -> Path:
    """Return an absolute path; a relative one starts from the working directory, else from the project's root.

    The working directory of a notebook is its own folder, while `scripts/NAME.py` is relative to the project's root.
    """
    found = expanded(path)
    if "\0" in str(found):
        return found  # no file has such a name
    if not os.path.lexists(found):
        with contextlib.suppress(ProjectError):
            in_project = find_project().root / found
            found = in_project if os.path.lexists(in_project) else found
    # The folder is resolved, since every project root is; the file keeps its own name, even if it is a link.
    return Path(os.path.realpath(found.parent), found.name)


def user_cache(kind: str, path: Path, *, make: bool = False) -> Path:
    """Return the JSON file of one kind about a path, below `$XDG_CACHE_HOME` or `~/.cache`; OSError without a home.

    With `make`, a missing folder is made, closed to other users.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache"))
    if not root.is_absolute():
        raise FileNotFoundError(f"{root}: no cache folder")
    for folder in (root / "nbtools", root / "nbtools" / kind) if make else ():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root / "nbtools" / kind / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.json"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits, as launch.json records that of the script."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_name(name: str) -> str:
    """Return `name` if it is allowed for a script and its runs.

    Raises:
        InvalidNameError: the name is not a plain identifier, or `import NAME` would find another module.
    """
    if not NAME_PATTERN.fullmatch(name):
        near = plain_name(name).replace("-", "_").lstrip("_0123456789")
        rule = "must start with a letter and hold only letters A to Z, digits and '_' (at most 64)"
        hint = f", such as {near}" if NAME_PATTERN.fullmatch(near) else ""
        raise InvalidNameError(f"name={shown(name)}: {rule}{hint}")
    if _is_importable(name):
        raise InvalidNameError(
            f"name={name!r}: scripts/{name}.py would shadow the module {name!r}; choose another, such as my_{name}"
        )
    return name


def plain_name(text: str) -> str:
    """Return a text in letters A to Z without accents, digits, `-` and `_`, which stands for all else; at most 64."""
    letters = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    return re.sub(r"[^A-Za-z0-9_-]+", "_", re.sub(r"[\u0300-\u036f]", "", letters)).strip("_")[:64]


def _is_importable(name: str) -> bool:
    if name in _OFTEN_IMPORTED:
        return True
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # e.g. '__main__' has no spec
        return True
    # A namespace package is only a folder of that name on sys.path; a script may shadow it.
    if spec is None or spec.origin is None:
        return False
    # scripts/NAME.py itself, seen because the working directory or the script's folder is on sys.path.
    return Path(spec.origin).parent.name != "scripts"


def lost_target(folder: Path) -> str:
    """Return where a link leads if nothing is there, as without the disk of a project's `runs/`; empty otherwise."""
    return os.readlink(folder) if folder.is_symlink() and not folder.exists() else ""  # noqa: PTH115 - as written
