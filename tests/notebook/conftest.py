from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views record their last look here, and not in the cache of who runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def kept() -> Iterator[Callable[[Any], Any]]:
    """Take a panel, a board or a playground, which is closed at the end, whatever happens; return it."""
    with ExitStack() as views:
        yield lambda view: views.enter_context(closing(view))
