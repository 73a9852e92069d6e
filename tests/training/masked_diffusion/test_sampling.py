"""Sampling by unmasking: against a reference written for these tests, and against a distribution known exactly."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from nbtools.errors import ConfigError
from nbtools.training.masked_diffusion.sampling import Unmasking, sample, unmask

V = 6
MASK = V - 1


def predict(tokens_BT: torch.Tensor) -> torch.Tensor:
    """Logits that depend on the position and on all tokens of the row, and favour [MASK]."""
    position_T = torch.arange(tokens_BT.shape[1])
    row_B1 = (tokens_BT * (position_T + 1)).sum(1, keepdim=True)
    score_BTV = torch.sin((row_B1[..., None] + 3 * position_T[:, None] + 7 * torch.arange(V)).float()) * 3
    score_BTV[..., MASK] = 50.0
    return score_BTV


def unmasking(length: int = 8, steps: int = 8, block_length: int = 8, **options: Any) -> Unmasking:
    return Unmasking(length, steps, block_length, **options)


def states(settings: Unmasking, prompt: list[list[int]], seed: int = 0) -> list[list[list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    prompt_BP = torch.tensor(prompt, dtype=torch.long).reshape(len(prompt), -1)
    found = unmask(predict, prompt_BP, settings, mask_id=MASK, generator=generator)
    return [state.tolist() for state in found]


def reference(settings: Unmasking, prompt: list[int]) -> list[list[int]]:
    """Greedy low-confidence remasking of one row in plain Python, position by position."""
    tokens = [*prompt, *[MASK] * settings.length]
    seen = [list(tokens)]
    per_block = settings.steps * settings.block_length // settings.length
    for first in range(len(prompt), len(tokens), settings.block_length):
        block = list(range(first, first + settings.block_length))
        for step in range(per_block):
            logits = predict(torch.tensor([tokens]))[0].double().numpy()
            if settings.guidance and prompt:
                blind = predict(torch.tensor([[MASK] * len(prompt) + tokens[len(prompt) :]]))[0].double().numpy()
                logits = (1 + settings.guidance) * logits - settings.guidance * blind
            guesses = {}
            for place in block:
                if tokens[place] == MASK:
                    scores = {v: logits[place, v] for v in range(V) if v != MASK and v not in settings.suppressed_ids}
                    best = max(scores, key=lambda v: scores[v])
                    total = sum(math.exp(score - scores[best]) for score in scores.values())
                    guesses[place] = (1 / total, best)
            count = len(block) // per_block + (step < len(block) % per_block)
            for place in sorted(guesses, key=lambda p: (guesses[p][1] in settings.last_ids, -guesses[p][0]))[:count]:
                tokens[place] = guesses[place][1]
            seen.append(list(tokens))
    return seen


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        (unmasking(), []),
        (unmasking(steps=3), [0, 1, 2]),
        (unmasking(steps=4, block_length=4), [4]),
        (unmasking(steps=4, block_length=2), [1, 3]),
        (unmasking(steps=6, block_length=4, guidance=1.5), [2, 0, 1]),
        (unmasking(steps=8, suppressed_ids=(0, 3)), [1]),
        (unmasking(steps=8, last_ids=(0, 3)), [1]),
        (unmasking(steps=4, block_length=4, last_ids=(0, 1, 2, 4)), [2]),
        (unmasking(length=7, steps=1, block_length=7), [2]),
    ],
    ids=[
        *("all_steps", "uneven_steps", "two_blocks", "four_blocks", "guidance", "suppressed"),
        *("last", "nearly_all_last", "one_step"),
    ],
)
def test_greedy_sampling_is_what_the_reference_does_step_by_step(settings: Unmasking, prompt: list[int]) -> None:
    found = states(settings, [prompt])
    expected = reference(settings, prompt)
    assert len(found) == settings.steps + 1
    assert [state[0] for state in found] == expected
    assert MASK not in expected[-1]


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_tokens_that_come_last_are_unmasked_where_a_step_has_no_others(remasking: str) -> None:
    """The likelihood of [EOS] is highest everywhere but at two places, which are unmasked first."""
    logits_TV = torch.zeros(6, V)
    logits_TV[:, 0] = 9.0
    logits_TV[[1, 4], 2] = 10.0
    settings = Unmasking(6, 6, 6, remasking=remasking, last_ids=(0,))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    found = unmask(
        lambda tokens: logits_TV[None], torch.zeros(1, 0).long(), settings, mask_id=MASK, generator=generator
    )
    seen = [state[0].tolist() for state in found]
    assert sorted(place for place in range(6) if seen[2][place] != MASK) == [1, 4]
    assert seen[-1] == [0, 2, 0, 0, 2, 0]


def test_rows_of_a_batch_do_not_change_one_another() -> None:
    settings = unmasking(steps=4, block_length=4, guidance=0.5)
    prompts = [[0, 1], [2, 2], [4, 3]]
    together = states(settings, prompts)[-1]
    assert together == [states(settings, [prompt])[-1][0] for prompt in prompts]
    assert len({tuple(row[2:]) for row in together}) > 1


def test_the_prompt_stays_and_what_was_revealed_never_changes_and_blocks_follow_one_another() -> None:
    settings = unmasking(length=12, steps=6, block_length=4, temperature=1.0, remasking="random")
    seen = states(settings, [[0, 1, 2]])
    assert settings.revealed_per_step == [2, 2]
    for number, (before, after) in enumerate(itertools.pairwise([state[0] for state in seen])):
        assert after[:3] == [0, 1, 2]
        changed = [place for place in range(15) if before[place] != after[place]]
        assert all(before[place] == MASK for place in changed)
        assert len(changed) == 2
        assert {(place - 3) // 4 for place in changed} == {number // 2}


def test_the_same_seed_gives_the_same_text_and_another_one_another() -> None:
    settings = unmasking(temperature=1.0)
    assert states(settings, [[1]], seed=3) == states(settings, [[1]], seed=3)
    assert states(settings, [[1]], seed=3)[-1] != states(settings, [[1]], seed=4)[-1]


def test_tokens_are_drawn_from_the_softmax_at_the_temperature() -> None:
    logits = torch.tensor([2.0, 0.5, -1.0, 0.0])
    for temperature in (0.5, 1.0, 2.0):
        drawn = sample(logits.expand(40_000, 4), temperature, torch.Generator().manual_seed(1))
        shares = torch.bincount(drawn, minlength=4) / len(drawn)
        assert torch.allclose(shares, (logits / temperature).softmax(0), atol=0.012)
    assert set(sample(logits.expand(9, 4), 0.0).tolist()) == {0}


def test_revealing_any_token_at_temperature_1_samples_the_joint_distribution() -> None:
    """With exact conditionals and one token a step, every order gives the joint distribution (the chain rule)."""
    rng = np.random.default_rng(0)
    joint = rng.dirichlet(np.ones(8) * 0.7).reshape(2, 2, 2)

    def exact(tokens_BT: torch.Tensor) -> torch.Tensor:
        logits = torch.full((len(tokens_BT), 3, 3), -5.0)
        for row, tokens in enumerate(tokens_BT.tolist()):
            allowed = [(token,) if token < 2 else (0, 1) for token in tokens]
            for place in range(3):
                for value in (0, 1):
                    fixed = [(value,) if other == place else allowed[other] for other in range(3)]
                    mass = sum(joint[key] for key in itertools.product(*fixed)) if value in allowed[place] else 0
                    logits[row, place, value] = math.log(max(mass, 1e-30))
        return logits

    settings = Unmasking(3, 3, 3, temperature=1.0, remasking="random")
    number = 4000
    generator = torch.Generator().manual_seed(0)
    *_, last = unmask(exact, torch.zeros(number, 0, dtype=torch.long), settings, mask_id=2, generator=generator)
    counts = Counter(tuple(row) for row in last.tolist())
    for key in itertools.product((0, 1), repeat=3):
        share, error = counts[key] / number, math.sqrt(joint[key] * (1 - joint[key]) / number)
        assert abs(share - joint[key]) < 4.5 * error, key


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"block_length": 3}, "block_length=3: must divide the sampled length 8"),
        ({"steps": 3, "block_length": 4}, "steps=3: must be a multiple of the 2 blocks of 4 tokens"),
        ({"steps": 16}, "steps=16: must be .* <= 8, as a step reveals at least one token"),
        ({"steps": 0}, "each must be at least 1"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_what_would(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        unmasking(**values)
