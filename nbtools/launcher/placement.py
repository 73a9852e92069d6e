"""Resources of a launch on this machine: GPUs, threads, environment, and the torchrun that starts it.

torch is read as files on disk and never imported.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtools.config import Launch
from nbtools.errors import LaunchError, plural
from nbtools.failures import flight_recorder
from nbtools.launcher.checks.findings import Finding, ok, size, warn
from nbtools.machine import network
from nbtools.machine.devices import GLOO_INTERFACE, Device, cuda_version, devices, driver_version, loopback, num_cores
from nbtools.machine.interpreter import Interpreter, own_interpreter
from nbtools.run.records import mapping_at
from nbtools.rundir.json_files import content_of, whole
from nbtools.rundir.process_identity import ProcessIdentity
from nbtools.rundir.program_files.written_files import named_folders
from nbtools.rundir.rundir import RunDir, found_runs, goes_on, has_started, launch_of
from nbtools.script.torchrun import ON_ONE_MACHINE, Meeting, after_options

CORES_TAKEN = "cores taken"
"""Subject of the warning that active runs use the CPU cores, which a launch behind them does not need."""
_OUTPUTS = re.compile(r"out|save|ckpt|checkpoint", re.IGNORECASE)
"""Arguments of folders that are written to, unlike `--data_dir`."""
_JOIN_WITHIN_S = 3600
"""Time in which all machines have to join."""
_DROPPED_PREFIXES = ("JPY_", "TORCHELASTIC_", "PET_", "NBTOOLS_RUN_", "NBTOOLS_ATTEMPT")
_DROPPED = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    # ipykernel's colours; a run writes to a file
    *("CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "GIT_PAGER"),
}


@dataclass(frozen=True)
class Placement:
    """Launch settings resolved for this machine."""

    launch: Launch
    """Launch settings with the chosen GPUs and threads."""
    gpus: tuple[Device, ...]
    """The chosen GPUs; none on the CPU."""
    environment: dict[str, str]
    """Variables set on top of the caller's environment."""
    has_shutdown_timeout: bool
    """Whether the installed torchrun has `--shutdown-timeout`."""
    meeting: Meeting | None
    """Rendezvous endpoint; None for a single machine."""
    interpreter: Interpreter
    """Python interpreter of the processes."""
    findings: tuple[Finding, ...]

    def variables(self, run: RunDir) -> dict[str, str]:
        """Return the environment, and on GPUs the variables of torch's record of the ranks' collectives."""
        if not self.gpus or self.launch.num_processes * self.launch.nnodes == 1:
            return self.environment
        version = self.interpreter.torch_version
        found = flight_recorder.recorder_variables(run, os.environ, version) if version else {}
        return {**self.environment, **found}

    def command(self, program: Sequence[str], run: Path, args: Sequence[str], node: int = 0) -> list[str]:
        """Return the command that starts a program on one machine, without restarts.

        Rank 0 writes to torchrun's output, the other ranks to files below `run/ranks`; the name of the directory `run`
        is the rendezvous id. With `torchrun=False` the program itself is started, once.

        Args:
            program: path of the program, or the words `-m` and the name of its module.
            run: the run directory.
            args: the program's arguments.
            node: number of the machine.
        """
        launch, python = self.launch, self.interpreter
        if launch.torchrun is False:
            return [str(python.path), *program, *args]
        redirects = ",".join(f"{rank}:3" for rank in range(1, launch.num_processes)) if node == 0 else "3"
        if self.meeting is None:
            rendezvous = list(ON_ONE_MACHINE)
        else:
            rendezvous = [f"--node-rank={node}", f"--rdzv-conf=timeout={_JOIN_WITHIN_S}"]
            rendezvous += [f"--master-addr={self.meeting.address}", f"--master-port={self.meeting.port}"]
        return [
            # -P: a random.py in the working directory must not shadow Python's
            *(str(python.path), *python.safe_path, "-m", "torch.distributed.run"),
            *(f"--nnodes={launch.nnodes}", f"--nproc-per-node={launch.num_processes}"),
            *(*rendezvous, f"--rdzv-id={run.name}"),
            "--max-restarts=0",
            *([f"--shutdown-timeout={launch.shutdown_timeout_s}"] if self.has_shutdown_timeout else []),
            f"--log-dir={RunDir(run).node_logs(node)}",
            *([f"--redirects={redirects}"] if redirects else []),
            *after_options(program),
            *args,
        ]

    def shell_line(self, program: Sequence[str], args: Sequence[str] = ()) -> str:
        """Return the command of a program for a shell in the run's working directory, with `runs/ID` for the run."""
        path, *words = self.command(program, Path("runs/ID"), args)
        python = "python" if self.interpreter.is_own else path
        variables = [f"{name}={shlex.quote(text)}" for name, text in self.environment.items()]
        return " ".join([*variables, shlex.join([python, *words])])


