"""BERT-style pretraining by masked language modelling."""

from nbtools.recipes import MLMPretrainingConfig
from nbtools.training import train_with_flags


def main(config: MLMPretrainingConfig) -> None:
    """Train with the values of a script, changed by command-line flags."""
    train_with_flags("nbtools.training.mlm_pretraining.train", config)
