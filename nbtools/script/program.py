"""`Program`: a script or module of the user's with its arguments, as a launcher script (`scripts/NAME.py`) names it."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from pydantic import field_validator, model_validator

from nbtools.config import Launch
from nbtools.errors import ConfigError, LaunchError
from nbtools.machine.devices import devices
from nbtools.machine.interpreter import Interpreter, interpreter_for
from nbtools.metrics.printed.pattern import Pattern
from nbtools.project import expanded, find_project
from nbtools.rundir.secret_values import masked
from nbtools.script import torchrun
from nbtools.script.config_copy import cached_copy
from nbtools.settings import Settings, may_be_path, setting

_MOST_FOLDERS = 200
_ALLOWED = {
    "checkpoints": (
        r"(?s)(?!.*\*\*).*[^./*].*",
        "a path with * for what differs, such as out/*.ckpt; for folders, out/*/last.pt",
    ),
    "module": (r"[^\W\d]\w*(?:\.[^\W\d]\w*)*", "the dotted name of a module, such as package.train"),
}
"""Fields that are no path as it stands: a regular expression, and what is allowed in words."""


def why_no_word(word: str) -> str:
    """Return why a command line cannot hold a text as one of its words; empty if it can."""
    if "\0" in word:
        return f"{word[:80]!r} contains a null character, which a command line cannot hold"
    try:
        os.fsencode(word)
    except UnicodeEncodeError:
        return f"{word[:80]!r} cannot be encoded for a command line"
    return ""


class Program(Settings):
    """A program of the user's: its file or module, arguments and folder; paths are relative to the project's root."""

    script: str | None = setting(None, "Path of the program's file, from the project's root.", basic=True)
    module: str | None = setting(None, "Name of its module instead, as for python -m: package.train.", basic=True)
    args: tuple[str, ...] = setting((), "Words of its command line.", basic=True)
    cwd: str | None = setting(
        None,
        "Working directory, where relative paths among its arguments start: . is the project's root; None for the "
        "folder in which the launch is called.",
        basic=True,
    )
    config_file: str | None = setting(
        None,
        "YAML, JSON or TOML file among args, as it is written there, of which a run gets a copy with config_values.",
    )
    config_values: tuple[str, ...] = setting(
        (), "Values that differ in the copy, such as optim.lr=0.1; data.yaml:size=3 is one of another file among args."
    )
    resume: tuple[str, ...] = setting(
        (),
        "Words with which it resumes, such as --resume_from_checkpoint {checkpoint}; {checkpoint} stands for a path. "
        "They replace the same argument among args.",
    )
    curves: tuple[str, ...] = setting(
        (),
        "Patterns of its printed lines that are curves, such as 'iter {step}: loss {train/loss}, {_} ms': {name} is a "
        "number, {_} any text.",
    )
    checkpoints: str | None = setting(
        None,
        "Files or folders that are its checkpoints, such as out/*.ckpt, from the working directory on. None for those "
        "with usual names.",
    )
    accelerate_config: str | None = setting(
        None,
        "YAML file with which accelerate launch starts it instead of torchrun. The number of processes, the GPUs and "
        "the port are those of the launch.",
    )
    stop_signal: Literal["SIGTERM", "SIGINT"] = setting(
        "SIGTERM",
        "Signal with which a stop begins: SIGINT, as Ctrl-C sends it, for one that saves on KeyboardInterrupt.",
    )

    @field_validator("curves")
    @classmethod
    def _are_patterns(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            Pattern(text)  # its ConfigError is a ValueError
        return texts

    @field_validator("args", "resume", "config_values")
    @classmethod
    def _fit_a_command_line(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if why := next(filter(None, map(why_no_word, words)), ""):
            raise ValueError(why)
        return words

    @field_validator("script", "cwd", "accelerate_config", "config_file", "checkpoints", "module")
    @classmethod
    def _is_a_place(cls, value: str | None, info: Any) -> str | None:
        path = f"{(value or '').replace('.', '/')}.py" if info.field_name == "module" else value
        other = r"(?s).+", "a path, of at most 255 bytes a part and 3072 in all"
        pattern, allowed = _ALLOWED.get(info.field_name, other)
        if value is not None and not (may_be_path(str(path)) and re.fullmatch(pattern, value)):
            raise ValueError(f"must be {allowed}")
        return value

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.script is None) == (self.module is None):
            raise ValueError("give script, the path of a file, or module, the name of a module: one of them")
        if self.config_file is None and "" in map(config_file_of, self.config_values):
            raise ValueError("config_values: are those of a config_file; name it")
        return self

    @property
    def name(self) -> str:
        """File name or module, for a heading."""
        return self.module or Path(str(self.script)).name

    @property
    def has_secrets(self) -> bool:
        """Whether an argument looks secret; only the user may then read the launcher script."""
        words = [*self.args, *self.resume, *self.config_values]
        return masked(words) != words

    def words(self, root: Path, launch: Launch) -> list[str]:
        """Return the words that name the program in a command: its path, or `-m` and its module."""
        target = ["-m", self.module] if self.module else [str(self.file(root))]
        if self.accelerate_config is None:
            return target
        count = launch.num_processes * launch.nnodes
        options = ["--config_file", str(self.accelerate_file(root)), "--num_processes", str(count), "--gpu_ids", "all"]
        options += [] if launch.gpus == () else ["--main_process_port", "0"]  # mpirun on the CPU needs a real port
        return ["-m", "accelerate.commands.launch", *options, *torchrun.after_options(target)]

    def accelerate_file(self, root: Path) -> Path | None:
        """Return the config file of accelerate; None if it names none."""
        return None if self.accelerate_config is None else _joined(root, self.accelerate_config)

    def with_copies(self, args: Sequence[str], copies: Mapping[str, Path]) -> list[str]:
        """Return arguments with copies in place of config files; ConfigError if no argument names one of them."""
        found = list(args)
        for name, copy in copies.items():
            named = [word == name or word.endswith(f"={name}") for word in args]
            if not any(named):
                raise ConfigError(
                    f"config_file={name}: no argument names it; add it to args with the flag that takes it"
                )
            found = [f"{w.removesuffix(name)}{copy}" if own else w for w, own in zip(found, named, strict=True)]
        return found

    def config_changes(self, cwd: Path = Path()) -> dict[str, tuple[Path, list[str]]]:
        """Return the config files of which a run gets copies, each with its path and the values that differ."""
        found: dict[str, tuple[Path, list[str]]] = {}
        for word in self.config_values:
            file = config_file_of(word)
            _, words = found.setdefault(name := file or str(self.config_file), (_joined(cwd, name), []))
            words.append(word[len(file) + 1 :] if file else word)
        return found

    def config_copies(self, folder: Path) -> dict[str, Path]:
        """Return where the copies of the config files are in a folder."""
        found: dict[str, Path] = {}
        for number, file in enumerate(self.config_changes()):
            copy = folder / Path(file).name
            found[file] = folder / str(number) / copy.name if copy in found.values() else copy
        return found

    def of_copies(self, folder: Path) -> Self:
        """Return this program with the copies in a folder for its config files."""
        copies, changes = self.config_copies(folder), self.config_changes()
        values = [f"{copies[file]}:{word}" for file, (_, words) in changes.items() for word in words]
        main = copies.get(str(self.config_file))
        values = [word.removeprefix(f"{main}:") for word in values]
        return self.replace(config_file=None if main is None else str(main), config_values=tuple(values))

    def file(self, root: Path, search: Sequence[Path] = ()) -> Path | None:
        """Return the program's file; None for a module that is neither in the working directory nor in `search`."""
        if self.script is not None:
            return _joined(root, self.script)
        parts = str(self.module).split(".")
        for folder in (self.folder(root) or Path.cwd(), *search):
            for path in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__main__.py")):
                if path.is_file():
                    return path
        return None

    def why_missing(self, root: Path, python: Interpreter) -> str:
        """Return why an interpreter does not find its module, with the folder that has it; empty if it does."""
        cwd = self.folder(root) or Path.cwd()
        if self.module is None or self.file(root, python.search) or python.finds(self.module, cwd):
            return ""
        folders = (root, *sorted(path for path in islice(root.iterdir(), _MOST_FOLDERS) if path.is_dir()))
        found = next((folder for folder in folders if self.replace(cwd=str(folder)).file(root)), None)
        step = "give the folder that has it as cwd" if found is None else f"{found} has it: set cwd={str(found)!r}"
        return f"module={self.module}: is neither in {cwd} nor in {python.prefix}; {step} (--cwd {found or 'DIR'})"

    def folder(self, root: Path) -> Path | None:
        """Return its working directory; None if it names none."""
        return None if self.cwd is None else _joined(root, self.cwd)

    def run(self, launch: Launch) -> NoReturn:
        """Replace this process with the program: `python scripts/NAME.py` calls this.

        It starts with torchrun as `launch` says; under torchrun, the process becomes one of its ranks. Arguments of
        this process are added to those of the program. There is no run directory: `nbtools launch` makes one.
        """
        root = find_project(Path(sys.argv[0]).resolve().parent, missing_ok=True).root
        if (folder := self.folder(root)) is not None:
            os.chdir(folder)
        python = interpreter_for(self.file(root), launch.python, root, needs_torch=launch.torchrun is not False)
        os.environ.update(torchrun.variables(launch))
        command = self._by_hand(root, launch, python, sys.argv[1:])
        sys.stdout.flush()
        os.execvp(command[0], command)

    def _by_hand(self, root: Path, launch: Launch, python: Interpreter, more: Sequence[str]) -> list[str]:
        try:
            copies = {file: cached_copy(*change) for file, change in self.config_changes(Path.cwd()).items()}
        except ConfigError as error:
            sys.exit(f"nbtools: {error}")
        args = self.with_copies(self.args, copies)
        words = [*self.words(root, launch.resolved(len(devices()))), *args, *more]
        is_a_rank = "TORCHELASTIC_RUN_ID" in os.environ
        *agent, script = torchrun.by_hand(sys.argv[0], launch)
        if launch.nnodes > 1 and not is_a_rank and launch.torchrun is not False:
            line = shlex.join([*agent, "--", script])
            raise LaunchError(
                f"nnodes={launch.nnodes}: python starts it on one machine; start it on each with: {line}, where "
                f"{torchrun.NODE} is the number of the machine, from 0, and {torchrun.ADDRESS} that of the first one"
            )
        if is_a_rank or launch.torchrun is False or self.accelerate_config is not None:
            return [str(python.path), *words]
        module = [str(python.path), *python.safe_path, "-m", "torch.distributed.run"]
        return [*module, *agent[1:], *torchrun.after_options(words)]


def config_file_of(word: str) -> str:
    """Return the file that stands before the key of a changed value, as in data.yaml:size=3; empty without one."""
    file = word.partition("=")[0].rpartition(":")[0]
    return file if file.endswith((".yaml", ".yml", ".json", ".toml")) else ""


SECRET_NOTE = (
    "an argument looks secret and stands in the script, which only you can read: do not share or commit it, or leave "
    "the argument out and let the program read an environment variable"
)
"""Warning that is printed where a launcher script with `has_secrets` is written."""


def _joined(root: Path, path: str) -> Path:
    return Path(os.path.normpath(root / expanded(path)))
