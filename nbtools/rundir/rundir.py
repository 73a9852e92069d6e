"""The run directory: the names of its files, how runs are found, and whose they are.

The directory is the only protocol between the processes of a run and its readers. Each file has one writing process
and is either written once by an atomic rename or appended to. Every JSON file holds `"format": 1`; readers ignore
unknown keys.
"""

import contextlib
import datetime
import errno
import heapq
import itertools
import math
import os
import pwd
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from nbtools.errors import NbtoolsError
from nbtools.project import Project, find_project, lost_target
from nbtools.rundir.atomic import folder_names, retried
from nbtools.rundir.json_files import content_of, file_stamp, finite, kept, read_json, whole
from nbtools.rundir.lock import is_locked
from nbtools.rundir.process_identity import ProcessIdentity

RUN_ID_VARIABLE = "NBTOOLS_RUN_ID"
"""Environment variable that every process of a launched run carries from its start."""
ATTEMPT_VARIABLE = "NBTOOLS_ATTEMPT"
"""Environment variable with the number of the attempt; greater than 1 after an automatic restart."""
RUN_DIR_VARIABLE = "NBTOOLS_RUN_DIR"
"""Environment variable that holds the absolute path of a launched run's directory."""
ROOT_VARIABLE = "NBTOOLS_RUN_ROOT"
"""Environment variable that holds the root of a launched run's project; `runs/` may be a link to another disk."""

_CLOCKS_DIFFER_S = 27 * 3600.0
"""Largest difference between the local times of two machines: their time zones, and summer time."""
_STARTS_WITHIN_S = 10.0
"""Time in which a supervisor that has just been started writes process.json, on a loaded machine."""


def _file(name: str) -> cached_property[Path]:
    """Return an attribute: the path of a file of a run, made at its first access, because a list has thousands."""
    return cached_property(lambda run: run.path / name)


