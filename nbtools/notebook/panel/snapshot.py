"""The data that a panel shows of a run, read from its directory after a file has changed."""

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbtools.errors import NbtoolsError, duration, plural
from nbtools.failures.failure import Failure
from nbtools.failures.restarts import Restart, read_restarts, restarted
from nbtools.metrics.columns import Series
from nbtools.metrics.history import History
from nbtools.notebook.plots.decimation import break_of
from nbtools.notebook.plots.view import Options, View, view_of
from nbtools.run import facts as run_facts
from nbtools.run.checkpoints import AnyCheckpoint
from nbtools.run.curves import Curves, Sketch, first_curves, read_rows
from nbtools.run.ranks.phases import PhaseRows, why_slow
from nbtools.run.ranks.stragglers import Straggler, stragglers
from nbtools.run.records import mapping_at
from nbtools.run.run import SILENT_S, Run, shared_outputs, silent_s
from nbtools.run.slurm_job import ends_too_early, job_in_words
from nbtools.run.state import RunState, commands_to_join, unsaved, waiting_for
from nbtools.rundir.heartbeat import RankHeartbeat, read_heartbeats
from nbtools.rundir.json_files import file_stamp, finite, whole
from nbtools.rundir.tail import Tail, objects_in

_GPU = {"use_percent": ("GPU %", 1.0), "memory_bytes": ("GPU memory GB", 1e9), "power_w": ("GPU power W", 1.0)}
_MOST_GPUS = 4
"""Most GPUs shown one by one; of more, the mean, the least and the greatest value are shown."""


class SystemReader:
    """Follows a system.jsonl.

    Attributes:
        values: The values of each quantity, such as `CPU %` or `GPU memory GB/GPU 0`.
    """

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path)
        self.values: dict[str, list[float]] = defaultdict(list)

    def read(self) -> bool:
        """Read new rows; returns whether there were any."""
        rows = [row for block in iter(self._tail.read, b"") for row in objects_in(block)]
        values = [_values_of(row) for row in rows if finite(row.get("time")) is not None]
        for name, value in (item for each in values for item in each.items()):
            self.values[name].append(value)
        return bool(values)


def _values_of(row: Mapping[str, Any]) -> dict[str, float]:
    rss = finite(row.get("rss_bytes"))
    found = {"CPU %": finite(row.get("cpu_percent")), "Memory GB": None if rss is None else rss / 1e9}
    gpus = [gpu for gpu in row.get("gpus") or () if isinstance(gpu, dict)]
    for key, (title, scale) in _GPU.items():
        read = {f"GPU {finite(gpu.get('index')) or 0:.0f}": finite(gpu.get(key)) for gpu in gpus}
        known = {label: value / scale for label, value in read.items() if value is not None}
        if len(known) > _MOST_GPUS:
            each = list(known.values())
            known = {"mean": sum(each) / len(each), "least": min(each), "greatest": max(each)}
        found |= {f"{title}/{label}": value for label, value in known.items()}
    return {name: value for name, value in found.items() if value is not None}


_NUM_BREAKS = 4
_STALL_S, _STALL_STEPS = 300.0, 20
"""A training without heartbeats stalls if it writes no row in these seconds and in the time of these steps."""
_NUM_STOP_LINES = 400
"""Lines to search after a stop for torchrun's traceback and its one line per process."""

# torchrun's output on SIGTERM: warnings, and the traceback of its own exception.
_OF_TORCHRUN = re.compile(
    r"""
      ^[EWI]\d{4}\ \d\d:\d\d:\d\d.*torch/distributed/elastic.*\n
    | (?:^\n?During\ handling\ of\ the\ above\ exception.*\n\n)?
      ^Traceback\ \(most\ recent\ call\ last\):\n(?:[\ \t].*\n)*+.*\bSignalException:.*\n
    """,
    re.MULTILINE | re.VERBOSE,
)


