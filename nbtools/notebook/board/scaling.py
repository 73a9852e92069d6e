"""`scaling`: short runs of a script on different numbers of processes, with the same work, and how fast each is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nbtools.config import TrainConfig
from nbtools.errors import LaunchError, plural, shown
from nbtools.launcher.launch import launch
from nbtools.launcher.preflight import check_launch
from nbtools.launcher.request import LaunchRequest, Preflight
from nbtools.machine.devices import devices, num_cores
from nbtools.notebook.board.board import Board
from nbtools.run.compare import compare_runs
from nbtools.run.run import Run

_NUM_ROWS = 20
_ALL_EPOCHS = 1_000_000


def scaling(
    script: str | Path,
    nproc: Sequence[int] = (1, 2, 4, 8),
    *,
    steps: int = 50,
    args: Sequence[str] | Callable[[int], Sequence[str]] = (),
) -> Board:
    """Queue one short run per number of processes, each with the same work, and return their comparison.

    The runs start one after the other, so that none takes the cores or GPUs of another. A recipe's script trains on the
    same number of samples in each run, with its own batch size per process; it is evaluated and saved at the end only.
    On the CPU a process has as many threads in each run.
    Numbers of processes that this machine has no GPUs or cores for are left out, and named.

    Args:
        script: path of the script.
        nproc: numbers of processes on this machine.
        steps: optimizer steps of the run with the most processes; a run on fewer takes proportionally more.
        args: the script's own arguments, or a function that returns them for a number of processes: that is how a
            script without a recipe does the same work in each run.

    Raises:
        LaunchError: fewer than two of the runs can start; nothing is started.
    """
    counts = sorted(set(nproc))
    if not counts or not all(type(count) is int and count > 0 for count in counts) or steps < 1:
        raise LaunchError(f"nproc={shown(nproc)}, steps={shown(steps)}: give whole numbers of at least 1")
    own = args if callable(args) else lambda _: args
    fitting: list[int] = []
    notes: list[str] = []
    checked: Preflight | None = None
    for count in counts:
        try:
            _refuse(count)
            checked = check_launch(LaunchRequest.of(script, {"nproc_per_node": count}, args=own(count)))
            fitting.append(count)
        except LaunchError as error:
            notes.append(f"{plural(count, 'process')}: left out. {error}")
    if checked is None or len(fitting) < 2:
        raise LaunchError(f"{script}: scaling compares at least two numbers of processes. {' '.join(notes)}")
    config, most = checked.config, fitting[-1]
    words = {count: [*own(count), *(_flags(config, count, most, steps) if config else ())] for count in fitting}
    threads = None if devices() else max(1, num_cores() // most)  # else one process would have the cores of all
    runs: list[Run] = []
    for count in fitting:
        after = runs[-1] if runs else None
        runs.append(launch(script, nproc_per_node=count, args=words[count], omp_num_threads=threads, after=after))
    comparison = compare_runs(runs)
    notes.insert(0, _work(config, fitting, most, steps))
    return Board(drawn=replace(comparison, notes=[*notes, *comparison.notes]), x="samples")


def _refuse(count: int) -> None:
    """Raise LaunchError if the machine has fewer GPUs, or, without any, fewer cores than processes."""
    num_gpus = len(devices())
    most, unit = (num_gpus, "GPU") if num_gpus else (num_cores(), "CPU core")
    if count > most:
        raise LaunchError(f"This machine has {plural(most, unit)}, and each process needs one.")


def _steps(count: int, most: int, steps: int) -> int:
    """Return the steps of a run on `count` processes that do the work of `steps` on `most`; rounded up."""
    return -(-steps * most // count)


def _flags(config: TrainConfig, count: int, most: int, steps: int) -> list[str]:
    own = _steps(count, most, steps)
    values = {"max_steps": own, "epochs": _ALL_EPOCHS, "log_every": max(1, own // _NUM_ROWS)}
    values |= {"eval_every": own, "checkpoint_every": own, "keep_best": 0, "keep_last": 1}
    changes = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*changes, "--no-checkpoint-epochs"] if config.checkpoint_epochs else changes


def _work(config: TrainConfig | None, counts: Sequence[int], most: int, steps: int) -> str:
    if config is None:
        return "The script decides the work of each run: args=lambda n: [...] can give each the same."
    samples = steps * config.effective_batch(most)
    each = ", ".join(f"{_steps(count, most, steps):,} steps on {count}" for count in counts)
    return f"Each run trains on the same {samples:,} samples, one run after the other: {each}."