class RunDir:
    """Paths of the files of one run."""

    launch = _file("launch.json")
    """The command: argv, cwd, the relevant environment, versions (launcher, once)."""
    secrets = _file("secrets.json")
    """The secret arguments and variables, which launch.json shows as `***`; mode 0600 (launcher, once, if any)."""
    job_script = _file("job.sbatch")
    """Job script passed to sbatch (launcher, once; a run on this machine has none)."""
    slurm = _file("slurm.json")
    """The Slurm job: `job_id`, `cluster`, `time` of the submission (launcher, once; the supervisor of a job that finds
    no such file)."""
    job = _file("job.json")
    """The newest attempt of a job on its nodes: `command`, `env`, `meeting`, `nodes`, `attempt`, `resume_from`
    (the batch step, before each attempt)."""
    stop_mark = _file("ranks/stop.json")
    """Mark of a requested stop, since a signal has no known sender (the stopping process, before its signal)."""
    job_log = _file("ranks/slurm.log")
    """Output of the job outside torchrun: the preamble's, the supervisor's, and Slurm's own messages."""
    labels = _file("labels.json")
    """The name, tags and note that the owner gave the run: see `nbtools.rundir.names` (the owner's viewers)."""
    files_before = _file("files_before.json")
    """`files`: size and end of each file of rows that stood where a program writes (supervisor, at its start)."""
    script = _file("script.py")
    """The bytes that ran (launcher, once)."""
    source = _file("source.diff")
    """Changes of tracked files since the commit in launch.json, at most 1 MiB; mode 0600 (launcher, once, if any)."""
    templates = _file("templates.json")
    """Texts that the program's source prints, as patterns: `templates` (launcher, once, if any)."""
    configs = _file("configs")
    """Folder of the copy of a program's config file that the launch changed; mode 0600 (launcher, once, if any)."""
    config = _file("config.json")
    """The resolved config: `config`, `overridden`, `derived` (rank 0, once)."""
    process = _file("process.json")
    """The process to signal: a `ProcessIdentity` and its `role` (supervisor, or rank 0 of a run by hand; once)."""
    log = _file("rank0.log")
    """Output of rank 0 and of torchrun; exists from the moment torchrun starts."""
    log_times = _file("rank0.times.jsonl")
    """`[size of rank0.log, time, attempt]` while it grows, if the script is no recipe's (supervisor, appended)."""
    metrics = _file("metrics.jsonl")
    """Metric rows (rank 0, appended)."""
    system = _file("system.jsonl")
    """Use of GPUs, CPU and memory (supervisor, appended)."""
    ranks = _file("ranks")
    """Folder of the heartbeats, and of the other ranks' logs as torchrun lays them out."""
    error = _file("ranks/error.json")
    """Traceback of the first failing rank, written by torch's `@record`."""
    collectives = _file("ranks/nccl_trace_rank_")
    """Start of the names of NCCL's last collectives, a file per rank (torch, when one of them times out)."""
    supervisor_log = _file("ranks/supervisor.log")
    """Output of the supervisor itself; empty unless it failed."""
    checkpoints = _file("checkpoints")
    """Folder of the run's checkpoints."""
    media = _file("media")
    """Samples and charts: see `nbtools.rundir.media` (rank 0, appended)."""
    outputs = _file("outputs")
    """Results of a finished training: `model/`, its history as JSON and as a picture (rank 0, once)."""
    tensorboard = _file("tensorboard")
    """The metric rows as TensorBoard events, with `report_to="tensorboard"` (rank 0, a file per attempt)."""
    wandb = _file("wandb")
    """Files of Weights & Biases, and the `id` and `name` there in `run.json`, with `report_to="wandb"` (rank 0)."""
    profile = _file("profile")
    """`trace.json` and `table.txt` of the profiled steps, with `profile_steps` (rank 0, once)."""
    finished = _file("finished.json")
    """`why` (completed, stopped, failed), last `step`, final `metrics`, `unsaved_since` (rank 0, once)."""
    unsaved = _file("unsaved.json")
    """`step` of a checkpoint that could not be written, and the `error`, until a later one is written (rank 0)."""
    controls = _file("controls.json")
    """Requests that the training takes: `actions`, and `values` by name (rank 0, once; no file if it takes none)."""
    requests = _file("requests")
    """Folder of the requests to the running training, one file each (the owner's viewers; rank 0 removes them)."""
    notice_requests = _file("notice_requests")
    """Folder of the requests for other conditions of `notify_on` (the owner's viewers; the supervisor's process)."""
    events = _file("events.jsonl")
    """The answer to each request, and its step: see `nbtools.rundir.requests.events` (rank 0, appended)."""
    planned = _file("planned.jsonl")
    """Events of another run that this one repeats, at their steps."""
    exit = _file("exit.json")
    """`returncode`, `signal`, `stopped`, `failure`, `stopped_on` (supervisor, once)."""
    on_end_log = _file("ranks/on_end.log")
    """Output of the command that the launch gave as `on_end` (supervisor)."""
    notices = _file("ranks/notices.jsonl")
    """Notices that `notify_on` asked for, and why some were not sent (process of the supervisor, appended)."""
    attempts = _file("attempts.jsonl")
    """One line per automatic restart: the failed `attempt`, `failure`, the next `checkpoint` (supervisor)."""
    lock = _file("lock")
    """Locked with flock while the supervisor or the torchrun agent lives."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.id = self.path.name
        """The run's id: the directory's name."""

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @classmethod
    def create(cls, runs: Path, name: str) -> Self:
        """Create `runs/<date>_<time>_<name>`; further runs of the same second and name get `_2`, `_3`, ….

        `mkdir` is exclusive, so any number of processes may create runs at once. A new `runs/` tells git to ignore it.
        """
        if not runs.exists():
            if lost := lost_target(runs):
                raise FileNotFoundError(errno.ENOENT, f"it links to {lost}, which does not exist", str(runs))
            runs.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                (runs / ".gitignore").write_text("*\n")
        stem = f"{datetime.datetime.now():%Y-%m-%d_%H%M%S}_{name}"
        for number in itertools.count(1):
            run = cls(runs / (stem if number == 1 else f"{stem}_{number}"))
            with contextlib.suppress(FileExistsError):
                run.path.mkdir()
                break
        run.ranks.mkdir()
        run.checkpoints.mkdir()
        return run

    def heartbeat(self, rank: int) -> Path:
        """Heartbeat of a rank, which replaces it about once a second."""
        return self.ranks / f"{rank}.heartbeat.json"

    def stacks(self, rank: int) -> Path:
        """File to which a rank appends its Python stacks on the signal that its heartbeat names."""
        return self.ranks / f"{rank}.stacks.txt"

    def phases(self, rank: int) -> Path:
        """Seconds of a rank in each phase, per log interval: see `nbtools.run.ranks.phases` (the rank, appended)."""
        return self.ranks / f"phases-{rank}.jsonl"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after `step` optimizer steps; it exists only when it is complete."""
        return self.checkpoints / f"step-{step:06d}"

    def node_logs(self, node: int) -> Path:
        """Folder of the logs of a machine's ranks, as torchrun lays them out by local rank."""
        return self.ranks / f"node{node}" if node else self.ranks

    def node_output(self, node: int) -> Path:
        """Output of torchrun on a machine other than the first."""
        return self.ranks / f"node{node}.log"

    def node_record(self, node: int) -> Path:
        """The process that runs torchrun on a machine other than the first, and at the end its `returncode`."""
        return self.ranks / f"node{node}.json"

    def rank_logs(self, rank: int, name: str = "std*.log") -> list[Path]:
        """Files of a rank from the newest torchrun agent; each agent makes a folder of its own. Rank 0 has no log."""
        num_nodes, num_ranks = self._counts
        node, local_rank = divmod(rank, num_ranks) if num_nodes > 1 else (0, rank)
        agents = {found.parent for found in self.node_logs(node).glob("*/attempt_*")}
        newest = max(agents, key=_written_at, default=None)
        return [] if newest is None else sorted(newest.glob(f"attempt_*/{local_rank}/{name}"))

    @property
    def world(self) -> range:
        """The ranks of the run, as it was launched."""
        num_nodes, num_ranks = self._counts
        return range(num_nodes * num_ranks)

    @property
    def _counts(self) -> tuple[int, int]:
        """Number of machines, and of ranks on each."""
        launch = launch_of(self.path).get("launch")
        counts = [launch.get(name) for name in ("nnodes", "nproc_per_node")] if isinstance(launch, dict) else [1, 1]
        return whole(counts[0]) or 1, whole(counts[1]) or 1


