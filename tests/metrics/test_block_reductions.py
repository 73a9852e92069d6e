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
def test_columns_from_blocks_are_those_from_all_values(kind: str, count: int) -> None:
    values, x = values_of(kind, count), np.arange(count) * 3
    for left, right in ((0, 3 * count - 3), (0.21 * count, 2.2 * count), (3 * ROWS, 3 * ROWS * 40)):
        for columns in (7, 20):
            plain, fast = decimate(x, values, left, right, columns), decimate(x, values, left, right, columns, Blocks())
            assert not fast.is_exact and np.array_equal(plain.x, fast.x)
            assert np.array_equal(plain.low, fast.low, equal_nan=True)
            assert np.array_equal(plain.high, fast.high, equal_nan=True)
            np.testing.assert_allclose(plain.mean, fast.mean, rtol=1e-9, atol=1e-12)


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
            one, other = (decimate(s.steps, s.values, 0, step + 1, 12, s.blocks) for s in (series, whole))
            for column in ("x", "low", "high", "mean"):
                assert np.array_equal(getattr(one, column), getattr(other, column), equal_nan=True)
    lines += [line(step, 99.0, attempt=2) for step in range(4_000, 9_500)]  # an attempt replaces what is known
    grown.extend("".join(f"{each}\n" for each in lines[9_000:]).encode())
    series, whole = grown["train/loss"], read(lines)["train/loss"]
    one, other = (decimate(s.steps, s.values, 0, 9_500, 12, s.blocks) for s in (series, whole))
    assert np.array_equal(one.mean, other.mean, equal_nan=True) and one.high[-1] == one.low[-1] == 99.0


def test_a_series_that_is_held_keeps_its_rows_while_a_longer_one_uses_its_blocks() -> None:
    made = read([line(step, 1.0) for step in range(1_000)])
    held = made["train/loss"]
    made.extend("".join(f"{line(step, 5.0)}\n" for step in range(1_000, 2_000)).encode())
    longer = made["train/loss"]
    assert longer.blocks is held.blocks and longer.blocks.of(longer.values)[1].max() == 5.0
    assert held.blocks.of(held.values).shape == (4, 1_000 // ROWS) and held.blocks.of(held.values)[1].max() == 1.0
