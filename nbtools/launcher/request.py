"""A launch as one value: what is asked of it, and what its check has found; only a checked launch is started."""

import contextlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, TypeVar, get_args, get_type_hints

from nbtools.config import Launch, NotifyOn, StopOn, TrainConfig
from nbtools.errors import ConfigError, DataError, LaunchError, ProjectError, plural, shown
from nbtools.launcher.checks.findings import Finding, problem, render_html, render_text
from nbtools.launcher.placement import Placement
from nbtools.launcher.sbatch import Cluster
from nbtools.project import Project, plain_name
from nbtools.recipes import recipe_of
from nbtools.rundir.rundir import RunDir
from nbtools.script.program import Program, why_no_word

OF_PROGRAM = ("cwd", "stop_signal", "curves")
"""Fields of `Program` that a launch may replace."""
F = TypeVar("F", bound=Callable[..., object])


class ResumeSettings(TypedDict, total=False):
    """Settings that a call of `resume` or `launch` gives; None keeps those of the run or the script."""

    nproc_per_node: int | Literal["gpu"] | None
    gpus: Sequence[int] | None
    nnodes: int | None
    cluster: Cluster | None
    max_restarts: int | None
    stop_on: StopOn | Mapping[str, object] | None
    on_end: Sequence[str] | None
    notify_on: NotifyOn | Mapping[str, object] | None
    notify_with: Sequence[str] | None
    name: str | None


class LaunchSettings(ResumeSettings, total=False):
    """Settings that a call of `launch` or `preflight` gives."""

    cwd: str | None
    stop_signal: Literal["SIGTERM", "SIGINT"] | None
    torchrun: bool | None
    python: str | None
    omp_num_threads: int | None
    shutdown_timeout_s: int | None