def is_run(path: Path) -> bool:
    """Whether `path` is a run directory: its launcher has created the lock or written launch.json."""
    try:
        return retried(lambda: (path / "lock").is_file() or (path / "launch.json").is_file())
    except OSError:  # no permission
        return False


def run_folders(runs: Path) -> list[Path]:
    """Run directories in `runs`, newest first."""
    return list(newest_first(runs))


def newest_first(runs: Path, found: Iterable[Path] | None = None) -> Iterator[Path]:
    """Yield the run directories in `runs`, or those of them in `found`, by the time of their launch, the newest first.

    Folders may be copied or renamed, and the local time in an id is ambiguous when summer time ends and differs between
    time zones: launch.json has the time. The ids say which launch.json files need to be read for the next run.
    """
    ready: list[tuple[float, bool, int, str]] = []
    names = folder_names(runs) if found is None else [path.name for path in found]
    for named_at, name in sorted(((_named_at(name), name) for name in names), reverse=True):
        if not is_run(path := runs / name):
            continue
        while ready and -ready[0][0] > named_at + _CLOCKS_DIFFER_S:
            yield runs / heapq.heappop(ready)[-1]
        heapq.heappush(ready, (*launch_order(path, launch_of(path)), name))
    while ready:
        yield runs / heapq.heappop(ready)[-1]


def launch_order(path: Path, launch: Mapping[str, Any]) -> tuple[float, bool, int]:
    """Return by what runs are sorted, the newest first: the time of the launch, copies after their originals."""
    written = _written_at(f"{path}/launch.json")
    if (started := finite(launch.get("time"))) is None:
        named_at = _named_at(path.name)
        started = named_at if math.isfinite(named_at) else _written_at(path) / 1e9
    environment = launch.get("env")  # without an id of a run by hand
    run_id = environment.get(RUN_ID_VARIABLE) if isinstance(environment, dict) else None
    return -started, run_id not in (None, path.name), -written


