"""Training: the only part that imports torch and transformers; exported scripts name its modules as text."""

import gc
import os
import sys
from importlib import import_module
from types import ModuleType

from nbtools.config import TrainConfig
from nbtools.recipes import recipe_of

PARENT_PID = os.getppid()
"""The process that started this one, torchrun's agent or a shell; read before torch takes seconds to load."""


def main(config: TrainConfig) -> None:
    """Train the recipe of a script's config, with the values that the command line of this process changes.

    torch and transformers, which take seconds to load, are imported after the command line was read.

    Raises:
        SystemExit: code 2 and a message on stderr for a wrong flag or value, code 0 after `--help`; else as `run`.
    """
    given = import_module("nbtools.training.engine.flags").parse(config)
    train = load(f"{recipe_of(config).module}.train").train
    load("nbtools.training.engine.worker").run(train, given)


def load(name: str) -> ModuleType:
    """Import a module that imports torch and transformers, in two thirds of the time, and return it.

    The garbage collector is off meanwhile and never looks at what was imported, which stays.
    """
    if name in sys.modules:
        return sys.modules[name]  # what a training has left since then must stay collectable
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()
