"""Trainings of the recipes, in this process or on ranks that are started by hand."""

import functools
from collections.abc import Callable, Iterator

import pytest

from nbtools.project import Project
from nbtools.rundir.rundir import RunDir

from trainings import ByHand, by_hand, train_here


@pytest.fixture
def start(cpu_project: Project) -> Iterator[ByHand]:
    """Start scripts on ranks, and leave nothing behind."""
    with by_hand(cpu_project) as started:
        yield started


@pytest.fixture
def trained(cpu_project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunDir]:
    """Train in this process, the only rank."""
    return functools.partial(train_here, cpu_project, monkeypatch=monkeypatch)
