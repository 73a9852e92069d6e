"""The phases of a training of two ranks add up to its time, and name the rank that is slow."""

import itertools
import json

import pytest

from nbtools.project import Project
from nbtools.recipes import MLMPretrainingConfig
from nbtools.run.ranks.phases import PHASES, PhaseRows, shares_of, why_slow

from trainings import TINY, ByHand

SLOW_DATA = """
import os
import time

from nbtools.training.mlm_pretraining.masking import MaskedTraining

real = MaskedTraining.__getitem__

def read_slowly(dataset, key):
    time.sleep(0.2 * (os.environ["RANK"] == "1"))
    return real(dataset, key)

MaskedTraining.__getitem__ = read_slowly
"""


def test_a_rank_that_waits_for_data_is_named_and_its_phases_add_up_to_the_time(start: ByHand, texts: Project) -> None:
    every = {"epochs": 50, "max_steps": 32, "log_every": 8, "eval_every": 16, "checkpoint_every": 32}
    files = start.forked(MLMPretrainingConfig(**{**TINY["mlm_pretraining"], **every}), more=SLOW_DATA).files
    seconds = PhaseRows(files).seconds()
    assert [*seconds] == [0, 1]
    waits, slow = (shares_of(seconds[rank]) for rank in (0, 1))
    assert slow["data"] > 0.3 > waits["data"] and waits["waiting"] > 0.3 > slow["waiting"]
    assert all(seconds[0][phase] > 0 for phase in (*PHASES[:4], "evaluation", "checkpoint", "other"))
    assert why_slow(seconds).startswith("Rank 1 waits for data ")
    for rank in (0, 1):
        written = [json.loads(line) for line in files.phases(rank).read_text().splitlines()]
        assert [row["step"] for row in written] == [8, 16, 24, 32, 32]
        for before, row in itertools.pairwise(written):
            assert sum(row["seconds"].values()) == pytest.approx(row["time"] - before["time"], rel=0.05, abs=0.05)
