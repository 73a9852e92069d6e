"""All checks of a launch before a process is started, and the command that would start it."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError, DataError, LaunchError, NotPlainError, ProjectError, ScriptError, plural, shown
from nbtools.launcher.checks.findings import Finding, epochs, ok, problem, render_html, render_text, size, warn
from nbtools.launcher.checks.sizes import check_disk, check_shared_memory, check_size
from nbtools.launcher.checks.step_count import evaluation_in_words, schedule
from nbtools.launcher.placement import Placement, check_cores, check_host_name, check_outputs, place
from nbtools.launcher.sbatch import check_site, on_cluster, place_job
from nbtools.machine.devices import Device, gpus_named
from nbtools.machine.interpreter import Interpreter, interpreter_for, own_interpreter
from nbtools.metrics.printed.templates import imported_files
from nbtools.project import Project, expanded, find_project, plain_name, project_of_program
from nbtools.recipes import Source, recipe_of
from nbtools.recipes.named_model import weights_notes
from nbtools.run.records import remembered
from nbtools.rundir.rundir import RunDir, foreign_owner, is_run, project_of
from nbtools.rundir.secret_values import masked
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.command_line import parse_words
from nbtools.script.arguments.config_file import changed_config
from nbtools.script.arguments.program_flags import declared_arguments, default_folders, guessed_resume, num_epochs
from nbtools.script.inspection import inspect_program, module_of, python_file, why_apart
from nbtools.script.program import Program
from nbtools.script.script import Script, parse_script

_COUNTED_BYTES = 4 * 2**20
"""Datasets up to this size are counted within a second; the form and the training count larger ones."""


@dataclass(frozen=True, repr=False)
class Preflight:
    """A launch and the findings on it; one without problems can be started. Its display has one line per finding."""

    script: Path
    """The path or program of the call: a recipe's script, a launcher script, or the user's program itself."""
    name: str
    recipe: str | None
    """Key of the recipe of a plain script; None for every other script."""
    config: TrainConfig | None
    """Values of a plain script with the flags in `args` applied; None for every other script."""
    project: Project
    cwd: Path
    args: tuple[str, ...]
    placement: Placement
    findings: tuple[Finding, ...]
    program: Program | None = None
    """The user's program that starts; None for a plain script."""
    source: Path | None = None
    """The file that runs, of which the run keeps a copy; None for a module whose file is not found."""
    num_epochs: int | None = None
    """The program's number of epochs, by its arguments; None if it is not known."""
    default_folders: tuple[str, ...] = ()
    """Flags of a program that its arguments leave out, each followed by its default, a folder."""
    resume_guess: tuple[str, ...] = ()
    """Words that may resume the program, by the names of its arguments, where neither it nor the user says them."""

    @property
    def launch(self) -> Launch:
        """The call's values over the script's over the defaults, with GPUs and threads chosen."""
        return self.placement.launch

    @property
    def environment(self) -> dict[str, str]:
        """Variables set on top of the caller's environment, without those that name the run."""
        return self.placement.environment

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
        """Return the program's arguments, which name copies of its config files in a run directory, if it has any."""
        if self.program is None or not self.program.config_values:
            return self.args
        return self.program.with_copies(self.args, self.program.config_copies(RunDir(run).configs))

    def target(self, run: Path) -> list[str]:
        """Return the words that name the program in the command: a path, or `-m` and a module."""
        if self.program is None:
            return [str(run / "script.py" if self.recipe else self.script)]
        return self.program.words(self.project.root, self.launch)


def preflight(
    script: str | Path | Program, *, args: Sequence[str] = (), on: str | None = None, **overrides: Any
) -> Preflight:
    """Check all that can be checked before a process is started, and show it, also what is behind a problem.

    The other arguments are those of `launch` for the script and its processes.

    Args:
        on: GPUs that this machine need not have, such as `8xH100`, whose memory is compared with that of a recipe.

    Raises:
        LaunchError: the script or an argument cannot be read, so that there is nothing to check.
    """
    checked = _collected(script, args, overrides, on=() if on is None else gpus_named(on))
    if on and checked.config is None:
        raise LaunchError(f"on={on!r}: is for the scripts of recipes, whose memory can be computed; leave it out")
    found: list[Finding] = []
    with _noted(found, "slurm"):
        checked = checked if on else with_site(checked)
    if not any(finding.subject == "dataset" for finding in checked.findings):
        with _noted(found, "dataset"):
            found += _check_data(checked)
    checked = replace(checked, findings=(*checked.findings, *found))
    if on or checked.problems:
        return checked
    path = [_shorter(word, checked.cwd) for word in checked.target(Path("runs/ID"))]
    known = type(checked.config).model_fields if checked.config is not None else ()
    if checked.launch.cluster is not None:
        line = "sbatch runs/ID/job.sbatch"
    else:
        args = checked.args_in(Path("runs/ID"))
        line = checked.placement.shell_line(path, masked(args, known))  # notebooks are stored and shared
    return replace(checked, findings=(*checked.findings, ok("command", line)))


