"""A folder of learning histories: what it says of itself is checked before anything is trained on it."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.data import data_files
from nbtools.data.algorithm_distillation import histories
from nbtools.data.algorithm_distillation.histories import METADATA, TEST, TRAIN
from nbtools.data.algorithm_distillation.learners import generate
from nbtools.errors import DataError
from nbtools.launcher.checks.step_count import schedule
from nbtools.project import Project
from nbtools.recipes import AlgorithmDistillationConfig

SMALL: dict[str, Any] = {"grid_size": 5, "horizon": 8, "num_episodes": 6, "sequence_length": 16, "num_histories": 3}


def small(**changes: Any) -> AlgorithmDistillationConfig:
    return AlgorithmDistillationConfig(**{**SMALL, **changes})


def written(folder: Path, config: AlgorithmDistillationConfig) -> Path:
    """A folder as a user may write it, without hashes."""
    room = config.darkroom
    goals = config.split_goals()
    parts = [generate(config.learner, room, goals_G2, 3) for goals_G2 in goals]
    folder.mkdir()
    for name, steps_HL4 in zip((TRAIN, TEST), parts, strict=True):
        np.save(folder / name, steps_HL4)
    content = {
        "format": 1,
        **{name: getattr(config, name) for name in ("grid_size", "horizon", "reward_once", "num_episodes")},
        **{name: goals_G2.tolist() for name, goals_G2 in zip(("train_goals", "test_goals"), goals, strict=True)},
        **{name: len(steps) for name, steps in zip(("num_train", "num_test"), parts, strict=True)},
    }
    (folder / METADATA).write_text(json.dumps(content))
    return folder


def edit(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change values of the metadata; returns all of before."""
    content: dict[str, Any] = json.loads((folder / METADATA).read_text())
    (folder / METADATA).write_text(json.dumps(content | changes))
    return content


def checked(folder: Path, config: AlgorithmDistillationConfig) -> histories.HistoryMetadata:
    """All checks of a folder that a user names."""
    metadata = config.histories_in(folder)
    histories.verify(folder, metadata)
    histories.verify_rules(folder, metadata)
    return metadata


