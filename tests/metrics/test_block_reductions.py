"""Blocks of a growing series: what they give is what all values give, at any time and after any change."""

import json

import numpy as np
import pytest

from nbtools.metrics.block_reductions import ROWS, Blocks
from nbtools.metrics.history import History
from nbtools.notebook.plots.decimation import decimate


def values_of(kind: str, count: int) -> np.ndarray:
    values = np.random.default_rng(count).normal(size=count)
    if kind == "gaps":
        values[np.random.default_rng(1).integers(0, count, count // 4)] = np.nan
    if kind == "diverged":
        values[count // 3 : count // 2], values[-count // 5 :] = np.inf, np.nan
    return values


@pytest.mark.parametrize("kind", ["finite", "gaps", "diverged"])
@pytest.mark.parametrize("count", [5_000, 64 * 200, 64 * 200 + 1, 99_999])
@pytest.mark.parametrize("num_columns", [7, 20, 300, 4_000])
def test_columns_are_reduced_as_each_alone(kind: str, count: int, num_columns: int) -> None:
    values = values_of(kind, count)
    for first, last in ((0, count), (count // 5 + 1, count // 5 + 4_001)):
        cuts = np.linspace(first, min(last, count), min(num_columns, last - first) + 1).astype(int)
        if (np.diff(cuts) == 0).any():
            cuts = np.unique(cuts)
        found = Blocks().reduced(values, cuts)
        assert np.array_equal(found.counts, np.diff(cuts))
        for low, high, mean, start, stop in zip(*found[:3], cuts[:-1], cuts[1:], strict=True):
            finite = values[start:stop][np.isfinite(values[start:stop])]
            expected = (finite.min(), finite.max(), finite.mean()) if len(finite) else [np.nan] * 3
            np.testing.assert_allclose((low, high, mean), expected, rtol=1e-9, atol=1e-12)


def line(step: int, value: float, attempt: int = 1) -> str:
    said = "NaN" if np.isnan(value) else value
    return json.dumps({"step": step, "time": 1e9 + step, "attempt": attempt, "train/loss": said})


def read(lines: list[str]) -> History:
    made = History()
    made.extend("".join(f"{each}\n" for each in lines).encode())
    return made


@pytest.mark.parametrize("kind", ["finite", "gaps"])
def test_a_history_that_grew_draws_to_the_bit_as_one_that_was_read_at_once(kind: str) -> None:
    values, grown, lines = values_of(kind, 9_000).tolist(), History(), []
    for step, value in enumerate(values):
        lines.append(line(step, value))
        if step % 511 == 0 or step == len(values) - 1:
            grown.extend("".join(f"{each}\n" for each in lines[grown.num_rows :]).encode())
            series, whole = grown["train/loss"], read(lines)["train/loss"]
            assert series.blocks.is_finite(series.values) == np.isfinite(whole.values).all()
            one, other = (decimate(s, s.steps, (0, step + 1), 12) for s in (series, whole))
            for column in ("x", "low", "high", "mean"):
                assert np.array_equal(getattr(one, column), getattr(other, column), equal_nan=True)
    lines += [line(step, 99.0, attempt=2) for step in range(4_000, 9_500)]  # an attempt replaces what is known
    grown.extend("".join(f"{each}\n" for each in lines[9_000:]).encode())
    series, whole = grown["train/loss"], read(lines)["train/loss"]
    one, other = (decimate(s, s.steps, (0, 9_500), 12) for s in (series, whole))
    assert np.array_equal(one.mean, other.mean, equal_nan=True) and one.high[-1] == one.low[-1] == 99.0


def test_a_series_that_is_held_keeps_its_rows_while_a_longer_one_uses_its_blocks() -> None:
    made = read([line(step, 1.0) for step in range(1_000)])
    held = made["train/loss"]
    made.extend("".join(f"{line(step, 5.0)}\n" for step in range(1_000, 2_000)).encode())
    longer = made["train/loss"]
    assert longer.blocks is held.blocks and longer.blocks.of(longer.values)[1].max() == 5.0
    assert held.blocks.of(held.values).shape == (4, 1_000 // ROWS) and held.blocks.of(held.values)[1].max() == 1.0
