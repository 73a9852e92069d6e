from pathlib import Path

import pytest


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """The working directory of a program."""
    (tmp_path / "cwd").mkdir()
    return tmp_path / "cwd"
