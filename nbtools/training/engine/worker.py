"""What a recipe's loop needs from the process it runs in: ranks, phases, stopping, sums, metric rows, checkpoints.

The same code runs under torchrun, on GPUs (NCCL) and CPUs (gloo), and under plain `python` as one process. The loop
itself belongs to the recipe; nothing here calls back into it.
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, Sampler

from nbtools.config import TrainConfig
from nbtools.errors import NbtoolsError
from nbtools.launcher.step_count import Schedule
from nbtools.metrics.writer import MetricWriter
from nbtools.project import Project, find_project
from nbtools.recipes import RECIPES
from nbtools.run.checkpoints import Progress
from nbtools.rundir import media
from nbtools.rundir.json_files import strict_number, write_json
from nbtools.rundir.media import MediaItem
from nbtools.rundir.rundir import ATTEMPT_VARIABLE, RunDir
from nbtools.training.engine import checkpoint, optimizer, startup_report
from nbtools.training.engine.by_hand import claim_run
from nbtools.training.engine.checkpoint import State
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.initial_state import Origin, open_origin
from nbtools.training.engine.plan import Due, Plan
from nbtools.training.engine.sampler import load
from nbtools.training.engine.stop_vote import StopVote
from nbtools.training.outputs.outputs import Outputs
from nbtools.training.process import random_state
from nbtools.training.process.device import (
    choose_device,
    failure_of,
    is_under_torchrun,
    script_path,
    seed_everything,
    stay_on_this_machine,
)
from nbtools.training.process.heartbeat import Heartbeat
from nbtools.training.process.signals import StopRequest, die_with_agent

T = TypeVar("T")
C = TypeVar("C", bound=TrainConfig)

_PROGRESS_EVERY_S = 5.0
_SECONDS_PER_MINUTE = 60
_MAIN_MAY_TAKE = timedelta(hours=24)


def run(train: Callable[["Worker", C], None], flags: Flags[C]) -> None:
    """Run `train(worker, config)` as one rank of a group, or alone, and leave a record of how it ended.

    Raises:
        SystemExit: code 1 and a message for a mistake of the user's, under plain `python`; a traceback helps nobody.
    """
    with StopRequest() as stop:

        @record  # writes the traceback where torchrun asks for it
        def recorded() -> None:
            die_with_agent()
            worker = Worker(flags, stop)
            try:
                worker.prepare()
                train(worker, flags.config)
            except BaseException as error:
                worker.finish("failed", error)
                raise
            worker.finish("stopped" if worker.stopped else "completed")

        try:
            recorded()
        except NbtoolsError as error:
            if is_under_torchrun():
                raise
            raise SystemExit(f"{type(error).__name__}: {error}") from None


class Worker:
    """This process among its peers, and its part of the run directory."""

    def __init__(self, flags: Flags[Any], stop: StopRequest) -> None:
        self.flags = flags
        self.config: TrainConfig = flags.config
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.is_main = self.rank == 0
        self.device = choose_device(self.local_rank)
        self.attempt = int(os.environ.get(ATTEMPT_VARIABLE, "1"))
        self.progress = Progress()
        self.metrics: dict[str, float] = {}
        """Last value of every metric."""
        self.stopped = False
        self._measured: tuple[int, Mapping[str, float]] = (-1, {})
        self._away_s = 0.0
        self._control: dist.ProcessGroup | None = None
        self._patient: dist.ProcessGroup | None = None
        if self.world_size > 1:
            stay_on_this_machine()
            on_gpu = self.device.type == "cuda"
            patience = timedelta(seconds=self.config.collective_timeout_min * _SECONDS_PER_MINUTE)
            dist.init_process_group(
                "nccl" if on_gpu else "gloo", timeout=patience, device_id=self.device if on_gpu else None
            )
            # Messages of a few bytes between CPUs, which must not wait for what the GPUs are doing.
            self._control = dist.new_group(backend="gloo", timeout=patience)
            # While rank 0 tokenizes for hours, the others wait, and nothing is wrong.
            self._patient = dist.new_group(backend="gloo", timeout=_MAIN_MAY_TAKE)
        self._vote = StopVote(stop, self._control)
        self.files = RunDir(self.from_main(lambda: claim_run(flags)))
        self.heartbeat = Heartbeat(self.files, self.rank, stop)
        self._writer = MetricWriter(self.files.metrics, self.attempt) if self.is_main else None
        self._outputs: Outputs | None = None
        self._said = 0.0
        self.start_clock()
        seed_everything(self.config.seed, self.rank, deterministic=self.config.deterministic)
        if self.is_main:
            checkpoint.sweep(self.files.checkpoints)
        for note in flags.notes:
            self.say(f"note: {note}")

    def prepare(self) -> None:
        """Open what the config wants beside curves and checkpoints; what cannot be had is told before the first step.

        Raises:
            ConfigError: `save_dir` cannot be written, or a package is missing.
        """

        def open_outputs() -> None:
            self._outputs = Outputs(self.files, self.config, self.project.root, self.device, self.say)

        self.from_main(open_outputs)

    # --- among peers ------------------------------------------------------------------------------

    def from_main(self, compute: Callable[[], T]) -> T:
        """Compute something on rank 0 and give it to all ranks, which wait for it.

        An `NbtoolsError` on rank 0 is raised on every rank, so that all of them tell the same cause.
        """
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = compute()
            except NbtoolsError as error:
                outcome[1] = error
        if self._patient is not None:
            dist.broadcast_object_list(outcome, src=0, group=self._patient)
        if outcome[1] is not None:
            raise outcome[1]
        value: T = outcome[0]
        return value

    def in_turn(self, compute: Callable[[], T]) -> T:
        """Compute something on every rank, on rank 0 first: the others then find its downloads."""
        computed: list[T] = []
        self.from_main(lambda: computed.append(compute()))
        return computed[0] if computed else compute()

    def gather(self, value: T) -> list[T]:
        """Return every rank's value on rank 0, an empty list on the others."""
        if self._control is None:
            return [value]
        values: list[Any] = [None] * self.world_size if self.is_main else []
        dist.gather_object(value, values if self.is_main else None, dst=0, group=self._control)
        return values

    def sum(self, values: Sequence[float] | torch.Tensor) -> list[float]:
        """Add up each of the values over all ranks, in double precision."""
        total = torch.as_tensor(values, dtype=torch.float64).cpu()
        if self._control is not None:
            self.phase("collective")
            dist.all_reduce(total, group=self._control)
        return [float(value) for value in total]

    def wrap(self, module: torch.nn.Module) -> torch.nn.Module:
        """Move a module to this rank's device and let DDP average its gradients.

        Raises:
            ConfigError: it cannot compute its activations again, as gradient_checkpointing asks.
        """
        if self.config.gradient_checkpointing:
            optimizer.checkpoint_gradients(module)
        module = module.to(self.device)
        if self.world_size == 1:
            return module
        on_gpu = self.device.type == "cuda"
        return DistributedDataParallel(
            module,
            device_ids=[self.device.index] if on_gpu else None,
            gradient_as_bucket_view=True,
        )

    # --- what the run directory shows -------------------------------------------------------------

    @property
    def recipe(self) -> str:
        """Key of the recipe that is trained; the config's class where it belongs to none."""
        cls = type(self.config)
        return next((key for key, recipe in RECIPES.items() if recipe.config_class is cls), cls.__name__)

    @property
    def project(self) -> Project:
        """The project that the script belongs to."""
        return find_project(script_path().parent)

    def phase(self, name: str) -> None:
        """Say what this rank is doing now; costs nothing, a thread writes it down once a second."""
        self.heartbeat.enter(name, self.progress.step)

    @contextlib.contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """A phase that is not training: its time does not count against the throughput."""
        started = time.monotonic()
        self.phase(name)
        yield
        self._away_s += time.monotonic() - started

    def start_clock(self) -> None:
        """Begin to measure the throughput."""
        self._clock = time.monotonic() - self._away_s, self.progress.samples

    def samples_per_s(self) -> float:
        """Samples of all ranks per second since the last call, evaluation and checkpoints not counted."""
        (since, samples), now = self._clock, time.monotonic() - self._away_s
        self.start_clock()
        return (self.progress.samples - samples) / max(now - since, 1e-9)

    def say(self, text: str) -> None:
        """Print on rank 0 only."""
        if self.is_main:
            print(text, flush=True)

    def show(self, name: str, item: MediaItem) -> None:
        """Append something to look at to the run directory (rank 0)."""
        if self.is_main:
            with contextlib.suppress(OSError):  # a full disk costs no training
                media.append(self.files.media, name, self.progress.step, item)

    # --- steps ------------------------------------------------------------------------------------

    def plan(self, num_train_samples: int, num_eval_samples: int) -> Plan:
        """Plan the steps that are left; call it after `origin`.

        Raises:
            DataError: there are too few samples.
        """
        schedule = Schedule.of(self.config, self.world_size, num_train_samples, num_eval_samples)
        return Plan.of(self.config, schedule, self.progress, self.rank, self.world_size)

    def describe(self, plan: Plan, derived: Mapping[str, Any]) -> None:
        """Write config.json and print the banner: what is going to run, on what.

        Args:
            plan: of this training.
            derived: `num_parameters`, `vocab_size` and whatever else the recipe found out.
        """
        if self.is_main:
            startup_report.describe(self, plan, derived)

    def batches(self, dataset: Dataset[Any], order: Sampler[Any]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Iterate over `dataset[epoch, indices]` in the given order, on this rank's device."""
        on_gpu = self.device.type == "cuda"
        loaded = load(dataset, order, self.config.num_workers, pin_memory=on_gpu)
        while True:
            self.phase("data")
            yield tuple(part.to(self.device, non_blocking=True) for part in next(loaded))

    def advance(self, plan: Plan) -> Due:
        """Count an optimizer step and say what is due after it; every rank calls it once per step."""
        return plan.advance(self.progress, stop=self.stop_agreed())

    def stop_agreed(self) -> bool:
        """Whether all ranks stop after this step; every rank calls it once per step."""
        self.stopped = self._vote.agreed()
        return self.stopped

    def end_step(self, values: Mapping[str, float], total_steps: int) -> None:
        """Append a metric row for the step that was counted (rank 0), if it has one, and now and then print it."""
        if self.config.profile_steps:
            with self.aside("profile"):  # on all ranks: the order of phases tells who is behind
                if self._outputs is not None:
                    self._outputs.end_step()
        if not values:
            return
        broken = [name for name, value in values.items() if not math.isfinite(value)]
        if broken and all(math.isfinite(value) for value in self.metrics.values()):
            self.say(f"warning: {', '.join(broken)} is not finite at step {self.progress.step}; training goes on")
        self.metrics.update(values)
        self._measured = self.progress.step, values
        if self._writer is None:
            return
        self._writer.write(self.progress.step, values, samples=self.progress.samples)
        if self._outputs is not None:
            self._outputs.add_row(self.progress.step, values)
        now = time.monotonic()
        if now - self._said >= _PROGRESS_EVERY_S or any("eval/" in name for name in values):
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.say(f"step {self.progress.step}/{total_steps}  {numbers}")
            self._said = now

    # --- checkpoints and the end ------------------------------------------------------------------

    def save(self, write_model: Callable[[Path], None], state: State, rank_state: State, **best: Any) -> None:
        """Save a checkpoint of the current step; every rank calls it, rank 0 writes while the others wait.

        A full disk costs the checkpoint, not the training: older ones stay and a warning is printed.

        Args:
            write_model: writes the model's files into a folder.
            state: what all ranks share: optimizer and the like.
            rank_state: what this rank alone knows; its random number generators are added.
            best: `best_by` and `lower_is_better` of `checkpoint.save`, where not the least eval/loss is the best.
        """
        effective_batch = self.config.effective_batch(self.world_size)
        state = {**state, "recipe": self.recipe, "effective_batch": effective_batch}
        with self.aside("checkpoint"):
            rank_states = self.gather({**rank_state, "random": random_state.random_state()})
            # In a collective of the next step they would wait, too, but not for as long as a slow disk may take.
            self.from_main(lambda: self._write(write_model, state, rank_states, best))

    def _write(
        self, write_model: Callable[[Path], None], state: State, rank_states: list[State], best: Mapping[str, Any]
    ) -> None:
        try:
            checkpoint.save(
                self.files.checkpoints,
                self.progress,
                write_model=write_model,
                state=state,
                rank_states=rank_states,
                metrics=self._measured[1] if self._measured[0] == self.progress.step else {},
                attempt=self.attempt,
                keep_last=self.config.keep_last,
                keep_best=self.config.keep_best,
                **best,
            )
        except OSError as error:
            self.say(f"warning: no checkpoint at step {self.progress.step}: {error}; older ones are kept")

    def origin(self) -> Origin:
        """Open what the training starts from: what `--resume-from` names, or nothing.

        Raises:
            CheckpointError: it is missing, incomplete, damaged or of another recipe.
        """
        path = self.flags.resume_from
        return Origin() if path is None else open_origin(self, path)

    def finish(self, why: str, error: BaseException | None = None) -> None:
        """Record the end; a failed rank leaves its peers alone, torchrun ends them."""
        outputs = self._outputs
        if error is None:
            self._vote.count()
            with self.aside("outputs"):
                self.from_main(lambda: outputs.hand_over(draws=why == "completed") if outputs else None)
            if self._control is not None:
                self.phase("collective")
                dist.barrier(group=self._control)  # nobody leaves while a peer still saves
            self.phase("done")
        self.heartbeat.close()
        if outputs is not None:
            outputs.close()
        if self._writer is not None:
            self._writer.close()
            failure = None if error is None else failure_of(error, self.rank, self.files).to_json()
            record = {
                "why": why,
                "step": self.progress.step,
                "metrics": {name: strict_number(value) for name, value in self.metrics.items()},
                "failure": failure,
                "time": time.time(),
            }
            with contextlib.suppress(OSError):  # the training itself is done
                write_json(self.files.finished, record)
            if error is None:
                self.say(f"{why} at step {self.progress.step}")
        if error is None and self.world_size > 1:
            dist.destroy_process_group()
