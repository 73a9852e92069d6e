"""The division of texts: equal ones in one part, whatever their order, in every recipe."""

import subprocess
import sys
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtools.data import corpus, split
from nbtools.data.llm_gan.stories import Story, split_stories
from nbtools.data.masked_diffusion.pairs import Pair, repeated_prompts, split_pairs
from nbtools.data.text_classification.coded_texts import CodedTexts, split_texts
from nbtools.errors import DataError

VARIANTS: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    lambda text: f"\n {text} \t",
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace("\n", "\r") + "\u2028",
    lambda text: unicodedata.normalize("NFD", text),
)
TEXTS = [f"Text é {number * number}\nof {number} words" for number in range(120)]


def test_texts_that_differ_in_case_outer_spaces_and_line_ends_are_equal_and_no_others() -> None:
    for text in TEXTS:
        assert len({split.key_of(variant(text)) for variant in VARIANTS}) == 1
    assert len({split.key_of(text) for text in TEXTS}) == len(TEXTS)


def test_the_hash_of_a_text_is_the_same_in_every_process() -> None:
    command = "from nbtools.data.split import key_of; print(key_of('Straße \\ud800'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", command], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{split.key_of('strasse ' + chr(0xD800))}\n"}


@given(
    st.lists(st.tuples(st.integers(0, 15), st.integers(1, 60)), min_size=2, max_size=60),
    st.sampled_from([0.0, 0.3, 0.5, 0.9]),
)
def test_equal_texts_are_in_one_part_and_none_is_empty(rows: list[tuple[int, int]], test_fraction: float) -> None:
    keys, lengths = [key for key, _ in rows], [length for _, length in rows]
    num_groups = len(set(keys))
    if num_groups < 2:
        with pytest.raises(DataError, match="1 different document; at least two are needed"):
            split.divide(keys, lengths, test_fraction)
        return
    parts = split.divide(keys, lengths, test_fraction).tolist()
    assert len(set(zip(keys, parts, strict=True))) == num_groups
    wanted = {split.TRAIN, split.EVALUATION} | ({split.TEST} if test_fraction and num_groups > 2 else set())
    assert set(parts) == wanted
    assert split.divide(keys[::-1], lengths[::-1], test_fraction).tolist() == parts[::-1], "the order does not matter"
    training = np.array(parts) == split.TRAIN
    assert (training == (split.divide(keys, lengths) == split.TRAIN)).all(), "the training does not change"


def test_the_held_out_part_has_its_share_of_the_characters_and_the_test_its_share_of_that() -> None:
    keys = list(map(split.key_of, map(str, range(2000))))
    assert [split.divide(keys, [999] * 2000, 0.3).tolist().count(part) for part in range(3)] == [1800, 140, 60]


def test_a_group_that_is_larger_than_the_held_out_share_is_trained_on() -> None:
    keys = [split.key_of("often")] * 60 + [split.key_of(f"text {number}") for number in range(60)]
    parts = split.divide(keys, [10] * 120, 0.5)
    assert set(parts[:60].tolist()) == {split.TRAIN}
    assert 10 <= (parts > 0).sum() <= 12


def by_documents(texts: list[str], said: list[str]) -> list[list[str]]:
    parts_N = split.divide(split.keys_of(texts), list(map(len, texts)), 0.5)
    said.append(corpus.count_tokens(texts)[3])
    return [[text for text, each in zip(texts, parts_N, strict=True) if each == part] for part in range(3)]


def by_stories(texts: list[str], said: list[str]) -> list[list[str]]:
    parts = split_stories([Story(str(place), text) for place, text in enumerate(texts)], "", 0.5, said.append)
    return [[story.text for story in part] for part in parts]


def by_prompts(texts: list[str], said: list[str]) -> list[list[str]]:
    pairs = [Pair(text, str(place), place) for place, text in enumerate(texts)]
    said.append(repeated_prompts(pairs))
    return [[pair.prompt for pair in part] for part in split_pairs(pairs, 10, lambda _: 0, 0.5)]


def by_codes(texts: list[str], said: list[str]) -> list[list[str]]:
    table = CodedTexts(numbers={"a": 0})
    for text in texts:
        table.append(text, "en", [0])
    said.append(split.repeated_note(split.keys_of(texts), "text"))
    return [[table.text(row) for row in part.tolist()] for part in split_texts(table, table.keys(), 0.1, 0.5)]


@pytest.mark.promise("safety-split")
@pytest.mark.parametrize("divided", [by_documents, by_stories, by_prompts, by_codes])
def test_a_text_that_is_held_out_is_trained_on_in_no_other_writing(
    divided: Callable[[list[str], list[str]], list[list[str]]],
) -> None:
    said: list[str] = []
    texts = [variant(text) for variant in VARIANTS for text in TEXTS]
    parts = [{split.key_of(text) for text in part} for part in divided(texts, said)]
    assert all(parts)
    assert len(set().union(*parts)) == sum(map(len, parts)) == len(TEXTS)
    assert "720 of 720 " in said[0]
    assert "occur more than once; each is in one part" in said[0]
