"""Checks of this machine for `nbtools doctor`: versions, devices, backends, folders; problems with a next step."""

import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil

from nbtools import __version__
from nbtools.config import Launch
from nbtools.errors import LaunchError, ProjectError
from nbtools.failures.notify import CONFIG, post
from nbtools.launcher.checks.findings import Finding, Findings, ok, problem, warn
from nbtools.launcher.placement import check_host_name
from nbtools.machine import processes, slurm
from nbtools.machine.devices import Device, devices, driver_version, num_cores
from nbtools.project import find_project, lost_target
from nbtools.rundir.json_files import read_json
from nbtools.script.torchrun import ON_ONE_MACHINE
from nbtools.user_config import config_folder

_PROBE_TIMEOUT_S = 180
_GPU_TESTS = Path(__file__).parents[2] / "tests" / "gpu"
_GPU_TESTS_S, _LAST_TEST_S = 600, 60
_STOPPED = 124  # of timeout
_FRONT_ENDS = {
    "widgets": ("ipywidgets", "@jupyter-widgets/jupyterlab-manager", 3, "no form, no panel"),
    "canvas": ("anywidget", "anywidget", 0, "no panel"),
}
"""Package of the kernel, extension of JupyterLab, what its major version is behind by, and what fails without both."""

# Importing torch takes seconds, and a faulty driver can crash it: a subprocess imports it.
_TORCH_PROBE = """
import json, torch, torch.distributed as dist
facts = {"version": torch.__version__, "build": torch.version.cuda, "error": "", "num_gpus": 0, "nccl_version": "",
         "gloo": dist.is_available() and dist.is_gloo_available(),
         "nccl": dist.is_available() and dist.is_nccl_available()}
try:
    facts["num_gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if facts["nccl"] and facts["num_gpus"]:  # a CPU build has no such attribute
        facts["nccl_version"] = ".".join(map(str, torch.cuda.nccl.version()))
    for number in range(facts["num_gpus"]):
        torch.ones(1, device=f"cuda:{number}").sum().item()
except Exception as error:
    facts["error"] = (str(error).strip() or type(error).__name__).splitlines()[0]
print(json.dumps(facts))
"""


def doctor(*, all_reduce: bool = False, notify: bool = False, gpu_tests: bool = False) -> Findings:
    """Check this machine and this environment, as `nbtools doctor` does.

    Args:
        all_reduce: Also run a collective on two processes, which takes about ten seconds.
        notify: Also send a notice to the address that `Launch.notify_on` uses.
        gpu_tests: Also run the tests of a clone that need GPUs, on all of this machine, for ten minutes at most.

    Raises:
        LaunchError: `gpu_tests` without a clone, without pytest, or without a GPU that torch can use.
    """
    gpus = devices()
    facts = _probe_torch()
    if gpu_tests:
        _check_gpu_tests(facts["num_gpus"] if isinstance(facts, dict) else 0)
    findings = [
        *_versions(),
        *_front_ends(),
        *_machine(gpus),
        *_torch(gpus, facts),
        *check_host_name(Launch()),
        *_folders(),
        *_removed_runs(),
        *_slurm(),
        *([_notice()] if notify else []),
    ]
    if all_reduce and isinstance(facts, dict):
        if facts["gloo"]:
            findings.append(_all_reduce("gloo"))
        if facts["nccl"] and facts["num_gpus"] >= 2:
            findings.append(_all_reduce("nccl"))
    findings += _gpu_tests() if gpu_tests else ()
    return Findings(findings)


def _notice() -> Finding:
    if why := post({"kind": "test", "text": "nbtools doctor: this is a test"}):
        path = config_folder() / f"{CONFIG}.json"
        return problem("notify", f"not sent: {why}", f'{path}, for you alone (chmod 600): {{"address": "https://…"}}')
    return ok("notify", "a test was sent")


