"""Where a training starts from: from scratch, or from a checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from nbtools.errors import CheckpointError
from nbtools.training import checkpoint
from nbtools.training.checkpoint import State

T = TypeVar("T")


@dataclass(frozen=True)
class Origin:
    """Everything empty means from scratch: then nothing here changes anything."""

    state: State = field(default_factory=dict)
    """What all ranks share."""
    rank_state: State = field(default_factory=dict)
    """What this rank alone knew; empty if there was no such rank."""
    model: Path | None = None
    """Folder of the checkpoint that holds the model."""

    def load_weights(self, model: torch.nn.Module) -> None:
        """Load the weights into `model`.

        Raises:
            CheckpointError: they are of another model.
        """
        if self.model is not None:
            checkpoint.load_weights(model, self.model)

    def recall(self, name: str, otherwise: T) -> T:
        """Return what this rank saved under `name`, if it did."""
        value: T = self.rank_state.get(name, otherwise)
        return value

    def restore_random_state(self) -> None:
        """Go on with this rank's random numbers; a rank that is new keeps its own."""
        if "random" in self.rank_state:
            checkpoint.set_random_state(self.rank_state["random"])

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