@contextlib.contextmanager
def _noted(found: list[Finding], subject: str) -> Iterator[None]:
    """Turn a refusal into a finding, so that what is behind it is checked, too."""
    try:
        yield
    except LaunchError as error:
        found.append(problem(subject, str(error)))


def with_site(checked: Preflight, runs: Path | None = None) -> Preflight:
    """Add what Slurm says of a launch with `cluster`, whose run will be in `runs`; LaunchError if it refuses."""
    if checked.launch.cluster is None:
        return checked
    with _as_launch_error():
        more = check_site(checked.launch, runs or checked.project.runs, checked.cwd)
    return replace(checked, findings=(*checked.findings, *more))


def check_launch(
    script: str | Path | Program, args: Sequence[str], overrides: Mapping[str, Any], *, project: Project | None = None
) -> Preflight:
    """Check a launch without writing or starting anything; samples of large data are not counted.

    Args:
        script: a script, or a program of the user's.
        args: further arguments.
        overrides: fields of `Launch` that replace the script's; None keeps the script's value. `cwd` and `stop_signal`
            are those of a program, and `name` is the last part of the run's id.
        project: of a `Program`; that of the working directory when None.

    Raises:
        LaunchError: what was given, what is allowed, and the next step.
    """
    checked = _collected(script, args, overrides, project=project)
    for said in checked.problems:
        raise LaunchError(said)
    return checked


def _collected(
    script: str | Path | Program,
    args: Sequence[str],
    overrides: Mapping[str, Any],
    *,
    project: Project | None = None,
    on: Sequence[Device] = (),
) -> Preflight:
    """Collect the findings of a launch, problems included; its arguments as `check_launch`, and GPUs to ask about."""
    overrides = dict(overrides)
    if on and overrides.get("nproc_per_node") is None:
        overrides["nproc_per_node"] = len(on)
    if (name := overrides.pop("name", None)) is not None:
        if run_name(name) != name:
            raise LaunchError(
                f"name={shown(name)}: give at most 64 letters A to Z, digits, _ and, not first, -: {run_name(name)}"
            )
        return replace(_collected(script, args, overrides, project=project, on=on), name=name)
    own = {name: given for name in ("cwd", "stop_signal") if (given := overrides.pop(name, None)) is not None}
    own |= {"cwd": str(expanded(own["cwd"]).absolute())} if "cwd" in own else {}
    if isinstance(script, Program):
        program, wanted = script.replace(**own), _wanted(Launch(), overrides)
        return _check_program(program, wanted, _check_args(args), None, [], project)
    path = python_file(script)
    plain, notes = _read_plain(path)
    if plain and plain.launch.on_end and overrides.get("on_end") is None and (whose := _not_own(path)):
        overrides = {**overrides, "on_end": ()}
        notes += [warn("on_end", f"{path.name} is {whose}, so its on_end is left out; give on_end= with the launch")]
    wanted = _wanted(plain.launch if plain else Launch(), overrides)
    if plain and plain.program:
        return _check_program(plain.program.replace(**own), wanted, _check_args(args), path, notes)
    if plain is None and b"nbtools.recipes" not in path.read_bytes():  # else its values are computed
        with _as_launch_error():
            project = _project_of(path) if is_run(path.parent) else project_of_program(path)
        return _check_program(Program(script=str(path), **own), wanted, _check_args(args), path, notes, project)
    for name, given in own.items():
        raise LaunchError(f"{name}={shown(given)}: is for a program, not for the recipe of {path.name}; leave it out")
    return _check_recipe(path, plain, wanted, _check_args(args), notes, on)


