"""The search for the largest batch size that fits, with few tries, since each one trains."""

from collections.abc import Callable

_PRECISION = 8


def largest_batch(
    first: int, fits: Callable[[int], bool], limit: Callable[[], int], goes_on: Callable[[], bool]
) -> tuple[int, int | None]:
    """Double or halve from `first`, then halve the interval until the largest that fits is known to an eighth.

    Args:
        fits: tries a batch size.
        limit: the largest batch size that makes sense; called once one fits.
        goes_on: whether there is time for another try.

    Returns:
        The largest batch size that fits, 0 if none was found, and the smallest that does not; None if none was found.
    """
    good, bad, size = 0, None, first
    while goes_on():
        if fits(size):
            good = size
        else:
            bad = size
        if bad is None:
            if good >= limit():
                break
            size = min(2 * good, limit())
        elif bad - good <= max(1, good // _PRECISION):
            break
        else:
            size = (good + bad) // 2
    return good, bad


def note_on(largest: int, smallest_failed: int | None, limit: int, searched_s: float) -> str:
    """Return what a result of `largest_batch` means."""
    over = f"the search ended after {searched_s:.0f} s"
    if not largest:
        return "not even one sample fits" if smallest_failed == 1 else f"{smallest_failed} does not fit; {over}"
    if smallest_failed is None:
        return "the training data has no more for a step" if largest >= limit else f"more may fit: {over}"
    exact = smallest_failed - largest <= max(1, largest // _PRECISION)
    return f"{smallest_failed} does not fit" + ("" if exact else f"; {over}")
