"""10,000 rows through `nbtools predict`'s text classifier in batches, against one row at a time. Goal: at least 5 x.

    python tests/benchmarks/bench_predict.py [rounds]

The model of the preset cpu_demo of text_classification, with random weights, on one thread; generated occupations in
languages as the demo has them. Rounds are interleaved and count CPU time: a round predicts all 10,000 rows in batches
and a sample of 500 one by one, which have to get the same codes; the ratio is that of the times per row.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

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
    ratios = []
    print("round   in batches   one at a time   ratio")
    with torch.inference_mode():
        for number in range(1, num_rounds + 1):
            start = time.process_time()
            together = list(predictor.predict(inputs, settings))
            batched_s = (time.process_time() - start) / NUM_ROWS
            start = time.process_time()
            alone = [next(predictor.predict([inputs[place]], settings)) for place in sample]
            alone_s = (time.process_time() - start) / NUM_ALONE
            assert [row["codes"] for row in alone] == [together[place]["codes"] for place in sample]
            ratios.append(alone_s / batched_s)
            print(f"{number:<8}{batched_s * 1e6:>7.0f} us{alone_s * 1e6:>13.0f} us{ratios[-1]:>8.1f}")
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.1f} (goal: {GOAL:g})")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
