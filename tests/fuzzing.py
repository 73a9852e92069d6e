"""Settings of tests on generated input: the same examples every time; the fast tests alone try a tenth of them."""

import os

from hypothesis import HealthCheck, settings

_IS_FAST = bool(os.environ.get("NBTOOLS_FAST_TESTS"))


def examples(number: int) -> settings:
    """Return settings for a test of so many examples, each of any duration and size."""
    number = max(number // 10, 1) if _IS_FAST else number
    return settings(max_examples=number, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
