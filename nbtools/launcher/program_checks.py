"""The check of a user's program: its file, its Python, its arguments, its ranks, its curves and its resume."""

import contextlib
import os
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtools.config import Launch
from nbtools.errors import LaunchError, shown
from nbtools.launcher.checks.findings import Finding, ok, warn
from nbtools.launcher.checks.sizes import check_disk
from nbtools.launcher.placement import check_cores, check_host_name, check_outputs
from nbtools.launcher.recipe_checks import asks_for_help, placed
from nbtools.launcher.request import LaunchRequest, Preflight, as_launch_error
from nbtools.machine.interpreter import Interpreter, interpreter_for
from nbtools.metrics.printed.run_patterns import curves_at_launch
from nbtools.metrics.printed.templates import imported_files, templates_of
from nbtools.project import Project
from nbtools.run.records import remembered
from nbtools.rundir.atomic import write_file
from nbtools.rundir.json_files import write_json
from nbtools.rundir.rundir import RunDir
from nbtools.rundir.secret_values import masked
from nbtools.script.arguments.arguments import ScriptArguments
from nbtools.script.arguments.ask import known_arguments
from nbtools.script.arguments.command_line import parse_words
from nbtools.script.arguments.program_flags import default_folders, guessed_resume, num_epochs
from nbtools.script.config_copy import changed_config
from nbtools.script.inspection import inspect_program, module_of, python_file, why_apart
from nbtools.script.program import Program


@dataclass(frozen=True, repr=False, kw_only=True)
class ProgramPreflight(Preflight):
    """A checked launch of a program of the user's."""

    program: Program
    by_arguments: Mapping[str, Any]
    """Entries of launch.json that its arguments give: `num_epochs`, None if not known; `default_folders`, the flags
    that they leave out, each followed by its default, a folder; and `resume_guess`, words that may resume it, by the
    names of its arguments, where neither the program nor the user says them."""

    def args_in(self, run: Path) -> Sequence[str]:
        """Return the arguments, which name copies of the config files in a run directory, if there are any."""
        return self.program.with_copies(self.args, self.program.config_copies(RunDir(run).configs))

    def target(self, run: Path) -> list[str]:
        """Return the words that name the program in the command: a path, or `-m` and a module."""
        return self.program.words(self.project.root, self.launch)

    def record(self, run: RunDir, script: str) -> dict[str, Any]:
        """Write copies of the config files and the texts that the source prints; return the program's entries."""
        program = self.program
        if program.config_values:
            copies = program.config_copies(run.configs)
            for file, (config, values) in program.config_changes(self.cwd).items():
                copies[file].parent.mkdir(parents=True, exist_ok=True)
                write_file(copies[file], changed_config(config, values).encode(), mode=0o600)
            program = program.of_copies(run.configs)  # of which a resume makes its own
        if self.source is not None:
            with contextlib.suppress(Exception):  # curves are no reason against a launch, whatever a source contains
                texts = templates_of(imported_files(self.source, self.project.root))
                write_json(run.templates, {"templates": texts}, mode=stat.S_IMODE(run.script.stat().st_mode))
        asked = self.request.program.get("curves")
        return {
            "program": program.model_dump(mode="json", exclude={"args"}),
            "curves": curves_at_launch(program.curves, str(self.project.root), script) if asked is None else asked,
            **self.by_arguments,
        }


def check_program(
    request: LaunchRequest,
    program: Program,
    wanted: Launch,
    project: Project,
    launcher: Path | None = None,
    notes: Sequence[Finding] = (),
) -> ProgramPreflight:
    """Check a program of the user's; `launcher` is the script that was given, and `notes` are findings on it."""
    program = program.replace(**request.program)
    args = (*program.args, *request.words())
    if asks_for_help(False, args):
        raise LaunchError(
            f"--help: trains nothing, so nothing was started; python {program.module or program.script} --help prints "
            "the program's flags"
        )
    cwd = _working_directory(program, project.root)
    with as_launch_error():
        program.with_copies(args, program.config_copies(cwd))
        for config, values in program.config_changes(cwd).values():
            changed_config(config, values)
    wanted, interpreter, source, found = _placed_program(program, wanted, project.root, cwd)
    placement = placed(wanted, interpreter, found)
    what = program.module or shorter(str(source), project.root)
    where = "the project's folder" if cwd == project.root else shorter(str(cwd), project.root)
    runs = os.path.relpath(project.runs, cwd) if cwd.is_relative_to(project.root) else project.runs
    found = [ok("program", f"{shown(what, 200)}, started in {where}; its run is kept in {runs}"), *found]
    declared = None if source is None else known_arguments(source, interpreter, cwd, program.module)
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
    told = {"num_epochs": num_epochs(args, declared), "default_folders": default_folders(args, declared)}
    plan = {**told, "program": program.model_dump(include={"checkpoints"})}
    found = [*notes, *found, *placement.findings, *check_host_name(placement.launch)]
    found += [*check_cores(placement, project.runs), check_disk(project.runs, None)]
    found += check_outputs(project.runs, cwd, args, plan)
    return ProgramPreflight(
        request=request,
        script=script,
        name=request.run_name(str(program.module) if program.module or script == cwd else _name_of(script, project)),
        project=project,
        cwd=cwd,
        args=args,
        placement=placement,
        findings=tuple(found),
        source=source,
        program=program,
        by_arguments={**told, "resume_guess": guess},
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


def shorter(word: str, folder: Path) -> str:
    """Return a path relative to a folder, if it lies there."""
    return str(Path(word).relative_to(folder)) if Path(word).is_relative_to(folder) else word