def place(wanted: Launch, meeting: Meeting | None = None, interpreter: Interpreter | None = None) -> Placement:
    """Choose GPUs, threads, environment and, for several machines, the rendezvous endpoint for `wanted`.

    Args:
        wanted: the settings.
        meeting: the rendezvous endpoint, on a machine other than the first.
        interpreter: the Python of the processes; that of nbtools when None.

    Raises:
        LaunchError: the machine lacks the GPUs, the installed torch cannot use them, or the machine has no address.
    """
    wanted = wanted.resolved(len(devices()))
    interpreter = interpreter or own_interpreter()
    installed = [] if interpreter.is_own else [ok("python", str(interpreter))]
    has_torch = wanted.torchrun is not False or interpreter.torch_folder is not None
    if has_torch:
        installed.append(_check_torch(wanted, interpreter))
    threads = wanted.omp_num_threads or max(1, num_cores() // wanted.num_processes)
    environment = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    findings: list[Finding] = []
    if wanted.nnodes > 1:
        meeting = meeting or Meeting(*network.meeting_point())
        name = network.interface_towards(meeting.address)  # never the loopback one, at which no other machine listens
        findings.append(ok("machines", f"{wanted.nnodes}, rendezvous at {meeting.address}:{meeting.port} ({name})"))
    else:
        name = loopback() if wanted.num_processes > 1 else None
    if name and GLOO_INTERFACE not in os.environ:
        environment[GLOO_INTERFACE] = name  # by default gloo listens on the address of the host's name
    chosen = _choose_gpus(wanted)
    launch = wanted.replace(omp_num_threads=threads)
    if chosen:
        launch = launch.replace(gpus=tuple(device.index for device in chosen))
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.selector for device in chosen)
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA's default order differs from that of nvidia-smi
    elif wanted.gpus == ():
        environment["CUDA_VISIBLE_DEVICES"] = ""
    findings += [*_describe_devices(launch, chosen), *installed]
    has_shutdown_timeout = has_torch and "--shutdown-timeout" in interpreter.torch_text("distributed/run.py")
    if not interpreter.is_own:
        launch = launch.replace(python=str(interpreter.path))
    return Placement(launch, tuple(chosen), environment, has_shutdown_timeout, meeting, interpreter, tuple(findings))


def child_environment(environment: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's environment plus `ours`, without the variables of a kernel or an outer torchrun."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _DROPPED
        and not name.startswith(_DROPPED_PREFIXES)
        and not (name == "MPLBACKEND" and value.startswith("module://"))
    }
    return {**kept, **ours}


def _choose_gpus(wanted: Launch) -> list[Device]:
    """Return the GPUs of a launch; none on the CPU."""
    if wanted.gpus == ():
        return []
    present = {device.index: device for device in devices()}
    if wanted.gpus is not None:
        if missing := [index for index in wanted.gpus if index not in present]:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            limit = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
            raise LaunchError(
                f"gpus={wanted.gpus}: there is no GPU {missing[0]}; usable GPUs: "
                f"{', '.join(map(str, present)) or 'none'}{limit}; name others, or select the CPU with gpus=()"
            )
        return [present[index] for index in wanted.gpus]
    if present and wanted.num_processes > len(present):
        raise LaunchError(
            f"nproc_per_node={wanted.num_processes}: at most one process per GPU, and the usable GPUs are "
            f"{', '.join(map(str, present))}; lower nproc_per_node, or select the CPU with gpus=()"
        )
    return list(present.values())[: wanted.num_processes]


def _describe_devices(launch: Launch, chosen: Sequence[Device]) -> Iterator[Finding]:
    """Report where the processes run, and which processes hold memory there."""
    processes = plural(launch.num_processes, "process")
    threads = plural(launch.omp_num_threads or 1, "thread")
    if not chosen:
        yield ok("devices", f"CPU: {processes} with {threads} each, {plural(num_cores(), 'core')}")
        return
    names = ", ".join(sorted({device.name for device in chosen}))
    free = sum(device.memory_total_bytes - device.memory_used_bytes for device in chosen)
    indices = ",".join(str(device.index) for device in chosen)
    yield ok("devices", f"GPU {indices} ({names}): {processes} with {threads} each, {size(free)} free")
    for device in chosen:
        if device.holders:
            is_caller = any(holder.is_caller for holder in device.holders)
            step = "restart this kernel to free it, or choose other GPUs" if is_caller else ""
            text = f"GPU {device.index} ({device.name}) is in use: {', '.join(map(str, device.holders))}"
            yield warn("devices", text, step)
    if len(chosen) > launch.num_processes:
        idle = ", ".join(str(device.index) for device in chosen[launch.num_processes :])
        yield warn("devices", f"nproc_per_node={launch.num_processes} leaves GPU {idle} idle")


