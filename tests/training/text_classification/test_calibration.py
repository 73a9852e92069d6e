"""Calibration, against computations of their own: bins in a loop, acceptance one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbtools.training.text_classification.calibration import TARGET, Calibration, calibration_error, selective_accuracy

OUTCOMES = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)
Outcomes = tuple[torch.Tensor, torch.Tensor]


def drawn(temperature: float, bias: float, num: int = 100_000) -> Outcomes:
    """Predictions that are right as often as their probabilities say once temperature and bias are applied."""
    random = np.random.default_rng(0)
    logits_N = random.normal(1, 2, num)
    share_N = 1 / (1 + np.exp(-logits_N / temperature - bias))
    return torch.from_numpy(1 / (1 + np.exp(-logits_N))), torch.from_numpy((random.random(num) < share_N).astype(float))


def as_arrays(outcomes: list[tuple[float, bool]]) -> Outcomes:
    p_N, is_right_N = torch.tensor(outcomes, dtype=torch.float64).reshape(-1, 2).T
    return p_N, is_right_N


@given(OUTCOMES, st.sampled_from([1, 10, 15]))
def test_the_calibration_error_is_the_mean_gap_of_bins(outcomes: list[tuple[float, bool]], num_bins: int) -> None:
    total = 0.0
    for number in range(num_bins):
        inside = [(p, right) for p, right in outcomes if number < p * num_bins <= number + 1 or p == number == 0]
        total += abs(sum(right - p for p, right in inside)) / len(outcomes)
    assert calibration_error(*as_arrays(outcomes), num_bins) == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize(("temperature", "bias"), [(0.4, 0.0), (1.0, 0.0), (2.5, 0.0), (0.7, 1.0), (1.5, -1.0)])
def test_the_fit_finds_temperature_and_bias_and_removes_the_error(temperature: float, bias: float) -> None:
    p_N, is_right_N = drawn(temperature, bias)
    fitted = Calibration.fit(p_N, is_right_N)
    assert (fitted.temperature, fitted.bias) == pytest.approx((temperature, bias), rel=0.06, abs=0.06)
    half = len(p_N) // 2
    held_out_N = Calibration.fit(p_N[:half], is_right_N[:half])(p_N[half:])
    assert calibration_error(held_out_N, is_right_N[half:]) < 0.01
    assert (temperature, bias) == (1, 0) or calibration_error(p_N, is_right_N) > 0.04


@given(OUTCOMES)
def test_the_threshold_is_the_lowest_from_which_on_enough_are_right(outcomes: list[tuple[float, bool]]) -> None:
    p_N, is_right_N = as_arrays(outcomes)
    fitted = Calibration.fit(p_N, is_right_N)
    calibrated_N = fitted(p_N)
    shares = {p: float(is_right_N[calibrated_N >= p].mean()) for p in calibrated_N.tolist()}
    assert fitted.threshold == min([p for p, share in shares.items() if share >= TARGET], default=1.0)
    curve = zip(*(each.tolist() for each in selective_accuracy(calibrated_N, is_right_N)), strict=True)
    assert {p: share for p, _, share in curve} == pytest.approx(shares)


def test_a_part_where_all_is_right_or_nothing_is_there_gives_no_certainty() -> None:
    assert Calibration.fit(*as_arrays([])) == Calibration()
    few = Calibration.fit(*as_arrays([(0.9, True)] * 4))
    assert few(torch.tensor([0.9])).tolist() == pytest.approx([5 / 6], abs=1e-4), "Platt's target of four right ones"
