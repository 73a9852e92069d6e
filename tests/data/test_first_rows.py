"""The first rows of files as others write them, and the guess of their columns."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nbtools.data.first_rows import FirstRows, first_rows
from nbtools.errors import DataError
from nbtools.recipes import RECIPES

SPAM = """label,masseges,,,
ham,"Go until jurong point, crazy.. Available only in bugis n great world la e buffet...",,,
ham,Ok lar... Joking wif u oni...,,,
spam,Free entry in 2 a wkly comp to win FA Cup final tkts 21st May 2005. Text FA to 87121,,,
"""
REVIEWS = "Review\tLiked\nWow... Loved this place.\t1\nCrust is not good.\t0\nNot tasty at all.\t0\n"
NEWS = """label,title,description
3,Fears for T N pension after talks,Unions representing workers at Turner   Newall say they are 'disappointed'.
4,The Race is On,"SPACE.com - TORONTO, Canada -- A second team of rocketeers competing for the prize"
4,Prediction Unit Helps Forecast Wildfires,AP - It's barely dawn when Mike Fitzpatrick starts his shift
"""
PAIRS = """"id","qid1","qid2","question1","question2","is_duplicate"
"0","1","2","What is the step by step guide to invest?","What is the step by step guide?","0"
"1","3","4","What is the story of Kohinoor (Koh-i-Noor) Diamond?","What would happen?","0"
"7","15","16","How can I be a good geologist?","What should I do to be a great geologist?","1"
"""
OCCUPATIONS = "occ1;lang;code1;code2\ncarpenter;en;95410;\nlives of fishing;en;64100;-1\nGreengrocer;en;41020;?\n"
"""Heads of public data sets, as their files begin, but for the last, which has OccCANINE's columns."""


@pytest.mark.parametrize(
    ("name", "content", "text", "labels"),
    [
        ("spam.csv", SPAM, "masseges", ("label",)),
        ("reviews.tsv", REVIEWS, "Review", ("Liked",)),
        ("news.csv", NEWS, "description", ("label",)),
        ("pairs.csv", PAIRS, "question1", ("is_duplicate",)),
        ("occupations.csv", OCCUPATIONS, "occ1", None),
    ],
)
def test_columns_of_texts_and_labels_are_guessed(
    tmp_path: Path, name: str, content: str, text: str, labels: tuple[str, ...] | None
) -> None:
    (tmp_path / name).write_text(content)
    guess = RECIPES["text_classification"].guess_columns
    assert guess is not None
    assert guess(first_rows(name, tmp_path)) == {"text_col": text, "target_cols": labels, "lang_col": None}


def test_columns_that_are_read_where_none_is_named_are_those_of_the_recipe() -> None:
    def usual(key: str, *columns: str) -> Any:
        return RECIPES[key].usual_columns(columns)

    assert usual("text_classification", "occ1", "code") == {"target_cols": ("code",), "lang_col": ()}
    several = {"target_cols": ("code1", "code2"), "lang_col": ("lang",)}
    assert usual("text_classification", "code2", "lang", "code1", "codes") == several
    assert usual("llm_gan", "text", "genre", "id") == {"text_col": ("text",), "prompt_cols": ("genre",)}
    assert usual("llm_gan", "problem") == {"text_col": (), "prompt_cols": ("problem",)}
    assert usual("mlm_pretraining", "text") == {}


def test_first_line_that_is_a_row_is_told_from_names(tmp_path: Path) -> None:
    heads = {"spam": SPAM, "reviews": REVIEWS, "news": NEWS, "pairs": PAIRS}
    for name, content in {**heads, "numbered": "0,1\nWow... Loved it.,1\nNo.,0\n"}.items():
        (tmp_path / f"{name}.csv").write_text(content)
        assert not first_rows(f"{name}.csv", tmp_path).lacks_names, name
    for name, content in (("ham", SPAM), ("3", NEWS), ("95410", OCCUPATIONS)):
        (tmp_path / f"{name}.csv").write_text(content.partition("\n")[2])
        assert first_rows(f"{name}.csv", tmp_path).lacks_names, name


def test_labels_without_a_name_of_their_own_are_those_with_the_fewest_values() -> None:
    rows = tuple({"n": str(n), "score": f"{n}.5", "kind": "ab"[n % 2], "t": f"some words {n}"} for n in range(20))
    found = FirstRows(("n", "score", "kind", "t"), rows)
    assert (found.text_column(), found.label_column()) == ("t", "kind")


def test_classes_that_pandas_wrote_as_floats_are_labels() -> None:
    rows = tuple({"body": f"some words {n}", "is_spam": f"{n % 2}.0", "score": f"{n % 2}.5"} for n in range(20))
    assert FirstRows(("body", "is_spam", "score"), rows).label_column() == "is_spam"


def test_pairs_of_prompt_and_answer_need_no_column_and_other_tables_name_theirs(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"prompt": "a b", "answer": "c d"}) + "\n")
    (tmp_path / "texts.csv").write_text("id,body\n1,some words here\n")
    for key, name, column in (
        ("masked_diffusion", "pairs.jsonl", None),
        ("masked_diffusion", "texts.csv", "body"),
        ("mlm_pretraining", "texts.csv", "body"),
    ):
        guess = RECIPES[key].guess_columns
        assert guess is not None
        assert guess(first_rows(name, tmp_path)) == {"column": column}


def test_lines_of_a_text_have_no_columns(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "texts" / name).write_text("\ufefffirst\n\nsecond\n", encoding="utf-8")
    found = first_rows("texts", tmp_path)
    assert (found.columns, [row[""] for row in found.rows], found.num_files) == ((), ["first", "second"], 2)
    with gzip.open(tmp_path / "book.txt.gz", "wt") as file:
        file.write("packed\n")
    assert first_rows("book.txt.gz", tmp_path).rows == ({"": "packed"},)


def test_file_that_is_not_utf8_or_missing_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("v1,v2\nham,£1 caf\xe9\n".encode("latin-1"))
    with pytest.raises(DataError, match="iconv -f latin1"):
        first_rows("latin.csv", tmp_path)
    with pytest.raises(DataError, match="no such file"):
        first_rows("absent.csv", tmp_path)
