"""Number of samples, epochs and optimizer steps of a training, for the form, the preflight and the training."""

import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from nbtools.config import TrainConfig
from nbtools.errors import DataError
from nbtools.recipes import recipe_of
from nbtools.recipes.recipe import SampleCounts

LARGEST_COUNTED_BYTES = 64 * 2**20
"""`schedule` does not count larger datasets, so that a form answers quickly. The training always counts."""

_MOVED = 0.2
"""Share by which a resume may move the learning rate without a note."""


@dataclass(frozen=True)
class Schedule:
    """Number of samples and optimizer steps of a training."""

    num_train_samples: int
    num_eval_samples: int
    effective_batch: int
    """Samples per optimizer step: per process x accumulated x processes."""
    steps_per_epoch: int
    total_steps: int
    num_evaluated: int
    """Evaluation samples that an evaluation measures."""
    num_test_samples: int = 0
    num_tested: int = 0
    """Test samples that are measured, once, at the end."""
    checkpoint_chosen_by: str = "evaluation: lowest eval/loss"
    """Part of the data and metric by which the best checkpoint is chosen."""
    note: str = ""
    """A sentence on texts that occur more than once, where the form or the preflight counts; empty without any."""

    @property
    def held_out(self) -> str:
        """A sentence with the number of held-out samples that are measured, their total, and their purpose."""
        parts = ((self.num_evaluated, self.num_eval_samples), (self.num_tested, self.num_test_samples))
        evaluated, tested = (f"{part:,} of {whole:,}" if part < whole else f"{whole:,}" for part, whole in parts)
        choice = f"{self.checkpoint_chosen_by.removeprefix('evaluation: ')} chooses the best checkpoint"
        more = f"; {self.note}" * bool(self.note)
        if not self.num_tested:
            return f"{evaluated} evaluation samples: the {choice}, which they also measure; no test samples{more}"
        return f"{evaluated} evaluation samples: the {choice}, and {tested} test samples measure it{more}"

    @classmethod
    def of(
        cls, config: TrainConfig, world_size: int, num_train: int, num_eval: int, num_test: int = 0, *, note: str = ""
    ) -> Self:
        """Derive the steps from the number of samples; every training uses this function.

        Every optimizer step is a full one: the rest of an epoch is dropped, and each epoch shuffles again.

        Raises:
            DataError: there are too few samples for one optimizer step, or none to evaluate on.
        """
        effective_batch = config.effective_batch(world_size)
        if num_train < effective_batch:
            raise DataError(
                f"{num_train} training samples are too few for one step of {config.batch_size} per process x "
                f"{config.gradient_accumulation_steps} accumulated x {world_size} processes = {effective_batch}; "
                "lower batch_size or nproc_per_node, or give more data"
            )
        if num_eval < 1:
            few = "no full sample is left to evaluate on"
            raise DataError(f"{few}; lower sequence_length or test_fraction, or give more data")
        steps_per_epoch = num_train // effective_batch
        total_steps = config.epochs * steps_per_epoch
        if config.max_steps is not None:
            total_steps = min(total_steps, config.max_steps)
        measured = config.num_evaluated(num_eval), num_test, config.num_evaluated(num_test)
        choice = f"evaluation: {recipe_of(config).choice}"
        return cls(num_train, num_eval, effective_batch, steps_per_epoch, total_steps, *measured, choice, note)


_OF_SCHEDULE = "lr_schedule", "decay_ratio"
_LATER_FIELDS = {"min_learning_rate": 0.0, "warmup_steps": None, "decay_ratio": 0.1}
"""Meaning of a checkpoint from before these fields."""