def _wanted(launch: Launch, overrides: Mapping[str, Any]) -> Launch:
    """Return launch settings with the values of a call."""
    given = {name: tuple(v) if name == "gpus" else v for name, v in overrides.items() if v is not None}
    with _as_launch_error():
        cluster: Any = given.pop("cluster", None)
        wanted = on_cluster(launch, cluster, **given)
    if wanted.on_end and shutil.which(wanted.on_end[0]) is None:
        raise LaunchError(f"on_end={shown(wanted.on_end)}: there is no such program; give one, or its full path")
    return wanted


def _check_recipe(
    path: Path,
    plain: Script | None,
    wanted: Launch,
    args: tuple[str, ...],
    notes: Sequence[Finding],
    on: Sequence[Device],
) -> Preflight:
    """Check a recipe's script; `plain` is None if it computes its values. `on` are GPUs to ask about."""
    if asks_for_help(plain is not None, args):
        shown_by = f"nbtools launch {path.name} -- --help" if plain else f"python {path} --help"
        raise LaunchError(f"--help: trains nothing, so nothing was started; {shown_by} prints the script's flags")
    project = _project_of(path)
    is_inside = path.is_relative_to(project.root) or is_run(path.parent)
    cwd = project.root if is_inside else path.parent
    interpreter = None if wanted.python is None else interpreter_for(None, wanted.python, project.root)
    config = None if plain is None else with_flags(plain, path, args, cwd)
    found = list(notes)
    if plain is not None and config is not None:
        with _noted(found, "config"), _as_launch_error(path):
            recipe_of(config).refuse(config)
        with _noted(found, "dataset"):
            _source_of(path, config, project)
        found += [*_check_lacks(plain, config), *(ok("weights", note) for note in weights_notes(config))]
    placement = _placed(wanted, interpreter, on, found)
    found += placement.findings
    if not on:
        found += [*check_host_name(placement.launch), *check_cores(placement, project.runs)]
        found += [check_disk(project.runs, config), *check_shared_memory(config, placement.launch)]
    if config is not None:
        is_known = wanted.cluster is None and placement.findings
        found += check_size(config, placement.launch.world_size, on or (placement.gpus if is_known else None))
    return Preflight(
        script=path,
        name=run_name(path.stem),
        recipe=plain.recipe if plain else None,
        config=config,
        project=project,
        cwd=cwd,
        args=args,
        placement=placement,
        findings=tuple(found),
        source=path,
    )


def _placed(wanted: Launch, interpreter: Interpreter | None, on: Sequence[Device], found: list[Finding]) -> Placement:
    """Place a launch; one that is refused, with the reason in `found`, or is asked about on GPUs of another machine
    gets neither GPUs nor variables."""
    findings: tuple[Finding, ...] = ()
    if on:
        many = f"{len(on)} x {on[0].name} ({size(on[0].memory_total_bytes)} each)"
        findings = (ok("devices", f"{many}, as asked: {plural(wanted.resolved(len(on)).world_size, 'process')}"),)
    else:
        with _noted(found, "devices"):
            return place(wanted, None, interpreter) if wanted.cluster is None else place_job(wanted, interpreter)
    launch = wanted.resolved(len(on))
    return Placement(launch, (), {}, False, None, interpreter or own_interpreter(), findings)


