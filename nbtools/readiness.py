"""What can be known before a process is started: whether a launch can work, and by which command.

torch is looked at as files on disk and never imported.
"""

import importlib.metadata
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtools import corpus
from nbtools.config import Launch
from nbtools.devices import Device, devices, driver_version, num_cores
from nbtools.errors import ConfigError, DataError, LaunchError, NotPlainError, ProjectError, ScriptError
from nbtools.project import Project, find_project, located
from nbtools.script import Script, parse_script


@dataclass(frozen=True)
class Preflight:
    """A launch that was checked and can be started."""

    script: Path
    name: str
    recipe: str | None
    """Key of the recipe if the script is a plain one of ours; None for every other script."""
    project: Project
    cwd: Path
    launch: Launch
    """As it will be: the call's values over the script's over the defaults, GPUs chosen."""
    args: tuple[str, ...]
    environment: dict[str, str]
    """What is set beside the caller's environment (the run's own variables come on top)."""
    warnings: tuple[str, ...]

    def command(self, run: Path | None = None) -> list[str]:
        """The exact command, for a run directory; with `runs/ID` in its place while there is none."""
        run = run or self.project.runs / "ID"
        script = run / "script.py" if self.recipe else self.script
        return torchrun_command(
            script, self.launch, run=run, args=self.args, has_shutdown_timeout=_has_shutdown_timeout()
        )


def torchrun_command(
    script: str | Path,
    launch: Launch,
    *,
    run: Path,
    args: Sequence[str] = (),
    python: str = sys.executable,
    has_shutdown_timeout: bool = True,
) -> list[str]:
    """Return the command that starts `script` on this machine: no shell, no free port to choose, no restarts.

    Rank 0 writes to torchrun's own output; the other ranks' goes to files below `run/ranks`.

    Args:
        script: what every rank runs.
        launch: number of processes, and how long a stop may take.
        run: the run directory; its name is the rendezvous id.
        args: the script's own arguments.
        python: the interpreter.
        has_shutdown_timeout: whether this torchrun knows `--shutdown-timeout` (torch 2.4 did not).
    """
    redirects = ",".join(f"{rank}:3" for rank in range(1, launch.nproc_per_node))
    return [
        *(python, "-P", "-m", "torch.distributed.run"),  # -P: a random.py in the working directory is not Python's
        *("--nnodes=1", f"--nproc-per-node={launch.nproc_per_node}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", f"--rdzv-id={run.name}"),
        "--max-restarts=0",
        *([f"--shutdown-timeout={launch.shutdown_timeout_s}"] if has_shutdown_timeout else []),
        f"--log-dir={run / 'ranks'}",
        *([f"--redirects={redirects}"] if redirects else []),
        str(script),
        *args,
    ]


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
    """Check everything that can be known before a process is started. Arguments are those of `launch`.

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
    if plain is not None:
        _check_dataset(plain, project)
        _check_flags(path, arguments, cwd)
    resolved, environment, more_notes = on_this_machine(wanted)
    _check_writable(project.runs)
    return Preflight(
        script=path,
        name=run_name(path.stem),
        recipe=plain.recipe if plain else None,
        project=project,
        cwd=cwd,
        launch=resolved,
        args=arguments,
        environment=environment,
        warnings=(*notes, *more_notes),
    )


def on_this_machine(wanted: Launch) -> tuple[Launch, dict[str, str], list[str]]:
    """Return the launch as it will be here, the environment it gets, and what the user should know.

    Raises:
        LaunchError: this machine lacks the GPUs, or the installed torch cannot use them.
    """
    _check_torch(wanted)
    return _with_devices(wanted)


def command_line(script: str, wanted: Launch) -> str:
    """Return the command that would start `script` (relative to the project) here, as a shell would take it.

    Raises:
        LaunchError: as `on_this_machine`.
    """
    launch, environment, _ = on_this_machine(wanted)
    command = torchrun_command(
        script, launch, run=Path("runs/ID"), python="python", has_shutdown_timeout=_has_shutdown_timeout()
    )
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(command)])


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


def _plain_script(path: Path) -> tuple[Script | None, list[str]]:
    """Read a script of ours; anybody else's is none of our business."""
    if b"nbtools.recipes" not in path.read_bytes():
        return None, []
    try:
        return parse_script(path), []
    except NotPlainError as error:
        return None, [f"{error}. Its launch settings are not read: give nproc_per_node and gpus with the call"]
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


