"""`nbtools new`: writes the script of a recipe, or the launcher script of a program."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from nbtools.cli.parser import complain, shortest
from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError
from nbtools.launcher.sbatch import Cluster, on_cluster, script_text
from nbtools.machine.interpreter import named_executable
from nbtools.project import Project, find_project
from nbtools.recipes import recipe_named
from nbtools.script.compat.aliases import assigned
from nbtools.script.compat.flat_yaml import read_flat_yaml
from nbtools.script.compat.shell import check_shell_script, shell_text
from nbtools.script.inspection import python_file
from nbtools.script.program import SECRET_NOTE, Program
from nbtools.script.script import put_in_place, write_script


def write_recipe_script(arguments: argparse.Namespace, cluster: Cluster | None) -> int:
    """Write `scripts/NAME.py` of a recipe, and print its path."""
    if arguments.script_args:
        return complain(f"--: a recipe has values, not arguments; write --set FIELD=VALUE, not {arguments.script_args}")
    recipe = recipe_named(arguments.recipe)
    unfit = {"cwd": "--cwd", "resume_with": "--resume-with"}
    unfit |= {"stop_signal": "--stop-signal", "torchrun": "--no-torchrun"}
    for name, flag in unfit.items():
        if (given := getattr(arguments, name)) is not None:
            what = "" if given is False else f", not {given!r}"
            return complain(f"{flag}: is for a program, not for a recipe; leave it out{what}")
    plain = recipe.config_class(), Launch()
    config, launch = plain if arguments.preset is None else recipe.preset(arguments.preset)
    old = None if arguments.from_yaml is None else read_flat_yaml(Path(arguments.from_yaml), type(config))
    asked, notes = config.uncapped({**(old.values if old else {}), **assigned(type(config), arguments.values)})
    config = config.replace(**asked)
    launch = on_cluster(launch, cluster, **_settings(arguments))
    unknown, remarks = (old.unknown, old.remarks) if old else ({}, ())
    kept = [f"{arguments.from_yaml}: {key}: {why}; kept as a comment at the end" for key, why in unknown.items()]
    if old and old.values:
        kept.insert(0, f"{arguments.from_yaml}: took {', '.join(old.taken)}")
    return _write(arguments, config, launch, find_project(missing_ok=True), [*notes, *kept], remarks)


def write_launcher_script(arguments: argparse.Namespace, cluster: Cluster | None) -> int:
    """Write `scripts/NAME.py` that launches a program of the user's with its arguments, and print its path."""
    unfit = {"preset": "--preset", "from_yaml": "--from-yaml", "values": "--set", "sh": "--sh"}
    if given := [flag for name, flag in unfit.items() if getattr(arguments, name)]:
        step = "its own arguments go after --" if given[0] == "--set" else "leave it out"
        return complain(f"{given[0]}: is for a recipe, not for a program; {step}")
    project = find_project(missing_ok=True)
    program = Program(
        script=None if arguments.module else _in_project(python_file(arguments.recipe), project),
        module=arguments.recipe if arguments.module else None,
        args=tuple(arguments.script_args),
        cwd=None if arguments.cwd is None else _in_project(Path(arguments.cwd).absolute(), project),
        resume=tuple(arguments.resume_with or ()),
        stop_signal=arguments.stop_signal or "SIGTERM",
    )
    if (folder := program.folder(project.root)) is not None and not folder.is_dir():
        raise ConfigError(f"--cwd {arguments.cwd}: no such folder ({folder}); give an existing one")
    launch = on_cluster(Launch(), cluster, **_settings(arguments))
    return _write(arguments, program, launch, project, [SECRET_NOTE] if program.has_secrets else [])


def _write(
    arguments: argparse.Namespace,
    content: TrainConfig | Program,
    launch: Launch,
    project: Project,
    notes: Sequence[str],
    remarks: Sequence[str] = (),
) -> int:
    """Write a script with the files beside it that the call asks for, and print their paths and the notes."""
    if arguments.sbatch and launch.cluster is None:
        return complain("--sbatch: is for a script with --cluster slurm; add that, or leave --sbatch out")
    name, force = arguments.name, arguments.force
    if launch.python is not None and launch.cluster is None:  # on a cluster it may be elsewhere
        named_executable(launch.python, project.root)
    texts = {".sh": shell_text(name, launch, arguments.recipe)} if arguments.sh else {}
    texts |= {".sbatch": script_text(name, launch)} if arguments.sbatch else {}
    beside = {project.script(name).with_suffix(suffix): text for suffix, text in texts.items()}
    for path, text in beside.items() if not force else ():  # before any file is written
        check_shell_script(path, text)
    print(shortest(write_script(content, name, launch, project=project, overwrite=force, remarks=remarks)))
    for path, text in beside.items():
        put_in_place(path, text.encode(), mode=0o755)
        print(shortest(path))
    for note in (*notes, *_made_project(project)):
        complain(f"note: {note}", 0)
    return 0


def _settings(arguments: argparse.Namespace) -> dict[str, object]:
    given = {name: getattr(arguments, name) for name in ("nproc_per_node", "gpus", "nnodes", "python", "torchrun")}
    return {name: value for name, value in given.items() if value is not None}


def _in_project(path: Path, project: Project) -> str:
    """Return a path relative to the project's root, if it lies in the project."""
    path = Path(os.path.normpath(path))
    return str(path.relative_to(project.root) if path.is_relative_to(project.root) else path)


def _made_project(project: Project) -> list[str]:
    """Make a folder with scripts a project, which has runs/ or pyproject.toml; return a note on that."""
    if os.path.lexists(project.runs) or (project.root / "pyproject.toml").is_file():
        return []
    project.runs.mkdir()
    return [f"{project.root} is a project of nbtools now: it has scripts/ and runs/"]
