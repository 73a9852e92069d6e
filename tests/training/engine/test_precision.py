"""Precision: what auto is; a format that this machine is slow in is measured and told, with the alternative."""

import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fixture_types import Train

from nbtools.rundir.json_files import read_json
from nbtools.training.engine import precision
from nbtools.training.engine.precision import matmul_rate, resolved, set_tf32, slowdown, warning
from nbtools.training.process.ranks import Ranks

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.promise("guide-A7")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_the_slowdown_is_a_measured_ratio(name: str) -> None:
    factor = slowdown(CPU, name)
    assert math.isfinite(factor) and factor > 0


@pytest.mark.promise("guide-L8", "guide-A6")
@pytest.mark.parametrize(
    ("name", "rate", "said"), [("bf16", 1e9, True), ("bf16", 20e9, False), ("fp32", 1e9, False), ("tf32", 1e9, False)]
)
def test_a_slower_precision_is_told_with_its_figure_and_the_alternative(
    monkeypatch: pytest.MonkeyPatch, name: str, rate: float, said: bool
) -> None:
    monkeypatch.setattr(precision, "matmul_rate", lambda device, asked: 9e9 if asked == "fp32" else rate)
    text = warning(CPU, name)
    assert text.startswith("warning: bf16 is 9.0 times slower than fp32 on this CPU") is said
    assert ("--precision fp32" in text) is bool(text) is said


def test_the_rate_is_that_of_this_machine_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    assert 1e7 < matmul_rate(CPU, "fp32") < 1e15
    assert torch.equal(torch.get_rng_state(), before)


# --- auto -----------------------------------------------------------------------------------------


def ranks_on(device: torch.device, num_with_bf16: int = 0, world_size: int = 1) -> Ranks:
    """Ranks of which so many GPUs compute in bf16."""
    return cast(Ranks, SimpleNamespace(device=device, world_size=world_size, sum=lambda values: [num_with_bf16]))


def test_auto_is_fp32_on_a_cpu_and_what_was_asked_for_stays() -> None:
    assert resolved("auto", Ranks(timedelta(seconds=1))) == "fp32"
    for asked in ("fp32", "tf32", "bf16", "fp16"):
        assert resolved(asked, ranks_on(GPU)) == asked


def test_auto_is_bf16_where_the_gpus_of_all_ranks_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: bool(asked.append(options)) or True)
    assert resolved("auto", ranks_on(GPU, 2, 2)) == "bf16"
    assert resolved("auto", ranks_on(GPU, 1, 2)) == "fp32", "another rank's GPU has none"
    assert asked == [{"including_emulation": False}] * 2
    assert warning(GPU, "bf16") == "", "no measurement contradicts it"


def test_a_run_records_what_was_asked_for_and_what_it_is_here(
    tiny_training: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    record = read_json(tiny_training(max_steps=1).config) or {}
    assert (record["config"]["precision"], record["environment"]["precision"]) == ("auto", "fp32")
    assert "precision        fp32 (auto)" in capfd.readouterr().out


def test_tf32_is_left_alone_on_a_cpu_and_is_on_in_all_but_fp32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", asked.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    for name in ("fp32", "tf32", "bf16"):
        set_tf32(CPU, name)
    assert asked == []
    for name in ("fp32", "tf32", "bf16"):
        set_tf32(GPU, name)
        assert torch.backends.cudnn.allow_tf32 == (name != "fp32")
    assert asked == ["highest", "high", "high"]
