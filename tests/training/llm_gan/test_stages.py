"""Who learns when: the game begins only with a judge that is good enough, and is never given up."""

import math
from typing import Any

import pytest

from nbtools.recipes import LLMGANConfig
from nbtools.training.engine.plan import Plan
from nbtools.training.llm_gan.stages import Stage, Stages

STAGES: dict[str, Any] = {"generator_warmup_steps": 2, "judge_warmup_steps": 3, "judge_accuracy": 0.8, "judge_steps": 2}
RATES: dict[str, Any] = {"learning_rate": 0.1, "warmup_learning_rate": 0.2, "judge_learning_rate": 0.3}
CONFIG = LLMGANConfig(**STAGES, **RATES, warmup_ratio=0.2, lr_schedule="constant")


def plan_of(config: LLMGANConfig, total_steps: int) -> Plan:
    return Plan(config, None, 1, total_steps, None)  # type: ignore[arg-type]  # of samples nothing is asked


def test_generator_then_judge_then_the_game_as_soon_as_the_judge_is_good_enough() -> None:
    stages = Stages(plan_of(CONFIG, 20))
    assert [stages.at(step) for step in range(1, 7)] == [Stage.GENERATOR] * 2 + [Stage.DISCRIMINATOR] * 4
    assert [step for step in range(1, 20) if stages.ends_warmup(step)] == [2, 5]
    assert stages.update(2, 0.9) == "", "it has not learnt anything yet"
    assert stages.at(6) is Stage.DISCRIMINATOR
    assert "below judge_accuracy=0.8" in stages.update(5, 0.79)
    assert stages.at(6) is Stage.DISCRIMINATOR
    assert "adversarial training starts after step 8" in stages.update(8, 0.8)
    assert [stages.at(step) for step in (8, 9)] == [Stage.DISCRIMINATOR, Stage.ADVERSARIAL]
    assert stages.update(12, 0.5) == ""
    assert stages.at(13) is Stage.ADVERSARIAL, "a fooled judge is no reason to stop"
    assert stages.judge_accuracy == 0.5


def test_a_judge_that_never_gets_there_is_told_at_the_end() -> None:
    stages = Stages(plan_of(CONFIG, 20))
    said = stages.update(20, 0.7)
    assert said.startswith("warning")
    assert "70.0%" in said
    assert "no adversarial step was taken" in said


def test_warm_ups_that_leave_nothing_for_the_game_are_told_before_the_first_step() -> None:
    assert Stages(plan_of(CONFIG, 6)).warmup_note() == ""
    said = Stages(plan_of(CONFIG, 5)).warmup_note()
    assert all(part in said for part in ("generator_warmup_steps=2", "judge_warmup_steps=3", "none of the 5 steps"))
    assert Stages(plan_of(CONFIG, 5), {"game_since": 4}).warmup_note() == "", "it has begun earlier"


def test_each_stage_has_its_learners_and_its_rates() -> None:
    stages = Stages(plan_of(CONFIG, 15), {"game_since": 5, "judge_accuracy": 0.8})
    steps = {Stage.GENERATOR: 1, Stage.DISCRIMINATOR: 4, Stage.ADVERSARIAL: 6}
    assert [len(stages.discriminator_draws(stage)) for stage in steps] == [0, 1, 2]
    assert [stages.trains_generator(stage) for stage in steps] == [True, False, True]
    assert stages.discriminator_learning_rate(Stage.DISCRIMINATOR) == 0.2
    assert stages.discriminator_learning_rate(Stage.ADVERSARIAL) == 0.3
    assert stages.generator_learning_rate(1) == 0.2
    # The schedule is that of the game's ten steps, two of which warm up.
    assert [stages.generator_learning_rate(step) for step in (6, 7, 8, 15)] == pytest.approx([0.05, 0.1, 0.1, 0.1])
    frozen = Stages(plan_of(CONFIG.replace(freeze_generator=True), 15), stages.state_dict())
    assert [frozen.trains_generator(stage) for stage in steps] == [True, False, False]


def test_a_resumed_training_is_where_it_was() -> None:
    stages = Stages(plan_of(CONFIG, 20))
    stages.update(5, 0.85)
    again = Stages(plan_of(CONFIG, 20), stages.state_dict())
    assert (again.adversarial_since, again.judge_accuracy) == (5, 0.85)
    assert math.isnan(Stages(plan_of(CONFIG, 20), {}).judge_accuracy)


def test_without_any_warm_up_the_game_begins_at_once() -> None:
    none = CONFIG.replace(generator_warmup_steps=0, judge_warmup_steps=0, judge_accuracy=0.0)
    assert Stages(plan_of(none, 20)).at(1) is Stage.ADVERSARIAL
    assert Stages(plan_of(none.replace(judge_accuracy=0.8), 20)).at(1) is Stage.DISCRIMINATOR


def test_by_likelihood_the_generator_trains_in_every_step_at_the_rate_of_its_warm_up_and_the_judge_never() -> None:
    config = CONFIG.replace(objective="likelihood")
    for state in (None, {"game_since": 5, "judge_accuracy": 0.8}):  # from scratch, and from a game
        stages = Stages(plan_of(config, 5), state)
        assert {stages.at(step) for step in range(1, 12)} == {Stage.LIKELIHOOD}
        assert not stages.discriminator_draws(Stage.LIKELIHOOD)
        assert stages.trains_generator(Stage.LIKELIHOOD)
        assert [stages.generator_learning_rate(step) for step in (1, 6, 12)] == [0.2] * 3
        assert not any(stages.ends_warmup(step) for step in range(1, 12))
        assert stages.warmup_note() == stages.update(5, 0.9) == "", "nothing is waited for"
