"""What the tests on a GPU share: their order, and memory that earlier tests have left."""

import gc
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def fresh_memory() -> Callable[[], None]:
    """Free what an earlier test left, and count the peak from here on; the test may call it again."""

    def free() -> None:
        import torch

        # The frames of a failed test hold its model.
        for name in ("last_exc", "last_traceback", "last_type", "last_value"):
            vars(sys).pop(name, None)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    free()
    return free


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let what only several GPUs show come first: `nbtools doctor --gpu-tests` has a limit of time."""
    items.sort(key=lambda item: item.path.name != "test_ranks.py")
