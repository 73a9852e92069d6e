"""A union of dataclasses, which tyro makes sub-commands of."""

import os
from dataclasses import dataclass
from typing import Optional

import tyro


@dataclass
class Train:
    lr: float = 1e-3
    tags: Optional[list[str]] = None


@dataclass
class Evaluate:
    path: str


if __name__ == "__main__":
    tyro.cli(Train | Evaluate)
    open(os.environ["ZOO_MARK"], "w").close()
