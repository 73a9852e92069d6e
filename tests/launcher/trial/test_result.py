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


def of(world_size: int = 1, config: Any = None, **changes: Any) -> TrialResult:
    config = config or MLMPretrainingConfig(batch_size=8, gradient_accumulation_steps=2, epochs=3)
    return TrialResult.of({**ANSWER, **changes}, config, world_size, "GPU 1 (a GPU)", 80 * GIB)


def lines(result: TrialResult) -> dict[str, str]:
    return {finding.subject: finding.sentence for finding in result.findings}


@pytest.mark.parametrize(("world_size", "total_steps"), [(1, 3 * 62), (4, 3 * 15)])
def test_the_duration_is_that_of_all_steps_of_the_launch(world_size: int, total_steps: int) -> None:
    result = of(world_size)
    assert (result.first_step_s, result.step_s, result.num_steps) == (2.0, 0.5, 3)
    assert result.samples_per_s == 32
    assert result.total_steps == total_steps
    assert result.duration_s == total_steps * 0.5
    said = "evaluations and checkpoints are not included"
    if world_size > 1:
        said = f"one of {world_size} processes was measured alone; their communication, {said}"
    assert result.assumption == said
    assert lines(result) == {
        "trial": "one process on GPU 1 (a GPU), 1,234,567 parameters, in bf16",
        "step time": "500 ms (mean of 2 steps after the first, which took 2 s): 32 samples/s",
        "peak memory": "30.0 GiB allocated, 33.0 GiB reserved of 80.0 GiB; largest batch_size that fits: 20 "
        "(22 does not fit)",
        "duration": f"about 0:0{'1:33' if world_size == 1 else '0:22'} for {total_steps} steps; {said}",
    }


def test_a_batch_that_does_not_fit_is_a_warning_without_a_duration() -> None:
    result = of(batch_size=4, largest_batch=4, largest_note="5 does not fit")
    assert (result.batch_size, result.duration_s, result.total_steps) == (4, None, None)
    (warning,) = [finding for finding in result.findings if finding.level == "warn"]
    assert warning.subject == "peak memory"
    assert warning.next_step.startswith("set batch_size=4 with more gradient_accumulation_steps")
    assert "duration" not in lines(result)


def test_what_the_estimate_does_not_know_is_said() -> None:
    sharded = MLMPretrainingConfig(batch_size=8, strategy="fsdp")
    assert "held the whole model" in of(4, sharded).assumption
    assert "held the whole model" not in of(1, sharded).assumption
    assert "costliest stage" in of(1, LLMGANConfig(batch_size=8, generator_warmup_steps=5)).assumption


def test_on_the_cpu_memory_is_that_of_the_process() -> None:
    unknown = {"largest_batch": None, "largest_note": "it is searched on GPUs only", "reserved_bytes": None}
    config = MLMPretrainingConfig(batch_size=8)
    answer = {**ANSWER, **unknown, "device": "cpu", "device_name": "CPU"}
    result = TrialResult.of(answer, config, 1, "", None)
    assert result.device == "CPU, 4 threads"
    assert lines(result)["peak memory"] == (
        "30.0 GiB without the imports; the largest batch: it is searched on GPUs only"
    )
    assert lines(TrialResult.of({**answer, "peak_bytes": None}, config, 1, "", None))["peak memory"].startswith(
        "not known"
    )


def test_too_few_samples_for_all_processes_are_an_error() -> None:
    result = of(100)
    assert "too few for one step" in result.error
    assert result.step_s is None


def test_an_error_has_no_figures() -> None:
    result = TrialResult.of({"error": "no such file"}, MLMPretrainingConfig(), 1, "", None)
    assert result == TrialResult(error="no such file")
    assert lines(result) == {"trial": "no such file"}
