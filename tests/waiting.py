"""Waiting in tests for what another process or thread does."""

import time
from collections.abc import Callable


def eventually(
    condition: Callable[[], object],
    said: Callable[[], object] = lambda: "it did not happen in time",
    *,
    within_s: float = 300,
) -> None:
    """Wait until a condition holds; after `within_s` the test fails with what `said` returns.

    The default is ample for a machine with much else to do: a wait ends as soon as the condition holds.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)
