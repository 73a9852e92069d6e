"""Precision: a format that this machine is slow in is measured and told, with the alternative."""

import math

import pytest
import torch

from nbtools.training.engine import precision_check

CPU = torch.device("cpu")


@pytest.mark.promise("guide-A7")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_the_slowdown_is_a_measured_ratio(name: str) -> None:
    factor = precision_check.slowdown(CPU, name)
    assert math.isfinite(factor) and factor > 0


@pytest.mark.promise("guide-L8", "guide-A6")
def test_a_slower_precision_is_told_with_its_figure_and_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_check, "slowdown", lambda device, name: 8.96)
    text = precision_check.warning(CPU, "bf16")
    assert text.startswith("warning: bf16 is 9.0 times slower than fp32 on this CPU") and "--precision fp32" in text


def test_a_faster_precision_and_fp32_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_check, "slowdown", lambda device, name: 0.5)
    assert precision_check.warning(CPU, "bf16") == ""
    monkeypatch.setattr(precision_check, "slowdown", lambda device, name: 99.0)
    assert precision_check.warning(CPU, "fp32") == ""


def test_the_measurement_tells_an_emulated_product_from_a_native_one(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = {"bf16": 0.009, "fp32": 0.001}
    monkeypatch.setattr(precision_check, "_least_s", lambda matrix, name: times_s[name])
    assert precision_check.slowdown(CPU, "bf16") == pytest.approx(9)
