"""What can be known before a process is started: whether a launch can work, and by which command.

torch is looked at as files on disk and never imported.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError, DataError, LaunchError, NotPlainError, ProjectError, ScriptError, plural, shown
from nbtools.launcher import findings as report
from nbtools.launcher.findings import Finding
from nbtools.launcher.sizes import checkpoint_bytes
from nbtools.launcher.step_count import schedule
from nbtools.machine.devices import (
    GLOO_INTERFACE,
    Device,
    cuda_version,
    devices,
    driver_version,
    loopback,
    num_cores,
)
from nbtools.project import Project, find_project, located
from nbtools.recipes import Source, recipe_of
from nbtools.script.script import Script, parse_script
from nbtools.script.torchrun import as_shell, torchrun_command

_COUNTED_BYTES = 4 * 2**20
"""What a preflight counts within a second; the samples of a larger dataset are counted by form and training."""


@dataclass(frozen=True, repr=False)
class Preflight:
    """A launch that was checked and can be started. Shows itself: a line for everything that was found out."""

    script: Path
    name: str
    recipe: str | None
    """Key of the recipe if the script is a plain one of ours; None for every other script."""
    config: TrainConfig | None
    """Its values with the flags in `args` applied; None for every other script."""
    project: Project
    cwd: Path
    launch: Launch
    """As it will be: the call's values over the script's over the defaults, GPUs chosen."""
    args: tuple[str, ...]
    environment: dict[str, str]
    """What is set beside the caller's environment (the run's own variables come on top)."""
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a launch says before it starts: the findings that are not well, as sentences."""
        return tuple(finding.sentence for finding in self.findings if finding.level == "warn")

    @property
    def _title(self) -> str:
        but = f", {plural(len(self.warnings), 'warning')}" if self.warnings else ""
        return f"{self.script.name}: ready to launch{but}"

    def __repr__(self) -> str:
        return report.render_text(self._title, self.findings)

    def _repr_html_(self) -> str:
        return report.render_html(self._title, self.findings)

    def command(self, run: Path | None = None) -> list[str]:
        """The exact command, for a run directory; with `runs/ID` in its place while there is none."""
        run = run or self.project.runs / "ID"
        script = run / "script.py" if self.recipe else self.script
        return torchrun_command(
            script, self.launch, run=run, args=self.args, has_shutdown_timeout=_has_shutdown_timeout()
        )


def preflight(
    script: str | Path,
    *,
    nproc_per_node: int | None = None,
    gpus: Sequence[int] | None = None,
    args: Sequence[str] = (),
    omp_num_threads: int | None = None,
    shutdown_timeout_s: int | None = None,
    max_restarts: int | None = None,
) -> Preflight:
    """Check everything that can be known before a process is started, and show it. Arguments are those of `launch`.

    Raises:
        LaunchError: what was given, what is allowed, and what to do.
    """
    checked = check(
        script,
        nproc_per_node=nproc_per_node,
        gpus=gpus,
        args=args,
        omp_num_threads=omp_num_threads,
        shutdown_timeout_s=shutdown_timeout_s,
        max_restarts=max_restarts,
    )
    # What a launch can do without: counting samples takes longer than all checks.
    about_data = [] if checked.config is None else _data_findings(checked.script, checked.config, checked)
    command = report.ok("command", _shell_line(checked))
    return replace(checked, findings=(*checked.findings, *about_data, command))


def check(
    script: str | Path,
    *,
    nproc_per_node: int | None = None,
    gpus: Sequence[int] | None = None,
    args: Sequence[str] = (),
    omp_num_threads: int | None = None,
    shutdown_timeout_s: int | None = None,
    max_restarts: int | None = None,
) -> Preflight:
    """Do what `preflight` does, but leave the data uncounted: what every launch begins with.

    Raises:
        LaunchError: what was given, what is allowed, and what to do.
    """
    path = _script_path(script)
    plain, notes = _plain_script(path)
    given = {
        "nproc_per_node": nproc_per_node,
        "gpus": None if gpus is None else tuple(gpus),
        "omp_num_threads": omp_num_threads,
        "shutdown_timeout_s": shutdown_timeout_s,
        "max_restarts": max_restarts,
    }
    try:
        wanted = (plain.launch if plain else Launch()).replace(**{k: v for k, v in given.items() if v is not None})
    except ConfigError as error:
        raise LaunchError(str(error)) from None
    arguments = _checked_args(args)
    project = _project_of(path)
    cwd = project.root if path.is_relative_to(project.root) else path.parent
    config = None if plain is None else with_flags(plain, path, arguments, cwd)
    if config is not None:
        _check_config(path, config)
        _source_of(path, config, project)
    resolved, environment, about_machine = on_this_machine(wanted)
    about_config = [] if config is None else list(report.of_training(config, resolved))
    return Preflight(
        script=path,
        name=run_name(path.stem),
        recipe=plain.recipe if plain else None,
        config=config,
        project=project,
        cwd=cwd,
        launch=resolved,
        args=arguments,
        environment=environment,
        findings=(*notes, *about_machine, _disk(project.runs, config), *about_config),
    )


