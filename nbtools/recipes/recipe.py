"""The description of a recipe without torch: key, config, presets, and the sizes of its model and data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from nbtools.config import Launch, TrainConfig
from nbtools.data.first_rows import FirstRows
from nbtools.errors import ConfigError, html_table, shown


@dataclass(frozen=True)
class Preset:
    """Named values of a recipe: its devices, and the values that differ from the config's defaults."""

    description: str
    values: Mapping[str, Any]
    nproc_per_node: int | None = None
    """None for all GPUs of the machine that launches, or one process without a GPU."""
    gpus: Sequence[int] | None = None


@dataclass(frozen=True)
class Source:
    """The training data of a config, without reading it."""

    name: str
    """Name for display, such as "the English text that ships with Python"."""
    files: tuple[Path, ...] = ()
    """Files that are read; empty for data that is generated, downloaded or part of Python."""


class SampleCounts(NamedTuple):
    """Numbers of samples."""

    train: int
    evaluation: int
    test: int
    note: str = ""
    """A sentence on texts that occur more than once, or in two files; empty without any."""

    @classmethod
    def of(cls, numbers: Iterable[int], note: str, each: int = 1) -> Self:
        """Divide three numbers, such as those of tokens, by the size of a sample."""
        train, evaluation, test = (number // each for number in numbers)
        return cls(train, evaluation, test, note)


@dataclass(frozen=True)
class Recipe:
    """A training system: one key names its module, script, notebook and tests."""

    key: str
    title: str
    summary: str
    config_class: type[TrainConfig]
    num_parameters: Callable[[Any, int | None], int | None]
    """(config, actual vocabulary size or None) -> all weights; None for a pretrained model of unknown size."""
    source: Callable[[Any, Path | None], Source]
    """(config, project root) -> the data; raises DataError if it is missing."""
    count_samples: Callable[[Any, Path | None], SampleCounts | None]
    """(config, project root) -> numbers of training, evaluation and test samples; None if unknown before the
    training."""
    counted_by: tuple[str, ...] = ()
    """Fields that these numbers depend on, so that another learning rate reads nothing again; empty for all fields."""
    data_fields: tuple[str, ...] = ("dataset",)
    """Fields that say which data is read, and how; a form shows them first."""
    reads_text: bool = False
    """Whether `dataset` may be text rather than a table."""
    guess_columns: Callable[[FirstRows], dict[str, str | tuple[str, ...] | None]] | None = None
    """(first rows of a table) -> likely values of the fields that name its columns, or of the option `column` behind
    the dataset; None if the recipe reads no files of a user's."""
    usual_columns: Callable[[Sequence[str]], Mapping[str, tuple[str, ...]]] = lambda columns: {}
    """(columns of a table) -> those that are read where a field that names columns is None, by field."""
    best_by: str = "eval/loss"
    """Metric that chooses the best checkpoint."""
    lower_is_better: bool = True
    activation_bytes: Callable[[Any, str], float | None] = lambda config, precision: None
    """(config, precision) -> about the bytes that a training step keeps for its backward pass; None if unknown."""
    costliest: Callable[[Any], TrainConfig] = lambda config: config
    """(config) -> the same training, whose first step costs as much as any: without the cheaper stages before."""
    refuse: Callable[[Any], None] = lambda config: None
    """(config) -> raises ConfigError if the config lacks a consent of the user, before anything starts."""

    @cached_property
    def presets(self) -> Mapping[str, Preset]:
        """Presets by name; a new form starts with the first one."""
        return {name: Preset(**told) for name, told in _told_presets()[self.key].items()}

    @property
    def choice(self) -> str:
        """Text on the metric that chooses the best checkpoint, such as "lowest eval/loss"."""
        return f"{'lowest' if self.lower_is_better else 'highest'} {self.best_by}"

    @property
    def module(self) -> str:
        """The module whose `main(config)` trains; the core never imports it."""
        return f"nbtools.training.{self.key}"

    def preset(self, name: str) -> tuple[TrainConfig, Launch]:
        """Build the config and the launch settings of a preset; ConfigError if there is no such preset."""
        if name not in self.presets:
            raise ConfigError(f"preset={shown(name)}: {self.key} has {', '.join(self.presets)}")
        preset = self.presets[name]
        launch = Launch(nproc_per_node=preset.nproc_per_node or "gpu", gpus=preset.gpus)
        return self.config_class(**preset.values), launch


@cache
def _told_presets() -> Any:
    """Return the content of presets.yaml, by the key of the recipe and the name of the preset."""
    text = Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8")
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_single_data()  # libyaml: a tenth of the time


class Recipes(dict[str, Recipe]):
    """The recipes by key."""

    def __repr__(self) -> str:
        return f"<recipes: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        rows = [(key, recipe.summary, ", ".join(recipe.presets)) for key, recipe in self.items()]
        return html_table([("recipe", "", "presets"), *rows])