def spelled_out(function: F) -> F:
    """Give a function that takes `**settings` a signature with the name of each, for notebooks and `help`."""
    found = inspect.signature(function)
    *others, settings = found.parameters.values()
    hints = get_type_hints(get_args(settings.annotation)[0])
    kind = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in hints.items()]
    function.__signature__ = found.replace(parameters=[*others, *named])  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """A request for a launch: of a call, the command line, a resume, a fork, or a run that starts again."""

    script: str | Path | Program
    args: Sequence[str] = ()
    """Further arguments, after those of a launcher script."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Launch` that replace the script's; `cluster` is a `Cluster`."""
    program: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Program`, of those in `OF_PROGRAM`, that replace the script's."""
    name: str | None = None
    """Last part of the run's id; None for the name of the script."""
    project: Project | None = None
    """The project of a `Program`; None for that of the working directory."""
    after: Path | None = None
    """Directory of a run that must end first."""
    queue: bool = True
    """Whether to wait for the GPUs."""
    runs: Path | None = None
    """Folder of the new run directory; None for that of the project."""
    reproduces: RunDir | None = None
    """Run that this one repeats, with the events of its training."""
    recorded_script: str | None = None
    """Path to record in place of the script's, which is a copy."""

    @classmethod
    def of(cls, script: str | Path | Program, given: Mapping[str, Any], **more: Any) -> Self:
        """Return a request with the `given` fields of `Launch`, of a program, and `name`; None keeps the script's."""
        settings = {name: value for name, value in given.items() if value is not None}
        program = {name: settings.pop(name) for name in OF_PROGRAM if name in settings}
        return cls(script=script, name=settings.pop("name", None), settings=settings, program=program, **more)

    def words(self) -> tuple[str, ...]:
        """Return the further arguments; LaunchError if a command line cannot hold them."""
        if isinstance(self.args, str | bytes):
            given = f"args={self.args!r}"
            raise LaunchError(f"{given}: must be a list of strings, one per argument, such as ['--max-steps', '10']")
        for argument in self.args:
            if not isinstance(argument, str):
                kind = type(argument).__name__
                raise LaunchError(f"args: {argument!r} is a {kind}; every argument must be a string")
            if why := why_no_word(argument):
                raise LaunchError(f"args: {why}")
        return tuple(self.args)

    def run_name(self, default: str) -> str:
        """Return the last part of the run's id; LaunchError if the given one cannot be that."""
        if self.name is None:
            return run_name(default)
        if run_name(self.name) != self.name:
            raise LaunchError(
                f"name={shown(self.name)}: give at most 64 letters A to Z, digits, _ and, not first, -: "
                f"{run_name(self.name)}"
            )
        return self.name


@dataclass(frozen=True, repr=False, kw_only=True)
class Preflight:
    """A checked launch; one without problems can be started. Its display has one line per finding."""

    request: LaunchRequest
    script: Path
    """The path or program of the call: a recipe's script, a launcher script, or the user's program itself."""
    name: str
    project: Project
    cwd: Path
    args: tuple[str, ...]
    placement: Placement
    findings: tuple[Finding, ...]
    source: Path | None
    """The file that runs, of which the run keeps a copy; None for a module whose file is not found."""
    config: TrainConfig | None = None
    """Values of a recipe's script with the flags in `args` applied; None for every other script."""

    @property
    def launch(self) -> Launch:
        """The call's values over the script's over the defaults, with GPUs and threads chosen."""
        return self.placement.launch

    @property
    def recipe(self) -> str | None:
        """Key of the recipe of a script that does not compute its values; None for every other script."""
        return None if self.config is None else recipe_of(self.config).key

    @property
    def runs(self) -> Path:
        """The folder of the new run directory."""
        return self.request.runs or self.project.runs

    @property
    def warnings(self) -> tuple[str, ...]:
        """The findings of level `warn`, as sentences; a launch issues them as warnings."""
        return tuple(finding.sentence for finding in self.findings if finding.level == "warn")

    @property
    def problems(self) -> tuple[str, ...]:
        """The findings of level `problem`, as sentences; a launch is refused with the first one."""
        return tuple(finding.sentence for finding in self.findings if finding.level == "problem")

    @property
    def title(self) -> str:
        """One line: the script, and the number of problems or warnings."""
        if self.problems:
            return f"{self.script.name}: cannot be launched, {plural(len(self.problems), 'problem')}"
        but = f", {plural(len(self.warnings), 'warning')}" if self.warnings else ""
        return f"{self.script.name}: ready to launch{but}"

    def __repr__(self) -> str:
        return render_text(self.title, self.findings)

    def _repr_html_(self) -> str:
        return render_html(self.title, self.findings)

    def command(self, run: Path) -> list[str]:
        """Return the exact command for a run directory; of a job, script and arguments alone: its nodes do the rest."""
        target, args = self.target(run), self.args_in(run)
        return [*target, *args] if self.launch.cluster else self.placement.command(target, run, args)

    def args_in(self, run: Path) -> Sequence[str]:
        """Return the arguments for a run directory."""
        return self.args

    @abstractmethod
    def target(self, run: Path) -> list[str]:
        """Return the words that name the program in the command: a path, or `-m` and a module."""

    @abstractmethod
    def record(self, run: RunDir, script: str) -> dict[str, Any]:
        """Write the files of a run that its kind of script needs; return the entries of launch.json that only it has.

        `script` is the path that launch.json has of the script.
        """


def run_name(text: str) -> str:
    """Return a file name as a part of a run's id."""
    return plain_name(text).lstrip("-") or "run"


@contextlib.contextmanager
def noted(found: list[Finding], subject: str) -> Iterator[None]:
    """Turn a refusal into a finding, so that what is behind it is checked, too."""
    try:
        yield
    except LaunchError as error:
        found.append(problem(subject, str(error)))


@contextlib.contextmanager
def as_launch_error(path: Path | None = None) -> Iterator[None]:
    """Turn what a config or dataset raises into a LaunchError that begins with the script's path."""
    try:
        yield
    except (ConfigError, DataError, ProjectError, OSError) as error:
        raise LaunchError(f"{error}" if path is None else f"{path}: {error}") from None
