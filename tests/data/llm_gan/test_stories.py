"""Prompts and human texts: what a CSV file or Python's own text gives, and how every mistake is told."""

import csv
from pathlib import Path
from typing import Any

import pytest

from nbtools.data.llm_gan.stories import Story, python_stories, truncated
from nbtools.errors import DataError
from nbtools.recipes import RECIPES, LLMGANConfig
from nbtools.recipes.llm_gan import load_stories


def tiny(**changes: Any) -> LLMGANConfig:
    return LLMGANConfig(**{"dataset": "data.csv", "min_chars": 5, "max_chars": 40, **changes})


def write(folder: Path, *rows: tuple[str, ...], name: str = "data.csv") -> Path:
    path = folder / name
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def read_all(config: LLMGANConfig, root: Path) -> list[Story]:
    stories = [story for part in load_stories(config, root) for story in part]
    return sorted(stories, key=lambda story: story.text)


TEXTS = [(f"title {n}", "noir" if n % 2 else "", f"Story number {n} is short.") for n in range(40)]


def test_title_genre_and_human_story_are_read_as_the_old_program_did(tmp_path: Path) -> None:
    write(tmp_path, ("title", "genre", "human_story"), ("One", "noir", " It rained. "), ("Two", "", "It was dry."))
    assert read_all(tiny(clean="light"), tmp_path) == [
        Story("title: One\ngenre: noir", "It rained."),
        Story("title: Two", "It was dry."),
    ]


@pytest.mark.parametrize(
    ("header", "changes", "prompt"),
    [
        (("problem", "human_solution"), {}, "problem: a"),
        (("genre", "text"), {}, "genre: a"),
        (("other", "text"), {}, ""),
        (("other", "body"), {"text_col": "body", "prompt_cols": ("other",)}, "other: a"),
        (("title", "text"), {"prompt_cols": ()}, ""),
    ],
)
def test_other_columns_are_found_or_named(
    tmp_path: Path, header: tuple[str, str], changes: dict[str, Any], prompt: str
) -> None:
    write(tmp_path, header, ("a", "The first."), ("a", "The second."))
    assert read_all(tiny(**changes), tmp_path) == [Story(prompt, "The first."), Story(prompt, "The second.")]


BAD: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "no text column": (b"title,genre\na,b\n", {}, r"line 1, column 'human_story': is missing; .*'title'.*text_col"),
    "no such text column": (b"text\nabcdef\n", {"text_col": "body"}, r"line 1, column 'body': is missing.*text_col"),
    "no such prompt column": (
        b"title,text\na,abcdef\n",
        {"prompt_cols": ("title", "mood")},
        r"line 1, column 'mood': is missing.*prompt_cols",
    ),
    "no rows": (b"title,text\n", {}, r"no row below the column names"),
    "one text": (b"text\nabcdef\nabcdef\n", {}, r"1 different text; at least two are needed"),
    "short texts": (
        b"text\nlong enough\nabc\nlong as well\nx\n",
        {},
        r"line 3, column 'text': 'abc' has 3 characters, and min_chars=5; 2 of 4 texts are that short: .*leave_out",
    ),
    "all too short": (b"text\nabc\nabd\n", {"short_texts": "leave_out"}, r"0 different texts"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_told_with_file_line_and_column(tmp_path: Path, name: str) -> None:
    content, changes, said = BAD[name]
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        load_stories(tiny(**changes), tmp_path)
    assert str(path) in str(caught.value)


def test_short_texts_are_left_out_only_when_asked_for_and_then_counted(tmp_path: Path) -> None:
    write(tmp_path, ("text",), ("long enough",), ("abc",), ("long as well",))
    said: list[str] = []
    train, evaluation, _ = load_stories(tiny(short_texts="leave_out"), tmp_path, said.append)
    assert {story.text for story in [*train, *evaluation]} == {"long enough", "long as well"}
    assert said == ["note: 1 of 3 texts of data.csv are shorter than 5 characters and left out"]


def test_long_texts_are_cut_between_words() -> None:
    assert truncated("one two three", 13) == "one two three"
    assert truncated("one two three", 12) == "one two"
    assert truncated("one two three", 7) == "one two"
    assert truncated("abcdefghij", 4) == "abcd"


def test_python_s_own_text_becomes_passages_of_the_lengths_asked_for() -> None:
    found = list(python_stories(100, 300))
    assert len(found) > 500
    assert all(100 <= len(story.text) <= 300 for story in found)
    assert {"topic: assert", "topic: lambda"} <= {story.prompt for story in found}
    ends = sum(story.text[-1] in ".:;!?" for story in found)
    assert ends / len(found) > 0.5, "most end with a sentence"
    assert sum(len(story.text) for story in found) > 200_000, "little of it is left out"


@pytest.mark.parametrize(("shortest", "longest"), [(1, 60), (30, 30), (60, 70)])
def test_passages_are_never_shorter_or_longer(shortest: int, longest: int) -> None:
    assert all(shortest <= len(story.text) <= longest for story in python_stories(shortest, longest))


def test_the_form_counts_what_the_training_reads(tmp_path: Path) -> None:
    write(tmp_path, ("title", "genre", "human_story"), *TEXTS)
    for config in (tiny(), LLMGANConfig(dataset="topics")):
        parts = load_stories(config, tmp_path)
        counted = RECIPES["llm_gan"].count_samples(config, tmp_path)
        assert counted and counted[:3] == tuple(map(len, parts))
    assert len(read_all(tiny(), tmp_path)) == 40
