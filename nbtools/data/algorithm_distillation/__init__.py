"""Darkroom, the source learners and their learning histories."""
