"""Classification of texts to sequences of codes."""

from nbtools.recipes import TextClassificationConfig
from nbtools.training import train_with_flags


def main(config: TextClassificationConfig) -> None:
    """Train with the values of a script, changed by command-line flags."""
    train_with_flags("nbtools.training.text_classification.train", config)
