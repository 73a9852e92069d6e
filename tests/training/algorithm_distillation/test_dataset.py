"""Learning histories for a training: made once, kept, found again, and cut into windows."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from nbtools.data.algorithm_distillation import learners
from nbtools.errors import DataError, NbtoolsError
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.training.algorithm_distillation.dataset import LearningHistories, Windows, open_histories, tokens_of

T = TypeVar("T")

SMALL: dict[str, Any] = {"grid_size": 5, "horizon": 8, "num_episodes": 6, "sequence_length": 16, "num_histories": 3}


def small(**changes: Any) -> AlgorithmDistillationConfig:
    return AlgorithmDistillationConfig(**{**SMALL, **changes})


class Group:
    """What ranks have in common here: they are threads of this process."""

    def __init__(self, root: Path, world_size: int) -> None:
        self.root = root
        self.world_size = world_size
        self.barrier = threading.Barrier(world_size)
        self.box: list[Any] = [None] * world_size
        self.said: list[str] = []


class Rank:
    """As much of a worker as opening histories takes."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.world_size = group.world_size
        self.files = SimpleNamespace(path=group.root / "runs" / "one")
        self.project = SimpleNamespace(root=group.root)

    def exchanged(self, value: Any) -> list[Any]:
        self.group.box[self.rank] = value
        self.group.barrier.wait(60)
        values = list(self.group.box)
        self.group.barrier.wait(60)
        return values

    @property
    def ranks(self) -> "Rank":
        return self

    def from_main(self, compute: Callable[[], T]) -> T:
        outcome: tuple[Any, NbtoolsError | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = compute(), None
            except NbtoolsError as error:
                outcome = None, error
        value, error = self.exchanged(outcome)[0]
        if error is not None:
            raise error
        return value

    def say(self, text: str) -> None:
        if self.rank == 0:
            self.group.said.append(text)


def opened(root: Path, config: AlgorithmDistillationConfig, world_size: int = 1) -> list[Any]:
    """What every rank opens or raises, and in the last place what rank 0 said."""
    group = Group(root, world_size)

    def one(rank: int) -> LearningHistories | DataError:
        try:
            return open_histories(Rank(group, rank), config)  # type: ignore[arg-type]
        except DataError as error:
            return error

    with ThreadPoolExecutor(world_size) as pool:
        return [*pool.map(one, range(world_size)), group.said]


def cached(root: Path) -> list[Path]:
    return sorted((root / "runs" / ".cache").iterdir())


def contents(root: Path) -> dict[str, bytes]:
    (folder,) = cached(root)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_histories_are_the_same_on_any_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "_NUMBERS_AT_ONCE", 4 * 125)  # so that there are several pieces
    found = {}
    for world_size in (1, 2, 3):
        root = tmp_path / str(world_size)
        *ranks, said = opened(root, small(), world_size)
        found[world_size] = contents(root)
        assert said[0].startswith("3,744 steps of learning histories were generated in ")
        for one in ranks:
            assert np.array_equal(one.train_HL4, ranks[0].train_HL4)
    assert found[1] == found[2] == found[3]
    assert found[1].keys() == {"train.npy", "test.npy", "metadata.json"}

    room = small().darkroom
    train_G2, test_G2 = small().split_goals()
    (one, _) = opened(tmp_path / "1", small())
    assert np.array_equal(one.train_HL4, learners.generate(small().learner, room, train_G2, 3))
    assert np.array_equal(one.test_HL4, learners.generate(small().learner, room, test_G2, 4))
    assert one.test_goals_G2.tolist() == test_G2.tolist()
    assert one.darkroom == room


@pytest.mark.promise("safety-test")
def test_the_goals_of_the_test_are_the_last_ones_with_their_own_histories(tmp_path: Path) -> None:
    (one, _) = opened(tmp_path, small())
    num_goals = small().num_goals_for_test(len(one.test_goals_G2))
    assert num_goals == len(one.test_goals_G2) // 2 > 0
    evaluation, test = one.divided(num_goals)
    assert len(test.test_goals_G2) == num_goals
    goals = [goal for part in (evaluation, test) for goal in part.test_goals_G2.tolist()]
    assert goals == one.test_goals_G2.tolist()
    for part in (evaluation, test):
        expected = learners.generate(small().learner, small().darkroom, one.test_goals_G2, 4)
        place = goals.index(part.test_goals_G2[0].tolist())
        assert np.array_equal(part.test_HL4, expected[4 * place : 4 * (place + len(part.test_goals_G2))])
    whole, nothing = one.divided(0)
    assert np.array_equal(whole.test_HL4, one.test_HL4) and len(nothing.test_HL4) == 0
    assert small().replace(test_goals=("0:0", "1:1")).num_goals_for_test(2) == 0, "the user named them all"


