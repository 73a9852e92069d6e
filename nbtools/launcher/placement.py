"""Where a launch runs on this machine: GPUs, threads, environment, and the torchrun that starts it.

torch is read as files on disk and never imported.
"""

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbtools.config import Launch, TrainConfig
from nbtools.errors import LaunchError, plural
from nbtools.launcher.findings import Finding, ok, size, warn
from nbtools.launcher.sizes import checkpoint_bytes, num_checkpoints_kept
from nbtools.machine.devices import GLOO_INTERFACE, Device, cuda_version, devices, driver_version, loopback, num_cores
from nbtools.script.torchrun import torchrun_command


@dataclass(frozen=True)
class Placement:
    """Launch settings resolved for this machine."""

    launch: Launch
    """With GPUs and threads chosen."""
    gpus: tuple[Device, ...]
    """The chosen GPUs; none on the CPU."""
    environment: dict[str, str]
    """Variables set on top of the caller's environment."""
    has_shutdown_timeout: bool
    """Whether the installed torchrun has `--shutdown-timeout`."""
    findings: tuple[Finding, ...]

    def command(self, script: Path, run: Path, args: Sequence[str]) -> list[str]:
        """Return the torchrun command of `script` for a run directory."""
        return torchrun_command(script, self.launch, run=run, args=args, has_shutdown_timeout=self.has_shutdown_timeout)

    def shell_line(self, script: Path, args: Sequence[str] = ()) -> str:
        """Return the command of `script` for a shell in the run's working directory, with `runs/ID` for the run."""
        _, *words = self.command(script, Path("runs/ID"), args)  # without the path of this interpreter
        variables = [f"{name}={shlex.quote(text)}" for name, text in self.environment.items()]
        return " ".join([*variables, shlex.join(["python", *words])])


def place(wanted: Launch) -> Placement:
    """Choose GPUs, threads and environment for `wanted` on this machine.

    Raises:
        LaunchError: the machine lacks the GPUs, or the installed torch cannot use them.
    """
    wanted = wanted.resolved(len(devices()))
    torch_folder = _torch_folder()
    torch = _check_torch(wanted, (torch_folder / "version.py").read_text(encoding="utf-8"))
    threads = wanted.omp_num_threads or max(1, num_cores() // wanted.num_processes)
    environment = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
    if wanted.num_processes > 1 and (name := loopback()) and GLOO_INTERFACE not in os.environ:
        environment[GLOO_INTERFACE] = name  # by default gloo listens on the address of the host's name
    chosen = _choose_gpus(wanted)
    launch = wanted.replace(omp_num_threads=threads)
    if chosen:
        launch = launch.replace(gpus=tuple(device.index for device in chosen))
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(device.selector for device in chosen)
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA's default order differs from that of nvidia-smi
    elif wanted.gpus == ():
        environment["CUDA_VISIBLE_DEVICES"] = ""
    torchrun = (torch_folder / "distributed" / "run.py").read_text(encoding="utf-8")
    findings = (*_describe_devices(launch, chosen), torch)
    return Placement(launch, tuple(chosen), environment, "--shutdown-timeout" in torchrun, findings)


def check_disk(runs: Path, config: TrainConfig | None) -> Finding:
    """Compare the free bytes where the runs are with what the run keeps.

    Raises:
        LaunchError: the folder is not writable, or the disk has no room for one checkpoint.
    """
    folder = runs
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise LaunchError(f"{runs}: cannot be written (see {folder}); change its permissions, or set NBTOOLS_ROOT")
    free_bytes = shutil.disk_usage(folder).free
    free = f"{size(free_bytes)} free in runs/"
    each = None if config is None else checkpoint_bytes(config)
    if config is None or each is None:
        return ok("disk", f"{free}; the size of this training's checkpoints is not known")
    if free_bytes < each:
        raise LaunchError(
            f"{runs}: {size(free_bytes)} free, but a checkpoint of this model takes about {size(each)}: "
            "nbtools clean frees some, or set NBTOOLS_ROOT to a folder on another disk"
        )
    count = num_checkpoints_kept(config)
    text = f"{free}, {plural(count, 'checkpoint')} of about {size(each)} at once: {size(count * each)}"
    if free_bytes >= count * each:
        return ok("disk", text)
    return warn("disk", text, "nbtools clean frees some; keep_last and keep_best set how many are kept")


# --- GPUs -----------------------------------------------------------------------------------------


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


# --- torch ----------------------------------------------------------------------------------------


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")  # finds, does not import
    if spec is None or spec.origin is None:
        raise LaunchError(f"torch is not installed in {sys.prefix}: bash scripts/lab.sh --setup-only installs it")
    return Path(spec.origin).parent


def _check_torch(wanted: Launch, version: str) -> Finding:
    """Refuse a build that cannot use the GPUs of this machine; `version` is the text of torch's `version.py`."""
    # Builds for CUDA and ROCm alike name their platform there.
    builds = dict(re.findall(r"^(cuda|hip)\b[^=\n]*= *['\"]([^'\"]*)", version, re.MULTILINE))
    kind = "CPU" if not builds else f"CUDA {builds['cuda']}" if "cuda" in builds else f"ROCm {builds['hip']}"
    torch = f"torch {importlib.metadata.version('torch')}"
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
