"""Optimizer steps of a recipe's own training, measured, and the largest batch that fits; nothing is saved."""

import contextlib
import dataclasses
import gc
import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from nbtools.config import TrainConfig
from nbtools.failures.known_errors import cause_of, known
from nbtools.recipes import recipe_named, recipe_of
from nbtools.rundir.json_files import read_json
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.optimizer import Optimizer, compile_errors
from nbtools.training.engine.plan import Due, Plan
from nbtools.training.engine.worker import Worker
from nbtools.training.outputs.tally import Tally
from nbtools.training.process.signals import StopRequest

_MEASURED_S = 1.0
_MOST_STEPS = 20
_SEARCHED_S = 60.0
_PRECISION = 8
"""The largest batch size is known to its eighth."""
_EPOCHS = 1000
"""Enough for all steps of a trial, however few an epoch has."""


class StepsDone(Exception):
    """Ends the training loop once enough steps are measured."""


class TrialWorker(Worker):
    """A worker that measures steps, and ends the training once they take `measured_s` without the first.

    It ends after two steps at the earliest, and after `_MOST_STEPS` at the latest.
    """

    def __init__(self, flags: Flags[Any], measured_s: float) -> None:
        super().__init__(flags, StopRequest())
        self._measured_s = measured_s
        self._marks: list[float] = []

    @property
    def step_s(self) -> list[float]:
        """The duration of each step."""
        return [end - start for start, end in zip(self._marks, self._marks[1:], strict=False)]

    def begin(self, plan: Plan, optimizers: Optimizer | Mapping[str, Optimizer], tally: Tally, **derived: Any) -> None:
        """Begin as any training, then start to measure."""
        super().begin(plan, optimizers, tally, **derived)
        self._mark()

    def advance(self, plan: Plan) -> Due:
        """Count a step; only metric rows are ever due; StepsDone if enough steps are measured."""
        due = super().advance(plan)
        self._mark()
        later = self.step_s[1:]
        if later and (sum(later) >= self._measured_s or len(later) >= _MOST_STEPS - 1):
            raise StepsDone
        return dataclasses.replace(due, evaluation=False, checkpoint=False)

    def _mark(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._marks.append(time.perf_counter())


def measure(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the training of a request in this process's run directory; on a GPU, search the largest batch, too.

    Args:
        request: `recipe`, `config` and `world_size` of the launch, which bounds the batch by the samples per step.

    Raises:
        NbtoolsError: the data or the model cannot be used.
        RuntimeError: the training fails; on a GPU, a lack of memory is no failure while a smaller batch may fit.
    """
    recipe = recipe_named(request["recipe"])
    config: TrainConfig = without_outputs(recipe.costliest(recipe.config_class(**request["config"])))
    if not torch.cuda.is_available():
        return {**run_steps(config, _MEASURED_S), "largest_batch": None, "largest_note": "it is searched on GPUs only"}
    found: dict[int, dict[str, Any] | None] = {}

    def fits(batch_size: int) -> bool:
        if batch_size not in found:
            measured_s = _MEASURED_S if batch_size == config.batch_size else 0.0
            print(f"=== batch_size={batch_size}", flush=True)
            found[batch_size] = steps_or_none(config.replace(batch_size=batch_size), measured_s)
        return found[batch_size] is not None

    def limit() -> int:
        (some,) = [steps for steps in found.values() if steps is not None][:1]
        per_sample = config.gradient_accumulation_steps * int(request["world_size"])
        return int(max(some["batch_size"], some["num_train_samples"] // per_sample))

    fits(config.batch_size)  # without a time limit
    deadline = time.monotonic() + _SEARCHED_S
    largest, smallest_failed = largest_batch(config.batch_size, fits, limit, lambda: time.monotonic() < deadline)
    note = note_on(largest, smallest_failed, limit() if largest else 0, _SEARCHED_S)
    best = found[config.batch_size] or found.get(largest)
    if best is None:
        raise RuntimeError(f"CUDA out of memory: {note}")
    return {**best, "largest_batch": largest, "largest_note": note}


def without_outputs(config: TrainConfig) -> TrainConfig:
    """Return a config whose training has steps enough for a trial, and writes nothing outside its run directory."""
    lasting = config.replace(max_steps=None, epochs=max(config.epochs, _EPOCHS))
    return lasting.replace(save_dir=None, report_to="none", profile_steps=0)


def steps_or_none(config: TrainConfig, measured_s: float) -> dict[str, Any] | None:
    """Return measured steps; None if the GPU has too little memory for them."""
    steps = None
    try:
        steps = run_steps(config, measured_s)
    except RuntimeError as error:
        if cause_of(f"{type(error).__name__}: {error}") is not known("gpu_memory"):
            raise
        print(f"{config.batch_size} does not fit: {error}", flush=True)
    gc.collect()  # after the error and the frames of the training are freed
    torch.cuda.empty_cache()
    if config.compile:
        torch.compiler.reset()  # after a few compilations of one function, torch would run it uncompiled
    return steps


def run_steps(config: TrainConfig, measured_s: float) -> dict[str, Any]:
    """Run the recipe's training until enough steps are measured; return the figures, and raise what it raises."""
    train: Callable[[Worker, Any], None] = importlib.import_module(f"{recipe_of(config).module}.train").train
    peak = _Peak()
    worker = TrialWorker(Flags(config), measured_s)
    try:
        worker.prepare()
        with compile_errors():
            train(worker, worker.config)
        raise AssertionError("the plan has more steps than a trial")
    except StepsDone as end:
        worker.finish("stopped", end)
    except BaseException as error:
        worker.finish("failed", error)
        raise
    record = read_json(worker.files.config) or {}
    derived, environment = record["derived"], record["environment"]
    peak_bytes, reserved_bytes = peak.read(worker.device)
    names = ("num_parameters", "num_train_samples", "num_eval_samples", "num_test_samples")
    measured = {"step_s": worker.step_s, "peak_bytes": peak_bytes, "reserved_bytes": reserved_bytes}
    machine = {name: environment[name] for name in ("device", "device_name", "threads", "precision")}
    return {"batch_size": config.batch_size, **measured, **{name: derived[name] for name in names}, **machine}


class _Peak:
    """The largest memory in use since it was made."""

    def __init__(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        with contextlib.suppress(OSError):  # not on Linux
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from the current memory
        self._before = psutil.Process().memory_info().rss

    def read(self, device: torch.device) -> tuple[int | None, int | None]:
        """Return the peak, and what torch has reserved of a GPU for it."""
        if device.type == "cuda":
            return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        with contextlib.suppress(OSError):
            lines = Path("/proc/self/status").read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024 - self._before, None
        return None, None


# --- the largest batch ----------------------------------------------------------------------------


def largest_batch(
    first: int, fits: Callable[[int], bool], limit: Callable[[], int], goes_on: Callable[[], bool]
) -> tuple[int, int | None]:
    """Double or halve from `first`, then halve the interval until the largest that fits is known to an eighth.

    Args:
        fits: tries a batch size.
        limit: the largest batch size that makes sense; called once one fits.
        goes_on: whether there is time for another try.

    Returns:
        The largest batch size that fits, 0 if none was found, and the smallest that does not; None if none was found.
    """
    good, bad, size = 0, None, first
    while goes_on():
        if fits(size):
            good = size
        else:
            bad = size
        if bad is None:
            if good >= limit():
                break
            size = min(2 * good, limit())
        elif bad - good <= max(1, good // _PRECISION):
            break
        else:
            size = (good + bad) // 2
    return good, bad


def note_on(largest: int, smallest_failed: int | None, limit: int, searched_s: float) -> str:
    """Return a sentence on a result of `largest_batch`."""
    over = f"the search ended after {searched_s:.0f} s"
    if not largest:
        return "not even one sample fits" if smallest_failed == 1 else f"{smallest_failed} does not fit; {over}"
    if smallest_failed is None:
        return "the training data has no more samples for a step" if largest >= limit else f"more may fit: {over}"
    exact = smallest_failed - largest <= max(1, largest // _PRECISION)
    return f"{smallest_failed} does not fit" + ("" if exact else f"; {over}")
