"""Scores of sets of codes, against counting them by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbtools.data.text_classification.codes import CodeSystem
from nbtools.training.text_classification.metrics import SCORES, ScoreTable, prefix_sets, prefixes, score, table_of

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
    found_BS = score(as_tensor([predicted for predicted, _ in pairs]), as_tensor([true for _, true in pairs]))
    for pair, row in zip(pairs, found_BS.tolist(), strict=True):
        assert dict(zip(SCORES, row, strict=True)) == pytest.approx(by_hand(*pair))


@given(SETS)
def test_scores_of_first_digits_are_those_of_the_shortened_sets(pairs: list[tuple[set[str], set[str]]]) -> None:
    for digits, of_CD in prefixes(SYSTEM).items():
        cut = [[{c if c == "-1" else c[:digits] for c in each} for each in side] for side in zip(*pairs, strict=True)]
        sides = [prefix_sets(as_tensor(list(side)), of_CD) for side in zip(*pairs, strict=True)]
        for pair, row in zip(zip(*cut, strict=True), score(*sides).tolist(), strict=True):
            assert dict(zip(SCORES, row, strict=True)) == pytest.approx(by_hand(*pair)), digits


def test_only_hisco_has_digits_to_look_at_and_a_special_code_stays_whole() -> None:
    assert prefixes(CodeSystem.of("generic", ["a", "b"], 1)) == {}
    found = prefixes(SYSTEM)
    assert list(found) == [1, 2, 3, 4]
    assert [of_CD.shape[1] for of_CD in found.values()] == [3, 4, 5, 5]  # -1 6 8; -1 61 64 83; …


def test_parts_are_weighted_means_over_all_ranks_and_a_part_without_texts_is_not_shown() -> None:
    scores_BS = score(as_tensor([{"61110"}, {"61110", "64100"}, {"-1"}]), as_tensor([{"61110"}, {"61110"}, {"83110"}]))
    table = ScoreTable(["all", "once", "da", "sv", "en"], torch.device("cpu"))
    table.add("all", scores_BS[:2])
    table.add("all", scores_BS[2:])
    table.add("once", scores_BS, torch.tensor([[0.5], [0.5], [1.0]], dtype=torch.float64))
    table.add("da", scores_BS, torch.tensor([[1, 0], [0, 1], [0, 1]], dtype=torch.float64))
    means = table.reduce(lambda sums_: [2 * value for value in sums_.tolist()])  # two equal ranks
    assert [row["texts"] for row in means.values()] == [6, 4, 2, 4, 0]
    accuracies = [row["accuracy"] for row in means.values()]
    assert accuracies == pytest.approx([(1 + 0.5 + 0) / 3, (0.5 + 0.25 + 0) / 2, 1, 0.25, 0])
    assert means["sv"] == pytest.approx(
        {"texts": 4, "accuracy": 0.25, "exact": 0, "precision": 0.25, "recall": 0.5, "f1": 1 / 3}
    )
    shown = table_of(means)
    assert shown.columns == ("part", "texts", *SCORES)
    assert [row[0] for row in shown.rows] == ["all", "once", "da", "sv"]
    assert shown.rows[0][:3] == ("all", "6", "0.500")
