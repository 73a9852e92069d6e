"""Learning histories (generated once and cached, or read from a folder) and their training windows.

Shape suffixes: H histories, S histories of a block, L steps of a history, W windows of a history, B batch, T steps of a
window; 4 column and row before the action, the action, its reward.
"""

import functools
import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

from nbtools.data import data_files
from nbtools.data.algorithm_distillation import histories, learners
from nbtools.data.algorithm_distillation.darkroom import Darkroom, Integers
from nbtools.data.algorithm_distillation.histories import METADATA, TEST, TRAIN, HistoryMetadata, Steps
from nbtools.data.split import DataDigest, digest_of
from nbtools.errors import DataError, Say, plural
from nbtools.project import file_digest
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.recipes.algorithm_distillation import EVALUATION_HISTORIES
from nbtools.rundir.atomic import new_folder
from nbtools.training.algorithm_distillation.model import places_of_steps, with_markers
from nbtools.training.engine.sampler import IGNORED
from nbtools.training.engine.worker import Worker
from nbtools.training.text.disk_buffer import writing

_writing = functools.partial(
    writing, what="learning histories", step="; make room, fewer num_histories, or make the folder writable"
)


@dataclass(frozen=True)
class LearningHistories:
    """Training and test histories."""

    darkroom: Darkroom
    train_HL4: Steps
    test_HL4: Steps
    """Histories of the test goals."""
    test_goals_G2: Integers

    def digest(self) -> DataDigest:
        """Return a hash of all steps, which are divided by their goals."""
        digest = digest_of(steps_HL4.reshape(-1).data for steps_HL4 in (self.train_HL4, self.test_HL4))
        return DataDigest(digest, f"{len(self.train_HL4):,} + {plural(len(self.test_HL4), 'history')}", rule="")

    def divided(self, num_goals: int) -> tuple["LearningHistories", "LearningHistories"]:
        """Divide the test goals with their histories: the last `num_goals` are in the second part."""
        first = len(self.test_goals_G2) - num_goals
        at = first * (len(self.test_HL4) // len(self.test_goals_G2))
        return (
            replace(self, test_HL4=self.test_HL4[:at], test_goals_G2=self.test_goals_G2[:first]),
            replace(self, test_HL4=self.test_HL4[at:], test_goals_G2=self.test_goals_G2[first:]),
        )


def open_histories(worker: Worker, config: AlgorithmDistillationConfig) -> LearningHistories:
    """Open the folder that `config.dataset` names, or the cache, filled on first use; DataError if it is damaged."""
    if config.dataset is not None:
        folder = data_files.dataset_path(config.dataset, worker.project.root)
        worker.ranks.from_main(lambda: _check_named(folder, config))
        return _opened(folder)
    return _opened(_kept(worker, config))


def _opened(folder: Path) -> LearningHistories:
    metadata = histories.read_history_metadata(folder)
    train_HL4, test_HL4 = (histories.open_steps(folder, metadata, name) for name in (TRAIN, TEST))
    return LearningHistories(metadata.darkroom, train_HL4, test_HL4, metadata.goals(TEST))


def _check_named(folder: Path, config: AlgorithmDistillationConfig) -> None:
    metadata = config.histories_in(folder)
    histories.verify(folder, metadata)
    histories.verify_rules(folder, metadata)


def _kept(worker: Worker, config: AlgorithmDistillationConfig) -> Path:
    """Return the cache folder of a config's histories, named by a hash of the settings; rank 0 fills it."""
    train_G2, test_G2 = config.split_goals()
    metadata = HistoryMetadata(
        grid_size=config.grid_size,
        horizon=config.horizon,
        reward_once=config.reward_once,
        num_episodes=config.num_episodes,
        train_goals=train_G2.tolist(),
        test_goals=test_G2.tolist(),
        num_train=len(train_G2) * config.num_histories,
        num_test=len(test_G2) * EVALUATION_HISTORIES,
    )
    settings: list[Any] = [histories.FORMAT, config.seed, config.source_algorithm]
    settings += [config.episodes_played, config.num_episodes]
    settings += [config.grid_size, config.horizon, config.reward_once]
    settings += [[metadata.train_goals, config.num_histories], [metadata.test_goals, EVALUATION_HISTORIES]]
    cache = worker.files.path.parent / ".cache"
    folder = cache / hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]
    worker.ranks.from_main(lambda: _fill(folder, config, metadata, worker.say))
    return folder


