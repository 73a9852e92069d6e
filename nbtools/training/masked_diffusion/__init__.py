"""Masked-diffusion language modelling (LLaDA)."""

from nbtools.training.masked_diffusion.train import main

__all__ = ["main"]
