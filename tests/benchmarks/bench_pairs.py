"""Tokens that fine-tuning on pairs computes, against padding shuffled batches to their longest pair.

    python tests/benchmarks/bench_pairs.py [answers' mean tokens] [batch size]

No model runs: the cost of a step grows with the tokens of its batch. The answers have lengths of a log-normal
distribution, prompts a tenth of them; the limit is 4,096 tokens. Goal: at most 1.2.
"""

import dataclasses
import itertools
import sys

import numpy as np

from nbtools.training.engine.sampler import SampleOrder
from nbtools.training.masked_diffusion.forward_process import Noise, NoisedPairs
from nbtools.training.masked_diffusion.sequences import RaggedPairs

LIMIT = 4096
NUM_PAIRS = 20_000


def main(mean_answer: int = 200, batch_size: int = 8) -> None:
    """Print the ratio for three spreads of lengths."""
    for spread in (0.25, 0.5, 0.75):
        rng = np.random.default_rng(0)
        starts_N = np.maximum(rng.lognormal(np.log(mean_answer / 10), spread, NUM_PAIRS).astype(int), 1)
        answers_N = np.maximum(rng.lognormal(np.log(mean_answer) - spread**2 / 2, spread, NUM_PAIRS).astype(int), 1)
        lengths_N = np.minimum(starts_N + answers_N + 1, LIMIT)
        tokens = np.ones(lengths_N.sum(), dtype=np.uint8)
        data = NoisedPairs(RaggedPairs(tokens, np.append(0, np.cumsum(lengths_N)), starts_N, 0), Noise(2, 0, 0), LIMIT)
        shuffled = SampleOrder(NUM_PAIRS, batch_size)
        plain, ours = (
            list(itertools.islice(iter(order), NUM_PAIRS // batch_size))
            for order in (shuffled, dataclasses.replace(shuffled, lengths=data.lengths))
        )
        longest = sum(batch_size * int(lengths_N[samples_B].max()) for _, samples_B in plain)
        computed = sum(data[key][0].numel() for key in ours)
        packs = NoisedPairs(data.pairs, data.noise, LIMIT, packs=True)
        packed = sum(packs[key][0].numel() for key in plain)
        filled = batch_size * LIMIT * len(plain)
        print(
            f"spread {spread}: {computed / longest:.2f} of padding to the batch's longest, "
            f"{computed / lengths_N.sum():.2f} of the pairs' own tokens, {filled / computed:.1f} x less than {LIMIT}; "
            f"packed, the shuffled batches are {packed / longest:.2f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
