"""A launch as a Slurm job: its settings, the job script, and checks on the submitting machine.

The machine that submits may have no GPUs and no torch: `nbtools.launcher.job` places the processes on the job's nodes.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nbtools.config import Launch, Slurm
from nbtools.errors import ConfigError, LaunchError, plural, shown
from nbtools.launcher.checks.findings import Finding, ok, warn
from nbtools.launcher.placement import Placement
from nbtools.machine import slurm
from nbtools.machine.file_systems import local_disk
from nbtools.machine.interpreter import Interpreter, own_interpreter
from nbtools.rundir import secret_values
from nbtools.rundir.json_files import FORMAT
from nbtools.rundir.rundir import RunDir, marks_of
from nbtools.settings import complaints
from nbtools.user_config import config_folder

_MARGIN_S = 30
"""Time that a stop takes besides the last checkpoint: the ranks' step, the sweep, the record of the end."""
_LONGEST_NOTICE_S = 65_535
"""Slurm's limit for the seconds of `--signal`."""
_PLAIN = re.compile(r"[\w@%+=:,./&|*()\[\]-]+", re.ASCII)
_HIDDEN = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Devices of the machine that submits; Slurm names those of the job."""


_SHARED = "shared_paths"


# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlurmFlags:
    """Settings of Slurm that a call changes."""

    values: Mapping[str, object]
    is_asked: bool = False
    """Whether the call asks for Slurm itself; the site's defaults then apply to a launch without a cluster."""


Cluster = Slurm | SlurmFlags | Literal["slurm", "none"]
"""The `cluster` argument of a launch: `none` is this machine, `slurm` is Slurm with the settings unchanged."""


def on_cluster(launch: Launch, asked: Cluster | None, **values: Any) -> Launch:
    """Return the settings of a launch with some `values` changed, on Slurm or on this machine; None leaves it there.

    GPUs by index become as many GPUs on each node, and `()` becomes 0, both ways.

    Raises:
        ConfigError: a value is not allowed.
        LaunchError: settings of Slurm were given for a launch on this machine.
    """
    if asked is None:
        return launch.replace(**values)
    before = launch.cluster
    if asked == "none":
        is_on_cpu = before is not None and before.gpus_per_node == 0
        return launch.replace(**{"cluster": None, **({"gpus": ()} if is_on_cpu else {}), **values})
    if isinstance(asked, str):
        asked = SlurmFlags({}, is_asked=True)
    cluster = asked
    if isinstance(cluster, SlurmFlags):
        if before is None and not cluster.is_asked:
            names = ", ".join(f"{name}={value}" for name, value in cluster.values.items())
            raise LaunchError(f"{names}: is for Slurm, and this launch is for one machine; add --cluster slurm")
        cluster = (before or site_defaults()).replace(**cluster.values)
    if not isinstance(cluster, Slurm):
        raise LaunchError(f"cluster={shown(cluster)}: must be Slurm(...), 'slurm', or 'none' for this machine")
    if before is None and launch.gpus is not None and cluster.gpus_per_node is None:
        cluster = cluster.replace(gpus_per_node=len(launch.gpus))
    moved = {} if before is not None else {"gpus": None, "omp_num_threads": None}
    return launch.replace(**{"cluster": cluster, **moved, **values})


def site_file() -> Path:
    """Return the path of the user's file with the site's defaults, which need not exist."""
    return config_folder() / "slurm.toml"


def site_defaults() -> Slurm:
    """Return the settings of Slurm that a new script begins with: those of `site_file()`, else the defaults;
    ConfigError if the file is not TOML, or has an unknown key or a wrong value."""
    return Slurm(**_read_site()[0])


def _read_site() -> tuple[dict[str, Any], tuple[Path, ...]]:
    """Return the fields of Slurm in `site_file()`, and the folders that all nodes see."""
    path = site_file()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; correct it, or remove it") from None
    shared = values.pop(_SHARED, [])
    if not isinstance(shared, list) or not all(isinstance(item, str) and Path(item).is_absolute() for item in shared):
        raise ConfigError(f"{path}: {_SHARED}={shown(shared)}: must be a list of absolute paths")
    if problems := complaints(Slurm, values):
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems.values()))
    return values, tuple(map(Path, shared))


