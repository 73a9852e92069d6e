"""The figures of a trial: what follows from the answer of its process, and how they are shown."""

from typing import Any

import pytest

from nbtools.launcher.trial.result import TrialResult
from nbtools.recipes import LLMGANConfig, MLMPretrainingConfig

GIB = 2**30
ANSWER: dict[str, Any] = {
    "batch_size": 8,
    "step_s": [2.0, 0.4, 0.6],
    "peak_bytes": 30 * GIB,
    "reserved_bytes": 33 * GIB,
    "num_parameters": 1_234_567,
    "num_train_samples": 1000,
    "num_eval_samples": 100,
    "num_test_samples": 100,
    "device": "cuda:0",
    "device_name": "a GPU",
    "threads": 4,
    "precision": "bf16",
    "largest_batch": 20,
    "largest_note": "22 does not fit",
}
CONFIG = MLMPretrainingConfig(batch_size=8, gradient_accumulation_steps=2, epochs=3)


def lines(world_size: int = 1, config: Any = CONFIG, on: str = "GPU 1 (a GPU)", **changes: Any) -> dict[str, str]:
    """The findings of a result by subject, those of another level than `ok` with it."""
    result = TrialResult.of({**ANSWER, **changes}, config, world_size, on, 80 * GIB if on else None)
    assert bool(result.error) is not bool(result.measured)
    return {one.subject: one.level.removesuffix("ok") + one.sentence for one in result.findings}


@pytest.mark.parametrize(("world_size", "duration"), [(1, "0:01:33 for 186"), (4, "0:00:22 for 45")])
def test_the_duration_is_that_of_all_steps_of_the_launch(world_size: int, duration: str) -> None:
    said = "evaluations and checkpoints are not included"
    if world_size > 1:
        said = f"one of {world_size} processes was measured alone; their communication, {said}"
    assert lines(world_size) == {
        "trial": "one process on GPU 1 (a GPU), 1,234,567 parameters, in bf16",
        "step time": "500 ms (mean of 2 steps after the first, which took 2 s): 32 samples/s",
        "peak memory": "30.0 GiB allocated, 33.0 GiB reserved of 80.0 GiB; largest batch_size that fits: 20 "
        "(22 does not fit)",
        "duration": f"about {duration} steps; {said}",
    }


def test_a_batch_that_does_not_fit_is_a_warning_without_a_duration() -> None:
    found = lines(batch_size=4, largest_batch=4, largest_note="5 does not fit")
    assert found["peak memory"].startswith("warn30.0 GiB")
    assert "fits: 4 (5 does not fit): set batch_size=4 with more gradient_accumulation_steps" in found["peak memory"]
    assert "duration" not in found


@pytest.mark.parametrize(
    ("world_size", "config", "said"),
    [
        (4, CONFIG.replace(strategy="fsdp"), "held the whole model"),
        (1, CONFIG.replace(strategy="fsdp"), ""),
        (1, LLMGANConfig(batch_size=8, generator_warmup_steps=5), "costliest stage"),
    ],
)
def test_what_the_estimate_does_not_know_is_said(world_size: int, config: Any, said: str) -> None:
    found = lines(world_size, config)["duration"]
    assert [words in found for words in ("held the whole model", "costliest stage")] == [
        words == said for words in ("held the whole model", "costliest stage")
    ]


def test_on_the_cpu_memory_is_that_of_the_process() -> None:
    note = "it is searched on GPUs only"
    cpu = {"on": "", "device": "cpu", "largest_batch": None, "largest_note": note, "reserved_bytes": None}
    found = lines(**cpu)
    assert found["trial"].startswith("one process on CPU, 4 threads, ")
    assert found["peak memory"] == f"30.0 GiB without the imports; the largest batch: {note}"
    assert lines(**cpu, peak_bytes=None)["peak memory"].startswith("not known")


def test_an_error_has_no_figures() -> None:
    assert "too few for one step" in lines(100)["trial"]
    assert lines(error="no such file") == {"trial": "warnno such file"}