def learning_rate(config: TrainConfig | SimpleNamespace, step: int, total_steps: int) -> float:
    """Return the learning rate of the optimizer step `step` (counted from 1): linear warm-up, then the decay."""
    peak, floor, start = config.learning_rate, config.min_learning_rate, config.warmup_steps
    if start is None:
        start = round(config.warmup_ratio * total_steps)
    if step <= start:
        return float(peak * step / start)
    if config.lr_schedule == "wsd":
        start = max(start, total_steps - round(config.decay_ratio * total_steps))
    if config.lr_schedule == "constant" or step <= start:
        return float(peak)
    done = (step - start) / (total_steps - start + 1)
    left = (1 + math.cos(math.pi * done)) / 2 if config.lr_schedule == "cosine" else 1 - done
    return float(floor + (peak - floor) * left)


def rate_settings(config: TrainConfig, total_steps: int) -> dict[str, Any]:
    """Return the values that the learning rates of a training depend on."""
    values = config.model_dump(mode="json")
    names = [name for name in values if "learning_rate" in name or "warmup" in name or name in _OF_SCHEDULE]
    return {**{name: values[name] for name in names}, "total_steps": total_steps}


def moved_rate(
    before: Mapping[str, Any], after: Mapping[str, Any], step: int, rates: tuple[float, float] | None = None
) -> str:
    """Return a note if a resume after `step` moves the learning rate by more than a fifth, else an empty text.

    Args:
        before: the `rate_settings` until now.
        after: those from here on. The same ones give no note: the rate then moves as it does without a resume.
        rates: learning rates of `step` and of the next one; None to compute them.
    """
    before = {**_LATER_FIELDS, **before}
    old, total = SimpleNamespace(**before), before["total_steps"]
    last = learning_rate(old, step, total) if rates is None else rates[0]
    now = learning_rate(SimpleNamespace(**after), step + 1, after["total_steps"]) if rates is None else rates[1]
    usual = learning_rate(old, step + 1, total) if step < total and rates is None else last
    changed = [f"{name} {before.get(name)} -> {value}" for name, value in after.items() if before.get(name) != value]
    if not changed or any(abs(now - rate) <= _MOVED * rate for rate in (last, usual)):
        return ""
    return (
        f"the learning rate was {last:.1e} at step {step} and is {now:.1e} at step {step + 1} ({', '.join(changed)}): "
        "the loss may jump; choose learning_rate and lr_schedule for the steps that are left"
    )


def evaluation_in_words(config: TrainConfig) -> str:
    """Return a sentence on evaluations and the choice of the best checkpoint, if the samples are not counted."""
    most = config.num_evaluated(sys.maxsize)
    samples = "all held-out samples" if most == sys.maxsize else f"at most {most:,} held-out samples"
    return f"evaluations measure {samples}; the {recipe_of(config).choice} chooses the best checkpoint"


def schedule(
    config: TrainConfig, world_size: int, *, root: str | Path | None = None, largest_bytes: int = LARGEST_COUNTED_BYTES
) -> Schedule | None:
    """Count the samples and steps that `config` means on `world_size` processes.

    None where only the training can count: the tokenizer comes with a pretrained model, or the dataset is larger than
    `largest_bytes` (seven megabytes take about a second). Relative dataset paths start from `root`; default: the
    project of the working directory.

    Raises:
        DataError: the dataset is missing, malformed, or too small.
    """
    recipe = recipe_of(config)
    root = None if root is None else Path(root)
    facts = [(str(file), file.stat()) for file in recipe.source(config, root).files]
    if sum(fact.st_size for _, fact in facts) > largest_bytes:
        return None
    fingerprint = tuple((name, fact.st_size, fact.st_mtime_ns) for name, fact in facts)
    counted = _counted(config.only(*recipe.counted_by) if recipe.counted_by else config, root, fingerprint)
    return None if counted is None else Schedule.of(config, world_size, *counted[:3], note=counted.note)


@functools.lru_cache(maxsize=64)
def _counted(config: TrainConfig, root: Path | None, fingerprint: object) -> SampleCounts | None:
    """Return the numbers of samples; files with another `fingerprint` are counted again."""
    return recipe_of(config).count_samples(config, root)
