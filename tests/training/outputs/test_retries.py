"""Further tries to write: while there is time for one as long as the newest, after a stop less."""

import time

import pytest

from nbtools.project import Project
from nbtools.rundir.rundir import RunDir
from nbtools.training.outputs.retries import Retries
from nbtools.training.process.signals import StopRequest


@pytest.mark.promise("last-checkpoint")
@pytest.mark.parametrize(("stop_at", "try_s", "num_tries"), [(None, 0, 600), (None, 199, 3), (-10.0, 0, 14)])
def test_tries_end_when_the_next_one_would_take_too_long(
    project: Project, monkeypatch: pytest.MonkeyPatch, stop_at: float | None, try_s: int, num_tries: int
) -> None:
    now, said, stop = [0.0], list[str](), StopRequest()
    stop.at = None if stop_at is None else 1000 + stop_at
    monkeypatch.setattr(time, "monotonic", lambda: 1000 + now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    retries = Retries(RunDir.create(project.runs, "x"), stop, said.append)
    tried = 0
    while retries.may_retry("outputs/", OSError("no space")):
        tried += 1
        now[0] += try_s
    assert tried == num_tries
    assert said[0].startswith("warning: outputs/ cannot be written: no space; trying again for ")
    assert len(said) <= 21, "every half a minute"