@pytest.mark.parametrize("changes", [{}, {"reward_once": True}, {"source_algorithm": "q_learning"}])
def test_a_folder_that_anybody_wrote_is_read(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = small(**changes)
    metadata = checked(written(tmp_path / "histories", config), config)
    train_G2, test_G2 = config.split_goals()
    assert metadata.goals(TRAIN).tolist() == train_G2.tolist()
    assert metadata.goals(TEST).tolist() == test_G2.tolist()
    assert metadata.darkroom == config.darkroom
    assert histories.open_steps(tmp_path / "histories", metadata, TRAIN).shape == (66, 48, 4)


def test_the_form_counts_the_windows_of_a_folder_and_of_what_is_to_be_generated(
    project: Project, tmp_path: Path
) -> None:
    config = small()
    generated = schedule(config, 1, root=project.root)
    folder = written(tmp_path / "histories", config)
    named = schedule(config.replace(dataset=str(folder), num_histories=60), 1, root=project.root)
    assert generated is not None and named is not None
    assert generated.num_train_samples == 22 * 3 * 5
    assert named.num_train_samples == generated.num_train_samples, "the folder's histories count, not the config's"
    with pytest.raises(DataError, match="no such folder"):
        schedule(config.replace(dataset="elsewhere"), 1, root=project.root)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"grid_size": 6}, "its histories have grid_size=5, not 6; set grid_size=5"),
        ({"horizon": 12}, "its histories have horizon=8, not 12"),
        ({"reward_once": True}, "its histories have reward_once=False, not True"),
        ({"num_episodes": 7}, "its histories have num_episodes=6, not 7"),
        ({"test_goals": ("0:0",)}, "its test goals are .*, not test_goals=.*leave test_goals out"),
    ],
)
def test_histories_of_another_room_are_refused_with_the_value_that_fits(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = written(tmp_path / "histories", small())
    with pytest.raises(DataError, match=said):
        checked(folder, small(dataset=str(folder), **changes))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (METADATA, None, r"has no metadata\.json, so it holds no learning histories; give another folder, or leave"),
        (TRAIN, None, r"has no train\.npy"),
        (TEST, None, r"has no test\.npy"),
        (METADATA, b"", r"metadata\.json: cannot be read"),
        (METADATA, b"[" * 100_000, r"metadata\.json: cannot be read"),
        (METADATA, b"\xff", r"metadata\.json: cannot be read"),
        (METADATA, b"[]", r"metadata\.json: is not a JSON object"),
        (TRAIN, b"", r"train\.npy: cannot be read"),
        (TEST, b"text", r"test\.npy: cannot be read"),
    ],
)
def test_a_file_that_is_missing_or_unreadable_is_named(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    folder = written(tmp_path / "histories", small())
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=said) as refused:
        checked(folder, small())
    assert str(folder) in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, "was written by a newer nbtools; update nbtools"),
        ({"grid_size": "5"}, "grid_size is '5'; input should be a valid integer"),
        ({"num_train": 0}, "num_train is 0; input should be greater than or equal to 1"),
        ({"num_train": 65}, "num_train=65: must be a multiple of the 22 goals"),
        ({"test_goals": []}, r"test_goals is \[\]; tuple should have at least 1 item"),
        ({"test_goals": [[0, 5]]}, r"test_goals is .*; it must be different pairs of column and row from 0 to 4"),
        ({"test_goals": [[0, 0], [0, 0]]}, r"test_goals is"),
        ({"test_goals": [[0, 1], [0]]}, r"test_goals is"),
        ({"test_goals": [[0, -1]]}, r"test_goals is"),
        ({"test_goals": "0:0"}, r"test_goals is '0:0'"),
        ({"num_train": 88}, r"holds uint8 of shape \(66, 48, 4\); metadata.json gives .* \(88, 48, 4\)"),
        ({"sha256": {TRAIN: "0"}}, r"train\.npy: has changed or is damaged"),
    ],
)
def test_metadata_that_cannot_be_true_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    folder = written(tmp_path / "histories", small())
    edit(folder, **changes)
    with pytest.raises(DataError, match=said):
        checked(folder, small())


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([[0, 0], [1, 0]]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["format", "grid_size", "horizon", "reward_once", "num_episodes", "num_train", "train_goals", "sha256"]


@given(changes=st.dictionaries(st.sampled_from(KEYS), ANYTHING, min_size=1, max_size=4))
def test_whatever_metadata_say_they_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any_histories"
    if not folder.exists():
        written(folder, small())
    before = edit(folder, **changes)
    with contextlib.suppress(DataError):
        checked(folder, small())
    (folder / METADATA).write_text(json.dumps(before))


def test_a_goal_on_both_sides_is_a_leak(tmp_path: Path) -> None:
    folder = written(tmp_path / "histories", small())
    content = edit(folder)
    column, row = content["train_goals"][3]
    edit(folder, test_goals=[[column, row], *content["test_goals"][1:]])
    with pytest.raises(DataError, match=f"the goal {column}:{row} is in train_goals and in test_goals"):
        checked(folder, small())


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (
            (7, 20, 2),
            5,
            r"history 7, episode 2, step 4 \(from 0\): column, row, action or reward out of range: \[., ., 5, .\]",
        ),
        ((7, 20, 0), 200, r"history 7, episode 2, step 4 \(from 0\): column, row, action or reward out of range"),
        ((65, 0, 0), 0, r"history 65, episode 0, step 0 \(from 0\): unreachable position: \[0, 2, "),
        ((0, 47, 3), None, r"history 0, episode 5, step 7 \(from 0\): reward does not match the goal"),
    ],
)
def test_a_step_that_is_impossible_is_named(
    tmp_path: Path, place: tuple[int, int, int], value: int | None, said: str
) -> None:
    folder = written(tmp_path / "histories", small())
    steps_HL4 = np.load(folder / TRAIN)
    steps_HL4[place] = 1 - steps_HL4[place] if value is None else value
    np.save(folder / TRAIN, steps_HL4)
    with pytest.raises(DataError, match=said):
        checked(folder, small())


@pytest.mark.parametrize("dataset", ["x" * 5000, "a\0b", "a\ud800", "", "/proc/1/mem"])
def test_a_path_that_is_none_is_refused_in_form_and_training(project: Project, dataset: str) -> None:
    with pytest.raises(DataError):
        schedule(small(dataset=dataset), 1, root=project.root)
    with pytest.raises(DataError):
        histories.read_history_metadata(data_files.dataset_path(dataset, project.root))


def test_objects_are_never_unpickled(tmp_path: Path, audited: Any) -> None:
    folder = written(tmp_path / "histories", small())
    np.save(folder / TRAIN, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with audited() as events, pytest.raises(DataError, match=r"train\.npy: cannot be read"):
        checked(folder, small())
    assert not [event for event, _ in events if event.startswith("pickle")]