def _version(distribution: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return None


def _versions() -> Iterator[Finding]:
    yield ok("python", f"{platform.python_version()} ({sys.executable}) on {platform.platform()}")
    if sys.platform != "linux":
        yield warn("system", f"{sys.platform} is untested", "use Linux for long runs")
    yield ok("nbtools", f"{__version__} ({Path(__file__).parent})")
    for other in _others():
        text = f"the distribution {other} {_version(other)} is another project, and its package has the same name"
        step = f"pip uninstall {other}, which may remove files of this nbtools: then install it again"
        yield problem("nbtools", text, step)
    names = ("transformers", "tokenizers", "numpy", "pydantic", "matplotlib", "jupyterlab", "ipykernel")
    yield ok("packages", ", ".join(f"{name} {version}" for name in names if (version := _version(name))))


def _others() -> list[str]:
    """Names of other installed distributions that are called nbtools, or hold a package of that name."""
    found = {*metadata.packages_distributions().get("nbtools", ()), *(["nbtools"] if _version("nbtools") else ())}
    return sorted(name for name in found if re.sub(r"[-_.]+", "-", name).lower() != "nbtools-ddp")


def _front_ends() -> Iterator[Finding]:
    """Check that kernel and server have the same widgets; a page without anywidget shows pictures."""
    folders = _extension_folders()
    for subject, (package, extension, ahead, lost) in _FRONT_ENDS.items():
        found = [path for folder in folders if (path := Path(folder, extension, "package.json")).is_file()]
        front_end = str((read_json(found[0]) or {}).get("version")) if found else ""
        kernel, where = _version(package), f"pip install -U {package} where JupyterLab runs"
        text = f"kernel: {package} {kernel}"
        if kernel is None:
            yield warn(subject, f"{package} is not installed: {lost}", 'pip install -e ".[notebook]"')
        elif not front_end:
            step = f"{where} (VS Code and Colab have their own)"
            yield warn(subject, f"{text}; none of the server's folders has it: {', '.join(folders)}", step)
        elif not front_end.startswith(f"{int(kernel.partition('.')[0]) - ahead}."):
            yield problem(subject, f"{text}; front end: {front_end}: incompatible versions", f"{where} and here")
        else:
            yield ok(subject, f"{text}; front end: {extension} {front_end}")


def _extension_folders() -> list[str]:
    """Folders of the extensions of the `jupyter` on PATH, which may be another environment's; else of this one's."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        command = ["jupyter", "--paths", "--json"]
        said = subprocess.run(command, capture_output=True, timeout=20, check=True).stdout
        return [f"{folder}/labextensions" for folder in json.loads(said)["data"]]
    return [f"{sys.prefix}/share/jupyter/labextensions"]


def _machine(gpus: list[Device]) -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    text = f"{num_cores()} cores, {memory.total / 2**30:.1f} GiB memory, {memory.available / 2**30:.1f} GiB free"
    yield ok("cpu", text)
    driver = driver_version()
    if driver is None:
        yield ok("gpus", "no NVIDIA driver: CPU processes")
    elif not gpus:
        text = f"driver {driver}, none visible (CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r})"
        yield warn("gpus", text, "unset CUDA_VISIBLE_DEVICES to use them")
    else:
        yield ok("gpus", f"driver {driver}, {len(gpus)} visible")
    for gpu in gpus:
        yield ok(f"gpu {gpu.index}", str(gpu))


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder where no file of the user shadows a module."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, errors="replace", timeout=_PROBE_TIMEOUT_S, cwd="/", env=env
    )


def _probe_torch() -> dict[str, Any] | str | None:
    """Query torch in a subprocess; return its last error line if that fails, None if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    try:
        probe = _run("-W", "ignore", "-c", _TORCH_PROBE)
        facts = json.loads(probe.stdout.splitlines()[-1]) if probe.returncode == 0 else None
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError) as error:
        return str(error)
    return facts if isinstance(facts, dict) else _last_line(probe.stderr) or f"exit code {probe.returncode}"


def _torch(gpus: list[Device], facts: dict[str, Any] | str | None) -> Iterator[Finding]:
    if facts is None:
        yield warn("torch", "not installed: runs can be shown, but not started", 'pip install -e ".[train]"')
        return
    if isinstance(facts, str):
        yield problem("torch", f"cannot be imported: {facts}", "reinstall torch, then run doctor again")
        return
    version, build = facts["version"], f"CUDA {facts['build']}" if facts["build"] else "CPU"
    yield ok("torch", f"{version}, {build} build, {facts['num_gpus']} GPUs usable")
    if facts["error"]:
        yield problem("torch", f"a GPU cannot be used: {facts['error']}", "check nvidia-smi, driver and build")
    elif gpus and not facts["num_gpus"]:
        text = f"driver {driver_version()} has {len(gpus)} GPUs, torch {version} ({build} build) uses none"
        step = "install a torch build for this driver (pytorch.org), or train on the CPU with --gpus none"
        yield problem("torch", text, step)
    if facts["gloo"]:
        yield ok("gloo", "available (CPU collectives)")
    else:
        yield problem("gloo", "missing in this torch: no CPU training", "install a standard torch build")
    if facts["nccl"]:
        version = f" {facts['nccl_version']}" if facts["nccl_version"] else ""
        yield ok("nccl", f"available{version} (GPU collectives)")
    elif gpus:
        yield problem("nccl", "missing in this torch: one GPU at most", "install a CUDA build of torch")