def check_cores(placed: Placement, runs: Path) -> Iterator[Finding]:
    """Warn of a launch on the CPU for which the cores, or those that active runs in `runs` leave free, are too few."""
    wanted, cores = placed.launch.num_processes, num_cores()
    if placed.gpus or placed.launch.cluster is not None:
        return
    if wanted > cores:
        text = f"{plural(wanted, 'process')} on {plural(cores, 'CPU core')}, so they slow each other down"
        yield warn("cores", text, "lower nproc_per_node")
        return
    active: dict[str, int] = {}
    for run in map(RunDir, found_runs(runs)):
        process = ProcessIdentity.from_json(content_of(run.process)) if goes_on(run) else None
        if process is not None and process.is_here and has_started(run):
            active[run.id] = whole(mapping_at(launch_of(run.path), "launch").get("nproc_per_node")) or 1
    if active and wanted + (taken := sum(active.values())) > cores:
        newest = max(active)
        text = f"{plural(taken, 'process')} of {plural(len(active), 'active run')} on {plural(cores, 'CPU core')}"
        yield warn(CORES_TAKEN, text, f"after='{newest}' (--after {newest}) waits")


def check_outputs(runs: Path, cwd: Path, args: Sequence[str], plan: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of active runs in `runs` that write to the folders of a program, by their arguments and their `plan`s."""
    own = named_folders({**plan, "cwd": str(cwd)}, args)
    own = {flag: folder for flag, folder in own.items() if _OUTPUTS.search(flag)}
    for run in map(RunDir, found_runs(runs)) if own else ():
        theirs = named_folders(launch_of(run.path) if goes_on(run) else {})
        for flag in (flag for flag, folder in own.items() if folder in theirs.values()):
            folder = Path(own[flag])
            name = folder.relative_to(cwd) if folder.is_relative_to(cwd) else folder
            text = f"{name}: {run.id} writes its files there, too, so the runs may overwrite each other's"
            yield warn("outputs", text, f"name another folder with {flag}" if flag[0] == "-" else "name another folder")


def check_host_name(launch: Launch) -> Iterator[Finding]:
    """Say of a launch with torchrun on this machine if the machine's name has no address."""
    if launch.torchrun is False or launch.cluster is not None or not (name := network.unresolved_name()):
        return
    text = f"{name}, the name of this machine, has no address in /etc/hosts or by a name server"
    if launch.nnodes == 1:
        yield ok("host name", f"{text}; runs on one machine need none, torchrun by hand needs --local-addr=127.0.0.1")
    else:
        yield warn("host name", text, f"add it to /etc/hosts on all {launch.nnodes} machines")


def _check_torch(wanted: Launch, interpreter: Interpreter) -> Finding:
    """Refuse a build that cannot use the GPUs of this machine."""
    version = interpreter.torch_text("version.py")
    # Builds for CUDA and for ROCm name their platform there.
    builds = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([^'\"]*)", version, re.MULTILINE))
    kind = "CPU" if not builds else f"CUDA {builds['cuda']}" if "cuda" in builds else f"ROCm {builds['hip']}"
    torch = f"torch {interpreter.torch_version}"
    if wanted.gpus == () or not (found := devices()):
        return ok("torch", f"{torch} ({kind} build)")
    if not builds:
        raise LaunchError(
            f"{torch} is a CPU build, but this machine has {found[0].name} (driver {driver_version()}): "
            "install a CUDA build of torch, or select the CPU with gpus=()"
        )
    if "cuda" not in builds or (newest := cuda_version()) is None:
        return ok("torch", f"{torch} ({kind} build), driver {driver_version()}")
    fits = f"driver {driver_version()} supports CUDA {newest[0]}.{newest[1]}"
    # Within a major version every build runs on every driver (CUDA's minor version compatibility).
    if int(builds["cuda"].split(".")[0]) > newest[0]:
        raise LaunchError(
            f"{torch} is built for {kind}, but {fits} at most: update the driver, install a build of torch for "
            f"CUDA {newest[0]}, or select the CPU with gpus=()"
        )
    return ok("torch", f"{torch} ({kind} build), {fits}")
