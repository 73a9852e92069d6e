"""Functions for jsonargparse, as in litgpt."""

import os
from dataclasses import dataclass
from typing import Literal

from jsonargparse import CLI


@dataclass
class TrainArgs:
    """Training.

    Args:
        save_interval: Number of optimizer steps between checkpoints
    """

    save_interval: int | None = 1000
    lr: float = 3e-4


def setup(
    model_name: str,
    precision: Literal["bf16-true", "32-true"] = "32-true",
    devices: int = 1,
    compile: bool = False,
    seeds: list[int] = [1, 2],
    train: TrainArgs = TrainArgs(),
) -> None:
    """Pretrain a model.

    Arguments:
        model_name: The name of the model.
    """
    open(os.environ["ZOO_MARK"], "w").close()


if __name__ == "__main__":
    CLI(setup)
