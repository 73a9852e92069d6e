"""What ranks compute in turn."""

import itertools
import json
from collections.abc import Iterator

import pytest

from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig

from trainings import TINY, ByHand, by_hand, write_inputs

TIMED = """
import json, os, time
from nbtools.training.process.ranks import Ranks

real = Ranks.in_turn

def in_turn(self, compute, **options):
    def timed():
        began = time.time()
        time.sleep(0.3)
        value = compute()
        with open(f"turn-{self.rank}.json", "w") as file:
            json.dump([began, time.time()], file)
        return value
    return real(self, timed, one_by_one=True)

Ranks.in_turn = in_turn
"""
"""Every rank writes when it has built its model, which takes a while."""


@pytest.fixture
def start(cpu_project: Project) -> Iterator[ByHand]:
    with by_hand(cpu_project) as started:
        yield started


def test_ranks_build_large_models_one_after_the_other(cpu_project: Project, start: ByHand) -> None:
    write_inputs("mlm_pretraining", cpu_project)
    config = MLMPretrainingConfig(**{**TINY["mlm_pretraining"], "max_steps": 1, "batch_size": 2})
    start.forked(config, nproc=3, more=TIMED)
    turns = [json.loads((cpu_project.root / f"turn-{rank}.json").read_text()) for rank in range(3)]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(turns))