def _folders() -> Iterator[Finding]:
    try:
        project = find_project()
    except ProjectError as error:
        yield problem("project", str(error), "change to the project's folder, or set NBTOOLS_ROOT")
        return
    yield ok("project", str(project.root))
    for folder in (project.scripts, project.runs):
        if lost := lost_target(folder):
            yield problem(f"{folder.name}/", f"{folder} links to {lost}, which does not exist", "mount or make it")
            continue
        existing = folder if folder.is_dir() else project.root
        try:
            with tempfile.NamedTemporaryFile(dir=existing, prefix=".nbtools-doctor-"):
                pass
        except OSError as error:
            step = f"make it writable for {os.environ.get('USER', 'you')}, or set NBTOOLS_ROOT to another folder"
            yield problem(f"{folder.name}/", f"{existing} is not writable: {error.strerror}", step)
            continue
        free = shutil.disk_usage(existing).free
        text = f"{'writable' if existing == folder else 'will be created'}, {free / 2**30:.1f} GiB free"
        if free < 2**30:
            yield warn(f"{folder.name}/", text, "free disk space for checkpoints")
        else:
            yield ok(f"{folder.name}/", text)


def _removed_runs() -> Iterator[Finding]:
    for run in processes.removed_runs():
        text = f"{run.id}: its run directory was removed, and its processes still run"
        yield warn("processes", text, processes.kill_command(run) or "they end now: run the command again")


def _slurm() -> Iterator[Finding]:
    """Report the cluster of this machine; nothing without Slurm. The check of a launch tells its limits."""
    if not slurm.is_available():
        return
    if slurm.own_jobs() is None:
        text = slurm.silence() or "squeue is installed, but fails"
        yield warn("slurm", text, "check SLURM_CONF, or ask the site's administrators; runs on this machine work")
        return
    found = slurm.settings()
    cluster, wait = found.get("ClusterName", "of unknown name"), found.get("KillWait", "of unknown length")
    version = found.get("SLURM_VERSION", "of unknown version")
    yield ok("slurm", f"{version}, cluster {cluster}; {wait} from SIGTERM to SIGKILL (KillWait)")


def _all_reduce(backend: str) -> Finding:
    command = ["-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", *ON_ONE_MACHINE]
    command += ["-m", "nbtools.training.process.all_reduce", backend]
    step = f"try NCCL_DEBUG=INFO or TORCH_DISTRIBUTED_DEBUG=DETAIL with: {' '.join(command)}"
    try:
        done = _run(*command)
    except subprocess.TimeoutExpired:
        return problem("all-reduce", f"{backend}: no answer within {_PROBE_TIMEOUT_S} s", step)
    if done.returncode != 0:  # torchrun's own summary follows the line that names the error
        errors = [line.strip() for line in done.stderr.splitlines() if "Error" in line]
        return problem("all-reduce", f"{backend}: {errors[0][:300] if errors else _last_line(done.stderr)}", step)
    return ok("all-reduce", _last_line(done.stdout))


def _check_gpu_tests(num_gpus: int) -> None:
    if not (_GPU_TESTS.is_dir() and importlib.util.find_spec("pytest")):
        raise LaunchError('--gpu-tests: needs a clone of the repository, and in it pip install -e ".[dev]"')
    if not num_gpus:
        raise LaunchError("--gpu-tests: torch can use no GPU of this machine; nbtools doctor says why")


def _gpu_tests() -> Iterator[Finding]:
    """Run the tests that need GPUs, whose own output goes to stderr, and report each of them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        # At SIGINT pytest ends what the current test has started, and reports.
        limit = ["timeout", "--signal=INT", f"--kill-after={_LAST_TEST_S}", str(_GPU_TESTS_S)]
        command = [*limit, sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu", f"--junitxml={report}"]
        done = subprocess.run(command, cwd=_GPU_TESTS.parents[1], stdin=subprocess.DEVNULL, stdout=2)
        if done.returncode == _STOPPED:
            text = f"stopped after {_GPU_TESTS_S} s: the tests that are not listed here did not run"
            yield problem("gpu tests", text, "free the GPUs, or run python -m pytest -m gpu tests/gpu without a limit")
        if report.is_file():
            yield from _verdicts(report.read_text(encoding="utf-8"))
        else:
            yield problem("gpu tests", f"pytest has ended with code {done.returncode}", "see its output above")


def _verdicts(report: str) -> Iterator[Finding]:
    """Return a finding for each test of a report in JUnit's format: its verdict, time and figures, or why it failed."""
    for case in ElementTree.fromstring(report).iter("testcase"):
        place = f"{case.get('classname', '').rpartition('.')[2]}.py::{case.get('name')}"
        figures = [f"{float(case.get('time', 0)):.1f} s"]
        figures += [f"{one.get('name')} {one.get('value')}" for one in case.iter("property")]
        text = f"{place} ({', '.join(figures)})"
        said = {one.tag: one.get("message", "").strip().splitlines() for one in case}
        if failed := said.get("failure", said.get("error")):
            yield problem("gpu test", f"{text}: {failed[0][:300]}", f"python -m pytest -m gpu tests/gpu/{place}")
        elif "skipped" in said:
            yield warn("gpu test", f"{place}: left out", *said["skipped"][:1])
        else:
            yield ok("gpu test", text)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""