def on_this_machine(wanted: Launch) -> tuple[Launch, dict[str, str], list[Finding]]:
    """Return the launch as it will be here, the environment it gets, and what was found out.

    Raises:
        LaunchError: this machine lacks the GPUs, or the installed torch cannot use them.
    """
    torch = _check_torch(wanted)
    launch, environment, chosen = _with_devices(wanted)
    return launch, environment, [*report.on_devices(launch, chosen), torch]


def command_line(script: str, wanted: Launch) -> str:
    """Return the command that would start `script` (relative to the project) here, as a shell would take it.

    Raises:
        LaunchError: as `on_this_machine`.
    """
    launch, environment, _ = on_this_machine(wanted)
    return as_shell(script, launch, environment, has_shutdown_timeout=_has_shutdown_timeout())


def _shell_line(checked: Preflight) -> str:
    """The command as a shell would take it in the run's working directory."""
    path = checked.script.relative_to(checked.cwd) if checked.script.is_relative_to(checked.cwd) else checked.script
    script = "runs/ID/script.py" if checked.recipe else str(path)
    knows = _has_shutdown_timeout()
    return as_shell(script, checked.launch, checked.environment, checked.args, has_shutdown_timeout=knows)


def run_name(text: str) -> str:
    """Make a part of a run's id of a file name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:64] or "run"


# --- checks --------------------------------------------------------------------------------------


def _script_path(script: str | Path) -> Path:
    if "\0" in str(script):
        raise LaunchError(f"script={str(script)[:80]!r}: holds a NUL byte; give the path of a Python file")
    try:
        path = located(script)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "is no file" if path.exists() else "no such file"
            raise LaunchError(f"script={str(script)[:300]!r}: {what} ({path.parent}); give the path of a Python file")
        source = path.read_bytes()
    except OSError as error:
        raise LaunchError(f"script={str(script)[:300]!r}: cannot be read: {error.strerror}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise LaunchError(f"{path}:{error.lineno or 1}: not Python: {error.msg}; correct that line") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise LaunchError(f"{path}: not Python: {error}") from None
    return path


def _plain_script(path: Path) -> tuple[Script | None, list[Finding]]:
    """Read a script of ours; anybody else's is none of our business."""
    if b"nbtools.recipes" not in path.read_bytes():
        return None, []
    try:
        return parse_script(path), []
    except NotPlainError as error:
        step = "give nproc_per_node and gpus with the call"
        return None, [report.warn("script", f"{error}. Its launch settings are not read", step)]
    except ScriptError as error:
        raise LaunchError(str(error)) from None


def _checked_args(args: Sequence[str]) -> tuple[str, ...]:
    if isinstance(args, str | bytes):
        raise LaunchError(f"args={args!r}: must be a list of strings, one per argument, such as ['--max-steps', '10']")
    for argument in args:
        if not isinstance(argument, str):
            raise LaunchError(f"args: {argument!r} is a {type(argument).__name__}; every argument has to be a string")
        if "\0" in argument:
            raise LaunchError(f"args: {argument[:80]!r} holds a NUL byte, which no command line can carry")
        try:
            os.fsencode(argument)
        except UnicodeEncodeError:
            raise LaunchError(f"args: {argument[:80]!r} cannot be encoded for a command line") from None
    return tuple(args)


def _project_of(script: Path) -> Project:
    try:
        return find_project(script.parent)
    except ProjectError as error:
        if os.environ.get("NBTOOLS_ROOT"):
            raise LaunchError(str(error)) from None
        return Project(script.parent)


def with_flags(plain: Script, path: Path, args: Sequence[str], cwd: Path) -> TrainConfig:
    """Let the training's own parser read the flags: it lives in the training wing, hence in a process of its own."""
    if not args:
        return plain.config
    command = [sys.executable, "-P", "-m", "nbtools.training.engine.flags", str(path), *args]
    parsed = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if parsed.returncode == 2:
        lines = (line.strip(" │") for line in parsed.stderr.splitlines())  # tyro draws a box around its message
        said = "; ".join(line for line in lines if line and not line.startswith(("╭", "─", "╰")))
        raise LaunchError(f"{path.name}: {said.removeprefix(f'{path.name}: error: ')}")
    try:
        return type(plain.config)(**json.loads(parsed.stdout))
    except (ValueError, TypeError):  # --help, or no parser on this machine
        return plain.config


def _check_config(path: Path, config: TrainConfig) -> None:
    try:
        recipe_of(config).refuse(config)
    except ConfigError as error:
        raise LaunchError(f"{path}: {error}") from None


def _source_of(path: Path, config: TrainConfig, project: Project) -> Source:
    """Find the files that will be read, and see that they can be."""
    try:
        source = recipe_of(config).source(config, project.root)
    except DataError as error:
        raise LaunchError(f"{path}: {error}") from None
    for file in source.files:
        if not os.access(file, os.R_OK):
            raise LaunchError(f"{path}: dataset {shown(source.name)}: {file} cannot be read; change its permissions")
    return source


