"""Algorithm Distillation: in-context reinforcement learning from learning histories."""

from nbtools.training import main as main
