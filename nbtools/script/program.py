"""`Program`: a script or module of the user's with its arguments, as a launcher script (`scripts/NAME.py`) names it."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, NoReturn, Self

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
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


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
    config_values: tuple[str, ...] = setting((), "Values that differ in the copy, such as optim.lr=0.1.")
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

    @field_validator("script", "cwd", "accelerate_config", "config_file")
    @classmethod
    def _is_a_path(cls, value: str | None) -> str | None:
        if value is not None and not may_be_path(value):
            raise ValueError("must be a path, of at most 255 bytes a part and 3072 in all")
        return value

    @field_validator("checkpoints")
    @classmethod
    def _is_a_pattern(cls, value: str | None) -> str | None:
        if value is not None and (not may_be_path(value) or "**" in value or value.strip("./*") == ""):
            raise ValueError("must be a path with * for what differs, such as out/*.ckpt; for folders, out/*/last.pt")
        return value

    @field_validator("module")
    @classmethod
    def _is_a_module(cls, value: str | None) -> str | None:
        if value is not None and not (_MODULE.fullmatch(value) and may_be_path(f"{value.replace('.', '/')}.py")):
            raise ValueError("must be the dotted name of a module, such as package.train")
        return value

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.script is None) == (self.module is None):
            raise ValueError("give script, the path of a file, or module, the name of a module: one of them")
        if self.config_file is None and self.config_values:
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

    def with_copy(self, args: Sequence[str], folder: Path) -> list[str]:
        """Return arguments that name the copy of the config file in a folder; ConfigError if none names the file."""
        if not self.config_values:
            return list(args)
        file, copy = str(self.config_file), str(self.config_copy(folder))
        if not any(names_file(word, file) for word in args):
            raise ConfigError(f"config_file={file}: no argument names it; add it to args with the flag that takes it")
        return [f"{word.removesuffix(file)}{copy}" if names_file(word, file) else word for word in args]

    def config_copy(self, folder: Path) -> Path:
        """Return where the copy of the config file is in a folder."""
        return folder / Path(str(self.config_file)).name

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
            file = Path.cwd() / expanded(str(self.config_file))
            copy = cached_copy(file, self.config_values) if self.config_values else file
        except ConfigError as error:
            sys.exit(f"nbtools: {error}")
        args = self.with_copy(self.args, copy.parent)
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


def names_file(word: str, file: str) -> bool:
    """Whether a word of a command line names a file: `base.yaml`, or `--config=base.yaml`."""
    return word == file or word.endswith(f"={file}")


SECRET_NOTE = (
    "an argument looks secret and stands in the script, which only you can read: do not share or commit it, or leave "
    "the argument out and let the program read an environment variable"
)
"""Warning that is printed where a launcher script with `has_secrets` is written."""


def _joined(root: Path, path: str) -> Path:
    return Path(os.path.normpath(root / expanded(path)))