def test_a_second_training_plays_nothing_and_another_config_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = opened(tmp_path, small())
    for changes in ({"learning_rate": 1e-5, "sequence_length": 24, "batch_size": 4}, {"source_episodes": 6}):
        again, said = opened(tmp_path, small(**changes), 2)[1:]
        assert said == [] and np.array_equal(again.train_HL4, first.train_HL4)
    different: list[dict[str, Any]] = [
        {"seed": 1},
        {"num_histories": 4},
        {"num_episodes": 7},
        {"source_episodes": 12},
        {"source_algorithm": "q_learning"},
        {"reward_once": True},
        {"horizon": 9},
        {"grid_size": 4},
        {"test_goals": ("0:0",)},
        {"test_share": 0.5},
    ]
    for number, changes in enumerate(different, start=2):
        opened(tmp_path, small(**changes))
        assert len(cached(tmp_path)) == number, changes


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty file": lambda folder: (folder / "train.npy").write_bytes(b""),
    "truncated file": lambda folder: (folder / "train.npy").write_bytes((folder / "train.npy").read_bytes()[:-1]),
    "flipped bit": lambda folder: (folder / "test.npy").write_bytes((folder / "test.npy").read_bytes()[:-1] + b"\x07"),
    "missing file": lambda folder: (folder / "test.npy").unlink(),
    "missing metadata": lambda folder: (folder / "metadata.json").unlink(),
    "broken metadata": lambda folder: (folder / "metadata.json").write_text("{"),
    "empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
    "a file in its place": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_told_and_made_anew(tmp_path: Path, damage: str) -> None:
    opened(tmp_path, small())
    whole = contents(tmp_path)
    DAMAGES[damage](cached(tmp_path)[0])
    one, other, said = opened(tmp_path, small(), 2)
    assert isinstance(one, LearningHistories) and isinstance(other, LearningHistories), one
    assert said[0].startswith("note: ") and "are generated again" in said[0] and str(cached(tmp_path)[0]) in said[0]
    assert contents(tmp_path) == whole, "and nothing else is left in the cache"


def test_what_a_killed_training_left_is_never_taken_for_whole(tmp_path: Path) -> None:
    cache = tmp_path / "runs" / ".cache"
    left = cache / ".0123.new-4567.tmp"
    left.mkdir(parents=True)
    np.save(left / "000000-train.npy", np.zeros((66, 48, 4), np.uint8))
    one, _ = opened(tmp_path, small())
    assert one.train_HL4[:, :, 3].any()
    assert [path.name for path in left.iterdir()] == ["000000-train.npy"], "it may still be at work"


def test_when_rank_0_cannot_write_all_of_them_say_so_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(learners, "generated", full)
    *errors, said = opened(tmp_path, small(), 3)
    assert len({str(error) for error in errors}) == 1 and said == []
    assert isinstance(errors[0], DataError)
    assert "cannot be written there: [Errno 28] No space left on device; make room" in str(errors[0])
    assert cached(tmp_path) == []


def test_a_cache_that_cannot_be_made_is_an_error_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".cache").write_text("in the way")
    *errors, _ = opened(tmp_path, small(), 2)
    assert all(isinstance(error, DataError) and "cannot be written there" in str(error) for error in errors)


def test_trainings_that_start_at_once_share_one_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: opened(tmp_path, small(num_histories=20), 2), range(4)))
    ranks = [rank for *ranks, _ in found for rank in ranks]
    assert all(isinstance(rank, LearningHistories) for rank in ranks), ranks
    assert all(np.array_equal(rank.train_HL4, ranks[0].train_HL4) for rank in ranks)
    assert contents(tmp_path).keys() == {"train.npy", "test.npy", "metadata.json"}


def test_repairs_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    opened(tmp_path, small(num_histories=20))
    whole = contents(tmp_path)
    (cached(tmp_path)[0] / "train.npy").write_bytes(b"")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: opened(tmp_path, small(num_histories=20)), range(4)))
    assert all(isinstance(one, LearningHistories) for one, _ in found), found
    assert contents(tmp_path) == whole


