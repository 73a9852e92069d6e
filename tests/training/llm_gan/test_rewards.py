"""From answers to weights: rewards, discounted returns, and a baseline that a batch never moves for itself."""

import math

import numpy as np
import pytest
import torch

from nbtools.training.llm_gan.rewards import Baseline, returns, token_rewards, verdict_rewards


def test_a_text_is_rewarded_by_token_or_at_its_end_and_not_if_undecided() -> None:
    mask_BT = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    scores_BT = torch.tensor([[0.0, torch.inf, torch.nan], [-torch.inf, 1.0, 0.0], [torch.nan, 1.0, 1.0]])
    decided_B = torch.tensor([True, True, False])
    by_token = [[0, 1, 0], [-1, 2 / (1 + math.exp(-1)) - 1, 0], [0, 0, 0]]
    assert token_rewards(scores_BT, mask_BT, decided_B).numpy() == pytest.approx(np.array(by_token))
    by_verdict = verdict_rewards(torch.tensor([-1, 1, 0]), mask_BT)
    assert by_verdict.tolist() == [[0, 1, 0], [0, 0, -1], [0, 0, 0]]


def test_a_token_is_credited_for_what_comes_after_it_less_and_less() -> None:
    rewards_BT = torch.tensor([[1.0, -2.0, 4.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert returns(rewards_BT, 0.5)[0].tolist() == [1 - 1 + 1, -2 + 2, 4, 0]
    assert returns(rewards_BT, 0.0).equal(rewards_BT)
    assert returns(rewards_BT, 1.0)[1].tolist() == [1, 1, 1, 1], "a verdict is on all tokens of its text"


def test_a_new_baseline_gives_no_token_a_weight() -> None:
    rewards_BT = torch.rand(4, 3)
    assert Baseline(3).advantages(rewards_BT, returns(rewards_BT, 0.5)).abs().sum() == 0


def test_the_usual_return_is_the_line_through_what_was_seen() -> None:
    torch.manual_seed(0)
    rewards_BT = torch.rand(500, 3)
    before_BT = torch.cat([torch.zeros(500, 1), rewards_BT[:, :-1]], dim=1)
    returns_BT = 0.3 + torch.tensor([0.0, 2.0, -1.0]) * before_BT
    baseline, counted_BT = Baseline(3), torch.ones(500, 3, dtype=torch.bool)
    for part in (slice(0, 200), slice(200, 500)):
        baseline.add(rewards_BT[part], returns_BT[part], counted_BT[part])
        baseline.update(torch.Tensor.tolist)
    assert baseline.advantages(rewards_BT, returns_BT).abs().max() < 1e-5
    assert baseline.advantages(rewards_BT, returns_BT + 0.25).numpy() == pytest.approx(0.25, abs=1e-5)


def test_without_rewards_before_it_is_the_mean_of_past_steps_the_latest_counting_most() -> None:
    """As a verdict gives them: nothing before the last token."""
    baseline, zeros_BT, counted_BT = Baseline(2), torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    for value in (1.0, 4.0):
        baseline.add(zeros_BT, torch.full((1, 2), value), counted_BT)
        baseline.update(torch.Tensor.tolist)
    usual = (0.9 * 1 + 4) / 1.9
    assert baseline.advantages(zeros_BT, torch.full((1, 2), 5.0)).numpy() == pytest.approx(5 - usual)


def test_what_is_not_counted_moves_nothing() -> None:
    torch.manual_seed(0)
    rewards_BT, returns_BT = torch.rand(6, 3), torch.rand(6, 3)
    counted_BT = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    one, other = Baseline(3), Baseline(3)
    one.add(rewards_BT, returns_BT, counted_BT)
    one.update(torch.Tensor.tolist)
    garbage_BT = torch.where(counted_BT, returns_BT, torch.nan)
    other.add(rewards_BT, garbage_BT, counted_BT)
    other.update(torch.Tensor.tolist)
    assert one.state_dict().equal(other.state_dict())
    # Two passes, or two ranks, that share a step give what one gives.
    whole = Baseline(3)
    for part in (slice(0, 2), slice(2, 6)):
        whole.add(rewards_BT[part], returns_BT[part], counted_BT[part])
    whole.update(torch.Tensor.tolist)
    assert whole.state_dict().numpy() == pytest.approx(one.state_dict().numpy())


def test_its_state_goes_on_only_with_texts_of_the_same_length() -> None:
    one, same, longer = Baseline(2), Baseline(2), Baseline(3)
    one.update(lambda _: [float(number) for number in range(1, 11)])
    for other in (same, longer):
        other.load_state_dict(one.state_dict())
    assert same.state_dict().equal(one.state_dict())
    assert longer.state_dict().abs().sum() == 0