def _check_program(
    program: Program,
    wanted: Launch,
    args: tuple[str, ...],
    launcher: Path | None,
    notes: Sequence[Finding],
    project: Project | None = None,
) -> Preflight:
    """Check a program of the user's; `launcher` is the script that names it, if there is one."""
    args = (*program.args, *args)
    if asks_for_help(False, args):
        raise LaunchError(
            f"--help: trains nothing, so nothing was started; python {program.module or program.script} --help prints "
            "the program's flags"
        )
    project = project or (find_project(missing_ok=True) if launcher is None else _project_of(launcher))
    cwd = _working_directory(program, project.root)
    with _as_launch_error():
        program.with_copies(args, program.config_copies(cwd))
        for config, values in program.config_changes(cwd).values():
            changed_config(config, values)
    wanted, interpreter, source, found = _placed_program(program, wanted, project.root, cwd)
    placement = _placed(wanted, interpreter, (), found)
    what = program.module or _shorter(str(source), project.root)
    where = "the project's folder" if cwd == project.root else _shorter(str(cwd), project.root)
    runs = os.path.relpath(project.runs, cwd) if cwd.is_relative_to(project.root) else project.runs
    found = [ok("program", f"{shown(what, 200)}, started in {where}; its run is kept in {runs}"), *found]
    declared = None if source is None else declared_arguments(source, interpreter, cwd, program.module)
    if declared is not None:
        refused = parse_words(declared, args).refused
        found += [warn("arguments", f"the program refuses its arguments: {why}") for why in refused]
    script = launcher or source or cwd
    program, guess, more = _with_resume(program, args, declared, remembered(str(project.root), str(script)))
    found += more
    if source is not None:
        found += _looked_at(program, imported_files(source, project.root), placement.launch)
    if program.accelerate_config is not None and placement.launch.num_processes > 1 and not placement.gpus:
        text = "accelerate launch starts several processes on the CPU only with mpirun, else one"
        found.append(warn("program", text, "leave accelerate_config out: torchrun starts them"))
    folders = default_folders(args, declared)
    plan = {"default_folders": folders, "program": program.model_dump(include={"checkpoints"})}
    return Preflight(
        script=script,
        name=run_name(str(program.module) if program.module or script == cwd else _name_of(script, project)),
        recipe=None,
        config=None,
        project=project,
        cwd=cwd,
        args=args,
        placement=placement,
        findings=(
            *(*notes, *found, *placement.findings, *check_host_name(placement.launch)),
            *(*check_cores(placement, project.runs), check_disk(project.runs, None)),
            *check_outputs(project.runs, cwd, args, plan),
        ),
        program=program,
        source=source,
        num_epochs=num_epochs(args, declared),
        default_folders=tuple(folders),
        resume_guess=guess,
    )


def _looked_at(program: Program, files: Sequence[Path], launch: Launch) -> Iterator[Finding]:
    """Warn of what the text of a program's files says of its ranks and its end; nothing in it is interpreted."""
    text = "\n".join(path.read_bytes().decode("utf-8", "replace") for path in files)
    has_ranks = launch.torchrun is not False or program.accelerate_config is not None
    if has_ranks and launch.world_size > 1 and (why := why_apart(text)):
        what = f"{launch.world_size} separate trainings, which will overwrite each other's files"
        step = "set nproc_per_node=1, or let it join them by torch.distributed.init_process_group and LOCAL_RANK"
        yield warn("ranks", f"{what}: {program.name} {why}", step)
    if program.stop_signal == "SIGTERM" and "KeyboardInterrupt" in text and "SIGTERM" not in text:
        step = "stop_signal='SIGINT' (--stop-signal SIGINT) stops it as Ctrl-C does"
        yield warn("stop", f"{program.name} handles KeyboardInterrupt, and a stop sends it SIGTERM", step)


def _with_resume(
    program: Program, args: Sequence[str], declared: ScriptArguments | None, said: Mapping[str, Any]
) -> tuple[Program, tuple[str, ...], list[Finding]]:
    """Return a program with its words of resume and its pattern of checkpoints, a guess of the words, and findings.

    Words and pattern are those of the program, else those that the user has `said` of its script; where there are
    none, words by the name of an argument are a guess, of which a restart uses only an unambiguous one.
    """
    said = {} if said.get("in_script") else said
    words = program.resume or tuple(map(str, said.get("resume") or ()))
    guess = () if words else guessed_resume(args, declared, is_asked=True)
    sure = () if words else guessed_resume(args, declared)
    program = program.replace(resume=words or sure, checkpoints=program.checkpoints or said.get("checkpoints"))
    line = shlex.join(masked(words or guess))
    found = (
        [ok("resume", f"from a checkpoint, also at a restart, with {line}{' (a guess)' * bool(sure)}")] if line else []
    )
    if guess and not sure:
        found = [ok("resume", f"perhaps with {line}; a restart does not use it unless Program(resume=...) says so")]
    found += [ok("checkpoints", f"those named {program.checkpoints}")] if program.checkpoints else []
    return program, guess, found


def _name_of(script: Path, project: Project) -> str:
    """Return the name of a program's runs: its file with its folder in the project, since many files are main.py."""
    is_nested = script.is_relative_to(project.root) and script.parent not in (project.root, project.scripts)
    return f"{script.parent.name}_{script.stem}" if is_nested else script.stem


def _not_own(path: Path) -> str:
    """Return whose the words of `on_end` in a script may be, if not this user's; they would be executed."""
    if is_run(path.parent):
        return "the script of a run"
    return f"{owner}'s" if (owner := foreign_owner(path)) else ""


