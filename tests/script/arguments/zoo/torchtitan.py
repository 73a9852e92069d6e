"""Nested dataclasses for tyro, as in torchtitan."""

import os
from dataclasses import dataclass, field
from typing import Literal

import tyro


@dataclass
class Optimizer:
    name: str = "AdamW"
    """Optimizer to use"""
    lr: float = 8e-4
    """Learning rate to use"""
    implementation: Literal["for-loop", "foreach", "fused"] = "fused"


@dataclass
class Training:
    seq_len: int = 2048
    steps: int = 10_000
    dataset_path: str | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    modules: list[str] = field(default_factory=lambda: ["a"])


@dataclass
class JobConfig:
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: Training = field(default_factory=lambda: Training(steps=100))
    seed: int | None = None


if __name__ == "__main__":
    config = tyro.cli(JobConfig)
    open(os.environ["ZOO_MARK"], "w").close()