# --- findings -------------------------------------------------------------------------------------


def place_job(wanted: Launch, interpreter: Interpreter | None = None) -> Placement:
    """Describe where a launch with `cluster` runs, by its settings alone.

    Args:
        wanted: the settings.
        interpreter: the Python of the processes; that of nbtools when None.

    Raises:
        LaunchError: the time limit leaves no time, or the preamble is not bash.
    """
    assert wanted.cluster is not None
    launch = wanted.resolved(0)
    limit_s = seconds_of(wanted.cluster.time_limit)
    if limit_s is not None and limit_s <= notice_s(wanted):
        raise LaunchError(
            f"time_limit={wanted.cluster.time_limit}: is {limit_s} s, and the run is asked to end {notice_s(wanted)} s "
            f"before it, for its last checkpoint (shutdown_timeout_s={wanted.shutdown_timeout_s}, and {_MARGIN_S} "
            "more); give a longer time_limit"
        )
    findings = (*_describe_job(launch, wanted.cluster), *_check_preamble(wanted.cluster.preamble))
    python = interpreter or own_interpreter()
    if not python.is_own:
        launch, findings = launch.replace(python=str(python.path)), (*findings, ok("python", str(python)))
    return Placement(launch, (), {"PYTHONUNBUFFERED": "1"}, True, None, python, findings)


def _describe_job(launch: Launch, cluster: Slurm) -> Iterator[Finding]:
    """Report the resources that the job requests."""
    gpus = cluster.gpus_per_node if cluster.gpus_per_node is not None else launch.nproc_per_node
    devices = "the CPU" if cluster.num_gpus(launch.nproc_per_node) == 0 else f"GPUs: {gpus}"
    processes = plural(launch.num_processes, "process")
    yield ok("job", f"{plural(launch.nnodes, 'node')} with {processes} each; {devices} on each node")
    names = ("partition", "account", "qos", "constraint", "time_limit", "cpus_per_task", "mem")
    asked = {name: getattr(cluster, name) for name in names}
    given = ", ".join(f"{name}={value}" for name, value in asked.items() if value is not None)
    default = ", ".join(name for name, value in asked.items() if value is None and name not in ("qos", "constraint"))
    yield ok("slurm", "; ".join(filter(None, [given, default and f"the site's default for {default}"])))
    num_gpus = cluster.num_gpus(launch.nproc_per_node)
    if num_gpus and cluster.cpus_per_task is None:
        text = f"cpus_per_task is not set, and many sites then give a node one core for all {plural(num_gpus, 'GPU')}"
        yield warn("cores", text, "set it to the cores of a node, or to some per GPU, here or in slurm.toml")
    if extra := (num_gpus or launch.num_processes) - launch.num_processes:
        yield warn("job", f"nproc_per_node={launch.num_processes} leaves {plural(extra, 'GPU')} of each node idle")


def _check_preamble(preamble: str) -> Iterator[Finding]:
    if any(secret_values.is_secret("", line) for line in preamble.splitlines()):
        step = "export it in the shell that launches instead: sbatch passes the environment on"
        yield warn("preamble", "a line looks like a secret, and launch.json and job.sbatch show it", step)
    if preamble:
        checked = subprocess.run(["bash", "-n"], input=preamble, capture_output=True, text=True, check=False)
        if checked.returncode != 0:
            said = "; ".join(checked.stderr.replace("bash: ", "").splitlines()[:2])
            raise LaunchError(f"preamble: is not bash: {said}; correct preamble in the form or the script")


