"""Settings of tests on generated input: the same examples every time; the fast tests alone try a tenth of them."""

import os
from collections.abc import Sequence
from typing import TypeVar

from hypothesis import HealthCheck, settings

_T = TypeVar("_T")
_IS_FAST = bool(os.environ.get("NBTOOLS_FAST_TESTS"))


def examples(number: int) -> settings:
    """Return settings for a test of so many examples, each of any duration and size."""
    number = max(number // 10, 1) if _IS_FAST else number
    return settings(max_examples=number, derandomize=True, suppress_health_check=list(HealthCheck))


def some(values: Sequence[_T], turn: int) -> Sequence[_T]:
    """Return all values; among the fast tests every fourth, beginning at another one in each turn."""
    return values[turn % 4 :: 4] if _IS_FAST else values
