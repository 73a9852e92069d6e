"""Steps of the darkroom per second on one core, with all that a learning history takes. Goal: at least 1,000,000.

    python tests/benchmarks/bench_darkroom.py [rounds]

Ours plays the histories of `algorithm_distillation`'s defaults, many at once: 73 goals x 60 histories x 20 episodes of
20 steps, and for Q-learning 15 times as many episodes. The peers are plain Python loops of the same rules, one step
after the other, as an environment with a `step` method is used. CPU time, rounds interleaved, medians.
"""

import functools
import random
import sys
from collections.abc import Callable

from rounds import cpu_medians, interleaved

from nbtools.data.algorithm_distillation import learners
from nbtools.recipes import AlgorithmDistillationConfig

GOAL_STEPS_PER_S = 1_000_000
MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (0, 0))


class Room:
    """One darkroom as an object that is stepped through."""

    def __init__(self, goal: tuple[int, int]) -> None:
        self.goal = goal

    def reset(self) -> tuple[int, int]:
        """Stand in the middle."""
        self.column, self.row = 4, 4
        return self.column, self.row

    def step(self, action: int) -> tuple[tuple[int, int], int]:
        """Move; return where the agent stands now, and its reward."""
        right, down = MOVES[action]
        self.column = min(max(self.column + right, 0), 8)
        self.row = min(max(self.row + down, 0), 8)
        here = (self.column, self.row)
        return here, int(here == self.goal)


def straight(here: tuple[int, int], goal: tuple[int, int]) -> int:
    """A step along a shortest way."""
    right, down = goal[0] - here[0], goal[1] - here[1]
    if right and (not down or random.random() < 0.5):
        return 0 if right > 0 else 1
    return 2 if down > 0 else 3 if down < 0 else 4


def plain_annealed(goal: tuple[int, int]) -> int:
    """Play one history of 20 episodes; return its steps."""
    room, history = Room(goal), []
    for episode in range(20):
        here = room.reset()
        for step in range(20):
            noise = 1 - (episode * 20 + step) / 360
            action = random.randrange(5) if random.random() < noise else straight(here, goal)
            there, reward = room.step(action)
            history.append((*here, action, reward))
            here = there
    return len(history)


def plain_q_learning(goal: tuple[int, int]) -> int:
    """Play one history of 300 episodes; return its steps."""
    room, history = Room(goal), []
    values = {(column, row): [1.0] * 5 for column in range(9) for row in range(9)}
    for episode in range(300):
        here, epsilon = room.reset(), max(1 - episode / 270, 0.05)
        for _ in range(20):
            known = values[here]
            action = random.randrange(5) if random.random() < epsilon else known.index(max(known))
            there, reward = room.step(action)
            known[action] += 0.5 * (reward + 0.9 * max(values[there]) - known[action])
            history.append((*here, action, reward))
            here = there
    return len(history)


PLAIN: dict[str, Callable[[tuple[int, int]], int]] = {"annealed": plain_annealed, "q_learning": plain_q_learning}


def ours(config: AlgorithmDistillationConfig) -> int:
    """Play the histories that a training with this config would; return how many steps were played for them."""
    room = config.darkroom
    goals_G2 = config.split_goals()[0]
    return len(learners.generate(config.learner, room, goals_G2, config.num_histories)) * config.episodes_played * 20


def theirs(source: str) -> int:
    """Play one history for each of some goals."""
    return sum(PLAIN[source]((column, row)) for column in range(4) for row in range(5))


def main(num_rounds: int = 5) -> int:
    """Print a table; 0 if the goal is reached."""
    print(f"{'':<12}{'nbtools, M steps/s':>20}{'plain Python, M steps/s':>25}{'ratio':>8}")
    reached = True
    for source in PLAIN:
        config = AlgorithmDistillationConfig.model_validate({"source_algorithm": source})
        ways = {"ours": functools.partial(ours, config), "theirs": functools.partial(theirs, source)}
        costs, num_steps = interleaved(ways, num_rounds)
        fast, slow = (num_steps[name] / cpu_s / 1e6 for name, cpu_s in cpu_medians(costs).items())
        print(f"{source:<12}{fast:>20.1f}{slow:>25.2f}{fast / slow:>7.0f}x")
        reached = reached and fast * 1e6 >= GOAL_STEPS_PER_S
    print(f"goal: >= {GOAL_STEPS_PER_S:,} steps per second on one core: {'reached' if reached else 'MISSED'}")
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
