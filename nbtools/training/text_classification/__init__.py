"""Classification of texts to sequences of codes."""

from nbtools.training import main as main
