from pathlib import Path

import pytest
from launched import record_launch


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A run directory without others beside it, as those of pytest would be."""
    (tmp_path / "runs/a").mkdir(parents=True)
    return tmp_path / "runs/a"


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    """The working directory of a program whose run directory is `tmp_path`."""
    (tmp_path / "cwd").mkdir()
    record_launch(tmp_path, tmp_path / "cwd")
    return tmp_path / "cwd"
