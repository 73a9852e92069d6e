"""What a recipe says of itself without torch: its name, config, presets, the size of its model and of its data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtools.config import Launch, TrainConfig
from nbtools.errors import ConfigError, shown
from nbtools.machine import devices


@dataclass(frozen=True)
class Preset:
    """Named values for a recipe: where it runs, and what differs from the config's defaults."""

    description: str
    nproc_per_node: int | None
    """None for every GPU of this machine, or one process where it has none."""
    values: Mapping[str, Any]
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Source:
    """What a config trains on, as far as that is known without reading it."""

    name: str
    """In words, such as "the English text that ships with Python"."""
    files: tuple[Path, ...] = ()
    """Everything that is read; empty for what is generated, ships with Python or is downloaded."""


@dataclass(frozen=True)
class Recipe:
    """A training system: one key names its module, script, notebook and tests."""

    key: str
    title: str
    summary: str
    config_class: type[TrainConfig]
    presets: Mapping[str, Preset]
    """The first one is what a new form shows."""
    num_parameters: Callable[[Any, int | None], int | None]
    """(config, real size of the vocabulary or None) -> weights that are trained; None where only the downloaded model
    knows."""
    source: Callable[[Any, Path | None], Source]
    """(config, project root) -> the data; raises DataError where it is missing."""
    count_samples: Callable[[Any, Path | None, object], tuple[int, int] | None]
    """(config, project root, fingerprint of the files) -> numbers of training and evaluation samples, kept until the
    fingerprint changes; None where only the training will know."""
    refuse: Callable[[Any], None] = lambda config: None
    """(config) -> raises ConfigError where it takes a word of the user's that it lacks, before anything is started."""

    @property
    def module(self) -> str:
        """The module whose `main(config)` trains it; the stem only ever writes this name down."""
        return f"nbtools.training.{self.key}"

    def preset(self, name: str) -> tuple[TrainConfig, Launch]:
        """Build the config and the launch settings of the preset `name`.

        Raises:
            ConfigError: the recipe has no such preset.
        """
        if name not in self.presets:
            raise ConfigError(f"preset={shown(name)}: {self.key} has {', '.join(self.presets)}")
        preset = self.presets[name]
        nproc_per_node = preset.nproc_per_node or max(1, len(devices.devices()))
        return self.config_class(**preset.values), Launch(nproc_per_node=nproc_per_node, gpus=preset.gpus)
