"""Checks before a launch: findings, the size of a training, its number of steps."""