def check_site(launch: Launch, *folders: Path) -> list[Finding]:
    """Ask Slurm about a job, and check that its nodes see these folders; LaunchError if Slurm is not here or refuses
    the job, or a folder is on a disk of this machine alone."""
    assert launch.cluster is not None
    host = socket.gethostname()
    if not slurm.is_available():
        raise _not_on_slurm(f"sbatch and squeue are not on the path of {host}")
    if "," in (clusters := os.environ.get("SLURM_CLUSTERS", "")):
        raise LaunchError(
            f"SLURM_CLUSTERS={clusters}: names several clusters, and a run with its later attempts belongs to one; set "
            "SLURM_CLUSTERS to that one"
        )
    start = _expected_start(launch)
    shared = [path.resolve() for path in _read_site()[1]]
    for folder in folders:
        real = folder.resolve()
        disk = None if any(real.is_relative_to(path) for path in shared) else local_disk(real)
        if disk and (is_one := slurm.is_one_machine()) is None:
            raise LaunchError(f"Slurm does not answer ({start.text}): launch again once sinfo answers")
        if disk and not is_one:
            raise LaunchError(
                f"{folder}: is on a local disk of {host} ({disk}), and the nodes of a job need it: use a folder on a "
                f"shared disk; if all nodes see this one, name it in {_SHARED} of {site_file()}"
            )
    return [*_check_kill_wait(launch), start]


def _not_on_slurm(why: str) -> LaunchError:
    step = "launch from a machine with Slurm's commands, or on this machine with cluster='none' (--cluster none)"
    return LaunchError(f"cluster=Slurm(...): {why}: {step}")


def _check_kill_wait(launch: Launch) -> Iterator[Finding]:
    known = re.match("[0-9]+", slurm.settings().get("KillWait", ""))
    if known is None or launch.shutdown_timeout_s <= (wait_s := int(known[0])):
        return
    text = f"shutdown_timeout_s={launch.shutdown_timeout_s}, and Slurm kills {wait_s} s after scancel or a preemption"
    is_default = launch.shutdown_timeout_s == Launch().shutdown_timeout_s
    step = f"a checkpoint that takes longer than {wait_s} s is lost then; nbtools stop waits for it"
    yield ok("stop", text) if is_default else warn("stop", text, step)


def _expected_start(launch: Launch) -> Finding:
    """Ask Slurm when a job would start, with a script that is submitted in no case."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "job.sbatch")
        script.write_text(script_text("nbtools_preflight", launch), encoding="utf-8")
        try:
            return ok("start", slurm.expected_start(script, job_environment(dict(os.environ))))
        except LaunchError as error:
            if _FOR_NOW.search(str(error)):
                return warn("start", f"Slurm cannot start the job now: {error}")
            raise refused(error, launch) from None


_FOR_NOW = re.compile(
    r"available now|are busy|drained|try again|timed out|contact|no answer|node configuration is not available", re.I
)
"""Words of Slurm on a job that may start later, or whose nodes are down, or that asks for more than there are."""


# --- the job script -------------------------------------------------------------------------------


def job_script(run: RunDir, launch: Launch, cwd: Path, after: Sequence[int] = ()) -> str:
    """Return the content of job.sbatch, which starts the run in a job.

    A preamble that fails, and an interpreter that is not there, end the run as FAILED.

    Args:
        cwd: the working directory of the job.
        after: ids of the jobs that must end first.

    Raises:
        LaunchError: a path that Slurm cannot use.
    """
    options = _directives(launch, run.id)
    options += [f"--chdir={_path(cwd)}", f"--output={_path(run.job_log).replace('%', '%%')}"]
    options += [f"--dependency=afterany:{':'.join(map(str, after))}"] if after else []
    values = {"RUN": shlex.quote(str(run.path)), "FORMAT": str(FORMAT)}
    values["MARKS"] = shlex.join(f"{name}={value}" for name, value in marks_of(run).items())
    template = Path(__file__).with_name("job_script.sh").read_text(encoding="utf-8")
    guard = re.sub("@([A-Z]+)@", lambda found: values[found[1]], template)
    return "\n\n".join([_head(options), guard.rstrip("\n"), _body(launch, str(run.path))])


def script_text(name: str, launch: Launch) -> str:
    """Return a job script that runs `scripts/NAME.py`, for sbatch by hand in the project's folder."""
    head = _head(_directives(launch, name))
    return f"""{head}

# In the project's folder: sbatch scripts/{name}.sbatch
{_body(launch, f"scripts/{name}.py")}"""


