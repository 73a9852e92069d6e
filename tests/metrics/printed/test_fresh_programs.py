from types import SimpleNamespace

import pytest

from measure import PROGRAMS, compare, measure

NAMES = sorted(path.parent.name for path in PROGRAMS.glob("*/expected.json"))
LACKING = {"asr": 3}
"""Curves of a program that need clicks, at most; of any other program none."""


@pytest.mark.parametrize("name", NAMES)
def test_curves_of_a_program_are_right_at_first_sight_or_after_clicks(name, tmp_path):
    measured = measure(PROGRAMS / name, tmp_path)
    assert len(measured.first.right) >= measured.num_curves - LACKING.get(name, 0), str(measured)
    assert not measured.first.wrong, str(measured)
    assert not measured.after.wrong, str(measured)
    assert len(measured.after.right) == measured.num_curves, str(measured)
    assert max(measured.clicks.values(), default=0) <= 3, str(measured)


LOSS = {
    "names": ["loss"],
    "splits": ["train", ""],
    "accept": [{"unit": "step", "steps": [0, 10], "values": [2.0, 1.0]}],
}
EXPECTED = {"curves": [LOSS], "also": []}


@pytest.mark.parametrize(
    ("name", "unit", "steps", "values", "where", "why"),
    [
        ("train/loss", "step", [0, 10], [2.0, 1.0], "right", ""),
        ("train/loss", "row", [0, 1], [2.0, 1.0], "beside", "by order"),
        ("train/loss", "step", [0, 10], [2.0, 1.5], "wrong", "values"),
        ("train/loss", "step", [1, 10], [2.0, 1.0], "wrong", "steps"),
        ("train/loss", "epoch", [0, 10], [2.0, 1.0], "wrong", "steps: epoch"),
        ("eval/loss", "step", [0, 10], [2.0, 1.0], "wrong", "split"),
        ("train/size", "step", [0, 10], [7.0, 7.0], "wrong", "a constant"),
    ],
)
def test_a_wrong_value_step_unit_split_and_a_constant_are_found(name, unit, steps, values, where, why):
    log = SimpleNamespace(poll=lambda: {name: SimpleNamespace(steps=steps, values=values, unit=unit)})
    reading = compare(log, EXPECTED)
    found = {kind: getattr(reading, kind) for kind in ("right", "partly", "beside", "wrong")}
    assert [kind for kind, names in found.items() if names] == ([where] if where else [])
    assert why in reading.beside.get(name, "") + reading.wrong.get(name, "")
