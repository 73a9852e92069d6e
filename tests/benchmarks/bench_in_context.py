"""In-context evaluation, as every evaluation of the preset cpu_demo does it: 8 goals x 16 rollouts x 40 episodes.

    python tests/benchmarks/bench_in_context.py [episodes] [rounds]

Ours reads the kept episodes at once at a reset, and then every step is one token after a cache of keys and values. The
peer has no cache: it reads all that is in sight again at every step. Both choose the same actions. One thread, by CPU
time. Goal: ours takes at most 20 s for 40 episodes.
"""

import sys
from collections.abc import Callable

import torch
from rounds import cpu_medians, interleaved, print_costs

from nbtools.recipes import AlgorithmDistillationConfig, recipe_named
from nbtools.training.algorithm_distillation.model import ActionTransformer, build_action_transformer
from nbtools.training.algorithm_distillation.rollout import Rollouts, RolloutSettings, repeat_goals, run_rollouts

GOAL_S = 20.0


class WithoutCache(ActionTransformer):
    """Remembers all tokens in place of keys and values."""

    def next_logits(self, tokens_BT4: torch.Tensor, cache: object = None) -> torch.Tensor:
        """As `ActionTransformer.next_logits`, of everything again."""
        if cache is not self.__dict__.get("of"):
            self.__dict__["of"], self.__dict__["seen"] = cache, tokens_BT4
        else:
            self.__dict__["seen"] = torch.cat([self.__dict__["seen"], tokens_BT4], dim=1)
        return super().next_logits(self.__dict__["seen"])


def main(num_episodes: int = 40, rounds: int = 3) -> None:
    """Measure both, in turn, and print seconds and ratio."""
    torch.set_num_threads(1)
    config, _ = recipe_named("algorithm_distillation").preset("cpu_demo")
    assert isinstance(config, AlgorithmDistillationConfig)
    darkroom = config.darkroom
    _, goals_G2 = config.split_goals()
    torch.manual_seed(0)
    transformer = build_action_transformer(config, goals_G2).eval()
    goals_S2, numbers_S = repeat_goals(goals_G2, config.eval_rollouts)
    settings = RolloutSettings(num_episodes)

    def rolled(model: ActionTransformer) -> Callable[[], Rollouts]:
        return lambda: run_rollouts(model, goals_S2, numbers_S, settings)

    ways = {"ours": rolled(transformer), "without a cache": rolled(WithoutCache(transformer.model).eval())}
    costs, found = interleaved(ways, rounds)
    one, other = found.values()
    same = (one.positions_SEK2 == other.positions_SEK2).all(axis=(1, 2, 3)).mean()
    assert same > 0.95, "but for the last digits, they see the same"
    print(f"{len(goals_G2)} goals x {config.eval_rollouts} rollouts x {num_episodes} episodes, {rounds} rounds")
    medians = cpu_medians(costs)
    print_costs(costs)
    print(f"ours is {medians['without a cache'] / medians['ours']:.1f} x as fast")
    of_40 = medians["ours"] * 40 / num_episodes
    print(f"40 episodes: {of_40:.2f} s (goal <= {GOAL_S:g}): {'reached' if of_40 <= GOAL_S else 'MISSED'}")
    print(f"steps of the room per CPU second: {len(goals_S2) * darkroom.horizon * 40 / of_40:,.0f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
