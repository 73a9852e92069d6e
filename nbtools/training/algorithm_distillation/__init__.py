"""Algorithm Distillation: in-context reinforcement learning from learning histories."""

from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.training import train_with_flags


def main(config: AlgorithmDistillationConfig) -> None:
    """Train with the values of a script, changed by command-line flags."""
    train_with_flags("nbtools.training.algorithm_distillation.train", config)