def test_a_named_folder_is_opened_as_it_is_and_never_repaired(tmp_path: Path) -> None:
    first, _ = opened(tmp_path, small())
    mine = tmp_path / "mine"
    shutil.copytree(cached(tmp_path)[0], mine)
    shutil.rmtree(tmp_path / "runs")
    one, other, said = opened(tmp_path, small(dataset="mine"), 2)
    assert said == [] and not (tmp_path / "runs").exists()
    assert np.array_equal(one.train_HL4, first.train_HL4) and np.array_equal(other.test_HL4, first.test_HL4)
    (mine / "train.npy").write_bytes((mine / "train.npy").read_bytes()[:-1] + b"\x02")
    *errors, _ = opened(tmp_path, small(dataset="mine"), 2)
    assert len({str(error) for error in errors}) == 1
    assert f"{mine / 'train.npy'}: has changed or is damaged; give another" in str(errors[0])
    *errors, _ = opened(tmp_path, small(dataset="mine", grid_size=6, horizon=9), 2)
    assert all("its histories have grid_size=5, not 6" in str(error) for error in errors)
    shutil.rmtree(mine)
    mine.mkdir()
    *errors, _ = opened(tmp_path, small(dataset="mine"), 2)
    assert all("has no metadata.json, so it holds no learning histories" in str(error) for error in errors)


# --- windows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8, 16, 20, 48])
def test_windows_are_what_a_slow_loop_cuts(length: int) -> None:
    config = small(sequence_length=length)
    room = config.darkroom
    steps_HL4 = learners.generate(config.learner, room, config.split_goals()[0], 2)
    windows = Windows(steps_HL4, 8, length)
    assert len(windows) == len(steps_HL4) * config.windows_per_history
    expected = []
    for steps_L4 in steps_HL4.tolist():
        for start in range(0, 48 - length + 1, 8):
            window, last = [], (0, 0)
            for column, row, action, reward in steps_L4[start : start + length]:
                window.append([column, row, *last, action])
                last = action + 1, reward + 1
            expected.append(window)
    order_B = np.random.default_rng(0).permutation(len(windows))
    tokens_BT4, actions_BT = windows[3, order_B]
    assert tokens_BT4.dtype == actions_BT.dtype == torch.int64
    assert torch.equal(torch.cat((tokens_BT4, actions_BT[..., None]), dim=2), torch.tensor(expected)[order_B])


@pytest.mark.parametrize("interval", [8, 24])
def test_windows_of_a_compressed_context_are_two_regions_between_markers(interval: int) -> None:
    config = small(compress_interval=interval, sequence_length=60)
    steps_HL4 = learners.generate(config.learner, config.darkroom, config.split_goals()[0], 2)
    windows = Windows(steps_HL4, 8, config.window_steps, interval)
    plain = Windows(steps_HL4, 8, 2 * interval)
    assert len(windows) == len(plain) == len(steps_HL4) * config.windows_per_history
    (tokens_BT4, actions_BT), (steps_BT4, known_BT) = (part[0, np.arange(len(part))] for part in (windows, plain))
    assert tokens_BT4.shape[1:] == (2 * interval + 3, 4) == (config.window_tokens, 4)
    start, end = [0, 0, 0, 3], [0, 0, 0, 4]
    first, second = slice(1, 1 + interval), slice(3 + interval, None)
    for place, marker in ((0, start), (interval + 1, end), (interval + 2, start)):
        assert (tokens_BT4[:, place] == torch.tensor(marker)).all()
        assert (actions_BT[:, place] == -100).all(), "a marker has no action"
    for some, part in ((first, slice(0, interval)), (second, slice(interval, None))):
        assert torch.equal(tokens_BT4[:, some], steps_BT4[:, part])
        assert torch.equal(actions_BT[:, some], known_BT[:, part])


def test_the_last_reward_of_an_episode_is_seen_at_the_start_of_the_next_one() -> None:
    config = small()
    room = config.darkroom
    steps_HL4 = learners.generate(config.learner, room, np.array([[2, 1]]), 1)
    tokens_T4 = tokens_of(steps_HL4)[0]
    assert tokens_T4[0, 2:].tolist() == [0, 0], "there was no step before a window"
    assert tokens_T4[-8].tolist() == [2, 2, 4 + 1, 1 + 1], "it stayed at the goal, was paid, and is back at the start"


def test_windows_improve_from_their_beginning_to_their_end() -> None:
    """Or there would be nothing to distil: better actions have to be seen after worse ones in one context."""
    config = AlgorithmDistillationConfig(num_histories=10)
    room = config.darkroom
    windows = Windows(learners.generate(config.learner, room, config.split_goals()[0], 10), 20, 80)
    tokens_BT4, _ = windows[0, np.arange(len(windows))]
    rewards_BT = (tokens_BT4[..., 3] - 1).clamp(min=0).float()
    assert rewards_BT[:, 60:].mean() > rewards_BT[:, 1:21].mean() + 0.08
