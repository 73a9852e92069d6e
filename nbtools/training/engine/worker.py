"""Services for a recipe's loop: phases, stop requests, sums, metric rows, checkpoints.

The same code runs under torchrun, on GPUs (NCCL) and CPUs (gloo), and under plain `python` as one process. The loop
belongs to the recipe; nothing here calls back into it.
"""

import contextlib
import dataclasses
import itertools
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
from nbtools.errors import NbtoolsError, plural
from nbtools.launcher.checks.step_count import Schedule
from nbtools.metrics.writer import MetricWriter
from nbtools.project import Project
from nbtools.run.checkpoints import Progress
from nbtools.rundir.json_files import reserve, strict_number, write_reserved_json
from nbtools.rundir.media import MediaItem
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine.applied_requests import AppliedRequests
from nbtools.training.engine.checkpoint import State
from nbtools.training.engine.checkpoint_saver import CheckpointSaver
from nbtools.training.engine.flags import Flags
from nbtools.training.engine.initial_state import InitialState, open_initial_state, recorded_data
from nbtools.training.engine.optimizer import (
    TYPES,
    Optimizer,
    accumulating,
    autocast,
    compile_errors,
    compile_forward,
    compiled_graphs,
    enable_gradient_checkpointing,
)
from nbtools.training.engine.plan import Due, Plan
from nbtools.training.engine.precision import matmul_rate, resolved, set_tf32
from nbtools.training.engine.sampler import load
from nbtools.training.engine.standalone import check_shared, claim_run, own_attempt, own_project
from nbtools.training.engine.startup_report import write_startup_report
from nbtools.training.outputs.outputs import Outputs
from nbtools.training.outputs.profiler import Profile
from nbtools.training.outputs.retries import Retries
from nbtools.training.outputs.tally import Tally
from nbtools.training.outputs.training_log import TrainingLog
from nbtools.training.process.device import failure_of, is_under_torchrun, seed_everything
from nbtools.training.process.heartbeat_writer import HeartbeatWriter
from nbtools.training.process.phase_writer import PhaseWriter
from nbtools.training.process.random_state import set_random_state
from nbtools.training.process.rank_environment import adopt_rank
from nbtools.training.process.ranks import Ranks
from nbtools.training.process.signals import StopRequest, die_with_agent
from nbtools.training.process.step_clock import StepClock
from nbtools.training.process.vote import Vote
from nbtools.training.sharding.fsdp import blocks_of, layout_of, shard, without_weights
from nbtools.training.text.adapter import bases_of, cast_frozen
from nbtools.training.text.pretrained_models import be_quiet

C = TypeVar("C", bound=TrainConfig)
T = TypeVar("T")

