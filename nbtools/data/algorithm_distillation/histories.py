"""Folders of Darkroom learning histories: file format, metadata and verification.

    train.npy, test.npy    uint8 of shape (H, L, 4): the same number of histories per goal, in the order of the goals
    metadata.json          the grid, the goals, the numbers of histories, and the hashes of the two files

A step is column and row before the action, the action (0 right, 1 left, 2 down, 3 up, 4 stay), and its reward. The
goals of test.npy do not occur in train.npy. Other programs can write such a folder; the hashes are optional.

Shape suffixes: G goals, H histories, L steps of a history (its episodes concatenated), E episodes, K steps of an
episode, 2 column and row, 4 column, row, action, reward.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nbtools.data.algorithm_distillation.darkroom import NUM_ACTIONS, NUM_REWARDS, Darkroom, Integers
from nbtools.data.metadata import Count, checked, read_object
from nbtools.errors import DataError, shown
from nbtools.project import file_digest

Steps = npt.NDArray[np.uint8]
Place = Annotated[int, Field(strict=True, ge=0)]
Goals = Annotated[tuple[tuple[Place, Place], ...], Field(min_length=1)]

TRAIN, TEST, METADATA = "train.npy", "test.npy", "metadata.json"
FORMAT = 1
"""Version of the folder and of the source algorithms: a change of either generates new histories."""
_AGAIN = "give another folder, or leave dataset out: nbtools then generates histories"
_STEPS_AT_ONCE = 2**18


@dataclass(frozen=True, kw_only=True)
class HistoryMetadata:
    """The content of metadata.json."""

    grid_size: Count
    horizon: Count
    reward_once: bool = False
    num_episodes: Count
    """Episodes per history."""
    train_goals: Goals
    """(column, row) of each training goal."""
    test_goals: Goals
    num_train: Count
    """Number of histories in train.npy."""
    num_test: Count
    sha256: dict[str, str] = field(default_factory=dict)
    """SHA-256 of the files, by name; a file without a hash is not compared."""
    format: int = FORMAT

    @property
    def darkroom(self) -> Darkroom:
        """The environment of the histories."""
        return Darkroom(self.grid_size, self.horizon, self.reward_once)

    def shape(self, name: str) -> tuple[int, int, int]:
        """Shape of the array in the file of this name."""
        return self.num_train if name == TRAIN else self.num_test, self.num_episodes * self.horizon, 4

    def goals(self, name: str) -> Integers:
        """The goals of the file of this name. Shape (G, 2)."""
        return np.array(self.train_goals if name == TRAIN else self.test_goals, dtype=np.int64).reshape(-1, 2)


def read_history_metadata(folder: Path) -> HistoryMetadata:
    """Read the metadata of a folder of histories; DataError if a file is missing, or metadata.json is malformed."""
    path = folder / METADATA
    try:
        missing = [name for name in (METADATA, TRAIN, TEST) if not (folder / name).is_file()]
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}; {_AGAIN}") from None
    if missing:
        raise DataError(f"{folder}: has no {missing[0]}, so it holds no learning histories; {_AGAIN}")
    metadata = checked(HistoryMetadata, read_object(path, _AGAIN), path, _AGAIN)
    size, train, test = metadata.grid_size, metadata.train_goals, metadata.test_goals
    for part, goals, number in ("train", train, metadata.num_train), ("test", test, metadata.num_test):
        if len(set(goals)) != len(goals) or max(map(max, goals)) >= size:
            wanted = f"different pairs of column and row from 0 to {size - 1}"
            raise DataError(f"{path}: {part}_goals is {shown(goals)}; it must be {wanted}; {_AGAIN}")
        if number % len(goals):
            raise DataError(f"{path}: num_{part}={number}: must be a multiple of the {len(goals)} goals; {_AGAIN}")
    if both := set(train) & set(test):
        column, row = min(both)
        raise DataError(f"{path}: the goal {column}:{row} is in train_goals and in test_goals; {_AGAIN}")
    return metadata


def check_histories(metadata: HistoryMetadata, config: Any) -> None:
    """Check that histories have the environment, the number of episodes and the test goals that a config gives.

    Raises:
        DataError: a value differs; the message names the field and the value of the histories.
    """
    dataset, test_goals = shown(config.dataset), config.named_goals
    for name in ("grid_size", "horizon", "reward_once", "num_episodes"):
        if (value := getattr(config, name)) != (found := getattr(metadata, name)):
            step = f"set {name}={found}, or {_AGAIN}"
            raise DataError(f"dataset {dataset}: its histories have {name}={found}, not {value}; {step}")
    if test_goals is not None and set(test_goals) != set(metadata.test_goals):
        raise DataError(
            f"dataset {dataset}: its test goals are {_named(metadata.test_goals)}, not test_goals="
            f"{_named(test_goals)}; leave test_goals out, or {_AGAIN}"
        )


def _named(goals: Goals) -> str:
    return shown(" ".join(f"{column}:{row}" for column, row in goals))


def open_steps(folder: Path, metadata: HistoryMetadata, name: str) -> Steps:
    """Memory-map train.npy or test.npy.

    Raises:
        DataError: it cannot be read, or has not the shape that metadata.json gives.
    """
    path, shape = folder / name, metadata.shape(name)
    try:
        steps_HL4 = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({str(error)[:80]}); {_AGAIN}") from None
    if not isinstance(steps_HL4, np.ndarray) or steps_HL4.shape != shape or steps_HL4.dtype != np.uint8:
        found = f"{steps_HL4.dtype} of shape {steps_HL4.shape}" if isinstance(steps_HL4, np.ndarray) else "no array"
        raise DataError(f"{path}: holds {found}; {METADATA} gives uint8 of shape {shape}; {_AGAIN}")
    return steps_HL4.view(np.ndarray)


def verify(folder: Path, metadata: HistoryMetadata) -> None:
    """Compare the hashes of both files with those in the metadata; DataError if a file is damaged."""
    for name in (TRAIN, TEST):
        open_steps(folder, metadata, name)
        if (known := metadata.sha256.get(name)) is not None and known != file_digest(folder / name):
            raise DataError(f"{folder / name}: has changed or is damaged; {_AGAIN}")


def verify_rules(folder: Path, metadata: HistoryMetadata) -> None:
    """Check every step of the histories against the dynamics and the rewards of the environment.

    Raises:
        DataError: a step is impossible; the message names history, episode and step.
    """
    darkroom, num_steps = metadata.darkroom, metadata.horizon
    for name in (TRAIN, TEST):
        steps_HL4, goals_G2 = open_steps(folder, metadata, name), metadata.goals(name)
        at_once = max(1, _STEPS_AT_ONCE // (metadata.num_episodes * num_steps))
        for first in range(0, len(steps_HL4), at_once):
            piece_HEK4 = steps_HL4[first : first + at_once].reshape(-1, metadata.num_episodes, num_steps, 4)
            histories_H = np.arange(first, first + len(piece_HEK4))
            goals_H2 = goals_G2[histories_H // (len(steps_HL4) // len(goals_G2))]
            for what, is_wrong_HEK in _broken_rules(darkroom, piece_HEK4, goals_H2):
                if is_wrong_HEK.any():
                    history, episode, step = np.argwhere(is_wrong_HEK)[0].tolist()
                    raise DataError(
                        f"{folder / name}: history {first + history}, episode {episode}, step {step} (from 0): {what} "
                        f"{piece_HEK4[history, episode, step].tolist()}; {_AGAIN}"
                    )


def _broken_rules(
    darkroom: Darkroom, steps_HEK4: Steps, goals_H2: Integers
) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield each kind of error, and the steps that have it."""
    limits_4 = np.array([darkroom.size, darkroom.size, NUM_ACTIONS, NUM_REWARDS])
    yield "column, row, action or reward out of range:", np.any(steps_HEK4 >= limits_4, axis=3)
    before_HEK2 = steps_HEK4[..., :2]
    after_HEK2 = darkroom.moved(before_HEK2, steps_HEK4[..., 2])
    expected_HEK2 = np.empty_like(after_HEK2)
    expected_HEK2[:, :, 0], expected_HEK2[:, :, 1:] = darkroom.start, after_HEK2[:, :, :-1]
    yield "unreachable position:", np.any(before_HEK2 != expected_HEK2, axis=3)
    at_goal_HEK = np.all(after_HEK2 == goals_H2[:, None, None], axis=3)
    if darkroom.reward_once:
        at_goal_HEK &= np.cumsum(at_goal_HEK, axis=2) == 1
    yield "reward does not match the goal:", np.not_equal(at_goal_HEK, steps_HEK4[..., 3])