def run_name(text: str) -> str:
    """Return a file name as a part of a run's id."""
    return plain_name(text).lstrip("-") or "run"


def asks_for_help(has_recipe: bool, args: Sequence[str]) -> bool:
    """Whether the arguments ask a script for its help; `-h` may mean something else to a script without a recipe."""
    return "--help" in args or (has_recipe and "-h" in args)


def help_text(script: str | Path, args: Sequence[str]) -> str | None:
    """Return the flags of a plain script if the arguments ask for them, else None; LaunchError if it is unreadable."""
    path = python_file(script)
    plain, _ = _read_plain(path)
    if plain is None or plain.program or not asks_for_help(True, args):
        return None
    command = [sys.executable, "-P", "-m", "nbtools.training.engine.flags", str(path), "--help"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout


def with_flags(plain: Script, path: Path, args: Sequence[str], cwd: Path) -> TrainConfig:
    """Return a script's config with flags, parsed by the training's own parser; LaunchError if it refuses one."""
    if not args:
        return plain.config
    command = [sys.executable, "-P", "-m", "nbtools.training.engine.flags", str(path), *args]
    parsed = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if parsed.returncode == 2:
        lines = (line.strip(" │") for line in parsed.stderr.splitlines())  # tyro draws a box around its message
        message = "; ".join(line for line in lines if line and not line.startswith(("╭", "─", "╰")))
        raise LaunchError(f"{path.name}: {message.removeprefix(f'{path.name}: error: ')}")
    try:
        return type(plain.config)(**json.loads(parsed.stdout))
    except (ValueError, TypeError):  # --help, or the training packages are not installed
        return plain.config


# --- the script -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _as_launch_error(path: Path | None = None) -> Iterator[None]:
    """Turn what a config or dataset raises into a LaunchError that begins with the script's path."""
    try:
        yield
    except (ConfigError, DataError, ProjectError, OSError) as error:
        raise LaunchError(f"{error}" if path is None else f"{path}: {error}") from None


def _read_plain(path: Path) -> tuple[Script | None, list[Finding]]:
    """Return the content of a plain script or a launcher script; None for all others."""
    source = path.read_bytes()
    if b"nbtools.recipes" not in source and not (b"from nbtools import" in source and b"Program(" in source):
        return None, []
    try:
        return parse_script(path), []
    except NotPlainError as error:
        step = "give nproc_per_node and gpus with the call"
        return None, [warn("script", f"{error}. Its launch settings are not read", step)]
    except ScriptError as error:
        raise LaunchError(str(error)) from None


def _check_lacks(plain: Script | None, config: TrainConfig) -> list[Finding]:
    """Report the fields that a script does not name: an older nbtools wrote it, or it was edited."""
    lacks = [name for name in plain.lacks if name in type(config).model_fields] if plain else []
    if plain is None or not lacks:
        return []
    values = ", ".join(f"{name}={shown(getattr(config, name), 40)}" for name in lacks)
    text = f"{plain.path.name} does not name {plural(len(lacks), 'field')}, so today's values apply: {values}"
    if plain.hand_edited:
        return [ok("script", text)]
    return [warn("script", text, "an earlier nbtools wrote it; write it again (form, nbtools new) to fix them")]


# --- a program of the user's ----------------------------------------------------------------------


def _working_directory(program: Program, root: Path) -> Path:
    """Return the working directory of a program: the one it names, else that of the call, as with torchrun."""
    try:
        cwd = program.folder(root) or Path.cwd()
    except FileNotFoundError:
        raise LaunchError("the working directory was deleted; change to another folder") from None
    if not cwd.is_dir():
        raise LaunchError(f"cwd={shown(program.cwd or str(cwd))}: no such folder ({cwd}); give an existing one")
    return cwd


def _placed_program(
    program: Program, wanted: Launch, root: Path, cwd: Path
) -> tuple[Launch, Interpreter, Path | None, list[Finding]]:
    """Return settings with `torchrun` decided, interpreter, file and findings; LaunchError if it cannot be started."""
    named = None if program.script is None else python_file(program.file(root) or "")
    if program.accelerate_config is not None and (wanted.nnodes > 1 or wanted.cluster is not None):
        raise LaunchError(
            f"accelerate_config={shown(program.accelerate_config)}: is for one machine; on several, start the program "
            "with torchrun, which accelerate's Accelerator() understands"
        )
    if (config := program.accelerate_file(root)) is not None:
        if not config.is_file():
            raise LaunchError(f"accelerate_config={shown(str(program.accelerate_config))}: no such file ({config})")
        wanted = wanted.replace(torchrun=False)
    python = interpreter_for(named or cwd / "-", wanted.python, root, needs_torch=wanted.torchrun is not False)
    file = named or program.file(root, [cwd, *python.search])
    if file is None:
        if wanted.cluster is None and (why := program.replace(cwd=str(cwd)).why_missing(root, python)):
            raise LaunchError(why)
        notes = [warn("program", f"the file of {program.module} is not found, so the run keeps no copy of it")]
        return wanted.replace(torchrun=wanted.torchrun is not False), python, None, notes
    found, notes = inspect_program(file), list[Finding]()
    if named is not None and found.relative_import_at is not None:
        module, folder = module_of(named)
        raise LaunchError(
            f"{named}:{found.relative_import_at}: imports relative to its package, which fails unless it is started as "
            f"a module: nbtools launch -m {module} in {folder}"
        )
    if found.spawns_at is not None and wanted.torchrun is not False:
        where = f"{file.name}:{found.spawns_at}: the program starts its own processes"
        if wanted.torchrun:
            notes.append(warn("program", f"{where}, and torchrun starts it several times", "set torchrun=None"))
        else:
            notes.append(ok("program", f"{where}, so it is started once, without torchrun"))
    is_agent = wanted.torchrun if wanted.torchrun is not None else found.spawns_at is None
    if not is_agent and wanted.nnodes > 1:
        raise LaunchError(f"nnodes={wanted.nnodes}: {file.name} starts its own processes; only torchrun joins machines")
    return wanted.replace(torchrun=is_agent), python, file, notes


def _shorter(word: str, folder: Path) -> str:
    """Return a path relative to a folder, if it lies there."""
    return str(Path(word).relative_to(folder)) if Path(word).is_relative_to(folder) else word


def _check_args(args: Sequence[str]) -> tuple[str, ...]:
    if isinstance(args, str | bytes):
        raise LaunchError(f"args={args!r}: must be a list of strings, one per argument, such as ['--max-steps', '10']")
    for argument in args:
        if not isinstance(argument, str):
            raise LaunchError(f"args: {argument!r} is a {type(argument).__name__}; every argument must be a string")
        if "\0" in argument:
            raise LaunchError(f"args: {argument[:80]!r} contains a NUL byte, which a command line cannot hold")
        try:
            os.fsencode(argument)
        except UnicodeEncodeError:
            raise LaunchError(f"args: {argument[:80]!r} cannot be encoded for a command line") from None
    return tuple(args)


def _project_of(script: Path) -> Project:
    try:
        return project_of(script)
    except ProjectError as error:
        if os.environ.get("NBTOOLS_ROOT"):
            raise LaunchError(str(error)) from None
        return Project(script.parent)


# --- what it trains -------------------------------------------------------------------------------


def _source_of(path: Path, config: TrainConfig, project: Project) -> Source:
    """Find the files of a dataset and check that they are readable."""
    with _as_launch_error(path):
        source = recipe_of(config).source(config, project.root)
    for file in source.files:
        if not os.access(file, os.R_OK):
            raise LaunchError(f"{path}: dataset {shown(source.name)}: {file} cannot be read; change its permissions")
    return source


def _check_data(checked: Preflight) -> list[Finding]:
    """Report the dataset and the number of steps; counting the samples takes longer than all other checks."""
    config, root = checked.config, checked.project.root
    if config is None:
        return []
    source = _source_of(checked.script, config, checked.project)
    with _as_launch_error(checked.script):
        counted = schedule(config, checked.launch.world_size, root=root, largest_bytes=_COUNTED_BYTES)
        num_bytes = sum(file.stat().st_size for file in source.files)
    dataset = source.name
    if source.files:
        dataset += f": {plural(len(source.files), 'file')}, {size(num_bytes)}"
    if counted is None:
        most = plural(config.epochs, "epoch") + (f", at most {config.max_steps:,}" if config.max_steps else "")
        return [
            ok("dataset", f"{dataset}; the training counts its samples; {evaluation_in_words(config)}"),
            ok("steps", f"known once the training has read the data: {most}"),
        ]
    dataset += f", {counted.num_train_samples:,} training samples, {counted.held_out}"
    return [ok("dataset", dataset), ok("steps", f"{counted.total_steps:,}: {epochs(counted)}")]