@dataclass
class Snapshot:
    """The content of a panel, read from a run directory; valid until a file changes."""

    step: int = 0
    total_steps: int | None = None
    seconds_per_step: float | None = None
    use: Sequence[str] = ()
    """Sentences on GPU utilization and GPU memory in the newest row."""
    slow: str = ""
    """Sentence on what slows the training down."""
    last_row: float | None = None
    """Unix time of the newest metric row."""
    ranks: list[RankHeartbeat] = field(default_factory=list)
    nproc_per_node: int | None = None
    """Ranks per node of a run on several nodes; else None."""
    sources: list[str] = field(default_factory=list)
    """Lines on the sources of a program's curves, and on output that was not understood; empty for a recipe."""
    last_output: float | None = None
    """Unix time at which a program without metric rows last printed."""
    failure: Failure | None = None
    checkpoints: list[AnyCheckpoint] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Sentences on non-finite values and on metrics that are missing from the curves."""
    lasting: list[str] = field(default_factory=list)
    """Warnings that stay: a metric whose newest value is not finite, a checkpoint that was not written."""
    version: object = None
    """Value that changes when the picture has to be drawn again."""

    def remaining_s(self, now: float) -> float | None:
        """Return the estimated seconds to the last step; None if unknown."""
        if not (self.seconds_per_step and self.total_steps and self.last_row):
            return None
        # Count down within the step after the last row, but not beyond it.
        since = min(max(0.0, now - self.last_row), self.seconds_per_step)
        return max(0.0, (self.total_steps - self.step) * self.seconds_per_step - since)


class ShownRun:
    """The run of a panel and what it shows of it, read again after a file has changed.

    Attributes:
        run: The run.
        snapshot: What was read last.
        stragglers: The ranks of a running training that are silent.
        system: What the machine measured.
        phases: The time of the ranks in each phase.
        reading: A sentence on rows that are not read yet; empty if all are.
        stamp: The files that were read; None has the next look read the run, whether or not one of them has changed.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.snapshot, self.stragglers = run, Snapshot(), list[Straggler]()
        self.system, self.phases = SystemReader(run.files.system), PhaseRows(run.files)
        self.reading = ""
        self._first: Curves | None = None
        self.stamp: object = None

    @property
    def is_whole(self) -> bool:
        """Whether all rows have been read."""
        return self._first is None

    def look(self, state: RunState, now: float) -> bool:
        """Read what changed; returns whether a file had changed."""
        stamp = (state, *stamp_of(self.run))
        is_new = stamp != self.stamp or (not self.is_whole and self.run.rows.is_read)
        if is_new:
            self._first, self.reading = first_curves(self.run) or (None, "")
            self.snapshot, self.stamp = take_snapshot(self.run, state, self._first), stamp
            self.snapshot.slow = why_slow(self.phases.seconds())
        is_running, facts = state is RunState.RUNNING, self.snapshot
        self.stragglers = stragglers(facts.ranks, now, facts.seconds_per_step) if is_running else []
        return is_new

    def read_rows(self) -> bool:
        """Read all rows, perhaps for seconds; returns whether that was possible."""
        with suppress(NbtoolsError, OSError):  # the next look shows it
            read_rows(self.run)
            return True
        return False

    def drop_rows(self) -> None:
        """Drop the rows, which are read again when they are drawn again."""
        with suppress(NbtoolsError):  # the directory was removed
            self.run = Run(self.run.dir)

    def view(self, options: Options) -> View:
        """Return the curves, or those of the first and the last rows while the others are read."""
        curves = self._first if self._first is not None else self.run.history
        return view_of(self.run, curves, reading=self.reading, **vars(options))


def stamp_of(run: Run) -> tuple[object, ...]:
    """Return stamps of the files that a panel shows; nothing is read while they are equal."""
    files = run.files
    written_once = files.launch, files.config, files.finished, files.unsaved, files.exit
    shown = (*written_once, files.metrics, files.log, files.checkpoints, files.attempts, files.events, files.controls)
    stamps: list[object] = [file_stamp(path) for path in (*shown, files.notices)]
    if not files.metrics.exists():  # a program writes its checkpoints elsewhere
        stamps += [(saved.path, saved.time) for saved in run.checkpoints]
    with suppress(OSError):
        stamps += sorted((path.name, file_stamp(path)) for path in files.ranks.glob("*.heartbeat.json"))
    return tuple(stamps)


def take_snapshot(run: Run, state: RunState, first: Curves | None = None) -> Snapshot:
    """Read the run directory; the rows of a long run are not read if its `first` curves are given."""
    history, own = (run.history, run.own_history) if first is None else (first, run.rows.newest)
    checkpoints, restarts = run.checkpoints, read_restarts(run.files)
    ranks, launch = read_heartbeats(run.files), mapping_at(run.info, "launch")
    told = len(run.events), file_stamp(run.files.notices)
    seconds_per_step, last_row = own.pace()  # without the pause between the parent and the resume
    saved = [(checkpoint.path, checkpoint.time) for checkpoint in checkpoints]
    breaks, diverged = _breaks_of(history)
    not_saved = [text] if (text := unsaved(run.records)) else []
    return Snapshot(
        step=run.step,
        total_steps=run.total_steps,
        seconds_per_step=seconds_per_step,
        use=_use_of(own),
        last_row=last_row,
        ranks=ranks,
        nproc_per_node=whole(launch.get("nproc_per_node")) if whole(launch.get("nnodes")) not in (None, 1) else None,
        sources=run.rows.notes if first is None else [],
        last_output=None if (silent := silent_s(run)) is None else time.time() - silent,
        failure=run.failure if state.is_final else None,
        checkpoints=checkpoints,
        restarts=restarts,
        warnings=breaks + _gaps_of(own) + not_saved + shared_outputs(run),
        lasting=diverged[:1] + not_saved,
        version=(run.id, id(history), own.version, own.last_step, saved, len(restarts), told),
    )


