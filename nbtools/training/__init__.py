"""Training: the only part that imports torch and transformers; exported scripts name its modules as text."""

import os
from importlib import import_module

from nbtools.config import TrainConfig

PARENT_PID = os.getppid()
"""The process that started this one, torchrun's agent or a shell; read before torch takes seconds to load."""


def train_with_flags(module: str, config: TrainConfig) -> None:
    """Run `train` of a module with a script's config, changed by the command line of this process.

    torch and transformers, which take seconds to load, are imported after the command line was read.

    Raises:
        SystemExit: code 2 and a message on stderr for a wrong flag or value, code 0 after `--help`; else as `run`.
    """
    given = import_module("nbtools.training.engine.flags").parse(config)
    import_module("nbtools.training.engine.worker").run(import_module(module).train, given)
