"""The plan of a training: number of steps, order of samples, and the actions due after each step."""

from dataclasses import dataclass
from typing import Any

from nbtools.config import TrainConfig
from nbtools.launcher.checks.step_count import Schedule
from nbtools.run.checkpoints import Progress
from nbtools.training.engine.sampler import SampleOrder


@dataclass(frozen=True)
class Due:
    """Actions due after an optimizer step."""

    log: bool
    evaluation: bool
    checkpoint: bool
    stop: bool
    """A stop was requested: this was the last step."""


@dataclass(frozen=True)
class Plan:
    """The remaining steps of one rank."""

    config: TrainConfig
    schedule: Schedule
    first_step: int
    """Number of the next step; steps count from 1."""
    total_steps: int
    order: SampleOrder
    """This rank's samples, from the current position."""

    @classmethod
    def of(cls, config: TrainConfig, schedule: Schedule, progress: Progress, rank: int, world_size: int) -> "Plan":
        """Plan from `progress`, which moves to the next epoch if the rest of this one does not fill a step."""
        size = (schedule.effective_batch, schedule.num_train_samples)
        progress.settle(*size)
        total_steps = progress.step + progress.steps_left(*size, config.epochs)
        place: dict[str, Any] = {"rank": rank, "world_size": world_size}
        place |= {"epoch": progress.epoch, "position": progress.position}
        place |= {"gradient_accumulation_steps": config.gradient_accumulation_steps, "seed": config.seed}
        order = SampleOrder(schedule.num_train_samples, config.batch_size, **place)
        return cls(config, schedule, progress.step + 1, min(total_steps, config.max_steps or total_steps), order)

    def advance(self, progress: Progress, *, stop: bool) -> Due:
        """Count an optimizer step and return the actions due after it."""
        ends_epoch = progress.advance(self.schedule.effective_batch, self.schedule.num_train_samples)
        step, config = progress.step, self.config
        is_last = step == self.total_steps
        saves_epoch = ends_epoch and config.checkpoint_epochs
        return Due(
            log=step % config.log_every == 0 or is_last,
            evaluation=step % config.eval_every == 0 or is_last,
            checkpoint=step % config.checkpoint_every == 0 or saves_epoch or stop or is_last,
            stop=stop,
        )

    def epochs(self, progress: Progress) -> float:
        """Return the number of epochs done, with the fraction of the current one."""
        return progress.epoch + progress.position / self.schedule.num_train_samples