def _check_dataset(plain: Script, project: Project) -> None:
    dataset = getattr(plain.config, "dataset", None)
    if isinstance(dataset, str):
        try:
            corpus.files_in(corpus.resolve(dataset, project.root))
        except DataError as error:
            raise LaunchError(f"{plain.path}: {error}") from None


def _check_flags(script: Path, args: Sequence[str], cwd: Path) -> None:
    """Let the training's own parser read the flags: it lives in the training wing, hence in a process of its own."""
    if not args:
        return
    command = [sys.executable, "-P", "-m", "nbtools.training.flags", str(script), *args]
    parsed = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if parsed.returncode == 2:
        lines = (line.strip(" │") for line in parsed.stderr.splitlines())  # tyro draws a box around its message
        said = "; ".join(line for line in lines if line and not line.startswith(("╭", "─", "╰")))
        raise LaunchError(f"{script.name}: {said.removeprefix(f'{script.name}: error: ')}")


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")  # finds, does not import
    if spec is None or spec.origin is None:
        raise LaunchError(f"torch is not installed in {sys.prefix}: bash scripts/lab.sh --setup-only installs it")
    return Path(spec.origin).parent


def _has_shutdown_timeout() -> bool:
    return "--shutdown-timeout" in (_torch_folder() / "distributed" / "run.py").read_text(encoding="utf-8")


def _check_torch(wanted: Launch) -> None:
    """Refuse to train on the CPU by accident, where there are GPUs that this build of torch cannot use."""
    version = (_torch_folder() / "version.py").read_text(encoding="utf-8")
    # Builds for CUDA and ROCm alike say there which one they are for.
    has_gpu_support = re.search(r"^(cuda|hip)\b[^=\n]*= *['\"]", version, re.MULTILINE) is not None
    if wanted.gpus != () and not has_gpu_support and (found := devices()):
        raise LaunchError(
            f"torch {importlib.metadata.version('torch')} is a CPU build, but there is {found[0].name} (driver "
            f"{driver_version()}): install a CUDA build of torch, or ask for the CPU with gpus=()"
        )


def _with_devices(wanted: Launch) -> tuple[Launch, dict[str, str], list[str]]:
    """Choose GPUs and threads; return the launch as it will be, its environment, and what to tell the user."""
    threads = wanted.omp_num_threads or max(1, num_cores() // wanted.nproc_per_node)
    environment = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    if wanted.gpus == ():
        return wanted.replace(omp_num_threads=threads), {**environment, "CUDA_VISIBLE_DEVICES": ""}, []
    present = {device.index: device for device in devices()}
    if wanted.gpus is None and not present:
        return wanted.replace(omp_num_threads=threads), environment, []
    chosen = _chosen(wanted, present)
    notes = [
        f"GPU {device.index} ({device.name}) is in use: {', '.join(map(str, device.holders))}"
        for device in chosen
        if device.holders
    ]
    if len(chosen) > wanted.nproc_per_node:
        idle = ", ".join(str(device.index) for device in chosen[wanted.nproc_per_node :])
        notes.append(f"nproc_per_node={wanted.nproc_per_node} leaves GPU {idle} idle")
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.selector for device in chosen)
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA's own order is another than that of nvidia-smi
    gpus = tuple(device.index for device in chosen)
    return wanted.replace(omp_num_threads=threads, gpus=gpus), environment, notes


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


def _check_writable(runs: Path) -> None:
    folder = runs
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise LaunchError(f"{runs}: cannot be written (see {folder}); change its permissions, or set NBTOOLS_ROOT")
