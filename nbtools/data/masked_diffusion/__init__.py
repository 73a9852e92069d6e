"""Prompt-answer pairs and prepared data of the masked-diffusion recipe."""
