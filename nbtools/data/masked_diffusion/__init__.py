"""Prompt-answer pairs of the masked-diffusion recipe."""