def _data_findings(path: Path, config: TrainConfig, checked: Preflight) -> list[Finding]:
    source = _source_of(path, config, checked.project)
    try:
        world_size, root = checked.launch.nproc_per_node, checked.project.root
        counted = schedule(config, world_size, root=root, largest_bytes=_COUNTED_BYTES)
        return list(report.of_data(config, source, counted))
    except (DataError, OSError) as error:
        raise LaunchError(f"{path}: {error}") from None


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")  # finds, does not import
    if spec is None or spec.origin is None:
        raise LaunchError(f"torch is not installed in {sys.prefix}: bash scripts/lab.sh --setup-only installs it")
    return Path(spec.origin).parent


def _has_shutdown_timeout() -> bool:
    return "--shutdown-timeout" in (_torch_folder() / "distributed" / "run.py").read_text(encoding="utf-8")


def _check_torch(wanted: Launch) -> Finding:
    """Refuse to train on the CPU by accident, where there are GPUs that this build of torch cannot use."""
    version = (_torch_folder() / "version.py").read_text(encoding="utf-8")
    # Builds for CUDA and ROCm alike say there which one they are for.
    builds = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([^'\"]*)", version, re.MULTILINE))
    kind = "CPU" if not builds else f"CUDA {builds['cuda']}" if "cuda" in builds else f"ROCm {builds['hip']}"
    torch = f"torch {importlib.metadata.version('torch')}"
    if wanted.gpus == () or not (found := devices()):
        return report.ok("torch", f"{torch} ({kind} build)")
    if not builds:
        raise LaunchError(
            f"{torch} is a CPU build, but there is {found[0].name} (driver "
            f"{driver_version()}): install a CUDA build of torch, or ask for the CPU with gpus=()"
        )
    if "cuda" not in builds or (newest := cuda_version()) is None:
        return report.ok("torch", f"{torch} ({kind} build), driver {driver_version()}")
    fits = f"driver {driver_version()} supports CUDA {newest[0]}.{newest[1]}"
    # Within a major version every build runs on every driver (CUDA's minor version compatibility).
    if int(builds["cuda"].split(".")[0]) > newest[0]:
        raise LaunchError(
            f"{torch} is built for {kind}, but {fits} at most: update the driver, install a build of torch for "
            f"CUDA {newest[0]}, or ask for the CPU with gpus=()"
        )
    return report.ok("torch", f"{torch} ({kind} build), {fits}")


def _with_devices(wanted: Launch) -> tuple[Launch, dict[str, str], list[Device]]:
    """Choose GPUs and threads; return the launch as it will be, its environment, and its GPUs."""
    threads = wanted.omp_num_threads or max(1, num_cores() // wanted.nproc_per_node)
    environment = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    if wanted.nproc_per_node > 1 and (name := loopback()) and GLOO_INTERFACE not in os.environ:
        environment[GLOO_INTERFACE] = name  # or gloo listens where the host's name points to
    if wanted.gpus == ():
        return wanted.replace(omp_num_threads=threads), {**environment, "CUDA_VISIBLE_DEVICES": ""}, []
    present = {device.index: device for device in devices()}
    if wanted.gpus is None and not present:
        return wanted.replace(omp_num_threads=threads), environment, []
    chosen = _chosen(wanted, present)
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.selector for device in chosen)
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA's own order is another than that of nvidia-smi
    gpus = tuple(device.index for device in chosen)
    return wanted.replace(omp_num_threads=threads, gpus=gpus), environment, chosen


def _chosen(wanted: Launch, present: Mapping[int, Device]) -> list[Device]:
    indices = ", ".join(map(str, present)) or "none"
    if wanted.gpus is None:
        if wanted.nproc_per_node > len(present):
            raise LaunchError(
                f"nproc_per_node={wanted.nproc_per_node}: at most one process per GPU, and the usable GPUs are "
                f"{indices}; lower nproc_per_node, or ask for the CPU with gpus=()"
            )
        return list(present.values())[: wanted.nproc_per_node]
    missing = [index for index in wanted.gpus if index not in present]
    if missing:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        limit = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})"
        raise LaunchError(
            f"gpus={wanted.gpus}: there is no GPU {missing[0]}; usable GPUs: {indices}{limit}; "
            "name others, or ask for the CPU with gpus=()"
        )
    return [present[index] for index in wanted.gpus]


def _disk(runs: Path, config: TrainConfig | None) -> Finding:
    """Refuse a folder that cannot be written, or a disk that has no room for one checkpoint."""
    folder = runs
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise LaunchError(f"{runs}: cannot be written (see {folder}); change its permissions, or set NBTOOLS_ROOT")
    free_bytes = shutil.disk_usage(folder).free
    needed = None if config is None else checkpoint_bytes(config)
    if needed is not None and free_bytes < needed:
        raise LaunchError(
            f"{runs}: {report.size(free_bytes)} free, but a checkpoint of this model takes about "
            f"{report.size(needed)}: nbtools clean frees some, or set NBTOOLS_ROOT to a folder on another disk"
        )
    return report.on_disk(config, free_bytes)
