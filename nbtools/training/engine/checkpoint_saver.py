"""The checkpoints that a training saves: on one rank or all, the last one in several tries, and what is unsaved."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from nbtools.config import TrainConfig
from nbtools.errors import CheckpointError, DivergedError
from nbtools.recipes import recipe_of
from nbtools.run.checkpoints import Checkpoint, Progress, best_of, checkpoints_in
from nbtools.rundir.json_files import reserve, write_reserved_json
from nbtools.rundir.rundir import RunDir
from nbtools.training.engine import checkpoint
from nbtools.training.engine.checkpoint import State
from nbtools.training.engine.optimizer import Optimizer
from nbtools.training.engine.standalone import own_attempt
from nbtools.training.outputs.retries import Retries
from nbtools.training.process.random_state import random_state
from nbtools.training.process.ranks import Ranks
from nbtools.training.sharding.fsdp import release
from nbtools.training.sharding.sharded_checkpoint import ShardedSaves, copied
from nbtools.training.text.adapter import save_model, saved_weights


@dataclass(eq=False)
class CheckpointSaver:
    """Saves the checkpoints of one training; every rank calls `save` and `complete`."""

    files: RunDir
    config: TrainConfig
    ranks: Ranks
    progress: Progress
    retries: Retries
    """Further tries to write the last checkpoint, and the outputs after it."""
    say: Callable[[str], None]
    recorded: dict[str, Any] = field(default_factory=dict)
    """Further values of every manifest; None leaves one out."""
    optimizers: tuple[Optimizer, ...] = ()
    """The optimizers of the models that are saved."""
    resumed_step: int = 0
    """Step of the checkpoint that this training resumed; 0 from scratch."""
    unsaved_since: int | None = None
    """Step of the newest checkpoint, if the last one could not be written."""
    _step: int = 0
    """Step of the newest checkpoint that was to be written."""
    _write: Callable[[], object] | None = None
    """Writes the newest checkpoint, or starts to; every rank calls it."""
    _error: OSError | None = None
    """Error of the newest checkpoint (rank 0)."""

    def __post_init__(self) -> None:
        self._shards = ShardedSaves(self.ranks.rank, self.ranks.saving)
        if self.ranks.is_main:
            checkpoint.remove_leftovers(self.files.checkpoints)
            self._forget_unsaved()

    def save(
        self,
        models: Mapping[str, PreTrainedModel],
        state: State,
        rank_state: State,
        metrics: Mapping[str, float],
        write_more: Callable[[Path], object],
        stage: str | None,
    ) -> None:
        """Save a checkpoint of the current step; see `Worker.save`."""
        config, is_sharded = self.config, self.config.strategy == "fsdp"
        recipe, effective_batch = recipe_of(config), config.effective_batch(self.ranks.world_size)
        state = {**state, "recipe": recipe.key, "effective_batch": effective_batch}
        self._end()
        self._step, self._error = self.progress.step, None
        rank_states = self.ranks.gather({**rank_state, "random": random_state()})
        is_finite = all(optimizer.has_finite_weights() for optimizer in self.optimizers)
        if any(self.ranks.sum([not is_finite])):
            raise DivergedError(
                f"some weights are not finite after step {self._step}: no checkpoint is written; resume "
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
            metrics=metrics,
            keep_last=config.keep_last,
            keep_best=config.keep_best,
            stage=stage,
            attempt=own_attempt(),
            best_by=recipe.best_by,
            lower_is_better=recipe.lower_is_better,
            **self.recorded,
        )
        if is_sharded:
            weights = {part: saved_weights(model) for part, model in models.items()}
            shards, state = copied(weights, state, self.ranks.rank, self._shards.memory)
            self._write = lambda: self._shards.start(
                shards, lambda write: save(write_shards=write, state=state, rank_states=rank_states)
            )
        else:
            # A collective of the next step would wait, too, but may time out before a slow disk is done.
            self._write = lambda: self.ranks.from_main(
                lambda: self._try(lambda: save(state=state, rank_states=rank_states))
            )
        self._write()

    def complete(self) -> None:
        """Write the checkpoint of the last step again, if that failed, while there is time.

        Raises:
            CheckpointError: it could not be written.
        """
        self._end()
        while self._write is not None and self.ranks.from_main(self._must_retry):
            self._error = None
            self._write()
            self._end()

    def best(self) -> Checkpoint | None:
        """Return the best kept checkpoint that verifies; None if none was saved at an evaluation (rank 0)."""
        saved = self._saved()
        for found in best_of(saved, len(saved)):
            try:
                found.verify()
                return found
            except CheckpointError as error:
                self.say(f"warning: {error}; the test takes the next best checkpoint")
        return None

    def _saved(self) -> list[Checkpoint]:
        """Return the checkpoints of this training: an earlier attempt may have left later ones."""
        return [found for found in checkpoints_in(self.files.checkpoints) if found.step <= self.progress.step]

    def _end(self) -> None:
        """Wait for the sharded checkpoint that is being written, and free gathered weights."""
        self._try(self._shards.wait)
        for optimizer in self.optimizers:
            release(optimizer.model)

    def _try(self, save: Callable[[], object]) -> None:
        try:
            save()
        except OSError as error:
            self._error = error
            if self.retries.since is None:
                self.say(f"warning: no checkpoint at step {self._step}: {error}; older ones are kept")
                record = {"step": self._step, "since": self._saved_step(), "error": error.strerror or str(error)}
                with contextlib.suppress(OSError):  # an earlier record stays
                    write_reserved_json(self.files.unsaved, record)
        else:
            if self.ranks.is_main and self._error is None and self.files.unsaved.exists():
                self._forget_unsaved()

    def _forget_unsaved(self) -> None:
        with contextlib.suppress(OSError):
            self.files.unsaved.unlink(missing_ok=True)
            reserve(self.files.unsaved)

    def _saved_step(self) -> int:
        """Return the step of the newest checkpoint, else of the one that this run resumed; 0 without one."""
        return max([self.resumed_step, *(found.step for found in self._saved())])

    def _must_retry(self) -> bool:
        """Whether to write the last checkpoint again, after a pause; CheckpointError if its time is over (rank 0)."""
        if self._error is None or self._step != self.progress.step:
            return False
        if self.retries.may_retry(f"the checkpoint of step {self._step}", self._error):
            return True
        self.unsaved_since = since = self._saved_step()
        lost = f"nothing was saved since step {since}" if since else "nothing was saved"
        raise CheckpointError(f"the last checkpoint could not be written: {lost} ({self._error})")
