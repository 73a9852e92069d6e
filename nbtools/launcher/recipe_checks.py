"""The check of a recipe's script: its values, its dataset, its size, and its devices."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtools.config import Launch, TrainConfig
from nbtools.errors import LaunchError, plural, shown
from nbtools.launcher.checks.findings import Finding, epochs, ok, size, warn
from nbtools.launcher.checks.sizes import check_disk, check_shared_memory, check_size
from nbtools.launcher.checks.step_count import evaluation_in_words, schedule
from nbtools.launcher.placement import Placement, check_cores, check_host_name, place
from nbtools.launcher.request import LaunchRequest, Preflight, as_launch_error, noted
from nbtools.launcher.sbatch import place_job
from nbtools.machine.interpreter import Interpreter, interpreter_for, own_interpreter
from nbtools.project import Project
from nbtools.recipes import Source, recipe_of
from nbtools.rundir.rundir import RunDir, is_run
from nbtools.script.script import Script

_COUNTED_BYTES = 4 * 2**20
"""Datasets up to this size are counted within a second; the form and the training count larger ones."""


@dataclass(frozen=True, repr=False, kw_only=True)
class RecipePreflight(Preflight):
    """A checked launch of a recipe's script; one that computes its values has no `config`."""

    def target(self, run: Path) -> list[str]:
        """Return the path of the script, or of its copy in a run directory."""
        return [str(self.script if self.config is None else run / "script.py")]

    def record(self, run: RunDir, script: str) -> dict[str, Any]:
        """Return the metric that chooses the best checkpoint of the recipe."""
        if self.config is None:
            return {}
        recipe = recipe_of(self.config)
        return {"best_by": recipe.best_by, "lower_is_better": recipe.lower_is_better}


def check_recipe(
    request: LaunchRequest, path: Path, plain: Script | None, wanted: Launch, project: Project, notes: Sequence[Finding]
) -> RecipePreflight:
    """Check a recipe's script; `plain` is None if it computes its values, and `notes` are findings on the file."""
    args = request.words()
    if asks_for_help(plain is not None, args):
        shown_by = f"nbtools launch {path.name} -- --help" if plain else f"python {path} --help"
        raise LaunchError(f"--help: trains nothing, so nothing was started; {shown_by} prints the script's flags")
    is_inside = path.is_relative_to(project.root) or is_run(path.parent)
    cwd = project.root if is_inside else path.parent
    interpreter = None if wanted.python is None else interpreter_for(None, wanted.python, project.root)
    config = None if plain is None else with_flags(plain, args, cwd)
    found = list(notes)
    if plain is not None and config is not None:
        with noted(found, "config"), as_launch_error(path):
            recipe_of(config).refuse(config)
        with noted(found, "dataset"):
            _source_of(path, config, project)
        found += _check_lacks(plain, config)
    placement = placed(wanted, interpreter, found)
    found += [*placement.findings, *check_host_name(placement.launch), *check_cores(placement, project.runs)]
    found += [check_disk(project.runs, config), *check_shared_memory(config, placement.launch)]
    if config is not None:
        is_known = wanted.cluster is None and placement.findings
        found += check_size(config, placement.launch.world_size, placement.gpus if is_known else None)
    return RecipePreflight(
        request=request,
        script=path,
        name=request.run_name(path.stem),
        project=project,
        cwd=cwd,
        args=args,
        placement=placement,
        findings=tuple(found),
        source=path,
        config=config,
    )


def placed(wanted: Launch, interpreter: Interpreter | None, found: list[Finding]) -> Placement:
    """Place a launch; one that is refused, with the reason in `found`, gets neither GPUs nor variables."""
    with noted(found, "devices"):
        return place(wanted, None, interpreter) if wanted.cluster is None else place_job(wanted, interpreter)
    return Placement(wanted.resolved(0), (), {}, False, None, interpreter or own_interpreter(), ())


def asks_for_help(has_recipe: bool, args: Sequence[str]) -> bool:
    """Whether the arguments ask a script for its help; `-h` may mean something else to a script without a recipe."""
    return "--help" in args or (has_recipe and "-h" in args)


def flags_of(path: Path, args: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the parser of a recipe's flags on a script, as the training does before it imports torch."""
    command = [sys.executable, "-P", "-m", "nbtools.training.engine.flags", str(path), *args]
    return subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def with_flags(plain: Script, args: Sequence[str], cwd: Path) -> TrainConfig:
    """Return a script's config with flags, parsed by the training's own parser; LaunchError if it refuses one."""
    if not args:
        return plain.config
    parsed, name = flags_of(plain.path, args, cwd), plain.path.name
    if parsed.returncode == 2:
        lines = (line.strip(" │") for line in parsed.stderr.splitlines())  # tyro draws a box around its message
        message = "; ".join(line for line in lines if line and not line.startswith(("╭", "─", "╰")))
        raise LaunchError(f"{name}: {message.removeprefix(f'{name}: error: ')}")
    try:
        return type(plain.config)(**json.loads(parsed.stdout))
    except (ValueError, TypeError):  # --help, or the training packages are not installed
        return plain.config


def check_data(checked: Preflight) -> list[Finding]:
    """Report the dataset and the number of steps; counting the samples takes longer than all other checks."""
    config, root = checked.config, checked.project.root
    if config is None:
        return []
    source = _source_of(checked.script, config, checked.project)
    with as_launch_error(checked.script):
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


def _source_of(path: Path, config: TrainConfig, project: Project) -> Source:
    """Find the files of a dataset and check that they are readable."""
    with as_launch_error(path):
        source = recipe_of(config).source(config, project.root)
    for file in source.files:
        if not os.access(file, os.R_OK):
            raise LaunchError(f"{path}: dataset {shown(source.name)}: {file} cannot be read; change its permissions")
    return source


def _check_lacks(plain: Script, config: TrainConfig) -> list[Finding]:
    """Report the fields that a script does not name: an older nbtools wrote it, or it was edited."""
    lacks = [name for name in plain.lacks if name in type(config).model_fields]
    if not lacks:
        return []
    values = ", ".join(f"{name}={shown(getattr(config, name), 40)}" for name in lacks)
    text = f"{plain.path.name} does not name {plural(len(lacks), 'field')}, so today's values apply: {values}"
    if plain.hand_edited:
        return [ok("script", text)]
    return [warn("script", text, "an earlier nbtools wrote it; write it again (form, nbtools new) to fix them")]
