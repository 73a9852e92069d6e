"""Masked-diffusion language modelling (LLaDA)."""

from nbtools.training import main as main
