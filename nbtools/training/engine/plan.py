"""The plan of a training: number of steps, order of samples, and the actions due after each step."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nbtools.config import TrainConfig
from nbtools.errors import ConfigError
from nbtools.launcher.checks.step_count import Schedule
from nbtools.run.checkpoints import Progress
from nbtools.training.engine.sampler import SampleOrder


@dataclass(frozen=True)
class Due:
    """Actions due after an optimizer step."""

    log: bool
    evaluation: bool
    checkpoint: bool


@dataclass
class Plan:
    """The remaining steps of one rank; steering may change `config` and `total_steps` between two steps."""

    config: TrainConfig
    schedule: Schedule
    first_step: int
    """Number of the next step; steps count from 1."""
    last_step: int
    """Number of the last step of the last epoch."""
    order: SampleOrder
    """This rank's samples, from the current position."""

    @classmethod
    def of(cls, config: TrainConfig, schedule: Schedule, progress: Progress, rank: int, world_size: int) -> "Plan":
        """Plan from `progress`, which moves to the next epoch if the rest of this one does not fill a step."""
        size = (schedule.effective_batch, schedule.num_train_samples)
        progress.settle(*size)
        last_step = progress.step + progress.steps_left(*size, config.epochs)
        place: dict[str, Any] = {"rank": rank, "world_size": world_size}
        place |= {"epoch": progress.epoch, "position": progress.position}
        place |= {"gradient_accumulation_steps": config.gradient_accumulation_steps, "seed": config.seed}
        order = SampleOrder(schedule.num_train_samples, config.batch_size, **place)
        return cls(config, schedule, progress.step + 1, last_step, order)

    @property
    def total_steps(self) -> int:
        """Number of the last step."""
        return min(self.last_step, self.config.max_steps or self.last_step)

    def change(self, values: Mapping[str, Any], step: int) -> None:
        """Change values of the config for the steps after `step`.

        Raises:
            ConfigError: a field cannot be changed while a training runs, or a value is not allowed; nothing changes.
        """
        config = self.config.steered(values)
        end = config.max_steps
        if "max_steps" in values and end is not None and not step <= end <= self.last_step:
            why = f"step {step} is done" if end < step else f"epochs={config.epochs} ends at step {self.last_step}"
            raise ConfigError(f"max_steps={end}: {why}; give {step} to {self.last_step}")
        self.config = config

    def count(self, progress: Progress) -> bool:
        """Count an optimizer step; return whether it was the last of its epoch."""
        return progress.advance(self.schedule.effective_batch, self.schedule.num_train_samples)

    def due(self, step: int, asked: Collection[str] = (), *, ends_epoch: bool = False, stop: bool = False) -> Due:
        """Return the actions due after `step`, those that the owner `asked` for included."""
        config, is_last = self.config, step == self.total_steps
        saves_epoch = ends_epoch and config.checkpoint_epochs
        return Due(
            log=step % config.log_every == 0 or is_last,
            evaluation=step % config.eval_every == 0 or is_last or "evaluate" in asked,
            checkpoint=step % config.checkpoint_every == 0
            or saves_epoch
            or stop
            or is_last
            or not {"save", "pause"}.isdisjoint(asked),
        )

    def epochs(self, progress: Progress) -> float:
        """Return the number of epochs done, with the fraction of the current one."""
        return progress.epoch + progress.position / self.schedule.num_train_samples
