"""The run directory: the names of its files, and how runs are found.

The directory is the only protocol between the processes of a run and its readers. Each file has one writing process
and is either written once by an atomic rename or appended to. Every JSON file holds `"format": 1`; readers ignore
unknown keys.
"""

import datetime
import re
from pathlib import Path
from typing import Self

from nbtools.errors import RunNotFoundError
from nbtools.rundir.atomic import retried
from nbtools.rundir.lock import is_locked

RUN_ID_VARIABLE = "NBTOOLS_RUN_ID"
"""Environment variable that every process of a launched run carries from its start."""
ATTEMPT_VARIABLE = "NBTOOLS_ATTEMPT"
"""Environment variable with the number of the attempt; greater than 1 after an automatic restart."""
RUN_DIR_VARIABLE = "NBTOOLS_RUN_DIR"
"""Environment variable that holds the absolute path of a launched run's directory."""


class RunDir:
    """Paths of the files of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.id = self.path.name
        """The run's id: the directory's name."""
        self.launch = self.path / "launch.json"
        """The command: argv, cwd, the relevant environment, versions (launcher, once)."""
        self.script = self.path / "script.py"
        """The bytes that ran (launcher, once)."""
        self.config = self.path / "config.json"
        """The resolved config: `config`, `overridden`, `derived` (rank 0, once)."""
        self.process = self.path / "process.json"
        """The process to signal: a `ProcessIdentity` and its `role` (supervisor, or rank 0 of a run by hand; once)."""
        self.log = self.path / "rank0.log"
        """Output of rank 0 and of torchrun; exists from the moment torchrun starts."""
        self.metrics = self.path / "metrics.jsonl"
        """Metric rows (rank 0, appended)."""
        self.system = self.path / "system.jsonl"
        """Use of GPUs, CPU and memory (supervisor, appended)."""
        self.ranks = self.path / "ranks"
        """Folder of the heartbeats, and of the other ranks' logs as torchrun lays them out."""
        self.error = self.ranks / "error.json"
        """Traceback of the first failing rank, written by torch's `@record`."""
        self.supervisor_log = self.ranks / "supervisor.log"
        """Output of the supervisor itself; empty unless it failed."""
        self.checkpoints = self.path / "checkpoints"
        """Folder of the checkpoints."""
        self.media = self.path / "media"
        """Samples and charts: see `nbtools.rundir.media` (rank 0, appended)."""
        self.outputs = self.path / "outputs"
        """Results of a finished training: `model/`, its history as JSON and as a picture (rank 0, once)."""
        self.tensorboard = self.path / "tensorboard"
        """The metric rows as TensorBoard events, with `report_to="tensorboard"` (rank 0, a file per attempt)."""
        self.profile = self.path / "profile"
        """`trace.json` and `table.txt` of the profiled steps, with `profile_steps` (rank 0, once)."""
        self.finished = self.path / "finished.json"
        """`why` (completed, stopped, failed), last `step`, final `metrics` (rank 0, once)."""
        self.exit = self.path / "exit.json"
        """`returncode`, `signal`, `stopped`, `failure` (supervisor, once)."""
        self.attempts = self.path / "attempts.jsonl"
        """One line per automatic restart: the failed `attempt`, `failure`, the next `checkpoint` (supervisor)."""
        self.lock = self.path / "lock"
        """Locked with flock while the supervisor or the torchrun agent lives."""

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @classmethod
    def create(cls, runs: Path, name: str) -> Self:
        """Create `runs/<date>_<time>_<name>`; further runs of the same second and name get `_2`, `_3`, ….

        `mkdir` is exclusive, so any number of processes may create runs at once.
        """
        runs.mkdir(parents=True, exist_ok=True)
        stem = f"{datetime.datetime.now():%Y-%m-%d_%H%M%S}_{name}"
        number = 1
        while True:
            path = runs / (stem if number == 1 else f"{stem}_{number}")
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
            else:
                run = cls(path)
                run.ranks.mkdir()
                run.checkpoints.mkdir()
                return run

    def heartbeat(self, rank: int) -> Path:
        """Heartbeat of a rank, which replaces it about once a second."""
        return self.ranks / f"{rank}.heartbeat.json"

    def stacks(self, rank: int) -> Path:
        """File to which a rank appends its Python stacks on the signal that its heartbeat names."""
        return self.ranks / f"{rank}.stacks.txt"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after `step` optimizer steps; it exists only when it is complete."""
        return self.checkpoints / f"step-{step:06d}"

    def rank_logs(self, rank: int) -> list[Path]:
        """Log files of a rank other than 0 from the newest torchrun agent; each agent makes a folder of its own."""
        logs = sorted(self.ranks.glob(f"*/attempt_*/{rank}/std*.log"))
        newest = max((log.parents[2] for log in logs), key=_written_at, default=None)
        return [log for log in logs if log.parents[2] == newest]


def is_run(path: Path) -> bool:
    """Whether `path` is a run directory: its launcher has created the lock or written launch.json."""
    try:
        return retried(lambda: (path / "lock").is_file() or (path / "launch.json").is_file())
    except OSError:  # no permission
        return False


def run_folders(runs: Path) -> list[Path]:
    """Run directories in `runs`, newest first."""
    try:
        paths = [path for path in retried(lambda: list(runs.iterdir())) if is_run(path)]
    except OSError:
        return []
    return sorted(paths, key=lambda path: (path.name[:17], _written_at(path / "launch.json"), path.name), reverse=True)


def find_run(runs: Path, ref: str) -> Path:
    """Return the run directory in `runs` with the id `ref`, with the unique prefix `ref`, or the newest for `latest`.

    Raises:
        RunNotFoundError: no run fits, or more than one.
    """
    folders = run_folders(runs)
    if ref == "latest":
        if not folders:
            raise RunNotFoundError(f"no run in {runs} yet: start one with nbtools launch SCRIPT")
        return folders[0]
    fitting = [path for path in folders if path.name == ref]
    fitting = fitting or [path for path in folders if ref and path.name.startswith(ref)]
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting[:5]) + (", …" if len(fitting) > 5 else "")
        raise RunNotFoundError(f"run {ref!r}: {len(fitting)} runs have this prefix ({names}); give more of the id")
    if not fitting:
        raise RunNotFoundError(f"run {ref[:80]!r}: no run in {runs} has this id or prefix; see nbtools runs")
    return fitting[0]


def name_of(run_id: str) -> str:
    """Return the name in a run's id, without date and time."""
    return re.sub(r"^[0-9-]{10}_[0-9]{6}_", "", run_id)


def _written_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns  # launch.json is written once: this orders runs of the same second
    except OSError:
        return 0


def goes_on(run: RunDir) -> bool:
    """Whether a run has not ended; a deleted one has."""
    return not run.exit.exists() and is_locked(run.lock)
