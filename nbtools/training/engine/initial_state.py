"""Where a training starts from: from scratch, from a checkpoint, or from the weights that an older program saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from nbtools.errors import CheckpointError
from nbtools.project import expanded
from nbtools.run.checkpoints import Progress
from nbtools.training.engine import checkpoint
from nbtools.training.engine.checkpoint import State
from nbtools.training.process import random_state

if TYPE_CHECKING:
    from nbtools.training.engine.worker import Worker

T = TypeVar("T")

_WEIGHTS_KEYS = ("model_state_dict", "state_dict", "model")
"""Under which older programs put the weights beside optimizer and epoch."""
_DDP_PREFIX = "module."


@dataclass(frozen=True)
class Origin:
    """Everything empty means from scratch: then nothing here changes anything."""

    state: State = field(default_factory=dict)
    """What all ranks share."""
    rank_state: State = field(default_factory=dict)
    """What this rank alone knew; empty if there was no such rank."""
    model: Path | None = None
    """Folder of the checkpoint that holds the model."""
    weights: Mapping[str, torch.Tensor] | None = None
    """Weights from a file of an older program, instead of a checkpoint."""
    path: Path | None = None
    """Where the weights were read."""

    def load_weights(self, model: torch.nn.Module) -> None:
        """Load the weights into `model`.

        Raises:
            CheckpointError: they are of another model.
        """
        if self.weights is not None:
            checkpoint.fill(model, self.weights, self.path)
        elif self.model is not None:
            checkpoint.load_weights(model, self.model)

    def recall(self, name: str, otherwise: T) -> T:
        """Return what this rank saved under `name`, if it did."""
        value: T = self.rank_state.get(name, otherwise)
        return value

    def restore_random_state(self) -> None:
        """Go on with this rank's random numbers; a rank that is new keeps its own."""
        if "random" in self.rank_state:
            random_state.set_random_state(self.rank_state["random"])

    def check_recipe(self, key: str, path: Path) -> None:
        """Refuse a checkpoint of another recipe.

        Raises:
            CheckpointError: it is one.
        """
        recipe: Any = self.state.get("recipe", key)
        if recipe != key:
            raise CheckpointError(
                f"{path}: is a checkpoint of {recipe}, not of {key}; resume with a script of {recipe}"
            )


def open_origin(worker: "Worker", path: Path) -> Origin:
    """Open a checkpoint, every byte verified, or a file of weights; every rank calls it.

    Raises:
        CheckpointError: it is missing, incomplete, damaged, of another recipe, or holds something else.
    """
    if worker.from_main(lambda: expanded(path).is_file()):
        weights = worker.in_turn(lambda: read_weights(expanded(path)))
        worker.say(f"note: weights only, from {path}: the optimizer and the place in the data start anew")
        return Origin(weights=weights, path=path)
    opened = worker.from_main(lambda: checkpoint.open_verified(path))
    state = checkpoint.load_state(opened.path)
    worker.progress = Progress(**state["progress"])
    worker.metrics = dict(opened.metrics)
    known = opened.manifest.get("world_size", 0)
    rank_state = checkpoint.load_state(opened.path, f"rank-{worker.rank}.pt") if worker.rank < known else {}
    origin = Origin(state, rank_state, opened.path / "model")
    origin.check_recipe(worker.recipe, opened.path)
    effective_batch = worker.config.effective_batch(worker.world_size)
    if state.get("effective_batch", effective_batch) != effective_batch:
        worker.say(f"note: {effective_batch} samples per step from here on, {state['effective_batch']} until now")
    elif known != worker.world_size:
        worker.say(f"note: {known} processes until now, {worker.world_size} from here on; the same samples per step")
    return origin


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read the weights in a file that `torch.save` wrote: a state dict, or one under `model_state_dict`.

    A pickle that would run code is refused. The prefix that DistributedDataParallel adds is taken off.

    Raises:
        CheckpointError: the file cannot be read, or holds no weights.
    """
    content: Any = checkpoint.load_state(path.parent, path.name)
    for key in _WEIGHTS_KEYS:
        if isinstance(content.get(key), dict):
            content = content[key]
            break
    other = next((name for name, value in content.items() if not isinstance(value, torch.Tensor)), None)
    if other is not None or not content:
        what = f"{str(other)[:80]!r} is a {type(content[other]).__name__}" if content else "it is empty"
        raise CheckpointError(
            f"{path}: holds no weights ({what}); give a file with model_state_dict or a bare state dict, or a "
            "checkpoint folder such as runs/ID/checkpoints/step-000200"
        )
    names = [str(name) for name in content]
    is_wrapped = all(name.startswith(_DDP_PREFIX) for name in names)
    return {
        name.removeprefix(_DDP_PREFIX) if is_wrapped else name: weight
        for name, weight in zip(names, content.values(), strict=True)
    }
