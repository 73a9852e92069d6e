"""Scores of sets of codes, against counting them by hand."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nbtools.data.text_classification.codes import CodeSystem
from nbtools.training.text_classification.metrics import SCORES, prefix_sets, prefixes, score

CODES = ["-1", "61110", "61115", "61220", "64100", "83110"]
SYSTEM = CodeSystem.of("hisco", CODES, 5)
SETS = st.lists(st.tuples(*(st.sets(st.sampled_from(CODES), min_size=1) for _ in range(2))), min_size=1, max_size=6)


def as_tensor(sets: list[set[str]]) -> torch.Tensor:
    return torch.tensor([[int(code in each) for code in SYSTEM.codes] for each in sets])


def by_hand(predicted: set[str], true: set[str]) -> dict[str, float]:
    both = len(predicted & true)
    precision, recall = both / len(predicted), both / len(true)
    return {
        "accuracy": both / max(len(true), len(predicted)),
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if both else 0.0,
        "exact": float(predicted == true),
    }


@given(SETS)
def test_scores_are_those_counted_by_hand(pairs: list[tuple[set[str], set[str]]]) -> None:
    found = score(as_tensor([predicted for predicted, _ in pairs]), as_tensor([true for _, true in pairs]))
    assert tuple(found) == SCORES
    for name, value in found.items():
        assert abs(float(value) - sum(by_hand(*pair)[name] for pair in pairs)) < 1e-9, name


@given(SETS)
def test_scores_of_first_digits_are_those_of_the_shortened_sets(pairs: list[tuple[set[str], set[str]]]) -> None:
    for digits, of_CD in prefixes(SYSTEM).items():
        cut = [[{c if c == "-1" else c[:digits] for c in each} for each in side] for side in zip(*pairs, strict=True)]
        sides = [prefix_sets(as_tensor(list(side)), of_CD) for side in zip(*pairs, strict=True)]
        expected = sum(by_hand(*pair)["accuracy"] for pair in zip(*cut, strict=True))
        assert abs(float(score(*sides)["accuracy"]) - expected) < 1e-9, digits


def test_only_hisco_has_digits_to_look_at_and_a_special_code_stays_whole() -> None:
    assert prefixes(CodeSystem.of("generic", ["a", "b"], 1)) == {}
    found = prefixes(SYSTEM)
    assert list(found) == [1, 2, 3, 4]
    assert [of_CD.shape[1] for of_CD in found.values()] == [3, 4, 5, 5]  # -1 6 8; -1 61 64 83; …