def _head(options: list[str]) -> str:
    lines = (option if _PLAIN.fullmatch(option) else _quoted(option) for option in options)
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines)])


def _body(launch: Launch, target: str) -> str:
    """Return the lines that do the work: the preamble, and the start of the supervisor in its place."""
    assert launch.cluster is not None
    preamble = f"{launch.cluster.preamble.rstrip()}\n\n" if launch.cluster.preamble.strip() else ""
    return f"set -e\n{preamble}exec {shlex.join([sys.executable, '-P', '-m', 'nbtools.launcher.job', target])}\n"


def _directives(launch: Launch, job_name: str) -> list[str]:
    """Return sbatch's options for a launch."""
    assert launch.cluster is not None
    cluster = launch.cluster
    has_gpus = cluster.num_gpus(launch.nproc_per_node) != 0
    values = {
        "job-name": job_name,
        "nodes": launch.nnodes,
        "ntasks-per-node": 1,
        "gpus-per-node": (cluster.gpus_per_node or launch.nproc_per_node) if has_gpus else None,
        "cpus-per-task": cluster.cpus_per_task,
        **{name: getattr(cluster, name) for name in ("mem", "partition", "account", "qos", "constraint")},
        "time": cluster.time_limit,
        "signal": f"B:TERM@{notice_s(launch)}",  # B: the supervisor alone, which asks the ranks
        "open-mode": "append",  # of a job that is queued again
    }
    given = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [*given, "--requeue" if cluster.requeue else "--no-requeue"]


def notice_s(launch: Launch) -> int:
    """Return how long before the time limit Slurm asks the supervisor to stop."""
    return min(launch.shutdown_timeout_s + _MARGIN_S, _LONGEST_NOTICE_S)


def seconds_of(time_limit: str | None) -> int | None:
    """Return a time limit in seconds, as sbatch reads it; None for none, and for 0, which means no limit."""
    if time_limit is None:
        return None
    days, has_days, clock = time_limit.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if has_days:  # days-hours, with minutes and seconds
        hours, minutes, seconds = [*parts, 0, 0][:3]
    else:  # minutes, minutes:seconds, or hours:minutes:seconds
        hours, minutes, seconds = parts if len(parts) == 3 else [0, *parts, 0][:3]
    return (int(days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds or None


def _path(path: Path) -> str:
    """Return a path for an option of sbatch; LaunchError if it contains a character that sbatch cannot be given."""
    text = str(path)
    if not text.isprintable() or "\\" in text:
        raise LaunchError(f"{text!r}: a job cannot run in a folder whose path has a backslash or control characters")
    return text


def _quoted(text: str) -> str:
    """Return an option for an `#SBATCH` line, which sbatch does not read as a shell does."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def refused(error: LaunchError, launch: Launch) -> LaunchError:
    """Return sbatch's refusal of a job with the setting that it is about."""
    assert launch.cluster is not None
    if re.search("configuration source|^SLURM_CONF=", str(error)):
        return _not_on_slurm(f"no Slurm cluster is configured on {socket.gethostname()} ({error})")
    field, said = slurm.refusal(str(error))
    asked = ("nnodes", "gpus_per_node", "cpus_per_task", "mem", "constraint", "partition")
    names = asked if field is None else (field,)
    values = {"nnodes": launch.nnodes, **dict(launch.cluster)}
    if values["gpus_per_node"] is None:
        values["gpus_per_node"] = f"{launch.nproc_per_node} (nproc_per_node; 0 is the CPU)"
    given = ", ".join(f"{name}={values[name]}" for name in names if values[name] is not None)
    what = names[0] if len(names) == 1 else "one of them"
    return LaunchError(f"{given}: Slurm refuses the job: {said}; change {what} in the form or the script")


def job_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of sbatch, which the job inherits."""
    return {name: value for name, value in environment.items() if name not in _HIDDEN}