def _use_of(own: History) -> list[str]:
    """Put the newest figures of a recipe's steps in words; none for other programs, whose units may differ."""
    if own.last("train/data_wait") is None:
        return []
    told = {"train/mfu": "MFU {:.0%}", "system/peak_memory_gb": "peak {:.3g} GB"}
    return [words.format(value) for name, words in told.items() if (value := finite(own.last(name))) is not None]


def _breaks_of(history: Mapping[str, Series | Sketch]) -> tuple[list[str], list[str]]:
    """Return a sentence for each of the first four metrics with non-finite values, and those of lasting ones."""
    said, stay = [], []
    for name, series in history.items():
        if broken := break_of(series):
            some = f"{name}: {plural(broken.count, 'value')} not finite, first at step {broken.step:,}"
            said.append(f"{name} is not finite since step {broken.step:,}" if broken.is_end else some)
            stay += said[-1:] if broken.is_end else []
    hidden = len(said) - _NUM_BREAKS
    return [*said[:_NUM_BREAKS], f"and {hidden:,} more metrics"] if hidden > 0 else said, stay


def _gaps_of(own: History) -> list[str]:
    """Return a sentence for each kind of metric rows that are missing."""
    dropped = f"{own.num_dropped:,} metric rows could not be written (disk full?)"
    skipped = f"{own.num_skipped:,} damaged lines of metrics.jsonl are skipped"
    unread = f"{own.num_unread_bytes / 1e6:,.1f} MB of output was not searched for metrics: the output grew too fast"
    counts = {dropped: own.num_dropped, skipped: own.num_skipped, unread: own.num_unread_bytes}
    return [sentence for sentence, count in counts.items() if count]


def notes_of(run: Run, restarts: list[Restart]) -> list[str]:
    """Return a run's job, origin, attempt, last restart, skipped steps, commit, and commands of further machines."""
    job, origin = job_in_words(run.records), run_facts.origin(run.info)
    notes = [*([f"job {job}"] if job else []), *([origin] if origin else [])]
    if restarts:
        allowed = mapping_at(run.info, "launch").get("max_restarts")
        total = f" of {allowed + 1}" if isinstance(allowed, int) and not restarts[-1].why else ""
        notes += [f"attempt {restarts[-1].attempt + 1}{total}", restarted(restarts[-1])]
    if skipped := run.rows.newest_values[1].get("train/skipped_steps"):
        notes.append(f"{plural(int(skipped), 'step')} skipped: the gradient norm was not finite")
    if code := run_facts.commit(run.info):
        notes.append(f"commit {code}")
    return [*notes, *(f"run on machine {n}: {command}" for n, command in commands_to_join(run.records).items())]


def log_of(run: Run, num_lines: int, *, is_stopped: bool) -> list[str]:
    """Return the end of rank 0's log; after a stop without torchrun's own lines, which look like a failure."""
    if not is_stopped:
        return run.log(num_lines).splitlines()
    return _OF_TORCHRUN.sub("", run.log(num_lines + _NUM_STOP_LINES) + "\n").splitlines()[-num_lines:]


def alarms_of(facts: Snapshot, late: Sequence[Straggler], job_s: float | None, now: float) -> list[str]:
    """Return the problems of a running training: values that are not finite, a stall, too little time."""
    remaining_s = facts.remaining_s(now)
    alarms = [*facts.lasting, *(f"rank {one.beat.rank} silent for {duration(one.silent_s)}" for one in late[:1])]
    usual_s = max(_STALL_S, _STALL_STEPS * (facts.seconds_per_step or 0.0))
    if not facts.ranks and facts.last_row and now - facts.last_row > usual_s:
        alarms.append(f"no new values for {duration(now - facts.last_row)}")
    if facts.last_output and now - facts.last_output > SILENT_S:
        alarms.append(f"no output for {duration(now - facts.last_output)}")
    if ends_too_early(job_s, remaining_s):
        alarms.append("the job's time limit comes before the last step")
    return alarms


def waits_of(run: Run, state: RunState, facts: Snapshot) -> list[tuple[str, bool, str]]:
    """Return what lies before the first step: a name, whether it is done, and a detail; [] once it is done."""
    beats = facts.ranks
    if state.is_final or facts.last_row is not None or any(beat.step for beat in beats) or facts.restarts:
        return []
    launch = mapping_at(run.info, "launch")
    world = (whole(launch.get("nproc_per_node")) or 1) * (whole(launch.get("nnodes")) or 1)
    is_queued = state is RunState.QUEUED
    started = f"{len(beats)} of {world}" if beats else ""
    is_ready = bool(mapping_at(run.config or {}, "derived")) and bool(beats)
    phase = min(beats, key=lambda beat: beat.place).phase if beats else ""
    return [
        ("Place in the queue", not is_queued, waiting_for(run.records) if is_queued else ""),
        ("Processes", len(beats) >= world, started),
        ("Data and model", is_ready, f"rank 0: {phase}" if phase and not is_ready else ""),
        ("First step", False, phase if is_ready else ""),
    ]
