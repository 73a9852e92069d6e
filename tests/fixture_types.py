"""Short names for the types of fixtures that many files use."""

import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from nbtools.run.run import Run
from nbtools.rundir.rundir import RunDir

MonkeyPatch = pytest.MonkeyPatch
Printed = pytest.CaptureFixture[str]
Start = Callable[..., Run]
"""Fixture `supervised`."""
Cli = Callable[..., subprocess.CompletedProcess[str]]
Train = Callable[..., RunDir]
"""Fixtures `tiny_training` and `trained`."""
Configs = Callable[..., Any]
"""Fixture `tiny_config`."""
Lock = Callable[[Path], None]
"""Fixture `read_only`."""
Shown = Callable[[Run], str]
"""Fixture `everything_shown`."""
Inject = Callable[..., None]
"""Fixture `injected`."""
Event = tuple[str, tuple[Any, ...]]
Audited = Callable[[], AbstractContextManager[list[Event]]]
