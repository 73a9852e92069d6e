"""Training: the only part that imports torch and transformers; exported scripts name its modules as text."""

import os
from collections.abc import MutableMapping
from importlib import import_module

from nbtools.config import TrainConfig
from nbtools.recipes import recipe_of

PARENT_PID = os.getppid()
"""The process that started this one, torchrun's agent or a shell; read before torch takes seconds to load."""

_ALLOCATOR = "PYTORCH_ALLOC_CONF"


def expand_segments(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let torch's GPU memory grow in place, before its first use: tensors whose sizes change leave no gaps in it.

    Settings of the user, under any of the three names that torch reads, are left as they are.
    """
    if not {_ALLOCATOR, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"} & environment.keys():
        environment[_ALLOCATOR] = "expandable_segments:True"


def main(config: TrainConfig) -> None:
    """Train the recipe of a script's config, with the values that the command line of this process changes.

    torch and transformers, which take seconds to load, are imported after the command line was read.

    Raises:
        SystemExit: code 2 and a message on stderr for a wrong flag or value, code 0 after `--help`; else as `run`.
    """
    expand_segments()
    given = import_module("nbtools.training.engine.flags").parse(config)
    train = import_module(f"{recipe_of(config).module}.train").train
    import_module("nbtools.training.engine.worker").run(train, given)
