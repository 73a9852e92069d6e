"""Algorithm Distillation in the Darkroom: config, presets, data and sizes."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import model_validator

from nbtools.config import TrainConfig, beta, num_evaluated_samples
from nbtools.data import data_files
from nbtools.data.algorithm_distillation.darkroom import NUM_ACTIONS, NUM_REWARDS, Darkroom, Integers
from nbtools.data.algorithm_distillation.histories import HistoryMetadata, check_histories, read_history_metadata
from nbtools.data.algorithm_distillation.learners import Learner
from nbtools.errors import ConfigError, DataError, shown
from nbtools.recipes import activations, built_models
from nbtools.recipes.recipe import Recipe, SampleCounts, Source
from nbtools.settings import setting

EVALUATION_HISTORIES = 4
"""Histories per test goal, for the evaluation loss only."""
_GOAL = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")


def goal_of(text: str, grid_size: int) -> tuple[int, int]:
    """Return column and row of a goal that is written as 7:2; ConfigError if it is malformed or outside the grid."""
    if (match := _GOAL.fullmatch(text)) is None:
        raise ConfigError(f"{shown(text)} is not a goal; write column:row, such as 7:2")
    goal = int(match[1]), int(match[2])
    if max(goal) >= grid_size:
        raise ConfigError(f"{text} is outside the grid; columns and rows go from 0 to {grid_size - 1}")
    return goal


class AlgorithmDistillationConfig(TrainConfig):
    """Algorithm Distillation: a causal transformer, trained on learning histories, improves in context.

    One "sequence" of a batch is a window of `sequence_length` transitions of one history, across its episodes.
    """

    dataset: str | None = setting(
        None,
        "A folder of learning histories in nbtools' format; None generates them from the fields below, and caches "
        "them.",
        basic=True,
    )
    source_algorithm: Literal["annealed", "q_learning"] = setting(
        "annealed",
        "Source algorithm of the histories: a demonstrator whose share of random actions falls from 1 to 0, or tabular "
        "Q-learning.",
        basic=True,
    )
    num_histories: int = setting(
        60, "Learning histories per training goal.", "histories per goal", ge=1, le=100_000, basic=True
    )
    num_episodes: int = setting(20, "Kept episodes per history.", "episodes", ge=2, le=10_000)
    source_episodes: int | None = setting(
        None,
        "Episodes of the source algorithm, of which num_episodes at equal distances are kept; None: num_episodes "
        "(annealed) or 15 times as many (q_learning).",
        "episodes",
        ge=2,
        le=1_000_000,
    )
    grid_size: int = setting(9, "Columns and rows of the grid; 17 in Darkroom-Hard.", "cells", ge=2, le=64, shapes=True)
    horizon: int = setting(20, "Steps of an episode.", "steps", ge=1, le=1000)
    reward_once: bool = setting(False, "Reward only the first step at the goal, as in Darkroom-Hard.")
    test_share: float = setting(
        0.1, "Share of goals without training histories, if test_goals is None.", "of the cells", gt=0, lt=1
    )
    test_goals: tuple[str, ...] | None = setting(
        None, "Goals to evaluate on, without a test, as column:row from 0, such as 7:2; None draws test_share of them."
    )
    num_layers: int = built_models.NUM_LAYERS
    num_heads: int = built_models.NUM_HEADS
    hidden_size: int = built_models.width(64, 4, "num_heads")
    adam_beta2: float = beta(0.99, "squared gradient")
    dropout: float = built_models.DROPOUT
    sequence_length: int = setting(
        80,
        "Context length; it must span several episodes for the model to learn across them.",
        "transitions",
        ge=2,
        le=8192,
        basic=True,
        shapes=True,
    )
    compress_interval: int | None = setting(
        None,
        "Transitions of a region, for a compressed context: the current region and the one before it, each between two "
        "marker tokens, instead of the last sequence_length transitions. Whole episodes.",
        "transitions",
        ge=1,
        le=4096,
        shapes=True,
    )
    eval_batch_size: int = setting(
        2048, "Rollouts or windows per evaluation batch.", "sequences per process", ge=1, le=1_000_000
    )
    eval_rollouts: int = setting(
        16, "Rollouts per unseen goal, each from an empty context.", "rollouts per goal", ge=1, le=10_000
    )
    eval_episodes: int = setting(
        40, "Episodes per rollout; the context carries over between them.", "episodes", ge=8, le=10_000
    )
    eval_samples: int | None = num_evaluated_samples("windows for eval/loss", "windows")

    @model_validator(mode="after")
    def _values_fit_together(self) -> Self:
        built_models.check_gpt2_width(self.hidden_size, self.num_heads)
        column, row = self.darkroom.start
        farthest = column + row
        if self.horizon < farthest:
            raise ValueError(
                f"horizon={self.horizon}: the goal 0:0 is {farthest} steps from the start {column}:{row} of a grid of "
                f"grid_size={self.grid_size}; horizon must be >= {farthest}, or grid_size smaller"
            )
        goals = self.named_goals
        if goals is not None and (len(set(goals)) != len(goals) or len(goals) >= self.grid_size**2):
            raise ValueError(f"test_goals={shown(self.test_goals)}: name each goal once, and leave one to train on")
        longest = self.num_episodes * self.horizon
        if self.compress_interval is not None:
            if self.compress_interval % self.horizon or self.window_steps > longest:
                raise ValueError(
                    f"compress_interval={self.compress_interval}: must be a multiple of horizon={self.horizon} (an "
                    f"episode) and <= {longest // 2}, as a history of num_episodes={self.num_episodes} must hold two"
                )
            if self.sequence_length < (needed := self.window_tokens):
                raise ValueError(
                    f"sequence_length={self.sequence_length}: must be >= {needed}, two regions of compress_interval="
                    f"{self.compress_interval} and their markers"
                )
        elif not self.horizon <= self.sequence_length <= longest:
            raise ValueError(
                f"sequence_length={self.sequence_length}: must be >= horizon={self.horizon} (an episode) and <= "
                f"{longest} (num_episodes={self.num_episodes} of them, a whole history)"
            )
        if self.source_episodes is not None and self.source_episodes < self.num_episodes:
            raise ValueError(
                f"source_episodes={self.source_episodes}: must be >= num_episodes={self.num_episodes}, the episodes "
                "that are kept"
            )
        return self

    @property
    def darkroom(self) -> Darkroom:
        """The environment of the histories."""
        return Darkroom(self.grid_size, self.horizon, self.reward_once)

    @property
    def learner(self) -> Learner:
        """The source algorithm of generated histories."""
        return Learner(self.source_algorithm, self.num_episodes, self.episodes_played, self.seed)

    def split_goals(self) -> tuple[Integers, Integers]:
        """Return the training goals and the test goals. Shapes (G, 2)."""
        return self.darkroom.split_goals(self.named_goals or self.num_test_goals)

    def histories_in(self, folder: Path) -> HistoryMetadata:
        """Return the metadata of a folder of histories; DataError if it is malformed, or does not fit this config."""
        metadata = read_history_metadata(folder)
        check_histories(metadata, self)
        return metadata

    @property
    def named_goals(self) -> tuple[tuple[int, int], ...] | None:
        """`test_goals` as pairs of column and row; ValueError if one of them is malformed or outside the grid."""
        if self.test_goals is None:
            return None
        if not self.test_goals:
            raise ValueError("test_goals: name at least one goal, such as 7:2, or None")
        try:
            return tuple(goal_of(text, self.grid_size) for text in self.test_goals)
        except ConfigError as error:
            raise ValueError(f"test_goals: {error}") from None

    @property
    def num_test_goals(self) -> int:
        """Number of goals without training histories."""
        cells = self.grid_size**2
        drawn = min(max(1, cells - round((1 - self.test_share) * cells)), cells - 1)
        return drawn if self.named_goals is None else len(self.named_goals)

    def num_goals_for_test(self, num_unseen: int) -> int:
        """Return how many of the goals without training histories are for the test: at least one, but not all; none if
        they are named."""
        is_tested = num_unseen and self.test_fraction and not self.test_goals
        return min(max(int(self.test_fraction * num_unseen), 1), num_unseen - 1) if is_tested else 0

    @property
    def episodes_played(self) -> int:
        """All episodes of a history, kept or not."""
        usual = self.num_episodes * (15 if self.source_algorithm == "q_learning" else 1)
        return self.source_episodes or usual

    @property
    def window_steps(self) -> int:
        """Transitions of a training window: the whole context, or two regions of a compressed one."""
        return self.sequence_length if self.compress_interval is None else 2 * self.compress_interval

    @property
    def window_tokens(self) -> int:
        """Tokens of a training window: its transitions, and the markers of the regions of a compressed context."""
        return self.window_steps + (0 if self.compress_interval is None else 3)

    @property
    def windows_per_history(self) -> int:
        """Windows of `window_steps` transitions, one from the start of each episode; they overlap."""
        return (self.num_episodes * self.horizon - self.window_steps) // self.horizon + 1

    @property
    def windows_apart(self) -> int:
        """Episodes between the starts of two windows that do not overlap."""
        return -(-self.window_steps // self.horizon)


def vocab_size(config: AlgorithmDistillationConfig) -> int:
    """Return the rows of the embedding: for columns, rows, last actions, last rewards, and the markers of regions.

    Last actions and last rewards have one more row each for "none".
    """
    num_markers = 0 if config.compress_interval is None else 2
    return 2 * config.grid_size + (NUM_ACTIONS + 1) + (NUM_REWARDS + 1) + num_markers


def _num_parameters(config: AlgorithmDistillationConfig, _: int | None) -> int | None:
    return built_models.num_gpt2_parameters(config, vocab_size(config), config.sequence_length, num_labels=NUM_ACTIONS)


def _activation_bytes(config: AlgorithmDistillationConfig, precision: str) -> float:
    return activations.transformer_bytes(config, config, precision, config.batch_size * config.window_tokens)


def _source(config: AlgorithmDistillationConfig, root: Path | None) -> Source:
    if config.dataset is None:
        return Source("learning histories generated by nbtools")
    folder = data_files.dataset_path(config.dataset, root)
    try:
        if not folder.is_dir():
            raise DataError(f"dataset {shown(config.dataset)}: no such folder; give a folder of learning histories")
        return Source(config.dataset, tuple(sorted(path for path in folder.iterdir() if path.is_file())))
    except OSError as error:
        raise DataError(f"dataset {shown(config.dataset)}: cannot be read: {error.strerror}") from None


def _count_samples(config: AlgorithmDistillationConfig, root: Path | None) -> SampleCounts:
    whole_windows = -(-config.windows_per_history // config.windows_apart)
    if config.dataset is not None:
        known = config.histories_in(data_files.dataset_path(config.dataset, root))
        num_train, num_unseen = known.num_train, len(known.test_goals)
        per_goal = known.num_test // num_unseen
    else:
        num_train = (config.grid_size**2 - config.num_test_goals) * config.num_histories
        num_unseen, per_goal = config.num_test_goals, EVALUATION_HISTORIES
    num_test = config.num_goals_for_test(num_unseen)
    windows = per_goal * whole_windows
    return SampleCounts(num_train * config.windows_per_history, (num_unseen - num_test) * windows, num_test * windows)


_FIELDS = tuple(AlgorithmDistillationConfig.__annotations__)
_DATA_FIELDS = _FIELDS[: _FIELDS.index("num_layers")]

RECIPE = Recipe(
    key="algorithm_distillation",
    title="Algorithm distillation",
    summary="Train a causal transformer on learning histories; it then finds unseen goals by learning in context.",
    config_class=AlgorithmDistillationConfig,
    best_by="eval/return_last",
    lower_is_better=False,
    num_parameters=_num_parameters,
    activation_bytes=_activation_bytes,
    source=_source,
    count_samples=_count_samples,
    data_fields=_DATA_FIELDS,
)