def found_runs(runs: Path, prefix: str = "") -> list[Path]:
    """Run directories in `runs` whose names start with `prefix`, in any order; no file of them is opened."""
    return [path for name in folder_names(runs) if name.startswith(prefix) and is_run(path := runs / name)]


def marks_of(run: RunDir, root: object = None) -> dict[str, str]:
    """Return the variables that name a run, and its project's `root` if that is given, to its processes."""
    marks = {RUN_ID_VARIABLE: run.id, RUN_DIR_VARIABLE: str(run.path)}
    return marks if root is None else {**marks, ROOT_VARIABLE: str(root)}


def foreign_owner(path: Path) -> str | None:
    """Return the name of the user who owns a file or folder; None if that is this process's user.

    Of a link, both the link and its target count: another user's link may lead to a folder of this user.
    """
    for uid in (path.lstat().st_uid, path.stat().st_uid):
        if uid != os.geteuid():
            with contextlib.suppress(KeyError):  # the user exists on another machine only
                return pwd.getpwuid(uid).pw_name
            return f"user {uid}"
    return None


def is_removed(run: RunDir) -> bool:
    """Whether a run directory was removed, and not the file system with its `runs/`."""
    return run.path.parent.is_dir() and not run.path.exists()


def launch_of(path: Path) -> dict[str, Any]:
    """Return launch.json of a run directory; empty if it is missing, or not readable by this version."""
    return content_of(path / "launch.json")


def _named_at(name: str) -> float:
    """Return the Unix time in a run's id; infinity for another name, which then comes first."""
    day, _, clock = name[:17].partition("_")
    try:  # strptime takes ten times as long, for thousands of runs
        return datetime.datetime.fromisoformat(f"{day} {clock[:2]}:{clock[2:4]}:{clock[4:]}").timestamp()
    except (ValueError, OverflowError, OSError):
        return math.inf


def project_of(script: Path) -> Project:
    """Find the project of a script; for the copy in a run directory, the project that the run belongs to.

    The folder of the runs may be a link, so the root is not always above the copy: launch.json names it. A root whose
    `runs/` is another folder (the project was copied) does not count.

    Raises:
        ProjectError: there is none.
    """
    folder = script.parent
    for root in (launch_of(folder).get("root"), None) if is_run(folder) else ():
        with contextlib.suppress(OSError, ValueError, TypeError, NbtoolsError):
            project = find_project() if root is None else Project(Path(root))
            if project.runs.samefile(folder.parent):
                return project
    return find_project(folder)


def name_of(run_id: str) -> str:
    """Return the name in a run's id, without date and time."""
    return re.sub(r"^[0-9-]{10}_[0-9]{6}_", "", run_id)


def _written_at(path: str | Path) -> int:
    return (file_stamp(path) or (0,))[0]  # launch.json is written once: this orders runs of the same second


def has_recipe(run: RunDir) -> bool:
    """Whether the script of a run is a recipe's, which resumes from a checkpoint; others start from their beginning."""
    return any((kept(read_json, file) or {}).get("recipe") for file in (run.launch, run.config))


def has_started(run: RunDir) -> bool:
    """Whether the training was started: its log exists, or another of its files where the log was removed."""
    return any(path.exists() for path in (run.log, run.system, run.metrics)) or any(run.ranks.glob("*.heartbeat.json"))


def goes_on(run: RunDir) -> bool:
    """Whether a run has not ended; a deleted one has."""
    if run.exit.exists():
        return False
    if is_locked(run.lock):
        return True
    launch = launch_of(run.path)
    if launch.get("flock") is not False:
        return False
    # On a file system without locks.
    process, started = ProcessIdentity.from_json(content_of(run.process)), finite(launch.get("time")) or 0.0
    return process.is_alive() if process else abs(time.time() - started) < _STARTS_WITHIN_S
