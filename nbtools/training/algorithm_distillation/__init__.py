"""Algorithm Distillation: in-context reinforcement learning from learning histories."""

from nbtools.training.algorithm_distillation.train import main

__all__ = ["main"]
