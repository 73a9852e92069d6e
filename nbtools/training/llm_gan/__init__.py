"""A generator and a discriminator, both language models, trained against each other."""

from nbtools.recipes import LLMGANConfig
from nbtools.training import train_with_flags


def main(config: LLMGANConfig) -> None:
    """Train with the values of a script, changed by command-line flags."""
    train_with_flags("nbtools.training.llm_gan.train", config)