def _fill(folder: Path, config: AlgorithmDistillationConfig, metadata: HistoryMetadata, say: Say) -> None:
    """Generate the histories of a cache folder that is missing or damaged."""
    if (damage := _damage(folder)) == "":
        return
    if damage is not None:
        say(f"note: {damage}: its histories are generated again")
    started = time.monotonic()
    with _writing(folder.parent), new_folder(folder, is_stale=lambda: _damage(folder) != "") as built:
        for name in (TRAIN, TEST):
            goals_G2, shape = metadata.goals(name), metadata.shape(name)
            with (built / name).open("wb") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                of_goal = shape[0] // len(goals_G2)
                for steps_SL4 in learners.generated(config.learner, config.darkroom, goals_G2, of_goal):
                    file.write(steps_SL4.tobytes())
        hashes = {name: file_digest(built / name) for name in (TRAIN, TEST)}
        (built / METADATA).write_text(json.dumps(asdict(replace(metadata, sha256=hashes))), encoding="utf-8")
    num_steps = (metadata.num_train + metadata.num_test) * config.num_episodes * config.horizon
    say(f"{num_steps:,} steps of learning histories were generated in {time.monotonic() - started:.1f} s")


def _damage(folder: Path) -> str | None:
    """Return the damage of a cache folder: None if it does not exist, an empty text if it is whole."""
    if not folder.exists():
        return None
    try:
        histories.verify(folder, histories.read_history_metadata(folder))
    except DataError as error:
        return str(error).partition(";")[0]
    return ""


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Windows of histories, each from the start of an episode; sample i is window i % W of history i // W.

    `windows[epoch, indices_B]` is a batch: tokens_BT4 and actions_BT, both int64, the same in every epoch. With a
    `compress_interval`, T counts the markers of regions, too, whose actions are `IGNORED`.
    """

    def __init__(self, histories_HL4: Steps, horizon: int, length: int, compress_interval: int | None = None) -> None:
        self._compress_interval = compress_interval
        packed_HL = np.ascontiguousarray(histories_HL4).view("<u4")[..., 0]  # a step is moved as one number
        self._windows_HWT = np.lib.stride_tricks.sliding_window_view(packed_HL, length, axis=1)[:, ::horizon]

    def __len__(self) -> int:
        num_histories, num_windows, _ = self._windows_HWT.shape
        return int(num_histories * num_windows)

    def __getitem__(self, picked: tuple[int, npt.NDArray[np.int64]]) -> tuple[Tensor, Tensor]:
        _, indices_B = picked
        histories_B, windows_B = np.divmod(indices_B, self._windows_HWT.shape[1])
        packed_BT = np.ascontiguousarray(self._windows_HWT[histories_B, windows_B])
        steps_BT4 = packed_BT.view(np.uint8).reshape(*packed_BT.shape, 4)
        tokens_BT4, actions_BT = tokens_of(steps_BT4), steps_BT4[..., 2].astype(np.int64)
        if self._compress_interval is not None:
            places_T = places_of_steps(actions_BT.shape[1], self._compress_interval)
            tokens_BT4, known_BT = with_markers(tokens_BT4, self._compress_interval), actions_BT
            actions_BT = np.full(tokens_BT4.shape[:2], IGNORED)
            actions_BT[:, places_T] = known_BT
        return torch.from_numpy(tokens_BT4), torch.from_numpy(actions_BT)


def tokens_of(steps_BT4: Steps) -> npt.NDArray[np.int64]:
    """Return the observation before each action of a window: column, row, last action and last reward. Shape (B, T, 4).

    Last action and last reward are counted from 1; 0 means none, at the first step of a window. They carry over a
    reset: the last reward of an episode is observed at the start of the next one.
    """
    tokens_BT4 = steps_BT4.astype(np.int64)
    tokens_BT4[:, 0, 2:] = 0
    tokens_BT4[:, 1:, 2:] = steps_BT4[:, :-1, 2:].astype(np.int64) + 1
    return tokens_BT4
