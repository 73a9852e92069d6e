"""10,000 rows through `nbtools predict`'s text classifier in batches, against one row at a time. Goal: at least 5 x.

    python tests/benchmarks/bench_predict.py [rounds]

The model of the preset cpu_demo of text_classification, with random weights, on one thread; generated occupations in
languages as the demo has them. Rounds are interleaved and count CPU time: a round predicts all 10,000 rows in batches
and a sample of 500 one by one, which have to get the same codes; the ratio is that of the median times per row.
"""

import sys
import tempfile
from pathlib import Path

import torch
from rounds import cpu_medians, interleaved

from nbtools.data.text_classification import occupations
from nbtools.data.text_classification.codes import CodeSystem
from nbtools.recipes import TextClassificationConfig, recipe_named
from nbtools.recipes.predict_settings import Input, TextClassificationPredict
from nbtools.training.text_classification.model import build_classifier
from nbtools.training.text_classification.predict import Predictor

GOAL = 5.0
NUM_ROWS, NUM_ALONE = 10_000, 500


def main(num_rounds: int = 3) -> int:
    """Print a table; 0 if the goal is reached."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    preset, _ = recipe_named("text_classification").preset("cpu_demo")
    assert isinstance(preset, TextClassificationConfig)
    rows = [*occupations.rows(1, NUM_ROWS)]
    codes = sorted({code for row in rows for code in row.codes})
    system = CodeSystem.of("hisco", codes, preset.max_codes)
    inputs: list[Input] = [{"text": row.text, "lang": row.lang} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        build_classifier(preset, system, torch.full((len(codes),), 0.1)).save_pretrained(folder)
        predictor = Predictor(Path(folder), preset, torch.device("cpu"))
    settings = TextClassificationPredict()
    sample = range(0, NUM_ROWS, NUM_ROWS // NUM_ALONE)
    ways = {
        "in batches": lambda: list(predictor.predict(inputs, settings)),
        "one at a time": lambda: [next(predictor.predict([inputs[place]], settings)) for place in sample],
    }
    with torch.inference_mode():
        costs, found = interleaved(ways, num_rounds)
    together, alone = found.values()
    assert [row["codes"] for row in alone] == [together[place]["codes"] for place in sample]
    batched_s, alone_s = cpu_medians(costs).values()
    ratio = alone_s / NUM_ALONE / (batched_s / NUM_ROWS)
    print(f"a row: {batched_s / NUM_ROWS * 1e6:.0f} us in batches, {alone_s / NUM_ALONE * 1e6:.0f} us one at a time")
    print(f"ratio of the medians {ratio:.1f} (goal: {GOAL:g})")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
