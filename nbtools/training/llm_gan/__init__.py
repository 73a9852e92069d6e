"""A generator and a discriminator, both language models, trained against each other."""

from nbtools.training.llm_gan.train import main

__all__ = ["main"]