_SEED_OF_STEPS = 500_009
"""Added to the seed for the random numbers of the steps, which are others than those of the first weights."""
_SECONDS_PER_MINUTE = 60
_AVERAGED = "evaluation", "checkpoint"
"""Phases in which the averages of the weights take their place."""
_PAUSE_S = 0.2
"""Time between two looks of a paused training for requests."""


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
            worker.finish("stopped" if worker.vote.is_agreed else "completed")

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
        self.rank, self.world_size = self.ranks.rank, self.ranks.world_size
        self.device = self.ranks.device
        self.config: TrainConfig = flags.config.replace(precision=resolved(flags.config.precision, self.ranks))
        """The values of `flags`, with what `precision="auto"` is here."""
        self.initial_state = InitialState()
        self.progress = Progress()
        self.vote = Vote(stop, self.ranks.control)
        self.files = RunDir(self.ranks.from_main(lambda: claim_run(flags)))
        check_shared(self.ranks, self.files)
        # Not of a sharded model: its forward passes are collectives, in which a rank waits, too.
        is_sharded, on_gpu = flags.config.strategy != "ddp", self.device.type == "cuda"
        num_passes = flags.config.gradient_accumulation_steps * (self.world_size > 1 and not is_sharded)
        heartbeat = HeartbeatWriter(self.files, self.rank, stop)
        phases = PhaseWriter(self.files.phases(self.rank), own_attempt(), on_gpu=on_gpu, is_sharded=is_sharded)
        self._clock = StepClock(heartbeat, phases, self.ranks, self.progress, num_passes)
        writer = MetricWriter(self.files.metrics, own_attempt()) if self.is_main else None
        self._log = TrainingLog(self.files, self.progress, writer)
        set_tf32(self.device, self.config.precision)
        seed_everything(self.config.seed, self.rank, deterministic=self.config.deterministic)
        retries = Retries(self.files, stop, self.say)
        self._saver = CheckpointSaver(self.files, self.config, self.ranks, self.progress, retries, self.say)
        self._requests = AppliedRequests(self.files, self.ranks, self.say)
        self.vote.num_waiting = self._requests.num_waiting
        self._outputs: Outputs | None = None
        if self.is_main:
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
            root, retry = self.project.root, self._saver.retries.may_retry
            self._outputs = Outputs(self.files, self.config, root, self.say, retry)
            self._log.mirror = self._outputs.add_row

        self.ranks.from_main(open_outputs)
        be_quiet()
        bases = self._saver.recorded["base"] = self.ranks.from_main(lambda: bases_of(self.config))
        if self.flags.resume_from is not None:
            initial = open_initial_state(self.flags.resume_from, self.config, bases, self.ranks, self.say)
            self.initial_state = initial
            vars(self.progress).update(vars(initial.progress))  # in place: others hold it, too
            self._saver.resumed_step = initial.progress.step
            self._log.metrics.update(initial.metrics)
        if self.config.profile_steps:
            self._profile(self.config.profile_steps)
        self.phase("data")

    def _profile(self, num_steps: int, **options: int) -> None:
        """Begin a profile on this rank; rank 0's is in the folder itself."""
        folder = self.files.profile / ("" if self.is_main else f"rank{self.rank}")
        self._log.profile = Profile(folder, num_steps, self.device, self.say, **options)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.ranks.is_main

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
            now = self._saver.recorded["data"] = recorded_data(data, self.flags.config)
            self.ranks.from_main(lambda: self.initial_state.check_data(now, self.flags, self.files, self.say))
        schedule = Schedule.of(self.config, self.world_size, num_train, num_eval, num_test)
        return Plan.of(self.config, schedule, self.progress, self.rank, self.world_size)

    def build(self, compute: Callable[[], T]) -> T:
        """Build models on every rank, rank 0 first; those that are sharded have all their weights after `wrap` only.

        Whole ones for GPUs are built one by one: each takes the host's memory until `wrap` moves it.
        """
        if self.config.strategy == "ddp":
            return self.ranks.in_turn(compute, one_by_one=self.device.type == "cuda")
        with contextlib.nullcontext() if self.is_main else without_weights():
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
        if self.config.gradient_checkpointing:
            enable_gradient_checkpointing(module)
        has_unused = self.world_size > 1 and self.config.strategy == "ddp" and find_unused_parameters()
        cast_frozen(module, TYPES.get(self.config.precision))
        if is_sharded := self.config.strategy == "fsdp":
            layout = layout_of(self.config, self.ranks)
            shard(module, self.device, TYPES.get(self.config.precision), layout)
            if layout.num_replicas > 1:
                self.say(f"weights are divided among {layout.num_shards} ranks, on each of {layout.num_replicas} nodes")
        else:
            module = module.to(self.device)
        if self.config.compile:
            for part in blocks_of(module) if is_sharded else [module]:
                compile_forward(part, only_training=is_sharded)
            self.say("compile=True: the first steps compile the model, for minutes if it is large")
        if is_sharded or self.world_size == 1:
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
            with self._clock.data():
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
            self._saver.optimizers = (optimizers,)
        else:
            for key, each in optimizers.items():
                each.load_state_dict(initial.state.get(key, {}))
            self._saver.optimizers = tuple(optimizers.values())
        tally.load_state_dict(initial.rank_state)
        every = self._saver.optimizers
        trained = sum(weight.numel() for optimizer in every for weight in optimizer.weights)
        if trained < derived["num_parameters"]:
            derived["num_trained_parameters"] = trained
        if self.is_main:
            reports = (getattr(part, "weights_report", None) for each in every for part in each.model.modules())
            weights = dict(zip(("model_name", "judge_name"), filter(None, reports), strict=False))
            derived["weights"] = weights | ({"resume_from": initial.report} if initial.report else {})
            precision = self.config.precision
            self.say(write_startup_report(self.files, self.flags, precision, self.ranks, plan, derived))
        # Weights are built with values on rank 0 only if they are sharded: dropout must not depend on that.
        seed_everything(self.config.seed + _SEED_OF_STEPS, self.rank, deterministic=False)
        if "random" in initial.rank_state:  # a rank that the earlier training did not have keeps its own
            set_random_state(initial.rank_state["random"])
        initial.release()
        if self.device.type == "cuda" and self.is_main and (flops := derived.get("flops_per_sample")):
            rate = self.world_size * matmul_rate(self.device, self.config.precision)
            self._clock.peak_samples_per_s = rate / flops
        self._requests.continue_from(self.progress.step, self.flags.steered)
        self._clock.phases.restart()
        self._clock.start()

    # --- the run directory and the log ------------------------------------------------------------

    def phase(self, name: str) -> None:
        """Enter a phase; the heartbeat thread writes it to the run directory once a second."""
        self._clock.enter(name)

    @contextlib.contextmanager
    def forward(self, model: torch.nn.Module, *, is_last: bool) -> Iterator[None]:
        """Run a forward pass in the config's precision; gradients are averaged over ranks in a step's last pass."""
        self.phase("forward")
        with accumulating(model, is_last=is_last), autocast(self.device, self.config.precision):
            yield

    def backward(self, optimizer: Optimizer, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, of the last forward pass."""
        self.phase("backward")
        optimizer.backward(loss)

    def update(self, optimizer: Optimizer, step: int, rate: float | None = None) -> None:
        """Do the optimizer step `step`; see `Optimizer.step`."""
        self.phase("optimizer")
        optimizer.step(step, rate)

    @contextlib.contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Run a phase other than training, whose time does not count in the throughput.

        In evaluations and checkpoints the averages of the weights take their place, where the config has some.
        """
        averages = [each.averages for each in self._saver.optimizers if each.averages and name in _AVERAGED]
        with self._clock.aside(name):
            for each in averages:
                each.exchange()
            try:
                yield
            finally:
                for each in averages:
                    each.exchange()

    def samples_per_s(self) -> float:
        """Return samples of all ranks per second since the last call, without evaluation and checkpoints.

        Waiting, model FLOPs utilization and peak memory are in the next row; every rank calls it.
        """
        rate, self._log.beside = self._clock.lap()
        return rate

    def say(self, text: str) -> None:
        """Print on rank 0 only; a full disk loses the line, not the training."""
        self._log.say(text)

    def show(self, name: str, item: MediaItem) -> None:
        """Append a media item to the run directory (rank 0)."""
        self._log.show(name, item)

    # --- steps ------------------------------------------------------------------------------------

    def sum(self, values: Sequence[float] | torch.Tensor) -> list[float]:
        """Return each of the values added up over all ranks, in double precision."""
        with self._clock.collective():
            return self.ranks.sum(values)

    def steps(self, plan: Plan) -> Iterator[int]:
        """Yield the numbers of the steps that are left, of which a request may change the last.

        Holds a pause between two steps. Ends after a stop, when the checkpoint of the step before is saved.
        """
        for step in itertools.count(plan.first_step):
            if self._requests.is_paused:
                self._pause(plan)
            elif self._requests.is_left(step - 1):
                self._apply_requests(plan, in_pause=True)
            if self.vote.is_agreed or step > plan.total_steps:
                return
            yield step

    def passes(self, batches: Iterator[T]) -> Iterator[tuple[T, bool]]:
        """Yield the batches of a step, one for each accumulated pass, and whether it is the last one."""
        for num_left in reversed(range(self.config.gradient_accumulation_steps)):
            yield next(batches), not num_left

    def advance(self, plan: Plan) -> Due:
        """Count an optimizer step and return the actions due after it; every rank calls it once per step."""
        stop, ends_epoch = self.stop_agreed(), plan.count(self.progress)
        self._apply_requests(plan)
        return plan.due(self.progress.step, self._requests.due, ends_epoch=ends_epoch, stop=stop)

    def stop_agreed(self) -> bool:
        """Whether all ranks stop after this step; every rank calls it once per step."""
        return self.vote.agreed()

    def _apply_requests(self, plan: Plan, *, in_pause: bool = False) -> None:
        before = plan.config, plan.total_steps
        self._requests.apply(plan, self.progress.step, takes_requests=self.vote.has_requests, in_pause=in_pause)
        if (plan.config, plan.total_steps) != before:
            for optimizer in self._saver.optimizers:
                optimizer.replan(plan.config, plan.total_steps)
        if "profile" in self._requests.due and self._log.profile is None:
            self._profile(5, num_skipped=1)  # the next five steps, without the current one

    def _pause(self, plan: Plan) -> None:
        """Hold this rank between two steps, until the owner continues the training or a stop is agreed on."""
        self.say(f"paused after step {self.progress.step}: nbtools steer {self.files.id} continue")
        with self.aside("paused"):
            while self._requests.is_paused and not self.vote.at_once():
                self._apply_requests(plan, in_pause=True)
                time.sleep(_PAUSE_S)

    def end_step(self, values: Mapping[str, float], total_steps: int) -> None:
        """Append the metric row of the step, if it has one, and print a row every few seconds (rank 0)."""
        if self._log.profile is not None:
            with self.aside("profile"):
                if self._log.profile.end_step():
                    self._log.profile = None
        for optimizer in self._saver.optimizers:
            if optimizer.note:
                self.say(f"note: {optimizer.note}")
                optimizer.note = ""
        if self.config.compile:
            self._log.say_compiled(*compiled_graphs())
        if not values:
            return
        if skipped := sum(optimizer.num_skipped for optimizer in self._saver.optimizers):
            values = {**values, "train/skipped_steps": skipped}
            if skipped != self._log.metrics.get("train/skipped_steps") and self.config.precision != "fp16":
                self.say(f"warning: {plural(skipped, 'step')} skipped so far: the gradient norm was not finite")
        self._log.add_row(values, total_steps)

    # --- checkpoints, the test and the end --------------------------------------------------------

    def begin_test(self, plan: Plan) -> InitialState | None:
        """Return the best kept checkpoint, for its weights; every rank calls it. None without a test, or after a stop.

        It is empty, for the weights as they are, if no kept checkpoint was saved at an evaluation. The trained model is
        in `outputs/` from here on, because a test may be long, and be killed.
        """
        if self.vote.is_agreed or not plan.schedule.num_tested:
            return None
        if any(self.sum([self.vote.stop.requested])):
            self.say("the test is skipped: a stop was requested after the last step")
            return None
        self._complete_save()
        with self.aside("checkpoint"):
            best = self.ranks.from_main(self._saver.best)
            self.ranks.from_main(lambda: self._outputs.place_model() if self._outputs else None)
        for optimizer in self._saver.optimizers:
            optimizer.keep_averages()
        self._log.begin_test(best)
        return InitialState(model=None if best is None else best.path / "model")

    def end_test(self, values: Mapping[str, float]) -> None:
        """Record the `eval/…` values of the test as `test/…`, and show them beside those of the evaluation."""
        self._log.end_test(values)

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
        steered, asked = self._requests.values or None, "save" in self._requests.due or None
        averaged = any(each.averages for each in self._saver.optimizers) or None
        self._saver.recorded |= {"steered": steered, "asked": asked, "averaged": averaged}
        with self.aside("checkpoint"):
            self._saver.save(models, state, rank_state, self._log.measured(), write_more, stage)

    def _complete_save(self) -> None:
        """Write the checkpoint of the last step again, if that failed, while there is time; every rank calls it.

        Raises:
            CheckpointError: it could not be written.
        """
        with self.aside("checkpoint"):
            self._saver.complete()

    def finish(self, why: str, error: BaseException | None = None) -> None:
        """Record the end. A failed rank does not wait for the others, which torchrun ends."""
        outputs, unsaved_since = self._outputs, self._saver.unsaved_since
        if error is None:
            if self._log.profile is not None:
                self._log.profile.close()
            self.vote.count()
            with self.aside("outputs"):
                self.ranks.from_main(lambda: outputs.hand_over(draws=why == "completed") if outputs else None)
            with self._clock.collective():
                self.ranks.barrier()  # no rank ends while another one still saves
            self.phase("done")
            self._clock.phases.write(self.progress.step)
        self._clock.heartbeat.close()
        self._log.close()
        if self.is_main:
            self._requests.refuse_rest(self.progress.step, f"the training has {why} after step {self.progress.step}")
            failure = None if error is None else failure_of(error, self.rank, self.files)
            if failure is not None and unsaved_since is not None:
                failure = dataclasses.replace(failure, message=str(error))
            record = {
                "why": why,
                "step": self.progress.step,
                "metrics": {name: strict_number(value) for name, value in self._log.metrics.items()},
                "failure": failure and failure.to_json(),
                "time": time.time(),
                **({} if unsaved_since is None else {"unsaved_since": unsaved_since}),
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
