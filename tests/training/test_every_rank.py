"""What a sharded model needs of each recipe: every rank runs every block equally often, in the same order.

The passes of a model whose blocks are divided among the ranks are collectives: a rank that runs a block more often than
another one, or another block, fails by a mismatch or by the time limit.
"""

from typing import Any

import pytest

from nbtools.project import Project
from nbtools.recipes import RECIPES
from nbtools.rundir import media

from trainings import TINY, ByHand, rows, write_inputs

Case = tuple[str, dict[str, Any], str]
"""A training whose ranks have unequal parts of the evaluation, with samples, and a test at the end: the recipe, changes
of its TINY values, and a medium that shows what the model generates."""
_LONG = {"prompt_length": 8, "sequence_length": 24, "vocab_size": 60, "min_chars": 5, "eval_samples": 9}
_LONG |= {"dataset": "stories.csv", "batch_size": 2, "gradient_accumulation_steps": 2, "texts_at_once": 3}
_PAIRS = {"dataset": "pairs.jsonl", "eval_draws": 5, "batch_size": 2, "guidance": 1.0}
_FEW = {"eval_samples": 5, "batch_size": 2, "eval_batch_size": 1, "eval_rollouts": 1}
CASES: dict[str, Case] = {
    "mlm_pretraining": ("mlm_pretraining", {"eval_samples": 5, "batch_size": 1}, ""),
    "masked_diffusion, pairs": ("masked_diffusion", _PAIRS, "samples"),
    "text_classification": ("text_classification", {"eval_samples": 9, "batch_size": 4}, "scores"),
    "algorithm_distillation": ("algorithm_distillation", _FEW, "search"),
    "llm_gan, scores of texts": ("llm_gan", _LONG, "samples"),
    "llm_gan, verdicts": ("llm_gan", {**_LONG, "judging": "verdicts", "max_judge_tokens": 6}, "samples"),
}


_FAST = ("masked_diffusion, pairs", "llm_gan, verdicts")
"""Among the fast tests: a model with guidance, and two models."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=name, marks=[] if name in _FAST else pytest.mark.slow) for name, case in CASES.items()],
)
def test_all_ranks_run_the_blocks_of_a_model_together(case: Case, start: ByHand, cpu_project: Project) -> None:
    """`test_contract` compares sharded ranks with a whole model."""
    key, changes, medium = case
    write_inputs(key, cpu_project)
    if changes.get("dataset") == "stories.csv":
        texts = (f"the {('dog', 'cat', 'bird')[n % 3]} runs {'far ' * (n % 5)}" for n in range(60))
        stories = "\n".join(f"title {n},{text}" for n, text in enumerate(texts))
        (cpu_project.root / "stories.csv").write_text(f"title,text\n{stories}\n")
    values = {**TINY[key], "max_steps": 3, "test_fraction": 0.5, "strategy": "fsdp", "collective_timeout_min": 1}
    values |= changes
    if key == "llm_gan":
        values |= {"generator_warmup_steps": 1, "judge_warmup_steps": 1}
    run = start.forked(RECIPES[key].config_class(**values))
    assert {"eval/loss", "test/loss"} <= {name for row in rows(run.files) for name in row}
    assert not medium or media.read(run.files.media, medium)
