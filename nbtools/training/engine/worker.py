"""Services for a recipe's loop: phases, stop requests, sums, metric rows, checkpoints.

The same code runs under torchrun, on GPUs (NCCL) and CPUs (gloo), and under plain `python` as one process. The loop
belongs to the recipe; nothing here calls back into it.
"""

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedModel

from nbtools.config import TrainConfig
from nbtools.data.split import DataDigest
from nbtools.errors import CheckpointError, DivergedError, NbtoolsError, plural, spoken
from nbtools.launcher.checks.step_count import Schedule
from nbtools.metrics.writer import MetricWriter
from nbtools.project import Project
from nbtools.recipes import recipe_of
from nbtools.run.checkpoints import Checkpoint, Progress, best_of, checkpoints_in
from nbtools.rundir import media
from nbtools.rundir.json_files import reserve, strict_number, write_reserved_json
from nbtools.rundir.media import MediaItem
from nbtools.rundir.rundir import ATTEMPT_VARIABLE, RunDir
from nbtools.training.engine import checkpoint
from nbtools.training.engine.applied_requests import AppliedRequests
from nbtools.training.engine.checkpoint import State
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.initial_state import InitialState, open_initial_state, recorded_data
from nbtools.training.engine.optimizer import (
    TYPES,
    Optimizer,
    compile_errors,
    compile_forward,
    compiled_graphs,
    enable_gradient_checkpointing,
)
from nbtools.training.engine.plan import Due, Plan
from nbtools.training.engine.precision import matmul_rate, resolved, set_tf32
from nbtools.training.engine.sampler import load
from nbtools.training.engine.standalone import check_shared, claim_run, own_project
from nbtools.training.engine.startup_report import write_startup_report
from nbtools.training.engine.tally import Tally
from nbtools.training.engine.vote import Vote, stop_s
from nbtools.training.outputs.outputs import Outputs
from nbtools.training.process.device import failure_of, is_under_torchrun, seed_everything
from nbtools.training.process.heartbeat_writer import HeartbeatWriter
from nbtools.training.process.random_state import random_state, set_random_state
from nbtools.training.process.rank_environment import adopt_rank
from nbtools.training.process.ranks import Ranks
from nbtools.training.process.signals import StopRequest, die_with_agent
from nbtools.training.process.step_clock import StepClock
from nbtools.training.sharding.fsdp import building, release, shard
from nbtools.training.sharding.sharded_checkpoint import ShardedSaves, copied
from nbtools.training.text.adapter import bases_of, cast_frozen, save_model, saved_weights
from nbtools.training.text.pretrained_models import be_quiet
from nbtools.training.text.weights import WeightsReport

C = TypeVar("C", bound=TrainConfig)
T = TypeVar("T")

LAST_SAVE_S = 600.0
"""Time after the last step in which a checkpoint or an output that cannot be written is tried again."""
_RETRY_EVERY_S = 1.0
_SAY_RETRY_EVERY_S = 30.0
_PROGRESS_EVERY_S = 5.0
_PAUSE_S = 0.2
"""Time between two looks of a paused training for requests."""
_SEED_OF_STEPS = 500_009
"""Added to the seed for the random numbers of the steps, which are others than those of the first weights."""
_SECONDS_PER_MINUTE = 60


