"""All checks of a launch before a process is started, and the command that would start it."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from nbtools.config import COMMANDS, Launch
from nbtools.errors import LaunchError, NotPlainError, ProjectError, ScriptError, shown
from nbtools.launcher.checks.findings import Finding, ok, warn
from nbtools.launcher.program_checks import check_program, shorter
from nbtools.launcher.recipe_checks import asks_for_help, check_data, check_recipe, flags_of
from nbtools.launcher.request import LaunchRequest, LaunchSettings, Preflight, as_launch_error, noted, spelled_out
from nbtools.launcher.sbatch import check_site, on_cluster
from nbtools.project import Project, expanded, find_project, project_of_program
from nbtools.rundir.rundir import foreign_owner, is_run, project_of
from nbtools.rundir.secret_values import masked
from nbtools.script.inspection import python_file
from nbtools.script.program import Program
from nbtools.script.script import Script, parse_script


@spelled_out
def preflight(
    script: str | Path | Program, *, args: Sequence[str] = (), **settings: Unpack[LaunchSettings]
) -> Preflight:
    """Check all that can be checked before a process is started, and show it, also what is behind a problem.

    The other arguments are those of `launch` for the script and its processes.

    Raises:
        LaunchError: the script or an argument cannot be read, so that there is nothing to check.
    """
    checked = _collected(LaunchRequest.of(script, settings, args=args))
    found: list[Finding] = []
    with noted(found, "slurm"):
        checked = with_site(checked)
    if not any(finding.subject == "dataset" for finding in checked.findings):
        with noted(found, "dataset"):
            found += check_data(checked)
    checked = replace(checked, findings=(*checked.findings, *found))
    if checked.problems:
        return checked
    path = [shorter(word, checked.cwd) for word in checked.target(Path("runs/ID"))]
    known = type(checked.config).model_fields if checked.config is not None else ()
    if checked.launch.cluster is not None:
        line = "sbatch runs/ID/job.sbatch"
    else:
        args = checked.args_in(Path("runs/ID"))
        line = checked.placement.shell_line(path, masked(args, known))  # notebooks are stored and shared
    return replace(checked, findings=(*checked.findings, ok("command", line)))


def with_site(checked: Preflight) -> Preflight:
    """Add what Slurm says of a launch with `cluster`; LaunchError if it refuses."""
    if checked.launch.cluster is None:
        return checked
    with as_launch_error():
        more = check_site(checked.launch, checked.runs, checked.cwd)
    return replace(checked, findings=(*checked.findings, *more))


def check_launch(request: LaunchRequest) -> Preflight:
    """Check a launch without writing or starting anything; samples of large data are not counted.

    Raises:
        LaunchError: what was given, what is allowed, and the next step.
    """
    checked = _collected(request)
    for said in checked.problems:
        raise LaunchError(said)
    return checked


def help_text(script: str | Path, args: Sequence[str]) -> str | None:
    """Return the flags of a plain script if the arguments ask for them, else None; LaunchError if it is unreadable."""
    path = python_file(script)
    plain, _ = _read_plain(path)
    if plain is None or plain.program or not asks_for_help(True, args):
        return None
    return flags_of(path, ["--help"]).stdout


def _collected(request: LaunchRequest) -> Preflight:
    """Collect the findings of a launch, problems included."""
    if (cwd := request.program.get("cwd")) is not None:
        request = replace(request, program={**request.program, "cwd": str(expanded(cwd).absolute())})
    if isinstance(request.script, Program):
        project = request.project or find_project(missing_ok=True)
        return check_program(request, request.script, _wanted(Launch(), request.settings), project)
    path = python_file(request.script)
    plain, notes = _read_plain(path)
    settings = request.settings
    for name in COMMANDS:
        if plain and getattr(plain.launch, name) and name not in settings and (whose := _not_own(path)):
            settings = {**settings, name: ()}
            notes += [warn(name, f"{path.name} is {whose}, so its {name} is left out; give {name}= with the launch")]
    wanted = _wanted(plain.launch if plain else Launch(), settings)
    if plain and plain.program:
        return check_program(request, plain.program, wanted, _project_of(path), path, notes)
    if plain is None and b"nbtools.recipes" not in path.read_bytes():  # else its values are computed
        with as_launch_error():
            project = _project_of(path) if is_run(path.parent) else project_of_program(path)
        return check_program(request, Program(script=str(path)), wanted, project, path, notes)
    for name, given in request.program.items():
        raise LaunchError(f"{name}={shown(given)}: is for a program, not for the recipe of {path.name}; leave it out")
    return check_recipe(request, path, plain, wanted, _project_of(path), notes)


def _wanted(launch: Launch, settings: Mapping[str, Any]) -> Launch:
    """Return launch settings with the values of a call."""
    given: dict[str, Any] = {name: tuple(value) if name == "gpus" else value for name, value in settings.items()}
    with as_launch_error():
        wanted = on_cluster(launch, given.pop("cluster", None), **given)
    for name in COMMANDS:
        if (words := getattr(wanted, name)) and shutil.which(words[0]) is None:
            raise LaunchError(f"{name}={shown(words)}: there is no such program; give one, or its full path")
    return wanted


def _not_own(path: Path) -> str:
    """Return whose the commands in a script may be, if not this user's; they would be executed."""
    if is_run(path.parent):
        return "the script of a run"
    return f"{owner}'s" if (owner := foreign_owner(path)) else ""


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


def _project_of(script: Path) -> Project:
    try:
        return project_of(script)
    except ProjectError as error:
        if os.environ.get("NBTOOLS_ROOT"):
            raise LaunchError(str(error)) from None
        return Project(script.parent)
