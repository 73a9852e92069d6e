"""Classification of texts to sequences of codes."""

from nbtools.training.text_classification.train import main

__all__ = ["main"]
