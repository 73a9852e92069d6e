"""Training: the only part that imports torch and transformers; exported scripts name its modules as text."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

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
    with fast_imports():
        train = import_module(f"{recipe_of(config).module}.train").train
        worker = import_module("nbtools.training.engine.worker")
    worker.run(train, given)


@contextmanager
def fast_imports() -> Iterator[None]:
    """Let torch and transformers be imported in two thirds of the time: what is made meanwhile stays uncollected."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