def run(train: Callable[["Worker", C], None], flags: Flags[C]) -> None:
    """Run `train(worker, config)` in this process, one of several ranks or the only one, and record how it ended.

    Raises:
        SystemExit: code 1 and a message, without a traceback, for a mistake of the user's under plain `python`.
    """
    with StopRequest() as stop:

        @record  # writes the traceback where torchrun asks for it
        def recorded() -> None:
            die_with_agent()
            adopt_rank(os.environ, sys.argv[0])
            worker = Worker(flags, stop)
            try:
                worker.prepare()
                with compile_errors():
                    train(worker, cast(C, worker.config))
                worker._complete_save()
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
    """One process of a training, and its part of the run directory."""

    def __init__(self, flags: Flags[Any], stop: StopRequest) -> None:
        self.flags = flags
        timeout = timedelta(seconds=flags.config.collective_timeout_min * _SECONDS_PER_MINUTE)
        self.ranks = Ranks(timeout, shards=flags.config.strategy == "fsdp")
        self.rank, self.world_size, self.is_main = self.ranks.rank, self.ranks.world_size, self.ranks.is_main
        self.device = self.ranks.device
        self.config: TrainConfig = flags.config.replace(precision=resolved(flags.config.precision, self.ranks))
        """The values of `flags`, with what `precision="auto"` is here."""
        self.attempt = int(os.environ.get(ATTEMPT_VARIABLE, "1"))
        self.initial_state = InitialState()
        self.progress = Progress()
        self.metrics: dict[str, float] = {}
        """Last value of every metric."""
        self.stopped = False
        self.bases: dict[str, dict[str, Any]] | None = None
        """Frozen model under the adapter, by field of the config; None without an adapter."""
        self._weights: dict[str, WeightsReport] = {}
        """Weights that the models took from files, by field of the config."""
        self._measured: tuple[int, Mapping[str, float]] = (-1, {})
        self._step_metrics: dict[str, float] = {}
        """Values that `samples_per_s` has measured beside, for the next row."""
        # Not of a sharded model: its forward passes are collectives, in which a rank waits, too.
        has_arrivals = self.world_size > 1 and flags.config.strategy == "ddp"
        self._clock = StepClock(self.device, flags.config.gradient_accumulation_steps * has_arrivals)
        self._peak_samples_per_s = 0.0
        """Samples of all ranks per second if their FLOPs ran at the rate of a large matrix product; 0 if unknown."""
        self._compiled = (0, 0, 0.0)
        self._tested: list[Checkpoint | None] = []
        """The checkpoint whose test is measured, None for the last weights; empty outside a test."""
        self._data: dict[str, Any] | None = None
        self._optimizers: tuple[Optimizer, ...] = ()
        self._saves = ShardedSaves(self.rank, self.ranks.saving)
        self._step_to_save = 0
        self._write: Callable[[], object] | None = None
        """Writes the newest checkpoint, or starts to; every rank calls it."""
        self._failed: OSError | None = None
        """Error of the newest checkpoint (rank 0)."""
        self._took_s = 0.0
        """Duration of the newest attempt to write."""
        self._failed_since = 0.0
        """Monotonic time of the first error after the last step."""
        self._unsaved_since: int | None = None
        """Step of the newest checkpoint, if the last one could not be written."""
        self._sharded: list[torch.nn.Module] = []
        self.files = RunDir(self.ranks.from_main(lambda: claim_run(flags)))
        check_shared(self.ranks, self.files)
        self._requests = AppliedRequests(self.files, self.ranks, self.attempt, self.say)
        self._vote = Vote(stop, self.ranks.control, self._requests.num_waiting)
        self.heartbeat = HeartbeatWriter(self.files, self.rank, stop)
        self._writer = MetricWriter(self.files.metrics, self.attempt) if self.is_main else None
        self._outputs: Outputs | None = None
        self._said = 0.0
        set_tf32(self.device, self.config.precision)
        seed_everything(self.config.seed, self.rank, deterministic=self.config.deterministic)
        if self.is_main:
            checkpoint.remove_leftovers(self.files.checkpoints)
            self._forget_unsaved()
            with contextlib.suppress(OSError):
                reserve(self.files.finished)
        for note in flags.notes:
            self.say(f"note: {note}")

    def prepare(self) -> None:
        """Open the outputs that the config asks for, and the checkpoint that `--resume-from` names.

        Raises:
            ConfigError: `save_dir` cannot be written, or a package is missing.
            CheckpointError: the checkpoint is missing, incomplete, damaged or of another recipe.
        """

        def open_outputs() -> None:
            root, device = self.project.root, self.device
            self._outputs = Outputs(self.files, self.config, root, device, self.say, self._may_retry)

        self.ranks.from_main(open_outputs)
        be_quiet()
        self.bases = self.ranks.from_main(lambda: bases_of(self.config))
        if self.flags.resume_from is not None:
            start = self.flags.resume_from
            self.initial_state = open_initial_state(start, self.config, self.bases, self.ranks, self.say)
            self.progress = dataclasses.replace(self.initial_state.progress)
            self.metrics = dict(self.initial_state.metrics)
        self.phase("data")

    @property
    def project(self) -> Project:
        """The project that the run belongs to."""
        return own_project()

    # --- before the first step --------------------------------------------------------------------

    def plan(self, num_train: int, num_eval: int, num_test: int = 0, data: DataDigest | None = None) -> Plan:
        """Plan the steps that are left, from the number of samples.

        Args:
            data: digest of the data, for the checkpoints of this training, and to compare with that of the initial one.

        Raises:
            DataError: there are too few samples.
            CheckpointError: the checkpoint is of other data, which the user has not asked for.
        """
        if data is not None:
            self._data = now = recorded_data(data, self.flags.config)
            self.ranks.from_main(lambda: self.initial_state.check_data(now, self.flags, self.files, self.say))
        schedule = Schedule.of(self.config, self.world_size, num_train, num_eval, num_test)
        return Plan.of(self.config, schedule, self.progress, self.rank, self.world_size)

    def build(self, compute: Callable[[], T]) -> T:
        """Build models on every rank, rank 0 first; those that are sharded have all their weights after `wrap` only.

        Whole ones for GPUs are built one by one: each takes the host's memory until `wrap` moves it.
        """
        if self.config.strategy == "ddp":
            return self.ranks.in_turn(compute, one_by_one=self.device.type == "cuda")
        with building(is_main=self.is_main):
            return self.ranks.in_turn(compute)

    def wrap(
        self, module: torch.nn.Module, *, find_unused_parameters: Callable[[], bool] = lambda: False
    ) -> torch.nn.Module:
        """Move a module to this rank's device; with several ranks, DDP averages its gradients, or FSDP2 shards it.

        Weights are loaded afterwards, so that a rank reads only those it keeps.

        Args:
            find_unused_parameters: whether the module has weights that its loss does not depend on; called for DDP.

        Raises:
            ConfigError: the config asks for gradient checkpointing or sharding, which the model does not support.
        """
        for part in module.modules():
            if (report := getattr(part, "weights_report", None)) is not None:
                self._weights["judge_name" if "model_name" in self._weights else "model_name"] = report
        if self.config.gradient_checkpointing:
            enable_gradient_checkpointing(module)
        has_unused = self.world_size > 1 and self.config.strategy == "ddp" and find_unused_parameters()
        cast_frozen(module, TYPES.get(self.config.precision))
        if self.config.strategy == "fsdp":
            shard(module, self.device, TYPES.get(self.config.precision), self.world_size)
            self._sharded.append(module)
            return module
        module = module.to(self.device)
        if self.config.compile:
            compile_forward(module)
            self.say("compile=True: the first steps compile the model, for minutes if it is large")
        if self.world_size == 1:
            return module
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        parallel = DistributedDataParallel(
            module, device_ids=device_ids, gradient_as_bucket_view=True, find_unused_parameters=has_unused
        )
        # Buffers are constants and equal by now, unless they are running statistics: no collective in a forward pass.
        parallel.broadcast_buffers = any(isinstance(part, _BatchNorm) for part in module.modules())
        return parallel

    def batches(self, dataset: Dataset[Any], order: Sampler[Any]) -> Iterator[tuple[torch.Tensor, ...]]:
        """Iterate over `dataset[epoch, indices]` in the given order, on this rank's device."""
        loaded = load(dataset, order, self.config.num_workers, pin_memory=self.device.type == "cuda")
        while True:
            self.phase("data")
            with self._clock.waiting():
                batch = tuple(part.to(self.device, non_blocking=True) for part in next(loaded))
            yield batch

    def begin(self, plan: Plan, optimizers: Optimizer | Mapping[str, Optimizer], tally: Tally, **derived: Any) -> None:
        """Restore optimizers, sums and random numbers from the checkpoint, report the start, and start the clock.

        The last call before the loop: random numbers that are drawn after it differ from those of the checkpoint.

        Args:
            optimizers: one, or several by the key of their state in a checkpoint.
            **derived: `num_parameters`, `vocab_size`, `flops_per_sample` (for the model FLOPs utilization),
                `hub_commits` of the data, and other values that the recipe computed, for config.json.
        """
        initial = self.initial_state
        has_weights = initial.model is not None or initial.weights is not None
        assert initial.is_loaded or not has_weights, "the recipe loads the checkpoint's weights first"
        if isinstance(optimizers, Optimizer):
            optimizers.load_state_dict(initial.state)
            self._optimizers = (optimizers,)
        else:
            for key, each in optimizers.items():
                each.load_state_dict(initial.state.get(key, {}))
            self._optimizers = tuple(optimizers.values())
        tally.load_state_dict(initial.rank_state)
        trained = sum(weight.numel() for optimizer in self._optimizers for weight in optimizer.weights)
        if trained < derived["num_parameters"]:
            derived["num_trained_parameters"] = trained
        if initial.report is not None:
            self._weights["resume_from"] = initial.report
        if self.is_main:
            derived["weights"], root = self._weights, self.project.root
            asked, precision = self.flags, self.config.precision
            self.say(write_startup_report(self.files, asked, precision, self.ranks, plan, derived, root, self.attempt))
        # Weights are built with values on rank 0 only if they are sharded: dropout must not depend on that.
        seed_everything(self.config.seed + _SEED_OF_STEPS, self.rank, deterministic=False)
        if "random" in initial.rank_state:  # a rank that the earlier training did not have keeps its own
            set_random_state(initial.rank_state["random"])
        initial.release()
        if self.device.type == "cuda" and self.is_main and (flops := derived.get("flops_per_sample")):
            rate = self.world_size * matmul_rate(self.device, self.config.precision)
            self._peak_samples_per_s = rate / flops
        self._requests.continue_from(self.progress.step, self.flags.steered)
        self._clock.start(self.progress.samples)

    # --- the run directory and the log ------------------------------------------------------------

    def phase(self, name: str) -> None:
        """Enter a phase; the heartbeat thread writes it to the run directory once a second."""
        self.heartbeat.enter(name, self.progress.step)
        self._clock.enter(name)

    @contextlib.contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Run a phase other than training, whose time does not count in the throughput."""
        self.phase(name)
        with self._clock.aside():
            yield

    def samples_per_s(self) -> float:
        """Return samples of all ranks per second since the last call, without evaluation and checkpoints.

        Waiting, model FLOPs utilization and peak memory are in the next row; every rank calls it.
        """
        rate, data_wait, seconds, own_s = self._clock.lap(self.progress.samples)
        self._step_metrics = self._compare_steps(rate, data_wait, seconds, own_s)
        return rate

    def say(self, text: str) -> None:
        """Print on rank 0 only; a full disk loses the line, not the training."""
        if self.is_main:
            with contextlib.suppress(OSError):
                print(text, flush=True)

    def show(self, name: str, item: MediaItem) -> None:
        """Append a media item to the run directory (rank 0)."""
        if self.is_main and not self._tested:
            with contextlib.suppress(OSError):  # a full disk does not end the training
                media.append(self.files.media, name, self.progress.step, item)

    # --- steps ------------------------------------------------------------------------------------

    def sum(self, values: Sequence[float] | torch.Tensor) -> list[float]:
        """Return each of the values added up over all ranks, in double precision."""
        if self.world_size > 1:
            self.phase("collective")
        sums = self.ranks.sum(values)
        self._clock.leave()
        return sums

    def steps(self, plan: Plan) -> Iterator[int]:
        """Yield the numbers of the steps that are left, of which steering may change the last; holds a pause."""
        step = plan.first_step
        while step <= plan.total_steps:
            yield step
            if self._requests.is_paused:
                self._pause(plan, step)
                if self.stopped:
                    return
            step += 1

    def advance(self, plan: Plan) -> Due:
        """Count an optimizer step and return the actions due after it; every rank calls it once per step."""
        self.stop_agreed()
        ends_epoch = plan.count(self.progress)
        self._steer(plan)
        return plan.due(self.progress.step, self._requests.due, ends_epoch=ends_epoch, stop=self.stopped)

    def stop_agreed(self) -> bool:
        """Whether all ranks stop after this step; every rank calls it once per step."""
        self.stopped = self._vote.agreed()
        return self.stopped

    def _steer(self, plan: Plan) -> None:
        before = plan.config, plan.total_steps
        self._requests.apply(plan, self.progress.step, takes_requests=self._vote.has_requests)
        if (plan.config, plan.total_steps) != before:
            for optimizer in self._optimizers:
                optimizer.replan(plan.config, plan.total_steps)

    def _pause(self, plan: Plan, step: int) -> None:
        """Hold this rank after a step, until the owner continues the training or a stop is agreed on."""
        self.say(f"paused after step {step}: nbtools steer {self.files.id} continue")
        with self.aside("paused"):
            while self._requests.is_paused and not self.stopped:
                time.sleep(_PAUSE_S)
                self.stopped = self._vote.at_once()
                self._steer(plan)

    def end_step(self, values: Mapping[str, float], total_steps: int) -> None:
        """Append the metric row of the step, if it has one, and print a row every few seconds (rank 0)."""
        if self.config.profile_steps:
            with self.aside("profile"):  # on all ranks: stragglers are found by the order of phases
                if self._outputs is not None:
                    self._outputs.end_step()
        for optimizer in self._optimizers:
            if optimizer.note:
                self.say(f"note: {optimizer.note}")
                optimizer.note = ""
        if self.config.compile and (compiled := compiled_graphs()) != self._compiled:
            self._compiled, (graphs, breaks, spent_s) = compiled, compiled
            counts = f"{plural(graphs, 'graph')}, {plural(breaks, 'graph break')}"
            self.say(f"compiled by step {self.progress.step} in {spent_s:.1f} s: {counts}")
        if not values:
            return
        values, self._step_metrics = {**values, **self._step_metrics}, {}
        if skipped := sum(optimizer.num_skipped for optimizer in self._optimizers):
            values = {**values, "train/skipped_steps": skipped}
            if skipped != self.metrics.get("train/skipped_steps") and self.config.precision != "fp16":
                self.say(f"warning: {plural(skipped, 'step')} skipped so far: the gradient norm was not finite")
        broken = [name for name, value in values.items() if not math.isfinite(value)]
        if broken and all(math.isfinite(value) for value in self.metrics.values()):
            self.say(f"warning: {', '.join(broken)} is not finite at step {self.progress.step}; training continues")
        self._measured = self.progress.step, values
        self._write_row(values)
        now = time.monotonic()
        if now - self._said >= _PROGRESS_EVERY_S or any("eval/" in name for name in values):
            numbers = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.say(f"step {self.progress.step}/{total_steps}  {numbers}")
            self._said = now

    def _compare_steps(self, rate: float, data_wait: float, seconds: float, own_s: list[float]) -> dict[str, float]:
        """Return the waits and the peak memory of the slowest rank, and the share of the peak rate, for a row."""
        if self.world_size > 1:
            self.phase("collective")
        peak_memory = torch.cuda.max_memory_allocated(self.device) / 1e9 if self.device.type == "cuda" else 0.0
        sums_s = [sum(own_s) if rank == self.rank else 0.0 for rank in range(self.world_size)]
        data_wait, peak_memory, *latest_s = self.ranks.max([data_wait, peak_memory, *sums_s, *own_s])
        self._clock.leave()
        row = {"train/data_wait": data_wait}
        if own_s:
            sums_s, latest_s = latest_s[: self.world_size], latest_s[self.world_size :]
            row["train/peer_wait"] = min(1.0, (sum(latest_s) - sum(sums_s) / self.world_size) / seconds)
        if self._peak_samples_per_s:
            row["train/mfu"] = rate / self._peak_samples_per_s
        return {**row, "system/peak_memory_gb": peak_memory} if peak_memory else row

    def _write_row(self, values: Mapping[str, float]) -> None:
        self.metrics.update(values)
        if self._writer is not None:
            self._writer.write(self.progress.step, values, samples=self.progress.samples)
            if self._outputs is not None:
                self._outputs.add_row(self.progress.step, values)

    # --- checkpoints, the test and the end --------------------------------------------------------

    def begin_test(self, plan: Plan) -> InitialState | None:
        """Return the best kept checkpoint, for its weights; every rank calls it. None without a test, or after a stop.

        It is empty, for the weights as they are, if no kept checkpoint was saved at an evaluation. The trained model is
        in `outputs/` from here on, because a test may be long, and be killed.
        """
        if self.stopped or not plan.schedule.num_tested:
            return None
        if any(self.sum([self._vote.stop.requested])):
            self.say("the test is skipped: a stop was requested after the last step")
            return None
        self._complete_save()
        with self.aside("checkpoint"):
            self._tested = [best := self.ranks.from_main(self._best)]
            self.ranks.from_main(lambda: self._outputs.place_model() if self._outputs else None)
        return InitialState(model=None if best is None else best.path / "model")

    def _best(self) -> Checkpoint | None:
        saved = [found for found in checkpoints_in(self.files.checkpoints) if found.step <= self.progress.step]
        for found in best_of(saved, len(saved)):
            try:
                found.verify()
                return found
            except CheckpointError as error:
                self.say(f"warning: {error}; the test takes the next best checkpoint")
        return None

    def end_test(self, values: Mapping[str, float]) -> None:
        """Record the `eval/…` values of the test as `test/…`, and show them beside those of the evaluation."""
        best = self._tested.pop()
        tested = {name.replace("eval/", "test/", 1): value for name, value in values.items()}
        self._write_row(tested)
        before = self.metrics if best is None else best.metrics
        rows = [(name[5:], f"{before.get(name, math.nan):.4g}", f"{value:.4g}") for name, value in values.items()]
        what = "the last weights"
        if best is not None:
            what = f"{best.name}, the best by {best.manifest.get('best_by')}"
            what += f" (outputs/model is that of step {self.progress.step})" * (best.step != self.progress.step)
        self.show("test", media.table(f"Test of {what}", ("metric", "evaluation", "test"), rows))
        self.say(f"test of {what}: " + "  ".join(f"{name} {value:.4g}" for name, value in tested.items()))

    def save(
        self,
        models: Mapping[str, PreTrainedModel],
        state: State,
        rank_state: State,
        *,
        write_more: Callable[[Path], object] = lambda folder: None,
        stage: str | None = None,
    ) -> None:
        """Save a checkpoint of the current step; every rank calls it, rank 0 writes while the others wait.

        Sharded models are copied to the CPU's memory, once the checkpoint before is complete; every rank writes its
        part of them while the training continues.

        If the disk is full, older checkpoints stay, a warning is printed, and training continues; `_complete_save`
        writes that of the last step again.

        Raises:
            DivergedError: a weight is not finite; nothing is written or removed.

        Args:
            models: by subfolder of the checkpoint's model; one alone has the name "".
            state: the same on all ranks: the optimizer's and others.
            rank_state: of this rank only; the state of its random number generators is added.
            write_more: writes what the models need beside them, such as a tokenizer, into the folder that it is given.
            stage: of the training; only checkpoints of the newest one's stage count as best.
        """
        batch, recipe = self.config.effective_batch(self.world_size), recipe_of(self.config)
        state = {**state, "recipe": recipe.key, "effective_batch": batch}
        more: dict[str, Any] = {"attempt": self.attempt, "base": self.bases, "data": self._data, "stage": stage}
        more |= {"steered": self._requests.values or None, "asked": "save" in self._requests.due or None}
        more |= {"best_by": recipe.best_by, "lower_is_better": recipe.lower_is_better}
        is_sharded = self.config.strategy == "fsdp"
        with self.aside("checkpoint"):
            self._end_save()
            self._step_to_save, self._failed = self.progress.step, None
            rank_states = self.ranks.gather({**rank_state, "random": random_state()})
            is_finite = all(optimizer.has_finite_weights() for optimizer in self._optimizers)
            if any(self.ranks.sum([not is_finite])):
                raise DivergedError(
                    f"some weights are not finite after step {self.progress.step}: no checkpoint is written; resume "
                    "from the latest checkpoint, whose weights are finite, with a lower learning_rate"
                )
            types = {part: model.dtype for part, model in models.items() if is_sharded}

            def write_model(folder: Path) -> None:
                for part, model in models.items():
                    save_model(model, folder / part, types.get(part))
                write_more(folder)

            save = functools.partial(
                checkpoint.save,
                self.files.checkpoints,
                dataclasses.replace(self.progress),
                write_model=write_model,
                metrics=self._measured[1] if self._measured[0] == self.progress.step else {},
                keep_last=self.config.keep_last,
                keep_best=self.config.keep_best,
                **more,
            )
            if is_sharded:
                weights = {part: saved_weights(model) for part, model in models.items()}
                shards, state = copied(weights, state, self.rank, self._saves.memory)
                self._write = lambda: self._saves.start(
                    shards, lambda write: save(write_shards=write, state=state, rank_states=rank_states)
                )
            else:
                # A collective of the next step would wait, too, but may time out before a slow disk is done.
                self._write = lambda: self.ranks.from_main(
                    lambda: self._try_to_save(lambda: save(state=state, rank_states=rank_states))
                )
            self._write()

    def _complete_save(self) -> None:
        """Write the checkpoint of the last step again, if that failed, while there is time; every rank calls it.

        Raises:
            CheckpointError: it could not be written.
        """
        with self.aside("checkpoint"):
            self._end_save()
            while self._write is not None and self.ranks.from_main(self._must_retry):
                self._failed = None
                self._write()
                self._end_save()

    def _end_save(self) -> None:
        """Wait for the sharded checkpoint that is being written, and free gathered weights; every rank calls it."""
        self._try_to_save(self._saves.wait)
        for module in self._sharded:
            release(module)

    def _try_to_save(self, save: Callable[[], object]) -> None:
        began = time.monotonic()
        try:
            save()
        except OSError as error:
            self._failed, step, self._took_s = error, self._step_to_save, time.monotonic() - began
            if not self._failed_since:
                self.say(f"warning: no checkpoint at step {step}: {error}; older ones are kept")
                record = {"step": step, "since": self._saved_step(), "error": error.strerror or str(error)}
                with contextlib.suppress(OSError):  # an earlier record stays
                    write_reserved_json(self.files.unsaved, record)
        else:
            if self.is_main and self._failed is None and self.files.unsaved.exists():
                self._forget_unsaved()

    def _forget_unsaved(self) -> None:
        with contextlib.suppress(OSError):
            self.files.unsaved.unlink(missing_ok=True)
            reserve(self.files.unsaved)

    def _saved_step(self) -> int:
        """Return the step of the newest checkpoint, else of the one that this run resumed; 0 without one."""
        saved = [found.step for found in checkpoints_in(self.files.checkpoints) if found.step <= self.progress.step]
        return max([self.initial_state.progress.step, *saved])

    def _must_retry(self) -> bool:
        """Whether to write the last checkpoint again, after a pause; CheckpointError if its time is over (rank 0)."""
        if self._failed is None or self._step_to_save != self.progress.step:
            return False
        if self._may_retry(f"the checkpoint of step {self.progress.step}", self._failed):
            return True
        self._unsaved_since = since = self._saved_step()
        lost = f"nothing was saved since step {since}" if since else "nothing was saved"
        raise CheckpointError(f"the last checkpoint could not be written: {lost} ({self._failed})")

    def _may_retry(self, what: str, error: OSError) -> bool:
        """Pause before another try to write after the last step, and return whether there is time for one (rank 0)."""
        now = time.monotonic()
        until = (self._failed_since or now) + LAST_SAVE_S
        if (asked := self._vote.stop.at) is not None:
            until = min(until, asked + stop_s(self.files))
        if now + _RETRY_EVERY_S + self._took_s > until:
            return False
        if not self._failed_since or now - self._said > _SAY_RETRY_EVERY_S:
            self.say(f"warning: {what} cannot be written: {error}; trying again for {spoken(until - now)}")
            self._said = now
        self._failed_since = self._failed_since or now
        time.sleep(_RETRY_EVERY_S)
        return True

    def finish(self, why: str, error: BaseException | None = None) -> None:
        """Record the end. A failed rank does not wait for the others, which torchrun ends."""
        outputs = self._outputs
        if self.is_main:
            self._requests.refuse_rest(self.progress.step, f"the training has {why} after step {self.progress.step}")
        if error is None:
            self._vote.count()
            with self.aside("outputs"):
                self.ranks.from_main(lambda: outputs.hand_over(draws=why == "completed") if outputs else None)
            if self.world_size > 1:
                self.phase("collective")
                self.ranks.barrier()  # no rank ends while another one still saves
            self.phase("done")
        self.heartbeat.close()
        if self._writer is not None:
            self._writer.close()
            failure = None if error is None else failure_of(error, self.rank, self.files)
            if failure is not None and self._unsaved_since is not None:
                failure = dataclasses.replace(failure, message=str(error))
            record = {
                "why": why,
                "step": self.progress.step,
                "metrics": {name: strict_number(value) for name, value in self.metrics.items()},
                "failure": failure and failure.to_json(),
                "time": time.time(),
                **({} if self._unsaved_since is None else {"unsaved_since": self._unsaved_since}),
                **({"outputs": outputs.problem} if outputs and outputs.problem else {}),
            }
            with contextlib.suppress(OSError):  # a full disk does not fail a completed training
                write_reserved_json(self.files.finished, record)
            if error is None:
                self.say(f"{why} at step {self.progress.step}")
        if error is None:
            self.ranks.close()
        if outputs is not None:  # last: it may wait for a service
            outputs.close(failed=error is not None)
