"""Learning histories for a training: made once, kept, found again, and cut into windows."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nbtools.data.algorithm_distillation import learners
from nbtools.data.algorithm_distillation.learners import generate
from nbtools.errors import DataError
from nbtools.recipes import AlgorithmDistillationConfig
from nbtools.training.algorithm_distillation.dataset import LearningHistories, Windows, open_histories, tokens_of

SMALL: dict[str, Any] = {"grid_size": 5, "horizon": 8, "num_episodes": 6, "sequence_length": 16, "num_histories": 3}


def small(**changes: Any) -> AlgorithmDistillationConfig:
    return AlgorithmDistillationConfig(**{**SMALL, **changes})


def opened(root: Path, config: AlgorithmDistillationConfig) -> tuple[LearningHistories, list[str]]:
    """The histories that a training of one process opens, and what it said."""
    said: list[str] = []
    ranks = SimpleNamespace(from_main=lambda compute: compute())
    places = {"files": SimpleNamespace(path=root / "runs" / "one"), "project": SimpleNamespace(root=root)}
    worker: Any = SimpleNamespace(**places, ranks=ranks, say=said.append)
    return open_histories(worker, config), said


def cached(root: Path) -> list[Path]:
    return sorted((root / "runs" / ".cache").iterdir())


def contents(root: Path) -> dict[str, bytes]:
    (folder,) = cached(root)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_histories_are_generated_in_pieces_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, said = opened(tmp_path / "whole", small())
    assert said[0].startswith("3,744 steps of learning histories were generated in ")
    room = small().darkroom
    train_G2, test_G2 = small().split_goals()
    assert np.array_equal(whole.train_HL4, generate(small().learner, room, train_G2, 3))
    assert np.array_equal(whole.test_HL4, generate(small().learner, room, test_G2, 4))
    assert whole.test_goals_G2.tolist() == test_G2.tolist()
    assert whole.darkroom == room
    monkeypatch.setattr(learners, "_NUMBERS_AT_ONCE", 4 * 125)
    opened(tmp_path / "pieces", small())
    assert contents(tmp_path / "pieces") == contents(tmp_path / "whole")
    assert contents(tmp_path / "whole").keys() == {"train.npy", "test.npy", "metadata.json"}


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
        expected = generate(small().learner, small().darkroom, one.test_goals_G2, 4)
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
        again, said = opened(tmp_path, small(**changes))
        assert said == [] and np.array_equal(again.train_HL4, first.train_HL4)
    different: dict[str, Any] = {"seed": 1, "num_histories": 4, "num_episodes": 7, "source_episodes": 12}
    different |= {"source_algorithm": "q_learning", "reward_once": True, "horizon": 9, "grid_size": 4}
    different |= {"test_goals": ("0:0",), "test_share": 0.5}
    for number, (name, value) in enumerate(different.items(), start=2):
        opened(tmp_path, small(**{name: value}))
        assert len(cached(tmp_path)) == number, name


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
    _, said = opened(tmp_path, small())
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


def test_histories_that_cannot_be_written_are_an_error_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(learners, "generated", full)
    with pytest.raises(DataError, match=r"cannot be written there: \[Errno 28\] No space left on device; make room"):
        opened(tmp_path, small())
    assert cached(tmp_path) == []
    (tmp_path / "runs" / ".cache").rmdir()
    (tmp_path / "runs" / ".cache").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written there"):
        opened(tmp_path, small())


def test_a_named_folder_is_opened_as_it_is_and_never_repaired(tmp_path: Path) -> None:
    first, _ = opened(tmp_path, small())
    mine = tmp_path / "mine"
    shutil.copytree(cached(tmp_path)[0], mine)
    shutil.rmtree(tmp_path / "runs")
    one, said = opened(tmp_path, small(dataset="mine"))
    assert said == [] and not (tmp_path / "runs").exists()
    assert np.array_equal(one.train_HL4, first.train_HL4)
    (mine / "train.npy").write_bytes((mine / "train.npy").read_bytes()[:-1] + b"\x02")
    with pytest.raises(DataError, match=f"{mine / 'train.npy'}: has changed or is damaged; give another"):
        opened(tmp_path, small(dataset="mine"))
    with pytest.raises(DataError, match="its histories have grid_size=5, not 6"):
        opened(tmp_path, small(dataset="mine", grid_size=6, horizon=9))
    shutil.rmtree(mine)
    mine.mkdir()
    with pytest.raises(DataError, match=r"has no metadata\.json, so it holds no learning histories"):
        opened(tmp_path, small(dataset="mine"))


# --- windows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [8, 16, 20, 48])
def test_windows_are_what_a_slow_loop_cuts(length: int) -> None:
    config = small(sequence_length=length)
    room = config.darkroom
    steps_HL4 = generate(config.learner, room, config.split_goals()[0], 2)
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
    steps_HL4 = generate(config.learner, config.darkroom, config.split_goals()[0], 2)
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
    steps_HL4 = generate(config.learner, room, np.array([[2, 1]]), 1)
    tokens_T4 = tokens_of(steps_HL4)[0]
    assert tokens_T4[0, 2:].tolist() == [0, 0], "there was no step before a window"
    assert tokens_T4[-8].tolist() == [2, 2, 4 + 1, 1 + 1], "it stayed at the goal, was paid, and is back at the start"


def test_windows_improve_from_their_beginning_to_their_end() -> None:
    """Or there would be nothing to distil: better actions have to be seen after worse ones in one context."""
    config = AlgorithmDistillationConfig(num_histories=10)
    room = config.darkroom
    windows = Windows(generate(config.learner, room, config.split_goals()[0], 10), 20, 80)
    tokens_BT4, _ = windows[0, np.arange(len(windows))]
    rewards_BT = (tokens_BT4[..., 3] - 1).clamp(min=0).float()
    assert rewards_BT[:, 60:].mean() > rewards_BT[:, 1:21].mean() + 0.08
