"""Masked-diffusion language modelling (LLaDA)."""

from nbtools.recipes import MaskedDiffusionConfig
from nbtools.training import train_with_flags


def main(config: MaskedDiffusionConfig) -> None:
    """Train with the values of a script, changed by command-line flags."""
    train_with_flags("nbtools.training.masked_diffusion.train", config)
